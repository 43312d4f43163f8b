"""The embedded memory store: what it keeps, what it counts once, what it gives back, and its file.

The contract of every store is in `test_memory_contract.py`.
"""

# The tests look at files between calls; nothing else runs on their loops.
# ruff: noqa: ASYNC240

from __future__ import annotations

import os
import random
import sqlite3
import stat
import threading
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest

from repertory import SQLiteMemoryStore
from repertory.backends.memory.sqlite.recall import READ_LEAST, READ_MOST, read_max
from repertory.core.memory.options import MemoryEntry
from repertory.core.messages import Message
from repertory.errors import Corrupt, Failed, Invalid, NotFound, Unavailable

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


# ----------------------------------------------------------------------------------------------- taking in, giving back


async def test_turns_are_found_with_where_they_come_from(store: SQLiteMemoryStore) -> None:
    messages = said("Ada: the heron nests by the weir", "Ben: since when?")
    assert await store.add_messages(messages, where(3, 7, agent_id="a", said_at=1683554160.0)) == 2
    first, second = await store.search("Where does the heron nest?")
    assert first.content == "Ada: the heron nests by the weir"
    assert first.store_name is None
    got = known(first)
    assert {key: got[key] for key in ("kind", "role", "session_id", "agent_id", "seq", "said_at")} == {
        "kind": "turn",
        "role": "user",
        "session_id": "s",
        "agent_id": "a",
        "seq": 3,
        "said_at": 1683554160.0,
    }
    assert got["score"] > known(second)["score"] > 0
    assert second.content == "Ben: since when?"  # it has none of the words, and stands beside one that has


async def test_metadata_is_given_back_as_it_was_given(store: SQLiteMemoryStore) -> None:
    given = {
        "id": "D1:3",
        "speaker": "Ada",
        "session": "s1",
        "date": "8 May, 2023",
        "tags": ["a", {"b": None}],
        "kind": "x",
    }
    assert await store.add("the heron nests", given) == "D1:3"
    (found,) = await store.search("heron")
    assert known(found).items() >= {key: value for key, value in given.items() if key != "tags"}.items()
    assert known(found)["tags"] == given["tags"]


async def test_a_day_and_a_speaker_can_be_asked_for(store: SQLiteMemoryStore) -> None:
    await store.add("it rained", {"speaker": "Ada", "session": "1", "said_at": 1683554160.0})
    await store.add("it snowed", {"speaker": "Ben", "session": "2", "said_at": 1700000000.0})
    for number in range(5):
        await store.add("nothing of note", {"speaker": "Cy", "session": f"{number}-", "said_at": 1.6e9})
    assert contents(await store.search("What was in May 2023?"))[0] == "it rained"
    assert contents(await store.search("What did Ben say?"))[0] == "it snowed"


async def test_a_query_is_never_an_error(store: SQLiteMemoryStore, rng: random.Random) -> None:
    await store.add("the heron nests")
    alphabet = "a\"'*:(){}^-+,.;NEARORANDNOT \x00\n\t\ud800\u0301\u6f22\U0001f600content"
    for _ in range(200):
        await store.search("".join(rng.choices(alphabet, k=rng.randint(0, 30))))
    assert await store.search("unheard") == []


async def test_options_are_objects_mappings_or_none(store: SQLiteMemoryStore) -> None:
    await store.add_messages(said(*(f"heron {number}" for number in range(20))), {"session_id": "s"})
    assert len(await store.search("heron")) == 10
    assert len(await store.search("heron", {"max_search_results": 3})) == 3  # type: ignore[arg-type]
    with pytest.raises(Invalid, match="no such options"):
        await store.search("heron", {"limit": 3})  # type: ignore[arg-type]
    with pytest.raises(Invalid, match="positive"):
        await store.search("heron", {"max_search_results": 0})  # type: ignore[arg-type]


async def test_entries_are_listed_in_pages(store: SQLiteMemoryStore) -> None:
    await store.add_messages(said(*(f"turn {number}" for number in range(25))), {"session_id": "s"})
    listed: list[str] = []
    after: str | None = None
    while True:
        page = await store.entries(after=after, limit=10)
        listed += contents(page.entries)
        if page.next is None:
            break
        after = page.next
    assert listed == [f"turn {number}" for number in range(25)]
    with pytest.raises(Invalid):
        await store.entries(after="x")


# ------------------------------------------------------------------------------------------------------------ only once


