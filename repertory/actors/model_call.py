"""One call of the model: from the shown messages to a whole answer, publishing pieces on the way."""

from __future__ import annotations

import logging
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import anyio

from repertory.actors.spending import Spending
from repertory.core.answer import Answer, Assembler
from repertory.core.limits import ANSWER_BYTES
from repertory.errors import ModelFailed, RepertoryError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from repertory.backends.ports import Model, StreamEvent
    from repertory.core.messages import Message, ToolSpec
    from repertory.core.retry import RetryStrategy

Publish = Callable[["StreamEvent"], Awaitable[None]]

_log = logging.getLogger("repertory.retries")


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What the model is asked. Nobody edits the messages."""

    messages: Sequence[Message]
    tool_specs: Sequence[ToolSpec]
    system_prompt: str | None
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """What few calls need: `tool_choice`, and `system_prompt_content` when the system prompt is content blocks."""


async def call_model(
    model: Model, request: Request, publish: Publish | None, answer_bytes: int = ANSWER_BYTES
) -> Answer:
    """The whole answer. A partial one is never returned.

    Errors: the model's own from `repertory.errors`; `ModelStreamBroken` when the stream ends early; `ModelFailed` for
    nonsense and for anything else that the model raises, which is its `__cause__`; `TooLarge` when the answer gets
    heavier than `answer_bytes`. Both that and cancellation close the model's stream before they go on.
    """
    assembler = Assembler(answer_bytes)
    try:
        stream = model.stream(request.messages, request.tool_specs or None, request.system_prompt, **request.options)
        await _drain(stream, assembler, publish)
        return assembler.finish()
    except RepertoryError:
        raise
    except Exception as error:
        raise ModelFailed("the model raised an error", model=type(model).__name__, error=repr(error)) from error


async def call_until_answered(model: Model, request: Request, strategy: RetryStrategy | None, who: str) -> Answer:
    """The same for a side call that nobody watches: it is made again as the strategy says, and counts towards the
    budgets that count here, as used by `who`.

    Errors: the last one; `LimitReached` when a budget is used up.
    """
    attempt, spending = 0, Spending(who)
    while True:
        attempt += 1
        spending.check(model)
        try:
            answer = await call_model(model, request, None)
        except RepertoryError as error:
            delay_s = retry_delay_s(strategy, error, attempt, 0.5)
            if delay_s is None:
                raise
        else:
            spending.charge(model, answer.usage)
            return answer
        await anyio.sleep(delay_s)


def retry_delay_s(strategy: RetryStrategy | None, error: Exception, attempt: int, jitter: float) -> float | None:
    """Seconds to wait before the call is made again; None gives up, as does a strategy that fails, which is logged."""
    if strategy is None:
        return None
    try:
        delay_s = strategy.delay_s(error, attempt, jitter)
        if delay_s is None or 0 <= delay_s < math.inf:
            return delay_s
        _log.error("retry strategy gave no time to wait", extra={"delay_s": delay_s})
    except Exception as failure:  # noqa: BLE001 - A strategy may be anybody's code, and the model's failure matters more.
        _log.error("retry strategy failed", exc_info=failure)
    return None


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
