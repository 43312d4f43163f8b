"""Connections to PostgreSQL that break or hang, beyond the contract of lost connections."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from repertory.backends.ports import Batch, Lease, Position
from repertory.backends.postgres.address import postgres_address
from repertory.backends.sessions.postgres.store import PostgresSessionStore, PostgresSettings
from repertory.errors import LeaseLost, RepertoryError, StoreUnavailable
from repertory.testing.cutting_relay import CuttingRelay, cutting_relay
from repertory.testing.session_contract import grow
from tests.backends.sessions.postgres_places import postgres_store, schema_of
from tests.postgres_server import PostgresServer
from tests.source_tree import ROOT

pytestmark = [pytest.mark.anyio, pytest.mark.real_time]

ROWS = grow(4)


@asynccontextmanager
async def relayed(
    postgres: PostgresServer, place: Path, **settings: object
) -> AsyncGenerator[tuple[PostgresSessionStore, PostgresSessionStore, CuttingRelay]]:
    """A store behind a relay, and one that sees the same without it."""
    with anyio.fail_after(50):
        async with cutting_relay(postgres.port) as relay:
            address = postgres_address(f"host=127.0.0.1 port={relay.port} user=postgres dbname=postgres")
            chosen = PostgresSettings(schema=schema_of(place), **settings)  # type: ignore[arg-type]
            store = PostgresSessionStore(address, owner="relayed", settings=chosen)
            observer = postgres_store(place, "observer")
            try:
                yield store, observer, relay
            finally:
                relay.mend()
                relay.let_flow()
                await store.aclose()
                await observer.aclose()


async def begun(store: PostgresSessionStore, session_id: str) -> Lease:
    lease, _ = await store.acquire(session_id)
    await store.append([Batch(lease=lease, rows=ROWS[:2])])
    return lease


async def test_rows_whose_acknowledgement_was_lost_are_found_to_be_stored(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    async with relayed(postgres, tmp_path) as (store, observer, relay):
        lease = await begun(store, "session")
        relay.plan("after", 1)
        with pytest.raises(StoreUnavailable) as failed:
            await store.append([Batch(lease=lease, rows=ROWS[2:3])])
        assert {"host", "port", "database"} <= failed.value.fields.keys()
        (outcome,) = await store.append([Batch(lease=lease, rows=ROWS[2:3])])
        assert isinstance(outcome, LeaseLost)
        assert outcome.fields["stored"] == 3
        (outcome,) = await store.append([Batch(lease=lease, rows=ROWS[3:])])
        assert outcome == Position(agent_id="default", seq=4)
        assert list(await observer.load("session", "default", whole=True)) == ROWS


async def test_a_database_that_does_not_answer_is_unavailable_after_a_while(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    async with relayed(postgres, tmp_path, timeout_s=0.5) as (store, observer, relay):
        lease = await begun(store, "session")
        relay.hold()
        with pytest.raises(StoreUnavailable, match="in time"):
            await store.append([Batch(lease=lease, rows=ROWS[2:])])
        with pytest.raises(StoreUnavailable, match="in time"):
            await store.load("session", "default")
        relay.let_flow()
        while True:
            try:
                (outcome,) = await store.append([Batch(lease=lease, rows=ROWS[2:])])
                break
            except StoreUnavailable:
                continue
        assert isinstance(outcome, Position | LeaseLost)
        assert list(await observer.load("session", "default", whole=True)) == ROWS


async def test_a_caller_that_is_cut_off_while_reading_ends_at_once_and_the_store_goes_on(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    async with relayed(postgres, tmp_path, connections=1) as (store, _, relay):
        lease = await begun(store, "session")
        relay.hold()
        with anyio.move_on_after(0.1) as scope:
            await store.load("session", "default")
        assert scope.cancelled_caught
        relay.let_flow()
        assert list(await store.load("session", "default", whole=True)) == ROWS[:2]
        assert await store.append([Batch(lease=lease, rows=ROWS[2:])]) == [Position(agent_id="default", seq=4)]


async def test_a_wrong_group_of_one_call_hinders_no_other(postgres: PostgresServer, tmp_path: Path) -> None:
    """What the server refuses of one session, among others that are committed together."""
    store = postgres_store(tmp_path, "owner")
    try:
        with anyio.fail_after(30):
            leases = [(await store.acquire(f"session-{n}")).lease for n in range(12)]
            outcomes: dict[int, object] = {}

            async def append(number: int, lease: Lease) -> None:
                rows = [ROWS[0]._replace(kind=1 << 40)] if number == 7 else ROWS
                try:
                    (outcomes[number],) = await store.append([Batch(lease=lease, rows=rows)])
                except RepertoryError as error:
                    outcomes[number] = error

            async with anyio.create_task_group() as tasks:
                for number, lease in enumerate(leases):
                    tasks.start_soon(append, number, lease)
            assert type(outcomes.pop(7)).__name__ == "Unwritable"
            assert set(map(type, outcomes.values())) == {Position}
            assert len(outcomes) == 11
    finally:
        await store.aclose()


async def test_a_commit_that_asyncio_itself_cuts_off_fails_no_other_call_for_good(
    postgres: PostgresServer, tmp_path: Path, anyio_backend_name: str
) -> None:
    if anyio_backend_name == "trio":
        pytest.skip("trio knows one kind of cancellation")
    store = postgres_store(tmp_path, "owner")
    try:
        leases = [(await store.acquire(f"session-{n}")).lease for n in range(8)]
        tasks = [asyncio.create_task(_appended(store, lease)) for lease in leases]
        for _ in range(6):
            await asyncio.sleep(0)
        tasks[0].cancel()
        ended = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 20)
        assert isinstance(ended[0], asyncio.CancelledError)
        for lease, outcome in zip(leases, ended, strict=True):
            assert isinstance(outcome, Position | StoreUnavailable | asyncio.CancelledError)
            stored = list(await store.load(lease.session_id, "default", whole=True))
            assert stored in ([], ROWS)
            if not isinstance(outcome, Position):
                while (await store.append([Batch(lease=lease, rows=ROWS[len(stored) :])])) == []:
                    pass
            assert list(await store.load(lease.session_id, "default", whole=True)) == ROWS
    finally:
        await store.aclose()


async def _appended(store: PostgresSessionStore, lease: Lease) -> object:
    (outcome,) = await store.append([Batch(lease=lease, rows=ROWS)])
    return outcome


FORKING = """
import os, sys
from repertory import Agent, PostgresSessionManager, ScriptedModel

