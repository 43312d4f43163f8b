"""A memory database from its first use to its closing, with the thread that owns it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from repertory.backends.owning_thread import OwningThread
from repertory.forking import forget_in_children

if TYPE_CHECKING:
    from repertory.backends.memory.sqlite.database import MemoryDatabase

T = TypeVar("T")


class OpenedOnce:
    """Opens the database when it is first needed, in each process; once closed, it stays so."""

    def __init__(self, path: Path, scope: str, *, busy_timeout_s: float) -> None:
        self._path = path
        self._scope = scope
        self._busy_timeout_s = busy_timeout_s
        self._thread = OwningThread(f"repertory {path.name}")
        self._database: MemoryDatabase | None = None
        forget_in_children(self)

    def forget_parent(self) -> None:
        """In a forked child: the next use opens the database anew."""
        self._database = None

    async def run(self, work: Callable[[MemoryDatabase], T]) -> T:
        """What `work` returned or raised. The database is created when it is not there."""
        return await self._thread.run(lambda: work(self._open()), after=self._tidy)

    async def run_if_there(self, work: Callable[[MemoryDatabase], T], otherwise: T) -> T:
        """The same for what creates nothing."""
        return await self._thread.run(lambda: work(self._open()) if self._is_there() else otherwise, after=self._tidy)

    async def aclose(self) -> None:
        """Do what was asked for before, then close the file and end the thread."""
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
