"""The dispatcher of a runtime: does what nobody waits for. It wakes sessions with pending work, and makes posted calls.

State: how many sessions it wakes now. Fails: by a bug of its own alone, and is started again; what it had claimed is
due again later. Pace: one look a second, longer while the store fails, and one as soon as there is room again while
more is due. Supervised by the root.
`docs/design/pending-work.md` says why.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import anyio
from msgspec import Struct

from repertory.actors.background import Background
from repertory.actors.call import background_work
from repertory.app.host.admission import NoRoom
from repertory.backends.ports import SessionStore, WorkQuery, call_queue_of
from repertory.core.admission import next_claims
from repertory.core.retry import foreign_errors
from repertory.core.tenants import tenant_part
from repertory.core.turns.due_times import AGAIN_S, GRACE_S
from repertory.errors import RepertoryError, Retryable, Throttled
from repertory.logs import DEBUG, WARNING, note
from repertory.runtime.actor import Actor
from repertory.runtime.message import Next, carry_on
from repertory.runtime.spec import ChildSpec

if TYPE_CHECKING:
    from repertory.backends.peer_ports import CallQueue, QueuedCall
    from repertory.core.pending_work import PendingWork, StalledAgent

LOOK_S = 1.0
"""The mean time between two looks, in seconds. Each is a little earlier or later, so that processes do not look at the
same moment.
"""
_GIVE_BACK_S = 1.0
"""Seconds that an ending dispatcher takes at most to give a call back."""
_WAIT_MAX_S = 86_400.0
"""The longest wait that a call queue is asked for."""


class LookForDue(Struct, frozen=True, kw_only=True):
    """Look for work that is due."""


class RecoveryHooks(Struct, frozen=True, kw_only=True):
    """The functions by which a dispatcher wakes agents and makes posted calls in a runtime."""

    wake: Callable[[PendingWork], Awaitable[None]]
    """Does the work. Errors that it raises are logged; work that is still pending then is due again later."""
    call: Callable[[QueuedCall], Awaitable[None]]
    """Makes a posted call. It is tried again after errors that may go away, and parked after others."""
    agents: Callable[[], Collection[str]]
    """The agents that the runtime has, and the journals of its graphs and swarms."""
    takes_calls: Callable[[], Collection[str]]
    """The names of what posted calls are made to: of its agents, graphs and swarms."""
    stalled: Callable[[float], Awaitable[Collection[StalledAgent]]]
    """The agents of sessions that have been active in this process for so many seconds, and whose turn was cut short
    before and is not worked on.
    """
    room: int
    """Sessions that are woken at the same time at most."""
    waiting: Callable[[str], int] = lambda tenant: 0
    """The number of turns of a tenant that wait for its limits."""


class Dispatcher(Actor[LookForDue]):
    """Claims what is due in one store."""

    def __init__(
        self, store: SessionStore, recovery: RecoveryHooks, wall: Callable[[], float], refusing: Callable[[], bool]
    ) -> None:
        """`wall` gives epoch seconds. `refusing` is true while the runtime shuts down."""
        self._store = store
        self._queue = call_queue_of(store)
        self._recovery = recovery
        self._wall = wall
        self._refusing = refusing
        self._awake = Counter[str]()
        """The number of sessions that are woken, and of calls that are made, at this moment, by tenant."""
        self._rests_until = -math.inf
        """The time until which no posted calls are taken, on the event loop's clock."""
        self._more = False
        """True if the last look found as much as there was room for."""
        self._reading_due: Background
        self._taking: Background

    def summary(self) -> object:
        return {"store": self._store.name, "awake": self._awake.total(), "room": self._recovery.room}

    async def on_start(self) -> None:
        where = {"store": self._store.name}
        self._reading_due = Background(self.context, "pending work cannot be read", where)
        self._taking = Background(self.context, "posted calls cannot be taken", where)

    async def on_ready(self) -> None:
        self.context.self_ref.tell(LookForDue())

    async def handle(self, message: LookForDue) -> Next:
        begun = 0
        limit, claims = next_claims(self._awake, self._recovery.waiting, self._recovery.room)
        for passing in claims if self._recovery.agents() else ():
            if not self._refusing():
                begun += await self._begin(limit - begun, passing)
                # There may be more than was taken: look again as soon as one has ended, and not after a second.
                self._more = begun == limit
            if self._more:
                break
        # With chance in it: processes that were started together would all look in the same moment.
        look_s = LOOK_S * self.context.rng.uniform(0.8, 1.2)
        self.context.after(max(look_s, self._reading_due.pause_s, self._taking.pause_s), LookForDue(), key="look")
        return carry_on()

    async def _begin(self, room: int, passing: Collection[str]) -> int:
        """Begin what is due. Returns how much."""
        # After a failure it takes nothing: the next look finds what is due.
        due = await self._reading_due.attempt(partial(self._claim_due, room, passing), ())
        calls = await self._taking.attempt(partial(self._calls, room - len(due), passing), ())
        for work in due:
            self._awake[tenant_part(work.session_id)] += 1
            self.context.job(self._wake, work, name=f"wake {work.session_id}")
        for call in calls:
            self._awake[tenant_part(call.session_id)] += 1
            self.context.job(self._call, call, name=f"posted call {call.session_id}")
        return len(due) + len(calls)

    async def _claim_due(self, room: int, passing: Collection[str]) -> Collection[PendingWork]:
        stalled = await self._recovery.stalled(GRACE_S)
        if (waking := self._store.capabilities.waking) is None:
            return ()
        query = WorkQuery(self._wall(), room, self._recovery.agents(), stalled, passing)
        return await waking.claim_due(query)

    async def _calls(self, room: int, passing: Collection[str]) -> Sequence[QueuedCall]:
        if self._queue is None or room <= 0 or self.context.clock() < self._rests_until:
            return ()
        return await self._queue.take(room, self._recovery.takes_calls(), passing)

    async def _call(self, call: QueuedCall) -> None:
        """Make the call, and tell the store of its end as soon as it listens. Until then it stays this owner's, and
        other calls of its session wait. When the owner ends it is given to others: the same token does nothing twice.
        """
        assert self._queue is not None
        ids = {"session": call.session_id, "agent": call.agent_id, "token": call.token}
        try:
            tell_store = await self._outcome(self._queue, call, ids)
        except anyio.get_cancelled_exc_class():
            # Bounded, since the process ends now. If the store does not hear it, others take the call when this owner
            # is dead.
            with anyio.move_on_after(_GIVE_BACK_S, shield=True), suppress(RepertoryError):
                await self._queue.again(call, 0.0, "its process was shut down")
            raise
        finally:
            self._ended(call.session_id)
        await Background(self.context, "the end of a posted call cannot be stored", ids).keep(tell_store)

    async def _outcome(self, to: CallQueue, call: QueuedCall, ids: Mapping[str, str]) -> Callable[[], Awaitable[None]]:
        """Make the call. Returns what tells the store of its end."""
        try:
            with foreign_errors(), background_work(again=True):
                await self._recovery.call(call)
        except Retryable as error:
            wait_s = error.retry_after_s if isinstance(error, Throttled) else None
            if isinstance(error, NoRoom):  # Others look meanwhile: it may be meant for one of them.
                self._rests_until = self.context.clock() + 2 * LOOK_S
            # Refused by this runtime's own drain, it is for the next one that starts, at once.
            after_s = 0.0 if self._refusing() else AGAIN_S if wait_s is None else min(wait_s, _WAIT_MAX_S)
            return partial(to.again, call, after_s, str(error))
        except RepertoryError as error:
            note(self.context.logger, WARNING, "a posted call failed", error, **ids)
            return partial(to.again, call, AGAIN_S, str(error), park=True)
        return partial(to.done, [call])

    async def _wake(self, work: PendingWork) -> None:
        ids = {"session": work.session_id, "agent": work.agent_id}
        note(self.context.logger, DEBUG, "a session is woken", why=work.why, **ids)
        try:
            with foreign_errors(), background_work(again=True):
                await self._recovery.wake(work)
        except RepertoryError as error:
            note(self.context.logger, WARNING, "pending work could not be done", error, why=work.why, **ids)
        finally:
            self._ended(work.session_id)

    def _ended(self, session_id: str) -> None:
        self._awake -= Counter((tenant_part(session_id),))  # It keeps no zeros.
        if self._more:
            self._more = False
            self.context.self_ref.tell(LookForDue())


def dispatcher_spec(
    store: SessionStore, recovery: RecoveryHooks, wall: Callable[[], float], refusing: Callable[[], bool]
) -> ChildSpec:
    return ChildSpec(name="dispatcher", factory=lambda: Dispatcher(store, recovery, wall, refusing))
