"""A few seeds of random damage to stored sessions, on every kind of store. `random_damage.py` says what must hold, and
runs as many as one likes.
"""

from __future__ import annotations

import pytest

from tests.simulation.random_damage import KINDS, make_world, run_seed

pytestmark = [pytest.mark.anyio, pytest.mark.real_time]

SEEDS = {"sqlite": 3, "sqlite killed": 3, "journal in files": 2, "journal in memory": 8}
FIRST = {"asyncio": 0, "trio": 1000}


@pytest.mark.parametrize("kind", KINDS)
async def test_damage_is_noticed_and_repaired(kind: str, anyio_backend_name: str) -> None:
    world = await make_world(kind, 0)
    for seed in range(FIRST[anyio_backend_name], FIRST[anyio_backend_name] + SEEDS[kind]):
        await run_seed(world, seed)
