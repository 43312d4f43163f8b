"""Calls callbacks at the events of one turn, and returns what they decide.

It costs almost nothing without listeners: an event is made only if a callback is registered for it. An observer's
failure is logged here; a guard's becomes `HookFailed`. Values that callbacks leave in an event are checked before use:
a wrong value is logged and ignored in an observer's event, and a failure in a guard's event.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar, cast

from msgspec import Struct

from repertory.actors.hooks.events import (
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
    SeenInput,
    ignores_prompts,
)
from repertory.backends.tool_ports import checked_tool, is_tool_source
from repertory.core.interrupts import question_in
from repertory.core.journal.codec import dump
from repertory.core.messages import (
    check_message,
    check_messages,
    check_result,
    copy_message,
    copy_result,
    copy_use,
    error_result,
    tool_results,
)
from repertory.core.refusals import raised_by_model
from repertory.core.turns.turn_start import InterruptResponses, UserMessages, read_prompt
from repertory.errors import HookFailed, Invalid, RepertoryError, UnpairedTools
from repertory.logs import ERROR, note
from repertory.runtime.faults import failure_of, repr_of

if TYPE_CHECKING:
    from repertory.actors.hooks.events import HookRegistry, Registered
    from repertory.backends.ports import Tool
    from repertory.core.answer import Answer
    from repertory.core.interrupts import Interrupt, Questions
    from repertory.core.messages import ContentBlock, Message, ToolResult, ToolUse
    from repertory.core.result import AgentResult

_log = logging.getLogger("repertory.hooks")
_Event = TypeVar("_Event", bound=HookEvent)
_T = TypeVar("_T")


async def fire(
    registry: HookRegistry, event: _Event, *, observed: bool = False, asked: list[Interrupt] | None = None
) -> _Event:
    """Call all callbacks of this event's type in order; returns the event as they left it.

    `observed`: the event guards nothing any more. `asked` collects the questions to a person; None forbids questions.
    Errors: `HookFailed`, or a guard's own `RepertoryError`; later callbacks are not called then.
    """
    for registered in registry.callbacks_for(type(event)):
        try:
            outcome = registered.callback(event)
            # Most callbacks are synchronous and return None, which the first look finds.
            if outcome is not None and inspect.isawaitable(outcome):
                await outcome
        except BaseException as raised:  # noqa: BLE001 - A callback is a user's code; a guard's failure is raised.
            error = failure_of(raised)
            question = question_in(error)
            if asked is not None and question is not None:
                # The others are still asked: a person answers all questions of a step at once.
                asked.extend(one for one in question.interrupts if one not in asked)
            else:
                _settle(registered, event, error, observed=observed)
    return event


def fire_sync(registry: HookRegistry, event: HookEvent) -> None:
    """Call the callbacks as `fire` does, where nothing can be awaited: every callback is synchronous."""
    for registered in registry.callbacks_for(type(event)):
        try:
            outcome = registered.callback(event)
            if inspect.iscoroutine(outcome):
                outcome.close()
                raise TypeError("an asynchronous callback where nothing can be awaited")
        except BaseException as raised:  # noqa: BLE001 - As above.
            error = failure_of(raised)
            _settle(registered, event, error, observed=False)


def fire_built(registry: HookRegistry, event: HookEvent) -> Sequence[Callable[[], Awaitable[None]]]:
    """Fire for an object that has just been built: call synchronous callbacks now, and return the asynchronous ones.
    The caller awaits those before it uses the object.
    """
    late: list[Callable[[], Awaitable[None]]] = []
    for registered in registry.callbacks_for(type(event)):
        if inspect.iscoroutinefunction(registered.callback):
            late.append(partial(_call_late, registered, event, None))
            continue
        try:
            outcome = registered.callback(event)
            if outcome is not None and inspect.isawaitable(outcome):
                late.append(partial(_call_late, registered, event, outcome))
        except BaseException as raised:  # noqa: BLE001 - As above.
            error = failure_of(raised)
            _settle(registered, event, error, observed=False)
    return late


async def _call_late(registered: Registered, event: HookEvent, begun: Awaitable[object] | None) -> None:
    try:
        outcome = registered.callback(event) if begun is None else begun
        if outcome is not None:
            await outcome
    except BaseException as raised:  # noqa: BLE001 - As above.
        error = failure_of(raised)
        _settle(registered, event, error, observed=False)


def _name_of(callback: object) -> str:
    return getattr(callback, "__qualname__", type(callback).__qualname__)


def _settle(registered: Registered, event: HookEvent, error: Exception, *, observed: bool) -> None:
    kind = type(event).__name__
    if observed or not registered.guard:
        note(_log, ERROR, "hook failed", error, event=kind, callback=_name_of(registered.callback))
        return
    if isinstance(error, RepertoryError):
        raise error
    raise HookFailed("a hook failed", event=kind, error=repr_of(error)) from error


class _ReadModel(Protocol):
    """The messages of the turn, as callbacks see and edit them."""

    def hooked(self) -> AbstractContextManager[object]: ...
    def begin_adding(self, message: Message) -> None: ...
    def end_adding(self) -> Message: ...


class ToolChosen(NamedTuple):
    """The decision of callbacks on one tool use that is about to run."""

    tool: Tool | None
    use: ToolUse
    """The tool use, with the id that the model gave."""
    cancelled: str | None = None
    """The reason why the tool must not run; None runs it."""
    asked: tuple[Interrupt, ...] = ()


class ToolEnded(Struct, frozen=True, kw_only=True):
    """One tool use and its result."""

    tool: Tool | None
    use: ToolUse
    result: ToolResult
    exception: Exception | None = None
    cancel_message: str | None = None
    """The reason why the tool did not run; None if it ran."""
    duration_s: float | None = None


class TurnHooks:
    """The events of one call."""

    def __init__(
        self, registry: HookRegistry, agent: Any, invocation_state: dict[str, Any], read_model: _ReadModel | None = None
    ) -> None:
        """`read_model` belongs to the turn; callbacks may edit its messages."""
        self._registry = registry
        self._read_model = read_model
        self.listened = registry.in_order
        """The callbacks by event; an event without an entry has none."""
        self._agent = agent
        self._state = invocation_state
        self._given: dict[str, object] = {
            # One level of copies: hooks and tools fill `request_state` in place.
            key: {**cast("dict[object, object]", one)} if type(one) is dict else one
            for key, one in invocation_state.items()
        }
        """The values that the call began with; tools and callbacks may change them."""

    async def _fire(self, event: _Event, *, observed: bool = False, asked: list[Interrupt] | None = None) -> _Event:
        with nullcontext() if self._read_model is None else self._read_model.hooked():
            return await fire(self._registry, event, observed=observed, asked=asked)

    def look_at_words(self, state: dict[str, Any]) -> bool:
        """True if the words of another call need a turn of their own: a callback may decide about them, or callbacks
        and tools are to have other values with them. `state`: that call's.
        """
        if any(not ignores_prompts(one.callback) for one in self.listened.get(BeforeInvocationEvent, ())):
            return True
        with suppress(Exception):  # The values are a program's own, and so is their comparison.
            return bool(self._given != state)
        return True

    async def before_invocation(
        self, prompt: UserMessages | InterruptResponses
    ) -> UserMessages | InterruptResponses | str:
        """The caller's messages as callbacks left them, or a text that answers the call instead."""
        # Copies: what a callback changes and then fails must not reach the turn.
        given = [copy_message(message) for message in prompt.messages] if isinstance(prompt, UserMessages) else None
        event = BeforeInvocationEvent(agent=self._agent, invocation_state=self._state, messages=given)
        await self._fire(event)
        denied = _text(event.cancel, "invocation denied by hook")
        if denied is not None or event.messages is None:
            return prompt if denied is None else denied
        return _checked(event, "messages", _user_messages)

    async def after_invocation(self, result: AgentResult | None) -> UserMessages | InterruptResponses | None:
        """The prompt of a further turn, or None. `result` is None if the call has failed; it still fails."""
        event = AfterInvocationEvent(agent=self._agent, invocation_state=self._state, result=result)
        await self._fire(event, observed=result is None)
        try:
            return None if event.resume is None else read_prompt(event.resume)
        except Invalid as error:
            note(_log, ERROR, "hook gave a resume that is no prompt; the turn is over", error)
            return None

    async def message_added(self, message: Message) -> Message:
        """The message to store, with the callbacks' edits. An edit that makes no valid message is undone.

        Callbacks find it in `agent.messages` already, as the last one.
        """
        edited = copy_message(message)
        event = MessageAddedEvent(agent=self._agent, message=edited)
        if self._read_model is None:
            await self._fire(event)
        else:
            self._read_model.begin_adding(edited)
            try:
                await self._fire(event)
            finally:
                # Also when a guard fails: else the next callback would find a message in the list that is not stored.
                edited = self._read_model.end_adding()
        try:
            # Compared and not checked always: checking walks through everything that was said.
            if edited != message:
                _check_edit(edited, message)
        except Invalid as error:
            note(_log, ERROR, "hook broke a message; it is stored as it was", error)
            return message
        return edited

    async def before_model(self, projected: Callable[[], int]) -> str | None:
        """The answer to use instead of asking the model; None asks it."""
        tokens = projected()
        event = BeforeModelCallEvent(agent=self._agent, invocation_state=self._state, projected_input_tokens=tokens)
        return _text((await self._fire(event)).cancel, "model call denied by hook")

    async def after_model(self, answer: Answer | None, error: Exception | None, *, retry: bool) -> bool:
        """True if the model is to be asked again."""
        response = None
        own = raised_by_model(error) if getattr(self._agent, "passes_model_errors", False) else None
        if answer is not None:
            response = ModelStopResponse(message=copy_message(answer.message), stop_reason=answer.stop_reason)
        event = AfterModelCallEvent(
            agent=self._agent, invocation_state=self._state, stop_response=response, exception=own or error, retry=retry
        )
        return bool((await self._fire(event)).retry)

    async def before_tools(self, message: Message, questions: Questions) -> str | tuple[Interrupt, ...] | None:
        """The error result for every tool, or what a person must answer first; None runs the tools."""
        event = BeforeToolsEvent(
            agent=self._agent, message=copy_message(message), invocation_state=self._state, questions=questions
        )
        asked: list[Interrupt] = []
        await self._fire(event, asked=asked)
        check_asked(event, asked, questions)
        return tuple(asked) or _text(event.cancel, "Tool cancelled by hook")

    async def after_tools(self, results: Sequence[ToolResult]) -> tuple[ContentBlock, ...]:
        """The turn's answer, if a callback ends it here; empty to go on."""
        if AfterToolsEvent not in self.listened:
            return ()
        message: Message = {"role": "user", "content": [{"toolResult": result} for result in results]}
        event = AfterToolsEvent(agent=self._agent, message=copy_message(message), invocation_state=self._state)
        ended = (await self._fire(event)).end_turn
        if isinstance(ended, list):
            try:
                return _closing(ended)
            except Invalid as error:
                note(_log, ERROR, "hook ended the turn with an invalid answer; it goes on", error)
                return ()
        text = _text(ended, "Turn ended early by hook after tool execution")
        return () if text is None else ({"text": text},)

    async def before_tool(self, tool: Tool | None, use: ToolUse, questions: Questions) -> ToolChosen:
        """The tool and input to run, and the reason not to run it (now), if any."""
        if BeforeToolCallEvent not in self.listened:
            return ToolChosen(tool, use)
        seen, asked = SeenInput(use), list["Interrupt"]()
        event = BeforeToolCallEvent(
            agent=self._agent,
            selected_tool=tool,
            tool_use=copy_use(use),
            invocation_state=self._state,
            questions=questions,
            seen=seen,
        )
        await seen.show(event)
        await self._fire(event, asked=asked)
        check_asked(event, asked, questions)
        if asked:
            return ToolChosen(tool, use, asked=tuple(asked))
        chosen = tool if event.selected_tool is tool else _checked(event, "selected_tool", _one_tool)
        # The model's id, whatever the hook has written: the result has to name it.
        changed: ToolUse = {**_checked(event, "tool_use", _tool_use), "toolUseId": use["toolUseId"]}
        changed["input"] = seen.given(changed)
        return ToolChosen(chosen, changed, _text(event.cancel_tool, "tool cancelled by user"))

    async def after_tool(self, ended: ToolEnded) -> tuple[ToolResult, bool]:
        """The result to show the model, and True to run the tool again instead."""
        if AfterToolCallEvent not in self.listened:
            return ended.result, False
        event = AfterToolCallEvent(
            agent=self._agent,
            selected_tool=ended.tool,
            tool_use=ended.use,
            invocation_state=self._state,
            result=copy_result(ended.result),
            exception=ended.exception,
            cancel_message=ended.cancel_message,
            duration=ended.duration_s,
        )
        await self._fire(event)
        result = ended.result
        try:
            if event.result != result:
                # Encoded to see that it can be: a result that cannot be stored would fail the turn after the tool has
                # run.
                dump(check_result(event.result))
                result = event.result
        except Invalid as error:
            note(_log, ERROR, "hook broke a tool result; it is stored as it was", error)
        return {**result, "toolUseId": ended.use["toolUseId"]}, bool(event.retry)

    async def late_result(self, ended: ToolEnded) -> ToolResult:
        """A result that came later, as callbacks leave it; withheld if one of them fails."""
        try:
            return (await self.after_tool(ended))[0]
        except RepertoryError as error:
            note(_log, ERROR, "hook failed; the late result is withheld", error, tool=ended.use["name"])
            return error_result(ended.use["toolUseId"], "The result is withheld: a hook failed.")


