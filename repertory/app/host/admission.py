"""The queue of calls at an entrance: it carries out what `core/admission.py` decides, and every entrance has one.

It has no task: those that wait carry the decisions out, and one of them watches the time for all. For one event loop.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import anyio
from msgspec import Struct

from repertory.core.admission import Admission, Bounds, NotAdmitted
from repertory.core.tenants import tenant_part
from repertory.errors import AgentBusy, Throttled, Unavailable

NOT_OPEN = "the runtime is not open: `async with Runtime() as runtime`, or `FastAPI(lifespan=runtime.lifespan)`"
SHUTS_DOWN = "the runtime is shutting down"
HAS_ENDED = "the runtime has ended: enter it again, or make another one"


class NoRoom(Throttled):
    """The runtime has as many calls as it takes: another one is asked."""


def too_many_turns(refusal: NotAdmitted) -> Throttled:
    """The error for a turn of a tenant whose turns wait already."""
    text = "too many turns of this tenant wait"
    return Throttled(text, retry_after_s=refusal.retry_after_s, limit=refusal.what)


def no_room(refusal: NotAdmitted) -> NoRoom:
    """The error for a call that another runtime may have room for."""
    return NoRoom("the runtime has no room for this call", retry_after_s=refusal.retry_after_s)


class _Call(Struct, eq=False):
    tenant: str
    session: str | None
    """The session with whose calls it shares a place; None for a place of its own."""
    inner: bool
    began: float = math.inf
    """The time at which it began, on the event loop's clock; infinity while it waits."""
    woken: anyio.Event | None = None


class AdmissionQueue(Struct, eq=False):
    """The calls at one entrance, which is open to all until it has limits."""

    refused: Callable[[NotAdmitted], Exception] = too_many_turns
    """The error of this entrance for a refusal."""
    held: Callable[[], int] = int
    """The number of those inside that wait for their tenants' limits, and take no place; `int` gives 0."""
    limited: bool = False
    """True if calls are counted."""
    closed: bool = False
    _admission: Admission[_Call] | None = None
    _asleep: dict[_Call, None] = {}
    _watcher: _Call | None = None
    """The one among them that wakes when the next call may begin by its tenant's rate."""
    _watched_s: float = math.inf
    """The time of that, on the event loop's clock."""

    def limit(self, bounds: Bounds) -> None:
        """Count the calls that come from now on, in the place of earlier bounds."""
        self.limited = True
        if self._admission is None:
            self._admission = Admission(bounds)
        self._admission.bounds = bounds

    @property
    def room(self) -> int:
        """The number of places."""
        return 0 if self._admission is None else self._admission.bounds.at_once

    @property
    def inside(self) -> int:
        """The number of places that are taken."""
        return 0 if self._admission is None else self._admission.running

    @property
    def waiting(self) -> int:
        """The number of calls that wait."""
        return 0 if self._admission is None else self._admission.waiting

    @property
    def busy(self) -> int:
        """The number of places that are taken, and of calls that wait for one."""
        return self.inside + self.waiting

    def waiting_of(self, tenant: str) -> int:
        """The number of calls of a tenant that wait. `tenant`: see `tenant_part`."""
        return 0 if self._admission is None else self._admission.waiting_of(tenant)

    def close(self) -> None:
        """Refuse those that wait, and those that would have to: the runtime shuts down, and others may have room."""
        self.closed = True
        self._wake(*self._asleep)

    def check(self, session_id: str) -> None:
        """Return if a call may come. Errors: those of `enter` that need no waiting."""
        if self.closed:
            raise Unavailable(SHUTS_DOWN)
        refusal = None if self._admission is None else self._admission.full(tenant_part(session_id))
        if refusal is not None:
            raise self.refused(refusal)

    async def enter(
        self, session_id: str, by: float = math.inf, *, inner: bool = False, tenant: str | None = None
    ) -> Callable[[bool], None]:
        """Return when a call of this session may begin; to be followed by a call of the result, with True if it did
        nothing.

        Args:
            session_id: The stored id of the session, which says whose it is.
            by: The latest time until which it waits, on the event loop's clock.
            inner: True for a call that a running one waits for: it begins at once.
            tenant: The tenant, where there is no session.

        Errors: that of `refused` beyond the bounds; `AgentBusy` when the time is over; `Unavailable` once it is closed.
        """
        admission = self._admission
        if admission is None:
            return lambda unused: None
        if admission.waiting:
            self._admit(admission)  # The time of some may have come, and others may be held since.
        tenant = tenant_part(session_id) if tenant is None else tenant
        call, now = _Call(tenant, session_id if admission.bounds.by_session else None, inner), anyio.current_time()
        position = admission.ask(call, tenant, now, session=call.session, inner=inner, held=self.held())
        if isinstance(position, NotAdmitted):
            raise self.refused(position)
        if position:
            await self._wait(admission, call, session_id, by)
        else:
            call.began = now
        return partial(self._leave, admission, call)

    async def _wait(self, admission: Admission[_Call], call: _Call, session_id: str, by: float) -> None:
        self._asleep[call] = None
        try:
            while call.began == math.inf:
                if self.closed:
                    raise Unavailable(SHUTS_DOWN)
                if by <= anyio.current_time():
                    raise AgentBusy("other sessions took all the time of this call", session=session_id, room=self.room)
                # A new one for each wait: anyio's events cannot be cleared.
                call.woken = anyio.Event()
                self._watcher = self._watcher or call
                until = by
                if self._watcher is call:
                    self._watched_s = admission.next_at
                    until = min(by, self._watched_s)
                with anyio.CancelScope(deadline=until):
                    await call.woken.wait()
                self._admit(admission)
        except BaseException:
            # It was admitted in the moment in which it was cancelled: its place must be free for the next one.
            if call.began < math.inf:
                self._leave(admission, call, True)
            else:
                admission.withdraw(call, call.tenant)
            raise
        finally:
            del self._asleep[call]
            if self._watcher in (None, call):  # None: it was woken to watch, and may begin itself.
                self._watcher = None
                self._wake(*([next(iter(self._asleep))] if self._asleep else ()))

    def _leave(self, admission: Admission[_Call], call: _Call, unused: bool) -> None:
        lasted_s = anyio.current_time() - call.began
        admission.leave(call.tenant, session=call.session, inner=call.inner, lasted_s=lasted_s, unused=unused)
        if admission.waiting:
            self._admit(admission)

    def _admit(self, admission: Admission[_Call]) -> None:
        now = anyio.current_time()
        for call in admission.admit(now, self.held()):
            call.began = now
            self._wake(call)
        if self._watcher is not None and admission.next_at < self._watched_s:
            self._wake(self._watcher)

    @staticmethod
    def _wake(*those: _Call) -> None:
        for call in those:
            if call.woken is not None:
                call.woken.set()
