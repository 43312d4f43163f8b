"""Stores in PostgreSQL for tests: a schema for each folder, in the server of this process."""

from __future__ import annotations

import zlib
from pathlib import Path

from repertory.backends.postgres.address import postgres_address
from repertory.backends.sessions.postgres.store import PostgresSessionStore, PostgresSettings
from tests.postgres_server import PostgresServer, shared_server


def schema_of(place: Path) -> str:
    return f"place_{zlib.crc32(str(place).encode()):08x}"


def postgres_store(
    place: Path, owner: str, server: PostgresServer | None = None, **settings: object
) -> PostgresSessionStore:
    address = postgres_address((server or shared_server()).dsn())
    chosen = PostgresSettings(schema=schema_of(place), **settings)  # type: ignore[arg-type]
    return PostgresSessionStore(address, owner=owner, settings=chosen)
