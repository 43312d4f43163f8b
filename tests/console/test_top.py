"""`repertory top`: a process by the view that it serves, and the processes that share a place."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import anyio
import msgspec
import pytest

from repertory import Agent, AgentSpec, Runtime, ScriptedModel, SQLiteSessionManager, tool
from repertory.app.embedding.live import LiveMemory, LiveView
from repertory.console.main import main
from repertory.console.top import Look, lasting, live_address, panels, text_lines
from repertory.errors import Invalid
from tests.console.screens import on_screen
from tests.source_tree import ROOT

COMMAND = [sys.executable, "-m", "repertory.console.main", "top"]


class Endpoint:
    """An inspector's JSON view on loopback. It serves a real view, whose counters grow with every answer."""

    def __init__(self, view: LiveView) -> None:
        self.view = view
        self.asked = 0
        self.broken = False
        self.token: str | None = None
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                endpoint.asked += 1
                if self.path == "/moved/live.json":
                    self.send_response(302)
                    self.send_header("Location", "/live.json")
                    self.end_headers()
                    return
                good = self.path == "/live.json" and not endpoint.broken
                body = msgspec.json.encode(endpoint.grown()) if good else b'{"detail": "elsewhere"}'
                known = endpoint.token is None or self.headers["Authorization"] == f"Bearer {endpoint.token}"
                self.send_response(200 if known else 403)
                self.end_headers()
                self.wfile.write(body if known else b"")

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()

    def grown(self) -> LiveView:
        commits = msgspec.structs.replace(self.view.commits, count=self.view.commits.count + 10 * self.asked)
        return msgspec.structs.replace(self.view, commits=commits)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def real_view() -> LiveView:
    """The view of a runtime with one session in a turn, whose tool runs, and one that is idle."""

    async def look() -> LiveView:
        begun = anyio.Event()

        @tool(effects=False)
        async def bake(loaf: str) -> str:
            """Bake."""
            begun.set()
            await anyio.sleep_forever()
            return loaf

        use = {"toolUse": {"name": "bake", "input": {"loaf": "rye"}}}
        async with Runtime() as runtime:
            model = ScriptedModel(["hello", use])
            helper = runtime.agent(AgentSpec(name="helper", model=model, tools=[bake]))
            await helper.session("paul").invoke("hi")
            async with anyio.create_task_group() as group:
                group.start_soon(helper.session("marta").invoke, "go")
                await begun.wait()
                view = runtime.look()
                group.cancel_scope.cancel()
        return view

    view = anyio.run(look)
    memories = [LiveMemory(store="shop \x1b[31m", waiting=3, dead_letters=1, breaker="open")]
    return msgspec.structs.replace(view, memories=memories)


@pytest.fixture(scope="module")
def view() -> LiveView:
    return real_view()


@pytest.fixture
def endpoint(view: LiveView) -> Iterator[Endpoint]:
    served = Endpoint(view)
    yield served
    served.close()


@pytest.mark.real_time
def test_one_look_prints_the_sessions_their_tools_the_memories_and_the_counters(
    endpoint: Endpoint, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["top", endpoint.url, "--once"]) == 0
    out = capsys.readouterr().out
    assert f"pid {os.getpid()}" in out
    assert "2: 1 runs, 1 idle" in out
    (line,) = [line for line in out.splitlines() if line.startswith("marta")]
    assert line.split()[:3] == ["marta", "helper", "runs"]
    assert line.split()[-1] == "bake"
    assert "shop \\x1b[31m" in out
    assert "\x1b" not in out
    assert main(["top", endpoint.url]) == 0, "output that is no terminal gets one table"
    assert "marta" in capsys.readouterr().out
    assert main(["top", endpoint.url, "--json"]) == 0
    assert msgspec.convert(json.loads(capsys.readouterr().out), LiveView).sessions == endpoint.view.sessions


