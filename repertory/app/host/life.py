"""How the session of one agent, graph or swarm starts: for a call, or for a block around many calls.

In a `Runtime`, and in the loop of sync code, one `Host` starts every session, and calls share it. Elsewhere the first
call of an agent starts a host for its event loop, which keeps the actors of sessions between calls and ends with the
loop. A block around many calls brings its own host. One of them at a time uses a session in an event loop: other
callers wait at its gate, or join.
"""

from __future__ import annotations

import atexit
import math
import threading
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, cast

import anyio
from anyio.lowlevel import RunVar, current_token
from msgspec import Struct, field

from repertory.actors.call import READS_IT, LookAtWaits, OutsideWait
from repertory.app import wings
from repertory.app.host.host import PAUSED_S, Host, HostSettings, Key, ambient_host, check_stored
from repertory.app.host.session import ActivationLock, ActiveSession, meter_provider
from repertory.backends.wait_graph import know_wait
from repertory.core.retry import DEFAULT_PATIENCE
from repertory.errors import AgentBusy, Deadlock, Invalid, MailboxFull
from repertory.forking import call_in_children, forget_in_children, never_collect
from repertory.runtime.host_task import Apart, HostTask

if TYPE_CHECKING:
    from threading import Thread

    from repertory.actors.call import Busy, Invocation
    from repertory.app.host.session import SessionSpec
    from repertory.core.result import TurnEvent
    from repertory.runtime.channel import EventReader

_IDLE_S = 3600.0
"""In a block around many calls of a graph or swarm, unused nodes with a stored conversation stay alive so long."""


class _SessionGate(Struct):
    """Lets one call at a time host a session in this event loop."""

    free: anyio.Semaphore = field(default_factory=partial(anyio.Semaphore, 1, max_value=1, fast_acquire=True))
    active: ActiveSession | None = None
    shared: bool = False
    """Whether a block keeps the session, so that other calls need not wait for its end."""
    callers: int = 0
    of: ActivationLock | None = None
    """The agent whose calls use the session; None for a block, and for a graph or swarm."""
    calls: int = 0
    """Its calls now."""


_gates: RunVar[dict[Key, _SessionGate]] = RunVar("repertory_session_gates")


@asynccontextmanager
async def hosted(
    spec: SessionSpec, *, busy: Busy = "queue", stays: bool = False, deadline: float = math.inf
) -> AsyncGenerator[ActiveSession]:
    """The session, alive for as long as the block, on this event loop's host or another call's.

    `busy` says what to do when another call hosts it: wait, be refused with `AgentBusy`, cancel that call's turn and
    wait, or join its turn. `stays`: this host outlives single calls, so other calls may join it. Tools and hooks of the
    running turn may always join: the turn does not end before they do. Waiting ends with `AgentBusy` at the deadline,
    and the work at the end of the block stops soon after it.

    Errors: those of opening it (`SessionBusy`, `AgentBusy`, `Corrupt`, `Unavailable`, `Invalid`); at its end
    `Unavailable` when answered turns of an agent could not be stored.
    """
    if _started:
        _abandon(lambda loop: loop.is_closed())
    host = ambient_host()
    if host is not None:
        async with host.session(spec, deadline) as session:
            yield session
        return
    gates = _gates.get(None)
    if gates is None:
        gates = dict[Key, _SessionGate]()
        _gates.set(gates)
    gate = gates.setdefault(spec.key, _SessionGate())
    gate.callers += 1
    try:
        active = gate.active
        if active is not None and (gate.shared or busy == "steer" or active.in_a_turn):
            yield active
            return
        waiting = gate.free.statistics().tasks_waiting
        if gate.of is not spec.lock or waiting:
            if gate.free.value:
                gate.free.acquire_nowait()
            else:
                await _make_way(gate, spec, busy)
                await _pass(gate, spec, deadline)
        if stays:
            try:
                own = _host_for(spec)
                async with own, own.session(spec, deadline) as session:
                    gate.active, gate.shared = session, True
                    try:
                        yield session
                    finally:
                        gate.active, gate.shared = None, False
                check_stored(own.buffers.not_stored())
            finally:
                gate.free.release()
            return
        gate.of = spec.lock if spec.parts is not None else None
        gate.calls += 1
        try:
            async with (await _loop_host()).session(spec, deadline) as session:
                gate.active = session
                yield session
        finally:
            gate.calls -= 1
            if not gate.calls:
                gate.active = gate.of = None
                gate.free.release()
    finally:
        gate.callers -= 1
        if not gate.callers:
            gates.pop(spec.key, None)


