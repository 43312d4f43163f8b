"""Agents with the tools of real MCP servers: by themselves, in a runtime, by hand, from sync code. Our decisions."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp.client.stdio import StdioServerParameters, stdio_client

from repertory import Agent, AgentSpec, MCPClient, Runtime, ScriptedModel, tool
from repertory.app.host.host import SERVED_PAUSED_MAX
from repertory.core.messages import Message, ToolUse, text_of, tool_results
from repertory.errors import Invalid, NotReady, RepertoryError, Unavailable
from tests.mcp.mcp_servers import ROUGH, TOYS, http_server, is_running, sigkill, wait_for_end, wait_for_note

pytestmark = pytest.mark.real_time
on_both_loops = pytest.mark.anyio


def toys(notes: Path, **settings: Any) -> MCPClient:
    return MCPClient.stdio(sys.executable, [TOYS, str(notes)], **settings)


def rough(way: str = "", *, notes: Path | None = None, **settings: Any) -> MCPClient:
    env = {"NOTES": str(notes)} if notes is not None else None
    return MCPClient.stdio(sys.executable, [ROUGH, way], env=env, **settings)


def use(name: str, **value: object) -> dict[str, object]:
    return {"toolUse": {"name": name, "input": value}}


def trying(name: str) -> Callable[..., object]:
    """A reply that uses a tool once in every turn; the last of a script that loops."""

    def reply(messages: list[Message], tool_specs: object, system_prompt: object) -> object:
        return "so it is" if any(tool_results(messages[-1])) else use(name)

    return reply


def agent_with(*tools: object, replies: list[Any], loop: bool = False) -> Agent:
    return Agent(model=ScriptedModel(replies, loop=loop), tools=tools, callback_handler=None)


def last_result(messages: list[Message]) -> tuple[str, str]:
    """Status and text of the last tool result."""
    *_, result = (result for message in messages for result in tool_results(message))
    return result["status"], str(result["content"][0].get("text"))


@tool
def double(number: int) -> int:
    """Double a number."""
    return 2 * number


# -------------------------------------------------------------------------------------------------------- with an agent


@on_both_loops
async def test_an_agent_uses_a_servers_tools_beside_its_own(tmp_path: Path) -> None:
    """In the spelling of the `mcp` package."""
    client = MCPClient(lambda: stdio_client(StdioServerParameters(command=sys.executable, args=[TOYS, str(tmp_path)])))
    model = ScriptedModel([use("add", a=2, b=3), use("double", number=5), use("pid"), "ten"])
    agent = Agent(model=model, tools=[double, client], callback_handler=None)
    assert agent.tool_names == ["double"]
    with anyio.fail_after(30):
        assert str(await agent.invoke_async("compute")) == "ten"
        results = [result for message in agent.messages for result in tool_results(message)]
        assert [result["content"] for result in results[:2]] == [[{"text": "5"}], [{"text": "10"}]]
        await agent.shutdown_async()
        await wait_for_end(str(results[2]["content"][0]["text"]))
    assert agent.tool_names[:3] == ["double", "add", "pid"]
    assert {"double", "add"} < {spec["name"] for spec in model.calls[0].tool_specs or ()}


@on_both_loops
async def test_a_held_agent_holds_its_server() -> None:
    agent = agent_with(rough(), replies=[use("pid"), "one", use("pid"), "two"])
    with anyio.fail_after(30):
        async with agent:
            await agent.invoke_async("1")
            first = last_result(agent.messages)
            await agent.invoke_async("2")
            assert last_result(agent.messages) == first
        await wait_for_end(first[1])


@on_both_loops
async def test_a_server_stays_between_calls_and_is_started_again_if_it_has_died() -> None:
    """A call that begins before the end of the server was heard of gets an error result, as within a block."""
    agent = agent_with(rough(), replies=[trying("pid")], loop=True)
    with anyio.fail_after(30):
        await agent.invoke_async("1")
        first = last_result(agent.messages)
        await agent.invoke_async("2")
        assert last_result(agent.messages) == first
        sigkill(first[1])
        await wait_for_end(first[1])
        status = "error"
        while status == "error":
            await agent.invoke_async("3")
            status, then = last_result(agent.messages)
        assert then != first[1]
        await agent.shutdown_async()
        await wait_for_end(then)


@on_both_loops
async def test_the_servers_of_few_agents_stay_between_calls() -> None:
    """A service that makes an agent for every request must not collect processes."""
    pids: list[str] = []
    agents: list[Agent] = []
    with anyio.fail_after(50):
        for _ in range(SERVED_PAUSED_MAX + 2):
            agents.append(agent_with(rough(), replies=[use("pid"), "one"]))
            await agents[-1].invoke_async("1")
            pids.append(last_result(agents[-1].messages)[1])
        await wait_for_end(pids[0])
        await wait_for_end(pids[1])
        assert all(is_running(pid) for pid in pids[2:])
        for agent in agents:
            await agent.shutdown_async()
        for pid in pids:
            await wait_for_end(pid)


@on_both_loops
async def test_a_server_ends_with_its_loop(anyio_backend_name: str) -> None:
    """The loop ends in a thread, and the test looks from another one."""
    pids: list[str] = []

    async def call() -> None:
        agent = agent_with(rough(), replies=[use("pid"), "one"])
        await agent.invoke_async("1")
        pids.append(last_result(agent.messages)[1])

    with anyio.fail_after(30):
        await anyio.to_thread.run_sync(lambda: anyio.run(call, backend=anyio_backend_name))
        await wait_for_end(pids[0])


@on_both_loops
async def test_a_servers_tool_has_the_members_that_programs_of_the_sdk_use() -> None:
    with anyio.fail_after(30):
        async with rough() as client:
            echo = next(each for each in await client.list_tools() if each.tool_name == "echo")
            assert (echo.tool_type, echo.tool_spec["name"]) == ("python", "echo")
            use_it: ToolUse = {"toolUseId": "use-1", "name": "echo", "input": {"a": 1}}
            events = [event async for event in echo.stream(use_it, {})]
    assert [event["tool_result"]["content"] for event in events] == [[{"text": '{"a": 1}'}]]


@on_both_loops
async def test_a_client_opened_by_hand_between_two_calls_is_used_by_the_second() -> None:
    client = rough()
    agent = agent_with(client, replies=[use("pid"), "one", use("pid"), "two", use("pid"), "three"])
    with anyio.fail_after(30):
        await agent.invoke_async("1")
        first = last_result(agent.messages)
        async with client:
            started = str((await client.call_tool_async("use", "pid", {}))["content"][0].get("text"))
            await agent.invoke_async("2")
            assert last_result(agent.messages) == ("success", started) != first
        await agent.invoke_async("3")
        status, then = last_result(agent.messages)
        assert (status, then != started) == ("success", True)
        await agent.shutdown_async()


@on_both_loops
async def test_a_server_killed_in_a_call_gives_an_error_result_and_comes_back(tmp_path: Path) -> None:
    agent = agent_with(rough(notes=tmp_path), replies=[use("hang"), "it died", trying("pid")], loop=True)

    async def kill() -> None:
        sigkill(await wait_for_note(tmp_path, "hanging"))

    with anyio.fail_after(30):
        async with agent, anyio.create_task_group() as group:
            group.start_soon(kill)
            assert str(await agent.invoke_async("go")) == "it died"
            status, text = last_result(agent.messages)
            assert status == "error"
            assert "may or may not have taken effect" in text
            while status == "error":
                await anyio.sleep(0.05)
                await agent.invoke_async("and now?")
                status, text = last_result(agent.messages)
            assert text.isdigit()


@on_both_loops
async def test_a_tool_that_hangs_is_given_up_on_in_time_and_told_so(tmp_path: Path) -> None:
    agent = agent_with(rough(notes=tmp_path, call_timeout_s=0.5), replies=[use("hang"), "too slow", use("echo"), "2"])
    with anyio.fail_after(30):
        async with agent:
            assert str(await agent.invoke_async("go")) == "too slow"
            status, text = last_result(agent.messages)
            assert (status, "did not finish within 0.5 s" in text) == ("error", True)
            await wait_for_note(tmp_path, "stopped")
            await agent.invoke_async("and now?")
            assert last_result(agent.messages) == ("success", "{}")


@on_both_loops
async def test_cancelling_the_turn_cancels_the_call_on_the_server(tmp_path: Path) -> None:
    agent = agent_with(rough(notes=tmp_path), replies=[use("hang"), "never said"])

    async def cancel() -> None:
        await wait_for_note(tmp_path, "hanging")
        agent.cancel()

    with anyio.fail_after(30):
        async with agent, anyio.create_task_group() as group:
            group.start_soon(cancel)
            result = await agent.invoke_async("go")
            assert result.stop_reason == "cancelled"
            await wait_for_note(tmp_path, "stopped")


@on_both_loops
async def test_a_server_that_answers_nonsense_is_the_models_problem() -> None:
    agent = agent_with(rough("chatty", call_timeout_s=0.5), replies=[use("wrong"), use("garbage"), use("echo"), "well"])
    with anyio.fail_after(30):
        assert str(await agent.invoke_async("go")) == "well"
    results = [result for message in agent.messages for result in tool_results(message)]
    assert [result["status"] for result in results] == ["error", "error", "success"]


@on_both_loops
async def test_an_answer_that_is_too_large_is_the_models_problem_and_the_server_lives_on() -> None:
    flood = use("flood", way="values", size=200_000)
    agent = agent_with(rough("flood"), replies=[use("pid"), flood, use("pid"), "too much"])
    with anyio.fail_after(30):
        assert str(await agent.invoke_async("go")) == "too much"
    before, refused, after = (result for message in agent.messages for result in tool_results(message))
    assert before["content"] == after["content"]
    assert refused["status"] == "error"
    assert str(refused["content"][0]["text"]).startswith("Error: TooLarge - the answer of the tool server is too large")


@on_both_loops
async def test_a_server_that_prints_without_an_end_is_started_again_while_other_sessions_go_on() -> None:
    client = rough("flood", name="torrents")
    flood = use("flood", way="no end")
    with anyio.fail_after(40):
        async with Runtime() as runtime:
            spec = AgentSpec(
                name="a", model=ScriptedModel([flood, "it ended", trying("pid")], loop=True), tools=[client]
            )
            flooded = runtime.agent(spec).session("flooded")
            other = runtime.agent(AgentSpec(name="b", model=ScriptedModel(["yes"], loop=True))).session("other")
            ended = anyio.Event()

            async def talk() -> None:
                while not ended.is_set():
                    assert str(await other.invoke("there?")) == "yes"

            async with anyio.create_task_group() as group:
                group.start_soon(talk)
                await flooded.invoke("go")
                ended.set()
            status, text = last_result(await flooded.messages())
            assert status == "error"
            for said in ("may or may not have taken effect", "a line that is no answer", "'torrents'", "result_bytes"):
                assert said in text
            while status == "error":
                await anyio.sleep(0.05)
                await flooded.invoke("and now?")
                status, text = last_result(await flooded.messages())
            assert text.isdigit()
        await wait_for_end(text)


@on_both_loops
@pytest.mark.parametrize("way", ["deaf", "listless", "program"])
async def test_a_server_that_cannot_be_opened_fails_the_call_with_its_name(way: str) -> None:
    client = rough(way, name="hopeless", startup_timeout_s=0.5)
    if way == "program":
        client = MCPClient.stdio("/no/such/program", name="hopeless")
    agent = agent_with(double, client, replies=["never said"])
    with anyio.fail_after(30):
        with pytest.raises(RepertoryError, match="tool server") as caught:
            await agent.invoke_async("go")
        assert way == "listless" or "hopeless" in str(caught.value)
        assert isinstance(caught.value, Unavailable) is (way != "listless")
        async with Runtime() as runtime:
            with pytest.raises(RepertoryError, match="tool server"):
                await runtime.agent(AgentSpec(model=ScriptedModel(["x"]), tools=[client])).session("s").invoke("go")
            assert [actor.path for actor in runtime.tree().children if "hopeless" in actor.path] == []


@on_both_loops
async def test_tools_that_are_added_are_shown_to_the_model_at_its_next_step() -> None:
    model = ScriptedModel([use("grow"), "grown", "and now?"], loop=True)
    agent = Agent(model=model, tools=[rough()], callback_handler=None)
    with anyio.fail_after(30):
        async with agent:
            while "grown" not in agent.tool_names:
                await agent.invoke_async("go")
            await agent.invoke_async("go")
    assert "grown" in [spec["name"] for spec in model.calls[-1].tool_specs or ()]


# ------------------------------------------------------------------------------------------------------------ filters


@on_both_loops
@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ({"tool_filters": {"allowed": ["echo", re.compile("g")]}}, ["echo", "garbage", "grow"]),
        ({"tool_filters": {"rejected": [lambda offered: "r" in offered.name]}}, ["echo", "pid", "hang"]),
        ({"tool_filters": {"allowed": ["echo"]}, "prefix": "my"}, ["my_echo"]),
    ],
)
async def test_filters_and_a_prefix_choose_what_the_model_sees(settings: dict[str, Any], names: list[str]) -> None:
    with anyio.fail_after(30):
        async with rough(effects=False, idempotent=True, **settings) as client:
            tools = await client.list_tools()
            assert [each.name for each in tools] == names
            assert {(each.effects, each.idempotent) for each in tools} == {(False, True)}
            result = await client.call_tool_async("use-1", names[0], {"a": 1})
            assert result["content"] == [{"text": '{"a": 1}'}]


@on_both_loops
async def test_an_agent_may_be_told_of_some_of_a_servers_tools_only() -> None:
    model = ScriptedModel([use("pid"), "ok"], loop=True)
    agent = Agent(model=model, tools=[rough(), double], enabled_tools=["echo"], callback_handler=None)
    with anyio.fail_after(30):
        for names in (["echo"], ["pid", "double"]):
            agent.enabled_tools = names
            await agent.invoke_async("go")
            assert [spec["name"] for spec in model.calls[-1].tool_specs or ()] == names
            assert agent.tool_names[-1] == "double"
        with pytest.raises(Invalid, match="no such tools"):
            agent.enabled_tools = ["ecko"]


# ------------------------------------------------------------------------------------------------------ in a runtime


@on_both_loops
async def test_sessions_of_a_runtime_share_one_server_that_lives_as_long_as_the_runtime() -> None:
    client = rough(name="a/b")
    replies = [use("pid"), "ok"]
    with anyio.fail_after(30):
        async with Runtime() as runtime:
            pids: set[str] = set()

            async def ask(name: str) -> None:
                spec = AgentSpec(name=name, model=ScriptedModel(replies), tools=[double, client])
                session = runtime.agent(spec).session(f"session of {name}")
                await session.invoke("go")
                pids.add(last_result(await session.messages())[1])

            async with anyio.create_task_group() as group:
                for name in ("a", "b", "c"):
                    group.start_soon(ask, name)
            (pid,) = pids
            servers = [actor for actor in runtime.tree().walk() if actor.kind == "ToolServer"]
            assert len(servers) == 1
            assert servers[0].path == "/tools 1 a_b/connection"
        await wait_for_end(pid)


@on_both_loops
async def test_a_runtime_takes_an_http_server_that_is_killed_and_started_again() -> None:
    with anyio.fail_after(40), http_server(ROUGH, "") as server:
        async with Runtime() as runtime:
            model = ScriptedModel([trying("pid")], loop=True)
            session = runtime.agent(AgentSpec(model=model, tools=[MCPClient.http(server.url)])).session("s")
            await session.invoke("go")
            first = last_result(await session.messages())
            assert first[0] == "success"
            server.kill()
            await session.invoke("go")
            assert last_result(await session.messages())[0] == "error"
            server.start()
            while last_result(await session.messages())[0] == "error":
                await anyio.sleep(0.05)
                await session.invoke("go")
            assert last_result(await session.messages()) != first
            assert runtime.healthy


# ----------------------------------------------------------------------------------------------------------- by hand


@on_both_loops
async def test_a_client_that_is_open_by_hand_is_shared_by_the_agents_of_the_loop(tmp_path: Path) -> None:
    client = toys(tmp_path)
    with anyio.fail_after(30):
        async with client:
            pid = str((await client.call_tool_async("use-1", "pid"))["content"][0]["text"])
            for tools in ([client], await client.list_tools()):
                agent = agent_with(*tools, replies=[use("pid"), "ok"])
                await agent.invoke_async("go")
                assert last_result(agent.messages) == ("success", pid)
            assert [prompt.name for prompt in (await client.list_prompts()).prompts] == ["greet"]
            assert "Ada" in str((await client.get_prompt("greet", {"name": "Ada"})).messages[0].content)
            assert [str(each.uri) for each in (await client.list_resources()).resources] == ["toys://motto"]
            assert "play" in str((await client.read_resource("toys://motto")).contents[0])
            with pytest.raises(Invalid, match="open already"):
                await client.__aenter__()
        await wait_for_end(pid)
        agent = agent_with(*tools, replies=[use("pid"), "ok"])
        await agent.invoke_async("go")
        assert last_result(agent.messages)[0] == "error"


@on_both_loops
async def test_a_client_open_by_hand_in_a_runtime_is_the_runtimes() -> None:
    client = rough()
    with anyio.fail_after(30):
        async with Runtime() as runtime:
            session = runtime.agent(AgentSpec(model=ScriptedModel([use("echo"), "x"] * 2), tools=[client])).session("s")
            async with client:
                await session.invoke("go")
                assert len([actor for actor in runtime.tree().walk() if actor.kind == "ToolServer"]) == 1
            await session.invoke("go")
            assert last_result(await session.messages())[0] == "success"


@on_both_loops
async def test_a_call_by_hand_that_hangs_is_given_up_on(tmp_path: Path) -> None:
    with anyio.fail_after(30):
        async with rough(notes=tmp_path, call_timeout_s=0.3) as client:
            result = await client.call_tool_async("use-1", "hang")
            assert (result["status"], "0.3 s" in str(result["content"])) == ("error", True)
            await wait_for_note(tmp_path, "stopped")


@on_both_loops
async def test_what_needs_an_open_client_says_so() -> None:
    client = rough()
    attempts: list[Callable[[], Awaitable[object]]] = [
        client.list_tools,
        client.list_prompts,
        lambda: client.call_tool_async("u", "echo"),
    ]
    for attempt in attempts:
        with pytest.raises(NotReady, match="async with client"):
            await attempt()


@on_both_loops
async def test_a_client_that_did_not_open_may_be_opened_again() -> None:
    client = rough("deaf", startup_timeout_s=0.3)
    with anyio.fail_after(30):
        for _ in range(2):
            with pytest.raises(Unavailable):
                await client.__aenter__()


# --------------------------------------------------------------------------------------------------------- sync code


def test_sync_code_calls_agents_with_a_servers_tools() -> None:
    agent = agent_with(rough(), replies=[use("echo", a=1), "one"])
    assert str(agent("go")) == "one"
    assert last_result(agent.messages) == ("success", '{"a": 1}')
    assert text_of(agent.messages[-1]) == "one"


def test_sync_code_opens_a_client_by_hand() -> None:
    with rough() as client:
        assert "echo" in [each.name for each in client.list_tools_sync()]
        pid = str(client.call_tool_sync("use-1", "pid")["content"][0]["text"])
        for tools in (client.list_tools_sync(), [client]):
            agent = agent_with(*tools, replies=[use("pid"), "ok"])
            agent("go")
            assert last_result(agent.messages) == ("success", pid)


def test_the_settings_are_checked_when_a_client_is_made() -> None:
    with pytest.raises(Invalid, match="call_timeout_s"):
        rough(call_timeout_s=0)
    with pytest.raises(Invalid, match="allowed and rejected"):
        rough(tool_filters={"alowed": []})
    with pytest.raises(Invalid, match="prefix"):
        rough(prefix="my tools")
    with pytest.raises(TypeError, match="timeout"):
        rough(timeout=3)


def test_without_the_extra_a_client_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mcp", None)
    with pytest.raises(ImportError, match=r"pip install repertory\[mcp\]"):
        MCPClient.http("http://127.0.0.1:8000/mcp")


def test_making_a_client_loads_no_heavy_library() -> None:
    program = "import sys; from repertory import MCPClient; MCPClient.stdio('x'); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=50)
    assert not {"mcp", "httpx2", "jsonschema", "pydantic"} & set(done.stdout.split())
