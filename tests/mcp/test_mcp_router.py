"""The model connects to MCP servers when it needs them: real servers, started and stopped by the tool."""

from __future__ import annotations

import gc
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest

from repertory import Agent, AgentSpec, Runtime, ScriptedModel
from repertory.core.messages import tool_results
from repertory.errors import Invalid
from repertory.mcp.router import make_mcp_router
from tests.app.orchestration.recorder import use
from tests.mcp.mcp_servers import TOYS, is_running, wait_for_end

pytestmark = [pytest.mark.anyio, pytest.mark.real_time]


def router(notes: Path, **settings: Any) -> Any:
    return make_mcp_router(servers={"toys": {"command": sys.executable, "args": [TOYS, str(notes)]}}, **settings)


def asked(command: str, key: str | None = "c", **more: Any) -> dict[str, Any]:
    return use("mcp_router", command=command, **({} if key is None else {"connection_id": key}), **more)


def results_of(agent: Agent) -> list[tuple[str, str]]:
    found = [result for message in agent.messages for result in tool_results(message)]
    return [(result["status"], str(result["content"][0].get("text") or result["content"][0])) for result in found]


async def test_a_server_is_connected_used_and_stopped_by_the_model(tmp_path: Path) -> None:
    steps = [
        asked("connect", server_name="toys"),
        asked("list_connections", None),
        asked("list_tools"),
        asked("call_tool", tool_name="add", arguments={"a": 1, "b": 2}),
        asked("disconnect"),
        asked("list_tools"),
    ]
    agent = Agent(ScriptedModel([*steps, "ok"]), tools=[router(tmp_path)], callback_handler=None)
    async with agent:
        await agent.invoke_async("go")
    statuses = [status for status, _ in results_of(agent)]
    assert statuses == ["success"] * 5 + ["error"]
    assert results_of(agent)[1][1] == "c"
    assert '"add"' in results_of(agent)[2][1]
    assert "3" in results_of(agent)[3][1]


@pytest.mark.parametrize(
    ("step", "why"),
    [
        (asked("connect", server_name="evil"), "allowlist"),
        (asked("connect"), "server_name"),
        (asked("connect", None, server_name="toys"), "connection_id"),
        (asked("call_tool"), "No active connection"),
    ],
)
async def test_the_model_is_told_what_it_may_not_do(tmp_path: Path, step: dict[str, Any], why: str) -> None:
    agent = Agent(ScriptedModel([step, "ok"]), tools=[router(tmp_path)], callback_handler=None)
    await agent.invoke_async("go")
    ((status, text),) = results_of(agent)
    assert status == "error"
    assert why in text


async def test_two_agents_share_a_server_which_ends_with_the_last_connection(tmp_path: Path) -> None:
    shared = router(tmp_path, max_connections=1)
    pid = asked("call_tool", tool_name="pid")
    first, second = (
        Agent(
            ScriptedModel([asked("connect", server_name="toys"), pid, "ok", asked("disconnect"), pid, "ok"]),
            tools=[shared],
            callback_handler=None,
        )
        for _ in range(2)
    )
    async with first, second:
        for agent in (first, second, first):
            await agent.invoke_async("go")
        (_, one), (_, two) = results_of(first)[1], results_of(second)[1]
        assert one == two
        assert is_running(one)
        await second.invoke_async("stop")
        await wait_for_end(one)


async def test_a_server_that_does_not_answer_holds_up_nobody_at_another_one(tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    silent = {"command": "sh", "args": ["-c", f"touch {begun}; exec sleep 1000"]}
    toys = {"command": sys.executable, "args": [TOYS, str(tmp_path)]}
    shared = make_mcp_router(servers={"silent": silent, "toys": toys})
    waits, goes_on = (
        Agent(ScriptedModel([asked("connect", server_name=name), "ok"]), tools=[shared], callback_handler=None)
        for name in ("silent", "toys")
    )
    async with waits, goes_on, anyio.create_task_group() as group:
        group.start_soon(waits.invoke_async, "go")
        while not await anyio.Path(begun).exists():  # noqa: ASYNC110 - another process makes it
            await anyio.sleep(0.01)
        await goes_on.invoke_async("go")
        assert results_of(goes_on)[0][0] == "success"
        assert not results_of(waits)
        group.cancel_scope.cancel()


async def test_a_server_whose_agents_are_gone_is_started_again(tmp_path: Path) -> None:
    """They have not disconnected, and another one may be of another runtime."""
    shared = router(tmp_path)

    async def pid_of(*, in_runtime: bool) -> str:
        model = ScriptedModel([asked("connect", server_name="toys"), asked("call_tool", tool_name="pid"), "ok"])
        if not in_runtime:
            agent = Agent(model, tools=[shared], callback_handler=None)
            await agent.invoke_async("go")
            await agent.shutdown_async()
            return results_of(agent)[1][1]
        async with Runtime() as runtime:
            session = runtime.agent(AgentSpec(name="a", model=model, tools=[shared])).session("s")
            await session.invoke("go")
            found = [result for message in await session.messages() for result in tool_results(message)]
            return str(found[1]["content"][0].get("text"))

    pids = list[str]()
    for in_runtime in (False, False, True, True, False):
        pids.append(await pid_of(in_runtime=in_runtime))
        gc.collect()
        await anyio.wait_all_tasks_blocked()
        gc.collect()
    assert len(set(pids)) == 5
    for pid in pids[:-1]:
        await wait_for_end(pid)


async def test_in_a_runtime_a_server_ends_with_it(tmp_path: Path) -> None:
    steps = [asked("connect", server_name="toys"), asked("call_tool", tool_name="pid"), "ok"]
    async with Runtime() as runtime:
        spec = AgentSpec(name="a", model=ScriptedModel(steps), tools=[router(tmp_path)])
        session = runtime.agent(spec).session("s")
        await session.invoke("go")
        messages = await session.messages()
    (*_, result) = (result for message in messages for result in tool_results(message))
    await wait_for_end(str(result["content"][0].get("text")))


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_server_that_nobody_disconnects_ends_with_the_event_loop(tmp_path: Path, backend: str) -> None:
    steps = [asked("connect", server_name="toys"), asked("call_tool", tool_name="pid"), "ok"]
    agent = Agent(ScriptedModel(steps), tools=[router(tmp_path)], callback_handler=None)
    anyio.run(agent.invoke_async, "go", backend=backend)
    anyio.run(wait_for_end, results_of(agent)[1][1], backend=backend)


@pytest.mark.parametrize("wrong", [{"servers": {}}, {"servers": {"a": {}}}, {"max_connections": 0}])
def test_bad_settings_are_refused(wrong: Any) -> None:
    with pytest.raises(Invalid):
        make_mcp_router(**{"servers": {"a": {"url": "http://127.0.0.1:1/mcp"}}, **wrong})
