"""The ways in which calls come to the session of one agent, graph or swarm: a call, or a block around many calls.

In a `Runtime`, and in the loop of sync code, one `Host` starts every session, and calls share it. Elsewhere the first
call of an agent starts a host for its event loop, which keeps the actors of sessions between calls and ends with the
loop. There the calls of one agent object at a time use a session: others wait for their turn, or join.
"""

from __future__ import annotations

import atexit
import math
import sys
import threading
import time
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from typing import TYPE_CHECKING, Protocol, cast

import anyio
from anyio.lowlevel import RunVar, current_token
from msgspec import Struct, field
from msgspec.structs import force_setattr

from repertory.actors.call import READS_IT, LookAtWaits, OutsideWait
from repertory.app import wings
from repertory.app.host.host import PAUSED_S, Host, HostSettings, ambient_host, check_stored
from repertory.app.host.session import ActiveSession, CallersTurn, SlotClaim, meter_provider
from repertory.backends.wait_graph import know_wait
from repertory.core.session_life import SessionState
from repertory.errors import AgentBusy, Deadlock, Invalid, MailboxFull
from repertory.forking import call_in_children, forget_in_children, never_collect
from repertory.runtime.host_task import Apart, HostTask

if TYPE_CHECKING:
    from threading import Thread

    from repertory.actors.call import Busy, Invocation
    from repertory.app.host.session import SessionSlot, SessionSpec
    from repertory.core.result import TurnEvent
    from repertory.core.turn import StopReason
    from repertory.runtime.channel import EventReader

_IDLE_S = 3600.0
"""Seconds that unused nodes with a stored conversation stay alive in a block around calls of a graph or swarm."""


class SessionBlock:
    """A session, alive for as long as the block, on this event loop's host. No generator: a block around many calls may
    be open when its event loop ends, which closes generators in any order.
    """

    __slots__ = ("_busy", "_deadline", "_host", "_slot", "_spec", "_stays")

    def __init__(self, spec: SessionSpec, *, busy: Busy, stays: bool, deadline: float) -> None:
        """`busy` says what to do when calls of another agent object use it: wait, be refused with `AgentBusy`, cancel
        their turn and wait, or join it. `stays`: the block is one around many calls, so that all others may join it,
        and nothing of the session is left behind it. Tools and hooks of the running turn may always join. Waiting ends
        with `AgentBusy` at the deadline, and the work at the end of the block stops soon after it.
        """
        self._spec, self._stays, self._deadline = spec, stays, deadline
        self._busy: Busy = busy
        self._host: Host
        self._slot: SessionSlot | None = None
        """The slot in which the block has its turn; None if it has joined another one, and in a `Runtime`."""

    async def __aenter__(self) -> ActiveSession:
        """Errors: those of opening it (`SessionBusy`, `AgentBusy`, `Corrupt`, `Unavailable`, `Invalid`)."""
        for loop in list(_started.values()):
            # A loop that was closed in the middle of a turn ends none of its tasks, so its sessions would seem in use
            # for ever. Nothing tells of that, so each use looks.
            if loop.is_closed():
                _abandon(lambda loop: loop.is_closed())
        spec, host = self._spec, ambient_host()
        if host is None:
            host = await _loop_host()
            slot = host.slot_of(spec)
            turn = slot.turn = slot.turn or CallersTurn(anyio.Semaphore(1, max_value=1, fast_acquire=True))
            joined = slot.session if turn.callers else None
            if joined is None or not (turn.held or self._busy == "steer" or joined.in_a_turn):
                if self._stays or turn.claim is not spec.claim or turn.wanted:
                    if turn.queue.value:
                        turn.queue.acquire_nowait()
                    else:
                        await _wait_for_turn(turn.queue, slot.session, spec, self._busy, self._deadline)
                turn.callers += 1
                turn.claim = spec.claim if spec.parts is not None and not self._stays else None
                turn.held = self._stays
                self._slot = slot
        self._host = host
        try:
            return await host.enter(spec, self._deadline)
        except BaseException:
            if self._slot is not None:
                host.end_call(self._slot)
            raise

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Errors: `Unavailable` when answered turns of an agent could not be stored."""
        if self._slot is not None and self._slot.turn is not None:
            self._slot.turn.held = False  # Whoever comes from now on waits: the session ends.
        try:
            lost = await self._host.leave(self._spec, ends=self._stays and self._slot is not None)
        finally:
            if self._slot is not None:
                self._host.end_call(self._slot)
        if lost is not None and kind is None:
            check_stored(lost)


async def _wait_for_turn(
    turns: anyio.Semaphore, session: ActiveSession | None, spec: SessionSpec, busy: Busy, deadline: float
) -> None:
    """Wait until no call of another agent object, and none that came before, uses the slot."""
    if busy == "reject":
        raise AgentBusy(spec.working, **spec.named, busy=busy)
    if session is not None and busy == "interrupt":
        session.cancel()
    elif session is not None and await session.read_here():
        raise Deadlock(READS_IT, **spec.named)
    waiting = anyio.CancelScope(deadline=deadline)
    wait = OutsideWait(scope=waiting)
    with waiting:
        if session is not None:
            with suppress(MailboxFull):
                session.agent.tell(LookAtWaits(wait))
        try:
            await turns.acquire()
        finally:
            wait.over = True
    if waiting.cancelled_caught:
        raise wait.error or AgentBusy(spec.no_time, **spec.named)


know_wait(_wait_for_turn, lambda variables: (variables["wait"], getattr(variables["session"], "agent", None)))


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
"""Seconds that the end of the process waits for the stores of such loops."""


async def _loop_host() -> Host:
    """The host of this event loop's calls, which ends with the loop. Errors: `Unavailable` in a loop that is ending."""
    here = _loop_hosts.get(None)
    if here is None:
        here = _LoopHost()
        _loop_hosts.set(here)
    if here.host is None or not here.host.system.healthy:
        async with here.lock:
            # Another task of this loop may have made it while this one waited for the lock.
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
    loops = [loop for loop in _started.values() if not loop.is_running()]
    for thread in threading.enumerate():
        stop = getattr(thread, "stop", None)
        if thread.name == "AnyIO worker thread" and stop is not None and getattr(thread, "loop", None) in loops:
            stop()


