"""Having a model say what is worth remembering."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from repertory.actors.model_call import Request, call_until_answered
from repertory.app.agent.model_choice import default_model
from repertory.core.answer import LIMITED
from repertory.core.memory.extracting import (
    DEFAULT_PROMPT,
    FORM,
    PART_TOKENS_MAX,
    ExtractionResult,
    distinct,
    facts_in,
    requests,
)
from repertory.core.messages import text_of
from repertory.core.retry import DEFAULT_RETRY
from repertory.errors import (
    ContextWindowOverflowException,
    ExtractionFailed,
    Invalid,
    MaxTokensReachedException,
    RepertoryError,
)

if TYPE_CHECKING:
    from repertory.backends.ports import Model
    from repertory.core.messages import Message


class ModelExtractor:
    """An `Extractor` that asks a model for facts.

    `model`: a `Model`, or the id of a Bedrock model; None for the agent's `aux_model`, or else its model.
    `system_prompt`: what is worth remembering, in the place of the usual words; how to answer is said behind it. The
    model is shown the messages as lines of JSON with times and roles, without tools. A batch that is too long for
    one call, or has too many facts for one answer, is asked about in several. They count towards the budgets of the
    call that wants it extracted, as used by `agent_id/memory`.
    """

    def __init__(self, model: Model | str | None = None, system_prompt: str | None = None) -> None:
        self._model = None if model is None else default_model(model)
        self._system_prompt = f"{system_prompt or DEFAULT_PROMPT}\n\n{FORM}"

    async def extract(self, messages: Sequence[Message], context: object = None) -> list[ExtractionResult]:
        """The facts, each once. What fails for a while is tried again. `context`: an `ExtractionContext`.

        Errors: `ExtractionFailed` when the model answers anything but an array of facts, or when its window or its
        token limit is too small even for short parts; `LimitReached` when a budget is used up; `Invalid` without a
        model; what the model raises. Cancellation ends the call.
        """
        if not messages:
            return []
        model = self._model or _model_of(context)
        said_at = cast("Sequence[float | None]", _read(context, "said_at") or ())
        agent_id = _read(context, "agent_id") or _read(_read(context, "agent"), "agent_id")
        who = "memory" if agent_id is None else f"{agent_id}/memory"
        asked: list[str] = []
        too_long: RepertoryError | None = None
        for part_tokens_max in PART_TOKENS_MAX:
            questions = requests(messages, said_at, part_tokens_max)
            if questions == asked:
                continue
            asked = questions
            try:
                return await self._ask_all(model, questions, who)
            except (ContextWindowOverflowException, MaxTokensReachedException) as error:
                too_long = error
        raise ExtractionFailed("question or answer is too long for the model", parts=len(asked)) from too_long

    async def aclose(self) -> None:
        """Close the model that was given to this extractor; another one is its agent's. It opens again when used."""
        if self._model is not None:
            await self._model.aclose()

    async def _ask_all(self, model: Model, questions: Sequence[str], who: str) -> list[ExtractionResult]:
        return distinct([fact for question in questions for fact in await self._ask(model, question, who)])

    async def _ask(self, model: Model, question: str, who: str) -> list[ExtractionResult]:
        messages: list[Message] = [{"role": "user", "content": [{"text": question}]}]
        request = Request(messages=messages, tool_specs=(), system_prompt=self._system_prompt)
        answer = await call_until_answered(model, request, DEFAULT_RETRY, who)
        if answer.stop_reason in LIMITED:
            raise MaxTokensReachedException("the facts were cut off", stop_reason=answer.stop_reason)
        return facts_in(text_of(answer.message))


def _model_of(context: object) -> Model:
    """The model to ask when the extractor has none of its own."""
    agent = _read(context, "agent")
    candidates = (
        _read(context, "model"),
        _read(context, "default_model"),
        _read(agent, "aux_model"),
        _read(agent, "model"),
    )
    for model in candidates:
        if model is not None:
            return cast("Model", model)
    raise Invalid("there is no model to ask: give ModelExtractor one, or an agent")


def _read(source: Any, name: str) -> object:
    return (
        cast("Mapping[str, object]", source).get(name) if isinstance(source, Mapping) else getattr(source, name, None)
    )
