"""Interventions: policies that allow, refuse, advise, ask a person, or change what is about to happen.

    class OfficeHours(InterventionHandler):
        name = "office-hours"

        def before_tool_call(self, event: BeforeToolCallEvent) -> Deny | Proceed:
            return Proceed() if is_open() else Deny(reason="come back at nine")

    agent = Agent(interventions=[OfficeHours()])

| | before the call | before a tool | before the model | after a tool | after the model |
|---|---|---|---|---|---|
| `Proceed` | goes on | goes on | goes on | goes on | goes on |
| `Deny` | is the answer | is the tool's result | is the answer | | |
| `Guide` | is the answer | is the tool's result | is said to the model | | the answer is thrown away, and it is said |
| `Confirm` | | a person decides | | | |
| `Transform` | changes the event | changes the event | changes the event | changes the result | changes the answer |

Where a cell is empty, the decision has no effect and is logged.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias, cast
from weakref import WeakKeyDictionary

from repertory.actors.hooks.events import (
    AfterModelCallEvent,
    AfterToolCallEvent,
    BeforeInvocationEvent,
    BeforeModelCallEvent,
    BeforeToolCallEvent,
    HookOrder,
    MessageAddedEvent,
)
from repertory.core.interrupts import InterruptException, is_yes
from repertory.errors import Invalid
from repertory.logs import WARNING, note
from repertory.runtime.faults import failure_of

if TYPE_CHECKING:
    from repertory.actors.hooks.events import HookRegistry
    from repertory.core.messages import Message

_log = logging.getLogger("repertory.interventions")

InterventionEvent: TypeAlias = (
    BeforeInvocationEvent | BeforeToolCallEvent | AfterToolCallEvent | BeforeModelCallEvent | AfterModelCallEvent
)
OnError = Literal["throw", "proceed", "deny"]
"""The outcome of an event when a handler raises: the turn fails, the event passes, or the event is refused."""


def default_evaluate(response: object) -> bool:
    """True if a person's answer is a yes: True, `y` or `yes`."""
    return is_yes(response)


@dataclass(frozen=True)
class Proceed:
    """Go on. `reason` is for the program's own use.

    Args:
        reason: The reason, for the log and for who reads it; it may be empty.

    Attributes:
        type: `proceed`.
    """

    type: str = field(default="proceed", init=False)
    reason: str | None = None


@dataclass(frozen=True)
class Deny:
    """Refuse, with a reason that the model is shown. No later handler is asked.

    Args:
        reason: The reason, for the model.

    Attributes:
        type: `deny`.
    """

    type: str = field(default="deny", init=False)
    reason: str = ""


@dataclass(frozen=True)
class Guide:
    """Say what to do instead. The advice of all handlers is given together.

    After an answer of the model it throws that away, each time; thrown-away answers count towards the limits of the
    call.

    Args:
        feedback: The advice for the model, which tries again.
        reason: The reason, for the log and for who reads it; it may be empty.

    Attributes:
        type: `guide`.
    """

    type: str = field(default="guide", init=False)
    feedback: str = ""
    reason: str | None = None


@dataclass(frozen=True)
class Confirm:
    """Ask a person whether the tool may run: the turn waits for the answer. After a no, no later handler is asked.

    Args:
        prompt: The question for the person.
        reason: The reason, for the log and for who reads it; it may be empty.
        response: An answer that is known already.
        evaluate: Called with the answer; True, and nothing else, is a yes. None for `default_evaluate`.

    Attributes:
        type: `confirm`.
    """

    type: str = field(default="confirm", init=False)
    prompt: str = ""
    reason: str | None = None
    response: Any = None
    evaluate: Callable[[Any], bool] | None = default_evaluate


def _unchanged(event: InterventionEvent) -> None:
    del event


@dataclass(frozen=True)
class Transform:
    """Change the event by `apply(event)`: the fields that callbacks may assign, and `stop_response.message` of an
    answer. Later handlers see the change.

    Args:
        apply: Called with the event, which it changes.
        reason: The reason, for the log and for who reads it; it may be empty.

    Attributes:
        type: `transform`.
    """

    type: str = field(default="transform", init=False)
    apply: Callable[[Any], None] = _unchanged
    reason: str | None = None


InterventionAction: TypeAlias = Proceed | Deny | Guide | Confirm | Transform
Decision: TypeAlias = "InterventionAction | Awaitable[InterventionAction]"


