"""The events of an agent that callbacks can listen to.

    BeforeInvocation, MessageAdded (the prompt),
      BeforeModelCall, AfterModelCall, MessageAdded (the answer),
        BeforeTools, (BeforeToolCall, AfterToolCall)*, AfterTools, MessageAdded (the results),
      BeforeModelCall, ...
    AfterInvocation

A turn that waits for a person ends after AfterTools, with the tools that have ended by then, or after BeforeTools if
the question was asked there. The call that continues it begins with BeforeInvocation, BeforeTools. A tool that asks has
no end yet, so AfterToolCall is not fired for it.

A direct tool call fires BeforeToolCall, AfterToolCall and MessageAdded only. An event's fields are read-only except
those that its class names in `writable`: callbacks assign them to change what happens next. Callbacks of events with
`cleanup` run in reverse, so the callback that ran first before the action runs last after it.

Names, fields and order are those of the SDK whose users we serve; what a failing callback does is our decision (see
`HookRegistry.add_callback`).
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import GenericAlias, NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Protocol,
    TypeAlias,
    TypeGuard,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
    runtime_checkable,
)

from repertory.actors.hooks.injections import Injection
from repertory.actors.hooks.order import HookOrder
from repertory.core.interrupts import STEP_SCOPE, InterruptException, Response, hook_scope, response_as
from repertory.core.messages import copy_use
from repertory.core.window.decision import Shorten
from repertory.errors import Invalid

if TYPE_CHECKING:
    from repertory.core.interrupts import Interrupt, Questions
    from repertory.core.messages import ContentBlock, Json, Message, ToolResult, ToolUse
    from repertory.core.result import AgentResult


@dataclass(kw_only=True)
class BaseHookEvent:
    """The base of all events, also of those that a program defines itself."""

    writable: ClassVar[frozenset[str]] = frozenset()
    """The fields that callbacks may assign."""
    cleanup: ClassVar[bool] = False
    """True if callbacks run in reverse order."""
    guards: ClassVar[bool] = False
    """True if a callback that raises fails the turn, unless it was registered otherwise."""

    def __class_getitem__(cls, agent: object) -> GenericAlias:
        """An annotation may say of which class the agent is: `BeforeToolCallEvent[MyAgent]`."""
        return GenericAlias(cls, agent)

    @property
    def should_reverse_callbacks(self) -> bool:
        """True if callbacks run in reverse order."""
        return self.cleanup

    def __setattr__(self, name: str, value: object) -> None:
        if name not in self.__dataclass_fields__ or (name in self.__dict__ and name not in self.writable):
            msg = f"Property {name} is not writable"
            raise AttributeError(msg)
        object.__setattr__(self, name, value)


@dataclass(kw_only=True)
class HookEvent(BaseHookEvent):
    """The base of the events of agents."""

    agent: Any
    """The `Agent` of the event."""


@dataclass(kw_only=True)
class AgentInitializedEvent(HookEvent):
    """The agent is built and its session is open. Fired once; its callbacks are synchronous.

    Args:
        agent: The agent that was made.
    """


InitializedEvent = AgentInitializedEvent
"""An alias, the name in TypeScript."""


@dataclass(kw_only=True)
class BeforeSnapshotEvent(HookEvent):
    """A snapshot of the agent is about to be taken (`action` is "save") or loaded ("load").

    Callbacks are synchronous; one that raises prevents it.

    Args:
        agent: The agent.
        action: `save` or `load`.
        metadata: The caller's metadata for a new snapshot; add to it, or assign another.
        snapshot: The snapshot that is loaded.
        source: The orchestrator, for an orchestrator's snapshot; `agent` is None then.
    """

    writable = frozenset(("metadata",))
    guards = True

    action: str
    metadata: dict[str, Any] = field(default_factory=dict[str, Any])
    snapshot: Any = None
    source: Any = None


@dataclass(kw_only=True)
class AfterSnapshotEvent(HookEvent):
    """A snapshot was taken or loaded. Callbacks are synchronous.

    Args:
        agent: The agent.
        action: `save` or `load`.
        snapshot: The snapshot.
        loaded: A `SnapshotLoaded`, after a load.
        source: The orchestrator, for an orchestrator's snapshot; `agent` is None then.
    """

    cleanup = True

    action: str
    snapshot: Any
    loaded: Any = None
    source: Any = None


@dataclass(kw_only=True)
class BeforeInvocationEvent(HookEvent):
    """A call is about to begin. Nothing of it is stored yet.

    Args:
        agent: The agent.
        invocation_state: Values of the caller for the hooks and tools of this call. The model never sees them.
        messages: Copies of the caller's messages (None: interrupt responses); edit them or assign others.
        cancel: True or a text ends the call here, with that text as its answer and nothing stored.
    """

    writable = frozenset(("messages", "cancel"))
    guards = True

    invocation_state: dict[str, Any] = field(default_factory=dict[str, Any])
    messages: Sequence[Message] | None = None
    cancel: bool | str = False


@dataclass(kw_only=True)
class AfterInvocationEvent(HookEvent):
    """A call has ended, even one that could not begin. Agent state that callbacks set is committed with the turn.

    Args:
        agent: The agent.
        invocation_state: Values of the caller for the hooks and tools of this call. The model never sees them.
        result: None if the call failed.
        resume: Assign any prompt to begin another turn in the same call, whose result the caller then gets, unless the
            call has reached a limit or was cut short.
    """

    writable = frozenset(("resume",))
    cleanup = True

    invocation_state: dict[str, Any] = field(default_factory=dict[str, Any])
    result: AgentResult | None = None
    resume: Any = None


@dataclass(kw_only=True)
class MessageAddedEvent(HookEvent):
    """A message is being added to the conversation. In-place edits of `message` are stored, shown and answered; it is
    the last one of `agent.messages`, and recorded when all callbacks have run.

    Role, tool uses and tool results stay where they are; their inputs and contents may be edited. Tools run with the
    edited input.

    Args:
        agent: The agent.
        message: The message that was added.
    """

    message: Message


@dataclass(kw_only=True)
class BeforeModelCallEvent(HookEvent):
    """The model is about to be asked.

    Args:
        agent: The agent.
        invocation_state: Values of the caller for the hooks and tools of this call. The model never sees them.
        projected_input_tokens: An estimate of the request.
        cancel: True or a text is the answer, and the model is not asked.
    """

    writable = frozenset(("cancel",))
    guards = True

    invocation_state: dict[str, Any] = field(default_factory=dict[str, Any])
    projected_input_tokens: int | None = None
    cancel: bool | str = False


@dataclass(kw_only=True)
class AfterModelCallEvent(HookEvent):
    """The model has answered (`stop_response`), failed (`exception`), or was cut short (neither).

    If the caller stops the turn while the model answers, `stop_response` is what there is of the answer, with the stop
    reason `cancelled`. It stays in the conversation, unless `retry` takes it back; the model is not asked again.

    The retry strategy decides first: after a failure that it will retry, `retry` is True already. Set False to give up
    at once.

    Args:
        agent: The agent.
        invocation_state: Values of the caller for the hooks and tools of this call. The model never sees them.
        stop_response: The answer; None when the call failed.
        exception: The error of the call; None when it answered.
        retry: True throws the answer or the failure away and asks again.
    """

    @dataclass
    class ModelStopResponse:
        """The model's message and its stop reason.

        Args:
            message: The answer.
            stop_reason: The reason why the model stopped.
        """

        message: Message
        stop_reason: str

    writable = frozenset(("retry",))
    cleanup = True

    invocation_state: dict[str, Any] = field(default_factory=dict[str, Any])
    stop_response: ModelStopResponse | None = None
    exception: Exception | None = None
    retry: bool = False


ModelStopResponse = AfterModelCallEvent.ModelStopResponse


class Asking:
    """The base of events whose callbacks may ask a person."""

    questions: Questions | None
    scope: str

    def interrupt(
        self,
        name: str,
        reason: object = None,
        response: object = None,
        *,
        expires_s: float | None = None,
        response_model: type[Response] | None = None,
        may_answer: Sequence[str] = (),
    ) -> Response:
        """Ask a person: the first time the callback stops here and the turn waits; with the response, it is returned.

        The other callbacks still run, and may ask too. After the responses all of them are called again.

        Args:
            name: The question's name; the same name is the same question.
            reason: The question's content for the person, as JSON.
            response: An answer that is known already.
            expires_s: Seconds from now that the question stays open; None for no end.
            response_model: The type of the answer, such as `bool` or a pydantic model.
            may_answer: The names or roles of the people who may answer: kept and shown with the question. The program
                that takes the answer holds them to it.

        Raises:
            Invalid: Where nobody can be asked, for a value that is not JSON, and for two different questions with one
                name. Correct the argument.
        """
        if self.questions is None:
            raise Invalid("nobody can be asked here", name=name)
        answer = self.questions.ask(self.scope, name, reason, response, expires_s, may_answer)
        return response_as(response_model, answer, name)


@dataclass(kw_only=True)
class BeforeToolsEvent(Asking, HookEvent):
    """The tools of one answer are about to run, or to continue after a person was asked.

    `interrupt` asks a person.

    Args:
        agent: The agent.
        message: The answer that asks for the tools.
        invocation_state: Values of the caller for the hooks and tools of this call. The model never sees them.
        cancel: True or a text is the error result of each tool use that has none.
        questions: The interrupts asked so far; the runtime fills it in.

    Attributes:
        scope: The name that tells its interrupts from those of tools.
    """

    writable = frozenset(("cancel",))
    guards = True
    scope = STEP_SCOPE

    message: Message
    invocation_state: dict[str, Any] = field(default_factory=dict[str, Any])
    cancel: bool | str = False
    questions: Questions | None = field(default=None, repr=False)


@dataclass(kw_only=True)
class AfterToolsEvent(HookEvent):
    """The tools of one answer have ended; `message` holds their results and is about to be added.

    Args:
        agent: The agent.
        message: The message with the results.
        invocation_state: Values of the caller for the hooks and tools of this call. The model never sees them.
        end_turn: True, a text or content blocks end the turn here, with that as its answer.
    """

    writable = frozenset(("end_turn",))
    cleanup = True

    message: Message
    invocation_state: dict[str, Any] = field(default_factory=dict[str, Any])
    end_turn: bool | str | list[ContentBlock] = False


class SeenInput:
    """One input, as the model wrote it and as callbacks see it.

    A tool converts its input, "5000" to 5000, and fills in defaults. Callbacks see that, so that they decide about what
    runs. The tool then reads what nobody has edited as the model wrote it: a value need not mean the same when it is
    converted twice.
    """

    def __init__(self, use: ToolUse) -> None:
        self._given = self._visible = use["input"]
        self._tool: object = None

    async def show(self, event: BeforeToolCallEvent) -> None:
        """Show the input to the callbacks that follow, after edits of those before them, too. Tools that do not say how
        they read it are shown what is given.
        """
        given = self.given(event.tool_use)
        tool = cast("object", event.selected_tool)
        if tool is self._tool and given == self._given:
            return
        seen: Any = getattr(tool, "seen_input", None)
        self._tool, self._given = tool, given
        self._visible = given if seen is None else await seen(given)
        event.tool_use = copy_use({**event.tool_use, "input": self._visible})

    def given(self, use: ToolUse) -> Json:
        """The model's input with the edits of callbacks."""
        changed, visible, given = use["input"], self._visible, self._given
        if changed == visible:
            return given
        if not (isinstance(given, dict) and isinstance(visible, dict) and isinstance(changed, dict)):
            return changed
        unchanged = {name for name, value in changed.items() if name in visible and value == visible[name]}
        as_written = {name: value for name, value in given.items() if name in unchanged}
        return {**as_written, **{name: value for name, value in changed.items() if name not in unchanged}}


