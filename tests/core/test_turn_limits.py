"""Reading a caller's limits, and which of them is reached first."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from repertory.core.limits import NO_LIMITS, TurnLimits, read_limits
from repertory.errors import Invalid


def test_no_limits_are_never_reached() -> None:
    assert read_limits(None) == read_limits({}) == NO_LIMITS
    assert NO_LIMITS.reached(10**9, 10**9, 10**9) is None


def test_limits_are_read_by_the_names_that_callers_know() -> None:
    assert read_limits({"turns": 3, "total_tokens": 1000, "output_tokens": None}) == TurnLimits(
        steps=3, total_tokens=1000
    )


@pytest.mark.parametrize(
    "limits",
    [
        {"turns": 0},
        {"turns": -1},
        {"turns": 1.5},
        {"turns": "3"},
        {"turns": True},
        {"total_tokens": float("inf")},
        {"tokens": 3},
        {"turns": 3, 5: 3},
        [("turns", 3)],
        3,
        "turns",
    ],
    ids=repr,
)
def test_limits_that_make_no_sense_are_refused_by_name(limits: Any) -> None:
    with pytest.raises(Invalid, match="limits"):
        read_limits(limits)


def test_the_first_of_several_limits_is_told_in_the_documented_order() -> None:
    limits = read_limits({"turns": 2, "total_tokens": 10, "output_tokens": 5})
    assert limits.reached(2, 10, 5) == "limit_turns"
    assert limits.reached(1, 10, 5) == "limit_total_tokens"
    assert limits.reached(1, 9, 5) == "limit_output_tokens"
    assert limits.reached(1, 9, 4) is None


COUNT = st.integers(min_value=1, max_value=100)


@given(st.fixed_dictionaries({}, optional={"turns": COUNT, "total_tokens": COUNT, "output_tokens": COUNT}), COUNT)
def test_once_reached_a_limit_stays_reached(limits: dict[str, int], more: int) -> None:
    read = read_limits(limits)
    for counts in ((1, 1, 1), (5, 50, 20), (100, 100, 100)):
        if read.reached(*counts) is not None:
            steps, total, output = (count + more for count in counts)
            assert read.reached(steps, total, output) is not None
    assert (read.reached(100, 100, 100) is None) == (not limits)
