"""Sessions whose messages are remembered by the commits that store them: both have the same, whatever happens."""

# The tests look at files between calls; nothing else runs on their loops.
# ruff: noqa: ASYNC240

from __future__ import annotations

import random
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from threading import Barrier, Thread
from typing import Any

import anyio
import anyio.to_thread
import pytest

from repertory import SearchOptions, SQLiteMemoryStore, SQLiteSessions
from repertory.backends.memory.sqlite.database import open_memory_database as open_memory
from repertory.backends.ports import Batch, SalvagedRows, SessionStore, give_up
from repertory.backends.sessions.sqlite.journals import Journals
from repertory.backends.sessions.sqlite.store import SQLiteSessionStore
from repertory.core.journal.codec import decode
from repertory.core.journal.records import MessageAdded
from repertory.core.journal.rows import RecordKind, Row
from repertory.core.messages import text_of
from repertory.errors import Failed, Unavailable
from repertory.testing.session_contract import grow
from tests.backends.memory.remembering_child import SESSIONS, redaction

pytestmark = [pytest.mark.anyio, pytest.mark.real_time]

CHILD = str(Path(__file__).with_name("remembering_child.py"))
ROOT = Path(__file__).parents[3]
Turn = tuple[object, ...]
"""Session, agent, sequence number, time and text."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "home" / "sessions.db"


@asynccontextmanager
async def opened(path: Path, *, remember: Any = True) -> AsyncIterator[SQLiteSessionStore]:
    store = SQLiteSessions(path, remember=remember).open_store()
    assert isinstance(store, SQLiteSessionStore)
    with anyio.fail_after(60):
        yield store
        await store.aclose()


async def in_journals(store: SessionStore) -> set[Turn]:
    """What sessions have said and what has not been erased since."""
    said: set[Turn] = set()
    for info in await store.sessions():
        for agent_id in info.agents:
            for row in await store.load(info.session_id, agent_id, whole=True):
                if row.kind == RecordKind.MESSAGE and not row.erased:
                    record = decode(row.kind, row.version, row.body)
                    assert isinstance(record, MessageAdded)
                    said.add((info.session_id, agent_id, row.seq, record.at, text_of(record.message)))
    return said


async def in_memory(path: Path, scope: str | None = None) -> set[Turn]:
    """The same, as a memory store on that file lists it. Each turn is found by its words as well."""
    store = SQLiteMemoryStore(path, scope=scope, busy_timeout_s=30)
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


def run_sql(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for statement in statements:
            connection.execute(statement)


def on_disk(path: Path) -> bytes:
    return b"".join(file.read_bytes() for file in path.parent.iterdir() if file.is_file())


async def test_what_is_appended_is_found_and_what_is_erased_is_not(path: Path) -> None:
    async with opened(path) as store:
        lease, second = (await store.acquire("s")).lease, (await store.acquire("t")).lease
        rows = grow(4)
        await store.append([Batch(lease=lease, rows=rows[:2]), Batch(lease=second, rows=grow(3, "helper"))])
        await store.append([Batch(lease=lease, rows=rows[2:]), redaction(lease, rows, rows[1])])
        assert len(await in_journals(store)) == 6
        assert await in_memory(path) == await in_journals(store)


async def test_what_the_same_commit_erases_never_enters_the_memory(path: Path) -> None:
    async with opened(path) as store:
        lease, _ = await store.acquire("s")
        await store.append([Batch(lease=lease, rows=grow(3), erase=[("default", 1)])])
        assert await in_memory(path) == await in_journals(store)
        assert {turn[2] for turn in await in_memory(path)} == {2, 3}


async def test_a_batch_that_is_refused_is_not_remembered(path: Path) -> None:
    async with opened(path) as store, opened(path) as other:
        lost, _ = await store.acquire("s")
        lease, _ = await other.acquire("s", takeover=True)
        await store.append([Batch(lease=lost, rows=grow(2))])
        assert await in_memory(path) == set()
        await other.append([Batch(lease=lease, rows=grow(1))])
        assert len(await in_memory(path)) == 1


async def test_a_commit_that_cannot_write_the_memory_stores_nothing_and_goes_through_later(path: Path) -> None:
    async with opened(path) as store:
        lease, _ = await store.acquire("s")
        rows = grow(3)
        await store.append([Batch(lease=lease, rows=rows[:1])])
        run_sql(path, "CREATE TRIGGER no BEFORE INSERT ON memory_text_data BEGIN SELECT RAISE(ABORT, 'disk'); END")
        with pytest.raises(Unavailable):
            await store.append([Batch(lease=lease, rows=rows[1:])])
        run_sql(path, "DROP TRIGGER no")
        assert len(await in_journals(store)) == 1
        assert await in_memory(path) == await in_journals(store)
        await store.append([Batch(lease=lease, rows=rows[1:])])
        assert len(await in_journals(store)) == 3
        assert await in_memory(path) == await in_journals(store)


async def test_a_session_that_is_deleted_is_forgotten_in_every_scope_and_begins_anew(path: Path) -> None:
    async with opened(path) as store, opened(path, remember="other") as scoped:
        for each in (store, scoped):
            lease, _ = await each.acquire("s")
            before = list(await each.load("s", "default", whole=True))
            rows = [*before, *grow(2, after=before)]
            await each.append([Batch(lease=lease, rows=rows[len(before) :]), redaction(lease, rows, rows[-1])])
            await give_up(each, lease)
        assert len(await in_memory(path)) + len(await in_memory(path, "other")) == 2
        await store.delete("s")
        assert await in_memory(path) | await in_memory(path, "other") == set()
        with closing(sqlite3.connect(path)) as connection:
            for table in ("conversations", "forgotten", "sources", "entries"):
                assert connection.execute(f"SELECT count(*) FROM memory_{table}").fetchone() == (0,)
        lease, _ = await store.acquire("s")
        await store.append([Batch(lease=lease, rows=grow(2))])
        assert len(await in_memory(path)) == 2


async def test_facts_go_with_what_they_were_taken_from_and_stay_when_learned_elsewhere(path: Path) -> None:
    memory = SQLiteMemoryStore(path)
    async with opened(path) as store:
        for session_id in ("s", "t"):
            lease, _ = await store.acquire(session_id)
            await store.append([Batch(lease=lease, rows=grow(2))])
            await give_up(store, lease)
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


@pytest.mark.parametrize("remember", [True, False])
async def test_nothing_of_what_was_erased_or_deleted_is_left_in_the_files(path: Path, *, remember: bool) -> None:
    """Also by an owner that remembers nothing itself."""
    async with opened(path) as store:
        for session_id in ("wagtail", "s"):
            lease, _ = await store.acquire(session_id)
            await store.append([Batch(lease=lease, rows=grow(3, "zugzwang"))])
            await give_up(store, lease)
    async with opened(path, remember=remember) as store:
        await store.delete("wagtail")
        lease, _ = await store.acquire("s")
        await store.append([Batch(lease=lease, rows=[], erase=[("zugzwang", seq)]) for seq in (1, 2, 3)])
    assert await in_memory(path) == set()
    assert b"wagtail" not in on_disk(path)
    # The agent's name stays in the journal, and was in each of its texts.
    assert on_disk(path).count(b"zugzwang says") == 0
    with closing(sqlite3.connect(path)) as connection:
        index = b"".join(block for (block,) in connection.execute("SELECT block FROM memory_text_data"))
    assert b"zugzwang" not in index


async def test_a_database_that_is_rebuilt_remembers_what_it_has(path: Path) -> None:
    def sound(salvage: SalvagedRows) -> list[Row]:
        return list(salvage.rows)[:-1]

    async with opened(path) as store:
        for session_id in ("s", "t"):
            lease, _ = await store.acquire(session_id)
            await store.append([Batch(lease=lease, rows=grow(4))])
            await give_up(store, lease)
        await store.rebuild(sound)
        assert len(await in_journals(store)) == 6
        assert await in_memory(path) == await in_journals(store)


async def test_what_is_set_aside_stays_in_the_memory_beside_what_comes_in_its_place(path: Path) -> None:
    async with opened(path) as store:
        lease, _ = await store.acquire("s")
        rows = grow(4)
        await store.append([Batch(lease=lease, rows=rows)])
        await give_up(store, lease)
        before = await in_memory(path)
        await store.set_aside("s", rows[:2])
        assert await in_memory(path) == before
        lease, _ = await store.acquire("s")
        await store.append([Batch(lease=lease, rows=grow(2, after=rows[:2], at=100.0))])
        assert await in_memory(path) == before | await in_journals(store)
        assert len(await in_memory(path)) == 6


@pytest.mark.parametrize("first", ["memory", "sessions", "sessions without memory"])
async def test_whichever_opens_the_file_first_the_other_finds_its_place(path: Path, first: str) -> None:
    memory = SQLiteMemoryStore(path)
    if first == "memory":
        await memory.add("a fact")
    async with opened(path, remember=first != "sessions without memory") as store:
        lease, _ = await store.acquire("s")
        await store.append([Batch(lease=lease, rows=grow(2))])
        await give_up(store, lease)
    if first != "memory":
        await memory.add("a fact")
    async with opened(path) as store:
        lease, _ = await store.acquire("t")
        await store.append([Batch(lease=lease, rows=grow(3))])
        assert len(await in_journals(store)) == 5
    kinds = [str((entry.metadata or {})["kind"]) for entry in (await memory.entries()).entries]
    assert sorted(kinds) == ["fact", *["turn"] * (3 if first == "sessions without memory" else 5)]
    await memory.aclose()


async def test_a_memory_of_a_later_release_is_refused_and_left_as_it_is(path: Path) -> None:
    memory = SQLiteMemoryStore(path)
    await memory.add("a fact")
    await memory.aclose()
    run_sql(path, "UPDATE memory_format SET version = 2", "PRAGMA wal_checkpoint(TRUNCATE)")
    content = path.read_bytes()
    for remember in (True, False):
        async with opened(path, remember=remember) as store:
            with pytest.raises(Failed, match="a newer release"):
                await store.acquire("s")
    assert path.read_bytes() == content


async def test_without_remember_nothing_is_stored_and_no_tables_are_made(path: Path) -> None:
    async with opened(path, remember=False) as store:
        lease, _ = await store.acquire("s")
        await store.append([Batch(lease=lease, rows=grow(3), erase=[("default", 1)])])
        await give_up(store, lease)
        await store.delete("s")
    with closing(sqlite3.connect(path)) as connection:
        names = [name for (name,) in connection.execute("SELECT name FROM sqlite_schema")]
    assert not [name for name in names if name.startswith("memory_")]


OPENING = """
import sys, anyio
from repertory import SearchOptions, SQLiteMemoryStore, SQLiteSessions
path, number = sys.argv[1:]
async def sessions():
    store = SQLiteSessions(path, remember=number != "2").open_store()
    await store.acquire(number)
    await store.aclose()
