"""Who may host a session when no `Runtime` does: one call at a time, and everybody else in its event loop waits or
joins.

Structured concurrency leaves a call outside a `Runtime` no place for actors but itself. So the first call brings the
session to life and puts it to rest at its end; the next one, which waited for its seat, does the same.
"""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import anyio
from anyio.lowlevel import RunVar

from repertory.actors.backlog import Backlogs
from repertory.actors.call import OPEN_TURNS
from repertory.actors.call import deadline as caller_deadline
from repertory.actors.leases import Durable, Leases
from repertory.actors.writer import StoreWriter, WriterSettings, keeper_spec
from repertory.app.agent.assembly import assemble
from repertory.app.host.active_session import active_session
from repertory.app.host.host import Key, ambient_host
from repertory.app.host.session_end import finish
from repertory.app.host.tool_servers import ToolServers, reason_of
from repertory.app.memory.open_memories import OpenMemories
from repertory.core.outage import DEFAULT_PATIENCE
from repertory.errors import AgentBusy, StartFailed, StoreUnavailable
from repertory.runtime.drain import Phase
from repertory.runtime.spec import ChildSpec, Strategy, SupervisorSettings
from repertory.runtime.system import ActorSystem, SystemSettings

if TYPE_CHECKING:
    from repertory.actors.call import Busy
    from repertory.app.host.active_session import ActiveSession
    from repertory.app.host.blueprint import Blueprint
    from repertory.backends.ports import SessionStore
    from repertory.runtime.ref import ActorRef


@dataclass(slots=True)
class _Seat:
    """The one place from which a session is hosted in this event loop."""

    lock: anyio.Lock = field(default_factory=anyio.Lock)
    active: ActiveSession | None = None
    shared: bool = False
    """Whether the host stays around, so that others need not wait for it to leave."""
    callers: int = 0


_seats: RunVar[dict[Key, _Seat]] = RunVar("repertory_seats")


@asynccontextmanager
async def hosted(
    blueprint: Blueprint, *, busy: Busy = "queue", stays: bool = False, deadline: float = math.inf
) -> AsyncGenerator[ActiveSession]:
    """The session, alive for as long as the block, whoever hosts it.

    `busy` says what to do when another call hosts it: wait, be refused with `AgentBusy`, cancel that call's turn and
    wait, or join its turn. `stays`: this host outlives single calls, so others may join it. So may tools and hooks of
    the turn that runs: it does not end before they do. Waiting ends with `AgentBusy` at the deadline, and so does soon
    after it what is left to be done at the end.
    """
    host = ambient_host()
    if host is not None:
        async with host.session(blueprint, deadline) as session:
            yield session
        return
    seats = _seats.get(None)
    if seats is None:
        seats = dict[Key, _Seat]()
        _seats.set(seats)
    seat = seats.setdefault(blueprint.key, _Seat())
    seat.callers += 1
    try:
        if seat.active is not None and (seat.shared or busy == "steer" or _in_a_turn_of(seat.active)):
            yield seat.active
            return
        if seat.lock.locked():
            _make_way(seat, blueprint, busy)
        by = min(deadline, caller_deadline())
        async with (
            _taken(seat, blueprint, deadline),
            lone_session(blueprint, closes_model=stays, deadline=by) as session,
        ):
            seat.active, seat.shared = session, stays
            try:
                yield session
            finally:
                seat.active, seat.shared = None, False
    finally:
        seat.callers -= 1
        if not seat.callers:
            seats.pop(blueprint.key, None)


@asynccontextmanager
async def _taken(seat: _Seat, blueprint: Blueprint, deadline: float) -> AsyncGenerator[None]:
    with anyio.CancelScope(deadline=deadline) as waiting:
        await seat.lock.acquire()
    if waiting.cancelled_caught:
        raise AgentBusy("other turns took all the time of this call", agent=blueprint.agent.agent_id)
    try:
        yield
    finally:
        seat.lock.release()


def _in_a_turn_of(session: ActiveSession) -> bool:
    return any(turn.agent is session.agent for turn in OPEN_TURNS.get())


