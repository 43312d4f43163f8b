"""The documented samples on memory, as programs with nothing but their imports changed.

The models are served by aimock and the knowledge base by a server on loopback; both are found through the environment,
as the services themselves are. Knowledge bases and data sources have names of ten characters, as the service demands.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import anyio
import pytest

from repertory import (
    AddMessagesContext,
    AfterInvocationEvent,
    Agent,
    BedrockKnowledgeBaseStore,
    BedrockModel,
    ExtractionConfig,
    ExtractionTrigger,
    ExtractionTriggerContext,
    InvocationTrigger,
    MemoryAddOptions,
    MemoryAddToolConfig,
    MemoryEntry,
    MemoryInjectionConfig,
    MemoryManager,
    MemorySearchOptions,
    MemoryToolConfig,
    ModelExtractor,
    SearchOptions,
)
from repertory.core.messages import Message, text_of, tool_results
from tests.app.memory.toy_memories import InMemoryStore
from tests.backends.memory.knowledge_base import KnowledgeBaseServer, knowledge_base_server
from tests.backends.models.aimock_server import aimock
from tests.backends.models.conftest import aws_environment as aws_environment

pytestmark = pytest.mark.real_time

HAIKU = "us.anthropic.claude-haiku-4-5-20251001-v1:0"
FACT = '[{"content": "The user prefers aisle seats."}]'
FIXTURES: list[dict[str, Any]] = [
    {"match": {"model": HAIKU}, "response": {"content": FACT}},
    {"match": {"userMessage": "worth remembering"}, "response": {"content": FACT}},
    {
        "match": {"userMessage": "Remember my seat", "hasToolResult": False},
        "response": {"toolCalls": [{"name": "add_memory", "arguments": {"entries": ["Prefers aisle seats"]}}]},
    },
    {"match": {"userMessage": ""}, "response": {"content": "Noted."}},
]


@pytest.fixture(scope="module")
def peer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with aimock(FIXTURES, tmp_path_factory.mktemp("aimock")) as url:
        yield url


@pytest.fixture(scope="module")
def knowledge_base() -> Iterator[KnowledgeBaseServer]:
    with knowledge_base_server() as server:
        yield server


@pytest.fixture(autouse=True)
def services(
    aws_environment: pytest.MonkeyPatch, peer: str, knowledge_base: KnowledgeBaseServer
) -> KnowledgeBaseServer:
    aws_environment.setenv("AWS_ENDPOINT_URL_BEDROCK_RUNTIME", peer)
    aws_environment.setenv("AWS_ENDPOINT_URL_BEDROCK_AGENT", knowledge_base.url)
    aws_environment.setenv("AWS_ENDPOINT_URL_BEDROCK_AGENT_RUNTIME", knowledge_base.url)
    knowledge_base.base.documents.clear()
    return knowledge_base


def texts(server: KnowledgeBaseServer) -> set[str]:
    return {document.text for document in server.base.documents.values()}


def test_getting_started_with_a_store() -> None:
    store = InMemoryStore()
    agent = Agent(memory_manager=MemoryManager(stores=[store]))
    assert agent.tool_names == ["search_memory"]
    assert str(agent("Hello")) == "Noted."


def test_a_knowledge_base_with_both_modes_of_writing(services: KnowledgeBaseServer) -> None:
    store = BedrockKnowledgeBaseStore(
        name="preferences",
        writable=True,
        extraction=True,  # capture memories from the conversation, every 5 turns
        config={"knowledge_base_id": "KB12345678", "data_source_type": "CUSTOM", "data_source_id": "DSCUSTOM00"},
    )
    agent = Agent(
        memory_manager=MemoryManager(
            stores=[store],
            add_tool_config=True,  # let the agent save memories itself
        ),
    )
    assert agent.tool_names == ["search_memory", "add_memory"]
    agent("Remember my seat")
    assert texts(services) == {"Prefers aisle seats"}
    for _ in range(4):
        agent("Hello")
    assert texts(services) == {"Prefers aisle seats", "The user prefers aisle seats."}


def test_several_stores_at_once() -> None:
    personal, team = InMemoryStore(), InMemoryStore()
    personal.name, team.name = "personal", "team"
    agent = Agent(memory_manager=MemoryManager(stores=[personal, team]))
    assert agent.memory_manager is not None
    anyio.run(personal.add, "likes tea")
    anyio.run(team.add, "buys tea")
    found = anyio.run(agent.memory_manager.search, "tea")
    assert [(entry.store_name, entry.content) for entry in found] == [("personal", "likes tea"), ("team", "buys tea")]


def test_tools_renamed_and_writes_that_nobody_waits_for(services: KnowledgeBaseServer) -> None:
    store = BedrockKnowledgeBaseStore(
        name="preferences",
        writable=True,
        config={"knowledge_base_id": "KB12345678", "data_source_type": "CUSTOM", "data_source_id": "DSCUSTOM00"},
    )
    agent = Agent(
        memory_manager=MemoryManager(
            stores=[store],
            search_tool_config=MemoryToolConfig(
                name="recall",
                description="Look up what you remember about the user.",
            ),
            # opt in, and return as soon as writes dispatch instead of awaiting them
            add_tool_config=MemoryAddToolConfig(wait_for_writes=False),
        ),
    )
    assert agent.tool_names == ["recall", "add_memory"]
    agent("Remember my seat")
    (result,) = [result for message in agent.messages for result in tool_results(message)]
    assert result["content"] == [{"json": {"accepted": 1}}]
    assert texts(services) == {"Prefers aisle seats"}


def test_injection_before_every_model_call() -> None:
    store = InMemoryStore()
    agent = Agent(
        memory_manager=MemoryManager(
            stores=[store],
            injection=MemoryInjectionConfig(
                trigger="everyTurn",  # inject before every model call
                max_entries=3,
                format=lambda context: "\n".join(f"- {entry.content}" for entry in context.entries),
            ),
        ),
    )
    for number in range(5):
        anyio.run(store.add, f"seat number {number}")
    agent("seat")
    assert "number" not in str(agent.messages)


def test_a_trigger_and_an_extractor_with_a_model_of_its_own(services: KnowledgeBaseServer) -> None:
    store = BedrockKnowledgeBaseStore(
        name="preferences",
        writable=True,
        extraction=ExtractionConfig(
            trigger=InvocationTrigger(),  # after every turn, not every 5
            extractor=ModelExtractor(
                model=BedrockModel(model_id="us.anthropic.claude-haiku-4-5-20251001-v1:0"),  # cheaper
                system_prompt="Extract durable user preferences as discrete facts.",
            ),
        ),
        config={"knowledge_base_id": "KB12345678", "data_source_type": "CUSTOM", "data_source_id": "DSCUSTOM00"},
    )
    Agent(memory_manager=MemoryManager(stores=[store]))("I like the aisle")
    assert texts(services) == {"The user prefers aisle seats."}


def test_a_custom_trigger(services: KnowledgeBaseServer) -> None:
    class CustomTrigger(ExtractionTrigger):
        name = "custom-trigger"

        def attach(self, context: ExtractionTriggerContext) -> None:
            # Extract only after a tool has flagged extraction.
            def maybe_fire(event: AfterInvocationEvent) -> None:
                if context.agent.state.get("extract"):
                    context.fire()

            context.agent.add_hook(maybe_fire, AfterInvocationEvent)

    store = BedrockKnowledgeBaseStore(
        name="preferences",
        writable=True,
        extraction=ExtractionConfig(trigger=CustomTrigger()),
        config={"knowledge_base_id": "KB12345678", "data_source_type": "CUSTOM", "data_source_id": "DSCUSTOM00"},
    )
    agent = Agent(memory_manager=MemoryManager(stores=[store]))
    agent("I like the aisle")
    assert texts(services) == set()
    agent.state.set("extract", True)
    agent("Again")
    agent.shutdown()
    assert texts(services) == {"The user prefers aisle seats."}


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_flush_before_the_loop_closes(services: KnowledgeBaseServer, backend: str) -> None:
    async def main() -> None:
        store = BedrockKnowledgeBaseStore(
            name="preferences",
            writable=True,
            extraction=True,
            config={"knowledge_base_id": "KB12345678", "data_source_type": "CUSTOM", "data_source_id": "DSCUSTOM00"},
        )
        memory_manager = MemoryManager(stores=[store])
        agent = Agent(memory_manager=memory_manager)
        await agent.invoke_async("I like the aisle")
        assert texts(services) == set()
        # After driving the agent with invoke_async / stream_async, before the loop closes.
        await memory_manager.flush()
        await store.aclose()
        await agent.model.aclose()

    anyio.run(main, backend=backend)
    assert texts(services) == {"The user prefers aisle seats."}


def test_programmatic_access() -> None:
    personal, team = InMemoryStore(), InMemoryStore()
    personal.name, team.name = "personal", "team"
    memory_manager = MemoryManager(stores=[personal, team])

    async def main() -> None:
        await personal.add("travel plans: Rome")
        # Search every store, or a subset by name.
        all_results = await memory_manager.search("travel plans")
        scoped = await memory_manager.search(
            "travel plans", MemorySearchOptions(stores=["personal"], max_search_results=5)
        )
        assert [entry.content for entry in all_results] == [entry.content for entry in scoped]
        # Write to writable stores, with metadata.
        await memory_manager.add(
            "Prefers aisle seats", MemoryAddOptions(stores=["personal"], metadata={"category": "travel"})
        )
        assert [entry.store_name for entry in await memory_manager.search("aisle")] == ["personal"]

    anyio.run(main)


class Backend:
    """Stands in for the client of a managed backend."""

    def __init__(self) -> None:
        self.ingested: list[list[Message]] = []

    async def retrieve(self, query: str, limit: int | None) -> list[MemoryEntry]:
        return [MemoryEntry(text_of(batch[0])) for batch in self.ingested if query in text_of(batch[0])][:limit]

    async def ingest_conversation(self, messages: list[Message]) -> None:
        self.ingested.append(messages)


def test_a_store_that_extracts_on_its_own() -> None:
    my_backend = Backend()

    class ServerSideStore:
        name = "preferences"
        description = "User preferences and stable facts."
        max_search_results = None
        writable = True
        extraction = True  # extract every 5 turns; no extractor, so add_messages is used

        async def search(self, query: str, options: SearchOptions | None = None) -> list[MemoryEntry]:
            return await my_backend.retrieve(query, options and options.max_search_results)  # type: ignore[arg-type]

        # The manager hands the raw message batch here; the backend extracts server-side.
        async def add_messages(self, messages: list[Message], context: AddMessagesContext | None = None) -> None:
            await my_backend.ingest_conversation(messages)

    agent = Agent(memory_manager=MemoryManager(stores=[ServerSideStore()]))
    for number in range(6):
        agent(f"Hello {number}")
    (batch,) = my_backend.ingested
    assert [text_of(message) for message in batch[::2]] == [f"Hello {number}" for number in range(5)]
    assert {message["role"] for message in batch} == {"user", "assistant"}
