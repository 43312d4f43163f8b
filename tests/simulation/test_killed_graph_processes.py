"""SIGKILL of processes that run a graph: one answer, everything done, nothing done under two keys."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

WORKER = Path(__file__).with_name("dying_graph.py")
WORKERS = 5


def run(folder: Path, dies_at: int, backend: str) -> str:
    """What the process said before it died, or ended."""
    arguments = [sys.executable, str(WORKER), str(folder), str(dies_at), backend]
    process = subprocess.run(arguments, capture_output=True, text=True, timeout=60, check=False)
    assert process.returncode in (0, -signal.SIGKILL), process.stderr
    return process.stdout


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_graph_whose_processes_are_killed_gives_one_answer(tmp_path: Path, backend: str, rng: random.Random) -> None:
    for dies_at in (rng.randint(1, 6), rng.randint(1, 30), rng.randint(1, 60)):
        run(tmp_path, dies_at, backend)
    told = run(tmp_path, 0, backend)
    assert told.startswith("completed 1 "), told
    assert run(tmp_path, 0, backend) == told
    effects = set((tmp_path / "effects").read_text().split("\n")) - {""}
    assert len(effects) == WORKERS, effects
