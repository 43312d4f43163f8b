"""Which requests are taken: by rate, by tenant and in all."""

from __future__ import annotations

import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from repertory.core.admission import Admission, NotAdmitted, ServiceLimits
from repertory.errors import Invalid


def test_a_tenant_makes_a_burst_and_then_as_many_requests_as_its_rate_allows() -> None:
    admission = Admission(ServiceLimits(rate_per_s=2, burst=3))
    assert [admission.enter("a", 10.0) for _ in range(3)] == [None] * 3
    assert admission.enter("a", 10.0) == NotAdmitted("tenant rate", 0.5)
    assert admission.enter("b", 10.0) is None
    assert admission.enter("a", 10.25) == NotAdmitted("tenant rate", 0.25)
    assert admission.enter("a", 10.5) is None


def test_a_tenant_has_only_so_many_requests_at_the_same_time() -> None:
    admission = Admission(ServiceLimits(concurrent=2))
    assert [admission.enter("a", 0.0) for _ in range(3)] == [None, None, NotAdmitted("tenant concurrency", 1.0)]
    assert admission.enter("b", 0.0) is None
    admission.leave("a")
    assert admission.enter("a", 0.0) is None


def test_all_tenants_together_have_only_so_many_requests_at_the_same_time() -> None:
    admission = Admission(ServiceLimits(concurrent_in_all=2))
    assert [admission.enter(name, 0.0) for name in "abc"] == [None, None, NotAdmitted("service concurrency", 1.0)]


def test_no_more_tenants_are_remembered_than_there_may_be() -> None:
    admission = Admission(ServiceLimits(tenants_remembered=10, concurrent_in_all=5))
    assert admission.enter("stays", 0.0) is None
    for number in range(100):
        assert admission.enter(str(number), float(number)) is None
        admission.leave(str(number))
    assert admission.tenants == 10
    admission.leave("stays")
    assert admission.in_progress == 0


STEPS = st.lists(st.tuples(st.sampled_from("abc"), st.booleans(), st.floats(0, 5)), max_size=60)


@given(STEPS)
def test_whatever_comes_no_bound_is_exceeded_and_a_refusal_says_when_to_come_again(
    steps: list[tuple[str, bool, float]],
) -> None:
    limits = ServiceLimits(concurrent=3, concurrent_in_all=5, rate_per_s=1.5, burst=4)
    admission, inside, taken, now = Admission(limits), Counter[str](), Counter[str](), 0.0
    for name, comes, passes_s in steps:
        now += passes_s
        if not comes:
            if inside[name]:
                inside[name] -= 1
                admission.leave(name)
            continue
        refusal = admission.enter(name, now)
        if refusal is None:
            inside[name] += 1
            taken[name] += 1
        elif refusal.what == "tenant rate":
            assert 0 < refusal.retry_after_s <= 1 / limits.rate_per_s
        else:
            assert inside[name] == limits.concurrent or inside.total() == limits.concurrent_in_all
        assert inside.total() == admission.in_progress <= limits.concurrent_in_all
        assert max(inside.values(), default=0) <= limits.concurrent
        assert taken[name] <= limits.burst + now * limits.rate_per_s + 1e-6


def test_a_clock_that_goes_back_gives_nobody_more() -> None:
    admission = Admission(ServiceLimits(rate_per_s=1, burst=1))
    assert admission.enter("a", 10.0) is None
    assert admission.enter("a", 5.0) == NotAdmitted("tenant rate", 1.0)
    assert admission.enter("a", 10.5) == NotAdmitted("tenant rate", 0.5)


def test_an_infinite_rate_is_no_bound() -> None:
    admission = Admission(ServiceLimits(rate_per_s=math.inf, burst=1, concurrent=10**6, concurrent_in_all=10**6))
    assert all(admission.enter("a", now) is None for now in (0.0, 0.0, 0.001, 1.0))


@pytest.mark.parametrize(
    "wrong",
    [{"burst": 0}, {"concurrent": 1.5}, {"body_bytes": True}, {"rate_per_s": 0}, {"rate_per_s": math.nan}],
    ids=str,
)
def test_a_bound_that_is_none_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(Invalid, match=next(iter(wrong))):
        ServiceLimits(**wrong)  # type: ignore[arg-type]