async def test_a_turn_is_taken_once(store: SQLiteMemoryStore) -> None:
    assert await store.add_messages(said("one", "two"), where(1, 2)) == 2
    assert await store.add_messages(said("one", "two", "three"), where(1, 2, 3)) == 1
    assert await store.add_messages(said("one"), where(1, session_id="other")) == 1
    assert await store.add_messages(said("one"), where(1, agent_id="other")) == 1
    assert await everything(store) == ["one", "two", "three", "one", "one"]


async def test_a_turn_with_a_known_number_and_another_time_is_another_turn(store: SQLiteMemoryStore) -> None:
    """A session that was deleted and begun again counts anew."""
    times = {"message_times": [1.0, 2.0]}
    assert await store.add_messages(said("one", "two"), where(1, 2, **times)) == 2
    assert await store.add_messages(said("one", "two", "three"), where(1, 2, 3, message_times=[1.0, 2.0, 3.0])) == 1
    assert await store.add_messages(said("one", "two"), where(1, 2)) == 0
    assert await store.add_messages(said("uno", "dos"), where(1, 2, message_times=[8.0, 9.0])) == 2
    assert await store.add_messages(said("four"), where(4)) == 1
    assert await store.add_messages(said("four"), where(4, said_at=4.0)) == 0
    assert [known(entry).get("said_at") for entry in (await store.entries()).entries] == [1.0, 2.0, 3.0, 8.0, 9.0, None]


async def test_there_is_one_time_per_message(store: SQLiteMemoryStore) -> None:
    with pytest.raises(Invalid, match="one time per message"):
        await store.add_messages(said("one", "two"), where(1, 2, message_times=[1.0]))
    with pytest.raises(Invalid, match="one time per sequence number"):
        await store.add("a fact", context=where(1, 2, message_times=[1.0]))


async def test_a_key_is_taken_once(store: SQLiteMemoryStore) -> None:
    key = {"idempotency_key": "k"}
    assert await store.add("one", context=key) is not None  # type: ignore[arg-type]
    assert await store.add("another", context=key) is None  # type: ignore[arg-type]
    assert await store.add_messages(said("third"), key) == 0  # type: ignore[arg-type]
    assert await everything(store) == ["one"]


async def test_a_fact_that_is_known_is_counted(store: SQLiteMemoryStore) -> None:
    first = await store.add("Ada likes tea")
    assert await store.add(" ada likes  TEA.") == first
    assert await store.add("Ada likes coffee") != first
    (found, _) = await store.search("tea Ada")
    assert (found.content, known(found)["seen"]) == ("Ada likes tea", 2)


async def test_the_same_turn_said_twice_is_two_turns(store: SQLiteMemoryStore) -> None:
    await store.add_messages(said("thanks", "thanks"), where(1, 2))
    assert await everything(store) == ["thanks", "thanks"]


# ---------------------------------------------------------------------------------------------- superseding, forgetting


async def test_what_is_superseded_is_found_only_as_of_a_time_before(store: SQLiteMemoryStore) -> None:
    old = await store.add("Ada lives in Lund", {"said_at": 100.0})
    assert old is not None
    new = await store.supersede(old, "Ada lives in Malm\u00f6", {"said_at": 200.0})
    assert contents(await store.search("Where does Ada live?")) == ["Ada lives in Malm\u00f6"]
    assert contents(await store.search("Where does Ada live?", as_of=150.0)) == ["Ada lives in Lund"]
    assert contents(await store.search("Where does Ada live?", as_of=200.0)) == ["Ada lives in Malm\u00f6"]
    assert await store.search("Where does Ada live?", as_of=50.0) == []
    before = known((await store.entries()).entries[0])
    assert (before["superseded_by"], before["superseded_at"]) == (new, 200.0)
    with pytest.raises(NotFound):
        await store.supersede("999", "nothing")


async def test_a_fact_that_holds_again_is_a_new_one(store: SQLiteMemoryStore) -> None:
    first = await store.add("Ada likes tea")
    await store.supersede(str(first), "Ada likes coffee")
    assert await store.add("Ada likes tea") != first


async def test_forgetting_a_turn_forgets_what_was_taken_from_it(store: SQLiteMemoryStore) -> None:
    await store.add_messages(said("Ada: I like tea", "noted", "Ada: and rowing"), where(1, 2, 3))
    await store.add("Ada likes tea", context=where(1, 2))
    await store.add("Ada rows", context=where(3))
    assert await store.forget(session_id="s", seq=1) == 2
    assert await everything(store) == ["noted", "Ada: and rowing", "Ada rows"]
    assert await store.search("tea") == []


