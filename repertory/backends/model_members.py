"""The methods of models for programs, beside `stream`: an object of a type, and the tokens of a request."""

from __future__ import annotations

import inspect
import re
import warnings
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing, nullcontext
from typing import TYPE_CHECKING, Any, Protocol, cast

from repertory.errors import StructuredOutputException

if TYPE_CHECKING:
    from repertory.core.answer import Answer
    from repertory.core.converse import StreamEvent
    from repertory.core.messages import Message, ToolSpec

_NAME = re.compile(r"[^a-zA-Z0-9_-]")


class AskedModel(Protocol):
    """The part of a model that this needs."""

    @property
    def context_window_limit(self) -> int | None: ...
    @property
    def stream(self) -> Callable[..., AsyncIterator[StreamEvent]]: ...


class SdkModelMembers:
    """The members of a model that follow from `stream` and from its window."""

    def estimate_utilization(self: AskedModel, input_tokens: int) -> float:
        """The share of the model's window that so many tokens take: 0.5 is half of it. For a model whose window is
        unknown, 200,000 tokens are assumed, which warns.

        Args:
            input_tokens: The tokens.
        """
        from repertory.core.window.decision import UNKNOWN_WINDOW  # loaded when used

        window = self.context_window_limit
        if not window:
            text = f"context_window_limit is not set on the model: {UNKNOWN_WINDOW} tokens are assumed"
            warnings.warn(text, UserWarning, stacklevel=1)  # Of this line, so that it is said once.
        return input_tokens / (window or UNKNOWN_WINDOW)

    async def structured_output(
        self: AskedModel,
        output_model: type[Any],
        prompt: Sequence[Message],
        system_prompt: str | None = None,
        **options: Any,
    ) -> AsyncGenerator[dict[str, Any], None]:
        """Ask the model for an object of that pydantic model, once and outside of any agent. It yields the events of
        its answer as `{"event": ...}`, and last `{"output": ...}`. An agent's `structured_output_async` asks again when
        an answer does not fit. Closing the generator ends the request. Errors: also those of `stream`.

        Args:
            output_model: A pydantic model class.
            prompt: The messages, oldest first.
            system_prompt: The system prompt; None for none.
            options: The options of `stream`.

        Raises:
            StructuredOutputException: For an answer without a valid object. Ask again, or loosen the type.
        """
        from repertory.core.answer import Assembler  # loaded when used

        assembler, name = Assembler(), _NAME.sub("_", output_model.__name__)[:64]
        about = f"Gives the final result to the caller. {(output_model.__doc__ or name).strip()}"
        spec: ToolSpec = {
            "name": name,
            "description": about,
            "inputSchema": {"json": output_model.model_json_schema()},
        }
        if _takes(self, "tool_choice"):
            options = {"tool_choice": {"any": {}}, **options}
        async with _closing(self.stream(prompt, [spec], system_prompt, **options)) as events:
            async for event in events:
                assembler.feed(event)
                yield {"event": event}
        answer = assembler.finish()
        given = _given(answer, name)
        if given is None:
            text = "the model did not give the structured output"
            raise StructuredOutputException(text, stop_reason=answer.stop_reason)
        try:
            read = (
                output_model.model_validate_json(given)
                if isinstance(given, str)
                else output_model.model_validate(given)
            )
        except ValueError as error:
            raise StructuredOutputException(f"the model gave an invalid {name}: {error}") from error
        yield {"output": read}


def _takes(model: AskedModel, option: str) -> bool:
    parameters = inspect.signature(model.stream).parameters.values()
    return any(each.name == option or each.kind is each.VAR_KEYWORD for each in parameters)


def _closing(stream: AsyncIterator[StreamEvent]) -> Any:
    """Closes a generator with the block; other iterators have nothing to close."""
    return aclosing(cast("Any", stream)) if hasattr(stream, "aclose") else nullcontext(stream)


def _given(answer: Answer, name: str) -> object:
    """The object in an answer: the input of the tool, or the text of a model that writes it; None if there is none."""
    blocks: Sequence[Mapping[str, Any]] = answer.message["content"]
    for block in blocks:
        if "toolUse" in block and block["toolUse"]["name"] == name:
            use = block["toolUse"]
            return answer.invalid_inputs.get(use["toolUseId"], use["input"])
    text = "".join(block["text"] for block in blocks if "text" in block).strip()
    return text if text.startswith("{") else None
