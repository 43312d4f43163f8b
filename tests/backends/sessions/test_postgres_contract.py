"""Sessions in PostgreSQL: `PostgresSessionStore` keeps the contract of session stores."""

from __future__ import annotations

from pathlib import Path

import pytest

from repertory.backends.memory.postgres.remembering import RememberedSessions
from repertory.backends.ports import SessionStore
from repertory.testing.faulty_sessions import FaultSettings, FaultySessionStore
from repertory.testing.session_contract import SessionStoreContract
from tests.backends.sessions.postgres_places import postgres_store, schema_of


class _NoChance:
    def random(self) -> float:
        return 0.5


@pytest.mark.usefixtures("postgres")
@pytest.mark.real_time
class TestPostgresSessionStore(SessionStoreContract):
    """Each test begins without tables."""

    def open_store(self, place: Path, owner: str) -> SessionStore:
        return postgres_store(place, owner)


@pytest.mark.usefixtures("postgres_tables")
@pytest.mark.real_time
class TestFaultyPostgresSessionStore(SessionStoreContract):
    """Without faults, the wrapper changes nothing."""

    def open_store(self, place: Path, owner: str) -> SessionStore:
        return FaultySessionStore(postgres_store(place, owner), _NoChance(), FaultSettings())


@pytest.mark.usefixtures("postgres_tables")
@pytest.mark.real_time
class TestPooledPostgresSessionStore(SessionStoreContract):
    """An owner without a connection of its own."""

    def open_store(self, place: Path, owner: str) -> SessionStore:
        return postgres_store(place, owner, pooled=True)


@pytest.mark.usefixtures("postgres_tables")
@pytest.mark.real_time
class TestRememberingPostgresSessionStore(SessionStoreContract):
    """Whose commits fill a memory as well."""

    def open_store(self, place: Path, owner: str) -> SessionStore:
        commit_hook = RememberedSessions(schema_of(place), lambda session_id: f"scope-{len(session_id) % 3}")
        return postgres_store(place, owner, commit_hook=commit_hook)
