"""Histories of several owners of one session on an object store: see `tests/campaigns/campaign_histories.py`."""

from __future__ import annotations

import random

import anyio
import pytest

from repertory.testing.faulty_objects import ObjectFaults
from tests.campaigns.campaign_histories import FAULTS, History, small_numbers

pytestmark = pytest.mark.anyio

SEEDS = 12


@pytest.fixture(autouse=True)
def with_small_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    small_numbers(monkeypatch)


@pytest.mark.parametrize("number", range(SEEDS))
async def test_random_histories_are_what_a_dictionary_says(number: int, seed: int) -> None:
    with anyio.fail_after(100_000):
        await History(random.Random(seed + number), ObjectFaults()).run()


@pytest.mark.parametrize("number", range(SEEDS))
async def test_the_same_over_requests_that_fail(number: int, seed: int) -> None:
    with anyio.fail_after(100_000):
        await History(random.Random(seed + number), FAULTS).run()


async def test_a_commit_that_stands_is_not_refused_when_the_session_is_lost_before_contents_are_destroyed() -> None:
    with anyio.fail_after(100_000):
        await History(random.Random(3702257825), FAULTS, pauses=False).run()


async def test_a_window_is_never_put_in_the_place_of_one_that_a_head_may_name() -> None:
    """A head whose answer got lost stands, and so must the window that it names, whatever its owner says after that."""
    with anyio.fail_after(100_000):
        await History(random.Random(437342136), FAULTS, pauses=False).run()


async def test_a_head_of_which_the_answer_got_lost_keeps_its_rows_when_the_lease_is_renewed() -> None:
    with anyio.fail_after(100_000):
        await History(random.Random(174), FAULTS, pauses=False).run()


async def test_a_former_owner_erases_nothing_in_a_new_session_of_the_same_name() -> None:
    with anyio.fail_after(100_000):
        await History(random.Random(2004737764), FAULTS, pauses=False).run()
