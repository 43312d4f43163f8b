"""When timers are due, and what may be set."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from repertory.core.interrupts import Interrupt
from repertory.core.journal.fold import Fold
from repertory.core.journal.records import Interrupted, MessageAdded, TimersChanged
from repertory.core.pending_work import DueTime
from repertory.core.timers import (
    EVERY_S_MAX,
    EVERY_S_MIN,
    TIMERS_BYTES_MAX,
    TIMERS_MAX,
    DueTimes,
    Timer,
    TimerBook,
    ToolTimers,
    after_firing,
    next_timer,
)
from repertory.core.turns.due_times import DueTimeTracker, due_of
from repertory.errors import Invalid, TooLarge

NOW = 1_800_000_000.0
seconds = st.floats(min_value=0, max_value=1e9)
periods = st.floats(min_value=EVERY_S_MIN, max_value=EVERY_S_MAX)


def book() -> TimerBook:
    return TimerBook(lambda: NOW, 10_000)


@given(seconds, periods, st.floats(min_value=0, max_value=1e9))
def test_the_next_time_is_the_first_regular_one_after_now(at: float, every_s: float, late_s: float) -> None:
    timer = Timer(id="t", at=NOW + at, prompt="hi", every_s=every_s)
    now = timer.at + late_s
    following = timer.following(now)
    assert following is not None
    assert now < following.at <= now + every_s * 1.0001
    periods_passed = (following.at - timer.at) / every_s
    assert math.isclose(periods_passed, round(periods_passed), rel_tol=1e-6)
    assert (following.id, following.prompt, following.every_s) == ("t", "hi", every_s)


@given(st.integers(1, 1000), st.integers(1, 100), st.lists(st.floats(0, 0.9), min_size=1, max_size=50))
def test_a_recurring_timer_does_not_drift(every_s: int, start: int, late: list[float]) -> None:
    timer = Timer(id="t", at=NOW + start, prompt="hi", every_s=float(every_s))
    for number, share in enumerate(late, 1):
        following = timer.following(timer.at + share * every_s)
        assert following is not None
        timer = following
        assert timer.at == NOW + start + number * every_s


def test_a_timer_that_is_due_once_is_over_when_it_has_fired() -> None:
    once, often = Timer(id="a", at=5.0, prompt="hi"), Timer(id="b", at=5.0, prompt="hi", every_s=10.0)
    timers = {"a": once, "b": often}
    assert after_firing(timers, once, 6.0) == {"b": often}
    assert [timer.at for timer in after_firing(timers, often, 26.0).values()] == [5.0, 35.0]
    assert next_timer(timers) == once
    assert next_timer({}) is None
    assert (once.token, often.token) == ("timer:a:5.0", "timer:b:5.0")


@pytest.mark.parametrize(
    ("due", "expected"),
    [
        (DueTimes(at=NOW + 5), (NOW + 5, None)),
        (DueTimes(at=1_800_000_005), (NOW + 5, None)),
        (DueTimes(at=datetime.fromtimestamp(NOW + 5, UTC)), (NOW + 5, None)),
        (DueTimes(at=datetime.fromtimestamp(NOW, timezone(timedelta(hours=5)))), (NOW, None)),
        (DueTimes(in_s=5), (NOW + 5, None)),
        (DueTimes(in_s=timedelta(minutes=1)), (NOW + 60, None)),
        (DueTimes(every=60), (NOW + 60, 60.0)),
        (DueTimes(in_s=0, every=timedelta(days=1)), (NOW, 86400.0)),
        (DueTimes(at=5.0, every=1.0), (5.0, 1.0)),
    ],
)
def test_a_time_is_read_in_each_of_its_forms(due: DueTimes, expected: tuple[float, float | None]) -> None:
    checked = due.checked(NOW)
    assert (checked.at, checked.every) == expected
    assert checked.checked(NOW + 1000) == checked


@pytest.mark.parametrize(
    "due",
    [
        *(DueTimes(at=wrong) for wrong in (-1, math.inf, math.nan, True, "5", [], timedelta(seconds=5), 1e12)),
        DueTimes(at=datetime(2027, 1, 1)),
        *(DueTimes(in_s=wrong) for wrong in (-1, math.inf, math.nan, False, "5", 1e300, 10**400)),
        *(DueTimes(every=wrong) for wrong in (0, 0.5, -5, 2e9, math.inf, math.nan, True, "daily")),
        DueTimes(),
        DueTimes(at=1.0, in_s=1.0),
        *(DueTimes(every=60, missed=wrong) for wrong in ("two", None, True, [])),
        DueTimes(in_s=1, missed="none"),
        *(DueTimes(every=every, tz="Europe/Berlin", in_s=1) for every in (60, None)),
    ],
)
def test_what_is_no_time_is_refused(due: DueTimes) -> None:
    with pytest.raises(Invalid):
        due.checked(NOW)


def test_a_book_has_its_changes_until_they_are_taken() -> None:
    timers = book()
    assert timers.take() is None
    timers.set("a", "one", DueTimes(in_s=1))
    timers.set("a", "two", DueTimes(in_s=2))
    timers.set("b", "three", DueTimes(in_s=3))
    assert timers.cancel("b")
    assert not timers.cancel("b")
    taken = timers.take()
    assert taken is not None
    assert taken == {"a": Timer(id="a", at=NOW + 2, prompt="two")}
    timers.note_recorded(taken)
    assert timers.take() is None
    assert timers.cancel("a")
    assert timers.take() == {}


def test_a_book_is_full_at_its_bound_and_takes_replacements_then() -> None:
    timers = book()
    timers.note_recorded({f"t{n}": Timer(id=f"t{n}", at=NOW, prompt="hi") for n in range(TIMERS_MAX - 1)})
    timers.set("last", "hi", DueTimes(in_s=1))
    with pytest.raises(Invalid, match=str(TIMERS_MAX)):
        timers.set("too many", "hi", DueTimes(in_s=1))
    timers.set("t5", "another", DueTimes(in_s=1))
    assert timers.cancel("t6")
    timers.set("too many", "hi", DueTimes(in_s=1))
    taken = timers.take()
    assert taken is not None
    assert len(taken) == TIMERS_MAX


def test_the_texts_of_all_timers_of_a_book_have_a_bound_together() -> None:
    timers, text = book(), "é" * 4096  # In bytes twice as many.
    count = TIMERS_BYTES_MAX // (2 * 4096 + 2)
    for number in range(count):
        timers.set(f"{number:02}", text, DueTimes(in_s=1))
    with pytest.raises(TooLarge, match="all timers"):
        timers.set("xx", text, DueTimes(in_s=1))
    timers.set("00", text, DueTimes(in_s=2))
    assert timers.cancel("01")
    timers.set("xx", text, DueTimes(in_s=1))
    taken = timers.take()
    assert taken is not None
    assert len(taken) == count


def test_each_attempt_at_a_tool_use_sets_the_same_timers() -> None:
    found: list[list[str]] = []
    for attempts in ((1,), (1, 2)):  # In another process; and again in the same one.
        timers = ToolTimers(book(), "key", (), lambda names: None)
        for attempt in attempts:
            found.append([timers.set(None, text, DueTimes(in_s=1), attempt=attempt) for text in ("a", "b")])
    assert len({tuple(ids) for ids in found}) == 1
    assert len(set(found[0])) == 2
    other = ToolTimers(book(), "another key", (), lambda names: None).set(None, "a", DueTimes(in_s=1), attempt=1)
    assert other not in found[0]


def folded(*records: Any) -> Fold:
    fold = Fold()
    for record in records:
        fold.apply(fold.last_seq + 1, record)
    return fold


def said(role: Any, index: int) -> MessageAdded:
    return MessageAdded(at=1.0, message={"role": role, "content": [{"text": "hi"}]}, turn=1, index=index)


TIMERS = TimersChanged(at=1.0, timers=(Timer(id="b", at=90.0, prompt="hi"), Timer(id="a", at=50.0, prompt="hi")))
ASKED = Interrupted(at=1.0, interrupts=(Interrupt(id="i", name="ask", expires_at=70.0),))
FOR_EVER = Interrupted(at=1.0, interrupts=(Interrupt(id="i", name="ask"),))


@pytest.mark.parametrize(
    ("fold", "times", "expected"),
    [
        (folded(TIMERS), {}, (50.0, "timer")),
        (folded(TIMERS), {"timers_from": 60.0}, (60.0, "timer")),
        (folded(TIMERS), {"memory_at": 10.0}, (12.0, "memory")),
        (folded(TIMERS), {"memory_at": 60.0}, (50.0, "timer")),
        (folded(said("user", 0), TIMERS), {"turn_at": 60.0}, (62.0, "turn")),
        (folded(said("user", 0)), {"turn_at": 60.0, "memory_at": 10.0}, (12.0, "turn")),
        (folded(said("user", 0), TIMERS), {}, (50.0, "timer")),
        (folded(said("user", 0), said("assistant", 1), TIMERS), {"turn_at": 10.0}, (50.0, "timer")),
        (folded(said("user", 0), ASKED, TIMERS), {}, (70.0, "expiry")),
        (folded(said("user", 0), FOR_EVER, TIMERS), {}, (None, "turn")),
    ],
)
def test_a_timer_is_owed_after_the_turn_that_is_and_not_while_a_person_is_asked(
    fold: Fold, times: dict[str, float], expected: tuple[float | None, str]
) -> None:
    given: dict[str, Any] = {"turn_at": None, "memory_at": None, **times}
    due = due_of("agent", fold, **given)
    assert (due.at, due.why) == expected


def test_a_timer_is_stated_again_when_its_turn_may_succeed_later() -> None:
    pending_work, fold = DueTimeTracker(lambda: False), folded(TIMERS)
    pending_work.begin(fold, 0.0)
    assert pending_work.changed("agent", fold, 0.0) == DueTime(agent_id="agent", at=50.0, why="timer")
    pending_work.call_began(51.0)
    assert pending_work.changed("agent", fold, 51.0) is None
    pending_work.try_again_at(81.0)
    assert pending_work.changed("agent", fold, 51.0) == DueTime(agent_id="agent", at=81.0, why="timer")
    pending_work.call_began(81.0)
    pending_work.call_ended()
    assert pending_work.changed("agent", fold, 82.0) == DueTime(agent_id="agent", at=50.0, why="timer")
