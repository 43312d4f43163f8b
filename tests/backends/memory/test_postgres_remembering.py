"""Sessions in PostgreSQL whose messages are remembered by the commits that store them: both have the same, whatever
happens.
"""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from repertory import PostgresSessions, SearchOptions
from repertory.backends.ports import Batch, SessionStore, begin, give_up
from repertory.backends.sessions.postgres.store import PostgresSessionStore
from repertory.errors import StoreFailed, Unavailable
from repertory.testing.session_contract import grow
from tests.backends.memory.postgres_memories import postgres_memory
from tests.backends.memory.remembering_child import SESSIONS, redaction
from tests.backends.memory.test_sqlite_remembering import RULES, Turn, in_journals
from tests.backends.sessions.postgres_places import schema_of
from tests.postgres_server import PostgresServer, postgres_server
from tests.source_tree import ROOT

pytestmark = [pytest.mark.anyio, pytest.mark.real_time]

CHILD = str(Path(__file__).with_name("remembering_child.py"))


@asynccontextmanager
async def opened(server: PostgresServer, place: Path, *, remember: Any = True) -> AsyncIterator[PostgresSessionStore]:
    store = PostgresSessions(server.dsn(), schema=schema_of(place), remember=remember).open_store()
    assert isinstance(store, PostgresSessionStore)
    with anyio.fail_after(60):
        yield store
        await store.aclose()


async def in_memory(server: PostgresServer, place: Path, scope: str | None = None) -> set[Turn]:
    """What a memory store in that schema lists. Each turn is found by its words as well."""
    store = postgres_memory(place, server, scope=scope)
    page = await store.entries(limit=1000)
    assert page.next is None
    turns: list[Turn] = []
    for entry in page.entries:
        known = entry.metadata or {}
        turns.append((known["session_id"], known["agent_id"], known["seq"], known["said_at"], entry.content))
    assert len(turns) == len(set(turns))
    found = await store.search("says", SearchOptions(max_search_results=1000))
    assert sorted(entry.content for entry in found) == sorted(str(turn[-1]) for turn in turns)
    await store.aclose()
    return set(turns)


async def test_what_is_appended_is_found_and_what_is_erased_is_not(postgres: PostgresServer, tmp_path: Path) -> None:
    async with opened(postgres, tmp_path) as store:
        assert list(await store.sessions()) == []
        lease, second = (await store.acquire("s")).lease, (await store.acquire("t")).lease
        rows = grow(4)
        await store.append([Batch(lease=lease, rows=rows[:2]), Batch(lease=second, rows=grow(3, "helper"))])
        await store.append([Batch(lease=lease, rows=rows[2:]), redaction(lease, rows, rows[1])])
        assert len(await in_journals(store)) == 6
        assert await in_memory(postgres, tmp_path) == await in_journals(store)


async def test_what_the_same_commit_erases_never_enters_the_memory(postgres: PostgresServer, tmp_path: Path) -> None:
    async with opened(postgres, tmp_path) as store:
        lease, _ = await store.acquire("s")
        await store.append([Batch(lease=lease, rows=grow(3), erase=[("default", 1)])])
        assert await in_memory(postgres, tmp_path) == await in_journals(store)
        assert {turn[2] for turn in await in_memory(postgres, tmp_path)} == {2, 3}


async def test_a_batch_that_is_refused_is_not_remembered(postgres: PostgresServer, tmp_path: Path) -> None:
    async with opened(postgres, tmp_path) as store, opened(postgres, tmp_path) as other:
        lost, _ = await store.acquire("s")
        lease, _ = await other.acquire("s", takeover=True)
        await store.append([Batch(lease=lost, rows=grow(2))])
        assert await in_memory(postgres, tmp_path) == set()
        await other.append([Batch(lease=lease, rows=grow(1))])
        assert len(await in_memory(postgres, tmp_path)) == 1


