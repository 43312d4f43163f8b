"""The tables in PostgreSQL: their version and a dump of it, damage, and what erasing leaves in the files."""

from __future__ import annotations

import subprocess
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import anyio.to_thread
import psycopg
import pytest

from repertory.backends.ports import Batch, Position, WorkQuery, begin, give_up
from repertory.backends.postgres.tables import VERSION
from repertory.backends.sessions.postgres.store import PostgresSessionStore
from repertory.core.journal.records import MessageAdded
from repertory.core.journal.restore import Appender, Fold
from repertory.core.journal.rows import Row, verify
from repertory.core.pending_work import PendingWork
from repertory.errors import CorruptJournal, StoreFailed
from repertory.testing.session_contract import grow, windowed
from tests.backends.sessions.postgres_places import postgres_store, schema_of
from tests.postgres_server import PostgresServer, postgres_server, programs

pytestmark = [pytest.mark.anyio, pytest.mark.real_time]

GOLDEN = Path(__file__).parents[2] / "golden"
GOLDEN_SCHEMA = "repertory"


@asynccontextmanager
async def closing(*stores: PostgresSessionStore) -> AsyncGenerator[None]:
    try:
        with anyio.fail_after(50):
            yield
    finally:
        for store in stores:
            await store.aclose()


async def until(true: Callable[[], bool]) -> None:
    while not true():  # noqa: ASYNC110 - files tell
        await anyio.sleep(0.05)


def said(appender: Appender, text: str) -> Row:
    fold = appender.fold
    role = "assistant" if fold.message_count % 2 else "user"
    message = {"role": role, "content": [{"text": text}]}
    return appender.append(
        MessageAdded(at=1.0, message=message, turn=fold.turns + (role == "user"), index=fold.message_count)  # type: ignore[arg-type]
    )


# Versions.


async def test_a_store_reads_and_continues_what_a_dump_has(postgres: PostgresServer, tmp_path: Path) -> None:
    """The dump was made by `pg_dump --schema=repertory --no-owner --inserts`."""
    schema = schema_of(tmp_path)
    dump = (
        (GOLDEN / "postgres-v1.sql")
        .read_text()
        .replace(f"{GOLDEN_SCHEMA}.", f"{schema}.")
        .replace(f"SCHEMA {GOLDEN_SCHEMA};", f"SCHEMA {schema};")
    )
    found = programs()
    assert found is not None
    command = [str(found / "psql"), "-q", "-v", "ON_ERROR_STOP=1", "-d", postgres.url]
    loaded = await anyio.to_thread.run_sync(lambda: subprocess.run(command, input=dump, text=True, capture_output=True))
    assert loaded.returncode == 0, loaded.stderr
    store = postgres_store(tmp_path, "owner")
    async with closing(store):
        infos = {info.session_id: info for info in await store.sessions()}
        assert {name: (dict(info.agents), info.owner) for name, info in infos.items()} == {
            "erased": ({"default": 3}, None),
            "Ärger 'mit' \"Zeichen\"": ({"an agent": 2, 'b"c': 1}, None),
            "window": ({"default": 36}, None),
        }
        rows = list(await store.load("window", "default", whole=True))
        assert rows == windowed(30)
        assert [row.seq for row in await store.labels("window", "default")] == [11, 23, 35]
        erased = list(await store.load("erased", "default", whole=True))
        assert [row.erased for row in erased] == [False, True, False]
        verify(erased, session_id="erased")
        lease, _ = await store.acquire("window")
        assert lease.generation > 3
        more = grow(1, after=rows)
        assert await store.append([Batch(lease=lease, rows=more)]) == [Position(agent_id="default", seq=37)]
        assert await store.quarantined("erased")
        works = {"window": (1310.0, "turn", 5), "erased": (5000.0, "expiry", 1)}
        assert [*await store.pending_work()] == [
            PendingWork(session_id=name, agent_id="default", at=at, why=why, claims=claims)
            for name, (at, why, claims) in works.items()
        ]
        assert {work.session_id for work in await store.claim_due(WorkQuery(1e6, 10, {"default"}))} == {*works} - {
            "window"
        }
    assert postgres.sql(f"SELECT version FROM {schema}.meta") == [(VERSION,)]


