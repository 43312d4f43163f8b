"""Stores in PostgreSQL for tests: a schema for each folder, in the server of this process."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from pathlib import Path

from repertory.backends.postgres.address import postgres_address
from repertory.backends.sessions.postgres.commit_hook import SessionCommitHook
from repertory.backends.sessions.postgres.store import PostgresSessionStore, PostgresSettings
from tests.postgres_server import PostgresServer, shared_server


def schema_of(place: Path) -> str:
    return f"place_{zlib.crc32(str(place).encode()):08x}"


def postgres_store(
    place: Path,
    owner: str,
    server: PostgresServer | None = None,
    commit_hook: SessionCommitHook | None = None,
    **settings: object,
) -> PostgresSessionStore:
    address = postgres_address((server or shared_server()).dsn())
    chosen = PostgresSettings(schema=schema_of(place), **settings)  # type: ignore[arg-type]
    return PostgresSessionStore(address, owner=owner, settings=chosen, commit_hook=commit_hook)


def files_of(schema: str, server: PostgresServer | None = None) -> Iterator[tuple[str, bytes]]:
    """The files of a schema's tables, of their indexes, and of what is too large for a table."""
    server = server or shared_server()
    server.sql("CHECKPOINT")
    paths = server.sql(
        "SELECT DISTINCT pg_relation_filepath(part) FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace"
        " CROSS JOIN LATERAL unnest(ARRAY[c.oid, c.reltoastrelid]) AS part"
        f" WHERE n.nspname = '{schema}' AND c.relkind IN ('r', 'i') AND part <> 0"
    )
    for (path,) in paths:
        yield str(path), (server.data / str(path)).read_bytes()