async def test_a_session_that_begins_whole_is_remembered_and_what_is_set_aside_stays(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    async with opened(postgres, tmp_path) as store:
        rows = grow(4)
        await begin(store, "s", rows)
        before = await in_memory(postgres, tmp_path)
        assert before == await in_journals(store)
        await store.set_aside("s", rows[:2])
        assert await in_memory(postgres, tmp_path) == before
        lease, _ = await store.acquire("s")
        await store.append([Batch(lease=lease, rows=grow(2, after=rows[:2], at=100.0))])
        assert await in_memory(postgres, tmp_path) == before | await in_journals(store)


async def test_a_commit_that_cannot_write_the_memory_stores_nothing_and_goes_through_later(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    schema = schema_of(tmp_path)
    async with opened(postgres, tmp_path) as store:
        lease, _ = await store.acquire("s")
        rows = grow(3)
        await store.append([Batch(lease=lease, rows=rows[:1])])
        postgres.sql(
            f"CREATE FUNCTION {schema}.no() RETURNS trigger LANGUAGE plpgsql AS"
            " $$ BEGIN RAISE 'disk' USING ERRCODE = '53100'; END $$;"
            f" CREATE TRIGGER no BEFORE UPDATE ON {schema}.memory_scopes EXECUTE FUNCTION {schema}.no()"
        )
        with pytest.raises(Unavailable):
            await store.append([Batch(lease=lease, rows=rows[1:])])
        assert len(await in_journals(store)) == 1
        assert await in_memory(postgres, tmp_path) == await in_journals(store)
        postgres.sql(f"DROP TRIGGER no ON {schema}.memory_scopes")
        await store.append([Batch(lease=lease, rows=rows[1:])])
        assert len(await in_journals(store)) == 3
        assert await in_memory(postgres, tmp_path) == await in_journals(store)


async def test_a_session_that_is_deleted_is_forgotten_in_every_scope_and_begins_anew(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    schema = schema_of(tmp_path)
    async with opened(postgres, tmp_path) as store, opened(postgres, tmp_path, remember="other") as scoped:
        for each in (store, scoped):
            lease, _ = await each.acquire("s")
            before = list(await each.load("s", "default", whole=True))
            rows = [*before, *grow(2, after=before)]
            await each.append([Batch(lease=lease, rows=rows[len(before) :]), redaction(lease, rows, rows[-1])])
            await give_up(each, lease)
        assert len(await in_memory(postgres, tmp_path)) + len(await in_memory(postgres, tmp_path, "other")) == 2
        await store.delete("s")
        assert await in_memory(postgres, tmp_path) | await in_memory(postgres, tmp_path, "other") == set()
        entries = [f"entries_{number:02}" for number in range(8)]
        for table in ("conversations", "forgotten", "sources", *entries):
            assert postgres.sql(f"SELECT count(*) FROM {schema}.memory_{table}") == [(0,)]
        lease, _ = await store.acquire("s")
        await store.append([Batch(lease=lease, rows=grow(2))])
        assert len(await in_memory(postgres, tmp_path)) == 2


async def test_facts_go_with_what_they_were_taken_from_and_stay_when_learned_elsewhere(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    memory = postgres_memory(tmp_path)
    async with opened(postgres, tmp_path) as store:
        for session_id in ("s", "t"):
            await begin(store, session_id, grow(2))
        for fact, places in (("one", [("s", 1)]), ("two", [("s", 2)]), ("both", [("s", 1), ("t", 1)])):
            for session_id, seq in places:
                context: Any = {"session_id": session_id, "agent_id": "default", "sequence_numbers": [seq]}
                await memory.add(fact, context=context)

        async def facts() -> list[str]:
            found = (await memory.entries()).entries
            return [entry.content for entry in found if (entry.metadata or {})["kind"] == "fact"]

        lease, _ = await store.acquire("s")
        await store.append([Batch(lease=lease, rows=[], erase=[("default", 1)])])
        assert await facts() == ["two", "both"]
        await give_up(store, lease)
        await store.delete("s")
        assert await facts() == ["both"]
        context = {"session_id": "s", "agent_id": "default", "sequence_numbers": [1]}
        await memory.add("again", context=context)
        assert await facts() == ["both", "again"]
    await memory.aclose()


@pytest.fixture(scope="module")
def own_server() -> Iterator[PostgresServer]:
    """A server whose files are read."""
    with postgres_server(wal_level="minimal", max_wal_senders="0") as server:
        yield server


def held_in(server: PostgresServer, text: bytes) -> list[str]:
    """The files of tables and indexes that hold this text."""
    server.sql("CHECKPOINT")
    return [path.name for path in (server.data / "base").rglob("*") if path.is_file() and text in path.read_bytes()]


@pytest.mark.parametrize("remember", [True, False])
async def test_what_is_erased_or_deleted_leaves_the_files_of_the_memory(
    own_server: PostgresServer, tmp_path: Path, *, remember: bool
) -> None:
    """Also by an owner that remembers nothing itself. The name of a session stays in no table of the memory."""
    said = [b"zugzwang says", b"wagtail says"]
    schema = schema_of(tmp_path)
    async with opened(own_server, tmp_path) as store:
        await begin(store, "gone", grow(3, "wagtail"))
        await begin(store, "s", grow(3, "zugzwang"))
    for text in said:
        assert held_in(own_server, text)
    async with opened(own_server, tmp_path, remember=remember) as store, anyio.create_task_group() as tasks:
        tasks.start_soon(store.maintain)
        await store.delete("gone")
        lease, _ = await store.acquire("s")
        await store.append([Batch(lease=lease, rows=[], erase=[("zugzwang", seq)]) for seq in (1, 2, 3)])
        marks = f"SELECT 1 FROM {schema}.erasures UNION ALL SELECT 1 FROM {schema}.memory_erasures"
        while own_server.sql(marks):  # noqa: ASYNC110 - the tables tell
            await anyio.sleep(0.1)
        tasks.cancel_scope.cancel()
    assert await in_memory(own_server, tmp_path) == set()
    assert [held_in(own_server, text) for text in said] == [[], []]
    assert own_server.sql(f"SELECT count(*) FROM {schema}.memory_postings_00") == [(0,)]
    assert own_server.sql(f"SELECT session FROM {schema}.memory_conversations") == [("s",)]


@pytest.mark.parametrize("first", ["memory", "sessions", "sessions without memory"])
async def test_whichever_makes_its_tables_first_the_other_finds_its_place(
    postgres: PostgresServer, tmp_path: Path, first: str
) -> None:
    memory = postgres_memory(tmp_path)
    if first == "memory":
        await memory.add("a fact")
    async with opened(postgres, tmp_path, remember=first != "sessions without memory") as store:
        await begin(store, "s", grow(2))
    if first != "memory":
        await memory.add("a fact")
    async with opened(postgres, tmp_path) as store:
        assert len(await store.sessions()) == 1
        await begin(store, "t", grow(3))
        assert len(await in_journals(store)) == 5
    kinds = [str((entry.metadata or {})["kind"]) for entry in (await memory.entries()).entries]
    assert sorted(kinds) == ["fact", *["turn"] * (3 if first == "sessions without memory" else 5)]
    await memory.aclose()


async def test_a_memory_of_a_later_release_is_refused_and_left_as_it_is(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    memory = postgres_memory(tmp_path)
    await memory.add("a fact")
    await memory.aclose()
    postgres.sql(f"UPDATE {schema_of(tmp_path)}.memory_meta SET version = 2")
    for remember in (True, False):
        async with opened(postgres, tmp_path, remember=remember) as store:
            with pytest.raises(StoreFailed, match="another version"):
                await store.acquire("s")


async def test_without_remember_nothing_is_stored_and_no_tables_are_made(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    async with opened(postgres, tmp_path, remember=False) as store:
        lease, _ = await store.acquire("s")
        await store.append([Batch(lease=lease, rows=grow(3), erase=[("default", 1)])])
        await give_up(store, lease)
        await store.delete("s")
    tables = f"SELECT 1 FROM pg_tables WHERE schemaname = '{schema_of(tmp_path)}' AND tablename LIKE 'memory%'"
    assert postgres.sql(tables) == []


async def test_those_that_remember_in_several_scopes_at_once_never_wait_in_a_circle(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    """A group has sessions of many scopes, and each scope is locked."""
    names = [f"s{number}" for number in range(8)]
    async with (
        opened(postgres, tmp_path, remember=lambda name: f"scope-{int(name[1:]) % 4}") as one,
        opened(postgres, tmp_path, remember=lambda name: f"scope-{3 - int(name[1:]) % 4}") as other,
    ):

        async def write(store: SessionStore, mine: list[str]) -> None:
            leases = [(await store.acquire(name)).lease for name in mine]
            rows = grow(24)
            for start in range(0, 24, 2):
                batches = [Batch(lease=lease, rows=rows[start : start + 2]) for lease in leases]
                await store.append(batches if start % 4 else batches[::-1])

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(write, one, names)
            tasks.start_soon(write, other, [f"s{number}" for number in range(8, 16)])
        scopes = [await in_memory(postgres, tmp_path, f"scope-{number}") for number in range(4)]
        assert set().union(*scopes) == await in_journals(one)


async def test_after_every_kill_journal_and_memory_have_the_same(
    postgres: PostgresServer, tmp_path: Path, rng: random.Random
) -> None:
    def killed(after: int) -> None:
        arguments = [sys.executable, CHILD, postgres.dsn(), str(rng.randrange(2**32)), schema_of(tmp_path)]
        environment = {"PYTHONPATH": str(ROOT)}
        with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment) as process:
            assert process.stdout is not None
            for _ in range(after):
                assert process.stdout.readline()
            for _ in range(rng.randrange(20_000)):  # A moment within what it does next.
                pass
            process.kill()

    sizes: list[int] = []
    for _ in range(4):
        await anyio.to_thread.run_sync(killed, rng.randint(1, 60))
        async with opened(postgres, tmp_path, remember=False) as store:
            while any(info.owner for info in await store.sessions()):  # noqa: ASYNC110 - the server ends its last work
                await anyio.sleep(0.01)
            said = await in_journals(store)
            assert await in_memory(postgres, tmp_path) == said
            assert {turn[0] for turn in said} <= set(SESSIONS)
            sizes.append(len(said))
    assert any(sizes)


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
async def test_a_rule_that_fails_costs_its_session_alone(
    postgres: PostgresServer, tmp_path: Path, rule: Callable[[str], Any]
) -> None:
    def told(session_id: str) -> Any:
        return None if session_id == "good" else rule(session_id)

    async with opened(postgres, tmp_path, remember=told) as store:
        lease, _ = await store.acquire("good")
        with pytest.raises(ValueError, match=r"scope|remembered"):
            await store.acquire("bad")
        await store.append([Batch(lease=lease, rows=grow(2))])
        assert [info.session_id for info in await store.sessions()] == ["good"]
        assert await in_memory(postgres, tmp_path) == set()
