"""Extraction: how a store gets memories from messages, when extraction runs, and how an extractor is called."""

from __future__ import annotations

import inspect
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, cast

from msgspec import Struct

from repertory.actors.side_calls import call_until_answered
from repertory.actors.turn import ModelRequest
from repertory.app.host.model_choice import default_model
from repertory.backends.worker_threads import run_foreign
from repertory.core.answer import LIMITED
from repertory.core.memory.extracting import (
    EXTRACTION_PROMPT,
    FORM,
    PART_TOKENS_MAX,
    ExtractionResult,
    FoundFacts,
    distinct,
    facts_in,
    read_results,
    requests,
)
from repertory.core.memory.options import MemoryMessageFilter, Options, read_options
from repertory.core.messages import text_of
from repertory.core.retry import DEFAULT_RETRY
from repertory.errors import (
    ContextWindowOverflowException,
    ExtractionFailed,
    Invalid,
    MaxTokensReachedException,
    RepertoryError,
)
from repertory.logs import WARNING, note
from repertory.runtime.faults import failure_of, repr_of

if TYPE_CHECKING:
    from repertory.backends.ports import Model
    from repertory.core.messages import Message


_log = logging.getLogger("repertory.memory")

DEFAULT_TURNS = 5
"""The default number of turns between two extractions."""

Triggers: TypeAlias = "ExtractionTrigger | Sequence[ExtractionTrigger]"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ExtractionConfig(Options):
    """An extraction makes memories of messages for a store. Works as attributes and as a mapping; None means the
    default.

    Args:
        trigger: One trigger or several, of which any may fire; by default every five turns.
        extractor: Makes memories of messages, for the store's `add`; by default a `ModelExtractor` for a store that has
            only `add`, and none for one with `add_messages`, which gets the messages.
        filter: The parts to leave out before; by default tool uses and results.
    """

    trigger: Triggers | None = None
    extractor: Extractor | None = None
    filter: MemoryMessageFilter | None = None


class Extraction(Struct, frozen=True, kw_only=True):
    """An `ExtractionConfig` with the defaults filled in."""

    triggers: tuple[ExtractionTrigger, ...]
    """The triggers; empty if an empty sequence was given."""
    extractor: Extractor | None
    """The extractor; None for a store that gets the messages themselves."""
    filter: MemoryMessageFilter


def read_extraction(given: object, *, has_add: bool, has_add_messages: bool) -> Extraction | None:
    """A store's `extraction`: None and False mean no extraction, True the defaults, else an `ExtractionConfig` or a
    mapping.

    The caller checks whether the store supports it. Errors: `Invalid` for bad settings, triggers, extractors and
    filters.
    """
    if given is None or given is False:
        return None
    config = ExtractionConfig() if given is True else read_options(ExtractionConfig, given, "extraction")
    extractor = config.extractor
    if extractor is None and has_add and not has_add_messages:
        extractor = ModelExtractor()
    if extractor is not None and not callable(getattr(extractor, "extract", None)):
        raise Invalid("an extractor has a method extract(messages, context)", got=type(extractor).__name__)
    return Extraction(
        triggers=_triggers(config.trigger),
        extractor=extractor,
        filter=read_options(MemoryMessageFilter, config.filter, "filter"),
    )


def _triggers(given: object) -> tuple[ExtractionTrigger, ...]:
    if given is None:
        return (IntervalTrigger(DEFAULT_TURNS),)
    triggers = cast("Sequence[object]", given) if isinstance(given, list | tuple) else (given,)
    for trigger in triggers:
        if not isinstance(trigger, ExtractionTrigger):
            raise Invalid("a trigger is an ExtractionTrigger: subclass it", got=type(trigger).__name__)
    return tuple(cast("Sequence[ExtractionTrigger]", triggers))


@dataclass(frozen=True, slots=True)
class ExtractionTriggerContext:
    """The argument of a trigger's `attach`."""

    agent: Any
    """The `Agent` whose conversation is extracted. A trigger may add hooks to it."""
    fire: Callable[[], None]
    """Starts the extraction of all new messages. It returns at once; `MemoryManager.flush` waits for the end."""


class ExtractionTrigger(ABC):
    """The moment at which a store extracts memories from new messages. Subclass it for another moment.

    A trigger that never fires never extracts; `MemoryManager.flush` extracts what is left.
    """

    name: str = "custom"
    """The name in the log."""
    every: int | None = None
    """The turns between two extractions; None when only `fire` starts one. Turns are counted in the journal, so the
    count goes on after a restart.
    """

    @abstractmethod
    def attach(self, context: ExtractionTriggerContext) -> None:
        """Make the agent's hooks call `context.fire()`. Called once for each store and agent that use this trigger.

        Args:
            context: The known facts about this call.
        """


class InvocationTrigger(ExtractionTrigger):
    """Extraction after every turn. With a `ModelExtractor` that is one model call per turn, after the answer."""

    name = "invocation"
    every = 1

    def attach(self, context: ExtractionTriggerContext) -> None:
        """Does nothing: turns are counted in the journal."""
        del context


class IntervalTrigger(ExtractionTrigger):
    """Extraction after every `turns` turns, from all messages since.

    Args:
        turns: The turns between two extractions.

    Raises:
        Invalid: For anything but a positive integer. Correct the argument.
    """

    name = "interval"

    def __init__(self, turns: int) -> None:
        given = cast("object", turns)
        if not isinstance(given, int) or isinstance(given, bool) or given < 1:
            raise Invalid(f"IntervalTrigger: turns must be a positive integer, got {given}")
        self.every = given

    def attach(self, context: ExtractionTriggerContext) -> None:
        """Does nothing: turns are counted in the journal."""
        del context


