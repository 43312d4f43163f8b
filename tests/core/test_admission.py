"""The admission of calls: within all bounds, in rounds by tenant, and nothing is forgotten or left behind."""

from __future__ import annotations

import math
from collections import Counter, deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from repertory.core.admission import (
    NO_ROOM,
    SERVICE_CONCURRENCY,
    TENANT_CONCURRENCY,
    TENANT_RATE,
    TENANT_TURNS,
    Admission,
    Bounds,
    NotAdmitted,
    ServiceLimits,
    free_places,
    session_bounds,
    turn_bounds,
)
from repertory.errors import Invalid

NO_RATE = math.inf


def requests(**limits: float) -> Admission[int]:
    return Admission(turn_bounds(ServiceLimits(**limits), waiting=0))  # type: ignore[arg-type]


def turns(**limits: float) -> Admission[str]:
    return Admission(turn_bounds(ServiceLimits(**{"rate_per_s": NO_RATE, **limits})))  # type: ignore[arg-type]


def sessions(room: int, queue: int) -> Admission[str]:
    return Admission(session_bounds(room, queue))


def limit_of(answer: int | NotAdmitted) -> str:
    return answer.what if isinstance(answer, NotAdmitted) else "waits" if answer else ""


# Requests, of which none waits.


def test_a_tenant_makes_a_burst_and_then_as_many_requests_as_its_rate_allows() -> None:
    admission = requests(rate_per_s=2, burst=3)
    assert [admission.ask(number, "a", 10.0) for number in range(3)] == [0] * 3
    assert admission.ask(3, "a", 10.0) == NotAdmitted(TENANT_RATE, 0.5)
    assert admission.ask(4, "b", 10.0) == 0
    assert admission.ask(5, "a", 10.25) == NotAdmitted(TENANT_RATE, 0.25)
    assert admission.ask(6, "a", 10.5) == 0


def test_a_tenant_has_only_so_many_requests_at_the_same_time() -> None:
    admission = requests(concurrent=2)
    assert [limit_of(admission.ask(number, "a", 0.0)) for number in range(3)] == ["", "", TENANT_CONCURRENCY]
    assert admission.ask(3, "b", 0.0) == 0
    admission.leave("a")
    assert admission.ask(4, "a", 0.0) == 0


def test_all_tenants_together_have_only_so_many_requests_at_the_same_time() -> None:
    admission = requests(concurrent_in_all=2)
    assert [limit_of(admission.ask(0, name, 0.0)) for name in "abc"] == ["", "", SERVICE_CONCURRENCY]


def test_who_is_refused_comes_again_when_about_those_before_have_ended() -> None:
    admission = requests(concurrent=2)
    for _ in range(200):
        assert admission.ask(0, "a", 0.0) == 0
        admission.leave("a", lasted_s=10.0, unused=False)
        admission.bounds = turn_bounds(ServiceLimits(concurrent=2, rate_per_s=NO_RATE), waiting=0)
    admission.ask(0, "a", 0.0)
    admission.ask(1, "a", 0.0)
    refused = admission.ask(2, "a", 0.0)
    assert isinstance(refused, NotAdmitted)
    assert refused.retry_after_s == pytest.approx(5.0, rel=0.01)


def test_a_clock_that_goes_back_gives_nobody_more() -> None:
    admission = requests(rate_per_s=1, burst=1)
    assert admission.ask(0, "a", 10.0) == 0
    assert admission.ask(1, "a", 5.0) == NotAdmitted(TENANT_RATE, 1.0)
    assert admission.ask(2, "a", 10.5) == NotAdmitted(TENANT_RATE, 0.5)


def test_an_infinite_rate_is_no_bound() -> None:
    admission = requests(rate_per_s=math.inf, burst=1, concurrent=10**6, concurrent_in_all=10**6)
    assert all(admission.ask(0, "a", now) == 0 for now in (0.0, 0.0, 0.001, 1.0))


@pytest.mark.parametrize(
    "wrong",
    [{"burst": 0}, {"concurrent": 1.5}, {"body_bytes": True}, {"rate_per_s": 0}, {"rate_per_s": math.nan}],
    ids=str,
)
def test_a_bound_that_is_none_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(Invalid, match=next(iter(wrong))):
        ServiceLimits(**wrong)  # type: ignore[arg-type]


# Turns, which wait.


def test_tenants_take_turns_whoever_asked_first() -> None:
    fair = turns(concurrent_in_all=1)
    begun = ["busy 0"]
    assert [fair.ask(f"busy {number}", "busy", 0.0) for number in range(5)] == [0, 1, 2, 3, 4]
    assert fair.ask("quiet", "quiet", 0.0) == 1
    while fair.running:
        fair.leave(begun[-1].partition(" ")[0])
        begun += fair.admit(0.0)
    assert begun == ["busy 0", "busy 1", "quiet", "busy 2", "busy 3", "busy 4"]