async def _make_way(gate: _SessionGate, spec: SessionSpec, busy: Busy) -> None:
    if busy == "reject":
        raise AgentBusy(spec.working, **spec.named, busy=busy)
    if gate.active is None:
        return
    if busy == "interrupt":
        gate.active.cancel()
    elif await gate.active.read_here():
        raise Deadlock(READS_IT, **spec.named)


async def _pass(gate: _SessionGate, spec: SessionSpec, deadline: float) -> None:
    waiting = anyio.CancelScope(deadline=deadline)
    wait = OutsideWait(scope=waiting)
    with waiting:
        if gate.active is not None:
            with suppress(MailboxFull):
                gate.active.agent.tell(LookAtWaits(wait))
        try:
            await gate.free.acquire()
        finally:
            wait.over = True
    if waiting.cancelled_caught:
        raise wait.error or AgentBusy(spec.no_time, **spec.named)


def _behind(variables: Mapping[str, Any]) -> Sequence[object]:
    active: ActiveSession | None = variables["gate"].active
    return (variables["wait"], None if active is None else active.agent)


know_wait(_pass, _behind)


def _host_for(spec: SessionSpec) -> Host:
    return Host(
        HostSettings(
            ambient=False,
            alone=True,
            on_fatal=lambda error: None,  # Callers learn of it from their asks, and own the block around them.
            patience=spec.patience or DEFAULT_PATIENCE,
        )
    )


class _AsyncioLoop(Protocol):
    def is_closed(self) -> bool: ...

    def is_running(self) -> bool: ...


class _LoopHost(Struct):
    """The host of an event loop's calls."""

    lock: anyio.Lock = field(default_factory=anyio.Lock)
    host: Host | None = None


_loop_hosts: RunVar[_LoopHost] = RunVar("repertory_loop_host")
_started: dict[Host, _AsyncioLoop] = {}
"""The hosts of asyncio loops, which a program may close, or never run again, without ending their tasks."""
_CLOSING_S = 2.0
"""How long the end of the process waits for the stores of such loops."""


async def _loop_host() -> Host:
    """The host of this event loop's calls, which ends with the loop. Errors: `Unavailable` in a loop that is ending."""
    here = _loop_hosts.get(None)
    if here is None:
        here = _LoopHost()
        _loop_hosts.set(here)
    if here.host is None or not here.host.system.healthy:
        async with here.lock:
            if here.host is None or not here.host.system.healthy:
                settings = HostSettings(
                    ambient=False,
                    pauses=True,
                    idle_timeout_s=PAUSED_S,
                    closes_models=False,
                    on_fatal=lambda error: None,  # Callers learn of it from their asks.
                )
                here.host = await HostTask(Host(settings), name="repertory sessions", detached=True).enter()
                if meter_provider() is not None:
                    wings.telemetry().watch_host(here.host)
                loop = current_token().native_token
                if hasattr(loop, "is_closed"):
                    _started[here.host] = cast("_AsyncioLoop", loop)
    return here.host


