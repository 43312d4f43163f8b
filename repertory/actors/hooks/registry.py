"""What is registered with an agent: its callbacks by event and order, and its injections."""

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
    """Where a callback stands among those of one event: lower first; within one order, as registered."""

    SDK_FIRST = -100
    INTERVENTION_OUTPUT = -90
    DEFAULT = 0
    MODEL_ROUTING = 50
    INTERVENTION_INPUT = 90
    SDK_LAST = 100


@runtime_checkable
class HookProvider(Protocol):
    """Registers callbacks: `Agent(hooks=[provider])`."""

    def register_hooks(self, registry: HookRegistry) -> None:
        """Add the callbacks, by `registry.add_callback(EventType, callback)`."""
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
    """The callbacks of one agent. It may grow at any time; a running call sees new callbacks at its next event."""

    def __init__(self) -> None:
        self._registered: dict[type[HookEvent], list[Registered]] = {}
        self.in_order: dict[type[HookEvent], tuple[Registered, ...]] = {}
        """Event type to callbacks, in running order. Must not be edited."""
        self.injections: list[Injection] = []
        """In order of registration. Must not be edited."""
        self.shorten: Shorten | None = None
        """Shortens new messages, if set; read when a session is opened."""
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
        callbacks of Before-events are guards and all others observers; `guard` overrides that. Errors: `Invalid` if the
        type is no event type, if the annotation names none, and for an asynchronous callback of
        `AgentInitializedEvent`.
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
        """As `add_hook`, for a part of the agent of which each copy of the agent has its own."""
        self._own = True
        try:
            provider.register_hooks(self)
        finally:
            self._own = False

    def add_injection(self, injection: Injection) -> None:
        """Ask this injection before each model call, after the earlier ones. Errors: `Invalid` for a name twice."""
        if any(injection.name == other.name for other in self.injections):
            raise Invalid("two injections have the same name", name=injection.name)
        self.injections.append(injection)

    def has_callbacks(self) -> bool:
        """True if any callback is registered."""
        return bool(self._registered)

    @property
    def registered(self) -> Mapping[type[HookEvent], Sequence[Registered]]:
        return self._registered

    def callbacks_for(self, event_type: type[HookEvent]) -> tuple[Registered, ...]:
        """The callbacks in running order."""
        return self.in_order.get(event_type, ())


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


def _cleanup_order(in_order: list[Registered]) -> tuple[Registered, ...]:
    """Within one order the last registered runs first; the orders themselves are not reversed."""
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
