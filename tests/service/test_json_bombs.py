"""Values that no JSON holds, or that look like something of ours, through every door and into every kind of store."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from tests.campaigns.campaign_bombs import BOMBS, KINDS, bombard, is_equal, place

pytestmark = [pytest.mark.anyio, pytest.mark.real_time]


@pytest.mark.parametrize(
    ("anyio_backend", "kind"), [*zip(itertools.cycle(["asyncio", "trio"]), KINDS)], indirect=["anyio_backend"]
)
async def test_no_value_hinders_anybody(kind: str, tmp_path: Path) -> None:
    bombed, faults = await bombard(place(kind, tmp_path), BOMBS)
    assert not faults
    for name in ("marked, no base64", "marked, base64", "marked, and more", "64 bits and one", "a NUL", "our marker"):
        assert is_equal(bombed[name].kept["state"][0], BOMBS[name])
        assert is_equal(bombed[name].kept["metadata"][0], BOMBS[name])
        assert {"state", "answer", "result", "metadata", "history", "interrupt", "snapshot"} == set(bombed[name].kept)
    for name in ("not a number", "5,000 digits", "a circle", "an object", "far too deep"):
        assert {"state", "metadata", "history", "snapshot"} <= set(bombed[name].refused)
