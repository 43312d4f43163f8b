"""One short round of each fault campaign; `make soak` runs them for as long as anybody likes."""

from __future__ import annotations

import pytest

from tests.campaigns.campaigns import CAMPAIGNS, run_round

# httpx leaves its generators when an answer is not read to its end.
pytestmark = pytest.mark.filterwarnings("ignore:Async generator 'http:ResourceWarning")
SECONDS = 1.0
SEED = 7


@pytest.mark.timeout(180)
@pytest.mark.parametrize("name", CAMPAIGNS)
def test_a_round_of_the_campaign_finds_everything_that_was_acknowledged(name: str) -> None:
    report = run_round(name, SEED, SECONDS)
    for missing in report.counts:
        if missing.startswith("skipped"):
            pytest.skip(missing)
    assert not report.faults, (name, SEED, report.faults)
    assert report.found == report.acknowledged > 0
