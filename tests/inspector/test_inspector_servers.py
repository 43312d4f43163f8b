"""The inspector over real sockets: served by itself on both event loops, and mounted in a web application."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio
import anyio.to_thread
import httpx
import pytest
import uvicorn
from fastapi import FastAPI

from repertory import AgentSpec, Inspector, Runtime, ScriptedModel, SQLiteSessions
from repertory.console.main import build_parser
from repertory.errors import Unavailable

pytestmark = pytest.mark.real_time


@pytest.mark.anyio
async def test_a_worker_serves_its_inspector_until_it_has_drained(tmp_path: Path) -> None:
    async with anyio.create_task_group() as group, Runtime(sessions=SQLiteSessions(tmp_path / "a.db")) as runtime:
        url = await group.start(
            lambda *, task_status: runtime.serve_inspector("127.0.0.1:0", task_status=task_status), name="inspector"
        )
        agent = runtime.agent(AgentSpec(name="helper", model=ScriptedModel(["Hi."])))
        await agent.session("marta").invoke("Hello")
        async with httpx.AsyncClient() as client:
            assert "marta" in (await client.get(f"{url}sessions")).text
            async with client.stream("GET", f"{url}live") as events:
                lines = events.aiter_lines()
                while not (line := await anext(lines)).startswith("data:"):
                    pass
                assert "marta" in line
                await runtime.drain()
                assert "event: over" in [line async for line in lines]
        port = int(url.rsplit(":", 1)[1].strip("/"))
    with pytest.raises(OSError, match="failed"):
        await anyio.connect_tcp("127.0.0.1", port)


@pytest.mark.anyio
async def test_an_address_that_is_taken_is_an_error_before_anything_is_served(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        async with Runtime(sessions=SQLiteSessions(tmp_path / "a.db")) as runtime:
            with pytest.raises(Unavailable):
                await runtime.serve_inspector(f"127.0.0.1:{taken.getsockname()[1]}")


@contextmanager
def served(app: FastAPI) -> Iterator[str]:
    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    listening.listen()
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=3))
    thread = threading.Thread(target=server.run, args=([listening],))
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(20)
        listening.close()


def test_it_is_mounted_in_a_web_application_and_its_links_stay_below(tmp_path: Path) -> None:
    runtime = Runtime(sessions=SQLiteSessions(tmp_path / "a.db"))
    app = FastAPI(lifespan=runtime.lifespan)
    app.mount("/inspect", Inspector(runtime))
    with served(app) as url, httpx.Client(follow_redirects=True) as client:
        page = client.get(f"{url}/inspect")
        assert page.status_code == 200
        assert 'href="/inspect/sessions"' in page.text
        assert 'href="/sessions"' not in page.text
        assert client.get(f"{url}/inspect/static/inspector.js").status_code == 200
        assert client.get(f"{url}/inspect/live.json").json()["sessions"] == []
        assert client.get(f"{url}/inspect/", headers={"host": "evil.example"}).status_code == 421


def test_the_command_takes_a_place_and_is_read_only_and_local_unless_told() -> None:
    options = build_parser().parse_args(["inspect", "--at", "agents.db"])
    assert (options.listen, options.allow_changes, options.no_content) == ("127.0.0.1:8400", False, False)
