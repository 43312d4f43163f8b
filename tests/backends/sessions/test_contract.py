"""Every session store keeps the contract, the fake one included."""

from __future__ import annotations

from pathlib import Path

import pytest

from repertory.backends.ports import SessionStore
from repertory.backends.sessions.sqlite.journals import Journals
from repertory.backends.sessions.sqlite.store import SQLiteSessionStore
from repertory.testing.crash_points import CrashingSessionStore, CrashPoints
from repertory.testing.faulty_sessions import FaultSettings, FaultySessionStore
from repertory.testing.in_memory_sessions import MemorySessionStore, SessionShelf
from repertory.testing.session_contract import SessionStoreContract


class _NoChance:
    def random(self) -> float:
        return 0.5


class TestMemorySessionStore(SessionStoreContract):
    @pytest.fixture(autouse=True)
    def shelves(self) -> None:
        self._shelves: dict[Path, SessionShelf] = {}

    def open_store(self, place: Path, owner: str) -> SessionStore:
        return MemorySessionStore(self._shelves.setdefault(place, SessionShelf()), owner=owner)


class TestFaultySessionStore(TestMemorySessionStore):
    """Without faults, the wrapper changes nothing."""

    def open_store(self, place: Path, owner: str) -> SessionStore:
        return FaultySessionStore(super().open_store(place, owner), _NoChance(), FaultSettings())


class TestCrashingSessionStore(TestMemorySessionStore):
    """Without a crash, the wrapper changes nothing."""

    def open_store(self, place: Path, owner: str) -> SessionStore:
        return CrashingSessionStore(super().open_store(place, owner), CrashPoints(None))


@pytest.mark.real_time
class TestSQLiteSessionStore(SessionStoreContract):
    def open_store(self, place: Path, owner: str) -> SessionStore:
        return SQLiteSessionStore(place / "home" / "sessions.db", owner=owner)

    async def work_done(self, store: SessionStore) -> int:
        """Steps of SQLite's machine, counted from the first call on, in tens."""
        assert isinstance(store, SQLiteSessionStore)
        self._steps: int

        def step() -> None:
            self._steps += 1

        def counted(journals: Journals) -> int:
            if not hasattr(self, "_steps"):
                self._steps = 0
                journals._connection.set_progress_handler(step, 10)
            return self._steps

        return await store.read(counted, 0)
