"""What is decided of subagents: their names, their ids, their shares of budgets, and which of them go."""

from __future__ import annotations

import json
import math
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from repertory.core.budget import Budget
from repertory.core.turns.subagents import (
    DEPTH_MAX,
    STARTS_MAX,
    Labels,
    budget_of,
    depth_of,
    is_subagent,
    retained_at_most,
    share_of,
    subagent_id,
    to_forget,
    without_subagents,
)
from repertory.errors import Invalid, LimitReached

texts = st.text(max_size=5)
starts = st.lists(st.tuples(st.none() | texts, texts, texts), max_size=30)
numbers = st.integers(min_value=1, max_value=10_000)
prices = st.dictionaries(st.sampled_from(["a", "*"]), st.tuples(st.floats(0, 9), st.floats(0, 9)), min_size=1)


def labels_of(calls: list[tuple[str | None, str, str]]) -> list[str | None]:
    """The label of each; None for one that was refused."""
    labels, found = Labels(), list[str | None]()
    for call in calls:
        try:
            found.append(labels.next(*call))
        except Invalid:
            found.append(None)
    return found


@given(starts)
def test_labels_are_all_different_and_the_same_in_each_attempt(calls: list[tuple[str | None, str, str]]) -> None:
    found = labels_of(calls)
    known = [label for label in found if label is not None]
    assert len(set(known)) == len(known)
    assert labels_of(calls) == found
    named = Counter(name for name, _, _ in calls if name is not None)
    # Refused is a name the second time, and nothing else.
    assert found.count(None) == sum(count - 1 for count in named.values())


@given(starts, st.randoms(use_true_random=False))
def test_the_labels_of_subagents_that_start_beside_each_other_do_not_follow_from_their_order(
    calls: list[tuple[str | None, str, str]], rng: Any
) -> None:
    shuffled = rng.sample(calls, len(calls))
    assert Counter(labels_of(calls)) == Counter(labels_of(shuffled))


def test_a_call_starts_no_more_subagents_than_the_bound() -> None:
    labels = Labels()
    for _ in range(STARTS_MAX):
        labels.next(None, "a", "go")
    with pytest.raises(LimitReached):
        labels.next("one more", "a", "go")


@given(st.lists(st.tuples(texts, texts), max_size=DEPTH_MAX + 2))
def test_ids_say_how_deep_a_subagent_stands_and_differ_by_call_and_label(calls: list[tuple[str, str]]) -> None:
    parent = "root"
    for depth, (key, label) in enumerate(calls, 1):
        if depth > DEPTH_MAX:
            with pytest.raises(LimitReached):
                subagent_id(parent, key, label)
            return
        child = subagent_id(parent, key, label)
        assert (is_subagent(child), depth_of(child)) == (True, depth)
        assert child == subagent_id(parent, key, label)
        assert child != subagent_id(parent, key, f"{label}+")
        assert without_subagents([parent, child]) == sorted(
            {parent, child} - {child} if depth == 1 else {parent, child}
        )
        parent = child


def spent_budget(total: int | None, output: int | None, cost: tuple[float, Any] | None, spent: int) -> Budget:
    budget = Budget(
        total_tokens=total,
        output_tokens=output,
        cost=None if cost is None else cost[0],
        prices=None if cost is None else cost[1],
    )
    usage: Any = {"inputTokens": spent, "outputTokens": spent, "totalTokens": 2 * spent}
    budget.charge("agent", "a", usage)
    return budget


budgets = st.builds(
    spent_budget,
    st.none() | numbers,
    st.none() | numbers,
    st.none() | st.tuples(st.floats(0.001, 100), prices),
    st.integers(0, 2_000),
)


@given(st.none() | budgets, st.lists(budgets, max_size=3))
def test_a_share_is_what_is_left_of_the_tightest_budget_also_as_json(own: Budget | None, around: list[Budget]) -> None:
    every = [*([] if own is None else [own]), *around]
    if any(each.used_up is not None for each in every):
        with pytest.raises(LimitReached):
            share_of(own, around)
        return
    share = share_of(own, around)
    for name in ("total_tokens", "output_tokens"):
        least = min((each.remaining[name] for each in every), default=math.inf)
        assert share.get(name, math.inf) == least
    limited = [each for each in every if each.remaining["cost"] < math.inf]
    assert share.get("cost") == (limited[0].remaining["cost"] if limited else None)
    budget = budget_of(json.loads(json.dumps(share)))
    if not share:
        assert budget is None
        return
    assert budget is not None
    assert budget.used_up is None
    for name in ("total_tokens", "output_tokens", "cost"):
        assert budget.remaining[name] == share.get(name, math.inf)
    if limited:
        assert budget.prices == limited[0].prices


values = st.none() | st.booleans() | st.integers() | st.floats() | texts
anything = st.recursive(values, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3))
shares = st.dictionaries(st.sampled_from(["total_tokens", "output_tokens", "cost", "prices", "x"]), anything | prices)


@given(anything | shares)
def test_what_a_model_writes_as_a_share_is_a_budget_or_refused(written: object) -> None:
    try:
        found = budget_of(written)
    except Invalid:
        return
    assert found is None or found.used_up is None


@given(st.dictionaries(texts, st.floats(0, 100), max_size=40), st.integers(0, 20))
def test_the_newest_stay_and_the_others_go_together(ended: dict[str, float], retain: int) -> None:
    going = to_forget(ended, retain)
    if len(ended) <= retained_at_most(retain):
        assert going == []
        return
    staying = ended.keys() - set(going)
    assert len(staying) == retain
    assert len(set(going)) == len(going)
    if staying:
        assert max(ended[each] for each in going) <= min(ended[each] for each in staying)
    assert to_forget({each: ended[each] for each in staying}, retain) == []
