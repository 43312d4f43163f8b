"""Servers whose schemas take for ever, are too large, or name documents elsewhere. Our decisions."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import anyio
import pytest

from repertory.backends.tool_ports import ToolConnection
from repertory.core.messages import ToolResult
from repertory.errors import Failed, TooLarge
from repertory.mcp import connection as mcp_connection
from repertory.mcp.source import MCPSource, StdioServer
from tests.mcp.mcp_servers import ROUGH, wait_for_end, wait_for_note

pytestmark = [pytest.mark.anyio, pytest.mark.real_time]


class Elsewhere:
    """An HTTP server on loopback that writes down who asks."""

    def __init__(self) -> None:
        asked = self.asked = list[str]()

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                asked.append(self.path)
                self.send_error(404)

            def log_message(self, format: str, *args: object) -> None:
                """Nothing is logged."""

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/schema.json"


@pytest.fixture
def elsewhere() -> Iterator[Elsewhere]:
    place = Elsewhere()
    thread = Thread(target=place.server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield place
    place.server.shutdown()
    thread.join()
    place.server.server_close()


def rough(way: str, **env: str) -> MCPSource:
    return MCPSource(StdioServer(command=sys.executable, args=[ROUGH, way], env=env))


async def call(connection: ToolConnection, name: str, **options: int) -> ToolResult:
    return await connection.call(name, {"toolUseId": "use-1", "name": name, "input": {}}, **options)


def told(result: ToolResult) -> tuple[str, str]:
    return result["status"], str(result["content"][0].get("text"))


async def test_no_other_document_is_ever_fetched(
    elsewhere: Elsewhere, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The tool is left out, named in the log, and not run."""
    with anyio.fail_after(30), caplog.at_level(logging.WARNING, "repertory.tools"):
        async with rough("hostile", ELSEWHERE=elsewhere.url, NOTES=str(tmp_path)).connect() as connection:
            offered = {offer.spec["name"] for offer in await connection.tools()}
            assert {"plain", "slow"} <= offered
            assert offered.isdisjoint({"elsewhere", "elsewhere_in", "wordy", "wide"})
            for name in ("elsewhere", "elsewhere_in"):
                status, text = told(await call(connection, name))
                assert (status, elsewhere.url in text) == ("error", True)
                assert not (tmp_path / name).exists()
    assert elsewhere.asked == []
    assert f"refers to another document, which is not fetched: {elsewhere.url}" in caplog.text
    assert "wordy: its description is too large" in caplog.text


async def test_answers_are_held_against_what_was_promised() -> None:
    with anyio.fail_after(30):
        async with rough("hostile").connect() as connection:
            await connection.tools()
            for name, content in (("plain", {"a": 1}), ("quick", {"a": "aaa"})):
                result = await call(connection, name)
                assert (result["status"], result["content"]) == ("success", [{"json": content}])
            for name, why in (
                ("unfit", "$.a: 'one' is not of type 'integer'"),
                ("odd", "$.a: 'bbb' does not match"),
                ("silent", "promised a structured answer, and gave none"),
            ):
                status, text = told(await call(connection, name))
                assert status == "error"
                assert why in text


@pytest.mark.parametrize("name", ["slow", "doubling"])
async def test_a_check_that_takes_for_ever_holds_nobody_up_and_ends(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mcp_connection, "CHECK_TIMEOUT_S", 0.4)
    results: list[ToolResult] = []
    looks = 0
    with anyio.fail_after(30):
        async with rough("hostile").connect() as connection, anyio.create_task_group() as group:
            await connection.tools()

            async def ask() -> None:
                results.append(await call(connection, name))

            group.start_soon(ask)
            while not results:
                await anyio.sleep(0.01)
                looks += 1
                if looks == 5:
                    assert (await call(connection, "plain"))["status"] == "success"
    status, text = told(results[0])
    assert (status, "takes too much time or memory" in text) == ("error", True)
    assert looks >= 5  # The call of `plain` may have taken all of the time, on a busy machine.


async def test_the_process_of_a_check_loads_nothing_of_the_protocol() -> None:
    """That took two thirds of its time."""
    asked = json.dumps({"path": sys.path, "schema": {"type": "string"}, "value": 1}).encode()
    loaded = "print([name for name in ('mcp_types', 'httpx2') if name in sys.modules], file=sys.stderr)"
    command = [sys.executable, "-I", "-S", "-c", mcp_connection._CHECK_SCRIPT + loaded]
    ended = await anyio.run_process(command, input=asked)
    assert "does not fit its output schema" in ended.stdout.decode()
    assert ended.stderr.decode().strip() == "[]"


async def test_a_check_ends_with_its_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python, pid_file = tmp_path / "python", tmp_path / "pid"
    write_pid = f'echo $$ > "{pid_file}.new"; mv "{pid_file}.new" "{pid_file}"'
    python.write_text(f'#!/bin/sh\n{write_pid}\nexec {sys.executable} "$@"\n', encoding="utf-8")
    python.chmod(0o700)
    monkeypatch.setattr(mcp_connection, "python_command", lambda: str(python))
    monkeypatch.setattr(mcp_connection, "CHECK_TIMEOUT_S", 60.0)
    with anyio.fail_after(30):
        async with rough("hostile").connect() as connection, anyio.create_task_group() as group:
            await connection.tools()
            group.start_soon(call, connection, "slow")
            pid = await wait_for_note(tmp_path, "pid")
            group.cancel_scope.cancel()
        await wait_for_end(pid.strip())


async def test_what_is_not_checked_is_taken_where_no_python_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mcp_connection, "python_command", lambda: None)
    with anyio.fail_after(30):
        async with rough("hostile").connect() as connection:
            await connection.tools()
            assert (await call(connection, "odd"))["status"] == "success"


async def test_a_result_that_is_too_large_is_refused() -> None:
    with anyio.fail_after(30):
        async with rough("hostile").connect() as connection:
            await connection.tools()
            with pytest.raises(TooLarge):
                await call(connection, "many")
            assert (await call(connection, "many", result_bytes=20_000_000))["status"] == "success"


async def test_a_list_of_tools_that_is_too_large_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mcp_connection, "LIST_BYTES_MAX", 15_000_000)
    with anyio.fail_after(30):
        async with rough("crowded").connect() as connection:
            with pytest.raises(Failed, match="the tool server's list of tools is too large"):
                await connection.tools()
