"""What of a question is looked for. Our decisions."""

from __future__ import annotations

import pytest

from repertory.core.recall.entries import TERMS_MAX, heading_words, spaced, terms_of


@pytest.mark.parametrize(
    ("question", "terms"),
    [
        ("When did Ada go to the lighthouse?", ("ada", "go", "lighthouse")),
        ("What kind of tea does she like, green or black?", ("tea", "like", "green", "black")),
        ("Who are you?", ("who", "are", "you")),
        ("", ()),
        (' ?!"*() \x00\ud800', ()),
        ("Ada ADA ada", ("ada",)),
        ("didn't Ben's dog_house", ("ben", "dog", "house")),
        ("東京タワー", ("東", "京", "タ", "ワ", "ー")),
        ("na\u00efve caf\u00e9", ("na\u00efve", "caf\u00e9")),
    ],
)
def test_a_question_is_looked_for_by_the_words_that_say_what_is_asked(question: str, terms: tuple[str, ...]) -> None:
    assert terms_of(question) == terms


def test_of_a_long_text_the_longest_words_are_looked_for() -> None:
    words = [f"{'w' * length}x" for length in range(1, 3 * TERMS_MAX)]
    assert terms_of(" ".join(words)) == tuple(words[-TERMS_MAX:])


def test_a_word_of_a_heading_is_indexed_as_another_than_the_same_in_a_text() -> None:
    assert heading_words("Ada, 8 May") == "zqada zq8 zqmay"


def test_text_that_is_ascii_stays_as_it_is() -> None:
    assert spaced("plain text") == "plain text"