@dataclass(kw_only=True)
class BeforeToolCallEvent(Asking, HookEvent):
    """One tool is about to run; its start is not recorded yet. `interrupt` asks a person about it.

    Args:
        agent: The agent.
        selected_tool: The tool, None if its name is unknown; assign another to run that.
        tool_use: A copy, with the input as the tool gets it: converted, and with defaults. Edit its input or assign
            another to run with that; its id and the history stay.
        invocation_state: Values of the caller for the hooks and tools of this call. The model never sees them.
        cancel_tool: True or a text is the error result, and the tool does not run.
        questions: The interrupts asked so far; the runtime fills it in.
        seen: The input as the model wrote it; the runtime fills it in.

    Attributes:
        scope: The name that tells its interrupts from those of other tools.
    """

    writable = frozenset(("selected_tool", "tool_use", "cancel_tool"))
    guards = True

    selected_tool: Any
    tool_use: ToolUse
    invocation_state: dict[str, Any] = field(default_factory=dict[str, Any])
    cancel_tool: bool | str = False
    questions: Questions | None = field(default=None, repr=False)
    seen: SeenInput | None = field(default=None, repr=False)
    scope: str = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.scope = hook_scope(self.tool_use.get("toolUseId", ""))


@dataclass(kw_only=True)
class AfterToolCallEvent(HookEvent):
    """One tool has ended, was cut short, or was kept from running.

    Args:
        agent: The agent.
        selected_tool: The tool; None for an unknown name.
        tool_use: The tool use: its id, the name of the tool, and its input.
        invocation_state: Values of the caller for the hooks and tools of this call. The model never sees them.
        result: Assign another to change what the model is shown.
        exception: The error that the tool raised.
        cancel_message: The reason why it did not run, or not to its end.
        duration: Seconds; None if it did not run to its end.
        retry: True throws the result away and runs the tool again.
    """

    writable = frozenset(("result", "retry"))
    cleanup = True

    selected_tool: Any
    tool_use: ToolUse
    invocation_state: dict[str, Any]
    result: ToolResult
    exception: Exception | None = None
    cancel_message: str | None = None
    duration: float | None = None
    retry: bool = False