def test_a_tenant_has_a_burst_and_then_its_rate() -> None:
    fair = turns(rate_per_s=0.5, burst=2)
    assert [fair.ask(str(number), "a", 0.0) for number in range(4)] == [0, 0, 1, 2]
    assert fair.next_at == 2.0
    assert fair.admit(1.9) == []
    assert fair.admit(2.0) == ["2"]
    assert fair.admit(4.0) == ["3"]
    assert fair.next_at == math.inf


def test_a_turn_that_did_nothing_counts_for_no_rate() -> None:
    fair = turns(rate_per_s=0.001, burst=1)
    assert fair.ask("one", "a", 0.0) == 0
    assert fair.ask("two", "a", 0.0) == 1
    fair.leave("a", unused=True)
    assert fair.admit(0.0) == ["two"]


def test_one_more_than_may_wait_is_refused_and_a_tenant_that_has_withdrawn_keeps_nobody_waiting() -> None:
    fair = turns(concurrent=1, waiting=2)
    fair.ask("runs", "a", 0.0)
    assert [limit_of(fair.ask(str(number), "a", 0.0)) for number in range(3)] == ["waits", "waits", TENANT_TURNS]
    for number in range(2):
        fair.withdraw(str(number), "a")
    assert fair.waiting_of("a") == fair.waiting_of("nobody") == fair.waiting == 0
    fair.leave("a")
    assert fair.admit(0.0) == []
    assert fair.ask("b", "b", 0.0) == 0


@pytest.mark.parametrize("stays", [False, True])
def test_no_more_tenants_are_remembered_than_there_may_be(stays: bool) -> None:
    fair = turns(tenants_remembered=10, rate_per_s=1.0)
    for number in range(100):
        assert fair.ask("turn", str(number), 0.0) == 0
        if number or not stays:
            fair.leave(str(number))
    assert len(fair._tenants) == 10
    assert fair.running == stays


# Calls that share the places of their sessions.


def test_calls_of_one_session_have_one_place_together_also_before_those_that_wait() -> None:
    admission = sessions(1, 9)
    assert admission.ask("first", "", 0.0, session="s") == 0
    assert admission.ask("other", "", 0.0, session="t") == 1
    assert admission.ask("second", "", 0.0, session="s") == 0
    assert admission.running == 1
    admission.leave("", session="s")
    assert admission.admit(0.0) == []
    admission.leave("", session="s")
    assert admission.admit(0.0) == ["other"]


def test_a_tenant_with_less_than_its_share_waits_where_others_are_refused() -> None:
    admission = sessions(1, 3)
    for number in range(4):
        admission.ask(f"busy {number}", "busy", 0.0, session=f"busy~{number}")
    assert limit_of(admission.ask("one more", "busy", 0.0, session="busy~4")) == NO_ROOM
    assert admission.ask("quiet", "quiet", 0.0, session="quiet~1") == 1


def test_what_waits_for_the_limits_of_its_tenant_takes_no_place_within_a_bound() -> None:
    assert free_places(2, 2, 0, 4) == 0
    assert free_places(2, 2, 1, 4) == 1
    assert free_places(2, 9, 8, 4) == -3


@given(st.integers(1, 100), st.integers(0, 200), st.integers(0, 200), st.integers(0, 100))
def test_no_more_is_given_than_there_is_room_for(room: int, taken: int, held: int, held_max: int) -> None:
    free = free_places(room, taken, held, held_max)
    assert taken + free <= room + held_max
    assert free == room - taken or held


# Everything at once.

BOUNDS = st.builds(
    Bounds,
    at_once=st.integers(1, 4),
    at_once_each=st.integers(1, 3) | st.just(math.inf),
    rate_per_s=st.sampled_from([0.5, 2.0, NO_RATE]),
    burst=st.just(2),
    waiting_each=st.sampled_from([0, 5, math.inf]),
    calls=st.integers(4, 9) | st.just(math.inf),
    by_session=st.booleans(),
)
STEPS = st.lists(
    st.tuples(
        st.sampled_from("abcd"),
        st.sampled_from(["ask", "ask", "ask", "inner", "leave", "withdraw", "unused"]),
        st.sampled_from("xyz"),
        st.floats(0, 3),
    ),
    max_size=80,
)
Call = tuple[str, int, str, bool]
"""The call's tenant, number and session, and whether a running call waits for it."""


