"""Turns of tenants: in rounds, within each tenant's limits, and none is forgotten."""

from __future__ import annotations

import math
from collections import Counter, deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from repertory.core.admission import NotAdmitted, ServiceLimits
from repertory.core.fair_turns import FairTurns

NO_RATE = math.inf


def turns(**limits: float) -> FairTurns[str]:
    return FairTurns(ServiceLimits(**{"rate_per_s": NO_RATE, **limits}))  # type: ignore[arg-type]


def test_tenants_take_turns_whoever_asked_first() -> None:
    fair = turns(concurrent_in_all=1)
    for number in range(5):
        fair.ask("busy", f"busy {number}", 0.0)
    fair.ask("quiet", "quiet", 0.0)
    begun = fair.admit(0.0)
    while fair.running:
        fair.leave(begun[-1].partition(" ")[0])
        begun += fair.admit(0.0)
    assert begun == ["busy 0", "quiet", "busy 1", "busy 2", "busy 3", "busy 4"]


def test_a_tenant_has_a_burst_and_then_its_rate() -> None:
    fair = turns(rate_per_s=0.5, burst=2)
    for number in range(4):
        fair.ask("a", str(number), 0.0)
    assert fair.admit(0.0) == ["0", "1"]
    assert fair.next_at == 2.0
    assert fair.admit(1.9) == []
    assert fair.admit(2.0) == ["2"]
    assert fair.admit(4.0) == ["3"]
    assert fair.next_at == math.inf


def test_a_turn_that_did_nothing_counts_for_no_rate() -> None:
    fair = turns(rate_per_s=0.001, burst=1)
    fair.ask("a", "one", 0.0)
    assert fair.admit(0.0) == ["one"]
    fair.leave("a", unused=True)
    fair.ask("a", "two", 0.0)
    assert fair.admit(0.0) == ["two"]


def test_one_more_than_may_wait_is_refused_and_a_tenant_that_has_withdrawn_keeps_nobody_waiting() -> None:
    fair = turns(concurrent=1, waiting=2)
    fair.ask("a", "runs", 0.0)
    fair.admit(0.0)
    assert [fair.ask("a", str(number), 0.0) for number in range(3)] == [None, None, NotAdmitted("tenant turns", 1.0)]
    for number in range(2):
        fair.withdraw("a", str(number))
    assert fair.waiting("a") == fair.waiting("nobody") == 0
    fair.leave("a")
    assert fair.admit(0.0) == []
    assert fair.ask("b", "b", 0.0) is None
    assert fair.admit(0.0) == ["b"]


@pytest.mark.parametrize("kept", [0, 1])
def test_no_more_tenants_are_remembered_than_there_may_be(kept: int) -> None:
    fair = turns(tenants_remembered=10)
    for number in range(100):
        fair.ask(str(number), "turn", 0.0)
        assert fair.admit(0.0) == ["turn"]
        if number or not kept:
            fair.leave(str(number))
    assert len(fair._tenants) == 10
    assert ("0" in fair._tenants) == bool(kept)


STEPS = st.lists(
    st.tuples(st.sampled_from("abcd"), st.sampled_from(["ask", "ask", "leave", "withdraw", "unused"]), st.floats(0, 3)),
    max_size=80,
)


@given(STEPS, st.integers(1, 3), st.integers(1, 4), st.sampled_from([0.5, 2.0, NO_RATE]))
def test_whatever_comes_no_limit_is_exceeded_nobody_is_forgotten_and_rounds_are_fair(
    steps: list[tuple[str, str, float]], concurrent: int, in_all: int, rate_per_s: float
) -> None:
    limits = ServiceLimits(concurrent=concurrent, concurrent_in_all=in_all, rate_per_s=rate_per_s, burst=2, waiting=5)
    fair: FairTurns[tuple[str, int]] = FairTurns(limits)
    running, counted, number, now = Counter[str](), Counter[str](), 0, 0.0
    waiting: dict[str, deque[tuple[str, int]]] = {name: deque() for name in "abcd"}
    passed = Counter[tuple[str, str]]()  # How often one began since another one could have.

    def admit() -> None:
        for turn in fair.admit(now):
            name = turn[0]
            assert waiting[name].popleft() == turn
            running[name] += 1
            counted[name] += 1
            for other in "abcd":
                passed[other, name] = 0 if other == name else passed[other, name] + bool(waiting[other])
                passed[name, other] = 0
        for name in "abcd":
            could = waiting[name] and running[name] < concurrent and running.total() < in_all
            if could:  # By its rate alone it cannot: then it says when.
                assert fair.next_at > now
                assert fair.next_at <= now + 1 / rate_per_s + 1e-6
            if not waiting[name] or running[name] >= concurrent or rate_per_s < NO_RATE:
                for other in "abcd":
                    passed[name, other] = 0
        assert all(times <= 1 for times in passed.values())

    for name, what, passes_s in steps:
        now += passes_s
        match what:
            case "ask":
                number += 1
                refused = fair.ask(name, (name, number), now)
                assert (refused is not None) == (len(waiting[name]) == 5)
                if refused is None:
                    waiting[name].append((name, number))
            case "withdraw" if waiting[name]:
                fair.withdraw(name, waiting[name].pop())
            case "leave" | "unused" if running[name]:
                running[name] -= 1
                counted[name] -= what == "unused"
                fair.leave(name, unused=what == "unused")
            case _:
                pass
        admit()
        assert {name: fair.waiting(name) for name in "abcd"} == {name: len(those) for name, those in waiting.items()}
        assert fair.running == running.total() <= in_all
        assert max(running.values(), default=0) <= concurrent
        assert max(counted.values(), default=0) <= 2 + max(now, 1e-9) * rate_per_s + 1e-6
    while running.total() or fair.next_at < math.inf:  # Everybody who waits begins in the end.
        now = max(now, fair.next_at) if fair.next_at < math.inf else now
        for name in [name for name in "abcd" if running[name]]:
            running[name] -= 1
            fair.leave(name)
        admit()
    assert not any(waiting.values())
