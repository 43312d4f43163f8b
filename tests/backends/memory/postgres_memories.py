"""Memories in PostgreSQL for tests: a schema for each folder, in the server of this process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from repertory import PostgresMemoryStore
from tests.backends.sessions.postgres_places import schema_of
from tests.postgres_server import PostgresServer, shared_server


def postgres_memory(place: Path, server: PostgresServer | None = None, **settings: Any) -> PostgresMemoryStore:
    return PostgresMemoryStore((server or shared_server()).dsn(), schema=schema_of(place), **settings)
