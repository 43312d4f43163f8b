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
from typing import TYPE_CHECKING

import anyio
from anyio.lowlevel import RunVar

from repertory.actors.caller_context import OPEN_TURNS
from repertory.actors.caller_context import deadline as caller_deadline
from repertory.app.host import Key, ambient_host
from repertory.app.lone_session import lone_session
from repertory.errors import AgentBusy

if TYPE_CHECKING:
    from repertory.actors.call import Busy
    from repertory.app.active_session import ActiveSession
    from repertory.app.blueprint import Blueprint


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
