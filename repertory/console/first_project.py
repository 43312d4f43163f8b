"""`repertory init`: a first project, as files that are short enough to be read whole.

Everything runs offline at once, with rules instead of a language model; one line of `agent.py` names another model.
`tests/console/test_first_project.py` runs each template's program and its tests in an empty folder.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import re
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec

from repertory.errors import AlreadyExists, Invalid

TEMPLATES = ("agent", "service", "worker")


def add_init_options(parser: argparse.ArgumentParser) -> None:
    """Add the arguments for the folder and the template."""
    parser.add_argument("folder", metavar="FOLDER", nargs="?", default=".", help="made when missing (default: here)")
    parser.add_argument(
        "--template",
        choices=TEMPLATES,
        default="agent",
        help="agent: one conversation; service: many behind HTTP; worker: many, with jobs from standard input",
    )


def run_init(options: argparse.Namespace) -> int:
    """Write the files, or none of them. Errors: `AlreadyExists` naming those that are there; those of the folder."""
    folder = Path(options.folder).expanduser()
    files = project_files(folder.absolute().name, options.template)
    write_new(folder, files)
    for name in files:
        sys.stdout.write(f"{folder / name}\n")
    run = {"agent": "python agent.py", "service": "python service.py", "worker": "python worker.py < jobs.txt"}
    here = "" if folder.absolute() == Path.cwd() else f"cd {shlex.quote(str(folder))}\n    "
    sys.stdout.write(
        f"\nNext, run it, and then its tests:\n\n    {here}{run[options.template]}\n    python -m pytest\n"
    )
    return 0


def write_new(folder: Path, files: Mapping[str, str]) -> None:
    """Write files that must not exist yet. Errors: `AlreadyExists`, with nothing written; `Invalid` for a file in the
    place of the folder.
    """
    if folder.exists() and not folder.is_dir():
        raise Invalid("init makes a folder, and there is a file of that name", path=str(folder))
    if there := [name for name in files if (folder / name).exists()]:
        raise AlreadyExists("init never overwrites; name another folder, or move these", files=there)
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        with (folder / name).open("x", encoding="utf-8") as file:
            file.write(text)


def project_files(name: str, template: str) -> Mapping[str, str]:
    """The files of a template by name. `name`: the project's, of any characters."""
    title = re.sub(r"[^\w .-]", "", name).strip() or "agent"
    texts = {"agent.py": _AGENT, "test_agent.py": _TEST, ".gitignore": _GITIGNORE, **_MORE[template]}
    needs = _REQUIREMENTS.replace("SOURCE", source(_noted())) + _NEEDS.get(template, "")
    texts = {**texts, "requirements.txt": needs, "README.md": _README[template]}
    return {file: text.replace("NAME", title).lstrip("\n") for file, text in texts.items()}


def source(origin: str | None) -> str:
    """The address of a requirement, behind its name; empty for a package that came from an index.

    Args:
        origin: What pip noted of the installation (`direct_url.json`), if anything.
    """
    if not origin:
        return ""
    noted = msgspec.json.decode(origin)
    commit = noted.get("vcs_info")
    return f" @ {commit['vcs']}+{noted['url']}@{commit['commit_id']}" if commit else f" @ {noted['url']}"


def _noted() -> str | None:
    try:
        return importlib.metadata.distribution("repertory").read_text("direct_url.json")
    except importlib.metadata.PackageNotFoundError:  # It runs from its files.
        return None


