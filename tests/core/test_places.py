"""The places of a node's executions: every one is kept, and a loop of any length is said in a few words."""

from __future__ import annotations

import json
import random

from repertory.core.orchestration.places import STRETCHES_MAX, Places


def test_places_come_back_from_records_as_they_were(rng: random.Random) -> None:
    for _ in range(300):
        places = sorted(rng.sample(range(1, 60), rng.randint(0, 40)))
        kept = Places.of(places)
        assert (list(kept), len(kept), kept.last) == (places, len(places), max(places, default=0))
        assert list(Places.read(json.loads(json.dumps(kept.said())))) == places
        assert list(Places.read(places)) == places, "as earlier releases have written them"


def test_a_loop_of_any_length_is_said_in_a_few_words() -> None:
    for step in (1, 2, 7):
        kept = Places.of(range(1, 20_000, step))
        assert kept.said() == [[1, step, len(range(1, 20_000, step))]]


def test_of_irregular_places_the_latest_ones_are_kept(rng: random.Random) -> None:
    places = sorted(rng.sample(range(1, 10_000), 5_000))
    kept = list(Places.of(places))
    assert STRETCHES_MAX <= len(kept) < 5_000
    assert kept == places[-len(kept) :]
