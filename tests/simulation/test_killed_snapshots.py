"""SIGKILL at any instant, with a session that has snapshots in a folder."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from repertory import Agent, FileStorage, ScriptedModel, SnapshotSessionManager, SnapshotSessions
from repertory.app.host.blocking import blocking_host
from repertory.backends.sessions.snapshots.makers import mark_in
from repertory.core.messages import text_of

WORKER = Path(__file__).with_name("dying_snapshots.py")
KILLS = 4


def killed_after(folder: Path, first: int, strategy: str, seconds: float) -> list[int]:
    """The turns that a worker acknowledged before it was killed, `seconds` after the first one."""
    command = [sys.executable, str(WORKER), str(folder), str(first), strategy]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    begun = process.stdout.readline()
    assert begun
    timer = threading.Timer(seconds, process.kill)
    timer.start()
    said = [begun, *process.stdout]
    timer.join()
    process.stdout.close()
    assert process.wait(30) == -signal.SIGKILL
    return [int(line) for line in said if line.endswith("\n")]


@pytest.mark.timeout(240)
@pytest.mark.parametrize("strategy", ["message", "never"])
def test_every_acknowledged_turn_survives_every_kill_and_the_tree_can_be_read(
    tmp_path: Path, strategy: str, rng: random.Random
) -> None:
    acknowledged: list[int] = []
    tree = tmp_path / "s/scopes/agent/default/snapshots"
    kills = 0
    while kills < KILLS or len(acknowledged) < 20:
        kills += 1
        first = acknowledged[-1] + 2 if acknowledged else 0
        acknowledged += killed_after(tmp_path, first, strategy, rng.uniform(0, 0.1))
        for path in tree.rglob("*.json"):
            json.loads(path.read_text())
    manager = SnapshotSessionManager("s", storage=FileStorage(tmp_path), save_latest_on=strategy)  # type: ignore[arg-type]
    agent = Agent(ScriptedModel(["x"]), session_manager=manager, callback_handler=None)
    history = [text_of(message) for message in blocking_host().run(agent.history)]
    assert {f"turn {turn}" for turn in acknowledged} <= set(history)
    marks = blocking_host().run(marked, tmp_path)
    numbered = sorted(path.name for path in tree.glob("immutable_history/snapshot_*"))
    assert numbered == [f"{label}.json" for label in marks]
    for name in numbered:
        shown = json.loads((tree / "immutable_history" / name).read_text())["data"]["messages"]
        assert set(map(text_of, shown)) <= set(history)
        assert text_of(shown[-1]) == "done"


async def marked(folder: Path) -> list[str]:
    """The snapshots that the journal marks."""
    store = SnapshotSessions(FileStorage(folder)).open_store()
    try:
        rows = await store.load("s", "default", whole=True)
    finally:
        await store.aclose()
    return [record.label for row in rows if (record := mark_in(row)) is not None]
