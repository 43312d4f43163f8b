"""Tool servers that say too much at once, over pipes and over HTTP: who is told, and what goes on. Our decisions."""

from __future__ import annotations

import fcntl
import json
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, nullcontext
from inspect import signature, unwrap
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from httpx2 import AsyncClient
from mcp.client.sse import sse_client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp_types import JSONRPCError, JSONRPCNotification

from repertory.backends.tool_ports import ToolConnection
from repertory.core.limits import RESULT_BYTES
from repertory.core.messages import ToolResult
from repertory.errors import TooLarge, Unavailable
from repertory.mcp.source import HTTPServer, MCPSource, StdioServer
from repertory.mcp.transports import SKIPPED_MAX, LineReader
from repertory.mcp.wire import WireBound
from tests.mcp.mcp_servers import ROUGH, TOYS, http_server, wait_for_end, wait_for_note

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.real_time,
    # Whenever an answer is not read to its end, which is how the package reads every stream of events.
    pytest.mark.filterwarnings("ignore:Async generator 'http:ResourceWarning"),
]

MIB = 1024 * 1024
VALUES = 200_000
"""More than an answer may have, in few bytes."""


@asynccontextmanager
async def connected(kind: str, notes: Path | None = None) -> AsyncGenerator[ToolConnection]:
    """To a server that floods when it is asked to: over `pipes`, or over `http` in `json` or in `events`."""
    env = {"NOTES": str(notes)} if notes is not None else {}
    if kind == "pipes":
        async with MCPSource(StdioServer(command=sys.executable, args=[ROUGH, "flood"], env=env)).connect() as there:
            yield there
        return
    with http_server(ROUGH, "events" if kind == "events" else "flood", env=env) as server:
        async with MCPSource(HTTPServer(url=server.url)).connect() as there:
            yield there


async def call(connection: ToolConnection, name: str, result_bytes: int = RESULT_BYTES, **value: Any) -> ToolResult:
    return await connection.call(name, {"toolUseId": "use-1", "name": name, "input": value}, result_bytes)


def text(result: ToolResult) -> str:
    return str(result["content"][0]["text"])


@pytest.mark.parametrize(
    ("kind", "way", "size"),
    [
        ("pipes", "text", 33 * MIB),
        ("pipes", "id last", 33 * MIB),
        ("pipes", "values", VALUES),
        ("json", "text", 33 * MIB),
        ("json", "values", VALUES),
        ("json", "no end", 0),
        ("events", "text", 33 * MIB),
        ("events", "values", VALUES),
        ("events", "no end", 0),
    ],
)
async def test_the_call_is_told_that_its_answer_is_too_large_and_the_connection_goes_on(
    kind: str, way: str, size: int
) -> None:
    with anyio.fail_after(50):
        async with connected(kind) as connection:
            pid = text(await call(connection, "pid"))
            with pytest.raises(TooLarge, match=r"ask for less .* 3 times limits\['result_bytes'\] is 31,457,280"):
                await call(connection, "flood", way=way, size=size)
            assert text(await call(connection, "pid")) == pid


@pytest.mark.parametrize("way", ["no end", "no answer"])
async def test_a_line_that_is_no_answer_ends_the_connection_and_the_process(way: str) -> None:
    with anyio.fail_after(50):
        async with connected("pipes") as connection:
            pid = text(await call(connection, "pid"))
            for ask in (call(connection, "flood", way=way, size=33 * MIB), connection.changed()):
                with pytest.raises(Unavailable, match=r"a line that is no answer.*limits\['result_bytes'\]"):
                    await ask
        await wait_for_end(pid)


async def test_a_server_that_floods_before_it_shakes_hands_cannot_be_reached() -> None:
    source = MCPSource(StdioServer(command=sys.executable, args=[ROUGH, "torrent"]), name="my server")
    with anyio.fail_after(50), pytest.raises(Unavailable, match=r"cannot be reached: .* no answer.*my server"):
        async with source.connect():
            raise AssertionError("it never shakes hands")


