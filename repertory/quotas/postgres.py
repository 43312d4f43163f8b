"""A store in a PostgreSQL database, for processes on any number of machines. The time is the server's."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Final, cast

from repertory.backends.loop_clients import LoopClients
from repertory.backends.postgres.address import postgres_address
from repertory.quotas.stores import exchanged

if TYPE_CHECKING:
    from repertory.backends.postgres.pool import Pool
    from repertory.quotas.decisions import Grant, Report, WindowLimits

_WITHIN_S = 10.0
_NOW = "extract(epoch FROM clock_timestamp())::float8"
_TABLES: Final = (
    "CREATE TABLE {s}.quota_meta (version integer NOT NULL)",
    "INSERT INTO {s}.quota_meta VALUES (1)",
    # Unlogged: a write costs no sync. After a crash of the server, the accounts begin anew.
    'CREATE UNLOGGED TABLE {s}.quotas (key text COLLATE "C" PRIMARY KEY, account bytea) WITH (fillfactor = 50)',
)


class PostgresQuotaStore:
    """The accounts of quotas in a schema of a PostgreSQL database, version 13 or newer, for processes on any number of
    machines. The tables are made when they are first used; sessions and queues may be in the same schema. If the server
    crashes, the accounts begin anew.

    Args:
        dsn: The address of the database, as for `PostgresSessions`.
        schema: The schema of the tables.
        connections: The most connections for one event loop.

    Raises:
        Invalid: For what is no connection string or schema name. Correct the argument.
        ImportError: Without the extra `postgres`. Install the extra that the message names.

    Examples:
        >>> from repertory import ModelQuota, ModelQuotas, PostgresQuotaStore
        >>> store = PostgresQuotaStore("postgresql://agents@db.example/agents")
        >>> quotas = ModelQuotas({"gpt-5": ModelQuota(tokens_per_minute=200_000)}, store=store)
    """

    def __init__(self, dsn: str, *, schema: str = "repertory", connections: int = 2) -> None:
        self._address = postgres_address(dsn)
        from repertory.backends.postgres.tables import check_schema  # loaded when used: libpq is an extra

        self._schema = check_schema(schema)
        self._connections = connections
        self._pools = LoopClients(self._pool)
        self._ready = False
        table = f"{self._schema}.quotas"
        self._begin_sql = f"INSERT INTO {table} VALUES ($1::text, NULL) ON CONFLICT DO NOTHING"
        self._read_sql = f"SELECT account FROM {table} WHERE key = $1::text FOR UPDATE"
        # After the lock: the time of a process that waits for the lock would be before that of the one which had it.
        self._now_sql = f"SELECT {_NOW}"
        self._write_sql = f"UPDATE {table} SET account = $2::bytea WHERE key = $1::text"

    def __repr__(self) -> str:
        return f"PostgresQuotaStore('{self._address.name}#{self._schema}')"

    async def exchange(self, key: str, report: Report, limits: WindowLimits) -> Grant:
        """The answer of one account to a report.

        Args:
            key: The name of the account.
            report: The report of a process.
            limits: The limits of the quota, as that process has them.
        """
        pool = await self._opened()
        async with pool.transaction() as run:
            if not (lines := await run(self._read_sql, key)):
                await run(self._begin_sql, key)
                lines = await run(self._read_sql, key)
            ((wall,),) = cast("list[tuple[float]]", await run(self._now_sql))
            data, grant = exchanged(cast("bytes | None", lines[0][0]), report, limits, wall)
            await run(self._write_sql, key, data)
        return grant

    async def aclose(self) -> None:
        """Close the connections of the running event loop. The next call opens new ones."""
        await self._pools.aclose()

    async def _pool(self, stack: AsyncExitStack) -> Pool:
        from repertory.backends.postgres.pool import Pool  # loaded when used

        pool = Pool(self._address, size=self._connections, prepares=False, within_s=_WITHIN_S)
        stack.callback(pool.close)
        return pool

    async def _opened(self) -> Pool:
        pool = cast("Pool", await self._pools.get())
        if not self._ready:
            from repertory.backends.postgres.tables import TableSet, prepare_tables  # loaded when used

            self._ready = await prepare_tables(pool, self._schema, TableSet("quota_meta", _TABLES), create=True)
        return pool