def talk(session_id):
    place = PostgresSessionManager(session_id, sys.argv[1], schema=sys.argv[2])
    return Agent(ScriptedModel(["answer"], loop=True), session_manager=place, callback_handler=None)

parents = talk("parents")
parents("before")
child = os.fork()
if child == 0:
    talk("childs")("in the child")
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
parents("after")
print(len(parents.messages))
"""


def test_a_forked_child_leaves_the_connections_of_its_parent_alone(postgres: PostgresServer, tmp_path: Path) -> None:
    command = [sys.executable, "-W", "ignore", "-c", FORKING, postgres.url, schema_of(tmp_path)]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False, timeout=50)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == "4\n"
    sessions = postgres.sql(f"SELECT name, seqs FROM {schema_of(tmp_path)}.sessions ORDER BY name")
    assert [name for name, _ in sessions] == ["childs", "parents"]


async def test_appends_of_one_session_that_wait_are_committed_in_their_order(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    store, rows = postgres_store(tmp_path, "owner"), grow(60)
    try:
        with anyio.fail_after(30):
            leases = [(await store.acquire(f"session-{n}")).lease for n in range(6)]
            outcomes: list[object] = []

            async def append(lease: Lease, number: int) -> None:
                outcomes.extend(await store.append([Batch(lease=lease, rows=rows[number : number + 2])]))

            async with anyio.create_task_group() as tasks:
                for number in range(0, 60, 2):
                    for lease in leases:
                        tasks.start_soon(append, lease, number)
                        await anyio.lowlevel.checkpoint()
            assert set(map(type, outcomes)) == {Position}
            for lease in leases:
                assert list(await store.load(lease.session_id, "default", whole=True)) == rows
    finally:
        await store.aclose()
