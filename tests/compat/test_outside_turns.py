"""What is said and set outside a turn is as durable as what a turn says: first messages, direct tool calls, state."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from repertory import Agent, FileSessionManager, FileStorage, JournalSessionManager, ScriptedModel, SQLiteSessionManager
from repertory import tool as as_tool
from repertory.core.messages import text_of

ROOT = Path(__file__).parents[2]
PLACES: dict[str, Any] = {
    "sqlite": lambda folder: SQLiteSessionManager("s", Path(folder) / "a.db"),
    "journal": lambda folder: JournalSessionManager("s", FileStorage(Path(folder) / "journal")),
    "documents": lambda folder: FileSessionManager("s", Path(folder) / "documents"),
}
FIRST: list[Any] = [
    {"role": "user", "content": [{"text": "I am Ann"}]},
    {"role": "assistant", "content": [{"text": "Hello Ann"}]},
]


@as_tool
def add(a: int, b: int) -> str:
    """Add two numbers."""
    return str(a + b)


def agent_on(place: str, folder: object, *replies: Any, **options: Any) -> Agent:
    manager = PLACES[place](folder)
    return Agent(ScriptedModel(list(replies)), tools=[add], callback_handler=None, session_manager=manager, **options)


HEAD = """
import sys
import anyio
from tests.compat.test_outside_turns import FIRST, PLACES, agent_on

def wait():
    print("ready", flush=True)
    sys.stdin.read()

"""
BEGIN = """
agents = [agent_on(place, sys.argv[1], messages=FIRST, state={"n": 1}) for place in PLACES]
wait()
"""
CALL = """
for place in PLACES:
    agent_on(place, sys.argv[1]).tool.add(a=1, b=2)
wait()
"""
SHUT_DOWN = """
for place in PLACES:
    agent = agent_on(place, sys.argv[1])
    agent.state.set("n", 2)
    agent.shutdown()
wait()
"""
EXIT = """
def say(place):
    agent = agent_on(place, sys.argv[1], "hello")
    agent("hi")
    agent.state.set("n", 3)
    agent.state.delete("m")

for place in PLACES:
    say(place)
"""
EXIT_ASYNC = """
async def main():
    for place in PLACES:
        agent = agent_on(place, sys.argv[1], "hello")
        await agent.invoke_async("hi")
        agent.state.set("n", 4)

anyio.run(main)
"""


def run_to_its_end(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run it in a process that ends by itself, well."""
    command = [sys.executable, "-c", program, *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=50)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def run(program: str, folder: Path) -> None:
    """Run it in a process that is killed once it waits, or ends by itself."""
    command = [sys.executable, "-c", HEAD + program, str(folder)]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        if "wait()" in program:
            assert child.stdout.readline() == "ready\n"
            child.send_signal(signal.SIGKILL)
        assert child.wait(20) in (0, -signal.SIGKILL)
    finally:
        child.kill()
        child.stdin.close()
        child.stdout.close()


def found(place: str, folder: Path) -> tuple[list[str], Any]:
    agent = agent_on(place, folder)
    return [text_of(message) for message in agent.messages], agent.state.get()


def test_first_messages_and_a_direct_call_survive_a_kill_right_after(tmp_path: Path) -> None:
    """A session that is there already goes on as it was stored, whatever the next agent is given to begin with."""
    for _ in range(2):
        run(BEGIN, tmp_path)
        for place in PLACES:
            assert found(place, tmp_path) == (["I am Ann", "Hello Ann"], {"n": 1})
    run(CALL, tmp_path)
    for place in PLACES:
        texts, state = found(place, tmp_path)
        assert (texts[:2], len(texts), texts[-1]) == (["I am Ann", "Hello Ann"], 6, "agent.tool.add was called.")
        assert state == {"n": 1}
    run(SHUT_DOWN, tmp_path)
    for place in PLACES:
        assert found(place, tmp_path)[1] == {"n": 2}


@pytest.mark.parametrize(("program", "n"), [(EXIT, 3), (EXIT_ASYNC, 4)], ids=["sync", "async"])
def test_state_that_is_set_after_the_last_call_is_stored_at_exit(program: str, n: int, tmp_path: Path) -> None:
    """Also that of an agent which nobody refers to any more."""
    run(program, tmp_path)
    for place in PLACES:
        assert found(place, tmp_path) == (["hi", "hello"], {"n": n})
