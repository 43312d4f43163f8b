"""Agents of sync code whose session another process has: to make one waits for nobody."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from repertory import Agent, FileSessionManager, ScriptedModel
from repertory.errors import SessionBusy

pytestmark = pytest.mark.real_time

HOLDER = """
import sys
from repertory import Agent, FileSessionManager, ScriptedModel
agent = Agent(ScriptedModel(["Hi."]), session_manager=FileSessionManager("s", sys.argv[1]), callback_handler=None,
              state={"by": "the other"})
with agent:
    agent("Hello")
    print("held", flush=True)
    sys.stdin.readline()
print("free", flush=True)
"""


@contextmanager
def held_elsewhere(folder: Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", HOLDER, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        try:
            yield holder
        finally:
            if holder.poll() is None:
                holder.kill()


def let_go(holder: subprocess.Popen[str]) -> None:
    assert holder.stdin is not None
    assert holder.stdout is not None
    holder.stdin.write("\n")
    holder.stdin.flush()
    assert holder.stdout.readline() == "free\n"


def test_making_an_agent_waits_for_no_other_process_and_its_first_use_opens_the_session(tmp_path: Path) -> None:
    with held_elsewhere(tmp_path) as holder:
        manager = FileSessionManager("s", tmp_path)
        agent = Agent(ScriptedModel(["Hi again."]), session_manager=manager, callback_handler=None)
        assert holder.poll() is None  # It has the session still, so nobody waited for it.
        with pytest.raises(SessionBusy):
            agent("Are you there?", timeout_s=0.2)
        let_go(holder)
        assert len(agent.messages) == 2
        assert agent.state.get("by") == "the other"
        assert str(agent("Are you there now?")) == "Hi again."
        assert len(agent.messages) == 4


def test_its_state_is_the_stored_one_also_when_that_is_the_first_use(tmp_path: Path) -> None:
    with held_elsewhere(tmp_path) as holder:
        agent = Agent(ScriptedModel([]), session_manager=FileSessionManager("s", tmp_path), callback_handler=None)
        let_go(holder)
        assert agent.state.get("by") == "the other"
