"""The embedded memory store: what it keeps, what it counts once, what it gives back, and its file.

The contract of every store is in `test_memory_contract.py`.
"""

# The tests look at files between calls; nothing else runs on their loops.
# ruff: noqa: ASYNC240

from __future__ import annotations

import os
import sqlite3
import stat
import threading
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest

from repertory import SQLiteMemoryStore
from repertory.core.memory.options import MemoryEntry
from repertory.core.messages import Message
from repertory.core.recall.candidates import READ_LEAST, READ_MOST, read_max
from repertory.errors import Corrupt, Failed, Invalid, Unavailable

pytestmark = [pytest.mark.anyio, pytest.mark.real_time]

WAIT_S = 30.0


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "home" / "memory.db"


@pytest.fixture
async def store(path: Path) -> AsyncIterator[SQLiteMemoryStore]:
    opened = SQLiteMemoryStore(path, busy_timeout_s=0.1)
    with anyio.fail_after(WAIT_S):
        yield opened
        await opened.aclose()


def said(*texts: str) -> list[Message]:
    return [{"role": ("user", "assistant")[place % 2], "content": [{"text": text}]} for place, text in enumerate(texts)]


def where(*numbers: int, session_id: str = "s", **known: Any) -> Any:
    return {"session_id": session_id, "sequence_numbers": list(numbers), **known}


def contents(entries: Sequence[MemoryEntry]) -> list[str]:
    return [entry.content for entry in entries]


def known(entry: MemoryEntry) -> dict[str, Any]:
    return dict(entry.metadata or {})


def on_disk(path: Path) -> bytes:
    return b"".join(file.read_bytes() for file in path.parent.iterdir())


async def everything(store: SQLiteMemoryStore) -> list[str]:
    return contents((await store.entries(limit=1000)).entries)


# Forgetting.


async def test_nothing_of_what_was_forgotten_is_left_in_the_files(store: SQLiteMemoryStore, path: Path) -> None:
    await store.add_messages(said("the Xylograph77 of Ada", *(f"turn {n}" for n in range(200))), where(*range(1, 202)))
    await store.add("Quizzical88 comes from it", context=where(1))
    assert b"ylograph77" in on_disk(path)
    await store.forget(session_id="s", seq=1)
    left = on_disk(path).lower()
    assert b"ylograph77" not in left
    assert b"uizzical88" not in left
    assert len(await store.search("turn")) == 10


# ------------------------------------------------------------------------------------------------------------- the file


async def test_nothing_is_created_before_the_first_write(store: SQLiteMemoryStore, path: Path) -> None:
    assert await store.search("anything") == []
    assert await everything(store) == []
    assert await store.forget("1") == 0
    assert not path.parent.exists()
    previous = os.umask(0)
    try:
        await store.add("one")
    finally:
        os.umask(previous)
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert {stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()} == {0o600}


async def test_nothing_outlives_aclose_and_it_opens_again(path: Path) -> None:
    before = set(os.listdir("/proc/self/fd"))
    store = SQLiteMemoryStore(path)
    await store.add("heron")
    for _ in range(2):
        await store.aclose()
    assert not [thread for thread in threading.enumerate() if thread.name == "repertory memory.db"]
    assert set(os.listdir("/proc/self/fd")) <= before
    assert contents(await store.search("heron")) == ["heron"]
    await store.aclose()


async def test_a_symbolic_link_is_refused(store: SQLiteMemoryStore, path: Path) -> None:
    path.parent.mkdir()
    path.symlink_to(path.parent / "elsewhere")
    with pytest.raises(Invalid, match="symbolic link"):
        await store.add("one")


async def test_a_file_that_is_no_memory_is_corrupt_and_untouched(store: SQLiteMemoryStore, path: Path) -> None:
    path.parent.mkdir()
    for content in (b"no database at all" * 100, b"SQLite format 3\0" + b"\xff" * 5000):
        path.write_bytes(content)
        with pytest.raises(Corrupt, match=str(path)):
            await store.add("one")
        assert path.read_bytes() == content


async def test_a_database_of_something_else_or_of_a_later_release_is_refused(path: Path) -> None:
    store = SQLiteMemoryStore(path)
    await store.add("one")
    await store.aclose()
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE memory_format SET version = 2")
    connection.close()
    with pytest.raises(Failed, match="a newer release"):
        await store.search("one")
    await store.aclose()
    path.unlink()
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE other (a)")
    connection.close()
    with pytest.raises(Corrupt, match="not a memory"):
        await store.add("one")
    await store.aclose()


async def test_a_database_that_somebody_else_writes_is_unavailable(store: SQLiteMemoryStore, path: Path) -> None:
    await store.add("one")
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    with pytest.raises(Unavailable):
        await store.add("two")
    assert contents(await store.search("one")) == ["one"]
    connection.execute("ROLLBACK")
    connection.close()
    await store.add("two")
    assert await everything(store) == ["one", "two"]


async def test_a_file_that_was_replaced_is_noticed(store: SQLiteMemoryStore, path: Path) -> None:
    await store.add("one")
    path.rename(path.with_name("old.db"))
    path.write_bytes(b"")
    with pytest.raises(Unavailable, match="replaced"):
        await store.add("two")


async def test_a_cancelled_write_is_stored_wholly_or_not_at_all(store: SQLiteMemoryStore) -> None:
    batch = said(*(f"turn {number}" for number in range(50)))
    for attempt in range(5):
        with anyio.move_on_after(0.0005 * attempt):
            await store.add_messages(batch, {"session_id": f"{attempt}"})
    found = len(await everything(store))
    assert found % 50 == 0


def test_memories_can_be_stored_in_a_transaction_of_another_database(tmp_path: Path) -> None:
    """The tables may lie beside others, and what is inserted belongs to the transaction that is open."""
    from repertory.backends.memory.sqlite.entries import create_tables, insert_turns
    from repertory.backends.memory.sqlite.recall import recall
    from repertory.core.memory.options import AddMessagesContext
    from repertory.core.recall.candidates import Query
    from repertory.core.recall.entries import sayings_of

    connection = sqlite3.connect(tmp_path / "sessions.db", isolation_level=None)
    create_tables(connection)
    turns = sayings_of(said("the heron nests"), AddMessagesContext(session_id="s", sequence_numbers=[1]))
    query = Query(scope="", question="heron", limit=5)
    for end, count in (("ROLLBACK", 0), ("COMMIT", 1)):
        connection.execute("BEGIN IMMEDIATE")
        insert_turns(connection, "", turns, now=0.0)
        assert len(recall(connection, query)) == 1
        connection.execute(end)
        assert len(recall(connection, query)) == count
    connection.close()


@pytest.mark.parametrize(("given", "match"), [({"name": "a/b"}, "store name"), ({"scope": ""}, "scope")])
def test_names_and_scopes_are_ids(given: Any, match: str) -> None:
    with pytest.raises(Invalid, match=match):
        SQLiteMemoryStore("memory.db", **given)


def test_the_default_place_is_below_the_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("REPERTORY_HOME", str(tmp_path))
    assert SQLiteMemoryStore().path == tmp_path / "memory.db"


def test_the_work_of_a_search_is_bounded_however_large_the_memory_is() -> None:
    sizes = [0, 1, 1000, 4000, 10_000, 40_000, 100_000, 10_000_000]
    read = [read_max(size) for size in sizes]
    assert read == sorted(read, reverse=True)
    assert read[3] == READ_MOST
    assert read[-1] == READ_LEAST
    assert all(entries * size <= 20_000_000 or entries == READ_LEAST for entries, size in zip(read, sizes, strict=True))
