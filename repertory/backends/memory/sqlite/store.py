"""Agents' memory in one SQLite database: the embedded default, without a model or a service.

Durability: every write returns after an fsync. Any number of processes on one machine may share a database; it must lie
on a local disk, as SQLite requires. A forked child opens the database again.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from repertory.backends.memory.ranked import EntrySource, MemorySettings, MemoryTables, RankedMemory
from repertory.backends.owning_thread import OwningThread
from repertory.forking import forget_in_children

if TYPE_CHECKING:
    from repertory.backends.memory.sqlite.database import MemoryDatabase
    from repertory.backends.memory.vectors import Pending
    from repertory.core.memory.options import MemoryEntry
    from repertory.core.recall.candidates import Query
    from repertory.core.recall.entries import Saying

T = TypeVar("T")


class OpenedOnce(MemoryTables):
    """Opens the database at its first use in each process; once closed, it stays closed."""

    def __init__(self, path: Path, scope: str, *, busy_timeout_s: float) -> None:
        self._path = path
        self._scope = scope
        self._busy_timeout_s = busy_timeout_s
        self._thread = OwningThread(f"repertory {path.name}")
        self._database: MemoryDatabase | None = None
        forget_in_children(self)

    def forget_parent(self) -> None:
        """Forget the database, in a forked child: the next use opens it again."""
        self._database = None

    async def run(self, work: Callable[[MemoryDatabase], T]) -> T:
        """The result or the exception of `work`. Creates the database if needed."""
        return await self._thread.run(lambda: work(self._open()), after=self._tidy)

    async def run_if_there(self, work: Callable[[MemoryDatabase], T], otherwise: T) -> T:
        """The same without creating the database; `otherwise` if there is none."""
        return await self._thread.run(lambda: work(self._open()) if self._is_there() else otherwise, after=self._tidy)

    async def add_turns(self, turns: Sequence[Saying], key: str | None, *, now: float) -> int:
        return len(await self.run(lambda database: database.add_turns(turns, key, now=now)))

    async def add(self, saying: Saying, sources: Sequence[EntrySource], key: str | None, *, now: float) -> str | None:
        return await self.run(lambda database: database.add(saying, sources, key, now=now))

    async def supersede(
        self, old: str, saying: Saying, sources: Sequence[EntrySource], key: str | None, *, now: float
    ) -> str | None:
        return await self.run(lambda database: database.supersede(old, saying, sources, key, now=now))

    async def forget(self, memory_id: str) -> int:
        return await self.run_if_there(lambda database: database.forget(memory_id), 0)

    async def forget_messages(self, session_id: str, agent_id: str | None, seq: int | None) -> int:
        return await self.run_if_there(lambda database: database.forget_messages(session_id, agent_id, seq), 0)

    async def search(self, query: Query, vector: bytes | None) -> list[MemoryEntry]:
        return await self.run_if_there(lambda database: database.search(query, vector), [])

    async def page(self, after: int, limit: int) -> list[tuple[int, MemoryEntry]]:
        return await self.run_if_there(lambda database: database.page(after, limit), [])

    async def claim(self, name: str, dimensions: int, *, anew: bool) -> bool:
        def claim(database: MemoryDatabase) -> bool:
            database.claim_vectors(name, dimensions, anew=anew)
            return True

        return await self.run_if_there(claim, False)

    async def pending(self, limit: int) -> list[Pending]:
        return await self.run_if_there(lambda database: database.pending_vectors(limit), [])

    async def packed(self, vectors: Sequence[Sequence[float]], texts: int, dimensions: int) -> list[bytes]:
        """Pack vectors on the database's thread, where numpy is loaded."""
        return await self.run_if_there(
            lambda database: database.packed_vectors(vectors, texts, dimensions), [b""] * texts
        )

    async def store(self, made: Sequence[tuple[int, bytes]]) -> None:
        await self.run(lambda database: database.store_vectors(made))

    async def rest(self) -> None:
        """Do nothing: the file has a thread of its own, and nothing belongs to that loop."""

    async def aclose(self) -> None:
        """Finish the work handed over before, then close the file and end the thread."""
        await self._thread.aclose(self._close)

    # On the thread.

    def _is_there(self) -> bool:
        return self._database is not None or os.path.lexists(self._path)

    def _open(self) -> MemoryDatabase:
        if self._database is None:
            from repertory.backends.memory.sqlite.database import MemoryDatabase  # loads sqlite3, with the first use

            self._database = MemoryDatabase(self._path, self._scope, busy_timeout_s=self._busy_timeout_s)
        return self._database

    def _tidy(self) -> None:
        if self._database is not None:
            self._database.tidy()

    def _close(self) -> None:
        database, self._database = self._database, None
        if database is not None:
            database.close()


class SQLiteMemory(RankedMemory):
    """A memory store in a file. May be used from several event loops and threads at once.

    Nothing is created before the first write. Cancellation: a write that has begun is waited for. Errors of every call:
    `Unavailable` (locked for too long, disk full, no access: try again), `Corrupt` (not a memory database, damaged, or
    made by another release: nothing was changed), `Invalid` (symbolic link, bad arguments). All name the path.
    """

    def __init__(
        self, path: Path, settings: MemorySettings, *, clock: Callable[[], float], busy_timeout_s: float = 5.0
    ) -> None:
        """`clock` gives epoch seconds."""

        def opened() -> OpenedOnce:
            return OpenedOnce(path, settings.scope, busy_timeout_s=busy_timeout_s)

        super().__init__(settings, opened, clock=clock, label=path.name)
        self._path = path

    @property
    def path(self) -> Path:
        """The database file."""
        return self._path
