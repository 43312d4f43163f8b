"""Workers that are killed while they work lose no job, and do none twice."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.campaigns.campaign_workers import QUEUES, killed

pytestmark = [pytest.mark.real_time, pytest.mark.timeout(150)]


@pytest.mark.parametrize("kind", QUEUES)
def test_every_job_is_answered_once_and_in_order_however_many_workers_are_killed(
    kind: str, rng: random.Random, tmp_path: Path
) -> None:
    report = killed(rng, tmp_path, kind, jobs=20, kills=4)
    assert not report.faults, (report.faults, (tmp_path / "log").read_text()[-3000:])
    assert report.found == report.acknowledged
