"""Who owns a session in PostgreSQL: races, killed and frozen owners, restarts of the server, and requests."""

from __future__ import annotations

import random
import signal
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import anyio.to_thread
import pytest
from test_object_processes import appending_children, check, child, wait_for

from repertory.backends.ports import Batch, Lease, Position, begin, give_up
from repertory.backends.sessions.postgres.store import PostgresSessionStore
from repertory.errors import LeaseLost, RepertoryError, SessionBusy, StoreUnavailable
from repertory.testing.session_contract import grow
from tests.backends.sessions.killed_children.fork_server import ForkServer
from tests.backends.sessions.postgres_places import postgres_store, schema_of
from tests.postgres_server import PostgresServer, postgres_server

pytestmark = [pytest.mark.anyio, pytest.mark.real_time]

TTL_S = 2.0


@asynccontextmanager
async def maintained(*stores: PostgresSessionStore) -> AsyncGenerator[None]:
    """The stores, maintained for the length of the block and closed at its end."""
    with anyio.fail_after(50):
        async with anyio.create_task_group() as tasks:
            for store in stores:
                tasks.start_soon(store.maintain)
            try:
                yield
            finally:
                tasks.cancel_scope.cancel()
                with anyio.CancelScope(shield=True):
                    for store in stores:
                        await store.aclose()


async def until_owned(store: PostgresSessionStore, session_id: str) -> Lease:
    """Try again and again, as the host does."""
    with anyio.fail_after(30):
        async with store.capabilities.sharing.waiting(session_id) as until_free:
            while True:
                try:
                    return (await store.acquire(session_id)).lease
                except SessionBusy as error:
                    await until_free(str(error.fields["owner"]), 0.2)


@pytest.fixture(scope="module")
def children() -> Iterator[ForkServer]:
    with appending_children() as server:
        yield server


@pytest.fixture(scope="module")
def own_server() -> object:
    """A server that is stopped and started."""
    with postgres_server() as server:
        yield server


async def test_of_two_that_race_one_owns_and_the_other_is_told_who(postgres: PostgresServer, tmp_path: Path) -> None:
    stores = [postgres_store(tmp_path, f"owner-{n}") for n in range(4)]
    async with maintained(*stores):
        for number in range(10):
            owned: list[Lease] = []
            told: list[object] = []

            async def race(
                store: PostgresSessionStore, session_id: str, owned: list[Lease], told: list[object]
            ) -> None:
                try:
                    owned.append((await store.acquire(session_id)).lease)
                except SessionBusy as error:
                    told.append(error.fields["owner"])

            async with anyio.create_task_group() as tasks:
                for store in stores:
                    tasks.start_soon(race, store, f"session-{number}", owned, told)
            assert len(owned) == 1
            assert told == [owned[0].owner] * 3


async def test_groups_that_hold_the_same_sessions_in_any_order_never_wait_in_a_circle(
    postgres: PostgresServer, tmp_path: Path, rng: random.Random
) -> None:
    stores = [postgres_store(tmp_path, f"owner-{n}") for n in range(3)]
    names = [f"session-{n}" for n in range(12)]
    stored = 0

    async def fight(store: PostgresSessionStore) -> None:
        nonlocal stored
        for _ in range(15):
            chosen = rng.sample(names, 6)
            leases = [(await store.acquire(name, takeover=True)).lease for name in chosen]
            counts = [len(await store.load(name, "default", whole=True)) for name in chosen]
            journals = [grow(1, after=grow(count)) for count in counts]
            batches = [Batch(lease=lease, rows=rows) for lease, rows in zip(leases, journals, strict=True)]
            outcomes = await store.append(batches)
            assert all(isinstance(outcome, Position | LeaseLost) for outcome in outcomes)
            stored += sum(isinstance(outcome, Position) for outcome in outcomes)

    async with maintained(*stores):
        async with anyio.create_task_group() as tasks:
            for store in stores:
                tasks.start_soon(fight, store)
        infos = await stores[0].sessions()
        assert sum(info.agents["default"] for info in infos) == stored > 0
    deadlocks = postgres.sql("SELECT deadlocks FROM pg_stat_database WHERE datname = 'postgres'")
    assert deadlocks == [(0,)]


async def test_a_killed_owner_is_replaced_at_once(
    children: ForkServer, postgres: PostgresServer, tmp_path: Path
) -> None:
    place = f"{postgres.url}#{schema_of(tmp_path)}"
    with child(children, place, "child", sessions=1, seed=2) as process:
        acknowledged = await wait_for(process, 3)
        store = postgres_store(tmp_path, "parent")  # With the longest time to live: only the lock can tell.
        async with maintained(store):
            with pytest.raises(SessionBusy):
                await store.acquire("session-0")
            process.kill()
            acknowledged |= await wait_for(process, None)
            process.wait()
            with anyio.fail_after(30):  # The server needs a moment to notice.
                lease = await until_owned(store, "session-0")
            rows = await store.load("session-0", "default", whole=True)
            assert len(rows) >= acknowledged["session-0"]
            assert lease.owner == "parent"


