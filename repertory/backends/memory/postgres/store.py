"""Agents' memory in PostgreSQL, which many processes on many machines may share: as callers see it.

What is said here needs no extra, so that an error can say which one is missing; `database.py` does.
"""

from __future__ import annotations

from collections.abc import Callable

from repertory.backends.memory.postgres.location import PostgresLocation
from repertory.backends.memory.ranked import MemorySettings, RankedMemory


class PostgresMemory(RankedMemory):
    """A memory store in PostgreSQL. May be used from several event loops and threads at once.

    Nothing is created before the first write. Cancellation: a write that has begun is waited for. Errors of every call:
    `StoreUnavailable` (not reached, restarting, out of time or resources: try again; of a write whose answer was lost
    nobody knows whether it was carried out), `StoreFailed` (password, rights, database, TLS, a replica, tables of
    another version: change what the message names), `Corrupt`, `Invalid` (bad arguments). They name host, port,
    database and user.
    """

    def __init__(self, location: PostgresLocation, settings: MemorySettings, *, clock: Callable[[], float]) -> None:
        """`clock` gives epoch seconds."""
        from repertory.backends.memory.postgres.database import PostgresTables  # loaded when used: libpq is an extra

        tables = PostgresTables(location, settings.scope)
        super().__init__(settings, lambda: tables, clock=clock, label="memory")
        self._location = location

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._location.name!r}, name={self.name!r})"
