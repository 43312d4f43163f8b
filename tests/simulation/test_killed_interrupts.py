"""SIGKILL at every record between a question and the final answer: no answer is lost, nothing takes effect twice."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

CLERK = Path(__file__).with_name("dying_clerk.py")


@pytest.mark.timeout(120)
def test_a_turn_that_asks_survives_a_kill_at_every_record(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(CLERK), str(tmp_path)], capture_output=True, text=True, check=False, timeout=100
    )
    assert done.returncode == 0, done.stderr
    points = int(done.stdout)
    assert points > 20
    asked_about_outcomes = 0
    for point in range(1, points + 1):
        lines = (tmp_path / f"{point:03}" / "ledger").read_text().splitlines()
        assert lines[-1] == "end done"
        effects = Counter(line for line in lines if line.startswith("effect "))
        assert effects == {"effect pay": 1, "effect post": 1, "effect wipe": 1}, (point, lines)
        answered: set[str] = set()
        for line in lines:
            word, _, interrupt = line.partition(" ")
            assert not (word == "asked" and interrupt in answered), (point, lines)
            if word == "answered" and "unknown_outcome" not in interrupt:
                answered.add(interrupt)
        asked_about_outcomes += any("unknown_outcome" in line for line in lines)
    assert 0 < asked_about_outcomes < points / 2