async def test_a_fact_that_was_learned_elsewhere_as_well_stays(store: SQLiteMemoryStore) -> None:
    await store.add("Ada likes tea", context=where(1))
    await store.add("Ada likes tea", context=where(5, session_id="other"))
    assert await store.forget(session_id="s") == 0
    (found,) = await store.search("tea")
    assert (known(found)["seen"], known(found)["session_id"]) == (1, "other")
    assert await store.forget(session_id="other") == 1
    assert await everything(store) == []


async def test_what_was_forgotten_does_not_come_back(store: SQLiteMemoryStore) -> None:
    await store.add_messages(said("one", "two"), where(1, 2))
    (first, _) = (await store.entries()).entries
    assert await store.forget(known(first)["id"]) == 1
    assert await store.add_messages(said("one", "two", "three"), where(1, 2, 3)) == 1
    assert await store.add("from one", context=where(1, 3)) is None
    assert await everything(store) == ["two", "three"]


async def test_what_was_forgotten_is_told_from_what_has_its_number_by_the_time(store: SQLiteMemoryStore) -> None:
    await store.add_messages(said("one"), where(1, message_times=[1.0]))
    assert await store.forget(session_id="s") == 1
    assert await store.add_messages(said("one"), where(1, message_times=[1.0])) == 0
    assert await store.add("of one", context=where(1, message_times=[1.0])) is None
    assert await store.add("of one or another", context=where(1)) is None
    assert await store.add("of another", context=where(1, message_times=[5.0])) is not None
    assert await store.add_messages(said("another"), where(1, message_times=[5.0])) == 1
    assert await everything(store) == ["of another", "another"]


async def test_what_the_caller_calls_alike_is_forgotten_together(store: SQLiteMemoryStore) -> None:
    await store.add("first", {"id": "mine"})
    await store.add("second", {"id": "mine"})
    own = await store.add("third")
    assert await store.forget("mine") == 2
    assert await store.forget("mine") == 0
    assert await store.forget(str(own)) == 1


@pytest.mark.parametrize("named", [{}, {"memory_id": "1", "session_id": "s"}, {"seq": 1}, {"memory_id": "1", "seq": 1}])
async def test_forgetting_says_what(store: SQLiteMemoryStore, named: Any) -> None:
    with pytest.raises(Invalid):
        await store.forget(**named)


async def test_nothing_of_what_was_forgotten_is_left_in_the_files(store: SQLiteMemoryStore, path: Path) -> None:
    await store.add_messages(said("the Xylograph77 of Ada", *(f"turn {n}" for n in range(200))), where(*range(1, 202)))
    await store.add("Quizzical88 comes from it", context=where(1))
    assert b"ylograph77" in on_disk(path)
    await store.forget(session_id="s", seq=1)
    left = on_disk(path).lower()
    assert b"ylograph77" not in left
    assert b"uizzical88" not in left
    assert len(await store.search("turn")) == 10


async def test_scopes_share_a_file_and_nothing_else(path: Path) -> None:
    one, other, none = (SQLiteMemoryStore(path, scope=scope) for scope in ("one", "other", None))
    for store, content in ((one, "heron of one"), (other, "heron of the other"), (none, "heron of none")):
        await store.add(content)
        await store.add_messages(said(f"turn: {content}"), where(1, idempotency_key="k"))
    assert await one.forget("3") == 0
    with pytest.raises(NotFound):
        await one.supersede("3", "stolen")
    assert await one.forget(session_id="nowhere") == 0
    assert await other.forget(session_id="s") == 1
    assert await everything(one) == ["heron of one", "turn: heron of one"]
    assert await everything(other) == ["heron of the other"]
    assert contents(await other.search("heron")) == ["heron of the other"]
    assert contents(await other.search("s1 s2 s3 zqheron heron", as_of=9e9)) == ["heron of the other"]
    assert len(await none.search("heron")) == 2
    for store in (one, other, none):
        await store.aclose()


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
    from repertory.backends.memory.sqlite.recall import Sought, recall
    from repertory.core.memory.options import AddMessagesContext
    from repertory.core.recall.entries import sayings_of

    connection = sqlite3.connect(tmp_path / "sessions.db", isolation_level=None)
    create_tables(connection)
    turns = sayings_of(said("the heron nests"), AddMessagesContext(session_id="s", sequence_numbers=[1]))
    sought = Sought(scope="", question="heron", limit=5)
    for end, count in (("ROLLBACK", 0), ("COMMIT", 1)):
        connection.execute("BEGIN IMMEDIATE")
        insert_turns(connection, "", turns, now=0.0)
        assert len(recall(connection, sought)) == 1
        connection.execute(end)
        assert len(recall(connection, sought)) == count
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
