"""SIGKILL at any instant, with the session in a folder of objects: as `test_killed_agent.py` has it for SQLite."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest

from repertory import Agent, FileStorage, JournalSessionManager, ScriptedModel
from repertory.app.host.blocking import blocking_host
from repertory.core.messages import check_next, text_of
from tests.simulation.dying_process import DyingProcess

WORKER = Path(__file__).with_name("dying_worker.py")
KILLS = 30


def worker(folder: Path, first: int) -> DyingProcess:
    return DyingProcess(sys.executable, str(WORKER), str(folder / "objects"), str(folder / "ledger"), str(first))


@pytest.mark.timeout(240)
def test_every_acknowledged_turn_survives_thirty_kills_and_effects_happen_once(
    tmp_path: Path, rng: random.Random
) -> None:
    acknowledged: list[str] = []
    next_turn = 0
    for _ in range(KILLS):
        said = worker(tmp_path, next_turn).kill_after(rng.uniform(0, 0.05))
        acknowledged += said
        next_turn += len(said) + 1
    assert len(acknowledged) >= KILLS
    manager = JournalSessionManager("s1", storage=FileStorage(tmp_path / "objects"))
    agent = Agent(ScriptedModel(["x"]), session_manager=manager, callback_handler=None)
    messages = blocking_host().run(agent.history)
    previous = None
    for message in messages:
        check_next(previous, message)
        previous = message
    asked = [text_of(message) for message in messages]
    for line in acknowledged:
        turn, _, answer = line.partition(" ")
        position = next(n for n, text in enumerate(asked) if text.endswith(f"turn {turn}"))
        assert asked[position + 3] == answer, asked[max(0, position - 5) : position + 6]
    keys = (tmp_path / "ledger").read_text().splitlines()
    assert len(keys) == len(set(keys))
    assert len(keys) >= len(acknowledged)
