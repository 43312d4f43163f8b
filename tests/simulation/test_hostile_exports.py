"""What a hostile export can say: it is refused by a typed error with nothing stored, or it is a session that works."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.simulation.hostile_exports import campaign

pytestmark = [pytest.mark.anyio, pytest.mark.real_time]

SEEDS = (*range(30), 809, 1449, 3164, 5802)
"""Some, and those that once found something."""


async def test_hostile_exports_are_refused_whole_or_work(tmp_path: Path) -> None:
    counts = await campaign(SEEDS, tmp_path)
    print(counts)
    assert counts.seeds == len(SEEDS)
    assert counts.refused > counts.taken > 0
    assert counts.turns > 0
