"""Several processes on one memory: what was acknowledged survives every kill, and is there once when given again."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections import Counter
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from repertory import PostgresMemoryStore, SQLiteMemoryStore
from tests.backends.memory.memory_child import BATCH, batch
from tests.backends.sessions.postgres_places import schema_of
from tests.postgres_server import PostgresServer

pytestmark = [pytest.mark.anyio, pytest.mark.real_time]

CHILD = str(Path(__file__).with_name("memory_child.py"))
ROOT = Path(__file__).parents[3]


def killed(where: str, sessions: list[str], batches: int, *schema: str) -> dict[str, int]:
    """Let processes write side by side, kill each after so many batches. Returns what each has acknowledged."""
    started = {
        session_id: subprocess.Popen(
            [sys.executable, CHILD, where, session_id, *schema],
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={"PYTHONPATH": str(ROOT)},
        )
        for session_id in sessions
    }
    acknowledged: dict[str, int] = {}
    for session_id, process in started.items():
        with process:
            assert process.stdout is not None
            for _ in range(batches):
                acknowledged[session_id] = int(process.stdout.readline())
            process.kill()
            acknowledged[session_id] = max([acknowledged[session_id], *map(int, process.stdout.read().split())])
    return acknowledged


async def test_killed_writers_lose_nothing_and_leave_nothing_half(tmp_path: Path) -> None:
    path = tmp_path / "memory.db"
    acknowledged = await anyio.to_thread.run_sync(killed, str(path), ["one", "other"], 8)
    store = SQLiteMemoryStore(path, busy_timeout_s=20.0)
    await _check_acknowledged(store, acknowledged)
    await store.aclose()
    await anyio.to_thread.run_sync(_check, path)


async def test_killed_writers_in_postgresql_lose_nothing_and_leave_nothing_half(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    place = schema_of(tmp_path)
    acknowledged = await anyio.to_thread.run_sync(killed, postgres.dsn(), ["one", "other"], 8, place)
    store = PostgresMemoryStore(postgres.dsn(), schema=place)
    await _check_acknowledged(store, acknowledged)
    await store.aclose()


async def _check_acknowledged(store: SQLiteMemoryStore | PostgresMemoryStore, acknowledged: dict[str, int]) -> None:
    stored = await _stored(store)
    for session_id, batches in acknowledged.items():
        assert batches * BATCH <= stored[session_id] <= (batches + 1) * BATCH
        assert stored[session_id] % BATCH == 0
        for number in range(1, batches + 2):
            messages, numbers = batch(number)
            await store.add_messages(messages, {"session_id": session_id, "sequence_numbers": numbers})  # type: ignore[arg-type]
    assert await _stored(store) == {session_id: (batches + 1) * BATCH for session_id, batches in acknowledged.items()}
    assert len(await store.search("heron")) == 10


async def _stored(store: SQLiteMemoryStore | PostgresMemoryStore) -> Counter[str]:
    page = await store.entries(limit=1000)
    found: list[str] = []
    while True:
        found += [str((entry.metadata or {})["session_id"]) for entry in page.entries]
        if page.next is None:
            return Counter(found)
        page = await store.entries(limit=1000, after=page.next)


def _check(path: Path) -> None:
    """The tables and the index are whole."""
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    (entries,) = connection.execute("SELECT count(*) FROM memory_entries").fetchone()
    statement = "SELECT count(*) FROM memory_text WHERE memory_text MATCH 'heron'"
    assert connection.execute(statement).fetchone() == (entries,)
    connection.close()
