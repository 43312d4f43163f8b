"""What is done for owned sessions in the background: signs of life, heads, chunks."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

import anyio

from repertory.backends.sessions.object_erasing import finish_erasing
from repertory.backends.sessions.object_merging import merge, merge_due
from repertory.backends.sessions.object_owners import Owners
from repertory.backends.sessions.object_ownership import OwnedSession
from repertory.errors import LeaseLost, RepertoryError, Retryable

_RETRY_S = 5.0
"""How long to wait after an error before a session is tidied again."""


class Tending:
    """Tends the sessions in `owned`, whichever they are at the time."""

    def __init__(self, owned: Mapping[str, OwnedSession], owners: Owners) -> None:
        self._owned = owned
        self._owners = owners
        self._due: dict[OwnedSession, float] = {}
        """What to tidy, and not before when."""
        self._work = anyio.Event()
        self._tidying: dict[OwnedSession, anyio.CancelScope] = {}
        self._locks: dict[OwnedSession, anyio.Lock] = {}

    async def run(self) -> None:
        """Tend until cancelled."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._tidy_all)
            if self._owners.renew_every_s is not None:
                tasks.start_soon(self._renew_all, self._owners.renew_every_s)

    def look_at(self, session: OwnedSession) -> None:
        """Something has changed: see soon whether there is anything to do."""
        if session not in self._due and session.lost is None and _is_due(session):
            self._due[session] = 0.0
            self._work.set()

    async def stop(self, session: OwnedSession) -> None:
        """Break off whatever is being tidied in a session."""
        self._due.pop(session, None)
        async with self._exclusive(session):
            self._locks.pop(session, None)

    async def finish_erasing(self, session: OwnedSession) -> None:
        """Destroy what is to be erased, now. Errors: see `object_erasing`."""
        async with self._exclusive(session):
            if session.erasing:
                await finish_erasing(session)

    def _exclusive(self, session: OwnedSession) -> anyio.Lock:
        """The lock of who changes objects that were written before; merging gives way."""
        scope = self._tidying.get(session)
        if scope is not None:
            scope.cancel()
        return self._locks.setdefault(session, anyio.Lock())

    async def _renew_all(self, every_s: float) -> None:
        """Sessions that are written to need nothing more: writing is a sign of life."""
        while True:
            async with anyio.create_task_group() as tasks:
                for session in list(self._owned.values()):
                    if anyio.current_time() - session.signed_at >= every_s:
                        tasks.start_soon(self._renew, session)
            now = anyio.current_time()
            wait_s = min((session.signed_at + every_s - now for session in self._owned.values()), default=every_s)
            await anyio.sleep(max(wait_s, every_s / 10))

    async def _renew(self, session: OwnedSession) -> None:
        """What cannot be renewed is lost, or tried again in time. Idle sessions alone are asked for by others."""
        if session.lost is None:
            with suppress(RepertoryError):
                await session.renew()
                if await self._owners.asked_now(session.lease.owner, session.keys, session.requests):
                    session.note_wish()

    async def _tidy_all(self) -> None:
        while True:
            now = anyio.current_time()
            ready = [session for session, not_before in self._due.items() if not_before <= now]
            for session in ready:
                await self._tidy(session)
            wait_s = min((at - anyio.current_time() for at in self._due.values()), default=None)
            if wait_s is None or wait_s > 0:
                self._work = anyio.Event()
                with anyio.move_on_after(wait_s):
                    await self._work.wait()

    async def _tidy(self, session: OwnedSession) -> None:
        self._due.pop(session, None)
        lock = self._locks.setdefault(session, anyio.Lock())
        with anyio.CancelScope() as scope:
            self._tidying[session] = scope
            try:
                async with lock:
                    await _tidy(session)
            except LeaseLost:
                return
            except Retryable:
                self._due[session] = anyio.current_time() + _RETRY_S
            except RepertoryError:
                session.tidy = False  # Whoever reads the session is told; going on is not for us.
            finally:
                self._tidying.pop(session, None)


def _is_due(session: OwnedSession) -> bool:
    return session.tidy and bool(session.erasing or session.head_due or merge_due(session))


async def _tidy(session: OwnedSession) -> None:
    if session.erasing:
        await finish_erasing(session)
    if session.head_due:
        await session.refresh()
    while session.lost is None and merge_due(session):
        await merge(session)
