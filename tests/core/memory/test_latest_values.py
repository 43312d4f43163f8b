"""Values that a process remembers: bounded by their number, and by what they weigh together."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct

from repertory.core.latest_values import LatestValues, weight_of

MIB = 1024 * 1024


class Call(Struct):
    prompt: list[object]
    inner: object = None


@dataclass
class Place:
    call: Call


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 40)), max_size=60))
def test_the_latest_values_are_kept_within_both_bounds(kept: list[tuple[int, int]]) -> None:
    recent: LatestValues[int] = LatestValues(4, 100)
    expected: dict[int, int] = {}
    for name, weight in kept:
        assert recent.keep(name, weight, weight) == weight
        expected.pop(name, None)
        expected[name] = weight
        while len(expected) > 4 or sum(expected.values()) > 100:
            del expected[next(iter(expected))]
        assert recent.values() == list(expected.values())
        assert recent.weight == sum(expected.values())
        assert [recent.find(each) for each in range(6)] == [expected.get(each) for each in range(6)]


def test_a_value_that_is_too_heavy_is_given_back_and_forgotten() -> None:
    recent: LatestValues[str] = LatestValues(4, 100)
    recent.keep("small", "a", 50)
    assert recent.keep("large", "b", 101) == "b"
    assert (recent.values(), recent.weight, recent.has("large")) == ([], 0, False)


def test_forty_large_prompts_weigh_what_few_may() -> None:
    recent: LatestValues[Place] = LatestValues(1024, 32 * MIB)
    for number in range(40):
        recent.keep(number, Place(Call([{"text": "x" * 4 * MIB}])))
    assert 0 < len(recent.values()) < 8
    assert recent.weight <= 32 * MIB


def test_names_weigh_too() -> None:
    recent: LatestValues[None] = LatestValues(1024, MIB)
    for number in range(40):
        recent.keep(("tenant", f"{number}" * 100_000), None)
    assert len(recent.values()) < 10


def test_records_within_records_weigh_what_their_fields_hold() -> None:
    text = "x" * 10_000
    for value in (Call([text]), Place(Call([text])), (Place(Call([], Call([text]))),), {"a": [text]}):
        assert 10_000 < weight_of(value, MIB) < 20_000
    # Records in a circle end the weighing.
    call = Call([text])
    call.inner = call
    assert weight_of(call, MIB) < 50_000


def test_a_value_is_weighed_no_further_than_its_bound() -> None:
    endless = [[[0] * 1_000] * 1_000] * 1_000_000
    assert weight_of(endless, MIB) > MIB


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 60)), max_size=60))
def test_values_of_one_tenant_push_out_none_of_a_tenant_that_has_less(kept: list[tuple[int, int]]) -> None:
    recent: LatestValues[int] = LatestValues(8, 200, lambda name: name[0])
    for number, (tenant, weight) in enumerate([(9, 10), *kept]):
        before = recent.values(), recent.weight
        recent.keep((f"{tenant}", number), weight, weight)
        assert len(recent) <= 8
        assert recent.weight <= 200
        assert recent.weight == sum(recent.values()) <= before[1] + weight
        # Of four others one always has more than it: two of eight values, or fifty of two hundred.
        assert recent.has(("9", 0))
