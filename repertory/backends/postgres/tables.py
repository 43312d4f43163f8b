"""Tables with a version in a schema, and how a database gets them: made by one process at a time, under a lock of the
database, each set of tables in one transaction. Tables of another version are left alone.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from repertory.backends.postgres.connection import PostgresConnection, ResultLine
from repertory.backends.postgres.pool import Pool
from repertory.errors import Invalid, StoreFailed

SCHEMA: Final = "repertory"
"""The schema's name unless the caller chooses another."""
VERSION: Final = 1
"""The version of every set of tables that this release knows."""
MAKE_S: Final = 120.0
LOOK_S: Final = 20.0

_NAME: Final = re.compile(r"[a-z_][a-z0-9_]{0,47}")
_LOOK: Final = (
    "SELECT count(*) > 0, current_setting('server_encoding') FROM pg_class AS c"
    " JOIN pg_namespace AS n ON n.oid = c.relnamespace WHERE n.nspname = $1::text AND c.relname = $2::text"
)
"""Reads the catalog itself: after a wait for the lock, what the server has cached of names is out of date."""


class TableSet(Struct, frozen=True):
    """Tables that have one version together."""

    meta: str
    """The table with the version, a single line."""
    statements: Sequence[str]
    """The statements that make the tables; `{s}` is the schema."""


def check_schema(name: object) -> str:
    """The same name, if it can be a schema's. Errors: `Invalid`."""
    if not isinstance(name, str) or not _NAME.fullmatch(name) or name.startswith("pg_"):
        text = (
            "schema is a name of lower-case letters, digits and underscores, at most 48, that does not begin with pg_"
        )
        raise Invalid(text, got=name)
    return name


def lock_key(text: str) -> int:
    """The number of a lock in the database, from its name."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big", signed=True)


async def prepare_tables(pool: Pool, schema: str, tables: TableSet, *, create: bool) -> bool:
    """Check the tables; make them if there are none and `create`.

    False if there are none. Errors: `StoreFailed` for tables of another version, an encoding other than UTF-8, and
    missing rights; those of the pool.
    """
    async with pool.connection() as connection:
        there = await _are_there(connection, schema, tables)
        if there or not create:
            return there
        try:
            await _make(connection, schema, tables)
        except BaseException:
            connection.close()
            raise
        return True


async def _make(connection: PostgresConnection, schema: str, tables: TableSet) -> None:
    async def run(statement: str) -> list[ResultLine]:
        return await connection.run(statement, within_s=MAKE_S, once=True)

    await run("BEGIN")
    # CREATE SCHEMA IF NOT EXISTS is not safe when two processes run it at the same moment: one fails by a unique index.
    await run(f"SELECT pg_advisory_xact_lock({lock_key(f'repertory migration {schema}')})")
    if not await _are_there(connection, schema, tables):  # Another process may have been faster.
        if not await run(f"SELECT 1 FROM pg_namespace WHERE nspname = '{schema}'"):
            await run(f"CREATE SCHEMA {schema}")
        for statement in tables.statements:
            await run(statement.format(s=schema))
    await run("COMMIT")


async def _are_there(connection: PostgresConnection, schema: str, tables: TableSet) -> bool:
    """True if the tables exist. Errors: `StoreFailed` for those of another version."""
    ((there, encoding),) = await connection.run(_LOOK, schema, tables.meta, within_s=LOOK_S, once=True)
    if encoding != "UTF8":
        raise StoreFailed("the database has another encoding: create one with ENCODING 'UTF8'", encoding=encoding)
    if not there:
        return False
    lines = await connection.run(f"SELECT version FROM {schema}.{tables.meta}", within_s=LOOK_S, once=True)
    version = lines[0][0] if len(lines) == 1 else None
    if version != VERSION:
        text = "the tables are of another version, which this release would damage: install the one that made them"
        raise StoreFailed(text, schema=schema, version=version, known=VERSION)
    return True