@pytest.mark.real_time
def test_what_cannot_be_looked_at_is_one_line(endpoint: Endpoint, capsys: pytest.CaptureFixture[str]) -> None:
    endpoint.broken = True
    for arguments, says in (
        ([endpoint.url], "serves is no view of a process"),
        (["http://127.0.0.1:1"], "no view of a process at http://127.0.0.1:1/live.json"),
        (["file:///etc/passwd"], "takes the address of an inspector"),
        ([], "name a URL, or a place"),
        ([endpoint.url, "--at", "a.db"], "name a URL, or a place"),
        ([endpoint.url, "--every", "0"], "at least 0.1"),
    ):
        assert main(["top", *arguments]) == (1 if says.startswith("no view") else 2)
        err = capsys.readouterr().err
        assert says in err
        assert len(err.splitlines()) == 1


@pytest.mark.real_time
def test_the_secret_of_an_inspector_is_given_and_taken_nowhere_else(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    endpoint.token = "a-secret-of-letters"
    assert main(["top", endpoint.url]) == 1
    assert "$REPERTORY_INSPECT_TOKEN is the secret to give" in capsys.readouterr().err
    monkeypatch.setenv("REPERTORY_INSPECT_TOKEN", endpoint.token)
    assert main(["top", endpoint.url]) == 0
    assert main(["top", f"{endpoint.url}/moved"]) == 1
    assert "no view of a process" in capsys.readouterr().err


@pytest.mark.real_time
def test_a_screen_is_drawn_again_until_q(endpoint: Endpoint, tmp_path: Path) -> None:
    environ = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PYTHONPATH": str(ROOT), "TERM": "xterm-256color"}
    with on_screen([*COMMAND, endpoint.url, "--every", "0.1"], environ, columns=120) as screen:
        screen.wait("q leaves")
        screen.wait(lambda text: "/s)" in text and "marta" in text)
        screen.resize(50, 15)
        screen.wait(lambda text: max(map(len, text.splitlines())) <= 50 and "marta" in text)
        endpoint.broken = True
        screen.wait("q leaves  what http://")
        endpoint.broken = False
        screen.wait("q leaves  http://")
        screen.type("q")
        assert screen.end() == 0
    assert b"shop \\x1b[31m" in screen.raw, "what a store is called colours nothing"


@pytest.mark.real_time
def test_a_place_shows_the_processes_that_share_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = str(tmp_path / "a.db")
    Agent(ScriptedModel(["yes"]), session_manager=SQLiteSessionManager("marta", place))("Hello.")
    assert main(["top", "--at", place, "--once"]) == 0
    out = capsys.readouterr().out
    assert "processes     0, 0 busy of 0 places" in out
    assert "pending work  0 agents, 0 parked" in out
    assert main(["top", "--at", place, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"peers": [], "pending_work": [], "calls": []}


def test_rates_are_differences_per_second_and_none_after_a_restart(view: LiveView) -> None:
    commits = view.commits
    later = msgspec.structs.replace(view, commits=msgspec.structs.replace(commits, count=commits.count + 30))
    told = "\n".join(text_lines(panels(Look(later, 12.0), Look(view, 10.0))))
    assert f"{commits.count + 30} (15.0/s) of" in told
    again = "\n".join(text_lines(panels(Look(view, 14.0), Look(later, 12.0))))
    assert f"{commits.count} of" in again


def test_a_time_span_has_its_two_largest_units() -> None:
    assert [lasting(each) for each in (0.04, 61, 3600, 90_000)] == ["0.0s", "1m01s", "1h00m", "1d01h"]


def test_an_address_leads_to_the_view_below_it() -> None:
    assert live_address("127.0.0.1:8400") == "http://127.0.0.1:8400/live.json"
    assert live_address("https://host/inspect/?key=a") == "https://host/inspect/live.json?key=a"
    assert live_address("http://host/other.json") == "http://host/other.json"
    with pytest.raises(Invalid):
        live_address("ftp://host")