def _abandon(ended: Callable[[_AsyncioLoop], bool]) -> list[Thread]:
    """Free the sessions of loops that have ended without ending their tasks, such as one that was closed in the middle
    of a turn: their stores are closed, and their agents may be called elsewhere. From any thread. Returns the threads
    that still close.
    """
    threads: list[Thread] = []
    for host, loop in list(_started.items()):
        drained = host.system.drained.is_set()
        if not drained and not ended(loop):
            continue
        if _started.pop(host, None) is not None and not drained:  # Another thread may be quicker.
            never_collect(host)  # Collecting its tasks would run their ends, half of them.
            threads += host.abandon()
    return threads


def _at_exit() -> None:
    until = time.monotonic() + _CLOSING_S
    for thread in _abandon(lambda loop: not loop.is_running()):
        thread.join(max(0.0, until - time.monotonic()))


def _stop_threads() -> None:
    """Stop the worker threads of loops that were left without being closed, such as a notebook's. anyio stops those of
    a loop with the task that stands above all others, which is a host's own there; before a process ends, it waits for
    its threads.
    """
    left = [loop for loop in _started.values() if not loop.is_running()]
    for thread in threading.enumerate():
        stop = getattr(thread, "stop", None)
        if thread.name == "AnyIO worker thread" and stop is not None and getattr(thread, "loop", None) in left:
            stop()


def _forget_parent() -> None:
    """In a forked child: the hosts are the parent's."""
    never_collect(*_started)
    _started.clear()


atexit.register(_at_exit)
# Functions of `atexit` are called after the threads have ended. This is what `concurrent.futures` uses.
_before_threads_end = getattr(threading, "_register_atexit", None)
if _before_threads_end is not None:
    _before_threads_end(_stop_threads)
call_in_children(_forget_parent)