def check_asked(event: HookEvent, asked: Sequence[Interrupt], questions: Questions) -> None:
    """Errors: `HookFailed` for questions that were not asked by `event.interrupt`."""
    if not questions.were_asked(asked):
        ids = [interrupt.id for interrupt in asked]
        kind = type(event).__name__
        raise HookFailed("a hook raised an interrupt by itself; call event.interrupt", event=kind, got=ids)


def _text(cancel: object, default: str) -> str | None:
    """The text of a hook's decision, which may be a flag without one; None if it is not set."""
    if not cancel:
        return None
    return cancel if isinstance(cancel, str) else default


def _check_edit(edited: Message, message: Message) -> None:
    """Raise `Invalid` unless the edited message can take the place of the original."""
    dump(check_message(edited))
    if edited["role"] != message["role"] or _tools_in(edited) != _tools_in(message):
        raise UnpairedTools("an edit keeps the role, and tool uses and tool results where they are")
    for result in tool_results(edited):
        check_result(result)


def _tools_in(message: Message) -> list[object]:
    """Ids and names of the tools that a message asks for, and ids of those that it answers, in order."""
    found: list[object] = []
    for block in message["content"]:
        named = cast("object", block.get("toolUse", block.get("toolResult")))
        if isinstance(named, dict):
            fields = cast("dict[str, object]", named)
            found.append(("toolUse" in block, fields.get("toolUseId"), fields.get("name"), "input" in fields))
    return found


