"""Sessions that stay open between calls, in loops of users: of notebooks, of test suites, and loops within loops."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.compat.test_outside_turns import run_to_its_end
from tests.source_tree import ROOT

pytestmark = pytest.mark.real_time

AGENT = """
from repertory import *


@tool(effects=False)
def add(a: int, b: int) -> int:
    'Add two numbers.'
    return a + b


def new_agent(folder, kind):
    kept = {
        "memory": lambda: None,
        "sqlite": lambda: SQLiteSessionManager("s", path=f"{folder}/s.db"),
        "files": lambda: FileSessionManager("s", storage_dir=f"{folder}/files"),
        "journals": lambda: JournalSessionManager("s", storage=FileStorage(f"{folder}/journals")),
    }[kind]()
    model = ScriptedModel([{"toolUse": {"name": "add", "input": {"a": 1, "b": 2}}}, "ok"] * 100)
    manager = NullConversationManager()
    return Agent(model, tools=[add], session_manager=kept, conversation_manager=manager, callback_handler=None)
"""
KINDS = pytest.mark.parametrize("kind", ["memory", "sqlite", "files", "journals"])

CELLS = """
import sys
{agent}
agent = new_agent({folder!r}, {kind!r})

first = await agent.invoke_async("with a top-level await")
second = agent("in sync code, while the loop runs")
third = await agent.invoke_async("and again")
import asyncio
tasks = [asyncio.create_task(agent.invoke_async("side by side")) for _ in range(3)]
results = [first, second, third, *(await asyncio.gather(*tasks))]
print("together", *[str(result) for result in results], len(agent.messages))
"""


@KINDS
def test_cells_of_a_notebook_call_the_same_agent(kind: str, tmp_path: Path) -> None:
    """The interpreter with a running loop stands for the notebook: each line is run as a cell is."""
    cells = CELLS.format(agent=AGENT.strip() + "\n", folder=str(tmp_path), kind=kind)
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-m", "asyncio"],
        cwd=ROOT,
        input=cells,
        capture_output=True,
        text=True,
        check=False,
        timeout=50,
    )
    assert "together ok ok ok ok ok ok 24" in done.stdout, done.stdout + done.stderr
    for sign in ("Traceback", "Warning", "never awaited", "was destroyed"):
        assert sign not in done.stderr, done.stderr


NESTED = (
    AGENT
    + """
import asyncio, sys, threading, warnings
import nest_asyncio

warnings.simplefilter("error")
nest_asyncio.apply()
agent = new_agent(*sys.argv[1:])

async def cell():
    assert str(await agent.invoke_async("outside")) == "ok"
    assert str(asyncio.run(agent.invoke_async("within"))) == "ok"
    assert str(agent("in sync code")) == "ok"
    assert str(await agent.invoke_async("outside again")) == "ok"

for _ in range(3):
    asyncio.run(cell())
loop = asyncio.new_event_loop()
loop.run_until_complete(cell())
loop.run_until_complete(agent.shutdown_async())
loop.close()
assert len(agent.messages) == 64, len(agent.messages)
"""
)


@KINDS
def test_a_loop_within_a_loop_is_a_loop_like_any_other(kind: str, tmp_path: Path) -> None:
    done = run_to_its_end(NESTED, str(tmp_path), kind)
    assert done.stderr == ""


SUITE = (
    AGENT
    + """
import gc, os, sys, tempfile, threading

import anyio, pytest, pytest_asyncio

KINDS = ["memory", "sqlite", "files", "journals"]
folder = tempfile.mkdtemp()
agents = {kind: new_agent(f"{folder}/{kind}", kind) for kind in KINDS}


@pytest.fixture(scope="session", autouse=True)
def nothing_is_left():
    yield
    for agent in agents.values():
        agent.shutdown()
    gc.collect()
    assert [thread.name for thread in threading.enumerate() if not thread.daemon] == ["MainThread"]
    assert len(os.listdir("/proc/self/fd")) < 40


@pytest_asyncio.fixture
async def greeted(request):
    agent = agents[request.param]
    assert str(await agent.invoke_async("in a fixture")) == "ok"
    yield agent
    assert str(await agent.invoke_async("at the fixture's end")) == "ok"


@pytest.mark.asyncio
@pytest.mark.parametrize("greeted", KINDS, indirect=True)
@pytest.mark.parametrize("again", range(3))
async def test_with_pytest_asyncio(greeted, again):
    assert str(await greeted.invoke_async("in a test")) == "ok"


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("again", range(3))
async def test_with_a_loop_for_many_tests(again):
    for agent in agents.values():
        assert str(await agent.invoke_async("in a test")) == "ok"


@pytest.mark.anyio
@pytest.mark.parametrize("kind", KINDS)
async def test_with_the_plugin_of_anyio(kind):
    assert str(await agents[kind].invoke_async("in a test")) == "ok"
    with anyio.move_on_after(0):
        await agents[kind].invoke_async("cancelled")


@pytest.mark.trio()
@pytest.mark.parametrize("kind", KINDS)
async def test_with_pytest_trio(kind):
    assert str(await agents[kind].invoke_async("in a test")) == "ok"


@pytest.mark.parametrize("kind", KINDS)
def test_without_any(kind):
    assert str(agents[kind]("in a test")) == "ok"
"""
)


def test_agents_outlive_the_loops_of_test_suites(tmp_path: Path) -> None:
    """With each plugin that brings loops of its own, all in one process, warnings being errors."""
    (tmp_path / "test_suite.py").write_text(SUITE)
    settings = ["[pytest]", "filterwarnings = error", "asyncio_default_fixture_loop_scope = function"]
    (tmp_path / "pytest.ini").write_text("\n".join(settings))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-x", str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=55)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
    assert "warning" not in done.stdout, done.stdout[-3000:]