def _forget_parent() -> None:
    """Forget the hosts in a forked child: they are the parent's."""
    never_collect(*_started)
    _started.clear()


atexit.register(_at_exit)
# Functions of `atexit` are called after the threads have ended. This is what `concurrent.futures` uses.
_before_threads_end = getattr(threading, "_register_atexit", None)
if _before_threads_end is not None:
    _before_threads_end(_stop_threads)
call_in_children(_forget_parent)


class SessionLife:
    """Starts the session of one agent, graph or swarm for its calls, and ends it."""

    __slots__ = (
        "__weakref__",
        "_block",
        "_current",
        "_held",
        "_keeps_host",
        "_name",
        "_spec",
        "busy",
        "claim",
        "on_change",
        "running",
        "stop",
    )

    def __init__(
        self, name: str, spec: Callable[[], SessionSpec], busy: Busy = "queue", *, keeps_host: bool = False
    ) -> None:
        """`name`: the name in errors, such as `agent NAME`. `spec` is called for each start. `busy`: the conduct of
        what sets none. `keeps_host`: a block around many calls keeps a host, on which the first call starts the session
        and its nodes; without it the block starts the session itself.
        """
        self._name = name
        self._spec = spec
        self.busy: Busy = busy
        self.claim = SlotClaim()
        self.running: list[Invocation] = []
        """The running calls, the oldest first."""
        self.stop: StopReason | None = None
        """Ends the next call before anything is done for it."""
        self.on_change: Callable[[], None] | None = None
        """Called after each call, and each edit of the messages."""
        self._keeps_host = keeps_host
        self._block: SessionBlock | HostTask[Host] | None = None
        self._held: ActiveSession | Host | None = None
        self._current: ActiveSession | None = None
        forget_in_children(self)

    def forget_parent(self) -> None:
        """Forget the session in a forked child: none is open there, also within a block of the parent."""
        never_collect(self._block, self._held, self._current)
        self._block, self._held, self._current = None, None, None

    @property
    def current(self) -> ActiveSession | None:
        """The last session that was open, which may have ended."""
        return self._current

    @property
    def current_here(self) -> ActiveSession | None:
        """The session, if it is in use in this event loop."""
        current = self._current
        if current is None or not current.alive or current.slot.loop is not current_token().native_token:
            return None
        return None if current.slot.state is SessionState.PAUSED else current

    @property
    def is_held(self) -> bool:
        """True if a block keeps the session open."""
        return self._block is not None

    @property
    def in_a_turn(self) -> bool:
        """True if the calling code runs on behalf of a turn of this very session."""
        return self._current is not None and self._current.in_a_turn

    def held_here(self) -> ActiveSession | None:
        """The session that a block keeps open. Errors: `Invalid` outside the block's event loop."""
        held = self._here()
        return None if isinstance(held, Host) else held

    def join(self, session: ActiveSession) -> None:
        """Called when the session is alive, whether this object or another started it."""
        self._current = session

    @contextmanager
    def running_now(self, invocation: Invocation) -> Generator[None]:
        """Count the call as running in the block."""
        self.running.append(invocation)
        if self.stop is not None:
            stop, self.stop = self.stop, None
            force_setattr(invocation, "stop", stop)
        try:
            yield
        finally:
            self.end_call(invocation)
            if self.on_change is not None:
                self.on_change()

    def end_call(self, invocation: Invocation) -> None:
        """The call does not run any more, though somebody may still read its events."""
        if invocation in self.running:
            self.running.remove(invocation)

    def stop_before_its_turn(self, stop: StopReason) -> None:
        """End the oldest call when its turn begins. No effect on a turn that has begun."""
        for invocation in self.running[:1]:
            force_setattr(invocation, "stop", invocation.stop or stop)

    async def enter(self) -> None:
        """Keep the session open until `leave`, which any task may call: no lease changes hands between calls."""
        if self._block is not None:
            raise Invalid(f"the {self._name} is open already")
        if self._keeps_host and ambient_host() is not None:
            return
        try:
            if self._keeps_host:
                host = Host(HostSettings(ambient=False, idle_timeout_s=_IDLE_S))
                task = self._block = HostTask(host, name=f"repertory {self._name}")
                self._held = await task.enter()
                return
            spec = self._spec().waiting(reject=False, deadline=math.inf)
            block = self._block = SessionBlock(spec, busy="queue", stays=True, deadline=math.inf)
            session = await block.__aenter__()
            try:
                self.join(session)
                await self._before_use(session)
            except BaseException:
                await block.__aexit__(*sys.exc_info())
                raise
            self._held = session
        except BaseException:
            self._block = None
            raise

    async def leave(self, error: BaseException | None = None) -> None:
        """Close what `enter` opened, if anything. `error`: the exception that ended the caller's own block."""
        block, held, self._block, self._held = self._block, self._held, None, None
        if isinstance(block, HostTask):
            await block.leave(error)
        elif block is not None and isinstance(held, ActiveSession):
            try:
                await self._before_leaving(held)
            except BaseException:
                await block.__aexit__(*sys.exc_info())
                raise
            await block.__aexit__(None, None, None)

    async def end_paused(self) -> None:
        """Stop what earlier calls in this event loop have left of the session, if no call uses it now."""
        here = _loop_hosts.get(None)
        host = ambient_host() or (here.host if here is not None else None)
        if host is not None and host.system.healthy:
            await host.stop_unused(self._spec())

    def session(
        self, busy: Busy | None = None, deadline: float = math.inf, *, moves: bool = False, late: bool = False
    ) -> AbstractAsyncContextManager[ActiveSession]:
        """The session that is held open, or one that lives as long as the block. `moves`: another task may leave the
        block than the one that entered it. `late`: the block is a call, whose first commit may take the session.
        Errors: `Invalid` outside the event loop of a block that holds it.
        """
        held = self._here()
        if isinstance(held, ActiveSession):
            return self._used(held)
        active = self._active(busy or self.busy, deadline, late=late)
        moves = moves and held is None and ambient_host() is None
        return Apart(active, name=f"repertory {self._name}") if moves else active

    @asynccontextmanager
    async def stream(
        self, invocation: Invocation, busy: Busy | None = None, *, moves: bool = False
    ) -> AsyncGenerator[EventReader[TurnEvent]]:
        """The events of a call. When its turn is over, the call has ended and the session is let go, though somebody
        may read on for long, or never. `moves`: as for `session`. Errors: those of `session`, and of the call.
        """
        use = self.session(busy, invocation.deadline, moves=moves, late=True)
        async with use as session, session.stream(invocation) as events:

            def end() -> None:
                self.end_call(invocation)
                if isinstance(use, Apart):
                    use.end_soon()

            events.on_ended(end)
            yield events

    @asynccontextmanager
    async def _used(self, held: ActiveSession) -> AsyncGenerator[ActiveSession]:
        await self._before_use(held)
        yield held

    def _here(self) -> ActiveSession | Host | None:
        held = self._held
        where = held.slot if isinstance(held, ActiveSession) else held
        if where is not None and where.loop is not current_token().native_token:
            raise Invalid(f"the {self._name} is open in another event loop or thread; call it there")
        return held

    @asynccontextmanager
    async def _active(self, busy: Busy, deadline: float, *, late: bool) -> AsyncGenerator[ActiveSession]:
        spec = self._spec().waiting(reject=busy == "reject", deadline=deadline, late=late)
        if isinstance(self._held, Host) and ambient_host() is None:
            block: AbstractAsyncContextManager[ActiveSession] = self._held.session(spec, deadline)
        else:
            block = SessionBlock(spec, busy=busy, stays=False, deadline=deadline)
        async with block as session:
            self.join(session)
            await self._before_use(session)
            yield session

    async def _before_use(self, session: ActiveSession) -> None:
        """Called before each use of the session."""

    async def _before_leaving(self, session: ActiveSession) -> None:
        """Called at the end of a block around many calls."""
