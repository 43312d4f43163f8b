"""The gate of a host: every turn of its sessions passes it, and waits there for its tenant's turn in the round.

It has no task: those that wait carry out what `core/fair_turns.py` decides, and one of them watches the time for
all. For one event loop.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

import anyio
from msgspec import Struct

from repertory.core.fair_turns import FairTurns
from repertory.core.tenants import tenant_part
from repertory.errors import Throttled, Unavailable

if TYPE_CHECKING:
    from repertory.core.admission import ServiceLimits

NOT_OPEN = "the runtime is not open: `async with Runtime() as runtime`, or `FastAPI(lifespan=runtime.lifespan)`"
SHUTS_DOWN = "the runtime is shutting down"
HAS_ENDED = "the runtime has ended: enter it again, or make another one"


class _Waiting(Struct, eq=False):
    begun: bool = False
    woken: anyio.Event | None = None


class TurnGate:
    """The gate of a host's turns: open until it has limits."""

    limited = False
    """True if turns are counted."""
    _turns: FairTurns[_Waiting] | None = None
    _asleep: dict[_Waiting, None]
    _watcher: _Waiting | None = None
    """The one among them that wakes when the next turn may begin by its tenant's rate."""
    _watched_s = math.inf
    """The time of that, on the event loop's clock."""
    _closed = False

    def limit(self, limits: ServiceLimits) -> None:
        """Count the turns that begin from now on, in the place of earlier limits."""
        if not self.limited:
            self._asleep, self.limited = {}, True
        self._turns = FairTurns(limits)

    def waiting(self, tenant: str) -> int:
        """The number of turns of a tenant that wait. `tenant`: see `tenant_part`."""
        return 0 if self._turns is None else self._turns.waiting(tenant)

    def held(self) -> int:
        """The number of turns that wait."""
        return len(self._asleep) if self.limited else 0

    def close(self) -> None:
        """Refuse those that wait, and those that would have to: the runtime shuts down."""
        self._closed = True
        self._wake(*self._asleep)

    def open(self) -> None:
        """Take turns again, in a runtime that begins anew."""
        self._closed = False

    async def enter(self, session_id: str) -> Callable[[bool], None]:
        """Return when a turn of this session may begin; to be followed by a call of the result, with True if it did
        nothing. Errors: `Throttled` when too many turns of the tenant wait; `Unavailable` once it is closed.
        """
        turns, tenant, waiting = self._turns, tenant_part(session_id), _Waiting()
        if turns is None:
            return lambda unused: None  # Nobody counts.
        refusal = turns.ask(tenant, waiting, anyio.current_time())
        if refusal is not None:
            text = "too many turns of this tenant wait"
            raise Throttled(text, retry_after_s=refusal.retry_after_s, limit=refusal.what)
        self._admit(turns)
        if not waiting.begun:
            await self._wait(turns, tenant, waiting)
        return partial(self._leave, turns, tenant)

    @contextmanager
    def inner(self, session_id: str) -> Generator[None]:
        """The block is a turn that a running one waits for: it waits for nothing, and counts for its tenant."""
        turns, tenant = self._turns, tenant_part(session_id)
        if turns is None:
            yield
            return
        turns.begin_inner(tenant, anyio.current_time())
        try:
            yield
        finally:
            self._leave(turns, tenant, False, inner=True)

    async def _wait(self, turns: FairTurns[_Waiting], tenant: str, waiting: _Waiting) -> None:
        self._asleep[waiting] = None
        try:
            while not waiting.begun:
                if self._closed:
                    raise Unavailable(SHUTS_DOWN)
                waiting.woken = anyio.Event()
                self._watcher = self._watcher or waiting
                until = math.inf
                if self._watcher is waiting:
                    until = self._watched_s = turns.next_at
                with anyio.CancelScope(deadline=until):
                    await waiting.woken.wait()
                self._admit(turns)
        except BaseException:
            if waiting.begun:
                self._leave(turns, tenant, True)
            else:
                turns.withdraw(tenant, waiting)
            raise
        finally:
            del self._asleep[waiting]
            if self._watcher in (None, waiting):  # None: it was woken to watch, and may begin itself.
                self._watcher = None
                self._wake(*([next(iter(self._asleep))] if self._asleep else ()))

    def _leave(self, turns: FairTurns[_Waiting], tenant: str, unused: bool, *, inner: bool = False) -> None:
        turns.leave(tenant, unused=unused, inner=inner)
        self._admit(turns)

    def _admit(self, turns: FairTurns[_Waiting]) -> None:
        for waiting in turns.admit(anyio.current_time()):
            waiting.begun = True
            self._wake(waiting)
        if self._watcher is not None and turns.next_at < self._watched_s:
            self._wake(self._watcher)

    @staticmethod
    def _wake(*those: _Waiting) -> None:
        for waiting in those:
            if waiting.woken is not None:
                waiting.woken.set()
