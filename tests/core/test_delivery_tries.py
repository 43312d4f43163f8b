"""When a delivery is tried, and when no more; and the ids under which destinations are told."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from repertory.core.deliveries import (
    OUTBOX_MAX,
    PUT_OFF_S,
    RETRY_AFTER_MAX_S,
    EventDelivery,
    Happened,
    RetryPlan,
    TryFailed,
    after_failure,
    check_names,
    first_of_lanes,
    iso_time,
    new_delivery,
    next_delivery_at,
    next_try_at,
    put_off,
    room_for,
    sent_again,
)
from repertory.errors import Invalid


def made(to: str = "crm", number: int = 1, at: float = 100.0, **changes: object) -> EventDelivery:
    return replace(
        new_delivery(("s", "clerk"), Happened(event="answer", at=at, number=number, seq=number), to), **changes
    )


def outbox(*deliveries: EventDelivery) -> dict[str, EventDelivery]:
    return {one.id: one for one in deliveries}


chances = st.floats(min_value=0, max_value=1)
plans = st.builds(
    RetryPlan,
    retry_s=st.lists(st.floats(min_value=0.1, max_value=1e5), min_size=1, max_size=5).map(tuple),
    give_up_s=st.floats(min_value=1, max_value=1e6),
)
failures = st.builds(
    TryFailed,
    error=st.text(max_size=2000),
    final=st.booleans(),
    retry_after_s=st.none() | st.floats(min_value=0, max_value=1e9),
)


@given(plans, st.lists(st.tuples(failures, chances, st.floats(min_value=0, max_value=1e5)), max_size=30))
def test_a_delivery_is_tried_later_and_later_until_its_time_is_over(
    plan: RetryPlan, tries: list[tuple[TryFailed, float, float]]
) -> None:
    delivery, now = made(), 100.0
    for number, (failed, chance, late_s) in enumerate(tries, 1):
        now = max(now, delivery.next_at) + late_s
        after = after_failure(delivery, failed, plan, now, chance)
        assert (after.id, after.tries, after.to, after.seq) == (delivery.id, number, delivery.to, delivery.seq)
        assert after.dead == (failed.final or now - delivery.since >= plan.give_up_s)
        if after.dead:
            (again,) = sent_again(outbox(after), None, now)
            assert (again.id, again.tries, again.dead, again.next_at, again.since) == (after.id, 0, False, now, now)
            return
        least = plan.retry_s[min(number, len(plan.retry_s)) - 1]
        asked = min(failed.retry_after_s or 0.0, RETRY_AFTER_MAX_S)
        assert now + max(0.8 * least, asked) <= after.next_at * (1 + 1e-12)
        assert after.next_at <= now + max(1.2 * least, asked) + 1e-3
        delivery = after


@given(plans, failures, chances, st.floats(min_value=0, max_value=1e9), st.integers(0, 20))
def test_a_delivery_waits_for_no_clock_that_was_ahead(
    plan: RetryPlan, failed: TryFailed, chance: float, ahead_s: float, tries: int
) -> None:
    now = 1_000.0
    new, late = made(at=now + ahead_s), made(at=now, tries=tries)
    failed_then = after_failure(late, failed, replace(plan, give_up_s=1e12), now + ahead_s, chance)
    for waiting in (new, put_off(new, now + ahead_s, chance), failed_then):
        longest_s = max(*plan.retry_s, RETRY_AFTER_MAX_S) * 1.2 if waiting.tries else 2 * PUT_OFF_S
        due = next_try_at(waiting, plan, now)
        assert due == waiting.next_at or (due == now and waiting.next_at > now + PUT_OFF_S)
        assert due <= now + longest_s + 1e-3
        # By a clock that was right, it waits as long as it was to.
        assert next_try_at(waiting, plan, now + ahead_s) == waiting.next_at


@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans(), st.floats(min_value=0, max_value=1e9))))
def test_only_the_first_of_a_lane_that_is_alive_is_tried(entries: list[tuple[str, bool, float]]) -> None:
    found = [made(to, number, dead=dead, next_at=next_at) for number, (to, dead, next_at) in enumerate(entries, 1)]
    model: dict[str, EventDelivery] = {}
    for one in reversed(found):
        if not one.dead:
            model[one.to] = one
    assert first_of_lanes(outbox(*found)) == model
    assert next_delivery_at(outbox(*found)) == min((one.next_at for one in model.values()), default=None)


@given(st.integers(0, OUTBOX_MAX), st.integers(0, 20), st.integers(1, 40))
def test_dead_letters_make_room_the_oldest_first_and_nothing_that_waits_does(full: int, dead: int, new: int) -> None:
    waiting = max(full - dead, 0)
    box = outbox(*(made(number=number, dead=number >= waiting) for number in range(1, full + 1)))
    gone, lacking = room_for(box, new)
    assert len(box) - len(gone) + new - lacking <= OUTBOX_MAX
    assert all(box[each].dead for each in gone)
    assert [*gone] == [each for each in box if box[each].dead][: len(gone)]
    assert lacking == max(len(box) - len(gone) + new - OUTBOX_MAX, 0)
    assert not lacking or len(gone) == sum(each.dead for each in box.values())


def test_an_event_has_an_id_of_its_own_for_each_destination_record_and_session() -> None:
    sources = [("s", "clerk"), ("t", "clerk"), ("s", "other"), ("s\ud800", "clerk")]
    ids = [
        new_delivery(source, Happened(event=event, at=at, number=number, seq=number), to).id
        for source in sources
        for event in ("answer", "question")
        for to in ("crm", "ops")
        for number in (1, 2)
        for at in (100.0, 200.0)
    ]
    assert len({*ids}) == len(ids) == 64
    assert made().id == made().id


@pytest.mark.parametrize("names", [5, [], [""], ["x"] * 9, ["x", 5], "x" * 3000], ids=lambda names: str(names)[:20])
def test_what_names_no_destinations_is_refused(names: object) -> None:
    with pytest.raises(Invalid):
        check_names(names)


def test_a_call_names_each_destination_once() -> None:
    assert (check_names(None), check_names("crm"), check_names(["b", "a", "b"])) == ((), ("crm",), ("b", "a"))


def test_times_are_written_as_the_standard_wants_them() -> None:
    assert iso_time(1_796_000_000.25) == "2026-11-30T00:53:20.250000Z"
