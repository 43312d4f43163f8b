"""Trees in a folder that other programs change at random."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.app.sessions.changed_trees import ChangedTree

pytestmark = [pytest.mark.anyio, pytest.mark.real_time]


async def test_whatever_others_change_the_session_opens_says_it_and_goes_on(tmp_path: Path, rng: random.Random) -> None:
    for number in range(6):
        seed = rng.randrange(2**31)
        tree = ChangedTree(seed, tmp_path / str(number))
        try:
            await tree.run()
        except BaseException as error:
            error.add_note(f"seed {seed}: {tree.changes}")
            raise