async def test_a_frozen_owner_is_replaced_when_its_time_is_over_and_fenced_when_it_wakes(
    children: ForkServer, postgres: PostgresServer, tmp_path: Path
) -> None:
    place = f"{postgres.url}#{schema_of(tmp_path)}"
    with child(children, place, "child", sessions=1, seed=2) as process:
        await wait_for(process, 3)
        store = postgres_store(tmp_path, "parent", ttl_s=TTL_S)
        async with maintained(store):
            process.send_signal(signal.SIGSTOP)
            with pytest.raises(SessionBusy):
                await store.acquire("session-0")
            lease = await until_owned(store, "session-0")
            before = list(await store.load("session-0", "default", whole=True))
            process.send_signal(signal.SIGCONT)
            with anyio.fail_after(20):
                while await anyio.to_thread.run_sync(process.stdout.readline) != "lost\n":
                    pass
            rows = grow(1, after=before) if before[-1].kind == 1 else []
            (outcome,) = await store.append([Batch(lease=lease, rows=rows)])
            assert isinstance(outcome, Position)
            assert list(await store.load("session-0", "default", whole=True)) == [*before, *rows]


@pytest.mark.timeout(180)
async def test_every_acknowledged_row_survives_random_kills_of_owners(
    children: ForkServer, postgres: PostgresServer, tmp_path: Path, rng: random.Random
) -> None:
    place = f"{postgres.url}#{schema_of(tmp_path)}"
    acknowledged: dict[str, int] = {}
    for kill in range(8):
        with child(children, place, f"child-{kill}", sessions=3, seed=rng.randrange(2**30) * 2) as process:
            await wait_for(process, 1)
            for _ in range(rng.randrange(3)):
                acknowledged |= await wait_for(process, rng.randrange(1, 30))
            await anyio.sleep(rng.random() * 0.02)
            process.kill()
            acknowledged |= await wait_for(process, None)
        if kill % 4 == 3:
            store = postgres_store(tmp_path, f"waiter-{kill}")
            async with maintained(store):
                for name in acknowledged:
                    await until_owned(store, name)
            acknowledged = await check(place, f"checker-{kill}", acknowledged, slack=15)
    assert sum(acknowledged.values()) > 0


@pytest.mark.timeout(180)
async def test_every_acknowledged_row_survives_crashes_of_the_server(
    children: ForkServer, own_server: PostgresServer, tmp_path: Path, rng: random.Random
) -> None:
    """Two processes fight for the same sessions meanwhile; leases that a crash undoes are lost, and no row is."""
    server, place = own_server, f"{own_server.url}#{schema_of(tmp_path)}"
    acknowledged: dict[str, int] = {}
    with (
        child(children, place, "one", sessions=3, seed=rng.randrange(2**30) * 2) as one,
        child(children, place, "two", sessions=3, seed=rng.randrange(2**30) * 2 + 1) as two,
    ):
        for _ in range(4):
            for process in (one, two):
                acknowledged = latest(acknowledged, await wait_for(process, 15))
            await anyio.to_thread.run_sync(server.stop, signal.SIGQUIT)
            await anyio.to_thread.run_sync(server.start)
        for process in (one, two):
            process.kill()
            acknowledged = latest(acknowledged, await wait_for(process, None))
    store = postgres_store(tmp_path, "waiter", server)
    async with maintained(store):
        for name in acknowledged:
            await until_owned(store, name)
    assert len(acknowledged) == 3
    await check(place, "checker", acknowledged, slack=30)


def latest(one: dict[str, int], other: dict[str, int]) -> dict[str, int]:
    return {name: max(one.get(name, 0), other.get(name, 0)) for name in {**one, **other}}


