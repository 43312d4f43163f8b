"""The requirements on every memory store, as tests; for synchronous and asynchronous stores. Subclass it next to your
store's tests:

    class TestMyStore(MemoryStoreContract):
        def open_store(self, place: Path) -> object:
            return MyStore(place / "memories")

For writable stores that return the text that they were given. Methods that a store lacks (`add`, `add_messages`, a
`context`) are not tested; the class attributes turn off optional requirements. Each test runs on the event loops that
the project's `anyio_backend` fixture offers. Needs pytest.
"""

from __future__ import annotations

import copy
import inspect
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, cast

import anyio
import anyio.lowlevel
import pytest

from repertory.backends.memory_ports import implements
from repertory.core.memory.options import AddMessagesContext, SearchOptions
from repertory.core.messages import Message

WAIT_S = 30.0
"""The time limit of every test, in seconds."""
UNUSUAL_TEXTS = [
    "quokka Ünïcödé 日本語 😀 e\u0301",
    "quokka 'quoted' \"twice\" \\ back; DROP TABLE memories; --",
    "quokka first line\nsecond line\ttab",
    'quokka {"json": [1, null]} <memory>&amp;</memory> %s {} $1',
    "\u202equokka\u202c right to left",
]
UNUSUAL_QUESTIONS = [
    "",
    " \n",
    '"',
    "'; DROP TABLE memories; --",
    "a AND OR NOT (b*",
    "NEAR(a b, 3)",
    "%_*?[^]",
    "日本語 😀",
    "-quokka",
    "quokka:1",
    "x" * 5_000,
]

_numbers = count(1)


class Memories:
    """A store with one asynchronous interface, whether its methods are synchronous or not.

    Args:
        store: The store.
    """

    def __init__(self, store: Any) -> None:
        self.store = store

    def has(self, method: str) -> bool:
        """True if the store has this method.

        Args:
            method: The method's name.
        """
        return implements(self.store, method)

    def takes_context(self, method: str) -> bool:
        """True if that method takes a `context`.

        Args:
            method: The method's name.
        """
        parameters = inspect.signature(getattr(self.store, method)).parameters.values()
        return any(each.name == "context" or each.kind is each.VAR_KEYWORD for each in parameters)

    async def search(self, query: str, limit: int | None = None) -> list[str]:
        """The contents of the entries found."""
        return [content for content, _ in await self.entries(query, limit)]

    async def entries(self, query: str, limit: int | None = None) -> list[tuple[str, Mapping[str, object]]]:
        """The contents and metadata of the entries found.

        Args:
            query: The text to search for.
            limit: The most entries; None for the store's number.
        """
        options = None if limit is None else SearchOptions(max_search_results=limit)
        found = await _called(partial(self.store.search, query, options))
        assert isinstance(found, list | tuple), "a search gives a list"
        entries: list[tuple[str, Mapping[str, object]]] = []
        for entry in cast("Sequence[Any]", found):
            content, metadata = _field(entry, "content"), _field(entry, "metadata")
            assert isinstance(content, str), "an entry has a content, a text"
            assert metadata is None or isinstance(metadata, Mapping)
            entries.append((content, cast("Mapping[str, object]", metadata or {})))
        return entries

    async def remember(self, content: str) -> None:
        """Store a text with `add`, or else as a user message.

        Args:
            content: The text.
        """
        if self.has("add"):
            await self.add(content)
        else:
            await self.add_messages(_messages({content: "user"}), _from("session", next(_numbers)))

    async def add(
        self, content: str, metadata: Mapping[str, object] | None = None, context: AddMessagesContext | None = None
    ) -> None:
        """Store an entry. `context` is passed only if the store takes it."""
        named = {"context": context} if self.takes_context("add") else {}
        await _called(partial(self.store.add, content, metadata, **named))

    async def add_messages(self, messages: Sequence[Message], context: AddMessagesContext) -> None:
        """Store a batch of messages."""
        named = {"context": context} if self.takes_context("add_messages") else {}
        await _called(partial(self.store.add_messages, messages, **named))


