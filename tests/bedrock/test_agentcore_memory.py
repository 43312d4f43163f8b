"""Long-term memory of AgentCore: searched by namespace, shown with each prompt, never stored with it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from repertory import (
    Agent,
    AgentCoreMemoryConfig,
    AgentCoreMemorySessionManager,
    AgentCoreMemoryStore,
    MemoryManager,
    RetrievalConfig,
    ScriptedModel,
)
from repertory.errors import Failed, Invalid, NotFound, Throttled
from tests.backends.sessions.agentcore_memory import ACTOR, MEMORY
from tests.backends.sessions.agentcore_server import MemoryServer, Say, agentcore_server

pytestmark = [pytest.mark.real_time, pytest.mark.anyio]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[MemoryServer]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wJalrXUtnFEMI")
    with agentcore_server() as server:
        yield server


def record(number: int, text: str, score: float, namespace: str, strategy: str = "facts-0123456789") -> dict[str, Any]:
    return {
        "memoryRecordId": f"mem-{number:040}",
        "content": {"text": text},
        "memoryStrategyId": strategy,
        "namespaces": [namespace],
        "createdAt": 1_700_000_000.0,
        "score": score,
    }


FACTS, LIKES = f"/facts/{ACTOR}", f"/likes/{ACTOR}"


def store(server: MemoryServer, **options: Any) -> AgentCoreMemoryStore:
    given: dict[str, Any] = {
        "memory_id": MEMORY,
        "actor_id": ACTOR,
        "retrieval_config": {"/facts/{actorId}": RetrievalConfig(), "/likes/{actorId}": RetrievalConfig(top_k=1)},
        "region_name": "us-east-1",
        "endpoint_url": server.url,
        "timeout_s": 2.0,
        **options,
    }
    return AgentCoreMemoryStore(**given)


async def test_a_search_asks_every_namespace_and_gives_the_best_first(server: MemoryServer) -> None:
    server.memory.records = [
        record(1, "lives in Kyoto", 0.5, f"{FACTS}/places"),
        record(2, "has two cats", 0.1, FACTS),
        record(3, "likes herons", 0.9, LIKES),
        record(4, "likes tea", 0.8, LIKES),
        record(5, "somebody else", 1.0, "/facts/user-10"),
    ]
    memory = store(server)
    found = await memory.search("what do you know of me?")
    assert [entry.content for entry in found] == ["likes herons", "lives in Kyoto"]
    assert found[1].metadata == {
        "record_id": f"mem-{1:040}",
        "namespaces": [f"{FACTS}/places"],
        "strategy_id": "facts-0123456789",
        "created_at": found[1].metadata["created_at"] if found[1].metadata else "",
        "_relevance_score": 0.5,
    }
    assert [entry.content for entry in await memory.search("x", {"max_search_results": 1})] == ["likes herons"]  # type: ignore[arg-type]
    assert await memory.search(" ") == []
    assert len(await memory.search("x" * 20_000)) == 2
    await memory.aclose()
    assert len(await memory.search("again")) == 2
    await memory.aclose()


async def test_a_strategy_is_a_filter_and_a_part_of_the_namespace(server: MemoryServer) -> None:
    one, two = "one-0123456789", "two-0123456789"
    server.memory.records = [
        record(1, "of one", 0.5, f"/{one}/{ACTOR}/s1", one),
        record(2, "of two", 0.6, f"/{one}/{ACTOR}", two),
    ]
    config = {"/{memoryStrategyId}/{actorId}/{sessionId}": RetrievalConfig(strategy_id=one)}
    memory = store(server, retrieval_config=config, session_id="s1")
    assert [entry.content for entry in await memory.search("x")] == ["of one"]
    await memory.aclose()


async def test_one_namespace_that_fails_leaves_the_others_and_all_raise(
    server: MemoryServer, caplog: pytest.LogCaptureFixture
) -> None:
    server.memory.records = [record(1, "lives in Kyoto", 0.5, FACTS)]
    memory = store(server)
    server.plan = lambda operation, params: Say("ThrottledException") if "likes" in params["namespacePath"] else None
    assert [entry.content for entry in await memory.search("x")] == ["lives in Kyoto"]
    assert "a namespace was not searched" in caplog.text
    server.plan = lambda operation, params: Say("ThrottlingException", status=429)
    with pytest.raises(Throttled):
        await memory.search("x")
    server.plan = lambda operation, params: Say("AccessDeniedException", status=403)
    with pytest.raises(Failed, match="allow bedrock-agentcore:RetrieveMemoryRecords"):
        await memory.search("x")
    await memory.aclose()
    missing = store(server, memory_id="other-0123456789")
    server.plan = lambda operation, params: None
    with pytest.raises(NotFound, match="there is no such memory here"):
        await missing.search("x")
    await missing.aclose()


async def test_a_session_manager_shows_the_model_what_is_known_and_stores_none_of_it(server: MemoryServer) -> None:
    server.memory.records = [record(1, "lives in <Kyoto>", 0.5, FACTS), record(2, "has cats", 0.1, FACTS)]
    config = AgentCoreMemoryConfig(
        memory_id=MEMORY,
        session_id="s",
        actor_id=ACTOR,
        retrieval_config={"/facts/{actorId}": RetrievalConfig(relevance_score=0.3)},
        context_tag="known",
    )
    manager = AgentCoreMemorySessionManager(config, region_name="us-east-1", endpoint_url=server.url)
    model = ScriptedModel(["in Kyoto"])
    agent = Agent(model, session_manager=manager, callback_handler=None)
    async with agent:
        await agent.invoke_async("where do I live?")
        assert [message["content"] for message in agent.messages] == [
            [{"text": "where do I live?"}],
            [{"text": "in Kyoto"}],
        ]
    shown = str(model.calls[0].messages)
    assert "<known>\\nlives in &lt;Kyoto&gt;\\n</known>" in shown
    assert "cats" not in shown
    assert not any("lives in" in text for event in server.memory.events("s") for text in event.texts)
    assert agent.tool_names == []
    await manager.memory_manager.stores[0].aclose()  # type: ignore[union-attr, attr-defined]


async def test_an_agent_with_a_memory_manager_of_its_own_keeps_it(server: MemoryServer) -> None:
    config = AgentCoreMemoryConfig(
        memory_id=MEMORY, session_id="s", actor_id=ACTOR, retrieval_config={FACTS: RetrievalConfig()}
    )
    manager = AgentCoreMemorySessionManager(config, region_name="us-east-1", endpoint_url=server.url)
    own = MemoryManager([store(server)])
    assert Agent(ScriptedModel([]), session_manager=manager, memory_manager=own).memory_manager is own
    assert Agent(ScriptedModel([]), session_manager=manager).memory_manager is manager.memory_manager


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"retrieval_config": {}}, "retrieval_config names a namespace"),
        ({"retrieval_config": {"/facts/{user}": RetrievalConfig()}}, "a namespace has the places"),
        ({"retrieval_config": {"/facts/{actorId": RetrievalConfig()}}, "a namespace has places like"),
        ({"retrieval_config": {"/facts": RetrievalConfig(top_k=0)}}, "top_k is between 1 and 100"),
        ({"name": "a/b"}, "store name"),
    ],
)
async def test_what_cannot_be_searched_is_refused_with_what_to_change(
    server: MemoryServer, options: dict[str, Any], match: str
) -> None:
    with pytest.raises(Invalid, match=match):
        store(server, **options)
