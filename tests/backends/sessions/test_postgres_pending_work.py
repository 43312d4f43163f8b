"""Pending work in PostgreSQL beyond the contract: claims at the same moment, dead owners, and sessions set aside."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from repertory.backends.peer_ports import QueuedCall
from repertory.backends.ports import Batch, Lease, WorkQuery, call_queue_of, give_up
from repertory.backends.sessions.postgres.store import PostgresSessionStore
from repertory.core.pending_work import DueTime, PendingWork
from repertory.testing.session_contract import grow
from tests.backends.sessions.postgres_places import postgres_store, schema_of
from tests.postgres_server import PostgresServer

pytestmark = [pytest.mark.anyio, pytest.mark.real_time]


@asynccontextmanager
async def closing(*stores: PostgresSessionStore) -> AsyncGenerator[None]:
    try:
        with anyio.fail_after(50):
            yield
    finally:
        for store in stores:
            await store.aclose()


async def owing(store: PostgresSessionStore, names: Sequence[str]) -> list[Lease]:
    """Leases of new sessions that owe a turn, in this order."""
    leases = [(await store.acquire(name)).lease for name in names]
    dues = [DueTime(agent_id="default", at=float(number)) for number in range(len(names))]
    await store.append([Batch(lease=lease, rows=grow(1), due=due) for lease, due in zip(leases, dues, strict=True)])
    return leases


async def test_of_many_claims_at_the_same_moment_each_gets_other_work_the_longest_due_first(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    owner, names = postgres_store(tmp_path, "owner"), [f"session-{n}" for n in range(300)]
    claimers = [postgres_store(tmp_path, f"claimer-{n}") for n in range(4)]
    claimed: list[Sequence[PendingWork]] = []
    async with closing(owner, *claimers):
        assert list(await owner.release(await owing(owner, names))) == [None] * 300

        async def claim(store: PostgresSessionStore) -> None:
            while some := await store.claim_due(WorkQuery(1000.0, 7, {"default"})):
                claimed.append(some)

        async with anyio.create_task_group() as tasks:
            for claimer in claimers:
                tasks.start_soon(claim, claimer)
        assert sorted(work.session_id for some in claimed for work in some) == sorted(names)
        assert all([*some] == sorted(some, key=lambda work: work.at) for some in claimed)
        assert {work.claims for work in await owner.pending_work()} == {1}


async def test_one_line_with_odd_numbers_stops_the_work_of_nobody_else(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    store, schema = postgres_store(tmp_path, "one"), schema_of(tmp_path)
    async with closing(store):
        leases = await owing(store, ["odd", "sound"])
        assert list(await store.release(leases)) == [None] * 2
        for token in ("odd", "sound"):
            await call_queue_of(store).put(
                QueuedCall(session_id=token, agent_id="a", token=token, call={"prompt": "hi"})
            )
        for number, ttl_s in enumerate(("NaN", "Infinity", "-Infinity", "1e300", "-1")):
            line = f"'x{number}', NULL, now(), '{ttl_s}', now(), now(), NULL"
            postgres.sql(f"INSERT INTO {schema}.owners VALUES ({line})")
        postgres.sql(f"UPDATE {schema}.pending_work SET claims = -5 WHERE at = 0.0")
        postgres.sql(f"UPDATE {schema}.calls SET tries = 2147483647, ended = 2147483647 WHERE token = 'odd'")
        postgres.sql(f"INSERT INTO {schema}.taken SELECT session, id, 'dead' FROM {schema}.calls WHERE token = 'odd'")
        works = await store.claim_due(WorkQuery(1000.0, 10, {"default"}))
        assert [(work.session_id, work.claims) for work in works] == [("odd", 1), ("sound", 1)]
        assert [call.token for call in await call_queue_of(store).take(10, ["a"])] == ["sound"]
        assert {call.token: call.parked for call in await call_queue_of(store).calls()} == {"odd": True, "sound": False}


async def test_of_a_dead_owner_work_is_claimed_at_once_and_of_a_live_one_never(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    live, cut, frozen, other = (postgres_store(tmp_path, name) for name in ("live", "cut", "frozen", "other"))
    async with closing(live, cut, frozen, other):
        for store, name in ((live, "of the live"), (cut, "of the cut"), (frozen, "of the frozen")):
            await owing(store, [name])
        assert list(await other.claim_due(WorkQuery(1000.0, 10, {"default"}))) == []
        cut.abandon()  # Its connections end, as those of a killed process do: then nobody holds its lock.
        beats = f"UPDATE {schema_of(tmp_path)}.owners SET beat = beat - interval '1 hour', ttl_s = 0.0"
        postgres.sql(f"{beats} WHERE owner = 'frozen'")  # It holds its lock all the same.
        found: set[str] = set()
        while len(found) < 2:
            found |= {work.session_id for work in await other.claim_due(WorkQuery(1000.0, 10, {"default"}))}
        assert found == {"of the cut", "of the frozen"}
        assert list(await other.claim_due(WorkQuery(1000.0, 10, {"default"}))) == []


async def test_what_a_session_owes_stays_with_it_when_its_rows_are_set_aside(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    store = postgres_store(tmp_path, "owner")
    async with closing(store):
        (lease,) = await owing(store, ["session"])
        await store.set_aside("session", grow(1))
        (work,) = await store.claim_due(WorkQuery(1000.0, 10, {"default"}))
        assert (work.session_id, work.agent_id, work.claims) == ("session", "default", 1)
        await give_up(store, lease)  # It is not the owner's any more.
        assert [work.claims for work in await store.pending_work()] == [1]
        await store.delete("session")
        assert list(await store.pending_work()) == []


async def test_looking_makes_no_tables_and_for_nothing_asks_nobody(postgres: PostgresServer, tmp_path: Path) -> None:
    store = postgres_store(tmp_path, "owner")
    async with closing(store):
        assert list(await store.claim_due(WorkQuery(1000.0, 10, {"default"}))) == list(await store.pending_work()) == []
        assert postgres.sql(f"SELECT 1 FROM pg_namespace WHERE nspname = '{schema_of(tmp_path)}'") == []
        await owing(store, ["session"])
        assert list(await store.claim_due(WorkQuery(1000.0, 10, ()))) == []
        assert list(await store.claim_due(WorkQuery(1000.0, 0, {"default"}))) == []
