"""Stores that runtimes share keep the contract of directories and call boxes, the fake one included."""

from __future__ import annotations

from pathlib import Path

import pytest

from repertory.backends.ports import SessionStore
from repertory.backends.sessions.sqlite.store import SQLiteSessionStore
from repertory.testing.in_memory_sessions import MemorySessionStore, SessionShelf
from repertory.testing.peer_contract import SharedStoreContract
from tests.backends.sessions.postgres_places import postgres_store


class TestMemoryShared(SharedStoreContract):
    @pytest.fixture(autouse=True)
    def shelves(self) -> None:
        self._shelves: dict[Path, SessionShelf] = {}

    def open_store(self, place: Path, owner: str) -> SessionStore:
        return MemorySessionStore(self._shelves.setdefault(place, SessionShelf()), owner=owner)


@pytest.mark.real_time
class TestSQLiteShared(SharedStoreContract):
    def open_store(self, place: Path, owner: str) -> SessionStore:
        return SQLiteSessionStore(place / "home" / "sessions.db", owner=owner)


@pytest.mark.usefixtures("postgres")
@pytest.mark.real_time
class TestPostgresShared(SharedStoreContract):
    def open_store(self, place: Path, owner: str) -> SessionStore:
        return postgres_store(place, owner)


@pytest.mark.usefixtures("postgres_tables")
@pytest.mark.real_time
class TestPooledPostgresShared(SharedStoreContract):
    """An owner without a connection of its own, which counts as alive for a while after its death."""

    def open_store(self, place: Path, owner: str) -> SessionStore:
        return postgres_store(place, owner, pooled=True, ttl_s=1.0)
