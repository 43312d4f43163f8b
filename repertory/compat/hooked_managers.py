"""Session managers of others: objects that follow an agent by its hooks, and keep its conversation themselves.

Such an agent has no journal in a store and no lease: nothing of a turn is durable but what its session manager has
stored when a callback returns, tools that a crash cut off are not continued, and two processes that use one session
overwrite each other.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import anyio

from repertory.actors.hooks.events import (
    AfterInvocationEvent,
    AgentInitializedEvent,
    HookRegistry,
    MessageAddedEvent,
)
from repertory.actors.hooks.order import HookOrder
from repertory.actors.orchestrator.events import (
    AfterMultiAgentInvocationEvent,
    AfterNodeCallEvent,
    MultiAgentInitializedEvent,
)
from repertory.app.host.life import SessionLife
from repertory.backends.worker_threads import run_foreign
from repertory.core.journal.redact import without_text
from repertory.core.messages import copy_message, text_of
from repertory.errors import HookFailed, RepertoryError
from repertory.runtime.faults import failure_of, repr_of

if TYPE_CHECKING:
    from repertory.actors.hooks.events import EventTypes, HookCallback
    from repertory.app.host.session import ActiveSession, SessionSpec
    from repertory.app.sessions.sessions import SessionPlacement
    from repertory.core.messages import Message

_DRIVEN = ("initialize", "append_message", "sync_agent", "redact_latest_message", "register_hooks")
_RECORDS = (
    *("initialize_multi_agent", "sync_multi_agent", "create_session", "read_session", "create_agent", "read_agent"),
    *("update_agent", "create_message", "read_message", "update_message", "list_messages"),
    *("create_multi_agent", "read_multi_agent", "update_multi_agent"),
)


def is_hooked(manager: object) -> bool:
    """True for a session manager that keeps sessions itself: of a class of its own, or one of ours with one of these
    methods overridden.
    """
    if isinstance(manager, type) or not all(callable(getattr(manager, name, None)) for name in _DRIVEN):
        return False
    kind = type(manager)
    return not hasattr(kind, "sessions") or any(
        getattr(method, "__module__", "").partition(".")[0] != __name__.partition(".")[0]
        for method in (getattr(kind, name, None) for name in (*_DRIVEN, *_RECORDS))
        if method is not None
    )


def hooked_or_placed(given: Any, *, orchestrates: bool = False) -> tuple[SessionPlacement | None, HookedManager | None]:
    """The session manager if it says where a session lies, or what follows by its hooks if it keeps that itself."""
    return (None, HookedManager(given, orchestrates=orchestrates)) if is_hooked(given) else (given, None)


class HookedManager:
    """The callbacks of one session manager for one agent or orchestrator, called off the event loop, one at a time.

    A callback that raises fails the call: with its own error if that is a `RepertoryError`, else with `HookFailed`.
    """

    def __init__(self, manager: Any, *, orchestrates: bool = False) -> None:
        """`orchestrates`: True for an orchestrator's manager."""
        self.manager = manager
        self._initialized = MultiAgentInitializedEvent if orchestrates else AgentInitializedEvent
        self._restores: list[Callable[[Any], object]] = []
        self._asked: Message | None = None
        """The user's last message, as the manager got it."""
        self._turn = anyio.Lock()

    def register_hooks(self, registry: HookRegistry) -> None:
        """Register everything that the manager registers, except what restores: `restore` calls that."""
        self.manager.register_hooks(_Collecting(registry, self))
        for kind in (MessageAddedEvent, AfterInvocationEvent):
            if self._initialized is AgentInitializedEvent:
                registry.add_callback(kind, self._redacted, order=HookOrder.SDK_FIRST, guard=True)

    def add(self, registry: HookRegistry, event_type: EventTypes, callback: HookCallback, order: float) -> None:
        """Take a callback of the manager: now for `restore`, or for the registry."""
        if event_type is self._initialized:
            self._restores.append(callback)
            return

        if event_type is AgentInitializedEvent:
            return  # Of an orchestrator's manager, whose nodes are agents without one.

        @functools.wraps(callback)
        async def called(event: Any) -> None:
            if isinstance(event, AfterNodeCallEvent | AfterMultiAgentInvocationEvent):
                event = replace(event, source=RunSource(event.source, await event.source.save_snapshot_async()))
            await self._call(callback, event)

        registry.add_callback(event_type, called, order=order, guard=True)

    async def restore(self, event: Any) -> None:
        """Call the callbacks that restore. When one fails, the next call begins with them again."""
        while self._restores:
            try:
                await self._call(self._restores[0], event)
            except RepertoryError:
                raise
            except BaseException as error:
                failure_of(error)  # What is none goes on.
                text = "the session manager could not restore the session"
                raise HookFailed(text, manager=type(self.manager).__name__, error=repr_of(error)) from error
            del self._restores[0]

    def life(self, name: str, spec: Callable[[], SessionSpec], orchestrator: Any) -> SessionLife:
        """The life of an orchestrator that this manager follows."""
        return ManagedLife(name, spec, self, orchestrator)

    async def _call(self, callback: Callable[[Any], object], event: Any) -> None:
        async with self._turn:
            if inspect.iscoroutinefunction(callback):
                await callback(event)
                return
            outcome = await run_foreign(functools.partial(callback, event))
            if inspect.isawaitable(outcome):
                await cast("Awaitable[object]", outcome)

    async def _redacted(self, event: Any) -> None:
        """Tell the manager when a guardrail has replaced the user's last message. Nobody else tells it."""
        before, self._asked = self._asked, None
        if before is not None:
            added = event.message if isinstance(event, MessageAddedEvent) else None
            earlier = (each for each in reversed(event.agent.messages) if each is not added)
            prompt = next((each for each in earlier if each["role"] == "user"), None)
            if prompt is not None and prompt["content"] != before["content"]:
                if prompt["content"] == without_text(before, text_of(prompt))["content"]:
                    await self._call(lambda it: self.manager.redact_latest_message(prompt, it.agent), event)
                before = prompt
        if isinstance(event, MessageAddedEvent):
            self._asked = copy_message(event.message) if event.message["role"] == "user" else None