@pytest.mark.parametrize("version", [VERSION + 1, 0])
async def test_tables_of_another_release_are_left_alone(postgres: PostgresServer, tmp_path: Path, version: int) -> None:
    store = postgres_store(tmp_path, "owner")
    async with closing(store):
        await give_up(store, (await store.acquire("session")).lease)
    postgres.sql(f"UPDATE {schema_of(tmp_path)}.meta SET version = {version}")
    other = postgres_store(tmp_path, "other")
    async with closing(other):
        for call in (other.acquire("session"), other.sessions(), other.delete("session")):
            with pytest.raises(StoreFailed, match="another version"):
                await call
    assert postgres.sql(f"SELECT version FROM {schema_of(tmp_path)}.meta") == [(version,)]


async def test_reading_makes_no_tables(postgres: PostgresServer, tmp_path: Path) -> None:
    store = postgres_store(tmp_path, "owner")
    async with closing(store):
        assert list(await store.sessions()) == list(await store.load("session", "default")) == []
        assert (await store.inspect()).damages == ()
    assert postgres.sql(f"SELECT 1 FROM pg_namespace WHERE nspname = '{schema_of(tmp_path)}'") == []


async def test_processes_that_begin_at_the_same_moment_make_the_tables_once(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    stores = [postgres_store(tmp_path, f"owner-{n}") for n in range(6)]
    async with closing(*stores), anyio.create_task_group() as tasks:
        for number, store in enumerate(stores):
            tasks.start_soon(store.acquire, f"session-{number}")


async def test_tables_that_are_gone_are_missed(postgres: PostgresServer, tmp_path: Path) -> None:
    store = postgres_store(tmp_path, "owner")
    async with closing(store):
        lease, _ = await store.acquire("session")
        postgres.sql(f"DROP SCHEMA {schema_of(tmp_path)} CASCADE")
        with pytest.raises(StoreFailed, match="gone"):
            await store.append([Batch(lease=lease, rows=grow(1))])


# Damage.


async def test_missing_rows_are_found_and_the_rest_is_salvaged(postgres: PostgresServer, tmp_path: Path) -> None:
    schema, rows = schema_of(tmp_path), windowed(20)
    store = postgres_store(tmp_path, "owner")
    async with closing(store):
        for name in ("sound", "gap", "end", "empty"):
            await begin(store, name, rows)
        begun = "(SELECT id FROM {0}.sessions WHERE name = '{1}')"
        for name, where in (("gap", "seq = 20"), ("end", "seq >= 22"), ("empty", "seq > 0")):
            postgres.sql(f"DELETE FROM {schema}.rows WHERE session = {begun.format(schema, name)} AND {where}")
        postgres.sql(
            f"INSERT INTO {schema}.rows"
            f" SELECT 4711, seq, low, agent, kind, version, link, salt, body FROM {schema}.rows LIMIT 3"
        )
        found = await store.inspect()
        assert set(found.sick) == {"gap", "end", "empty"}
        assert [stray.split()[0] for stray in found.strays] == ["3"]
        for name in ("gap", "end", "empty"):
            with pytest.raises(CorruptJournal, match="missing"):
                await store.load(name, "default", whole=True)
            assert await store.examine(name)
        assert not await store.examine("sound")
        salvaged = await store.salvage("gap")
        assert sorted(salvaged.rows) == sorted(row for row in rows if row.seq != 20)
        assert list(await store.load("sound", "default", whole=True)) == rows


# Erasing.


@pytest.fixture(scope="module")
def own_server() -> Iterator[PostgresServer]:
    """A server whose files are read."""
    with postgres_server(wal_level="minimal", max_wal_senders="0") as server:
        yield server


def held_in(server: PostgresServer, text: bytes) -> list[str]:
    """The files of tables, indexes and what lies beside them that hold this text."""
    server.sql("CHECKPOINT")
    return [path.name for path in (server.data / "base").rglob("*") if path.is_file() and text in path.read_bytes()]


async def test_what_is_erased_leaves_the_files_soon(own_server: PostgresServer, tmp_path: Path) -> None:
    small, large, gone = (f"SECRET-{tmp_path.name}-{n}" for n in range(3))
    store = postgres_store(tmp_path, "owner", own_server)
    appender = Appender("default", Fold(), None, lambda size: b"s" * size)
    rows = [said(appender, text) for text in ("kept", small, "kept", "-".join(large for _ in range(3000)))]
    async with closing(store), anyio.create_task_group() as tasks:
        tasks.start_soon(store.maintain)
        for number in range(40):
            await begin(store, f"other-{number}", grow(6))
        await begin(store, "gone", [said(Appender("default", Fold(), None, lambda size: b"s" * size), gone)])
        lease, _ = await store.acquire("session")
        await store.append([Batch(lease=lease, rows=rows)])
        for text in (small, large[:8], gone):
            assert held_in(own_server, text.encode())
        await store.append([Batch(lease=lease, rows=(), erase=[("default", 2), ("default", 4)])])
        await store.delete("gone")
        await until(lambda: not any(held_in(own_server, text.encode()) for text in (small, gone)))
        assert [row.erased for row in await store.load("session", "default", whole=True)] == [False, True, False, True]
        assert len(await store.sessions()) == 41
        await until(lambda: not own_server.sql(f"SELECT 1 FROM {schema_of(tmp_path)}.erasures"))
        tasks.cancel_scope.cancel()


async def test_what_is_erased_waits_for_those_that_may_still_see_it(own_server: PostgresServer, tmp_path: Path) -> None:
    secret = f"SECRET-{tmp_path.name}"
    store = postgres_store(tmp_path, "owner", own_server)
    appender = Appender("default", Fold(), None, lambda size: b"s" * size)
    marks = f"SELECT count(*) FROM {schema_of(tmp_path)}.erasures"
    async with closing(store):
        lease, _ = await store.acquire("session")
        await store.append([Batch(lease=lease, rows=[said(appender, secret)])])
        with psycopg.connect(own_server.dsn()) as watching:
            watching.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            watching.execute("SELECT count(*) FROM pg_class")
            await store.append([Batch(lease=lease, rows=(), erase=[("default", 1)])])
            assert await store._erasures.write_anew() is True
            assert own_server.sql(marks) == [(1,)]
            assert held_in(own_server, secret.encode())
            watching.execute(f"SELECT count(*) FROM {schema_of(tmp_path)}.rows")  # Now it holds locks as well.
            assert await store._erasures.write_anew() is True
        assert await store._erasures.write_anew() is False
        assert own_server.sql(marks) == [(0,)]
        assert not held_in(own_server, secret.encode())


async def test_what_a_killed_process_has_erased_is_finished_by_the_next(
    own_server: PostgresServer, tmp_path: Path
) -> None:
    secret = f"SECRET-{tmp_path.name}"
    store = postgres_store(tmp_path, "owner", own_server)
    appender = Appender("default", Fold(), None, lambda size: b"s" * size)
    lease, _ = await store.acquire("session")
    await store.append([Batch(lease=lease, rows=[said(appender, secret)])])
    await store.append([Batch(lease=lease, rows=(), erase=[("default", 1)])])
    store.abandon()
    assert held_in(own_server, secret.encode())
    other = postgres_store(tmp_path, "other", own_server)
    async with closing(other), anyio.create_task_group() as tasks:
        tasks.start_soon(other.maintain)
        await other.sessions()
        await until(lambda: not held_in(own_server, secret.encode()))
        tasks.cancel_scope.cancel()


async def test_while_one_part_is_written_anew_the_others_are_read_and_written(
    own_server: PostgresServer, tmp_path: Path
) -> None:
    schema, rows = schema_of(tmp_path), grow(3)
    store = postgres_store(tmp_path, "owner", own_server)
    names = [f"session-{n}" for n in range(60)]
    async with closing(store):
        leases = {}
        for name in names:
            leases[name], _ = await store.acquire(name)
            await store.append([Batch(lease=leases[name], rows=rows[:2])])
            for _ in range(7):  # By then a prepared statement has its lasting plan.
                await store.load(name, "default")
        parts = own_server.sql(
            f"SELECT s.name, r.tableoid::regclass::text FROM {schema}.rows AS r JOIN {schema}.sessions AS s"
            " ON s.id = r.session WHERE r.seq = 1"
        )
        locked = str(parts[0][1])
        others = [str(name) for name, part in parts if part != locked]
        assert 0 < len(others) < len(names)
        with psycopg.connect(own_server.dsn()) as rewriting:
            rewriting.execute(f"LOCK TABLE {locked} IN ACCESS EXCLUSIVE MODE")
            with anyio.fail_after(30):
                for name in others:
                    assert list(await store.load(name, "default", whole=True)) == rows[:2]
                    assert await store.append([Batch(lease=leases[name], rows=rows[2:])]) == [
                        Position(agent_id="default", seq=3)
                    ]
