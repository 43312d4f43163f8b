"""One call of the model: from the shown messages to a whole answer, publishing pieces on the way."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from repertory.core.answer import Answer, Assembler
from repertory.errors import ModelFailed, RepertoryError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from repertory.backends.ports import Model, StreamEvent
    from repertory.core.messages import Message, ToolSpec

Publish = Callable[["StreamEvent"], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What the model is asked. Nobody edits the messages."""

    messages: Sequence[Message]
    tool_specs: Sequence[ToolSpec]
    system_prompt: str | None
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """What few calls need: `tool_choice`, and `system_prompt_content` when the system prompt is content blocks."""


async def call_model(model: Model, request: Request, publish: Publish | None) -> Answer:
    """The whole answer. A partial one is never returned.

    Errors: the model's own from `repertory.errors`; `ModelStreamBroken` when the stream ends early; `ModelFailed` for
    nonsense and for anything else that the model raises, which is its `__cause__`. Cancellation closes the model's
    stream before it goes on.
    """
    assembler = Assembler()
    try:
        stream = model.stream(request.messages, request.tool_specs or None, request.system_prompt, **request.options)
        await _drain(stream, assembler, publish)
        return assembler.finish()
    except RepertoryError:
        raise
    except Exception as error:
        raise ModelFailed("the model raised an error", model=type(model).__name__, error=repr(error)) from error


async def _drain(stream: AsyncIterator[StreamEvent], assembler: Assembler, publish: Publish | None) -> None:
    """Feed every event. Generators are closed here; other iterators have nothing to close."""
    if not hasattr(stream, "aclose"):
        async for event in stream:
            assembler.feed(event)
            if publish is not None:
                await publish(event)
        return
    async with aclosing(cast("AsyncGenerator[StreamEvent]", stream)) as events:
        async for event in events:
            assembler.feed(event)
            if publish is not None:
                await publish(event)