class SessionLife:
    """Starts the session of one agent, graph or swarm, and ends it."""

    __slots__ = (
        "__weakref__",
        "_current",
        "_current_in",
        "_held",
        "_held_in",
        "_keeps_host",
        "_name",
        "_on_joined",
        "_spec",
        "_task",
    )

    def __init__(
        self,
        name: str,
        spec: Callable[[], SessionSpec],
        joined: Callable[[ActiveSession], None] | None = None,
        *,
        keeps_host: bool = False,
    ) -> None:
        """`name`: the name in errors, such as `agent NAME`. `spec` is called for each start; `joined` is called with
        each session that differs from the one before. `keeps_host`: a block around many calls keeps a host, on which
        the first call starts the session and its nodes; without it the block starts the session itself.
        """
        self._name = name
        self._spec = spec
        self._on_joined = joined
        self._keeps_host = keeps_host
        self._task: HostTask[ActiveSession] | HostTask[Host] | None = None
        self._held: ActiveSession | Host | None = None
        self._held_in: object = None
        self._current: ActiveSession | None = None
        self._current_in: object = None
        forget_in_children(self)

    def forget_parent(self) -> None:
        """In a forked child: no session is open, also within a block of the parent."""
        never_collect(self._task, self._held, self._current)
        self._task, self._held, self._held_in, self._current, self._current_in = None, None, None, None, None

    @property
    def current(self) -> ActiveSession | None:
        """The last session that was open, which may have ended."""
        return self._current

    @property
    def current_here(self) -> ActiveSession | None:
        """The session, if it is in use in this event loop."""
        current = self._current
        if current is None or not current.alive or self._current_in is not current_token().native_token:
            return None
        return None if current.rest.paused else current

    @property
    def is_held(self) -> bool:
        """Whether a block keeps the session open."""
        return self._task is not None

    @property
    def in_a_turn(self) -> bool:
        """Whether the calling code runs on behalf of a turn of this very session."""
        return self._current is not None and self._current.in_a_turn

    def held_here(self) -> ActiveSession | None:
        """The session that a block keeps open. Errors: `Invalid` outside the block's event loop."""
        held = self._here()
        return None if isinstance(held, Host) else held

    def join(self, session: ActiveSession) -> None:
        """Called when the session is alive, whether this object or another started it."""
        if self._current is not session:
            self._current, self._current_in = session, current_token().native_token
            if self._on_joined is not None:
                self._on_joined(session)

    async def enter(self) -> None:
        """Keep the session open until `leave`, which any task may call: no lease changes hands between calls."""
        if self._task is not None:
            raise Invalid(f"the {self._name} is open already")
        if not self._keeps_host:
            task = self._task = HostTask(self._active(stays=True), name=f"repertory {self._name}")
        elif ambient_host() is None:
            host = Host(HostSettings(ambient=False, idle_timeout_s=_IDLE_S))
            task = self._task = HostTask(host, name=f"repertory {self._name}")
        else:
            return
        try:
            self._held = await task.enter()
        except BaseException:
            self._task = None
            raise
        self._held_in = current_token().native_token

    async def leave(self, error: BaseException | None = None) -> None:
        """Close what `enter` opened, if anything. `error`: the exception that ended the caller's own block."""
        task, held, self._task, self._held = self._task, self._held, None, None
        if task is None:
            return
        try:
            if isinstance(held, ActiveSession):
                await self._before_leaving(held)
        except BaseException as failed:
            error = failed
            raise
        finally:
            await task.leave(error)

    async def end_paused(self) -> None:
        """Stop what earlier calls in this event loop have left of the session, if no call uses it now."""
        here = _loop_hosts.get(None)
        host = ambient_host() or (here.host if here is not None else None)
        if host is not None and host.system.healthy:
            await host.stop_paused(self._spec())

    def session(
        self, busy: Busy = "queue", deadline: float = math.inf, *, moves: bool = False
    ) -> AbstractAsyncContextManager[ActiveSession]:
        """The session that is held open, or one that lives as long as the block. `moves`: another task may leave the
        block than the one that entered it. Errors: `Invalid` outside the event loop of a block that holds it.
        """
        held = self._here()
        if isinstance(held, ActiveSession):
            return self._used(held)
        active = self._active(busy=busy, deadline=deadline)
        moves = moves and held is None and ambient_host() is None
        return Apart(active, name=f"repertory {self._name}") if moves else active

    @asynccontextmanager
    async def stream(
        self, invocation: Invocation, busy: Busy, ended: Callable[[Invocation], None], *, moves: bool = False
    ) -> AsyncGenerator[EventReader[TurnEvent]]:
        """The events of a call. When its turn is over, `ended` is called and the session is let go, though somebody may
        read on for long, or never. `moves`: as for `session`. Errors: those of `session`, and of the call.
        """
        use = self.session(busy, invocation.deadline, moves=moves)
        async with use as session, session.stream(invocation) as events:

            def end() -> None:
                ended(invocation)
                if isinstance(use, Apart):
                    use.end_soon()

            events.on_ended(end)
            yield events

    @asynccontextmanager
    async def _used(self, held: ActiveSession) -> AsyncGenerator[ActiveSession]:
        await self._before_use(held)
        yield held

    def _here(self) -> ActiveSession | Host | None:
        if self._held is not None and self._held_in is not current_token().native_token:
            raise Invalid(f"the {self._name} is open in another event loop or thread; call it there")
        return self._held

    @asynccontextmanager
    async def _active(
        self, *, busy: Busy = "queue", stays: bool = False, deadline: float = math.inf
    ) -> AsyncGenerator[ActiveSession]:
        spec = self._spec().waiting(reject=busy == "reject", deadline=deadline)
        host = self._held if isinstance(self._held, Host) and ambient_host() is None else None
        alive = (
            hosted(spec, busy=busy, stays=stays, deadline=deadline) if host is None else host.session(spec, deadline)
        )
        async with alive as session:
            self.join(session)
            await self._before_use(session)
            yield session

    async def _before_use(self, session: ActiveSession) -> None:
        """Called before each use of the session."""

    async def _before_leaving(self, session: ActiveSession) -> None:
        """Called at the end of a block around many calls."""