class RunSource:
    """An orchestrator as its session manager sees it: with its run as JSON."""

    def __init__(self, orchestrator: Any, state: Mapping[str, Any]) -> None:
        self._orchestrator = orchestrator
        self._state = state
        self.loaded: Mapping[str, Any] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._orchestrator, name)

    def serialize_state(self) -> dict[str, Any]:
        """The run, with the conversations of its nodes."""
        return dict(self._state)

    def deserialize_state(self, payload: Mapping[str, Any]) -> None:
        """Continue from that run, once the callback has returned."""
        self.loaded = payload


class ManagedLife(SessionLife):
    """The life of an orchestrator whose session manager keeps the run: before its first use, that restores it."""

    def __init__(self, name: str, spec: Callable[[], SessionSpec], manager: HookedManager, orchestrator: Any) -> None:
        super().__init__(name, spec, keeps_host=True)
        self._manager = manager
        self._orchestrator = orchestrator
        self._source = RunSource(orchestrator, {})
        self._restored = False

    async def _before_use(self, session: ActiveSession) -> None:
        if not self._restored:
            await self._manager.restore(MultiAgentInitializedEvent(source=self._source))
            if self._source.loaded:
                self._orchestrator.deserialize_state(self._source.loaded)
            self._restored = True
        await self._orchestrator.load_given(session)


class _Collecting(HookRegistry):
    """Passes callbacks on to the manager's owner."""

    def __init__(self, registry: HookRegistry, owner: HookedManager) -> None:
        super().__init__()
        self._to = registry
        self._owner = owner

    def add_callback(
        self,
        event_type: EventTypes,
        callback: HookCallback,
        *,
        order: float = HookOrder.DEFAULT,
        guard: bool | None = None,
    ) -> None:
        del guard
        self._owner.add(self._to, event_type, callback, order)