_AGENT = '''
"""NAME: an agent whose conversation and memory survive the process."""

from __future__ import annotations

import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import repertory
from repertory import Agent, MemoryManager, SQLiteMemoryStore, SQLiteSessionManager, tool

MODEL = repertory.OfflineModel()  # With a key: repertory.AnthropicModel() or repertory.OpenAIModel().
DATA = Path(__file__).parent / "data"


@tool(effects=False)
def current_time() -> str:
    """Tell the current date and time."""
    return datetime.now().astimezone().isoformat(timespec="seconds")


def make_agent(session: str = "main", *, model: Any = MODEL, data: Path = DATA) -> Agent:
    """The agent of one conversation, which goes on where it ended."""
    memory = SQLiteMemoryStore(data / "memory.db", extraction=True)
    return Agent(
        model,
        tools=[current_time],
        system_prompt="You are a helpful assistant. Answer briefly.",
        session_manager=SQLiteSessionManager(session, path=data / "sessions.db"),
        memory_manager=MemoryManager(stores=[memory]),
    )


def main() -> None:
    """Say what the command line says, or ask for the time."""
    agent = make_agent()
    print(agent(" ".join(sys.argv[1:]) or "What time is it?"))
    print(f"({len(agent.messages)} messages are stored.)")
    agent.shutdown()


if __name__ == "__main__":
    main()
'''

_TEST = '''
"""The agent with scripted answers: no network, no key, the same every time."""

from pathlib import Path

from agent import make_agent
from repertory import ScriptedModel


def test_the_agent_uses_its_tool(tmp_path: Path) -> None:
    model = ScriptedModel([{"toolUse": {"name": "current_time"}}, "It is late."])
    agent = make_agent(model=model, data=tmp_path)
    assert str(agent("What time is it?")) == "It is late."
    assert [message["role"] for message in agent.messages] == ["user", "assistant", "user", "assistant"]
    agent.shutdown()


def test_the_next_process_remembers(tmp_path: Path) -> None:
    agent = make_agent(model=ScriptedModel(["Noted."]), data=tmp_path)
    agent("My stall is called Warm Crumb.")
    agent.shutdown()

    model = ScriptedModel(["Warm Crumb."])
    again = make_agent(model=model, data=tmp_path)
    again("What is my stall called?")
    again.shutdown()
    assert len(model.calls[0].messages) == 3
'''

_SERVICE = '''
"""NAME behind HTTP: `POST /sessions/ID` with a text answers it. Run it: `python service.py`, with port 8000 free."""

from __future__ import annotations

import anyio
import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from agent import DATA, MODEL, current_time
from repertory import AgentSpec, RepertoryError, Runtime, SQLiteSessions
from repertory.asgi import problem_of, problem_response

HELPER = AgentSpec(name="helper", model=MODEL, tools=[current_time], system_prompt="Answer briefly.")


THIS_MACHINE = Middleware(TrustedHostMiddleware, allowed_hosts=["127.0.0.1", "localhost"])
"""Nobody is asked who they are. Ask for a secret before other machines reach it, as `repertory serve` does."""


async def answer(request: Request) -> Response:
    """One turn of the session in the path. Calls to one session wait for each other; sessions run side by side."""
    if "origin" in request.headers:  # A web page makes a browser send it.
        return PlainTextResponse("no web page may call this service\\n", status_code=403)
    text = (await request.body()).decode()
    session = request.state.runtime.agent(HELPER).session(request.path_params["id"])
    try:
        return PlainTextResponse(f"{await session.invoke(text)}\\n")
    except RepertoryError as error:
        return problem_response(problem_of(error))  # without what the error says of this machine


def make_app(data: anyio.Path | None = None) -> Starlette:
    """The service. When it stops it drains: running turns finish, and everything is stored."""
    runtime = Runtime(sessions=SQLiteSessions((data or anyio.Path(DATA)) / "sessions.db"))
    routes = [Route("/sessions/{id}", answer, methods=["POST"])]
    return Starlette(routes=routes, middleware=[THIS_MACHINE], lifespan=runtime.lifespan)


if __name__ == "__main__":
    uvicorn.run(make_app(), host="127.0.0.1", port=8000, timeout_graceful_shutdown=15)
'''

_SERVICE_TEST = '''
"""The service without a server: requests go straight into it."""

from pathlib import Path

import anyio
from service import make_app
from starlette.testclient import TestClient


def test_a_session_remembers_what_was_said(tmp_path: Path) -> None:
    with TestClient(make_app(anyio.Path(tmp_path)), base_url="http://localhost") as client:
        assert client.post("/sessions/marta", content="My stall is called Warm Crumb.").status_code == 200
        assert "Warm Crumb" in client.post("/sessions/marta", content="What is my stall?").text
        assert "Warm Crumb" not in client.post("/sessions/paul", content="What is my stall?").text
'''

