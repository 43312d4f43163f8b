"""Stores in PostgreSQL for tests: a schema for each folder, in the server of this process."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from repertory.backends.postgres.address import postgres_address
from repertory.backends.sessions.postgres.commit_hook import SessionCommitHook
from repertory.backends.sessions.postgres.store import PostgresSessionStore, PostgresSettings
from tests.postgres_server import PostgresServer, shared_server

_left: list[str] = []
"""Schemas of the server of this process whose tables are empty, and that nobody uses any more."""


def schema_of(place: Path) -> str:
    return f"place_{zlib.crc32(str(place).encode()):08x}"


@contextmanager
def left_tables(place: Path) -> Iterator[None]:
    """Give the schema of this folder the tables that an earlier test has left, emptied; and leave them to the next one.

    To make the tables takes longer than a test of a contract. A store finds these as it finds those of a store that was
    there before; tests of what makes tables, and the plain contract, begin without any. Emptied tables have new files,
    so nothing that an earlier test has erased can be found in them.
    """
    server, schema = shared_server(), schema_of(place)
    if _left:
        server.sql(f"ALTER SCHEMA {_left.pop()} RENAME TO {schema}")
    yield

    import psycopg

    with suppress(psycopg.Error):  # There are none, or something still holds them: the next test makes its own.
        server.sql(
            "SET lock_timeout = '2s'; DO $$ DECLARE filled text; BEGIN"
            " SELECT string_agg(oid::regclass::text, ', ') INTO filled FROM pg_class"
            f" WHERE relnamespace = '{schema}'::regnamespace AND relkind = 'r' AND relname NOT LIKE '%meta'"
            " AND pg_relation_size(oid) > 0;"
            " IF filled IS NOT NULL THEN EXECUTE 'TRUNCATE ' || filled || ' RESTART IDENTITY'; END IF;"
            f" END $$; ALTER SEQUENCE {schema}.generations RESTART"
        )
        _left.append(schema)


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
