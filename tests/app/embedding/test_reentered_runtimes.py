"""A runtime that is entered again after its end, in the same event loop, in another, and in two at once."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import anyio
import pytest
from starlette.testclient import TestClient

from repertory import AgentSpec, Runtime, ScriptedModel, SQLiteSessions
from repertory.asgi import asgi_app
from repertory.errors import Invalid


def spec() -> AgentSpec:
    return AgentSpec(name="helper", model=ScriptedModel(["Hi."], loop=True))


@pytest.mark.real_time
def test_two_test_clients_one_after_the_other_serve_the_same_application(tmp_path: Path) -> None:
    runtime = Runtime(sessions=SQLiteSessions(tmp_path / "a.db"))
    runtime.agent(spec())
    app = asgi_app(runtime)
    for number in (1, 2, 3):
        with TestClient(app, base_url="http://localhost") as client:
            said = client.post("/v1/agents/helper/sessions/s/turns", json={"prompt": "Hello"})
            assert said.status_code == 200, said.text
            listed = client.get("/v1/agents/helper/sessions")
            assert [each["session"] for each in listed.json()["sessions"]] == ["s"]
            messages = client.get("/v1/agents/helper/sessions/s/messages").json()["messages"]
            assert len(messages) == 2 * number
        assert not runtime.healthy


@pytest.mark.anyio
@pytest.mark.real_time
async def test_sessions_go_on_in_the_next_block_and_those_in_memory_begin_anew(tmp_path: Path) -> None:
    for place, kept in ((SQLiteSessions(tmp_path / "a.db"), 2), (None, 0)):
        runtime = Runtime(sessions=place)
        agent = runtime.agent(spec())
        ends: list[str] = []

        def hook(name: str, ends: list[str] = ends) -> object:
            async def note() -> None:
                ends.append(name)

            return note

        runtime.on_shutdown("turns", hook("each"))  # type: ignore[arg-type]
        async with runtime:
            session = agent.session("s")
            await session.invoke("Hello")
            runtime.on_shutdown("turns", hook("this"))  # type: ignore[arg-type]
            with pytest.raises(Invalid, match="is open"):
                await runtime.start()
        first = await runtime.drain()
        await runtime.start()
        assert len(await agent.session("s").history()) == kept
        await session.invoke("Hello again")
        second = await runtime.stop()
        assert first is not second
        assert second.ok
        assert sorted(ends) == ["each", "each", "this"]


@pytest.mark.real_time
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_second_event_loop_is_refused_while_the_first_is_open_and_harms_nothing(backend: str) -> None:
    runtime = Runtime()
    agent = runtime.agent(spec())
    refused: list[str] = []

    async def elsewhere() -> None:
        session = agent.session("s")
        for call in (runtime.start, runtime.drain, lambda: session.invoke("Hello"), session.history):
            with pytest.raises(Invalid, match="is open") as caught:
                await call()
            refused.append(str(caught.value))

    async def main() -> None:
        async with runtime:
            await agent.session("s").invoke("Hello")
            other = threading.Thread(target=lambda: anyio.run(elsewhere, backend=backend))
            other.start()
            await anyio.to_thread.run_sync(other.join)
            assert len(refused) == 4
            await agent.session("s").invoke("Hello")
            assert len(await agent.session("s").history()) == 4

    anyio.run(main, backend=backend)


@pytest.mark.real_time
def test_a_runtime_whose_event_loop_was_closed_in_its_middle_is_entered_in_the_next(tmp_path: Path) -> None:
    runtime = Runtime(sessions=SQLiteSessions(tmp_path / "a.db"))
    agent = runtime.agent(spec())

    async def begin() -> None:
        await runtime.start()
        await agent.session("s").invoke("Hello")

    loop = asyncio.new_event_loop()
    loop.run_until_complete(begin())
    loop.close()

    async def go_on() -> int:
        async with runtime:
            await agent.session("s").invoke("Hello")
            return len(await agent.session("s").history())

    assert asyncio.run(go_on()) == 4
