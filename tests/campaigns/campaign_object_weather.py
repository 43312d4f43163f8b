"""Agents on buckets and memory in bad weather, on virtual time.

`tests/simulation/test_store_weather.py` tries each kind with a few seeds, this with as many as there is time for.
"""

from __future__ import annotations

import random
import time
from functools import partial
from pathlib import Path

import anyio

from repertory.errors import RepertoryError
from repertory.runtime.testing.virtual_time import virtual_asyncio, virtual_trio
from tests.campaigns.campaigns import Report
from tests.simulation import test_store_weather as worlds

_WORLDS = (
    worlds.test_a_drain_in_bad_weather_names_what_is_not_stored,
    worlds.test_nothing_acknowledged_is_lost_and_nothing_is_there_twice,
)


def object_weather(rng: random.Random, folder: Path, seconds: float) -> Report:
    """Talks of three agents, with and without a drain."""
    del folder
    report, end = Report(), time.monotonic() + seconds
    while not report.acknowledged or time.monotonic() < end:
        seed, kind, world = rng.randrange(2**31), rng.choice(worlds.KINDS), rng.choice(_WORLDS)
        backend, options = virtual_trio() if rng.random() < 0.5 else virtual_asyncio()
        try:
            anyio.run(partial(world, kind, 1, seed), backend=backend, backend_options={**options})
        except* (AssertionError, KeyError, RepertoryError) as errors:
            report.check(False, f"{world.__name__} {kind} {backend} {seed}: {errors.exceptions[0]!r}"[:1000])
        report.acknowledged += 1
    report.found = 0 if report.faults else report.acknowledged
    return report
