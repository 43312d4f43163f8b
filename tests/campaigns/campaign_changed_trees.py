"""Trees of documents in a folder or a bucket that other programs change at random while nobody has the session.

`tests/app/sessions/changed_trees.py` says what must hold.
"""

from __future__ import annotations

import random
import time
from pathlib import Path

import anyio

from repertory.errors import RepertoryError
from tests.app.sessions.changed_trees import ChangedTree
from tests.campaigns.campaigns import Report


def changed_trees(rng: random.Random, folder: Path, seconds: float) -> Report:
    """Sessions of a few turns, with some changes after each."""
    report, end = Report(), time.monotonic() + seconds
    while not report.counts["trees"] or time.monotonic() < end:
        seed = rng.randrange(2**31)
        tree = ChangedTree(seed, folder / str(report.counts["trees"]), bucket=seed % 2 == 1)
        try:
            anyio.run(tree.run)
        except (AssertionError, RepertoryError) as error:
            report.check(False, f"tree {seed} {tree.changes}: {error!r}"[:1000])
        report.counts["trees"] += 1
        report.acknowledged += len(tree.changes)
    report.found = 0 if report.faults else report.acknowledged
    return report
