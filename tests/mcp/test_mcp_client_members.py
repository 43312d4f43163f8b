"""What programs of the SDK do with a client besides: real MCP servers, each in a process of its own."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp_types import ImageContent, TextContent

from repertory import Agent, MCPClient, ScriptedModel
from repertory.errors import ClientNotOpen, Invalid, Unavailable
from tests.mcp.mcp_servers import TOYS, wait_for_note

pytestmark = pytest.mark.real_time

TELLING = """
import anyio
from mcp.server.mcpserver import Context, MCPServer

server = MCPServer("telling", instructions="Ask count first.")

@server.tool()
async def count(context: Context) -> str:
    for number in (1, 2):
        await context.report_progress(number, 2, f"step {number}")
    return "counted"

@server.tool()
async def marked(context: Context) -> str:
    return str((context.request_context.meta or {}).get("shop"))

server.run("stdio")
"""


@pytest.fixture
def toys(tmp_path: Path) -> MCPClient:
    return MCPClient.stdio(sys.executable, [TOYS, str(tmp_path)])


def telling(tmp_path: Path, **settings: Any) -> MCPClient:
    (tmp_path / "telling.py").write_text(TELLING)
    return MCPClient.stdio(sys.executable, [str(tmp_path / "telling.py")], **settings)


def adder(tools: Any) -> Agent:
    return Agent(ScriptedModel([{"toolUse": {"name": "add", "input": {"a": 2, "b": 3}}}, "ok"]), tools=tools)


def answer_of(agent: Agent) -> str:
    return str(agent.messages[2]["content"][0]["toolResult"]["content"])  # type: ignore[typeddict-item]


def test_tools_of_a_client_opened_by_sync_code_run_in_any_event_loop(toys: MCPClient) -> None:
    async def ask(agent: Agent) -> str:
        await agent.invoke_async("add")
        return answer_of(agent)

    with toys:
        tools = toys.list_tools_sync()
        assert "5" in asyncio.run(ask(adder(tools)))
        assert "5" in anyio.run(ask, adder(tools), backend="trio")
        in_sync_code = adder(tools)
        in_sync_code("add")
        assert "5" in answer_of(in_sync_code)


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_call_from_another_loop_that_is_cancelled_is_dropped_by_the_server(
    toys: MCPClient, tmp_path: Path, backend: str
) -> None:
    async def call_and_cancel() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(toys.call_tool_async, "1", "hang")
            await wait_for_note(tmp_path, "hanging")
            group.cancel_scope.cancel()
        await wait_for_note(tmp_path, "stopped")

    with toys:
        anyio.run(call_and_cancel, backend=backend)


def test_loaded_tools_stay_until_their_last_consumer_has_gone(toys: MCPClient) -> None:
    tools = anyio.run(toys.load_tools)
    assert "add" in [tool.tool_name for tool in tools]
    toys.add_consumer("one")
    toys.add_consumer("two")
    toys.remove_consumer("one")
    assert toys.call_tool_sync("1", "add", {"a": 1, "b": 1})["content"] == [{"text": "2"}]
    toys.remove_consumer("two")
    with pytest.raises(ClientNotOpen):
        toys.list_tools_sync()
    assert len(anyio.run(toys.load_tools, backend="trio")) == len(tools)
    toys.stop()
    toys.stop(None, None, None)


def test_a_client_is_started_and_stopped_by_hand(toys: MCPClient) -> None:
    assert toys.start() is toys
    with pytest.raises(Invalid, match="currently running"):
        toys.start()
    assert toys.call_tool_sync("1", "add", {"a": 1, "b": 2})["content"] == [{"text": "3"}]
    toys.stop(None, None, None)


def test_tools_are_listed_with_another_prefix_and_other_filters(toys: MCPClient) -> None:
    with toys:
        page = toys.list_tools_sync(prefix="toy", tool_filters={"allowed": [lambda tool: tool.tool_name == "toy_add"]})
        assert page.pagination_token is None
        assert [tool.tool_name for tool in page] == ["toy_add"]
        assert not page[0].effects
        assert page[0].mcp_tool.name == "add"  # type: ignore[attr-defined]
        agent = Agent(ScriptedModel([{"toolUse": {"name": "toy_add", "input": {"a": 2, "b": 3}}}, "ok"]), tools=[page])
        agent("add")
        assert "5" in answer_of(agent)
        with pytest.raises(Invalid, match="first page"):
            toys.list_tools_sync("2")


def test_an_empty_prefix_and_empty_filters_replace_those_of_the_client(tmp_path: Path) -> None:
    client = MCPClient.stdio(sys.executable, [TOYS, str(tmp_path)], prefix="toy", tool_filters={"allowed": ["add"]})
    with client:
        assert [tool.tool_name for tool in client.list_tools_sync()] == ["toy_add"]
        assert [tool.tool_name for tool in client.list_tools_sync(prefix="")] == ["add"]
        assert "toy_fail" in [tool.tool_name for tool in client.list_tools_sync(tool_filters={})]


def test_a_predicate_is_asked_about_the_fields_of_the_tool_and_the_name_that_the_model_sees(tmp_path: Path) -> None:
    asked: list[tuple[str, str, str]] = []

    def takes(tool: Any) -> bool:
        asked.append((tool.name, tool.tool_name, tool.mcp_tool.name))
        return bool(tool.annotations and tool.annotations.read_only_hint)

    client = MCPClient.stdio(sys.executable, [TOYS, str(tmp_path)], prefix="toy", tool_filters={"allowed": [takes]})
    with client:
        assert [tool.tool_name for tool in client.list_tools_sync()] == ["toy_add"]
    assert ("add", "toy_add", "add") in asked


@pytest.mark.anyio
async def test_a_call_tells_how_far_it_has_got(tmp_path: Path) -> None:
    heard: list[tuple[float, float | None, str | None]] = []
    heard_of_all: list[float] = []
    all_heard = anyio.Event()

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        heard.append((progress, total, message))

    async def hear_of_all(progress: float, total: float | None, message: str | None) -> None:
        heard_of_all.append(progress)
        if len(heard_of_all) == 2:
            all_heard.set()

    async with telling(tmp_path, progress_callback=hear_of_all) as client:
        assert client.server_instructions == "Ask count first."
        await client.call_tool_async("1", "count", progress_callback=hear)
        await client.call_tool_async("2", "count")
        await all_heard.wait()
    assert heard == [(1, 2, "step 1"), (2, 2, "step 2")]
    assert heard_of_all == [1, 2]


@pytest.mark.anyio
async def test_calls_carry_the_clients_meta_and_their_own_instead(tmp_path: Path) -> None:
    async with telling(tmp_path, meta={"shop": "north"}) as client:
        agent = Agent(ScriptedModel([{"toolUse": {"name": "marked", "input": {}}}, "ok"]), tools=[client])
        await agent.invoke_async("go")
        assert "north" in answer_of(agent)
        result = await client.call_tool_async("1", "marked", meta={"shop": "south"})
    assert result["content"] == [{"text": "south"}]


@pytest.mark.anyio
async def test_a_signal_ends_a_call(toys: MCPClient, tmp_path: Path) -> None:
    signal = threading.Event()
    results: list[Any] = []

    async def hang() -> None:
        results.append(await toys.call_tool_async("1", "hang", cancel_signal=signal))

    async with toys:
        async with anyio.create_task_group() as group:
            group.start_soon(hang)
            await wait_for_note(tmp_path, "hanging")
            signal.set()
        await wait_for_note(tmp_path, "stopped")
        early = await toys.call_tool_async("2", "add", {"a": 1, "b": 1}, cancel_signal=signal)
        later = await toys.call_tool_async("3", "add", {"a": 1, "b": 1}, cancel_signal=threading.Event())
    assert [results[0]["status"], results[0]["cancelled"], early.get("cancelled")] == ["error", True, True]
    assert later["content"] == [{"text": "2"}]


@pytest.mark.anyio
async def test_a_result_by_hand_has_what_the_protocol_adds(toys: MCPClient) -> None:
    async with toys:
        result = await toys.call_tool_async("1", "weather", {"city": "Kiel"})
        failed = await toys.call_tool_async("2", "fail")
    assert result.get("structuredContent") == {"city": "Kiel", "degrees": 21}
    assert [result.get("isError"), failed.get("isError"), failed["status"]] == [False, True, "error"]


class Shouting(MCPClient):
    """Changes what the model is shown of an answer."""

    def map_mcp_content_to_tool_result_content(self, content: Any) -> Any:
        if isinstance(content, ImageContent):
            return None
        return {"text": f"{content.text}!"} if isinstance(content, TextContent) else {"text": "?"}


def test_a_subclass_decides_what_the_model_is_shown_of_an_answer(tmp_path: Path) -> None:
    agent = adder([Shouting.stdio(sys.executable, [TOYS, str(tmp_path)])])
    agent("add")
    assert "'5!'" in answer_of(agent)


def test_a_content_is_mapped_by_hand(toys: MCPClient) -> None:
    mapped = toys.map_mcp_content_to_tool_result_content
    assert mapped(TextContent(type="text", text="hello")) == {"text": "hello"}
    image = mapped(ImageContent(type="image", data="aGk=", mime_type="image/png"))
    assert image == {"image": {"format": "png", "source": {"bytes": b"hi"}}}


def test_an_agent_goes_on_without_the_tools_of_a_server_that_is_not_there() -> None:
    client = MCPClient.stdio("/no/such/program", continue_on_error=True)
    assert client.continue_on_error
    assert not client.connection_failed
    agent = Agent(ScriptedModel(["hello"]), tools=[client])
    assert str(agent("hi")).strip() == "hello"
    assert client.connection_failed
    with client:
        assert client.list_tools_sync() == []
        assert client.call_tool_sync("1", "add")["status"] == "error"
    client.stop()
    assert not client.connection_failed
    with pytest.raises(Unavailable):
        MCPClient.stdio("/no/such/program").start()


def test_servers_of_a_file_become_clients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOYS", TOYS)
    servers = {
        "my.toys": {
            "command": sys.executable,
            "args": ["${TOYS}", str(tmp_path)],
            "tool_filters": {"allowed": ["ad+$"], "rejected": None},
        },
        "off": {"command": "x", "disabled": True},
        "web": {"url": "http://127.0.0.1:9/mcp", "headers": {"a": "${env:TOYS}"}},
        "old": {"url": "http://127.0.0.1:9/sse", "transport": "sse", "continue_on_error": True},
        "unset": {"url": "http://${NO_SUCH_VARIABLE}", "continue_on_error": True},
    }
    file = tmp_path / "mcp.json"
    file.write_text(json.dumps({"mcpServers": servers}))
    clients = MCPClient.load_servers(f"file://{file}", prefix_with_server_name=True)
    assert [client.client_name for client in clients] == ["my.toys", "web", "old"]
    assert [client.continue_on_error for client in clients] == [False, False, True]
    with clients[0] as toys:
        assert [tool.tool_name for tool in toys.list_tools_sync()] == ["my_toys_add"]
    with clients[2] as away:
        assert away.list_tools_sync() == []


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (["x"], "file path string or a dictionary"),
        ({"mcpServers": []}, "mapping server names"),
        ({"a": "x"}, "must be a dictionary"),
        ({"a": {}}, "either 'command'"),
        ({"a": {"command": "x", "url": "http://x"}}, "both 'command' and 'url'"),
        ({"a": {"command": "x", "transport": "sse"}}, "requires 'url'"),
        ({"a": {"command": "x", "transport": "pigeon"}}, "unsupported transport"),
        ({"a": {"command": "x", "auth": {"client_id": "a"}}}, "streamable-http transport only"),
        ({"a": {"url": "http://x", "auth": {"client_id": "a"}}}, "missing required keys"),
        ({"a": {"url": "http://x", "auth": 0}}, "must be an object"),
        ({"a": {"command": "x", "tool_filters": {"allowed": ["("]}}}, "invalid regex"),
        ({"a": {"command": "${NO_SUCH_VARIABLE}"}}, "NO_SUCH_VARIABLE"),
        ({"a": {"command": ["x"]}}, "wrong type"),
        ({"a": {"command": "x", "args": 1}}, "wrong type"),
        ({"a": {"command": "x", "env": {"PORT": 1}}}, "wrong type"),
        ({"a": {"url": "http://x", "startup_timeout": "soon"}}, "wrong type"),
        ({"a": {"url": "http://x", "tool_filters": {"allowed": [1]}}}, "invalid regex"),
    ],
)
def test_a_server_that_is_described_badly_is_refused(config: Any, said: str) -> None:
    with pytest.raises(Invalid, match=said):
        MCPClient.load_servers(config)


def test_a_server_that_is_described_badly_costs_no_other_one() -> None:
    servers = {
        "bad": {"command": "x", "cwd": 1},
        "worse": {"url": "http://x", "headers": "a"},
        "good": {"command": "x"},
    }
    clients = MCPClient.load_servers({"mcpServers": servers}, continue_on_error=True)
    assert [client.client_name for client in clients] == ["good"]


@pytest.mark.parametrize("text", ["{", "[" * 100_000, '{"a": ' + "9" * 5_000 + "}", "\xff"])
def test_a_file_of_servers_that_is_no_json_is_refused(text: str, tmp_path: Path) -> None:
    file = tmp_path / "mcp.json"
    file.write_text(text, encoding="latin-1")
    with pytest.raises(Invalid, match="file of JSON"):
        MCPClient.load_servers(str(file))


def test_a_file_of_servers_that_is_not_there_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        MCPClient.load_servers(str(tmp_path / "mcp.json"))


def test_a_transport_has_two_names(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="transport_callable"):
        MCPClient(lambda: None, transport_callable=lambda: None)  # type: ignore[arg-type,return-value]
    client = MCPClient(transport_callable=lambda: None)  # type: ignore[arg-type,return-value]
    client.on_tools_changed = print
    assert client.on_tools_changed is print
