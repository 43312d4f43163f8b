"""The doorman of a runtime with peers: how many turns run at the same time, and who waits.

Calls of one session take one place together, since their turns run one after the other. Whoever finds no place waits,
and tenants take turns; beyond the queue's bound calls are refused, so memory stays flat and those that wait are served
in time. A tenant with less than its share of the calls is not refused because of others.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

import anyio
from msgspec import Struct, field

from repertory.app.host.turn_gate import SHUTS_DOWN
from repertory.core.fair_turns import Rounds
from repertory.core.tenants import tenant_part
from repertory.errors import AgentBusy, Throttled, Unavailable

_FIRST_S = 1.0
"""Seconds that a turn is taken to last before any has ended."""
_RETRY_S = (0.1, 30.0)


class NoRoom(Throttled):
    """The queue is full."""


class _Waiting(Struct, eq=False):
    session_id: str
    admitted: anyio.Event = field(default_factory=anyio.Event)
    refused: bool = False


class AdmissionQueue:
    """Admits calls. For one event loop."""

    def __init__(self, room: int, queue: int | None, held: Callable[[], int] = lambda: 0) -> None:
        """`room`: sessions that run turns at the same time; `queue`: calls that wait; None: as many.
        `held`: the number of those inside that wait for their tenants' limits, and take no place.
        """
        self.room = room
        self._queue_max = room if queue is None else queue
        self._held = held
        self._inside: dict[str, int] = {}
        """Session to its calls that have its place together."""
        self._queue: Rounds[_Waiting] = Rounds()
        self._calls = Counter[str]()
        """The number of calls inside or in the queue, by tenant."""
        self._turn_s = _FIRST_S
        self.closed = False

    @property
    def busy(self) -> int:
        """The number of places that are taken, and of calls that wait for one."""
        return self.inside + self.waiting

    @property
    def inside(self) -> int:
        """The number of places that are taken."""
        return len(self._inside)

    @property
    def waiting(self) -> int:
        """The number of calls that wait for a place."""
        return len(self._queue)

    def check(self, session_id: str = "", *, inner: bool = False) -> None:
        """`inner`: a turn that runs waits for the call. Errors: `NoRoom` when the queue is full; `Unavailable` when the
        runtime shuts down.
        """
        if self.closed:
            raise Unavailable(SHUTS_DOWN)
        if inner and self.room:
            return
        calls_max, own = self.room + self._queue_max, self._calls[tenant_part(session_id)]
        if self._calls.total() >= calls_max and own >= calls_max // (len(self._calls) + 1):
            least, most = _RETRY_S
            wait_s = min(max(self._turn_s * max(len(self._queue), 1) / max(self.room, 1), least), most)
            raise NoRoom("the runtime has no room for this call", retry_after_s=wait_s, room=self.room)

    @asynccontextmanager
    async def place(self, session_id: str, by: float = math.inf, *, inner: bool = False) -> AsyncGenerator[None]:
        """A place in the block, after waiting for it until `by`, of the event loop's clock. An `inner` call has one at
        once, beyond the others: the turn that waits for it may have the last one. Errors: those of `check`, also while
        it waits; `AgentBusy` when the time is over.
        """
        self.check(session_id, inner=inner)
        tenant = tenant_part(session_id)
        self._calls[tenant] += 1
        try:
            self._let_in()  # Those inside may have begun to wait since.
            if not inner and session_id not in self._inside and (self._queue or not self._has_room):
                await self._wait(tenant, session_id, by)
            else:
                self._inside[session_id] = self._inside.get(session_id, 0) + 1
            began = anyio.current_time()
            try:
                yield
            finally:
                self._turn_s += (anyio.current_time() - began - self._turn_s) / 16
                self._leave(session_id)
        finally:
            self._calls[tenant] -= 1
            if not self._calls[tenant]:
                del self._calls[tenant]

    def close(self) -> None:
        """Refuse everybody from now on, also those that wait: other peers have room."""
        self.closed = True
        while (waiting := self._queue.first) is not None:
            self._queue.pop()
            waiting.refused = True
            waiting.admitted.set()

    async def _wait(self, tenant: str, session_id: str, by: float) -> None:
        waiting = _Waiting(session_id)
        self._queue.add(tenant, waiting)
        try:
            with anyio.CancelScope(deadline=by):
                await waiting.admitted.wait()
            if not waiting.admitted.is_set():
                raise AgentBusy("other sessions took all the time of this call", session=session_id, room=self.room)
        except BaseException:
            if waiting.admitted.is_set() and not waiting.refused:
                self._leave(session_id)
            elif not waiting.refused:
                self._queue.remove(tenant, waiting)
            raise
        if waiting.refused:
            raise Unavailable(SHUTS_DOWN)

    def _leave(self, session_id: str) -> None:
        self._inside[session_id] -= 1
        if not self._inside[session_id]:
            del self._inside[session_id]
        self._let_in()

    @property
    def _has_room(self) -> bool:
        return len(self._inside) - min(self._held(), self._queue_max) < self.room

    def _let_in(self) -> None:
        while (waiting := self._queue.first) is not None and (waiting.session_id in self._inside or self._has_room):
            self._queue.pop()
            self._inside[waiting.session_id] = self._inside.get(waiting.session_id, 0) + 1
            waiting.admitted.set()


_INSISTS_S, _INSISTS_MAX_S = 0.2, 10.0
_ASKED_MAX = 10_000


class RepeatedRequests:
    """Tells a request for a session that is meant from the others. Peers that meet while they open a session ask for it
    once, and then call its owner; a process that is no peer asks again and again.
    """

    def __init__(self) -> None:
        self._first: dict[str, float] = {}

    def insists(self, session_id: str) -> bool:
        """Note a request. True if it comes a while after another one for the same session."""
        now = anyio.current_time()
        first = self._first.setdefault(session_id, now)
        if now - first > _INSISTS_MAX_S:
            first = self._first[session_id] = now
        if len(self._first) > _ASKED_MAX:
            self._first = {session_id: first}
        return now - first > _INSISTS_S