class MemoryStoreContract(ABC):
    """The contract. Stores opened on the same place, one after the other, hold the same entries."""

    pytestmark = pytest.mark.anyio

    lasts = True
    """True if a closed store still has all entries when it is opened again."""
    keeps_metadata = True
    """True if an entry is returned with its metadata."""
    finds_anything = False
    """True if a search may return unrelated entries, as a vector search does."""

    @abstractmethod
    def open_store(self, place: Path) -> object:
        """A new store over the entries in `place`. It may be async.

        Args:
            place: A folder of the test's own.
        """

    async def settle(self, store: object) -> None:
        """Wait until added entries can be found, for stores that index them later.

        Args:
            store: The store.
        """
        del store

    @asynccontextmanager
    async def memories(self, place: Path, *, wants: str | None = None) -> AsyncGenerator[Memories]:
        """A store, initialized, and closed at the end, within the time limit. Skips the test if the store lacks the
        method `wants`.

        Args:
            place: A folder of the test's own.
            wants: A method that the test needs; None for none.
        """
        with anyio.fail_after(WAIT_S):
            opened = self.open_store(place)
            memories = Memories(await opened if inspect.isawaitable(opened) else opened)
            if memories.has("initialize"):
                await _called(memories.store.initialize)
            try:
                if wants is not None and not memories.has(wants):
                    pytest.skip(f"the store has no {wants}")
                yield memories
            finally:
                if memories.has("aclose"):
                    await _called(memories.store.aclose)

    async def test_it_says_of_itself_what_its_manager_wants_to_know(self, tmp_path: Path) -> None:
        async with self.memories(tmp_path) as memories:
            store = memories.store
            assert isinstance(store.name, str)
            assert store.name
            assert store.description is None or isinstance(store.description, str)
            assert store.max_search_results is None or store.max_search_results > 0
            if store.writable:
                assert memories.has("add") or memories.has("add_messages")
            else:
                assert not store.extraction

    async def test_an_empty_store_finds_nothing(self, tmp_path: Path) -> None:
        async with self.memories(tmp_path) as memories:
            for question in ("quokka", "quokka", ""):
                assert await memories.search(question) == []

    async def test_what_was_added_is_found(self, tmp_path: Path) -> None:
        async with self.memories(tmp_path) as memories:
            await memories.remember("the quokka lives on an island")
            await memories.remember("the walrus lives on the ice")
            await self.settle(memories.store)
            assert (await memories.search("quokka"))[0] == "the quokka lives on an island"
            assert (await memories.search("walrus"))[0] == "the walrus lives on the ice"

    async def test_what_has_nothing_to_do_with_the_question_is_not_found(self, tmp_path: Path) -> None:
        if self.finds_anything:
            pytest.skip("the store finds something for every question")
        async with self.memories(tmp_path) as memories:
            await memories.remember("the quokka lives on an island")
            await self.settle(memories.store)
            assert await memories.search("xylophone") == []
            assert await memories.search("quokka") != []

    async def test_no_more_is_found_than_was_asked_for_the_same_ones_first(self, tmp_path: Path) -> None:
        """Options work as attributes and as a mapping, so a store may read them either way."""
        async with self.memories(tmp_path) as memories:
            for number in range(6):
                await memories.remember(f"the quokka number {number} eats leaves")
            await self.settle(memories.store)
            everything = await memories.search("quokka", 6)
            assert sorted(everything) == [f"the quokka number {number} eats leaves" for number in range(6)]
            for limit in (1, 2, 5, 50):
                assert await memories.search("quokka", limit) == everything[:limit]
            usual = await memories.search("quokka")
            assert usual == everything[: len(usual)] != []
            most = memories.store.max_search_results
            assert most is None or len(usual) <= most

    async def test_any_text_comes_back_as_it_was(self, tmp_path: Path) -> None:
        async with self.memories(tmp_path) as memories:
            for text in UNUSUAL_TEXTS:
                await memories.remember(text)
            await self.settle(memories.store)
            assert sorted(await memories.search("quokka", 50)) == sorted(UNUSUAL_TEXTS)

    async def test_any_question_is_answered(self, tmp_path: Path) -> None:
        async with self.memories(tmp_path) as memories:
            await memories.remember("the quokka lives on an island")
            await self.settle(memories.store)
            for question in UNUSUAL_QUESTIONS:
                assert set(await memories.search(question, 3)) <= {"the quokka lives on an island"}

    async def test_a_long_memory_is_found_by_what_stands_in_its_middle(self, tmp_path: Path) -> None:
        """The store may return the whole text, or the matching piece."""
        words = "the wombat digs a burrow. " * 500
        content = f"{words}the quokka does not. {words}"
        async with self.memories(tmp_path) as memories:
            await memories.remember(content)
            await self.settle(memories.store)
            (found,) = await memories.search("quokka", 1)
            assert "quokka" in found
            assert found in content

    async def test_what_is_given_beside_a_memory_is_found_with_it_and_not_changed(self, tmp_path: Path) -> None:
        metadata = {"category": "animals", "weight": 3, "sure": True}
        given = copy.deepcopy(metadata)
        async with self.memories(tmp_path, wants="add") as memories:
            await memories.add("the quokka lives on an island", given)
            await memories.add("the walrus lives on the ice", {})
            await self.settle(memories.store)
            assert given == metadata
            ((_, found),) = await memories.entries("quokka", 1)
            if self.keeps_metadata:
                assert {**found, **metadata} == found

    async def test_memories_that_come_at_once_are_all_kept(self, tmp_path: Path) -> None:
        async with self.memories(tmp_path) as memories:
            async with anyio.create_task_group() as tasks:
                for number in range(12):
                    tasks.start_soon(memories.remember, f"the quokka number {number} eats leaves")
                    tasks.start_soon(memories.search, "quokka")
            await self.settle(memories.store)
            found = await memories.search("quokka", 50)
            assert sorted(found) == sorted(f"the quokka number {number} eats leaves" for number in range(12))

    async def test_the_same_write_again_is_one_memory_where_the_store_wants_to_know(self, tmp_path: Path) -> None:
        """Extraction retries a write when it is unknown whether it succeeded."""
        async with self.memories(tmp_path, wants="add") as memories:
            if not memories.takes_context("add"):
                pytest.skip("the store's add takes no context")
            for key in ("s/a/1", "s/a/1", "s/a/2", "s/a/1"):
                context = AddMessagesContext(
                    idempotency_key=key, session_id="s", agent_id="a", sequence_numbers=[1], said_at=1_700_000_000.0
                )
                await memories.add(f"the quokka of {key[-1]} eats leaves", None, context)
            await memories.add("the quokka of nobody eats leaves", None, AddMessagesContext())
            await self.settle(memories.store)
            assert sorted(await memories.search("quokka", 50)) == [
                "the quokka of 1 eats leaves",
                "the quokka of 2 eats leaves",
                "the quokka of nobody eats leaves",
            ]

    async def test_a_batch_of_messages_is_taken_in_with_who_said_what(self, tmp_path: Path) -> None:
        """A store may extract any entries; an entry with a role must have the right one."""
        role_of = {"the quokka lives on an island": "user", "the walrus lives on the ice": "assistant"}
        messages = _messages(role_of)
        given = copy.deepcopy(messages)
        async with self.memories(tmp_path, wants="add_messages") as memories:
            await memories.add_messages(given, _from("s", 1, 2))
            await self.settle(memories.store)
            assert given == messages
            for text, role in role_of.items():
                word = text.split()[1]
                found = await memories.entries(word, 5)
                assert any(word in content for content, _ in found)
                assert all(metadata.get("role", role) == role for content, metadata in found if word in content)

    async def test_the_same_batch_again_adds_nothing_and_that_of_another_session_does(self, tmp_path: Path) -> None:
        """Sequence numbers start again in each session."""
        async with self.memories(tmp_path, wants="add_messages") as memories:
            if not memories.takes_context("add_messages"):
                pytest.skip("the store's add_messages takes no context")
            first = _messages({"the quokka lives on an island": "user", "so it does": "assistant"})
            other = _messages({"the quokka eats leaves": "user", "and grass": "assistant"})
            await memories.add_messages(first, _from("one", 1, 2))
            await self.settle(memories.store)
            known = await memories.search("quokka", 50)
            await memories.add_messages(first, _from("one", 1, 2))
            await self.settle(memories.store)
            assert await memories.search("quokka", 50) == known
            await memories.add_messages(other, _from("two", 1, 2))
            await self.settle(memories.store)
            assert len(await memories.search("quokka", 50)) > len(known)

    async def test_a_store_opened_later_knows_everything(self, tmp_path: Path) -> None:
        if not self.lasts:
            pytest.skip("the store lives as long as its object")
        async with self.memories(tmp_path) as memories:
            for text in UNUSUAL_TEXTS:
                await memories.remember(text)
            await self.settle(memories.store)
            known = await memories.search("quokka", 50)
        async with self.memories(tmp_path) as memories:
            assert await memories.search("quokka", 50) == known
            await memories.remember("the walrus lives on the ice")
            await self.settle(memories.store)
            assert len(await memories.search("walrus")) == 1

    async def test_a_cancelled_write_is_whole_or_absent_and_the_store_goes_on(self, tmp_path: Path) -> None:
        async with self.memories(tmp_path) as memories:
            texts = [f"the quokka number {number} " + "eats leaves " * 200 for number in range(8)]
            for number, text in enumerate(texts):
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(memories.remember, text)
                    for _ in range(number):
                        await anyio.lowlevel.checkpoint()
                    tasks.cancel_scope.cancel()
            await memories.remember("the quokka is well")
            await self.settle(memories.store)
            found = await memories.search("quokka", 50)
            assert "the quokka is well" in found
            assert set(found) <= {"the quokka is well", *texts}
            assert len(found) == len(set(found))

    async def test_preparing_and_closing_twice_does_no_harm(self, tmp_path: Path) -> None:
        async with self.memories(tmp_path) as memories:
            for method in ("initialize", "initialize", "aclose", "aclose"):
                if memories.has(method):
                    await _called(getattr(memories.store, method))


def _field(entry: object, name: str) -> object:
    return cast("Mapping[str, object]", entry).get(name) if isinstance(entry, Mapping) else getattr(entry, name, None)


def _messages(role_of: Mapping[str, str]) -> list[Message]:
    return [cast("Message", {"role": role, "content": [{"text": text}]}) for text, role in role_of.items()]


def _from(session_id: str, *numbers: int) -> AddMessagesContext:
    return AddMessagesContext(
        sequence_numbers=list(numbers),
        session_id=session_id,
        agent_id="default",
        idempotency_key=f"{session_id}/default/{numbers[0]}-{numbers[-1]}",
        said_at=1_700_000_000.0,
    )


async def _called(method: Callable[[], object]) -> object:
    answer = method()
    return await answer if inspect.isawaitable(answer) else answer