async def test_an_owner_that_is_asked_hears_it_and_the_asker_hears_that_it_is_free(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    owner, asker = postgres_store(tmp_path, "owner"), postgres_store(tmp_path, "asker")
    async with maintained(owner, asker), anyio.create_task_group() as tasks:
        lease, _ = await owner.acquire("session")
        await asker.acquire("other")  # From now on it hears.
        hears, heard = anyio.create_memory_object_stream[None](100)

        async def give_it_up() -> None:
            async for _ in heard:
                if await owner.asked_for() == ["session"]:
                    await give_up(owner, lease)

        tasks.start_soon(owner.capabilities.sharing.listen, lambda: hears.send_nowait(None))
        tasks.start_soon(give_it_up)
        with pytest.raises(SessionBusy):
            await asker.acquire("session")
        async with asker.capabilities.sharing.waiting("session") as until_free:
            while True:
                await until_free("owner", 30.0)
                try:
                    await asker.acquire("session")
                    break
                except SessionBusy:
                    continue
        tasks.cancel_scope.cancel()
        hears.close()
        heard.close()


async def test_an_owner_without_a_connection_of_its_own_finds_what_it_is_asked_for(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    owner, asker = postgres_store(tmp_path, "owner", pooled=True), postgres_store(tmp_path, "asker")
    async with maintained(owner, asker):
        await owner.acquire("session")
        with pytest.raises(SessionBusy):
            await asker.acquire("session")
        assert list(await owner.asked_for()) == ["session"]
        assert list(await owner.asked_for()) == []


async def test_a_session_whose_lease_nobody_knows_is_released_for_the_one_that_asks(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    owner, asker = postgres_store(tmp_path, "owner", pooled=True), postgres_store(tmp_path, "asker")
    async with maintained(owner, asker):
        await owner.acquire("session")
        owner._held.clear()  # As if the answer had been lost.
        with pytest.raises(SessionBusy):
            await asker.acquire("session")
        assert list(await owner.asked_for()) == []
        assert (await asker.acquire("session")).lease.owner == "asker"


async def test_many_releases_at_once_are_few_statements(postgres: PostgresServer, tmp_path: Path) -> None:
    store, other = postgres_store(tmp_path, "owner"), postgres_store(tmp_path, "other")
    async with maintained(store, other):
        leases = [(await store.acquire(f"session-{n}")).lease for n in range(60)]
        ran = counted_statements(store)
        async with anyio.create_task_group() as tasks:
            for lease in leases:
                tasks.start_soon(give_up, store, lease)
        assert 1 <= len(ran) <= 3
        for lease in leases:
            await other.acquire(lease.session_id)


async def test_a_new_session_of_rows_is_free_with_the_commit_that_stores_them(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    """Beside a look whether it is new: a line, and the commit."""
    store, other = postgres_store(tmp_path, "owner"), postgres_store(tmp_path, "other")
    async with maintained(store, other):
        await store.sessions()
        ran = counted_statements(store)
        await begin(store, "session", grow(20))
        assert len(ran) == 2
        await other.acquire("session")
        assert len(await other.load("session", "default")) == 20


def counted_statements(store: PostgresSessionStore) -> list[str]:
    """The statements that the store runs from now on."""
    ran: list[str] = []
    run = store._pool.run

    async def counted(statement: str, *rest: object, **more: object) -> object:
        ran.append(statement)
        return await run(statement, *rest, **more)  # type: ignore[arg-type]

    store._pool.run = counted  # type: ignore[method-assign,assignment]
    return ran


async def test_a_restart_of_the_server_ends_no_lease(own_server: PostgresServer, tmp_path: Path) -> None:
    server = own_server
    rows = grow(4)
    one, two = (postgres_store(tmp_path, name, server) for name in ("one", "two"))
    async with maintained(one, two):
        lease, _ = await one.acquire("session")
        await one.append([Batch(lease=lease, rows=rows[:2])])
        await two.acquire("other")
        await anyio.to_thread.run_sync(server.stop)
        with pytest.raises(StoreUnavailable):
            await one.append([Batch(lease=lease, rows=rows[2:])])
        await anyio.to_thread.run_sync(server.start)
        with pytest.raises(SessionBusy):
            while True:
                try:
                    await two.acquire("session")
                except StoreUnavailable:
                    await anyio.sleep(0.05)
        while True:
            try:
                (outcome,) = await one.append([Batch(lease=lease, rows=rows[2:])])
                break
            except StoreUnavailable:
                await anyio.sleep(0.05)
        assert outcome == Position(agent_id="default", seq=4)
        assert list(await two.load("session", "default", whole=True)) == rows


async def test_idle_connections_that_a_restart_has_ended_fail_no_call(
    own_server: PostgresServer, tmp_path: Path
) -> None:
    server = own_server
    store = postgres_store(tmp_path, "owner", server)
    async with maintained(store):
        await begin(store, "session", grow(2))
        async with anyio.create_task_group() as tasks:
            for _ in range(8):
                tasks.start_soon(store.sessions)
        await anyio.to_thread.run_sync(server.stop)
        await anyio.to_thread.run_sync(server.start)
        for _ in range(10):
            assert len(await store.sessions()) == 1


async def test_an_owner_that_the_database_has_not_heard_refuses_to_go_on(
    own_server: PostgresServer, tmp_path: Path
) -> None:
    """Its own connection cannot be made any more, although others still work."""
    server = own_server
    rows = grow(2)
    store = postgres_store(tmp_path, "owner", server, ttl_s=1.0)
    async with maintained(store):
        lease, _ = await store.acquire("session")
        await store.append([Batch(lease=lease, rows=rows[:1])])
        pid = store._presence._connection.backend_pid  # type: ignore[union-attr]
        server.sql(f"ALTER TABLE {schema_of(tmp_path)}.owners RENAME TO gone")
        server.sql(f"SELECT pg_terminate_backend({pid})")
        await anyio.sleep(1.0)
        for batch in (Batch(lease=lease, rows=rows[1:]), Batch(lease=lease, rows=())):
            with pytest.raises(RepertoryError, match="has not heard"):
                await store.append([batch])
        server.sql(f"ALTER TABLE {schema_of(tmp_path)}.gone RENAME TO owners")
        while True:
            try:
                (outcome,) = await store.append([Batch(lease=lease, rows=rows[1:])])
                break
            except StoreUnavailable:
                await anyio.sleep(0.05)
        assert outcome == Position(agent_id="default", seq=2)
