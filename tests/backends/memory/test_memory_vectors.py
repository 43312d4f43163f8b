"""Vectors in memories, in a file and in PostgreSQL with and without pgvector: when they are made, what they find."""

from __future__ import annotations

import random
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeAlias

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest

from repertory import PostgresMemoryStore, SQLiteMemoryStore
from repertory.backends.memory.vectors import EXACT_MAX
from repertory.core.memory.options import MemoryEntry
from repertory.core.messages import Message
from repertory.errors import Failed, Invalid
from tests.backends.memory.postgres_memories import postgres_memory
from tests.postgres_server import PostgresServer, postgres_server

pytest.importorskip("numpy")
pytestmark = [pytest.mark.anyio, pytest.mark.real_time]

WAIT_S = 30.0
RankedStore: TypeAlias = "SQLiteMemoryStore | PostgresMemoryStore"
OpenStore: TypeAlias = "Callable[..., RankedStore]"
MEANINGS = (("heron", "bird", "egret"), ("weir", "dam"), ("tea", "drink"), ("boat", "dinghy"))


class Meanings:
    """An embedder that knows a few words: texts with words of one meaning have the same vector."""

    def __init__(self, name: str = "meanings") -> None:
        self.name = name
        self.dimensions = len(MEANINGS)
        self.asked: list[str] = []
        self.fails = False
        self.gate: threading.Event | None = None

    async def embed(self, texts: Sequence[str]) -> Sequence[Sequence[float]]:
        self.asked += texts
        if self.gate is not None:
            await anyio.to_thread.run_sync(self.gate.wait)
        if self.fails:
            raise RuntimeError("out of order")
        return [[float(any(word in text.lower() for word in words)) for words in MEANINGS] for text in texts]


@pytest.fixture(scope="session")
def with_pgvector() -> Iterator[PostgresServer]:
    with postgres_server() as server:
        if not server.sql("SELECT 1 FROM pg_available_extensions WHERE name = 'vector'"):
            pytest.skip(
                "pgvector is not installed (Debian: apt-get install postgresql-17-pgvector, or as the server is)"
            )
        server.sql('CREATE SCHEMA "odd Name"; CREATE EXTENSION vector SCHEMA "odd Name"')
        yield server


@pytest.fixture(params=["SQLite", "PostgreSQL", "pgvector"])
def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> OpenStore:
    """Opens stores on the same place."""
    if request.param == "SQLite":
        return lambda **settings: SQLiteMemoryStore(tmp_path / "memory.db", **settings)
    server = request.getfixturevalue("postgres" if request.param == "PostgreSQL" else "with_pgvector")
    return lambda **settings: postgres_memory(tmp_path, server, **settings)


@pytest.fixture
def embedder() -> Meanings:
    return Meanings()


@pytest.fixture
async def store(open_store: OpenStore, embedder: Meanings) -> AsyncIterator[SQLiteMemoryStore]:
    opened = open_store(embedder=embedder)
    with anyio.fail_after(WAIT_S):
        yield opened
        await opened.aclose()


def contents(entries: Sequence[MemoryEntry]) -> list[str]:
    return [entry.content for entry in entries]


async def filled(store: RankedStore) -> None:
    said = ("the heron sleeps", "tea is ready", "the dam broke", "nothing of note")
    messages: list[Message] = [{"role": "user", "content": [{"text": text}]} for text in said]
    for number, message in enumerate(messages):
        await store.add_messages([message], {"session_id": str(number)})  # type: ignore[arg-type]


async def test_what_means_the_same_is_found(store: RankedStore) -> None:
    await filled(store)
    await store.embed()
    assert contents(await store.search("egret"))[0] == "the heron sleeps"
    assert contents(await store.search("dinghy or weir"))[0] == "the dam broke"


async def test_vectors_follow_a_write_by_themselves(store: RankedStore) -> None:
    await filled(store)
    while not await store.search("egret"):
        await anyio.lowlevel.checkpoint()
    assert contents(await store.search("egret"))[0] == "the heron sleeps"


async def test_a_write_does_not_wait_for_its_vector_and_is_found_at_once(
    store: RankedStore, embedder: Meanings
) -> None:
    embedder.gate = threading.Event()
    await filled(store)
    embedder.gate.set()
    assert "the heron sleeps" in contents(await store.search("heron"))


