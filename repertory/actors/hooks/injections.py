"""Renders the injections of one model call, all at once, each with its own deadline.

Fails open: an injection that fails or is late is left out, and the others stay. Each one left out is reported in the
log, to the caller (`TurnMetrics.left_out`) and to tracing.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import anyio

from repertory.core.messages import ContentBlock, Message, copy_message
from repertory.core.provider_content import takes_results_alone
from repertory.core.tokens import estimate_tokens
from repertory.core.window.injection import Occasion, blocks_of, is_occasion, with_injected
from repertory.logs import ERROR, WARNING, note
from repertory.runtime.faults import failure_of

if TYPE_CHECKING:
    from repertory.core.state import AgentState

_log = logging.getLogger("repertory.injections")


class InjectionContext:
    """An injection may look at these values.

    Args:
        state: The agent's state.
        agent: The `Agent`.
    """

    def __init__(self, messages: Sequence[Message], state: AgentState, agent: Any) -> None:
        self.shown = messages
        """The messages themselves, not copied; they must not be edited."""
        self.left_out: dict[str, str] = {}
        """The injections left out of this call, by name, with the reason (`failed`, `late`, `skipped`)."""
        self.state = state
        self.agent = agent

    @cached_property
    def messages(self) -> list[Message]:
        """A copy of what the model is about to be shown, oldest first, made at first use."""
        return [copy_message(message) for message in self.shown]


Rendered: TypeAlias = "str | Sequence[ContentBlock] | None"
RenderContent: TypeAlias = "Callable[[InjectionContext], Rendered | Awaitable[Rendered]]"
"""Gives what to add: a text, content blocks, or None (also a blank text) for nothing. A synchronous one runs on the
event loop, so it must not block.
"""
InjectionPredicate: TypeAlias = "Callable[[InjectionContext], bool | Awaitable[bool]]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Injection:
    """Adds content to what the model is shown, for one call at a time."""

    name: str
    """Unique within its agent; the log shows it."""
    render: RenderContent
    trigger: Occasion | InjectionPredicate = "userTurn"
    timeout_s: float
    """Seconds for the trigger and the rendering together. Content that takes longer is cancelled and left out."""
    on_omission: Callable[[str, str], None] | None = None
    """Called with name and reason when it is left out of a call."""


class InjectedText(NamedTuple):
    """The messages to show in one call."""

    messages: Sequence[Message]
    tokens: int
    """Estimated tokens of the injected content, which is in this call only."""


async def injected(injections: Sequence[Injection], context: InjectionContext) -> InjectedText:
    """The shown messages with the injected content, in order. Raises nothing: see the module docstring.

    Nothing is injected beside results that code of the provider waits for: that would end the code.
    """
    if takes_results_alone(context.shown):
        return InjectedText(context.shown, 0)
    blocks = await _rendered(injections, context)
    if not blocks:
        return InjectedText(context.shown, 0)
    return InjectedText(with_injected(context.shown, blocks), estimate_tokens([{"role": "user", "content": blocks}]))


async def _rendered(injections: Sequence[Injection], context: InjectionContext) -> list[ContentBlock]:
    # No task group for one, as most agents have.
    if len(injections) == 1:
        return await _render(injections[0], context)
    found: list[list[ContentBlock]] = [[] for _ in injections]

    async def render_at(index: int, injection: Injection) -> None:
        found[index] = await _render(injection, context)

    async with anyio.create_task_group() as group:
        for index, injection in enumerate(injections):
            group.start_soon(render_at, index, injection)
    return [block for blocks in found for block in blocks]


async def _render(injection: Injection, context: InjectionContext) -> list[ContentBlock]:
    try:
        with anyio.move_on_after(injection.timeout_s):
            if not await _is_wanted(injection.trigger, context):
                return []
            given = injection.render(context)
            return blocks_of(await given if inspect.isawaitable(given) else given)
    except BaseException as raised:  # noqa: BLE001 - A renderer is a user's code; the call goes on without it.
        error = failure_of(raised)
        note(_log, ERROR, "injection failed", error, injection=injection.name)
        return _omit(injection, context, "failed")
    note(_log, WARNING, "injection was too slow", injection=injection.name, timeout_s=injection.timeout_s)
    return _omit(injection, context, "late")


def _omit(injection: Injection, context: InjectionContext, why: str) -> list[ContentBlock]:
    context.left_out[injection.name] = why
    if injection.on_omission is not None:
        injection.on_omission(injection.name, why)
    return []


async def _is_wanted(trigger: Occasion | InjectionPredicate, context: InjectionContext) -> bool:
    if not callable(trigger):
        return is_occasion(trigger, context.shown)
    wanted = trigger(context)
    return bool(await wanted if inspect.isawaitable(wanted) else wanted)
