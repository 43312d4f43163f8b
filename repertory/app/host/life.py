"""How the session of one agent, graph or swarm starts: for a call, or for a block around many calls.

In a `Runtime`, and in the loop of sync code, one `Host` starts every session, and calls share it. Elsewhere structured
concurrency leaves a call no place for actors but itself. So the first call brings its own host, which ends with the
call; other callers of the same session in this event loop wait at its gate, or join.
"""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import anyio
from anyio.lowlevel import RunVar, current_token

from repertory.app.host.host import Host, HostSettings, Key, ambient_host
from repertory.app.host.session import ActiveSession
from repertory.core.retry import DEFAULT_PATIENCE
from repertory.errors import AgentBusy, Invalid, StoreUnavailable
from repertory.forking import forget_in_children, never_collect
from repertory.runtime.host_task import HostTask, apart

if TYPE_CHECKING:
    from repertory.actors.call import Busy
    from repertory.app.host.session import SessionSpec

_IDLE_S = 3600.0
"""In a block around many calls of a graph or swarm, unused nodes with a stored conversation stay alive so long."""


@dataclass(slots=True)
class _SessionGate:
    """Lets one call at a time host a session in this event loop."""

    lock: anyio.Lock = field(default_factory=partial(anyio.Lock, fast_acquire=True))
    active: ActiveSession | None = None
    shared: bool = False
    """Whether the host outlives the call, so that other calls need not wait for its end."""
    callers: int = 0


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
        if gate.lock.locked():
            _make_way(gate, spec, busy)
        await _pass(gate, spec, deadline)
        try:
            own = _host_for(spec, stays)
            async with own, own.session(spec, deadline) as session:
                gate.active, gate.shared = session, stays
                try:
                    yield session
                finally:
                    gate.active, gate.shared = None, False
            _check_stored(own)
        finally:
            gate.lock.release()
    finally:
        gate.callers -= 1
        if not gate.callers:
            gates.pop(spec.key, None)


def _make_way(gate: _SessionGate, spec: SessionSpec, busy: Busy) -> None:
    if busy == "reject":
        raise AgentBusy(spec.working, **spec.named, busy=busy)
    if busy == "interrupt" and gate.active is not None:
        gate.active.cancel()


async def _pass(gate: _SessionGate, spec: SessionSpec, deadline: float) -> None:
    with anyio.CancelScope(deadline=deadline) as waiting:
        await gate.lock.acquire()
    if waiting.cancelled_caught:
        raise AgentBusy(spec.no_time, **spec.named)


def _host_for(spec: SessionSpec, stays: bool) -> Host:
    if spec.parts is None:
        return Host(HostSettings(ambient=False))
    return Host(
        HostSettings(
            ambient=False,
            alone=True,
            closes_models=stays,
            on_fatal=lambda error: None,  # Callers learn of it from their asks, and own the block around them.
            patience=spec.patience or DEFAULT_PATIENCE,
        )
    )


def _check_stored(host: Host) -> None:
    """Raises for answered turns of an agent. Other turns raised it themselves; for a graph or swarm it is logged."""
    for report in host.buffers.not_stored() if host.alone else ():
        if report.answered:
            text = "a turn that was answered could not be stored, and is lost"
            lost = {"session": report.session_id, "turns": report.turns, "records": report.records}
            raise StoreUnavailable(text, **lost, cause=report.error)


class SessionLife:
    """Starts the session of one agent, graph or swarm, and ends it."""

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
        """The session, if it is alive in this event loop."""
        current = self._current
        here = current is not None and current.alive and self._current_in is current_token().native_token
        return current if here else None

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

    @asynccontextmanager
    async def session(
        self, busy: Busy = "queue", deadline: float = math.inf, *, moves: bool = False
    ) -> AsyncGenerator[ActiveSession]:
        """The session that is held open, or one that lives as long as the block. `moves`: another task may leave the
        block than the one that entered it.
        """
        held = self._here()
        if isinstance(held, ActiveSession):
            await self._before_use(held)
            yield held
            return
        active = self._active(busy=busy, deadline=deadline)
        moves = moves and held is None and ambient_host() is None
        async with apart(active, name=f"repertory {self._name}") if moves else active as session:
            yield session

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