def _make_way(seat: _Seat, blueprint: Blueprint, busy: Busy) -> None:
    if busy == "reject":
        raise AgentBusy("a turn is running", agent=blueprint.agent.agent_id, busy=busy)
    if busy == "interrupt" and seat.active is not None:
        seat.active.cancel()


# One session hosted by one call, or by one `async with agent`: the fewest actors that are still supervised.
#
# root, rest_for_one
# |- tools NAME      one per tool server
# |- writer          only when the session is stored
# |- memory NAME     one per memory store
# |- persister
# |- conversation
# |- agent
# |- memory          only when there are memory stores
# `- keeper          only when the store is to be tended

_SETTINGS = SystemSettings(
    phases=(Phase(name="commit", timeout_s=20.0, reserve_s=5.0, stops_actors=True),),
    supervision=SupervisorSettings(strategy=Strategy.REST_FOR_ONE),
    on_fatal=lambda error: None,  # Callers learn of it from their asks; the block around them is theirs.
)


@asynccontextmanager
async def lone_session(
    blueprint: Blueprint, *, closes_model: bool, deadline: float = math.inf
) -> AsyncGenerator[ActiveSession]:
    """The session, alive for as long as the block; then everything is committed and nothing is left running.

    `deadline`: that of the call, for what is to be done at the end, as `finish` takes it.

    Errors: what opening it met (`SessionBusy`, `AgentBusy`, `Corrupt`, `Unavailable`, `Invalid`); at its end
    `Unavailable` when turns that were answered could not be stored.
    """
    blueprint.claim.take(blueprint.agent.agent_id)
    store: SessionStore | None = None
    backlogs = Backlogs(blueprint.patience or DEFAULT_PATIENCE)
    try:
        store = blueprint.sessions.open_store() if blueprint.sessions is not None else None
        async with ActorSystem(_SETTINGS) as system:
            session = await _start(system, blueprint, store, backlogs)
            blueprint.claim.holds(session)
            if blueprint.opened is not None:
                blueprint.opened(session)
            try:
                yield session
            finally:
                # The caller may have been cancelled, which has cancelled its turn: that ends with a valid history.
                with anyio.CancelScope(shield=True):
                    await finish(session, deadline)
        _check_stored(backlogs)
    finally:
        blueprint.claim.give_up()
        with anyio.CancelScope(shield=True):
            if store is not None:
                await store.aclose()
            if closes_model:
                await blueprint.parts.model.aclose()


def _check_stored(backlogs: Backlogs) -> None:
    """Callers of turns that were not answered know of it."""
    for told in backlogs.not_stored():
        if told.answered:
            text = "a turn that was answered could not be stored, and is lost"
            lost = {"session": told.session_id, "turns": told.turns, "records": told.records}
            raise StoreUnavailable(text, **lost, cause=told.error)


async def _start(
    system: ActorSystem, blueprint: Blueprint, store: SessionStore | None, backlogs: Backlogs
) -> ActiveSession:
    try:
        links = await ToolServers(system).enter_all(blueprint.parts.tools.sources, [])
        blueprint.parts.tools = blueprint.parts.tools.opened(links)
        keeper = blueprint.memory if store is None else await _durable(system, store, backlogs)
        memories = await OpenMemories(system).enter(blueprint.remembers)
        specs = await assemble(blueprint, keeper, memories)
        refs: dict[str, ActorRef[Any]] = {spec.name: await system.start(spec) for spec in specs}
        keeping = keeper_spec(store, "keeper") if store is not None else None
        if keeping is not None:
            await system.start(keeping)
    except StartFailed as error:
        raise reason_of(error) from error
    return active_session(blueprint.parts, refs["agent"], refs)


async def _durable(system: ActorSystem, store: SessionStore, backlogs: Backlogs) -> Durable:
    writer: ActorRef[object] = await system.start(
        ChildSpec(name="writer", factory=lambda: StoreWriter(store, WriterSettings()))
    )
    leases = Leases(store, busy_s=backlogs.patience.busy_s)
    return Durable(store=store, leases=leases, writer=writer, backlogs=backlogs)
