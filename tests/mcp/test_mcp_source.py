"""Connections to real MCP servers, as processes and over HTTP: calls, ends, nonsense. Our decisions."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import anyio
import pytest
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp_types import GetPromptResult, ListPromptsResult, ListResourcesResult, ReadResourceResult

from repertory.backends.tool_ports import ToolConnection
from repertory.core.messages import Json, ToolResult
from repertory.errors import Failed, Invalid, Unavailable
from repertory.mcp.choice import ToolChoice
from repertory.mcp.source import HTTPServer, MCPSource, StdioServer
from tests.mcp.mcp_servers import ROUGH, TOYS, http_server, sigkill, wait_for_end, wait_for_note

pytestmark = [pytest.mark.anyio, pytest.mark.real_time]


def toys(notes: Path, choice: ToolChoice | None = None) -> MCPSource:
    return MCPSource(StdioServer(command=sys.executable, args=[TOYS, str(notes)]), choice)


def rough(way: str = "", *, startup_timeout_s: float = 30.0) -> MCPSource:
    server = StdioServer(command=sys.executable, args=[ROUGH, way])
    return MCPSource(server, startup_timeout_s=startup_timeout_s)


async def call(connection: ToolConnection, name: str, value: Json = None) -> ToolResult:
    return await connection.call(name, {"toolUseId": "use-1", "name": name, "input": value})


def text(result: ToolResult) -> str:
    return str(result["content"][0]["text"])


async def test_a_process_lists_its_tools_and_runs_them(tmp_path: Path) -> None:
    with anyio.fail_after(30):
        async with toys(tmp_path).connect() as connection:
            offered = {offer.spec["name"]: offer for offer in await connection.tools()}
            assert offered["add"].spec["description"] == "Add two numbers."
            assert dict(offered["add"].spec["inputSchema"])["json"]["required"] == ["a", "b"]
            assert (offered["add"].effects, offered["add"].idempotent) == (False, False)
            assert (offered["pid"].effects, offered["pid"].idempotent) == (True, True)
            assert (offered["die"].effects, offered["die"].idempotent) == (True, False)
            assert text(await call(connection, "add", {"a": 1, "b": 2})) == "3"
            pid = text(await call(connection, "pid"))
            failed = await call(connection, "fail")
            assert failed["status"] == "error"
            assert "out of paper" in text(failed)
            for name, value in (("add", {"a": "x"}), ("nobody", {})):
                assert (await call(connection, name, value))["status"] == "error"
            assert "JSON object" in text(await call(connection, "add", [1, 2]))
        await wait_for_end(pid)


async def test_everything_that_a_tool_may_answer_arrives(tmp_path: Path) -> None:
    with anyio.fail_after(30):
        async with toys(tmp_path).connect() as connection:
            await connection.tools()
            assert (await call(connection, "show"))["content"] == [
                {"text": "text"},
                {"image": {"format": "png", "source": {"bytes": b"\x89PNG"}}},
                {"text": "[sound: 4 bytes of audio/wav, which cannot be shown here]"},
                {"text": "from a resource"},
                {"document": {"format": "pdf", "name": "q3-report", "source": {"bytes": b"%PDF"}}},
            ]
            weather = await call(connection, "weather", {"city": "Bergen"})
            assert weather["content"] == [{"json": {"city": "Bergen", "degrees": 21}}]
            prompts = await connection.query("prompts/list", {})
            assert isinstance(prompts, ListPromptsResult)
            assert [prompt.name for prompt in prompts.prompts] == ["greet"]
            prompt = await connection.query("prompts/get", {"name": "greet", "arguments": {"name": "Ada"}})
            assert isinstance(prompt, GetPromptResult)
            assert "Ada" in str(prompt.messages[0].content)
            resources = await connection.query("resources/list", {})
            assert isinstance(resources, ListResourcesResult)
            resource = await connection.query("resources/read", {"uri": resources.resources[0].uri})
            assert isinstance(resource, ReadResourceResult)
            assert "play" in str(resource.contents[0])
            with pytest.raises(Failed, match="refused"):
                await connection.query("prompts/get", {"name": "nobody"})
            with pytest.raises(Invalid, match="no such method"):
                await connection.query("tools/burn", {})


async def test_a_cancelled_call_is_cancelled_on_the_server(tmp_path: Path) -> None:
    with anyio.fail_after(30):
        async with toys(tmp_path).connect() as connection:
            async with anyio.create_task_group() as group:
                group.start_soon(call, connection, "hang")
                await wait_for_note(tmp_path, "hanging")
                group.cancel_scope.cancel()
            await wait_for_note(tmp_path, "stopped")
            assert text(await call(connection, "add", {"a": 1, "b": 2})) == "3"


@pytest.mark.parametrize("way", ["SIGKILL", "exit"])
async def test_a_call_in_flight_ends_with_the_process_and_so_does_the_connection(tmp_path: Path, way: str) -> None:
    async def cut() -> None:
        with pytest.raises(Unavailable):
            await call(connection, "hang")
        ended.append("call")

    ended: list[str] = []
    with anyio.fail_after(30):
        async with toys(tmp_path).connect() as connection:
            async with anyio.create_task_group() as group:
                group.start_soon(cut)
                pid = await wait_for_note(tmp_path, "hanging")
                if way == "SIGKILL":
                    sigkill(pid)
                else:
                    with pytest.raises(Unavailable):
                        await call(connection, "die")
            assert ended == ["call"]
            with pytest.raises(Unavailable):
                await connection.changed()
            with pytest.raises(Unavailable):
                await call(connection, "add", {"a": 1, "b": 2})
            with pytest.raises(Unavailable):
                await connection.tools()


async def test_a_source_connects_again_and_again(tmp_path: Path) -> None:
    """The spelling of the `mcp` package: a function that makes a transport."""
    source = MCPSource(lambda: stdio_client(StdioServerParameters(command=sys.executable, args=[ROUGH])))
    with anyio.fail_after(30):
        for _ in range(2):
            async with source.connect() as connection:
                assert len(await connection.tools()) == 7


async def test_tools_that_change_are_heard_of(tmp_path: Path) -> None:
    """By a subscription in the protocol of 2026, unasked before."""
    with anyio.fail_after(30):
        for source in (toys(tmp_path), rough()):
            async with source.connect() as connection:
                before = await connection.tools()
                while True:  # A subscription that is still on its way may miss the first change.
                    assert text(await call(connection, "grow")) == "ok"
                    with anyio.move_on_after(1):
                        await connection.changed()
                        break
                names = {offer.spec["name"] for offer in await connection.tools()}
                assert names == {"grown", *(offer.spec["name"] for offer in before)}


async def test_streamable_http_does_the_same(tmp_path: Path) -> None:
    with anyio.fail_after(30), http_server(TOYS, str(tmp_path)) as server:
        source = MCPSource(HTTPServer(url=server.url, headers={"X-Who": "me"}))
        assert source.name == server.url.removeprefix("http://").removesuffix("/mcp")
        async with source.connect() as connection:
            assert "add" in [offer.spec["name"] for offer in await connection.tools()]
            assert text(await call(connection, "add", {"a": 1, "b": 2})) == "3"
            async with anyio.create_task_group() as group:
                group.start_soon(call, connection, "hang")
                await wait_for_note(tmp_path, "hanging")
                group.cancel_scope.cancel()
            await wait_for_note(tmp_path, "stopped")


@pytest.mark.filterwarnings("ignore:Async generator 'http:ResourceWarning")  # The package's, of the broken connection.
async def test_an_http_server_that_is_killed_ends_the_call_and_the_connection(tmp_path: Path) -> None:
    async def cut() -> None:
        try:
            results.append(await call(connection, "hang"))
        except Unavailable as error:
            results.append(error)

    results: list[ToolResult | Unavailable] = []
    with anyio.fail_after(30), http_server(TOYS, str(tmp_path)) as server, pytest.raises(Unavailable):
        async with MCPSource(HTTPServer(url=server.url)).connect() as connection:
            async with anyio.create_task_group() as group:
                group.start_soon(cut)
                await wait_for_note(tmp_path, "hanging")
                server.kill()
            (result,) = results
            assert isinstance(result, Unavailable) or result["status"] == "error"
            while True:  # The package gives up on its streams one by one.
                await connection.changed()
                await connection.tools()


async def test_an_http_server_that_forgot_the_session_is_a_connection_that_ended() -> None:
    """Else every call until the end of the agent would be refused the same."""
    with anyio.fail_after(30), http_server(ROUGH, "") as server:
        async with MCPSource(HTTPServer(url=server.url)).connect() as connection:
            assert len(await connection.tools()) == 7
            assert text(await call(connection, "echo", {"a": 1})) == '{"a": 1}'
            server.kill()
            server.start()
            with pytest.raises(Unavailable):
                await call(connection, "echo", {})
            with pytest.raises(Unavailable):
                await connection.changed()


async def test_nonsense_is_an_error_result_and_the_connection_lives_on() -> None:
    with anyio.fail_after(30):
        async with rough("chatty").connect() as connection:
            assert len(await connection.tools()) == 7
            refused = await call(connection, "refuse")
            assert (refused["status"], text(refused)) == ("error", "Error: not in the mood")
            wrong = await call(connection, "wrong")
            assert wrong["status"] == "error"
            assert "validation error" in text(wrong)
            with anyio.move_on_after(0.3) as scope:
                await call(connection, "garbage")
            assert scope.cancelled_caught
            assert text(await call(connection, "echo", {"a": 1})) == '{"a": 1}'


@pytest.mark.parametrize(
    ("way", "problem"),
    [
        ("twins", "two of the server's tools"),
        ("listless", "no list today"),
        ("endless", "has no end"),
        ("dumb", "in time"),
    ],
)
async def test_a_list_that_makes_no_sense_is_refused(way: str, problem: str) -> None:
    with anyio.fail_after(30):
        async with rough(way, startup_timeout_s=2.0 if way == "dumb" else 30.0).connect() as connection:
            with pytest.raises(Failed, match=problem):
                await connection.tools()


@pytest.mark.parametrize(
    ("server", "problem", "check"),
    [
        (StdioServer(command="/no/such/program"), "FileNotFoundError", "check the command"),
        (StdioServer(command=sys.executable, args=["-c", "pass"]), "Connection closed", "prints to stderr"),
        (HTTPServer(url="http://127.0.0.1:1/mcp"), "ConnectError", "check the address"),
    ],
    ids=["no program", "ends at once", "nobody listens"],
)
async def test_a_server_that_cannot_be_reached_is_named_with_what_to_check(
    server: StdioServer | HTTPServer, problem: str, check: str
) -> None:
    with anyio.fail_after(30), pytest.raises(Unavailable) as caught:
        async with MCPSource(server, name="my server").connect():
            raise AssertionError("it cannot be reached")
    assert re.search(rf"{problem}.*{check}.*my server", str(caught.value))
    assert caught.value.__cause__ is not None


async def test_a_server_that_never_answers_is_given_up_on(tmp_path: Path) -> None:
    with anyio.fail_after(30), pytest.raises(Unavailable, match=r"did not answer within 0\.3 s"):
        async with rough("deaf", startup_timeout_s=0.3).connect():
            raise AssertionError("it never answers")


async def test_a_cancelled_start_leaves_no_process(tmp_path: Path) -> None:
    with anyio.fail_after(30):
        with anyio.move_on_after(0.3) as scope:
            async with rough("deaf").connect():
                raise AssertionError("it never answers")
        assert scope.cancelled_caught


def test_what_makes_no_sense_is_refused_at_once() -> None:
    with pytest.raises(TypeError, match="returns a transport"):
        MCPSource("http://127.0.0.1:8000/mcp")  # type: ignore[arg-type]
    with pytest.raises(Invalid, match="startup_timeout_s"):
        MCPSource(StdioServer(command="x"), startup_timeout_s=0)


@pytest.mark.parametrize(
    ("command", "args", "name"),
    [
        ("python", ["tools/github.py"], "github"),
        ("python", ["-m", "my.server"], "my.server"),
        ("npx", ["-y", "@modelcontextprotocol/server-filesystem", "/tmp"], "server-filesystem"),
        ("/usr/bin/weather", [], "weather"),
        ("python", ["-c", "print(1)"], "python"),
        ("/usr/bin/weather", ["--api-key", "sk-secret"], "weather"),
        ("npx", ["--token", "sk-secret", "weather"], "npx"),
        ("weather", ["sk-secret"], "weather"),
    ],
)
def test_a_process_is_named_after_what_it_runs(command: str, args: list[str], name: str) -> None:
    assert StdioServer(command=command, args=args).name == name
