"""Random damage to sessions as snapshots and events: nobody is given anything else than what was stored."""

from __future__ import annotations

import pytest

from tests.simulation.damaged_documents import Campaign

pytestmark = [pytest.mark.anyio, pytest.mark.real_time]


@pytest.mark.parametrize(
    ("anyio_backend", "kind", "first"),
    [("asyncio", "snapshots", 20), ("trio", "agentcore", 30)],
    indirect=["anyio_backend"],
)
async def test_damage_is_told_or_changes_nothing(kind: str, first: int) -> None:
    campaign = Campaign()
    for seed in range(first, first + 4):
        await campaign.run(kind, seed)
    assert sum(campaign.counts.values()) == 4