@pytest.mark.parametrize("kind", ["pipes", "json", "events"])
async def test_what_is_large_and_allowed_arrives_whole(kind: str) -> None:
    if kind == "events" and "max_sse_event_size" not in signature(unwrap(streamable_http_client)).parameters:
        pytest.skip("releases of mcp before 2.3 take no event of more than 1 MiB")
    with anyio.fail_after(50):
        async with connected(kind) as connection:
            assert text(await call(connection, "flood", way="escapes", size=5 * MIB - 1000)) == "Ж" * (5 * MIB - 1000)
            if kind == "pipes":
                result = await call(connection, "flood", 40 * MIB, way="text", size=33 * MIB)
                assert len(text(result)) == 33 * MIB


@pytest.mark.parametrize("kind", ["pipes", "json", "events"])
async def test_a_call_is_cancelled_in_the_middle_of_its_answer(kind: str, tmp_path: Path) -> None:
    with anyio.fail_after(50):
        async with connected(kind, tmp_path) as connection:
            async with anyio.create_task_group() as group:
                group.start_soon(lambda: call(connection, "flood", way="half", size=MIB))
                pid = await wait_for_note(tmp_path, "hanging")
                group.cancel_scope.cancel()
            if kind != "pipes":
                assert text(await call(connection, "echo", a=1)) == '{"a": 1}'
        if kind == "pipes":
            await wait_for_end(pid)


_STUBBORN = """
import fcntl, os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
held = open(sys.argv[1] + "/lock", "w")
fcntl.flock(held, fcntl.LOCK_EX)
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], pass_fds=[held.fileno()])
os.rename(held.name, sys.argv[1] + "/locked")
time.sleep(600)
"""


async def test_a_process_that_does_not_want_to_end_is_killed_with_its_children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("repertory.mcp.transports.LEAVE_TIMEOUT_S", 0.2)
    source = MCPSource(StdioServer(command=sys.executable, args=["-c", _STUBBORN, str(tmp_path)]))
    with anyio.fail_after(50):
        async with anyio.create_task_group() as group:

            async def connect() -> None:
                async with source.connect():
                    raise AssertionError("it never answers")

            group.start_soon(connect)
            await wait_for_note(tmp_path, "locked")
            group.cancel_scope.cancel()
        with (tmp_path / "locked").open("w") as lock:
            # Both held it, and only their ends let go of it.
            await anyio.to_thread.run_sync(fcntl.flock, lock, fcntl.LOCK_EX)


async def test_what_a_server_prints_to_stderr_goes_past_this_process(tmp_path: Path) -> None:
    parameters = StdioServerParameters(command=sys.executable, args=[ROUGH, "flood"])
    with anyio.fail_after(50), (tmp_path / "stderr").open("w") as errlog:
        async with MCPSource(lambda: stdio_client(parameters, errlog=errlog)).connect() as connection:
            assert (await call(connection, "flood", way="stderr", size=33 * MIB))["status"] == "success"
    assert (tmp_path / "stderr").stat().st_size == 33 * MIB + 1


@pytest.mark.parametrize("kind", ["pipes", "http", "http with a client"])
async def test_transports_in_the_spelling_of_the_package_are_bounded_too(kind: str) -> None:
    asked: list[str] = []

    async def look(request: Any) -> None:
        asked.append(request.headers["x-who"])

    client = AsyncClient(headers={"X-Who": "me"}, event_hooks={"request": [look]})
    with anyio.fail_after(50), http_server(ROUGH, "flood") if kind != "pipes" else nullcontext() as server:
        if server is None:
            parameters = StdioServerParameters(command=sys.executable, args=[ROUGH, "flood"])
            source = MCPSource(lambda: stdio_client(parameters))
        elif kind == "http":
            source = MCPSource(lambda: streamable_http_client(server.url))
        else:
            source = MCPSource(lambda: streamable_http_client(server.url, http_client=client))
        async with client:
            async with source.connect() as connection:
                with pytest.raises(TooLarge):
                    await call(connection, "flood", way="values", size=VALUES)
                assert text(await call(connection, "echo", a=1)) == '{"a": 1}'
            assert set(asked) == ({"me"} if kind == "http with a client" else set())
            assert client.event_hooks == {"request": [look], "response": []}
            assert not client.is_closed


