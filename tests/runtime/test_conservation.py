"""Every ask ends, and accepted tells are handled or dead letters: under everything at once, by seeds.

`python -m bench.conservation --seeds 1000` runs more of the same.
"""

from __future__ import annotations

import pytest

from bench.conservation import run

SEEDS = range(60)


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.parametrize("block", range(6))
def test_nothing_is_lost_and_every_ask_ends(backend: str, block: int) -> None:
    """Our decision; the seeds of a block share a test to keep the report short."""
    outcomes = [run(seed, backend) for seed in SEEDS[block * 10 : block * 10 + 10]]
    assert [(outcome.seed, outcome.violations) for outcome in outcomes if outcome.violations] == []
    assert sum(outcome.restarts for outcome in outcomes) > 50
