"""Every store is held to the contract."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from repertory import PostgresQuotaStore, SQLiteQueue, SQLiteQuotaStore, TurnJob
from repertory.errors import Corrupt, Failed, StoreFailed
from repertory.quotas.stores import InMemoryQuotaStore, QuotaStore
from tests.backends.sessions.postgres_places import schema_of
from tests.postgres_server import shared_server
from tests.quotas.store_contract import LIMITS, LastingStoreContract, StoreContract, report

pytestmark = pytest.mark.anyio


class TestInMemoryQuotaStore(StoreContract):
    shared = False

    def open_store(self, place: Path) -> QuotaStore:
        return InMemoryQuotaStore()


@pytest.mark.real_time
class TestSQLiteStore(LastingStoreContract):
    def open_store(self, place: Path) -> QuotaStore:
        return SQLiteQuotaStore(place / "quotas.db")

    async def test_another_database_is_refused(self, tmp_path: Path) -> None:
        async with SQLiteQueue(tmp_path / "quotas.db") as queue:
            await queue.send(TurnJob("a", "s", "hi", token="t"))
        async with self.stores(tmp_path) as (store,):
            with pytest.raises(Failed, match="no store"):
                await store.exchange("m", report("a", 1), LIMITS)

    async def test_an_account_that_was_damaged_is_named(self, tmp_path: Path) -> None:
        async with self.stores(tmp_path) as (store,):
            await store.exchange("m", report("a", 1), LIMITS)
            with closing(sqlite3.connect(tmp_path / "quotas.db")) as connection, connection:
                connection.execute("UPDATE quotas SET account = x'00'")
            with pytest.raises(Corrupt, match="delete its row"):
                await store.exchange("m", report("a", 1), LIMITS)


@pytest.mark.real_time
class TestPostgresStore(LastingStoreContract):
    def open_store(self, place: Path) -> QuotaStore:
        return PostgresQuotaStore(shared_server().dsn(), schema=schema_of(place))

    async def test_tables_of_another_version_are_refused(self, tmp_path: Path) -> None:
        async with self.stores(tmp_path) as (store,):
            await store.exchange("m", report("a", 1), LIMITS)
        shared_server().sql(f"UPDATE {schema_of(tmp_path)}.quota_meta SET version = 9")
        async with self.stores(tmp_path) as (store,):
            with pytest.raises(StoreFailed, match="another version"):
                await store.exchange("m", report("a", 1), LIMITS)
