"""Forks at random moments, of a process whose threads are in calls: every acknowledged turn is there, once."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from repertory import Agent, ScriptedModel
from repertory.app.blocking import blocking_host
from repertory.core.messages import text_of
from tests.simulation.forking_worker import manager_of

WORKER = Path(__file__).with_name("forking_worker.py")
FORKS = 6
"""More of them, and more seeds, take longer and find more."""


@pytest.mark.real_time
def test_forks_at_any_moment_lose_nothing_that_was_acknowledged(seed: int, tmp_path: Path) -> None:
    worker = [sys.executable, str(WORKER), str(tmp_path), str(seed), str(FORKS)]
    # The output ends when the last of the processes has ended.
    done = subprocess.run(
        worker, stdout=subprocess.PIPE, text=True, check=False, timeout=50, cwd=Path(__file__).parents[2]
    )
    acknowledged = [tuple(line.split(" ")) for line in done.stdout.splitlines()]
    assert any(prompt.startswith("child-") for _, _, prompt in acknowledged)
    said: Counter[tuple[str, ...]] = Counter()
    for place, session in sorted({(place, session) for place, session, _ in acknowledged}):
        manager = manager_of(place, session, tmp_path)
        history = blocking_host().run(Agent(ScriptedModel([]), callback_handler=None, session_manager=manager).history)
        said.update((place, session, text_of(message)) for message in history if message["role"] == "user")
    found = [turn for turn in acknowledged if said[turn] == 1]
    print(f"seed {seed}: acknowledged {len(acknowledged)}, found {len(found)}")
    assert found == acknowledged
