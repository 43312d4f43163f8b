"""Every memory store keeps the contract: the embedded one, a knowledge base, and those of users as documented."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from repertory.strands.vended_memory_stores import FileMemoryStore, TestMemoryStore

from repertory import BedrockKnowledgeBaseStore, FileStorage, SQLiteMemoryStore
from repertory.core.memory.options import AddMessagesContext, MemoryEntry, SearchOptions
from repertory.core.messages import Message, text_of
from repertory.testing.memory_contract import MemoryStoreContract
from tests.app.memory.toy_memories import InMemoryStore
from tests.backends.memory.knowledge_base import CUSTOM, KNOWLEDGE_BASE, KnowledgeBaseServer, knowledge_base_server
from tests.backends.memory.postgres_memories import postgres_memory


class ServerSideStore:
    """The other one: it is given messages. Synchronous, reading its options as a mapping, giving mappings."""

    name = "conversations"
    description = None
    max_search_results = 4
    writable = True
    extraction = True

    def __init__(self) -> None:
        self._said: dict[object, dict[str, Any]] = {}

    def search(self, query: str, options: SearchOptions | None = None) -> list[dict[str, Any]]:
        limit = int(str((options or {}).get("max_search_results", self.max_search_results)))
        return [entry for entry in self._said.values() if query and query in entry["content"]][:limit]

    def add_messages(self, messages: list[Message], context: AddMessagesContext | None = None) -> None:
        assert context is not None
        for number, message in zip(context["sequence_numbers"], messages, strict=True):  # type: ignore[call-overload]
            key = (context.session_id, context.agent_id, number)
            self._said[key] = {"content": text_of(message), "metadata": {"role": message["role"]}}


class TestTheDocumentedStore(MemoryStoreContract):
    lasts = False
    keeps_metadata = False

    def open_store(self, place: Path) -> object:
        return InMemoryStore()


class TestTheDocumentedStoreOfMessages(MemoryStoreContract):
    lasts = False

    def open_store(self, place: Path) -> object:
        return ServerSideStore()


@pytest.mark.real_time
class TestSQLiteMemoryStore(MemoryStoreContract):
    def open_store(self, place: Path) -> object:
        return SQLiteMemoryStore(place / "memory.db")


@pytest.mark.usefixtures("postgres")
@pytest.mark.real_time
class TestPostgresMemoryStore(MemoryStoreContract):
    def open_store(self, place: Path) -> object:
        return postgres_memory(place)


@pytest.mark.usefixtures("postgres")
@pytest.mark.real_time
class TestPooledPostgresMemoryStore(MemoryStoreContract):
    """Without prepared statements."""

    def open_store(self, place: Path) -> object:
        return postgres_memory(place, pooled=True, connections=1)


class PlainStorage:
    """A user's own storage, with the methods of the SDK's."""

    def __init__(self, folder: Path) -> None:
        self._folder = anyio.Path(folder)

    async def write(self, key: str, data: bytes) -> None:
        place = self._folder / key
        await place.parent.mkdir(parents=True, exist_ok=True)
        await place.write_bytes(data)

    async def read(self, key: str) -> bytes | None:
        place = self._folder / key
        return await place.read_bytes() if await place.exists() else None

    async def list(self, query: str = "") -> list[str]:
        found = [str(place.relative_to(self._folder)) async for place in self._folder.rglob("*.md")]
        return sorted(key for key in found if key.startswith(query))


@pytest.mark.real_time
class TestFileMemoryStore(MemoryStoreContract):
    keeps_metadata = False

    def open_store(self, place: Path) -> object:
        return FileMemoryStore(name="topics", storage=FileStorage(place / "files"))


@pytest.mark.real_time
class TestFileMemoryStoreInTheUsersStorage(MemoryStoreContract):
    keeps_metadata = False

    def open_store(self, place: Path) -> object:
        return FileMemoryStore(name="topics", storage=PlainStorage(place))


@pytest.mark.real_time
class TestTestMemoryStore(MemoryStoreContract):
    def open_store(self, place: Path) -> object:
        return TestMemoryStore(name="notes", path=str(place / "notes.json"))


@pytest.fixture(scope="module")
def knowledge_bases() -> Iterator[KnowledgeBaseServer]:
    with knowledge_base_server() as server:
        yield server


@pytest.mark.real_time
class TestBedrockKnowledgeBaseStore(MemoryStoreContract):
    """On trio alone, since every store makes two clients; the requests are tested on both loops by themselves."""

    @pytest.fixture
    def anyio_backend(self) -> str:
        return "trio"

    @pytest.fixture(autouse=True)
    def service(self, knowledge_bases: KnowledgeBaseServer, aws_keys: pytest.MonkeyPatch) -> None:
        knowledge_bases.base.documents.clear()
        self._url = knowledge_bases.url

    def open_store(self, place: Path) -> object:
        config = {
            "knowledge_base_id": KNOWLEDGE_BASE,
            "knowledge_base_type": "VECTOR",
            "data_source_type": "CUSTOM",
            "data_source_id": CUSTOM,
            "endpoint_url": self._url,
        }
        return BedrockKnowledgeBaseStore(name="facts", writable=True, config=config)


# ------------------------------------------------------------------------------------------ what the contract finds out


class Boundless(InMemoryStore):
    """Gives everything that it finds."""

    async def search(self, query: str, options: SearchOptions | None = None) -> list[MemoryEntry]:
        return await super().search(query, SearchOptions(max_search_results=1000))


class Forgetful(InMemoryStore):
    """Cuts what it is given."""

    async def add(self, content: str, metadata: dict[str, Any] | None = None) -> None:
        await super().add(content[:100])


class Doubling(InMemoryStore):
    """Is told the key of a write and does not look at it."""

    async def add(  # type: ignore[override]
        self, content: str, metadata: dict[str, Any] | None = None, *, context: AddMessagesContext | None = None
    ) -> None:
        await super().add(content)


class Careless(InMemoryStore):
    """Reads and writes in two steps, between which others may write."""

    async def add(self, content: str, metadata: dict[str, Any] | None = None) -> None:
        known = list(self._entries)
        await anyio.lowlevel.checkpoint()
        self._entries = [*known, content]


class Numbering(ServerSideStore):
    """Takes sequence numbers for ids, though each session has its own."""

    def add_messages(self, messages: list[Message], context: AddMessagesContext | None = None) -> None:
        assert context is not None
        super().add_messages(messages, AddMessagesContext(sequence_numbers=context.sequence_numbers))


@pytest.mark.parametrize(
    ("store", "test"),
    [
        (Boundless, MemoryStoreContract.test_no_more_is_found_than_was_asked_for_the_same_ones_first),
        (Forgetful, MemoryStoreContract.test_a_long_memory_is_found_by_what_stands_in_its_middle),
        (Doubling, MemoryStoreContract.test_the_same_write_again_is_one_memory_where_the_store_wants_to_know),
        (Careless, MemoryStoreContract.test_memories_that_come_at_once_are_all_kept),
        (InMemoryStore, MemoryStoreContract.test_a_store_opened_later_knows_everything),
        (InMemoryStore, MemoryStoreContract.test_what_is_given_beside_a_memory_is_found_with_it_and_not_changed),
        (Numbering, MemoryStoreContract.test_the_same_batch_again_adds_nothing_and_that_of_another_session_does),
    ],
    ids=lambda value: value.__name__,
)
@pytest.mark.anyio
async def test_a_store_that_breaks_the_contract_is_found_out(store: Any, test: Any, tmp_path: Path) -> None:
    class Broken(MemoryStoreContract):
        def open_store(self, place: Path) -> object:
            return store()

    with pytest.raises((AssertionError, ValueError)):
        await test(Broken(), tmp_path)
