"""Telling callbacks what happens in one turn, and bringing back what they decide.

Costs next to nothing where nobody listens: an event is made only for somebody. Failures of observers are logged here,
those of guards become `HookFailed`.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from repertory.actors.hook_events import (
    AfterInvocationEvent,
    AfterModelCallEvent,
    AfterToolCallEvent,
    AfterToolsEvent,
    BeforeInvocationEvent,
    BeforeModelCallEvent,
    BeforeToolCallEvent,
    BeforeToolsEvent,
    HookEvent,
    MessageAddedEvent,
    ModelStopResponse,
)
from repertory.core.messages import copy_message, tool_results, tool_uses
from repertory.core.pairing import check_message
from repertory.errors import HookFailed, Invalid, RepertoryError, UnpairedTools

if TYPE_CHECKING:
    from repertory.actors.hook_registry import HookRegistry, Registered
    from repertory.backends.ports import Tool
    from repertory.core.answer import Answer
    from repertory.core.messages import ContentBlock, Message, ToolResult, ToolUse
    from repertory.core.result import AgentResult

_log = logging.getLogger("repertory.hooks")
_Event = TypeVar("_Event", bound=HookEvent)


async def fire(registry: HookRegistry, event: _Event) -> _Event:
    """Call everybody who listens to this type of event, in order; the event as they left it.

    Errors: `HookFailed`, or a guard's own `RepertoryError`; nobody is called after it.
    """
    for registered in registry.callbacks_for(type(event)):
        try:
            outcome = registered.callback(event)
            if outcome is not None and inspect.isawaitable(outcome):
                await outcome
        except Exception as error:  # noqa: BLE001 - A callback is anybody's code; a guard's failure is raised.
            _settle(registered, event, error)
    return event


def fire_sync(registry: HookRegistry, event: HookEvent) -> None:
    """The same where nothing can be awaited: every callback is synchronous."""
    for registered in registry.callbacks_for(type(event)):
        try:
            registered.callback(event)
        except Exception as error:  # noqa: BLE001 - As above.
            _settle(registered, event, error)


def _settle(registered: Registered, event: HookEvent, error: Exception) -> None:
    kind = type(event).__name__
    if not registered.guard:
        _log.error("hook failed", exc_info=error, extra={"event": kind, "callback": repr(registered.callback)})
        return
    if isinstance(error, RepertoryError):
        raise error
    raise HookFailed("a hook failed", event=kind, error=repr(error)) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolEnded:
    """One tool use and what became of it."""

    tool: Tool | None
    use: ToolUse
    result: ToolResult
    exception: Exception | None = None
    cancel_message: str | None = None
    """Why it did not run."""
    duration_s: float | None = None


class TurnHooks:
    """The events of one call."""

    def __init__(self, registry: HookRegistry, agent: Any, invocation_state: dict[str, Any]) -> None:
        self._registry = registry
        self._listened = registry.in_order
        self._agent = agent
        self._state = invocation_state

    async def before_invocation(self, messages: Sequence[Message]) -> BeforeInvocationEvent | None:
        """What callbacks made of the call; None when nobody listens."""
        if BeforeInvocationEvent not in self._listened:
            return None
        given = list(messages)
        event = BeforeInvocationEvent(agent=self._agent, invocation_state=self._state, messages=given)
        return await fire(self._registry, event)

    async def after_invocation(self, result: AgentResult | None) -> object:
        """The prompt to go on with, None for none."""
        if AfterInvocationEvent not in self._listened:
            return None
        event = AfterInvocationEvent(agent=self._agent, invocation_state=self._state, result=result)
        resume: object = (await fire(self._registry, event)).resume
        return resume

    async def message_added(self, message: Message) -> Message:
        """The message as it is to be stored: callbacks may edit it. An edit that makes no message is undone."""
        if MessageAddedEvent not in self._listened:
            return message
        edited = copy_message(message)
        await fire(self._registry, MessageAddedEvent(agent=self._agent, message=edited))
        try:
            check_message(edited)
            if _tools_in(edited) != _tools_in(message):
                raise UnpairedTools("an edit keeps tool uses and tool results where they are")
        except Invalid as error:
            _log.error("hook broke a message; it is stored as it was", exc_info=error)
            return message
        return edited

    async def before_model(self, projected: Callable[[], int]) -> str | None:
        """What to take for the model's answer instead of asking it; None asks it."""
        if BeforeModelCallEvent not in self._listened:
            return None
        tokens = projected()
        event = BeforeModelCallEvent(agent=self._agent, invocation_state=self._state, projected_input_tokens=tokens)
        return _text((await fire(self._registry, event)).cancel, "model call denied by hook")

    async def after_model(self, answer: Answer | None, error: Exception | None, *, retry: bool) -> bool:
        """Whether to ask the model again."""
        if AfterModelCallEvent not in self._listened:
            return retry
        response = None
        if answer is not None:
            response = ModelStopResponse(message=answer.message, stop_reason=answer.stop_reason)
        event = AfterModelCallEvent(
            agent=self._agent, invocation_state=self._state, stop_response=response, exception=error, retry=retry
        )
        return bool((await fire(self._registry, event)).retry)

    async def before_tools(self, message: Message) -> str | None:
        """The error result of every tool; None runs them."""
        if BeforeToolsEvent not in self._listened:
            return None
        event = BeforeToolsEvent(agent=self._agent, message=message, invocation_state=self._state)
        return _text((await fire(self._registry, event)).cancel, "Tool cancelled by hook")

    async def after_tools(self, results: Sequence[ToolResult]) -> tuple[ContentBlock, ...]:
        """The turn's answer, if it is to end here; empty to go on."""
        if AfterToolsEvent not in self._listened:
            return ()
        message: Message = {"role": "user", "content": [{"toolResult": result} for result in results]}
        event = AfterToolsEvent(agent=self._agent, message=message, invocation_state=self._state)
        ended = (await fire(self._registry, event)).end_turn
        if isinstance(ended, list):
            return tuple(ended)
        text = _text(ended, "Turn ended early by hook after tool execution")
        return () if text is None else ({"text": text},)

    async def before_tool(self, tool: Tool | None, use: ToolUse) -> tuple[Tool | None, ToolUse, str | None]:
        """The tool and the input to run it with, and why not to run it, if so. The id is always the one asked for."""
        if BeforeToolCallEvent not in self._listened:
            return tool, use, None
        event = BeforeToolCallEvent(
            agent=self._agent, selected_tool=tool, tool_use={**use}, invocation_state=self._state
        )
        await fire(self._registry, event)
        changed: ToolUse = {**event.tool_use, "toolUseId": use["toolUseId"]}
        return event.selected_tool, changed, _text(event.cancel_tool, "tool cancelled by user")

    async def after_tool(self, ended: ToolEnded) -> tuple[ToolResult, bool]:
        """The result as the model is to be told it, and whether to run the tool again instead."""
        if AfterToolCallEvent not in self._listened:
            return ended.result, False
        event = AfterToolCallEvent(
            agent=self._agent,
            selected_tool=ended.tool,
            tool_use=ended.use,
            invocation_state=self._state,
            result=ended.result,
            exception=ended.exception,
            cancel_message=ended.cancel_message,
            duration=ended.duration_s,
        )
        await fire(self._registry, event)
        result: ToolResult = {**event.result, "toolUseId": ended.use["toolUseId"]}
        if not _is_result(result):
            _log.error("hook broke a tool result; it is stored as it was", extra={"tool": ended.use["name"]})
            result = ended.result
        return result, bool(event.retry)


def _text(cancel: object, default: str) -> str | None:
    """A flag that may be a text."""
    if isinstance(cancel, str):
        return cancel or default
    return default if cancel else None


def _tools_in(message: Message) -> tuple[list[str], list[str]]:
    """The ids of the tools that a message asks for, and of those that it answers."""
    asked = [use["toolUseId"] for use in tool_uses(message)]
    return asked, [result["toolUseId"] for result in tool_results(message)]


def _is_result(result: Mapping[str, object]) -> bool:
    content = result.get("content")
    return result.get("status") in ("success", "error") and isinstance(content, list)
