"""Agents of sync code whose session another process has: to make one waits for nobody."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from repertory import (
    Agent,
    FileSessionManager,
    FileSessions,
    FileStorage,
    InMemoryStorage,
    JournalSessionManager,
    ScriptedModel,
    SnapshotSessionManager,
    SQLiteSessionManager,
)
from repertory.compat.programs import SdkAgent
from repertory.errors import NotReady, SessionBusy

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


PLACES = {
    "files": lambda folder: FileSessionManager("s", folder),
    "journals": lambda folder: JournalSessionManager("s", FileStorage(folder)),
    "memory": lambda folder: SnapshotSessionManager("s", storage=STORAGE),
    "snapshots": lambda folder: SnapshotSessionManager("s", storage=FileStorage(folder)),
    "sqlite": lambda folder: SQLiteSessionManager("s", folder / "sessions.db"),
}
STORAGE = InMemoryStorage()


@pytest.mark.anyio
@pytest.mark.parametrize("place", PLACES)
async def test_inside_an_event_loop_what_is_on_this_machine_is_read_before_the_first_call(
    place: str, tmp_path: Path
) -> None:
    STORAGE.clear()

    def made(*answers: str) -> Agent:
        manager: Any = PLACES[place](tmp_path)
        return SdkAgent(ScriptedModel([*answers]), session_manager=manager, callback_handler=None)

    first = made("Hi.")
    assert first.messages == []
    first.state.set("by", "me")
    await first.invoke_async("Hello")
    again = made("Hi again.")
    assert again.state.get("by") == "me"
    assert [message["role"] for message in again.messages] == ["user", "assistant"]
    again.messages.append({"role": "user", "content": [{"text": "One more thing"}]})
    await again.invoke_async()
    assert [message["content"][0].get("text") for message in again.messages] == [
        *("Hello", "Hi.", "One more thing", "Hi again.")
    ]
    assert len(made().messages) == 4


@pytest.mark.anyio
async def test_a_place_of_the_programs_own_is_read_when_the_session_opens(tmp_path: Path) -> None:
    class Elsewhere(FileSessions):
        is_local = False

    manager: Any = SimpleNamespace(session_id="s", sessions=Elsewhere(tmp_path), takeover=False)
    agent = Agent(ScriptedModel(["Hi."]), session_manager=manager, callback_handler=None)
    with pytest.raises(NotReady):
        _ = agent.messages
    await agent.ready()
    assert agent.messages == []
