"""What others have registered with an agent: who is told of which event, in which order, and who adds to its calls."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import (
    Any,
    Protocol,
    TypeAlias,
    TypeGuard,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
    runtime_checkable,
)

from repertory.actors.hooks.events import AgentInitializedEvent, HookEvent
from repertory.actors.hooks.injections import Injection
from repertory.core.window.decision import Shorten
from repertory.errors import Invalid

HookCallback: TypeAlias = "Callable[[Any], Awaitable[None] | None]"
"""Takes one event; synchronous or not. A synchronous one runs on the event loop, so it must not block."""

EventTypes: TypeAlias = "type[HookEvent] | Iterable[type[HookEvent]] | None"


class HookOrder:
    """Where a callback stands among those of one event: lower first, and in the order of registration within one."""

    SDK_FIRST = -100
    INTERVENTION_OUTPUT = -90
    DEFAULT = 0
    MODEL_ROUTING = 50
    INTERVENTION_INPUT = 90
    SDK_LAST = 100


@runtime_checkable
class HookProvider(Protocol):
    """Something that registers callbacks: `Agent(hooks=[provider])`."""

    def register_hooks(self, registry: HookRegistry) -> None:
        """Add the callbacks, by `registry.add_callback(EventType, callback)`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Registered:
    """One callback for one type of event."""

    callback: HookCallback
    order: float
    guard: bool
    """Whether its failure fails the turn. Failures of the others are logged."""
    own: bool = False
    """Whether it belongs to this agent alone, and not to copies of it."""


class HookRegistry:
    """The callbacks of one agent. May grow at any time; a call that runs sees new callbacks at its next event."""

    def __init__(self) -> None:
        self._registered: dict[type[HookEvent], list[Registered]] = {}
        self.in_order: dict[type[HookEvent], tuple[Registered, ...]] = {}
        """Type of event to its callbacks, in the order in which they run. Nobody edits it."""
        self.injections: list[Injection] = []
        """Who adds to what the model is shown in single calls, in order. Nobody edits it."""
        self.shorten: Shorten | None = None
        """Shortens what has just been said, if anybody wants that; read when a session comes to life."""
        self._own = False

    def add_callback(
        self,
        event_type: EventTypes,
        callback: HookCallback,
        *,
        order: float = HookOrder.DEFAULT,
        guard: bool | None = None,
    ) -> None:
        """Have `callback` called at each event of that type (or those types; None reads its annotation).

        A callback that raises: a guard fails the turn with `HookFailed` (or with its own error if that is a
        `RepertoryError`) before what it guards happens; an observer is logged and the turn goes on. By default
        callbacks of Before-events are guards and all others observers; `guard` says otherwise.
        Errors: `Invalid` for what is no event type, for an annotation that names none, and for an asynchronous callback
        of `AgentInitializedEvent`.
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

    def add_hook(self, provider: HookProvider) -> None:
        """Add everything that the provider registers."""
        if not isinstance(cast("object", provider), HookProvider):
            raise Invalid("a hook provider has a method register_hooks(registry)", got=provider)
        provider.register_hooks(self)

    def add_own(self, provider: HookProvider) -> None:
        """Add everything that a part of the agent registers of which each copy of the agent has its own."""
        self._own = True
        try:
            provider.register_hooks(self)
        finally:
            self._own = False

    def add_injection(self, injection: Injection) -> None:
        """Have it asked before each model call, after those that are there. Errors: `Invalid` for a name twice."""
        if any(injection.name == other.name for other in self.injections):
            raise Invalid("two injections have the same name", name=injection.name)
        self.injections.append(injection)

    def has_callbacks(self) -> bool:
        """Whether anybody is registered for anything."""
        return bool(self._registered)

    @property
    def registered(self) -> Mapping[type[HookEvent], Sequence[Registered]]:
        """Everything, in the order in which it was registered."""
        return self._registered

    def callbacks_for(self, event_type: type[HookEvent]) -> tuple[Registered, ...]:
        """The callbacks in the order in which they run."""
        return self.in_order.get(event_type, ())


class SameHooks:
    """A provider of everything that is registered in another registry, without what belongs to that agent alone."""

    def __init__(self, registry: HookRegistry) -> None:
        self._registry = registry

    def register_hooks(self, registry: HookRegistry) -> None:
        """Register the same callbacks, in the same order."""
        for kind, registered in self._registry.registered.items():
            for one in registered:
                if not one.own:
                    registry.add_callback(kind, one.callback, order=one.order, guard=one.guard)
        for injection in self._registry.injections:
            registry.add_injection(injection)
        registry.shorten = registry.shorten or self._registry.shorten


def _cleanup_order(in_order: list[Registered]) -> tuple[Registered, ...]:
    """Within one order the last registered runs first; orders themselves keep their direction."""
    newest_first = list(reversed(in_order))
    return tuple(sorted(newest_first, key=lambda one: one.order))


def _is_asynchronous(callback: HookCallback) -> bool:
    return inspect.iscoroutinefunction(callback) or inspect.iscoroutinefunction(type(callback).__call__)


def _is_event_type(kind: object) -> TypeGuard[type[HookEvent]]:
    return isinstance(kind, type) and issubclass(kind, HookEvent) and kind is not HookEvent


def _event_types(given: EventTypes, callback: HookCallback) -> list[type[HookEvent]]:
    if given is None:
        return _annotated(callback)
    several = isinstance(cast("object", given), Iterable) and not isinstance(given, type)
    kinds = list(cast("Iterable[object]", given)) if several else [given]
    for kind in kinds:
        if not _is_event_type(kind):
            raise Invalid("an event type is a subclass of HookEvent, such as MessageAddedEvent", got=repr(kind))
    if not kinds:
        raise Invalid("a list of event types is not empty")
    return cast("list[type[HookEvent]]", kinds)


def _annotated(callback: HookCallback) -> list[type[HookEvent]]:
    """The types that the callback's first parameter names."""
    how = "annotate the callback's parameter with an event type, or pass the type"
    function: Callable[..., object] = callback
    while isinstance(function, functools.partial):
        function = cast("functools.partial[object]", function).func
    if not inspect.isroutine(function):
        function = type(function).__call__
    try:
        hints = cast("Mapping[str, object]", get_type_hints(function))
    except (NameError, TypeError) as error:
        raise Invalid(f"the callback's annotation cannot be read: {how}", callback=callback) from error
    named = [hint for name, hint in hints.items() if name != "return"]
    if not named:
        raise Invalid(f"the callback has no annotation: {how}", callback=callback)
    hint = named[0]
    members = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    kinds = [member for member in members if member is not NoneType]
    if not kinds or not all(map(_is_event_type, kinds)):
        raise Invalid(f"the callback's annotation is no event type: {how}", annotation=repr(hint))
    return cast("list[type[HookEvent]]", kinds)
