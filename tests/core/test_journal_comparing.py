"""Two conversations are compared message by message, and what is said to differ makes one of the other."""

from __future__ import annotations

import random

from repertory.core.journal.comparing import compare
from repertory.core.messages import Message


def said(text: str) -> Message:
    return {"role": "user", "content": [{"text": text}]}


def numbered(texts: list[str]) -> dict[int, Message]:
    return {number: said(text) for number, text in enumerate(texts, 1)}


def test_what_differs_makes_the_one_of_the_other(rng: random.Random) -> None:
    for _ in range(200):
        first = [rng.choice("abcd") for _ in range(rng.randint(0, 12))]
        second = [rng.choice("abcd") for _ in range(rng.randint(0, 12))]
        found = compare(numbered(first), numbered(second), {}, {})
        gone = {each.seq for each in found.messages if each.side == "first"}
        new = {each.seq for each in found.messages if each.side == "second"}
        assert [text for n, text in enumerate(first, 1) if n not in gone] == [
            text for n, text in enumerate(second, 1) if n not in new
        ]
        assert found.same == len(first) - len(gone)
        assert found.empty == (first == second)


def test_metadata_and_numbers_do_not_count() -> None:
    ours: Message = {**said("a"), "metadata": {"custom": {"n": 1}}, "tracking_id": "one"}  # type: ignore[typeddict-item]
    assert compare({5: ours}, {9: said("a")}, {"k": [1, {"b": 2}]}, {"k": [1, {"b": 2}]}).empty


def test_a_value_of_another_type_differs() -> None:
    found = compare({}, {}, {"a": 1, "b": None}, {"a": True})
    assert [(each.key, each.in_first, each.in_second) for each in found.state] == [
        ("a", True, True),
        ("b", True, False),
    ]
