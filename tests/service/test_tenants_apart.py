"""Tenants in conversations that nobody keeps, and requests that carry the same key: each gets what is its own."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest

from repertory import (
    AgentSpec,
    BeforeInvocationEvent,
    MemoryManager,
    OfflineModel,
    Runtime,
    ScriptedModel,
    SQLiteMemoryStore,
    SQLiteSessions,
    tool,
)
from repertory.asgi import Caller, ServiceLimits, asgi_app, bearer_tokens
from repertory.core.tenants import tenant_part

pytestmark = [pytest.mark.anyio, pytest.mark.real_time]
ACME, GLOBEX = ({"authorization": f"Bearer {letter * 16}"} for letter in "ag")
TOKENS = {"a" * 16: Caller(tenant="acme"), "g" * 16: Caller(tenant="globex"), "n" * 16: Caller()}
CAT = "My cat is called Byron."
ASKED = "Do you remember my cat?"


def client_of(runtime: Runtime, **options: Any) -> httpx.AsyncClient:
    app = asgi_app(runtime, authenticate=bearer_tokens(TOKENS), **options)
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost")


async def said(client: httpx.AsyncClient, door: str, who: dict[str, str], text: str, **more: Any) -> httpx.Response:
    """The answer of one of the two doors of OpenAI's API."""
    key = more.pop("key", None)
    headers = who if key is None else {**who, "idempotency-key": key}
    if door == "chat":
        body = {"model": "helper", "messages": [{"role": "user", "content": text}], **more}
        return await client.post("/v1/chat/completions", json=body, headers=headers)
    return await client.post("/v1/responses", json={"model": "helper", "input": text, **more}, headers=headers)


@pytest.mark.parametrize("door", ["chat", "responses"])
async def test_a_conversation_that_nobody_keeps_remembers_for_its_tenant_alone(tmp_path: Path, door: str) -> None:
    place, seen = SQLiteSessions(tmp_path / "a.db"), list[tuple[str, str | None]]()

    @functools.cache
    def memory(part: str) -> MemoryManager:
        store = SQLiteMemoryStore(tmp_path / "m.db", name="notes", scope=f"tenant-{part}")
        return MemoryManager([store], add_tool_config=True)

    @tool
    def who(tool_context: Any) -> str:
        """Which session it is."""
        seen.append(("tool", tool_context.agent.session_id))
        return "seen"

    def hook(event: BeforeInvocationEvent) -> None:
        seen.append(("hook", event.agent.session_id))

    uses = [{"name": "add_memory", "input": {"entries": [CAT]}}, {"name": "who", "input": {}}]
    writer = ScriptedModel([*({"toolUse": each} for each in uses), "Noted."], loop=True)
    runtime = Runtime(sessions=place)

    def by_tenant(session_id: str) -> MemoryManager:
        return memory(tenant_part(session_id))

    runtime.agent(AgentSpec(name="writer", model=writer, tools=[who], hooks=[hook], memory_manager=by_tenant))
    runtime.agent(AgentSpec(name="helper", model=OfflineModel(), memory_manager=by_tenant))
    more: dict[str, Any] = {} if door == "chat" else {"store": False}
    async with client_of(runtime) as client, runtime:
        assert (await said(client, door, ACME, CAT, model="writer", **more)).status_code == 200
        assert "Byron" not in (await said(client, door, GLOBEX, ASKED, **more)).text
        assert "Byron" in (await said(client, door, ACME, ASKED, **more)).text
        assert runtime.look().sessions == []
        assert (await client.get("/v1/agents/writer/sessions", headers=ACME)).json()["sessions"] == []
    assert [(kind, tenant_part(found or "")) for kind, found in seen] == [("hook", "acme"), ("tool", "acme")]


async def test_turns_that_nobody_keeps_take_the_places_of_their_tenant() -> None:
    begun, go_on, both = list[str | None](), anyio.Event(), anyio.Event()

    async def waits(event: BeforeInvocationEvent) -> None:
        begun.append(event.agent.session_id)
        if len(begun) == 2:
            both.set()
        if tenant_part(event.agent.session_id or "") == "acme":
            await go_on.wait()

    runtime = Runtime()
    runtime.agent(AgentSpec(name="helper", model=ScriptedModel(["done"], loop=True), hooks=[waits]))
    async with client_of(runtime, limits=ServiceLimits(concurrent=2)) as client, runtime:
        async with anyio.create_task_group() as group:
            for _ in range(2):
                group.start_soon(said, client, "chat", ACME, "Wait.")
            await both.wait()
            assert (await said(client, "chat", GLOBEX, "Hello.")).status_code == 200
            go_on.set()
        none = {"authorization": f"Bearer {'n' * 16}"}
        assert (await said(client, "chat", none, "Hello.")).status_code == 200
    assert [tenant_part(each or "") for each in begun] == ["acme", "acme", "globex", ""]


@pytest.mark.parametrize("door", ["chat", "responses"])
async def test_a_key_is_of_one_conversation_with_one_agent(tmp_path: Path, door: str) -> None:
    place = SQLiteSessions(tmp_path / "a.db")

    def made() -> Runtime:
        runtime = Runtime(sessions=place)
        for name in ("helper", "other"):
            runtime.agent(AgentSpec(name=name, model=OfflineModel()))
        return runtime

    async def check_reuse(client: httpx.AsyncClient) -> None:
        same = await said(client, door, ACME, CAT, key="1", conversation="alice")
        assert (same.status_code, "Byron" in same.text) == (200, True)
        reused = await said(client, door, ACME, ASKED, key="1", conversation="alice")
        assert (reused.status_code, reused.json()["error"]["code"]) == (422, "idempotency_key_reused")
        stored = await client.get("/v1/agents/helper/sessions/alice/messages", headers=ACME)
        assert len(stored.json()["messages"]) == 2

    runtime = made()
    async with client_of(runtime) as client, runtime:
        first = await said(client, door, ACME, CAT, key="1", conversation="alice")
        assert "Byron" in first.text
        for more in ({"conversation": "bob"}, {"conversation": "alice", "model": "other"}, {}):
            answer = await said(client, door, ACME, ASKED, key="1", **more)
            assert answer.status_code == 200
            assert "Byron" not in answer.text
        assert "Byron" not in (await said(client, door, GLOBEX, ASKED, key="1", conversation="alice")).text
        bobs = await client.get("/v1/agents/helper/sessions/bob/messages", headers=ACME)
        assert len(bobs.json()["messages"]) == 2
        await check_reuse(client)
    runtime = made()
    async with client_of(runtime) as client, runtime:
        await check_reuse(client)