async def memory():
    store = SQLiteMemoryStore(path)
    await store.add("fact " + number)
    await store.aclose()
print("ready", flush=True)
sys.stdin.readline()
anyio.run(memory if int(number) % 2 else sessions)
"""


async def test_processes_that_open_a_file_at_the_same_time_all_succeed(path: Path) -> None:
    def together() -> list[int]:
        started = [
            subprocess.Popen(
                [sys.executable, "-c", OPENING, str(path), str(number)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                cwd=ROOT,
                env={"PYTHONPATH": str(ROOT)},
            )
            for number in range(4)
        ]
        for process in started:
            assert process.stdout is not None
            process.stdout.readline()
        for process in started:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
        codes = [process.wait(30) for process in started]
        for process in started:
            process.communicate()
        return codes

    assert await anyio.to_thread.run_sync(together) == [0, 0, 0, 0]
    memory = SQLiteMemoryStore(path)
    assert sorted(entry.content for entry in (await memory.entries()).entries) == ["fact 1", "fact 3"]
    await memory.aclose()


async def test_after_every_kill_journal_and_memory_have_the_same(path: Path, rng: random.Random) -> None:
    def killed(after: int) -> None:
        arguments = [sys.executable, CHILD, str(path), str(rng.randrange(2**32))]
        with subprocess.Popen(
            arguments, stdout=subprocess.PIPE, text=True, cwd=ROOT, env={"PYTHONPATH": str(ROOT)}
        ) as process:
            assert process.stdout is not None
            for _ in range(after):
                assert process.stdout.readline()
            for _ in range(rng.randrange(20_000)):  # A moment within what it does next.
                pass
            process.kill()

    sizes: list[int] = []
    for _ in range(4):
        await anyio.to_thread.run_sync(killed, rng.randint(1, 60))
        async with opened(path, remember=False) as store:
            said = await in_journals(store)
            assert await in_memory(path) == said
            assert {turn[0] for turn in said} <= set(SESSIONS)
            sizes.append(len(said))
    assert any(sizes)
    _check(path)


def _check(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


RULES = {"no name": lambda _: "", "a number": lambda _: 7, "raises": lambda session_id: {}[session_id]}


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
async def test_a_rule_that_fails_costs_its_session_alone(path: Path, rule: Callable[[str], Any]) -> None:
    asked: list[str] = []

    def told(session_id: str) -> Any:
        asked.append(session_id)
        return None if session_id == "good" else rule(session_id)

    async with opened(path, remember=told) as store:
        lease, _ = await store.acquire("good")
        with pytest.raises(ValueError, match=r"scope|remembered"):
            await store.acquire("bad")
        await store.append([Batch(lease=lease, rows=grow(2))])
        assert [info.session_id for info in await store.sessions()] == ["good"]
        assert asked == ["good", "bad"]
        assert await in_memory(path) == set()


def test_those_who_make_a_file_at_the_same_time_all_succeed(tmp_path: Path) -> None:
    """SQLite says at once that a database is locked whose log somebody else is about to make."""
    failed: list[BaseException] = []

    def make(begin: Barrier, open_it: Callable[[], closing[Any]]) -> None:
        begin.wait()
        try:
            with open_it():
                pass
        except Unavailable as error:
            failed.append(error)

    for number in range(60):
        file = tmp_path / f"{number}.db"

        def memory(file: Path = file) -> closing[Any]:
            return closing(open_memory(file, busy_timeout_s=5.0))

        def sessions(file: Path = file, owner: str = f"owner-{number}") -> closing[Any]:
            return closing(Journals(file, owner, busy_timeout_s=5.0))

        begin = Barrier(3)
        threads = [Thread(target=make, args=(begin, each)) for each in (memory, memory, sessions)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not failed
