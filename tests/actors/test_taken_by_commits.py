"""Sessions that the first commit of a call takes, under many interleavings. The campaign `first-commits` has more."""

from __future__ import annotations

import anyio
import pytest

from repertory.backends.sessions import table
from repertory.testing.faulty_objects import ObjectFaults
from tests.actors.taken_by_commits import SLOW, SLOW_AND_LOST, World

pytestmark = pytest.mark.anyio
WORLDS = 40


@pytest.mark.parametrize("faults", [SLOW, SLOW_AND_LOST], ids=["slow", "slow and lost"])
async def test_nothing_is_shown_or_run_before_the_session_is_owned_and_nothing_acknowledged_is_lost(
    faults: ObjectFaults, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table, "ON_LOOP_BYTES_MAX", 1 << 40)  # A clock that jumps passes threads.
    for number in range(WORLDS):
        world = World(seed + number, faults)
        with anyio.fail_after(10_000):
            await world.run()
        assert world.answers or faults is SLOW_AND_LOST, seed + number
