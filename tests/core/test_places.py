"""The places of a node's executions: every one is kept, and a loop of any length is said in a few words."""

from __future__ import annotations

import json
import random

import pytest

from repertory.core.orchestration.run import PROGRESSIONS_MAX, TIMES_MAX, Places


def test_places_come_back_from_records_as_they_were(rng: random.Random) -> None:
    for _ in range(300):
        places = sorted(rng.sample(range(1, 60), rng.randint(0, 40)))
        kept = Places.of(places)
        assert (list(kept), len(kept), kept.last) == (places, len(places), max(places, default=0))
        assert list(Places.read(json.loads(json.dumps(kept.to_json())))) == places
        assert list(Places.read(places)) == places, "as earlier releases have written them"


def test_a_loop_of_any_length_is_said_in_a_few_words() -> None:
    for step in (1, 2, 7):
        kept = Places.of(range(1, 20_000, step))
        assert kept.to_json() == [[1, step, len(range(1, 20_000, step))]]


def test_of_irregular_places_the_latest_ones_are_kept(rng: random.Random) -> None:
    places = sorted(rng.sample(range(1, 10_000), 5_000))
    kept = list(Places.of(places))
    assert PROGRESSIONS_MAX <= len(kept) < 5_000
    assert kept == places[-len(kept) :]


@pytest.mark.parametrize("said", [[1, 1, TIMES_MAX + 1], [1, 1, 10**18], [1, 0, 5], [0, 1, 5], [1, 1, -5]])
def test_a_stretch_that_no_run_can_have_had_is_refused(said: list[int]) -> None:
    """Three numbers in a record must not take all memory, or all time, when they are read."""
    with pytest.raises(ValueError, match=str(said[2])):
        Places.read([said])
