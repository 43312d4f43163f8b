"""Processes that fork at random moments, while their threads are in calls: every acknowledged turn is there, once."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from repertory import Agent, ScriptedModel
from repertory.app.host.blocking import blocking_host
from repertory.core.messages import text_of
from tests.campaigns.campaigns import Report
from tests.simulation.forking_worker import manager_of

WORKER = Path(__file__).parents[2] / "tests/simulation/forking_worker.py"
FORKS = 6


def forks(rng: random.Random, folder: Path, seconds: float) -> Report:
    """Processes after each other, until the time is over."""
    report, end = Report(), time.monotonic() + seconds
    while not report.counts["processes"] or time.monotonic() < end:
        place = folder / f"{report.counts['processes']}"
        place.mkdir()
        _live(rng.randrange(2**31), place, report)
        report.counts["processes"] += 1
        report.counts["forks"] += FORKS
    return report


def _live(seed: int, folder: Path, report: Report) -> None:
    worker = [sys.executable, str(WORKER), str(folder), str(seed), str(FORKS)]
    # The output ends when the last of the processes has ended.
    done = subprocess.run(
        worker, stdout=subprocess.PIPE, text=True, check=False, timeout=50, cwd=Path(__file__).parents[2]
    )
    acknowledged = [tuple(line.split(" ")) for line in done.stdout.splitlines()]
    report.check(any(prompt.startswith("child-") for _, _, prompt in acknowledged), f"{seed}: no child was answered")
    said: Counter[tuple[str, ...]] = Counter()
    for place, session in sorted({(place, session) for place, session, _ in acknowledged}):
        manager = manager_of(place, session, folder)
        history = blocking_host().run(Agent(ScriptedModel([]), callback_handler=None, session_manager=manager).history)
        said.update((place, session, text_of(message)) for message in history if message["role"] == "user")
    missing = [turn for turn in acknowledged if said[turn] != 1]
    report.check(not missing, f"{seed}: not there once: {missing}")
    report.acknowledged += len(acknowledged)
    report.found += len(acknowledged) - len(missing)