# What is registered with an agent: its callbacks by event and order, and its injections.

HookCallback: TypeAlias = Callable[[Any], Awaitable[None] | None]
"""Takes one event; synchronous or not. A synchronous one runs on the event loop, so it must not block."""

_Event = TypeVar("_Event", bound="BaseHookEvent")

EventTypes: TypeAlias = type[BaseHookEvent] | Iterable[type[BaseHookEvent]] | None


@runtime_checkable
class HookProvider(Protocol):
    """Registers callbacks: `Agent(hooks=[provider])`."""

    def register_hooks(self, registry: HookRegistry) -> None:
        """Add the callbacks, by `registry.add_callback(EventType, callback)`.

        Args:
            registry: The registry to which it adds callbacks.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Registered:
    """One callback for one type of event."""

    callback: HookCallback
    order: float
    guard: bool
    """True if its failure fails the turn. Failures of other callbacks are logged."""
    own: bool = False
    """True if it belongs to this agent alone, not to copies of it."""


class HookRegistry:
    """The callbacks of one agent. It may grow at any time; a running call sees new callbacks at its next event.

    Attributes:
        registered: The callbacks, by class of event.
    """

    def __init__(self) -> None:
        self._registered: dict[type[BaseHookEvent], list[Registered]] = {}
        self.in_order: dict[type[BaseHookEvent], tuple[Registered, ...]] = {}
        """Event type to callbacks, in running order. Must not be edited."""
        self.injections: list[Injection] = []
        """The injections in order of registration. Must not be edited."""
        self.shorten: Shorten | None = None
        """Shortens new messages, if set; read when a session is opened."""
        self.policies: tuple[HookProvider, ...] = ()
        """The providers whose decisions also hold for agents that this one delegates to."""
        self._own = False

    def add_callback(
        self,
        event_type: EventTypes,
        callback: HookCallback,
        *,
        order: float = HookOrder.DEFAULT,
        guard: bool | None = None,
    ) -> None:
        """Call `callback` at each event of that type (or those types; None reads its annotation).

        If a callback raises: a guard fails the turn with `HookFailed` (or with its own error if that is a
        `RepertoryError`) before the guarded action happens; an observer is logged and the turn goes on. By default
        callbacks of Before-events are guards and all others observers; `guard` overrides that.

        Args:
            event_type: The class of the events; None reads it from the annotation of the callback's parameter.
            callback: The function to call; it gets the event. It may be async.
            order: Callbacks of a lower number run first; see `HookOrder`.
            guard: True if the step must fail when the callback fails. None: as its kind of event says.

        Raises:
            Invalid: If the type is no event type, if the annotation names none, and for an asynchronous callback of
                `AgentInitializedEvent`. Correct the argument.
        """
        if not callable(callback):
            raise Invalid("a hook's callback is a function of one event", got=callback)
        for kind in dict.fromkeys(_event_types(event_type, callback)):
            if kind is AgentInitializedEvent and _is_asynchronous(callback):
                raise Invalid("AgentInitializedEvent can only be registered with a synchronous callback")
            guards = kind.guards if guard is None else guard
            registered = self._registered.setdefault(kind, [])
            registered.append(Registered(callback=callback, order=order, guard=guards, own=self._own))
            in_order = sorted(registered, key=lambda one: one.order)
            self.in_order[kind] = _cleanup_order(in_order) if kind.cleanup else tuple(in_order)

    def add_hook(self, hook: HookProvider | HookCallback) -> None:
        """Add everything that the provider registers, or a function of one event, whose annotation says which.

        Args:
            hook: A provider, or one callback.

        Raises:
            Invalid: For an object that is neither. Correct the argument.
        """
        if isinstance(hook, HookProvider):
            hook.register_hooks(self)
        elif callable(cast("object", hook)):
            self.add_callback(None, hook)
        else:
            text = "Invalid hook: it is a function of one event, or has register_hooks(registry)"
            raise Invalid(f"{text}; policies are interventions=[...], plugins are plugins=[...]", got=hook)

    def add_own(self, provider: HookProvider) -> None:
        """Add a provider as `add_hook` does, for a part of the agent of which each copy of the agent has its own.

        Args:
            provider: The provider.
        """
        self._own = True
        try:
            provider.register_hooks(self)
        finally:
            self._own = False

    @property
    def of_agent(self) -> bool:
        """True while `add_own` asks a part of an agent."""
        return self._own

    def add_injection(self, injection: Injection) -> None:
        """Ask this injection before each model call, after the earlier ones.

        Args:
            injection: The renderer of a text for model calls, with its trigger.

        Raises:
            Invalid: For a name twice. Correct the argument.
        """
        if any(injection.name == other.name for other in self.injections):
            raise Invalid("two injections have the same name", name=injection.name)
        self.injections.append(injection)

    def has_callbacks(self) -> bool:
        """True if any callback is registered."""
        return bool(self._registered)

    @property
    def registered(self) -> Mapping[type[BaseHookEvent], Sequence[Registered]]:
        return self._registered

    def callbacks_for(self, event_type: type[BaseHookEvent]) -> tuple[Registered, ...]:
        """The callbacks in running order.

        Args:
            event_type: The class of the events; None reads it from the annotation of the callback's parameter.
        """
        return self.in_order.get(event_type, ())

    def get_callbacks_for(self, event: BaseHookEvent) -> Iterator[HookCallback]:
        """The functions that this event would call, in running order.

        Args:
            event: The event.
        """
        in_order = sorted(self._registered.get(type(event), ()), key=lambda one: one.order)
        for one in _cleanup_order(in_order) if event.should_reverse_callbacks else in_order:
            yield one.callback

    async def invoke_callbacks_async(self, event: _Event) -> tuple[_Event, list[Interrupt]]:
        """Call everybody who listens to an event of the program's own; gives the event as they left it, and the
        questions that they asked. The agent fires its own events itself.

        What a callback raises is raised, and later ones are not called.

        Args:
            event: The event.
        """
        asked: list[Interrupt] = []
        for callback in self.get_callbacks_for(event):
            try:
                outcome = callback(event)
                if inspect.isawaitable(outcome):
                    await outcome
            except InterruptException as question:
                asked.extend(one for one in question.interrupts if one not in asked)
        return event, asked

    def invoke_callbacks(self, event: _Event) -> tuple[_Event, list[Interrupt]]:
        """`invoke_callbacks_async` for synchronous callbacks. Errors: also `Invalid` before any is called, if one is
        asynchronous.

        Args:
            event: The event.

        Raises:
            Invalid: For a callback that is async. Use `invoke_callbacks_async`.
        """
        if any(_is_asynchronous(callback) for callback in self.get_callbacks_for(event)):
            raise Invalid("use invoke_callbacks_async to invoke async callback", event=type(event).__name__)
        asked: list[Interrupt] = []
        for callback in self.get_callbacks_for(event):
            try:
                callback(event)
            except InterruptException as question:
                asked.extend(one for one in question.interrupts if one not in asked)
        return event, asked


class SameHooks:
    """A provider of everything in another registry, except what belongs to that agent alone."""

    def __init__(self, registry: HookRegistry) -> None:
        self._registry = registry

    def register_hooks(self, registry: HookRegistry) -> None:
        for kind, registered in self._registry.registered.items():
            for one in registered:
                if not one.own:
                    registry.add_callback(kind, one.callback, order=one.order, guard=one.guard)
        for injection in self._registry.injections:
            registry.add_injection(injection)
        registry.shorten = registry.shorten or self._registry.shorten
        registry.policies += self._registry.policies


def _cleanup_order(in_order: list[Registered]) -> tuple[Registered, ...]:
    """The callbacks of a clean-up event: the last registered first within one order; orders are not reversed."""
    newest_first = list(reversed(in_order))
    return tuple(sorted(newest_first, key=lambda one: one.order))


def _is_asynchronous(callback: HookCallback) -> bool:
    return inspect.iscoroutinefunction(callback) or inspect.iscoroutinefunction(type(callback).__call__)


def _is_event_type(kind: object) -> TypeGuard[type[BaseHookEvent]]:
    return isinstance(kind, type) and issubclass(kind, BaseHookEvent) and kind not in (BaseHookEvent, HookEvent)


def _event_types(given: EventTypes, callback: HookCallback) -> list[type[BaseHookEvent]]:
    if given is None:
        return _annotated(callback)
    several = isinstance(cast("object", given), Iterable) and not isinstance(given, type)
    kinds = list(cast("Iterable[object]", given)) if several else [given]
    for kind in kinds:
        if not _is_event_type(kind):
            raise Invalid(
                "Invalid event type: it is a subclass of BaseHookEvent, as MessageAddedEvent is", got=repr(kind)
            )
    if not kinds:
        raise Invalid("event_type list cannot be empty")
    return cast("list[type[BaseHookEvent]]", kinds)


_IGNORES = "_repertory_ignores_prompts"
_Callback = TypeVar("_Callback", bound=Callable[..., object])


def ignoring_prompts(callback: _Callback) -> _Callback:
    """Mark a callback of `BeforeInvocationEvent` that decides nothing about the words of a call: calls are steered past
    it.
    """
    setattr(callback, _IGNORES, True)
    return callback


def ignores_prompts(callback: HookCallback) -> bool:
    """True for a callback that is marked so."""
    return getattr(callback, _IGNORES, False)


def check_callback(callback: HookCallback) -> None:
    """Errors: `Invalid` for a callback whose annotation names no events. One that cannot be read yet may be."""
    try:
        _annotated(callback)
    except Invalid as error:
        if error.__cause__ is None:  # Not for the lack of a name, which the module may define or import below.
            raise


def _annotated(callback: HookCallback) -> list[type[BaseHookEvent]]:
    """The types that the annotation of the callback's first parameter names."""
    how = "annotate the callback's parameter with an event type, or pass the type"
    function: Callable[..., object] = callback
    while isinstance(function, functools.partial):
        function = cast("functools.partial[object]", function).func
    if not inspect.isroutine(function):
        function = type(function).__call__
    try:
        hints = cast("Mapping[str, object]", get_type_hints(function))
    except (NameError, TypeError) as error:
        raise Invalid(
            f"cannot infer event type: the callback's annotation cannot be read; {how}", callback=callback
        ) from error
    named = [hint for name, hint in hints.items() if name != "return"]
    if not named:
        takes = any(name != "self" for name in inspect.signature(function).parameters)
        problem = "the callback has no annotation" if takes else "the callback has no parameters"
        raise Invalid(f"cannot infer event type: {problem}; {how}", callback=callback)
    hint = named[0]
    union = get_origin(hint) in (Union, UnionType)
    kinds = [get_origin(member) or member for member in (get_args(hint) if union else (hint,))]
    if union and NoneType in kinds:
        raise Invalid("None is not a valid event type", annotation=repr(hint))
    if not all(map(_is_event_type, kinds)):
        problem = "Invalid type in union: each" if union else "the callback's annotation"
        raise Invalid(f"{problem} must be a subclass of BaseHookEvent; {how}", annotation=repr(hint))
    return cast("list[type[BaseHookEvent]]", kinds)
