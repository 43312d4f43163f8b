"""Making destroyed contents disappear from the files of the database.

An UPDATE or DELETE hides a content from every query at once, but its bytes stay in the page until something is written
over them, and VACUUM does not write over them: it only marks the space as free. So the part of the table in which
contents were destroyed is written anew (`VACUUM FULL`), and the old file removed. Marks in a table say which parts wait
for that; they are committed together with the erasure, so whoever comes next goes on with it.

A part can be written anew while nobody reads or writes it, so this waits a moment for its lock and tries again later.
While another transaction that began before the erasure is open, the server keeps what it might see: that too is found
out and tried again.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, NamedTuple

import anyio

from repertory.backends.postgres.address import PostgresAddress
from repertory.backends.postgres.connection import PostgresConnection, connect
from repertory.backends.postgres.pool import Pool
from repertory.backends.postgres.tables import lock_key
from repertory.errors import RepertoryError

SOON_S: Final = 1.0
"""Seconds to wait for further erasures before their parts are written anew."""
LATER_S: Final = 30.0
REST_S: Final = 600.0
REWRITE_S: Final = 600.0
_LOCK_MS: Final = 500
_COUNT: Final = re.compile(r"\d+")


class ErasureMarks(NamedTuple):
    """A table in which parts are marked: `part` and `marked`."""

    table: str
    parts: str
    """A regular expression for the names of the table's parts."""


def mark_sql(schema: str, table: str, parts: str) -> str:
    """Marks the parts whose names the query `parts` gives."""
    return (
        f"INSERT INTO {schema}.{table} SELECT part, now() FROM ({parts}) AS touched (part)"
        " ON CONFLICT (part) DO UPDATE SET marked = excluded.marked"
    )


class Erasures:
    """Writes parts anew in which contents were destroyed. For one event loop."""

    def __init__(self, pool: Pool, address: PostgresAddress, schema: str, marks: Sequence[ErasureMarks]) -> None:
        """`address` leads to the database without a pooler. Tables of marks that there are not have none."""
        self._pool = pool
        self._address = address
        self._schema = schema
        self._marks = marks
        self._due = anyio.Event()
        self._erasure_pending = False

    def note(self) -> None:
        """Contents were destroyed just now."""
        self._erasure_pending = True
        self._due.set()

    def look(self) -> None:
        """Look for marks in the tables: other processes may have left some."""
        self._due.set()

    async def keep(self) -> None:
        """Write parts anew when that is due, until cancelled. Failures are tried again."""
        pending = False
        while True:
            with anyio.move_on_after(LATER_S if pending else REST_S):
                await self._due.wait()
                await anyio.sleep(SOON_S)
            self._due = anyio.Event()
            with suppress(RepertoryError):
                pending = await self.write_anew()

    async def close(self) -> None:
        """Write anew what this store still owes, if that can be done now. The caller shields it."""
        if self._erasure_pending:
            with suppress(RepertoryError):
                await self.write_anew()

    async def write_anew(self) -> bool:
        """Write every marked part anew. True if some are left, since they are in use. Errors: those of the database."""
        marked = [(marks, *line) for marks in self._marks for line in await self._marked(marks)]
        if not marked:
            self._erasure_pending = False
            return False
        connection = await connect(self._address, prepares=False)
        pending = False
        try:
            # One process at a time: two that write the same part anew would only wait for each other.
            ((alone,),) = await _once(connection, f"SELECT pg_try_advisory_lock({lock_key(self._schema)})")
            if not alone:
                return True
            # VACUUM FULL waits for an exclusive lock, and everybody who comes later waits behind it. Half a second is
            # bearable; then it is tried again later.
            await _once(connection, f"SET lock_timeout = {_LOCK_MS}")
            for marks, part, when in marked:
                # The name comes out of a table and goes into a statement.
                if re.fullmatch(marks.parts, part) and await self._rewritten(connection, part):
                    # With its time: an erasure that came meanwhile has marked the part again, and that mark must stay.
                    done = f"DELETE FROM {self._schema}.{marks.table} WHERE part = $1::text AND marked::text = $2::text"
                    await self._pool.run(done, part, when)
                else:
                    pending = True
        finally:
            connection.close()
        self._erasure_pending = pending
        return pending

    async def _marked(self, marks: ErasureMarks) -> list[tuple[str, str]]:
        there = "SELECT to_regclass($1::text)::text"
        if await self._pool.run(there, f"{self._schema}.{marks.table}") == [(None,)]:
            return []
        lines = await self._pool.run(f"SELECT part, marked::text FROM {self._schema}.{marks.table} ORDER BY part")
        return [(str(part), str(when)) for part, when in lines]

    async def _rewritten(self, connection: PostgresConnection, part: str) -> bool:
        """True if nothing destroyed is left in the part's files. False if others use it, or may not be asked to."""
        table = f"{self._schema}.{part}"
        file = f"SELECT pg_relation_filenode('{table}')"
        before = await _once(connection, file)
        try:
            await _once(connection, f"VACUUM (FULL, VERBOSE) {table}")
        except RepertoryError:
            if not connection.usable:
                raise
            return False
        # The server says how many dead rows it had to keep, of the table and of what lies beside it.
        counts = [int(count[0]) for detail in connection.details if (count := _COUNT.search(detail)) is not None]
        return bool(counts) and not any(counts) and before != await _once(connection, file)


async def _once(connection: PostgresConnection, statement: str) -> list[tuple[object, ...]]:
    return [*await connection.run(statement, within_s=REWRITE_S, once=True)]