GRACE_S = 5.0
"""Seconds that a synchronous extractor may still run after its caller was cancelled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtractionContext:
    """The origin of the messages that an extractor gets."""

    agent: Any = None
    """The `Agent` of the conversation; None for a conversation left behind by a process that has ended."""
    agent_id: str | None = None
    """The agent's name in the session: for a node whose conversation is stored, `graph.node`."""
    model: Model | None = None
    """The model for extractors without one: the agent's `aux_model`, or else its model."""
    store_name: str | None = None
    """The store for the results."""
    said_at: Sequence[float | None] = ()
    """Epoch seconds at which each message was recorded, where known."""

    @property
    def default_model(self) -> Model | None:
        """Alias of `model`."""
        return self.model


class Extractor(Protocol):
    """Finds what to remember of a conversation. A method that is not asynchronous runs in a worker thread."""

    def extract(
        self, messages: list[Message], context: ExtractionContext
    ) -> Awaitable[Sequence[ExtractionResult]] | Sequence[ExtractionResult]:
        """The memories, each as one result; empty when nothing is worth remembering.

        It may be called for the same messages again. If it raises, the messages are extracted again later.

        Args:
            messages: The messages, oldest first.
            context: The known facts about this call.
        """
        ...


async def ask_extractor(
    extractor: Extractor, messages: Sequence[Message], context: ExtractionContext
) -> list[ExtractionResult]:
    """The extractor's results, without blank and repeated ones; empty without a call when there are no messages.

    Errors: the extractor's own from `repertory.errors`; `ExtractionFailed` for any other exception, which is the
    `__cause__`, and for invalid results. Cancellation waits for the thread of a synchronous extractor, for `GRACE_S` at
    most.
    """
    if not messages:
        return []
    extract: Any = extractor.extract
    try:
        if inspect.iscoroutinefunction(extract):
            given = await extract(list(messages), context)
        else:
            # In a tuple, since trio refuses threads that return an awaitable.
            given = await run_foreign(lambda: extract(list(messages), context), grace_s=GRACE_S)
            given = await given if inspect.isawaitable(given) else given
        return _noted(read_results(given), context.store_name)
    except RepertoryError:
        raise
    except BaseException as error:
        failure_of(error)  # What is none goes on.
        name = type(extractor).__name__
        raise ExtractionFailed("the extractor raised an error", extractor=name, error=repr_of(error)) from error


class ModelExtractor:
    """An `Extractor` that asks a model for facts.

    The model sees the messages as lines of JSON. Each has a time and a role. It gets no tools. A batch that is too long
    for one call is split into several. So is a batch with too many facts for one answer. The calls count towards the
    budgets of the call that asked for the extraction, as used by `agent_id/memory`.

    Args:
        model: A `Model`, or the id of a Bedrock model; None for the agent's `aux_model`, or else its model.
        system_prompt: Rules for what to remember, instead of the default text; the answer's format is added to it.
    """

    def __init__(self, model: Model | str | None = None, system_prompt: str | None = None) -> None:
        self._model = None if model is None else default_model(model)
        self._system_prompt = f"{system_prompt or EXTRACTION_PROMPT}\n\n{FORM}"

    async def extract(self, messages: Sequence[Message], context: object = None) -> list[ExtractionResult]:
        """The facts, each once. Temporary failures are tried again.

        Errors: what the model raises. Cancellation ends the call.

        Args:
            messages: The messages, oldest first.
            context: An `ExtractionContext`.

        Raises:
            ExtractionFailed: When the model answers anything but an array of facts, or when its window or its token
                limit is too small even for short parts. Read its cause; the messages stay pending.
            LimitReached: When a budget is used up. Raise it; the messages stay pending.
            Invalid: Without a model. Correct the argument.
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
                return distinct([fact for question in questions for fact in await self._ask(model, question, who)])
            except (ContextWindowOverflowException, MaxTokensReachedException) as error:
                too_long = error
        raise ExtractionFailed("question or answer is too long for the model", parts=len(asked)) from too_long

    async def aclose(self) -> None:
        """Close this extractor's own model; another one is its agent's. It opens again when used."""
        if self._model is not None:
            await self._model.aclose()

    async def _ask(self, model: Model, question: str, who: str) -> list[ExtractionResult]:
        messages: list[Message] = [{"role": "user", "content": [{"text": question}]}]
        request = ModelRequest(messages=messages, tool_specs=(), system_prompt=self._system_prompt)
        answer = await call_until_answered(model, request, DEFAULT_RETRY, who)
        if answer.stop_reason in LIMITED:
            raise MaxTokensReachedException("the facts were cut off", stop_reason=answer.stop_reason)
        return _noted(facts_in(text_of(answer.message), question), who)


def _noted(found: FoundFacts, where: str | None) -> list[ExtractionResult]:
    if found.left_out:
        note(_log, WARNING, "parts of an extraction are no facts, or too many", left_out=found.left_out, of=where)
    return found.facts


def _model_of(context: object) -> Model:
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
    raise Invalid("no model configured: give ModelExtractor one, or an agent")


def _read(source: Any, name: str) -> object:
    return (
        cast("Mapping[str, object]", source).get(name) if isinstance(source, Mapping) else getattr(source, name, None)
    )
