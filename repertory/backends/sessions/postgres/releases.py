"""Giving sessions up: those that are released while a release is on its way are the next one, in one statement."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import anyio
from msgspec import Struct

from repertory.backends.ports import Lease
from repertory.backends.postgres.pool import Pool
from repertory.backends.postgres.values import int8s, texts
from repertory.backends.sessions.postgres.presence import Presence
from repertory.backends.sessions.postgres.statements import Statements
from repertory.errors import RepertoryError

TOGETHER_MAX: Final = 1000


class _Release(Struct, eq=False):
    lease: Lease
    done: bool = False
    error: RepertoryError | None = None


class Releases:
    """The releases of one store. For one event loop."""

    def __init__(self, pool: Pool, statements: Statements, presence: Presence, owner: str) -> None:
        self._pool = pool
        self._statements = statements
        self._presence = presence
        self._owner = owner
        self._waiting: list[_Release] = []
        self._lock = anyio.Lock()

    async def release(self, lease: Lease) -> None:
        """Return when the session is free. The caller shields it. Errors: those of the database."""
        mine = _Release(lease)
        self._waiting.append(mine)
        # Those that wait for this lock are the next statement: a drain of 10,000 sessions takes ten.
        async with self._lock:
            if not mine.done:
                await self._release_some()
        if mine.error is not None:
            raise mine.error

    async def release_all(self, leases: Sequence[Lease]) -> None:
        """Return when these sessions are free, by one statement. The caller shields it. Errors: of the database."""
        names = [lease.session_id for lease in leases]
        given = texts(names), int8s([lease.generation for lease in leases]), self._owner
        once = len(leases) > TOGETHER_MAX  # A lasting plan is one for a few.
        await self._pool.run(self._statements.release, *given, once=once)
        await self._presence.freed(names)

    async def _release_some(self) -> None:
        some, self._waiting = self._waiting[:TOGETHER_MAX], self._waiting[TOGETHER_MAX:]
        error: RepertoryError | None = None
        try:
            await self.release_all([each.lease for each in some])
        except RepertoryError as raised:
            error = raised
        finally:
            for each in some:
                each.done, each.error = True, error