class Entrance:
    """An entrance, with a count of its own of everybody."""

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self.admission: Admission[Call] = Admission(bounds)
        self.running: list[Call] = []
        self.waiting: dict[str, deque[Call]] = {name: deque() for name in "abcd"}
        self.counted = Counter[str]()
        """Calls that count for the rate of their tenant."""
        self.sums = Counter[str]()
        """The number of calls that asked, and of those that were refused, withdrew or left."""
        self.passed = Counter[tuple[str, str]]()
        """How often one tenant began since another one could have."""
        self.now = 0.0
        self.beyond: set[str | None] = set()
        """Sessions whose first call began at once."""

    def session(self, call: Call) -> str | None:
        return f"{call[0]}~{call[2]}" if self.bounds.by_session else None

    def taken(self) -> int:
        """The places that are taken."""
        if self.bounds.by_session:
            return len({self.session(call) for call in self.running})
        return sum(not call[3] for call in self.running)

    def ask(self, tenant: str, session: str, inner: bool) -> None:
        call = (tenant, self.sums["asked"], session, inner)
        self.sums["asked"] += 1
        answer = self.admission.ask(call, tenant, self.now, session=self.session(call), inner=inner)
        if isinstance(answer, NotAdmitted):
            assert not inner
            assert answer.retry_after_s > 0
            self.sums["refused"] += 1
        elif answer:
            self.waiting[tenant].append(call)
            assert answer == len(self.waiting[tenant]) <= self.bounds.waiting_each
        else:
            self.begin(call)

    def begin(self, call: Call) -> None:
        if call[3] and self.session(call) not in map(self.session, self.running):
            self.beyond.add(self.session(call))
        self.running.append(call)
        self.counted[call[0]] += not call[3]

    def admit(self) -> None:
        for call in self.admission.admit(self.now):
            assert self.waiting[call[0]].popleft() == call
            self.begin(call)
            for other in "abcd":
                self.passed[other, call[0]] += bool(self.waiting[other])
                self.passed[call[0], other] = 0

    def leave(self, tenant: str, unused: bool) -> None:
        call = next((call for call in self.running if call[0] == tenant), None)
        if call is not None:
            self.running.remove(call)
            self.beyond &= {self.session(each) for each in self.running}
            self.counted[tenant] -= unused and not call[3]
            self.sums["left"] += 1
            self.admission.leave(tenant, session=self.session(call), inner=call[3], unused=unused)

    def withdraw(self, tenant: str) -> None:
        if self.waiting[tenant]:
            self.sums["withdrew"] += 1
            self.admission.withdraw(self.waiting[tenant].pop(), tenant)

    def check(self) -> None:
        bounds, admission, running = self.bounds, self.admission, Counter(call[0] for call in self.running)
        waiting = {name: len(those) for name, those in self.waiting.items()}
        assert {name: admission.waiting_of(name) for name in "abcd"} == waiting
        assert admission.waiting == sum(waiting.values())
        assert admission.running == self.taken()
        assert admission.calls == len(self.running) + admission.waiting
        sums = self.sums
        assert sums["asked"] == sums["refused"] + sums["withdrew"] + sums["left"] + admission.calls
        if self.beyond or any(call[3] for call in self.running):
            return  # What begins at once may be beyond the bounds.
        assert self.taken() <= bounds.at_once
        assert max(running.values(), default=0) <= bounds.at_once_each
        for name in "abcd":
            could = waiting[name] and running[name] < bounds.at_once_each and self.taken() < bounds.at_once
            assert not could or self.now < admission.next_at < math.inf  # Its rate alone holds it: it says when.
            if not could or bounds.rate_per_s < NO_RATE:
                for other in "abcd":
                    self.passed[name, other] = 0
        assert all(times <= 1 for times in self.passed.values())


@given(BOUNDS, STEPS)
def test_whatever_comes_bounds_hold_tenants_take_turns_and_nothing_is_left_behind(
    bounds: Bounds, steps: list[tuple[str, str, str, float]]
) -> None:
    entrance = Entrance(bounds)
    for tenant, what, session, passes_s in steps:
        entrance.now += passes_s
        match what:
            case "ask" | "inner":
                entrance.ask(tenant, session, what == "inner")
            case "withdraw":
                entrance.withdraw(tenant)
            case _:
                entrance.leave(tenant, what == "unused")
        entrance.admit()
        entrance.check()
        if bounds.rate_per_s < NO_RATE:
            most = bounds.burst + max(entrance.now, 1e-9) * bounds.rate_per_s + 1e-6
            assert max(entrance.counted.values(), default=0) <= most
    while entrance.running or entrance.admission.next_at < math.inf:  # Everybody who waits begins in the end.
        if entrance.admission.next_at < math.inf:
            entrance.now = max(entrance.now, entrance.admission.next_at)
        for name in "abcd":
            entrance.leave(name, False)
        entrance.admit()
        entrance.check()
    assert not any(entrance.waiting.values())
    assert entrance.admission.calls == entrance.admission.running == 0
    assert bounds.rate_per_s < NO_RATE or not entrance.admission._tenants
