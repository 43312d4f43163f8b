"""Pending work in PostgreSQL: how fast it is claimed among a million stored sessions, what looking at nothing costs
right after, and releasing many leases at once.

All work that is due is that of an owner which was killed. The million are lines of sessions, filled in by the server: a
claim reads no journal. Releasing stands beside the bare UPDATE as well. Needs the server's programs.
"""

from __future__ import annotations

import statistics
import sys
import time
from contextlib import AsyncExitStack

import anyio

from bench.harness import Figure, report
from repertory.backends.ports import Lease, WorkQuery, give_up
from repertory.backends.postgres.address import postgres_address
from repertory.backends.sessions.postgres.store import PostgresSessionStore
from repertory.core.pending_work import PendingWork
from tests.postgres_server import PostgresServer, postgres_server

STORED = 1_000_000
DUE = 10_000
CLAIMERS = 4
ROOM = 16
"""How many works one claim takes: as many as a `Runtime` wakes at the same time unless it is told otherwise."""
LOOKS = 50
RELEASED = 10_000
CLAIMS_PER_S = 5_000.0
LOOK_MS = 2.0
RELEASE_S = 1.0

FILLED = (
    "INSERT INTO repertory.sessions (name, generation, owner, agents, seqs, created_at, updated_at)"
    f" SELECT 'session-' || n, n, CASE WHEN n % {STORED // DUE} = 0 THEN 'killed' END, '{{support}}', '{{1}}', 1.0, 1.0"
    f" FROM generate_series(1, {STORED}) AS n",
    # Its beat is young, so the lock alone, which nobody holds, tells that it is dead.
    "INSERT INTO repertory.owners SELECT 'killed', 4711, now() + interval '1 hour', 7200, now(),"
    " pg_postmaster_start_time()",
    "INSERT INTO repertory.pending_work SELECT id, 'support', 1000 + random(), 'turn' FROM repertory.sessions"
    " WHERE owner = 'killed'",
    "VACUUM ANALYZE repertory.sessions",
    "VACUUM ANALYZE repertory.pending_work",
)


def store_on(server: PostgresServer, owner: str) -> PostgresSessionStore:
    return PostgresSessionStore(postgres_address(server.dsn()), owner=owner)


async def claimed(server: PostgresServer) -> tuple[list[PendingWork], float, list[float]]:
    """What several claimers have got, the seconds that it took, and those of each look at nothing right after."""
    works: list[PendingWork] = []
    looks: list[float] = []
    async with AsyncExitStack() as stack:
        stores = [store_on(server, f"claimer-{number}") for number in range(CLAIMERS)]
        for store in stores:
            stack.push_async_callback(store.aclose)
            await store.claim_due(WorkQuery(1.0, ROOM, ["support"]))

        async def claim(store: PostgresSessionStore) -> None:
            while some := await store.claim_due(WorkQuery(2000.0, ROOM, ["support"])):
                works.extend(some)

        began = time.perf_counter()
        async with anyio.create_task_group() as tasks:
            for store in stores:
                tasks.start_soon(claim, store)
        taken = time.perf_counter() - began
        for number in range(LOOKS):
            began = time.perf_counter()
            assert not await stores[number % CLAIMERS].claim_due(WorkQuery(2000.0, ROOM, ["support"]))
            looks.append((time.perf_counter() - began) * 1e3)
    return works, taken, looks


async def released_s(server: PostgresServer) -> float:
    """Seconds in which a store gives up its leases of many sessions."""
    store = store_on(server, "drained")
    try:
        await give_up(store, (await store.acquire("session-1")).lease)
        names = server.sql(
            "UPDATE repertory.sessions SET owner = 'drained' WHERE id IN"
            f" (SELECT id FROM repertory.sessions WHERE owner IS NULL LIMIT {RELEASED}) RETURNING name, generation"
        )
        leases = [Lease(session_id=str(name), owner="drained", generation=int(str(n))) for name, n in names]
        assert len(leases) == RELEASED
        began = time.perf_counter()
        assert list(await store.release(leases)) == [None] * RELEASED
        return time.perf_counter() - began
    finally:
        await store.aclose()


def bare_release_s(server: PostgresServer) -> float:
    """Seconds that the server takes to set the owner of as many sessions to NULL."""
    server.sql(
        "UPDATE repertory.sessions SET owner = 'bare' WHERE id IN"
        f" (SELECT id FROM repertory.sessions WHERE owner IS NULL LIMIT {RELEASED})"
    )
    server.sql("ANALYZE repertory.sessions")
    ids = [str(line[0]) for line in server.sql("SELECT id FROM repertory.sessions WHERE owner = 'bare'")]
    assert len(ids) == RELEASED
    began = time.perf_counter()
    server.sql(f"UPDATE repertory.sessions SET owner = NULL WHERE id = ANY ('{{{','.join(ids)}}}'::bigint[])")
    return time.perf_counter() - began


def main() -> int:
    """Print the table; 1 when a bar was missed."""
    with postgres_server(fsync="on", autovacuum="on") as server:
        anyio.run(tables_made, server)
        for statement in FILLED:
            server.sql(statement)
        works, taken, looks = anyio.run(claimed, server)
        once = len({(work.session_id, work.agent_id) for work in works})
        released, bare = anyio.run(released_s, server), bare_release_s(server)
        (left,) = server.sql("SELECT count(*) FROM repertory.sessions WHERE owner IN ('drained', 'bare')")
    return report(
        [
            Figure(f"claims of {DUE:,} due among {STORED:,}", DUE / taken, CLAIMS_PER_S, 1.0, "/s", "higher"),
            Figure("due work that was claimed", float(once), float(DUE), 1.0, "", "higher"),
            Figure("claims of it", float(len(works)), float(DUE), 1.0, ""),
            Figure("the first look at nothing after", looks[0], LOOK_MS, 1.0, "ms"),
            Figure(f"the median of {LOOKS} looks after", statistics.median(looks), LOOK_MS, 1.0, "ms"),
            Figure(f"release of {RELEASED:,} leases", released, RELEASE_S, 1.0, "s"),
            Figure("the same / the bare UPDATE", released, bare, None, "s"),
            Figure("leases left", float(str(left[0])), 1.0, 0.0, ""),
        ]
    )


async def tables_made(server: PostgresServer) -> None:
    store = store_on(server, "first")
    await give_up(store, (await store.acquire("first")).lease)
    await store.aclose()


if __name__ == "__main__":
    sys.exit(main())
