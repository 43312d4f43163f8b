"""SIGKILL at any instant, with the session in a folder of objects: as `test_killed_agent.py` has it for SQLite."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from repertory import Agent, FileStorage, JournalSessionManager, ScriptedModel
from repertory.app.host.blocking import blocking_host
from repertory.core.messages import check_next, text_of

WORKER = Path(__file__).with_name("dying_worker.py")
KILLS = 30


class Worker:
    """A worker process and what it acknowledged."""

    def __init__(self, folder: Path, first: int) -> None:
        arguments = [sys.executable, str(WORKER), str(folder / "objects"), str(folder / "ledger"), str(first)]
        self.process = subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)
        self.acknowledged: list[str] = []
        self.first_answer = threading.Event()
        self.reader = threading.Thread(target=self._read)
        self.reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.endswith("\n"):
                self.acknowledged.append(line.strip())
                self.first_answer.set()
        self.first_answer.set()

    def kill_after(self, seconds: float) -> list[str]:
        """What was acknowledged by the time it was killed, `seconds` after its first answer."""
        assert self.first_answer.wait(30)
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
        assert self.process.wait(30) == -signal.SIGKILL
        self.reader.join(30)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return self.acknowledged


@pytest.mark.timeout(240)
def test_every_acknowledged_turn_survives_thirty_kills_and_effects_happen_once(
    tmp_path: Path, rng: random.Random
) -> None:
    acknowledged: list[str] = []
    next_turn = 0
    for _ in range(KILLS):
        said = Worker(tmp_path, next_turn).kill_after(rng.uniform(0, 0.05))
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
