"""Outages of PostgreSQL that are longer than an owner counts as alive: no living owner loses a session by them."""

from __future__ import annotations

import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import anyio
import anyio.to_thread
import pytest
from test_postgres_owners import maintained

from repertory.backends.ports import Batch, Lease, Position
from repertory.backends.postgres.address import postgres_address
from repertory.backends.sessions.postgres.store import PostgresSessionStore, PostgresSettings
from repertory.errors import Retryable, SessionBusy, StoreFailed
from repertory.testing.session_contract import grow
from tests.backends.sessions.postgres_places import schema_of
from tests.postgres_server import NAME, PostgresServer, Road, postgres_server, promote, road, standby_of

pytestmark = [pytest.mark.anyio, pytest.mark.real_time]

T = TypeVar("T")
TTL_S = 2.0


def store_by(way: Road, place: Path, owner: str, *, pooled: bool) -> PostgresSessionStore:
    address = postgres_address(f"host=127.0.0.1 port={way.port} dbname=postgres user={NAME}")
    settings = PostgresSettings(schema=schema_of(place), ttl_s=TTL_S, pooled=pooled)
    return PostgresSessionStore(address, owner=owner, settings=settings)


async def until(call: Callable[[], Awaitable[T]]) -> T:
    """Try again while the database is away, or is none that takes writes."""
    with anyio.fail_after(20):
        while True:
            try:
                return await call()
            except SessionBusy:
                raise
            except (Retryable, StoreFailed):
                await anyio.sleep(0.05)


async def check_nobody_lost_anything(
    one: PostgresSessionStore, two: PostgresSessionStore, lease: Lease, back: Callable[[], None]
) -> None:
    """The other owner comes first, and finds the owner alive; the owner then goes on under its lease."""
    rows = grow(2)
    with pytest.raises(SessionBusy):
        await until(lambda: two.acquire("session"))
    back()
    (outcome,) = await until(lambda: one.append([Batch(lease=lease, rows=rows[1:])]))
    assert outcome == Position(agent_id="default", seq=2)
    with pytest.raises(SessionBusy):
        await until(lambda: two.acquire("session"))


@pytest.mark.parametrize("pooled", [False, True])
async def test_a_replica_that_takes_over_late_ends_no_lease(tmp_path: Path, *, pooled: bool) -> None:
    with postgres_server(max_wal_senders="4") as primary, standby_of(primary) as standby:
        async with road(primary) as way_one, road(primary) as way_two:
            one, two = (
                store_by(way, tmp_path, f"owner-{n}", pooled=pooled) for n, way in enumerate((way_one, way_two))
            )
            async with maintained(one, two):
                lease, _ = await one.acquire("session")
                await one.append([Batch(lease=lease, rows=grow(2)[:1])])
                await two.acquire("other")
                await anyio.to_thread.run_sync(lambda: caught_up(primary, standby))
                await anyio.to_thread.run_sync(lambda: primary.stop(signal.SIGQUIT))
                await anyio.sleep(1.5 * TTL_S)
                await anyio.to_thread.run_sync(lambda: promote(standby))
                way_two.port_there = standby.port
                await check_nobody_lost_anything(one, two, lease, lambda: setattr(way_one, "port_there", standby.port))


def caught_up(primary: PostgresServer, standby: PostgresServer) -> None:
    """Return when the replica has what the primary has."""
    ((end,),) = primary.sql("SELECT pg_current_wal_lsn()::text")
    for _ in range(1000):
        if standby.sql(f"SELECT pg_last_wal_replay_lsn() >= '{end}'::pg_lsn") == [(True,)]:
            return
        standby.sql("SELECT pg_sleep(0.01)")
    raise AssertionError("the replica does not follow")


async def test_a_database_that_was_away_for_everybody_ends_no_lease(tmp_path: Path) -> None:
    with postgres_server() as server:
        async with road(server) as way_one, road(server) as way_two:
            one, two = (store_by(way, tmp_path, f"owner-{n}", pooled=False) for n, way in enumerate((way_one, way_two)))
            async with maintained(one, two):
                lease, _ = await one.acquire("session")
                await one.append([Batch(lease=lease, rows=grow(2)[:1])])
                await two.acquire("other")
                for way in (way_one, way_two):
                    way.down = True
                server.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()")
                await anyio.sleep(1.5 * TTL_S)
                way_two.down = False
                await check_nobody_lost_anything(one, two, lease, lambda: setattr(way_one, "down", False))


async def test_a_crash_of_one_process_of_the_server_ends_no_lease(tmp_path: Path) -> None:
    """The server then ends all connections, and with them all locks, and begins anew without being started anew."""
    with postgres_server() as server:
        async with road(server) as way_one, road(server) as way_two:
            one, two = (store_by(way, tmp_path, f"owner-{n}", pooled=False) for n, way in enumerate((way_one, way_two)))
            async with maintained(one, two):
                lease, _ = await one.acquire("session")
                await one.append([Batch(lease=lease, rows=grow(2)[:1])])
                await two.acquire("other")
                way_one.down = True
                ((pid,),) = server.sql("SELECT min(pid) FROM pg_stat_activity WHERE backend_type = 'client backend'")
                assert isinstance(pid, int)
                crash(server, pid)
                await check_nobody_lost_anything(one, two, lease, lambda: setattr(way_one, "down", False))


def crash(server: PostgresServer, pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    assert server.running is not None
    server._wait(server.running.process)
