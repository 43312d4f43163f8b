"""Two conversations are compared message by message, and what is said to differ makes one of the other."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from repertory.core.history.compare import Compared, Placed, compare
from repertory.core.messages import Json, Message


def said(text: str) -> Message:
    return {"role": "user", "content": [{"text": text}]}


def numbered(texts: Sequence[str]) -> Compared:
    return side([Placed(seq=number, message=said(text)) for number, text in enumerate(texts, 1)])


def side(messages: Sequence[Placed], state: Mapping[str, Json] | None = None) -> Compared:
    return Compared(messages=messages, visible=messages, state=state or {})


def test_what_differs_makes_the_one_of_the_other(rng: random.Random) -> None:
    for _ in range(200):
        first = [rng.choice("abcd") for _ in range(rng.randint(0, 12))]
        second = [rng.choice("abcd") for _ in range(rng.randint(0, 12))]
        found = compare(numbered(first), numbered(second))
        gone = {each.seq for each in found.messages if each.side == "first"}
        new = {each.seq for each in found.messages if each.side == "second"}
        assert [text for n, text in enumerate(first, 1) if n not in gone] == [
            text for n, text in enumerate(second, 1) if n not in new
        ]
        assert found.same == len(first) - len(gone)
        assert found.empty == (first == second)


def test_metadata_and_numbers_do_not_count() -> None:
    ours: Message = {**said("a"), "metadata": {"custom": {"n": 1}}, "tracking_id": "one"}  # type: ignore[typeddict-item]
    state: Mapping[str, Json] = {"k": [1, {"b": 2}]}
    theirs = said("a")
    assert compare(side([Placed(seq=5, message=ours)], state), side([Placed(seq=9, message=theirs)], state)).empty


def test_a_value_of_another_type_differs() -> None:
    found = compare(side([], {"a": 1, "b": None}), side([], {"a": True}))
    assert [(each.key, each.in_first, each.in_second) for each in found.state] == [
        ("a", True, True),
        ("b", True, False),
    ]


def test_what_is_shown_and_what_it_took_are_compared_as_well() -> None:
    answer: Message = {"role": "assistant", "content": [{"text": "b"}]}
    answer["metadata"] = {"usage": {"inputTokens": 5, "outputTokens": 2, "totalTokens": 7}}
    both = [Placed(seq=1, message=said("a")), Placed(seq=2, message=answer)]
    found = compare(
        Compared(messages=both[:1], visible=both[:1], state={}), Compared(messages=both, visible=both[1:], state={})
    )
    assert [(each.side, each.seq) for each in found.view] == [("first", 1), ("second", 2)]
    assert (found.first_cost.total_tokens, found.second_cost.total_tokens, found.second_cost.answers) == (0, 7, 1)
    assert str(found).splitlines() == ["+ #2 assistant: b", "- #1 user: a (shown)", "- 0 tokens", "+ 7 tokens"]
