"""What candidates are worth: each sign by itself. Our decisions; how much they are worth together is measured by
`bench/recall.py`.
"""

from __future__ import annotations

import math
import random

import pytest

from repertory.core.recall.ranking import DEFAULT_WEIGHTS, RARITY_MIN, Candidate, fused, rarity, scores

RARITIES = [2.0, 1.0]


def turn(entry: int, body: int = 0, place: int | None = None, **known: object) -> Candidate:
    start = Candidate(entry, body, 0, 1, place if place is not None else entry * 10, 10, False, False)
    return start._replace(**known)


def worth(*candidates: Candidate) -> dict[int, float]:
    return scores(candidates, RARITIES, DEFAULT_WEIGHTS)


def test_nothing_is_worth_nothing() -> None:
    assert worth() == {}
    assert scores([turn(1)], [], DEFAULT_WEIGHTS) == {1: 0.0}


def test_a_rarer_word_is_worth_more() -> None:
    found = worth(turn(1, 0b01), turn(2, 0b10))
    assert found[1] > found[2] > 0


def test_a_turn_beside_what_is_asked_is_worth_more_the_nearer_it_is() -> None:
    found = worth(turn(1, 0b01, 5), turn(2, 0, 6), turn(3, 0, 7), turn(4, 0, 8), turn(5, 0, 6, conversation=2))
    assert found[1] > found[2] > found[3] > found[4] > found[5] == 0


def test_neighbours_count_in_both_directions() -> None:
    found = worth(turn(1, 0b01, 5), turn(2, 0, 4), turn(3, 0, 6))
    assert found[2] == found[3]


def test_a_conversation_that_says_more_of_it_raises_all_its_turns() -> None:
    found = worth(turn(1, 0b01), turn(2, 0b10), turn(3, 0b01, conversation=2))
    assert found[1] > found[3]


def test_who_is_named_in_the_question_is_worth_more() -> None:
    found = worth(turn(1, 0b01), turn(2, 0b01, named=True))
    assert found[2] > found[1]


def test_what_a_model_said_is_worth_less_than_what_a_person_said() -> None:
    found = worth(turn(1, 0b01), turn(2, 0b01, assistant=True))
    assert found[2] < found[1]


def test_a_long_text_is_worth_less_for_the_same_words() -> None:
    found = worth(turn(1, 0b01), turn(2, 0b01, words=100))
    assert found[2] < found[1]


def test_a_word_in_the_heading_is_worth_less_than_in_the_text_and_is_not_counted_twice() -> None:
    found = worth(turn(1, 0b01), turn(2, 0, heading=0b01), turn(3, 0b01, heading=0b01))
    assert found[1] == found[3] > found[2] > 0


def test_a_fact_needs_no_conversation() -> None:
    found = worth(turn(1, 0b01, conversation=None), turn(2, 0b01, conversation=None))
    assert found[1] == found[2] > 0


def test_more_words_are_never_worth_less(rng: random.Random) -> None:
    """Property: to say one more of the words raises a turn, whatever is around it."""
    rarities = [rng.uniform(RARITY_MIN, 9) for _ in range(4)]
    for _ in range(200):
        others = [
            turn(
                entry, rng.randrange(16), rng.randrange(2, 60), heading=rng.randrange(16), conversation=rng.randrange(3)
            )
            for entry in range(2, 12)
        ]
        before = turn(1, rng.randrange(15), 1)
        missing = rng.choice([word for word in range(4) if not before.body >> word & 1])
        after = before._replace(body=before.body | 1 << missing)
        values = [scores([each, *others], rarities, DEFAULT_WEIGHTS)[1] for each in (before, after)]
        assert values[1] > values[0]


@pytest.mark.parametrize(("texts", "having"), [(0, 0), (1, 1), (10, 10), (10, 8), (10, 50)])
def test_a_word_that_most_texts_have_still_counts_a_little(texts: int, having: int) -> None:
    assert rarity(texts, having) == RARITY_MIN


def test_rarity_falls_with_every_text_that_has_the_word() -> None:
    found = [rarity(1000, having) for having in range(1, 500)]
    assert found == sorted(found, reverse=True)
    assert all(math.isfinite(value) for value in found)


def test_fusion_brings_both_to_the_same_range() -> None:
    assert fused({1: 100.0, 2: 50.0, 3: 0.0}, {2: 0.9, 3: 0.8, 4: 0.7}, 0.5) == pytest.approx(
        {1: 0.5, 2: 0.75, 3: 0.25, 4: 0.0}
    )
    assert fused({1: 3.0}, {}, 0.5) == {1: 0.5}
