"""Memories of turns and facts, in a file and in PostgreSQL: what they keep, what they count once, what they give back.

The contract of every store is in `test_memory_contract.py`; what is particular to a database stands beside this.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import anyio
import pytest

from repertory import PostgresMemoryStore, SQLiteMemoryStore
from repertory.core.memory.options import MemoryEntry
from repertory.core.messages import Message
from repertory.errors import Invalid, NotFound
from tests.backends.memory.postgres_memories import postgres_memory

pytestmark = [pytest.mark.anyio, pytest.mark.real_time]

WAIT_S = 30.0
RankedStore: TypeAlias = "SQLiteMemoryStore | PostgresMemoryStore"
OpenStore: TypeAlias = "Callable[..., RankedStore]"


@pytest.fixture(params=["SQLite", "PostgreSQL"])
def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> OpenStore:
    """Opens stores on the same place."""
    if request.param == "SQLite":
        return lambda **settings: SQLiteMemoryStore(tmp_path / "memory.db", **settings)
    request.getfixturevalue("postgres")
    return lambda **settings: postgres_memory(tmp_path, **settings)


@pytest.fixture
async def store(open_store: OpenStore) -> AsyncIterator[RankedStore]:
    opened = open_store()
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


async def everything(store: RankedStore) -> list[str]:
    return contents((await store.entries(limit=1000)).entries)


# ----------------------------------------------------------------------------------------------- taking in, giving back


async def test_turns_are_found_with_where_they_come_from(store: RankedStore) -> None:
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


async def test_metadata_is_given_back_as_it_was_given(store: RankedStore) -> None:
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


async def test_a_day_and_a_speaker_can_be_asked_for(store: RankedStore) -> None:
    await store.add("it rained", {"speaker": "Ada", "session": "1", "said_at": 1683554160.0})
    await store.add("it snowed", {"speaker": "Ben", "session": "2", "said_at": 1700000000.0})
    for number in range(5):
        await store.add("nothing of note", {"speaker": "Cy", "session": f"{number}-", "said_at": 1.6e9})
    assert contents(await store.search("What was in May 2023?"))[0] == "it rained"
    assert contents(await store.search("What did Ben say?"))[0] == "it snowed"


async def test_a_query_is_never_an_error(store: RankedStore, rng: random.Random) -> None:
    await store.add("the heron nests")
    alphabet = "a\"'*:(){}^-+,.;NEARORANDNOT \x00\n\t\ud800\u0301\u6f22\U0001f600content"
    for _ in range(200):
        await store.search("".join(rng.choices(alphabet, k=rng.randint(0, 30))))
    assert await store.search("unheard") == []


async def test_options_are_objects_mappings_or_none(store: RankedStore) -> None:
    await store.add_messages(said(*(f"heron {number}" for number in range(20))), {"session_id": "s"})
    assert len(await store.search("heron")) == 10
    assert len(await store.search("heron", {"max_search_results": 3})) == 3  # type: ignore[arg-type]
    with pytest.raises(Invalid, match="no such options"):
        await store.search("heron", {"limit": 3})  # type: ignore[arg-type]
    with pytest.raises(Invalid, match="positive"):
        await store.search("heron", {"max_search_results": 0})  # type: ignore[arg-type]


async def test_entries_are_listed_in_pages(store: RankedStore) -> None:
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


async def test_a_turn_is_taken_once(store: RankedStore) -> None:
    assert await store.add_messages(said("one", "two"), where(1, 2)) == 2
    assert await store.add_messages(said("one", "two", "three"), where(1, 2, 3)) == 1
    assert await store.add_messages(said("one"), where(1, session_id="other")) == 1
    assert await store.add_messages(said("one"), where(1, agent_id="other")) == 1
    assert await everything(store) == ["one", "two", "three", "one", "one"]


async def test_a_turn_with_a_known_number_and_another_time_is_another_turn(store: RankedStore) -> None:
    """A session that was deleted and begun again counts anew."""
    times = {"message_times": [1.0, 2.0]}
    assert await store.add_messages(said("one", "two"), where(1, 2, **times)) == 2
    assert await store.add_messages(said("one", "two", "three"), where(1, 2, 3, message_times=[1.0, 2.0, 3.0])) == 1
    assert await store.add_messages(said("one", "two"), where(1, 2)) == 0
    assert await store.add_messages(said("uno", "dos"), where(1, 2, message_times=[8.0, 9.0])) == 2
    assert await store.add_messages(said("four"), where(4)) == 1
    assert await store.add_messages(said("four"), where(4, said_at=4.0)) == 0
    assert [known(entry).get("said_at") for entry in (await store.entries()).entries] == [1.0, 2.0, 3.0, 8.0, 9.0, None]


async def test_there_is_one_time_per_message(store: RankedStore) -> None:
    with pytest.raises(Invalid, match="one time per message"):
        await store.add_messages(said("one", "two"), where(1, 2, message_times=[1.0]))
    with pytest.raises(Invalid, match="one time per sequence number"):
        await store.add("a fact", context=where(1, 2, message_times=[1.0]))


async def test_a_key_is_taken_once(store: RankedStore) -> None:
    key = {"idempotency_key": "k"}
    assert await store.add("one", context=key) is not None  # type: ignore[arg-type]
    assert await store.add("another", context=key) is None  # type: ignore[arg-type]
    assert await store.add_messages(said("third"), key) == 0  # type: ignore[arg-type]
    assert await everything(store) == ["one"]


async def test_a_fact_that_is_known_is_counted(store: RankedStore) -> None:
    first = await store.add("Ada likes tea")
    assert await store.add(" ada likes  TEA.") == first
    assert await store.add("Ada likes coffee") != first
    (found, _) = await store.search("tea Ada")
    assert (found.content, known(found)["seen"]) == ("Ada likes tea", 2)


async def test_the_same_turn_said_twice_is_two_turns(store: RankedStore) -> None:
    await store.add_messages(said("thanks", "thanks"), where(1, 2))
    assert await everything(store) == ["thanks", "thanks"]


# ---------------------------------------------------------------------------------------------- superseding, forgetting


async def test_what_is_superseded_is_found_only_as_of_a_time_before(store: RankedStore) -> None:
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


async def test_a_fact_that_holds_again_is_a_new_one(store: RankedStore) -> None:
    first = await store.add("Ada likes tea")
    await store.supersede(str(first), "Ada likes coffee")
    assert await store.add("Ada likes tea") != first


async def test_forgetting_a_turn_forgets_what_was_taken_from_it(store: RankedStore) -> None:
    await store.add_messages(said("Ada: I like tea", "noted", "Ada: and rowing"), where(1, 2, 3))
    await store.add("Ada likes tea", context=where(1, 2))
    await store.add("Ada rows", context=where(3))
    assert await store.forget(session_id="s", seq=1) == 2
    assert await everything(store) == ["noted", "Ada: and rowing", "Ada rows"]
    assert await store.search("tea") == []


async def test_a_fact_that_was_learned_elsewhere_as_well_stays(store: RankedStore) -> None:
    await store.add("Ada likes tea", context=where(1))
    await store.add("Ada likes tea", context=where(5, session_id="other"))
    assert await store.forget(session_id="s") == 0
    (found,) = await store.search("tea")
    assert (known(found)["seen"], known(found)["session_id"]) == (1, "other")
    assert await store.forget(session_id="other") == 1
    assert await everything(store) == []


async def test_what_was_forgotten_does_not_come_back(store: RankedStore) -> None:
    await store.add_messages(said("one", "two"), where(1, 2))
    (first, _) = (await store.entries()).entries
    assert await store.forget(known(first)["id"]) == 1
    assert await store.add_messages(said("one", "two", "three"), where(1, 2, 3)) == 1
    assert await store.add("from one", context=where(1, 3)) is None
    assert await everything(store) == ["two", "three"]


async def test_what_was_forgotten_is_told_from_what_has_its_number_by_the_time(store: RankedStore) -> None:
    await store.add_messages(said("one"), where(1, message_times=[1.0]))
    assert await store.forget(session_id="s") == 1
    assert await store.add_messages(said("one"), where(1, message_times=[1.0])) == 0
    assert await store.add("of one", context=where(1, message_times=[1.0])) is None
    assert await store.add("of one or another", context=where(1)) is None
    assert await store.add("of another", context=where(1, message_times=[5.0])) is not None
    assert await store.add_messages(said("another"), where(1, message_times=[5.0])) == 1
    assert await everything(store) == ["of another", "another"]


async def test_what_the_caller_calls_alike_is_forgotten_together(store: RankedStore) -> None:
    await store.add("first", {"id": "mine"})
    await store.add("second", {"id": "mine"})
    own = await store.add("third")
    assert await store.forget("mine") == 2
    assert await store.forget("mine") == 0
    assert await store.forget(str(own)) == 1


@pytest.mark.parametrize("named", [{}, {"memory_id": "1", "session_id": "s"}, {"seq": 1}, {"memory_id": "1", "seq": 1}])
async def test_forgetting_says_what(store: RankedStore, named: Any) -> None:
    with pytest.raises(Invalid):
        await store.forget(**named)


async def test_scopes_share_a_place_and_nothing_else(open_store: OpenStore) -> None:
    one, other, none = (open_store(scope=scope) for scope in ("one", "other", None))
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