async def test_closing_ends_the_thread_and_the_rest_is_made_later(open_store: OpenStore, embedder: Meanings) -> None:
    store = open_store()
    await filled(store)
    await store.aclose()
    store = open_store(embedder=embedder)
    await store.add("a dinghy on the lake")
    await store.aclose()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("repertory memory")]
    await store.embed()
    assert contents(await store.search("egret"))[0] == "the heron sleeps"
    await store.aclose()


async def test_each_entry_is_embedded_once(store: RankedStore, embedder: Meanings, open_store: OpenStore) -> None:
    await filled(store)
    await store.embed()
    await store.aclose()
    before = len(embedder.asked)
    other = open_store(embedder=embedder)
    await other.embed()
    await other.aclose()
    assert len(embedder.asked) == before


async def test_what_other_stores_add_and_forget_is_followed(open_store: OpenStore, embedder: Meanings) -> None:
    one, other = open_store(embedder=embedder), open_store(embedder=embedder)
    await filled(one)
    await one.embed()
    assert contents(await other.search("egret"))[0] == "the heron sleeps"
    await one.add("a bird of prey")
    await one.embed()
    assert set(contents(await other.search("egret"))[:2]) == {"the heron sleeps", "a bird of prey"}
    assert await one.forget(session_id="0") == 1
    assert contents(await other.search("egret"))[0] == "a bird of prey"
    await one.aclose()
    await other.aclose()


async def test_scopes_see_only_their_vectors(open_store: OpenStore, embedder: Meanings) -> None:
    one, other = (open_store(embedder=embedder, scope=scope) for scope in ("one", "other"))
    await one.add("the heron sleeps")
    await other.add("tea is ready")
    await one.embed()
    await other.embed()
    assert "the heron sleeps" not in contents(await other.search("egret"))
    await one.aclose()
    await other.aclose()


async def test_another_embedder_is_refused_until_all_is_made_anew(store: RankedStore, open_store: OpenStore) -> None:
    await filled(store)
    await store.embed()
    changed = open_store(embedder=Meanings("newer"))
    with pytest.raises(Invalid, match="another embedder"):
        await changed.search("egret")
    with pytest.raises(Invalid, match="another embedder"):
        await changed.embed()
    await changed.embed(anew=True)
    assert contents(await changed.search("egret"))[0] == "the heron sleeps"
    await changed.aclose()


async def test_an_embedder_that_fails_leaves_words(store: RankedStore, embedder: Meanings) -> None:
    embedder.fails = True
    await filled(store)
    assert contents(await store.search("heron")) == ["the heron sleeps"]
    with pytest.raises(Failed, match="the embedder failed"):
        await store.embed()
    embedder.fails = False
    await store.embed()
    assert contents(await store.search("egret"))[0] == "the heron sleeps"


@pytest.mark.parametrize("vectors", [[[1.0]], [], [[1.0, 2.0, 3.0, float("nan")]], [[1.0], [2.0, 3.0]], "no"])
async def test_vectors_of_other_dimensions_are_refused(open_store: OpenStore, vectors: list[list[float]]) -> None:
    class Liar(Meanings):
        async def embed(self, texts: Sequence[str]) -> Sequence[Sequence[float]]:
            return vectors

    store = open_store(embedder=Liar())
    await store.add("the heron sleeps")
    with pytest.raises(Failed, match="the embedder gave no vectors"):
        await store.embed()
    assert contents(await store.search("heron")) == ["the heron sleeps"]
    await store.aclose()


async def test_the_most_alike_is_found_among_more_than_are_compared_exactly(open_store: OpenStore, seed: int) -> None:
    class Random(Meanings):
        """A direction of its own for every text, and for a question that of the text with its number."""

        async def embed(self, texts: Sequence[str]) -> Sequence[Sequence[float]]:
            directions = (random.Random(f"{seed} {text.split()[-1][1:]}") for text in texts)
            return [[direction.gauss(0, 1) for _ in range(self.dimensions)] for direction in directions]

    embedder = Random()
    embedder.dimensions = 64
    store = open_store(embedder=embedder)
    count = EXACT_MAX + 300
    messages: list[Message] = [{"role": "user", "content": [{"text": f"entry a{number}"}]} for number in range(count)]
    await store.add_messages(messages)
    await store.embed()
    for number in (0, count // 2, count - 1):
        assert contents(await store.search(f"find b{number}"))[0] == f"entry a{number}"
    await store.aclose()


async def test_nothing_is_embedded_without_an_embedder(open_store: OpenStore) -> None:
    store = open_store()
    with pytest.raises(Invalid, match="no embedder"):
        await store.embed()
    await store.aclose()