def _closing(content: list[ContentBlock]) -> tuple[ContentBlock, ...]:
    """The blocks as an answer that ends a turn. Errors: `Invalid`."""
    if not content:
        return ()
    message = check_message({"role": "assistant", "content": content})
    dump(message)
    if _tools_in(message):
        raise UnpairedTools("a turn's last answer has neither tool uses nor tool results")
    return tuple(copy_message(message)["content"])


def _checked(event: HookEvent, name: str, check: Callable[[object], _T]) -> _T:
    """A guard's field value, checked. Errors: `HookFailed`."""
    value: object = getattr(event, name)
    try:
        return check(value)
    except Invalid as error:
        kind = type(event).__name__
        raise HookFailed("a hook left an unusable value", event=kind, field=name, got=repr(value)[:200]) from error


def _user_messages(messages: object) -> UserMessages:
    if not isinstance(messages, list | tuple):
        raise Invalid("messages are a list")
    checked = check_messages(cast("Sequence[object]", messages))
    dump(checked)
    return UserMessages(messages=tuple(checked))


def _one_tool(tool: object) -> Tool | None:
    return None if tool is None or is_tool_source(tool) else checked_tool(tool)


def _tool_use(use: object) -> ToolUse:
    fields = cast("dict[str, object]", use) if isinstance(use, dict) else {}
    if not isinstance(fields.get("name"), str) or "input" not in fields:
        raise Invalid("a tool use is a dictionary with name and input")
    return cast("ToolUse", use)