class InterventionHandler:
    """A policy. Subclass it, give it a `name`, and override the methods for the events that it decides about; they may
    be asynchronous. Only the class's own methods count.
    """

    name: str
    """Tells the handlers of one agent apart."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        if not getattr(cls, "name", None):
            raise TypeError(f"{cls.__name__} needs a name, as an attribute of the class")
        return super().__new__(cls)

    @property
    def on_error(self) -> OnError:
        """The outcome of an event when this handler raises."""
        return "throw"

    def before_invocation(self, event: BeforeInvocationEvent, **kwargs: Any) -> Decision:
        """A call of the agent begins.

        Args:
            event: The event.
            kwargs: Further values of a later version; pass them on, or ignore them.
        """
        return Proceed()

    def before_tool_call(self, event: BeforeToolCallEvent, **kwargs: Any) -> Decision:
        """A tool is about to run.

        Args:
            event: The event.
            kwargs: Further values of a later version; pass them on, or ignore them.
        """
        return Proceed()

    def after_tool_call(self, event: AfterToolCallEvent, **kwargs: Any) -> Decision:
        """A tool has ended.

        Args:
            event: The event.
            kwargs: Further values of a later version; pass them on, or ignore them.
        """
        return Proceed()

    def before_model_call(self, event: BeforeModelCallEvent, **kwargs: Any) -> Decision:
        """The model is about to be asked.

        Args:
            event: The event.
            kwargs: Further values of a later version; pass them on, or ignore them.
        """
        return Proceed()

    def after_model_call(self, event: AfterModelCallEvent, **kwargs: Any) -> Decision:
        """The model has answered.

        Args:
            event: The event.
            kwargs: Further values of a later version; pass them on, or ignore them.
        """
        return Proceed()


_METHODS: Mapping[type[InterventionEvent], tuple[str, int]] = {
    BeforeInvocationEvent: ("before_invocation", HookOrder.INTERVENTION_INPUT),
    BeforeToolCallEvent: ("before_tool_call", HookOrder.INTERVENTION_INPUT),
    AfterToolCallEvent: ("after_tool_call", HookOrder.INTERVENTION_OUTPUT),
    BeforeModelCallEvent: ("before_model_call", HookOrder.INTERVENTION_INPUT),
    AfterModelCallEvent: ("after_model_call", HookOrder.INTERVENTION_OUTPUT),
}


class InterventionRegistry:
    """The handlers of an agent as callbacks of its hooks: `AgentSpec(hooks=[InterventionRegistry([handler])])`.

    Handlers are asked in the order given.

    Args:
        hook_registry: Registers them there at once.

    Raises:
        Invalid: For a name twice, and for objects that are no handlers. Correct the argument.

    Examples:
        An agent makes one of its `interventions`. A program that registers hooks itself makes its own.

        >>> from repertory import HookRegistry, InterventionHandler, InterventionRegistry
        >>> class Quiet(InterventionHandler):
        ...     name = "quiet"
        >>> hooks = HookRegistry()
        >>> registry = InterventionRegistry([Quiet()])
        >>> registry.register_hooks(hooks)
    """

    def __init__(self, handlers: Sequence[InterventionHandler], hook_registry: HookRegistry | None = None) -> None:
        names: set[str] = set()
        for handler in handlers:
            if not isinstance(cast("object", handler), InterventionHandler):
                raise Invalid("an intervention is an object of a subclass of InterventionHandler", got=repr(handler))
            if handler.name in names:
                raise Invalid(f"Duplicate intervention handler name: '{handler.name}'")
            names.add(handler.name)
        self._handlers = list(handlers)
        self._changed: WeakKeyDictionary[Any, Message] = WeakKeyDictionary()
        """Answers as handlers have changed them, until they are added to the conversation; by agent."""
        if hook_registry is not None:
            self.register_hooks(hook_registry)

    @property
    def handlers(self) -> list[InterventionHandler]:
        """The handlers, in the order given."""
        return list(self._handlers)

    def register_hooks(self, registry: HookRegistry) -> None:
        """Register a callback for each kind of event that some handler decides about. Each is a guard: what it raises
        fails the turn.

        Args:
            registry: The registry to which it adds callbacks.
        """
        registry.policies += (self,)
        for kind, (method, order) in _METHODS.items():
            inherited = getattr(InterventionHandler, method)
            asked = [handler for handler in self._handlers if getattr(type(handler), method) is not inherited]
            if asked:
                decide = self._decide_about_answer if kind is AfterModelCallEvent else _decide
                registry.add_callback(kind, partial(decide, asked, method), order=order, guard=True)
                if kind is AfterModelCallEvent:
                    registry.add_callback(MessageAddedEvent, self._change, order=HookOrder.SDK_FIRST, guard=True)

    async def _decide_about_answer(
        self, handlers: Sequence[InterventionHandler], method: str, event: AfterModelCallEvent
    ) -> None:
        """Hooks get a copy of the answer; what handlers change of it is changed when it is added."""
        self._changed.pop(event.agent, None)
        given = None if event.stop_response is None else deepcopy(event.stop_response.message)
        await _decide(handlers, method, event)
        if event.stop_response is not None and event.stop_response.message != given and not event.retry:
            self._changed[event.agent] = event.stop_response.message

    def _change(self, event: MessageAddedEvent) -> None:
        if event.message["role"] == "assistant":
            changed = self._changed.pop(event.agent, None)
            if changed is not None:
                event.message["content"][:] = changed["content"]


async def _decide(handlers: Sequence[InterventionHandler], method: str, event: InterventionEvent) -> None:
    advice: list[str] = []
    for handler in handlers:
        if isinstance(event, BeforeToolCallEvent) and event.seen is not None:
            await event.seen.show(event)  # Hooks and handlers before this one may have edited it.
        try:
            decided = getattr(handler, method)(event)
            action: object = await decided if inspect.isawaitable(decided) else decided
            if isinstance(action, Guide):
                advice.append(f"[{handler.name}] {action.feedback}")
            elif _carry_out(event, action, f"{handler.name}.{method}"):
                return
        except BaseException as raised:
            error = failure_of(raised)
            if isinstance(error, InterruptException) or not _is_excused(handler, event, error):
                raise
            if handler.on_error == "deny":
                _carry_out(event, Deny(reason=f"Handler threw: {error}"), handler.name)
                return
    if advice:
        _carry_out(event, Guide(feedback="\n".join(advice)), "")


def _is_excused(handler: InterventionHandler, event: InterventionEvent, error: Exception) -> bool:
    """True if the turn goes on. An event that can no longer be refused fails the turn, where `deny` was wanted."""
    refusable = isinstance(event, BeforeInvocationEvent | BeforeToolCallEvent | BeforeModelCallEvent)
    if handler.on_error == "proceed" or (handler.on_error == "deny" and refusable):
        note(_log, WARNING, "intervention failed", error, handler=handler.name, on_error=handler.on_error)
        return True
    return False


def _carry_out(event: InterventionEvent, action: object, who: str) -> bool:
    """True if no later handler is asked. Errors: `TypeError` for anything that is no decision."""
    match event, action:
        case _, Proceed():
            return False
        case _, Transform(apply=apply):
            apply(event)
            return False
        case BeforeToolCallEvent(), Deny(reason=reason):
            event.cancel_tool = f"DENIED: {reason}"
            return True
        case BeforeInvocationEvent() | BeforeModelCallEvent(), Deny(reason=reason):
            event.cancel = f"DENIED: {reason}"
            return True
        case BeforeToolCallEvent(), Confirm():
            return not _confirmed(event, action, who.partition(".")[0])
        case _, Guide(feedback=feedback) if not isinstance(event, AfterToolCallEvent):
            _guide(event, feedback)
            return False
        case _, Deny() | Guide() | Confirm():
            _log.warning("%s of %s has no effect on %s", type(action).__name__, who, type(event).__name__)
            return False
        case _:
            raise TypeError(f"{who} decided {action!r}; a decision is Proceed, Deny, Guide, Confirm or Transform")


def _guide(event: InterventionEvent, feedback: str) -> None:
    match event:
        case BeforeToolCallEvent():
            event.cancel_tool = f"GUIDANCE: {feedback}"
        case BeforeInvocationEvent():
            event.cancel = f"GUIDANCE: {feedback}"
        case _:
            if isinstance(event, AfterModelCallEvent):
                event.retry = True
            event.agent.messages.append({"role": "user", "content": [{"text": feedback}]})


def _confirmed(event: BeforeToolCallEvent, action: Confirm, name: str) -> bool:
    answer = event.interrupt(name, reason=action.prompt, response=action.response)
    if (action.evaluate or default_evaluate)(answer) is True:  # A coroutine, for one, allows nothing.
        return True
    event.cancel_tool = f"CONFIRMATION_FAILED: {action.prompt}"
    return False