_WORKER = '''
"""NAME as a worker: each line of standard input is `SESSION TEXT`; sessions are worked on side by side."""

from __future__ import annotations

import sys
from pathlib import Path

import anyio

from agent import DATA, MODEL, current_time
from repertory import AgentSpec, HostedAgent, RepertoryError, Runtime, SQLiteSessions

HELPER = AgentSpec(name="helper", model=MODEL, tools=[current_time], system_prompt="Answer briefly.")


async def work(helper: HostedAgent, session: str, text: str) -> None:
    """One job. It may be given twice, after a crash: the same token is the same turn."""
    try:
        result = await helper.session(session).invoke(text, idempotency_token=f"{session}: {text}")
        print(f"{session}: {result}", flush=True)
    except RepertoryError as error:
        print(f"{session}: failed: {error}", file=sys.stderr, flush=True)


async def main(data: Path = DATA) -> None:
    """Take jobs until the input ends, or until SIGTERM or Ctrl-C: then turns finish, and everything is stored."""
    async with Runtime(sessions=SQLiteSessions(data / "sessions.db")) as runtime:
        helper = runtime.agent(HELPER)
        async with anyio.create_task_group() as signals:
            signals.start_soon(runtime.serve_signals)
            async with anyio.create_task_group() as jobs:
                while line := await anyio.to_thread.run_sync(sys.stdin.readline, abandon_on_cancel=True):
                    session, _, text = line.strip().partition(" ")
                    if text:
                        jobs.start_soon(work, helper, session, text)
            signals.cancel_scope.cancel()


if __name__ == "__main__":
    anyio.run(main)
'''

_WORKER_TEST = '''
"""The worker, with jobs on its standard input."""

import io
from pathlib import Path

import anyio
import pytest
import worker


def test_each_session_gets_its_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("marta My stall is called Warm Crumb.\\npaul Hello\\n"))
    anyio.run(worker.main, tmp_path)
    lines = sorted(capsys.readouterr().out.splitlines())
    assert [line.partition(":")[0] for line in lines] == ["marta", "paul"]
    assert "Warm Crumb" in lines[0]
'''

_JOBS = """
marta My stall is called Warm Crumb.
paul What time is it?
"""

_GITIGNORE = """
data/
.env
.venv/
__pycache__/
.pytest_cache/
"""

_REQUIREMENTS = """
repertorySOURCE  # with a key: repertory[anthropic]SOURCE, or [openai]
pytest
"""

_NEEDS = {"service": "starlette\nuvicorn\nhttpx  # for the test\n"}

_HEAD = """
# NAME

An agent made with Repertory. What was said is stored in `data/`, and survives the process.

    pip install -r requirements.txt
"""

_TAIL = """
It runs offline, with rules instead of a language model. With a key in the environment (`ANTHROPIC_API_KEY` or
`OPENAI_API_KEY`), change the line `MODEL = ...` in `agent.py`. `repertory sessions list --at data/sessions.db` shows
what is stored.
"""

_README = {
    "agent": f"{_HEAD}    python agent.py What time is it?\n    python -m pytest\n{_TAIL}",
    "service": f"{_HEAD}    python service.py\n    curl -d 'What time is it?' http://127.0.0.1:8000/sessions/marta\n"
    f"    python -m pytest\n{_TAIL}",
    "worker": f"{_HEAD}    python worker.py < jobs.txt\n    python -m pytest\n{_TAIL}",
}
_MORE: Mapping[str, Mapping[str, str]] = {
    "agent": {},
    "service": {"service.py": _SERVICE, "test_service.py": _SERVICE_TEST},
    "worker": {"worker.py": _WORKER, "test_worker.py": _WORKER_TEST, "jobs.txt": _JOBS},
}
