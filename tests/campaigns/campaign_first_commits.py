"""Calls outside any block of several processes, each of which takes their session with its first commit.

`tests/actors/taken_by_commits.py` says what must hold. On virtual time; each round is several worlds.
"""

from __future__ import annotations

import random
import time
from pathlib import Path

import anyio
import pytest

from repertory.backends.sessions import table
from repertory.errors import RepertoryError
from repertory.runtime.testing.virtual_time import virtual_asyncio
from tests.actors.taken_by_commits import SLOW, SLOW_AND_LOST, World
from tests.campaigns.campaigns import Report

_WORLDS = 50


def first_commits(rng: random.Random, folder: Path, seconds: float) -> Report:
    """Worlds whose requests are slow, and some whose requests fail as well."""
    del folder
    report, end = Report(), time.monotonic() + seconds
    backend, options = virtual_asyncio()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(table, "ON_LOOP_BYTES_MAX", 1 << 40)  # A clock that jumps passes threads.
        while report.counts["worlds"] < _WORLDS and (not report.acknowledged or time.monotonic() < end):
            seed, faults = rng.randrange(2**31), rng.choice((SLOW, SLOW, SLOW_AND_LOST))
            world = World(seed, faults)
            try:
                anyio.run(world.run, backend=backend, backend_options=options)
            except* (AssertionError, RepertoryError) as errors:
                report.check(False, f"world {seed}: {errors.exceptions[0]!r}"[:1000])
            report.counts["worlds"] += 1
            report.counts["failed calls"] += world.failed
            report.acknowledged += len(world.answers)
    report.found = 0 if report.faults else report.acknowledged
    return report