async def test_a_transport_of_server_sent_events_works_and_is_bounded(tmp_path: Path) -> None:
    with anyio.fail_after(50), http_server(TOYS, str(tmp_path), "sse") as server:
        url = server.url.replace("/mcp", "/sse")
        async with MCPSource(lambda: sse_client(url)).connect() as connection:
            await connection.tools()
            assert text(await call(connection, "add", a=1, b=2)) == "3"


async def test_an_answer_over_http_that_is_packed_is_not_unpacked() -> None:
    """A thousandth of the bytes would do for a flood."""
    with anyio.fail_after(50):
        async with connected("json") as connection:
            refused = await call(connection, "flood", way="packed")
            assert refused["status"] == "error"
            assert "compresses its answers (gzip)" in text(refused)
            assert text(await call(connection, "echo", a=1)) == '{"a": 1}'


# ------------------------------------------------------------------------------------------------------ lines, by hand


def answer(identity: object, size: int, **order: object) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": identity, "result": {"content": "x" * size}, **order}).encode()


def test_lines_are_the_same_however_they_are_cut() -> None:
    said = b'\n{"jsonrpc": "2.0", "method": "a"}\r\nno message\n{"jsonrpc": "2.0", "id": "1", "result": {}}\n{"json'
    for size in (1, 2, 7, 64, 1000):
        lines = LineReader(WireBound("s"))
        heard = [each for at in range(0, len(said), size) for each in lines.read(said[at : at + size])]
        assert [type(each and each.message).__name__ for each in heard] == [
            "JSONRPCNotification",
            "NoneType",
            "JSONRPCResponse",
        ]


@pytest.mark.parametrize("identity", [7, -1, "a name"])
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("cut", [1000, 64 * 1024, 50 * MIB])
def test_the_id_of_a_skipped_answer_is_found_at_either_end(identity: int | str, last: bool, cut: int) -> None:
    inner = {"content": ["x" * 31 * MIB, {"id": 5}]}
    said: dict[str, Any] = {"jsonrpc": "2.0", "id": identity, "result": inner}
    if last:
        said = {"result": inner, "id": identity, "jsonrpc": "2.0"}
    line = json.dumps(said).encode() + b"\n"
    after = b'{"jsonrpc": "2.0", "method": "a"}\n'
    lines = LineReader(WireBound("s"))
    heard = [each for at in range(0, len(line), cut) for each in lines.read(line[at : at + cut]) if each]
    (instead,) = (each.message for each in heard)
    assert isinstance(instead, JSONRPCError)
    assert instead.id == identity
    (next_one,) = lines.read(after)
    assert next_one is not None
    assert isinstance(next_one.message, JSONRPCNotification)


@pytest.mark.parametrize(
    "line",
    [
        b'{"jsonrpc": "2.0", "method": "a", "params": {"result": 1, "id": 7',
        b'{"jsonrpc": "2.0", "id": 7, "method": "sampling/createMessage", "params": {"a": "',
        b'"{\\"id\\": 7, \\"result\\": ',
        b'{"a": {"id": 7, "result": ',
    ],
)
def test_what_is_no_answer_answers_nobody(line: bytes) -> None:
    lines = LineReader(WireBound("s"))
    with pytest.raises(TooLarge, match="no answer"):
        list(lines.read(line + b"x" * 31 * MIB))


def test_an_answer_that_never_ends_is_told_once_and_then_given_up_on() -> None:
    wire = WireBound("s")
    lines = LineReader(wire)
    heard = list(lines.read(b'{"jsonrpc": "2.0", "id": 7, "result": {"a": "'))
    chunk = b"x" * MIB
    with pytest.raises(TooLarge, match="without an end"):
        for _ in range(SKIPPED_MAX * wire.bytes_max // MIB + 1):
            heard += lines.read(chunk)
    assert len(heard) == 1


def test_the_bound_follows_the_calls_in_flight() -> None:
    wire = WireBound("s")
    with wire.call(RESULT_BYTES // 2):
        assert wire.bytes_max == 3 * RESULT_BYTES
    with wire.call(2 * RESULT_BYTES), wire.call(4 * RESULT_BYTES):
        assert wire.bytes_max == 12 * RESULT_BYTES
    assert wire.bytes_max == 3 * RESULT_BYTES
