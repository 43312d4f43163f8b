"""A short fight of three processes for one session on every store that they may share; `make soak` has many and longer
ones.
"""

from __future__ import annotations

import pytest

from bench.fights import KINDS, fight

pytestmark = pytest.mark.real_time


@pytest.mark.timeout(150)
@pytest.mark.parametrize(("kind", "seed"), [*zip(KINDS, (11, 12, 13), strict=True)])
def test_what_was_acknowledged_in_a_fight_is_there_once(kind: str, seed: int) -> None:
    outcome = fight(kind, seed, each=1, events=4)
    assert outcome.violations == []
    assert outcome.found == outcome.acknowledged == 3
