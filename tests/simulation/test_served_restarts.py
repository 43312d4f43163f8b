"""A service of two processes is killed and replaced under load, with clients that vanish, on each kind of place."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.campaigns.campaign_served import served

pytestmark = pytest.mark.real_time
SECONDS = 4.0


@pytest.mark.timeout(180)
@pytest.mark.parametrize("kind", ["sqlite", "postgres", "s3"])
def test_clients_that_vanish_and_come_back_lose_nothing(kind: str, tmp_path: Path, rng: random.Random) -> None:
    report = served(rng, tmp_path, SECONDS, kind)
    for missing in report.counts:
        if missing.startswith("skipped"):
            pytest.skip(missing)
    assert not report.faults
    assert report.found == report.acknowledged > 0
