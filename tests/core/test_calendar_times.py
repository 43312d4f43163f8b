"""When a calendar is due, beside a model that looks at each minute of the clock on the wall."""

from __future__ import annotations

import random
from collections.abc import Set
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta, tzinfo
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from repertory.core.timers import (
    MISSED_AFTER_S,
    MISSED_MAX,
    DueTimes,
    Missed,
    Timer,
    after_firing,
    new_timer,
    next_time,
    without_missed,
    zone_named,
)
from repertory.errors import Invalid, Unavailable

MINUTE = timedelta(minutes=1)
DECADES = {
    "Europe/Berlin": 2026,
    "America/New_York": 2026,
    "Australia/Lord_Howe": 2026,  # its clocks are put by half an hour
    "America/Sao_Paulo": 2012,  # put until 2019, at midnight
    "Pacific/Apia": 2008,  # had no 30 December 2011
    "Asia/Kolkata": 2026,
}
"""The first of ten years, by time zone."""
EXPRESSIONS = (
    "0 8 * * 1-5",
    "30 2 * * *",
    "0 0 * * *",
    "45 1 * * 0",
    "5,35 1-3 * * 7",
    "0 0 29 2 *",
    "0 12 1,15 * 5",
    "59 23 31 12 *",
    "15 2 */9 3,10,11 *",
    "20 */2 * * 0",
    "*/30 3 * * 0",
    "0-59/30 0-23 1 * *",
)


@dataclass(frozen=True)
class Expression:
    """A cron expression of numbers, read by the rules of cron's manual."""

    minutes: Set[int]
    hours: Set[int]
    days: Set[int]
    months: Set[int]
    weekdays: Set[int]
    needs_both: bool
    """True if day and weekday both have to match, since one of them is no restriction."""
    follows_clock: bool

    @classmethod
    def read(cls, text: str) -> Expression:
        minute, hour, day, month, weekday = text.split()
        return cls(
            values(minute, 0, 59),
            values(hour, 0, 23),
            values(day, 1, 31),
            values(month, 1, 12),
            {number % 7 for number in values(weekday, 0, 7)},
            "*" in (day[0], weekday[0]),
            "*" in (minute[0], hour[0]),
        )

    def means_day(self, clock: datetime) -> bool:
        days = clock.day in self.days, clock.isoweekday() % 7 in self.weekdays
        return clock.month in self.months and (all(days) if self.needs_both else any(days))

    def means(self, clock: datetime) -> bool:
        return clock.minute in self.minutes and clock.hour in self.hours and self.means_day(clock)


def values(field: str, first: int, last: int) -> set[int]:
    found = set[int]()
    for term in field.split(","):
        span, slash, step = term.partition("/")
        low, _, high = span.partition("-")
        begin, end = (first, last) if span == "*" else (int(low), int(high or (last if slash else low)))
        found.update(range(begin, end + 1, int(step or 1)))
    return found


def due_times(texts: Set[str], zone: tzinfo, begin: datetime, end: datetime) -> dict[str, list[float]]:
    """The times at which each expression is due, by the documented rules, from a look at every minute.

    The clock is read each quarter of an hour: no zone puts it within one.
    """
    read = {text: Expression.read(text) for text in texts}
    of_hour = {hour: [(text, one) for text, one in read.items() if hour in one.hours] for hour in range(24)}
    found: dict[str, list[float]] = {text: [] for text in texts}
    latest: datetime | None = None
    due_next = begin.astimezone(zone).replace(tzinfo=None)
    while begin < end:
        quarter = begin.astimezone(zone).replace(tzinfo=None)
        left_out = list[datetime]()
        while due_next < quarter:
            left_out.append(due_next)
            due_next += MINUTE
        for text, one in read.items() if left_out else of_hour[quarter.hour]:
            for number in range(15 if left_out or one.means_day(quarter) else 0):
                clock = quarter + number * MINUTE
                is_new = one.follows_clock or latest is None or clock > latest
                if (is_new and one.means(clock)) or (
                    number == 0 and not one.follows_clock and any(map(one.means, left_out))
                ):
                    found[text].append((begin + number * MINUTE).timestamp())
        due_next = quarter + 15 * MINUTE
        latest = due_next - MINUTE if latest is None else max(due_next - MINUTE, latest)
        begin += 15 * MINUTE
    return found


@pytest.mark.parametrize("name", DECADES)
def test_over_ten_years_each_time_follows_the_one_before(name: str, rng: random.Random) -> None:
    zone = ZoneInfo(name)
    begin = datetime(DECADES[name], 1, 1, tzinfo=UTC)
    found = due_times(set(EXPRESSIONS), zone, begin, begin.replace(year=begin.year + 10))
    for text, times in found.items():
        assert next_time(text, zone, begin.timestamp() - 1) == times[0]
        timer = Timer(id="t", at=times[0], prompt="hi", cron=text, tz=name)
        for due, later in pairwise(times):
            assert timer.at == due
            following = timer.following(rng.uniform(due, later - 0.001))
            assert following is not None
            timer = following
            assert timer.at == later, (text, datetime.fromtimestamp(due, zone), datetime.fromtimestamp(timer.at, zone))


numbers = {"minute": (0, 59), "hour": (0, 23), "day": (1, 31), "month": (1, 12), "weekday": (0, 7)}


@st.composite
def fields(draw: st.DrawFn, first: int, last: int) -> str:
    """A field of an expression."""

    def term() -> str:
        low = draw(st.integers(first, last))
        match draw(st.sampled_from(("*", "*/", "one", "one", "-", "-/", "/"))):
            case "*":
                return "*"
            case "*/":
                return f"*/{draw(st.integers(1, last))}"
            case "one":
                return str(low)
            case "-":
                return f"{low}-{draw(st.integers(low, last))}"
            case "-/":
                return f"{low}-{draw(st.integers(low, last))}/{draw(st.integers(1, last))}"
            case _:
                return f"{low}/{draw(st.integers(1, last))}"

    return ",".join(term() for _ in range(draw(st.integers(1, 3))))


CHANGES = [
    ("Europe/Berlin", datetime(2026, 3, 29, 1, tzinfo=UTC)),
    ("Europe/Berlin", datetime(2026, 10, 25, 1, tzinfo=UTC)),
    ("America/New_York", datetime(2027, 3, 14, 7, tzinfo=UTC)),
    ("America/New_York", datetime(2027, 11, 7, 6, tzinfo=UTC)),
    ("Australia/Lord_Howe", datetime(2026, 10, 3, 15, 30, tzinfo=UTC)),
    ("Australia/Lord_Howe", datetime(2026, 4, 4, 15, tzinfo=UTC)),
    ("America/Sao_Paulo", datetime(2018, 11, 4, 3, tzinfo=UTC)),
    ("America/Sao_Paulo", datetime(2019, 2, 17, 2, tzinfo=UTC)),
    ("Pacific/Apia", datetime(2011, 12, 30, 10, tzinfo=UTC)),
    ("Asia/Kolkata", datetime(2026, 2, 28, 18, 30, tzinfo=UTC)),
]


@given(
    st.builds(" ".join, st.tuples(*(fields(*span) for span in numbers.values()))),
    st.sampled_from(CHANGES),
    st.integers(-2 * 86_400, 86_400),
)
def test_the_next_time_near_a_change_of_the_clock_is_that_of_the_model(
    text: str, change: tuple[str, datetime], away_s: int
) -> None:
    name, changed = change
    zone, after = ZoneInfo(name), changed.timestamp() + away_s
    end = changed + timedelta(days=2)
    try:
        found = next_time(text, zone, after)
    except Invalid:
        assert not any(  # A day that no month of them has.
            Expression.read(text).means(datetime(2027 + year, 1, 1) + timedelta(days=day, minutes=minute))
            for year in range(2)
            for day in range(366)
            for minute in range(0, 1440, 97)
        )
        return
    model = due_times({text}, zone, changed - timedelta(days=3), end)[text]
    expected = next((due for due in model if due > after), None)
    if expected is None:
        assert found is None or found >= end.timestamp()
    else:
        assert found == expected


@given(st.text("0123456789*/,-#LWMONSUNJAN ?@", max_size=40), st.sampled_from(list(DECADES)))
def test_any_text_has_a_time_or_is_refused(text: str, name: str) -> None:
    zone = zone_named(name)
    assert zone is not None
    try:
        found = next_time(text, zone, 1_800_000_000.5)
    except Invalid:
        return
    assert found is None or (found > 1_800_000_000.5 and found % 60 == 0)


def at(name: str, text: str, fold: int = 0) -> float:
    """The epoch seconds of a time on the clock of a zone."""
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(name), fold=fold).timestamp()


def times(cron: str, name: str, begin: str, count: int) -> list[str]:
    """The due times after a time on the clock of the zone, with their offsets to UTC."""
    zone, found = ZoneInfo(name), list[str]()
    after = at(name, begin)
    for _ in range(count):
        due = next_time(cron, zone, after)
        assert due is not None
        after = due
        found.append(datetime.fromtimestamp(due, zone).strftime("%d %H:%M %z"))
    return found


@pytest.mark.parametrize(
    ("cron", "name", "begin", "expected"),
    [
        ("0 8 * * 1-5", "Europe/Berlin", "2026-03-27T08:00", ["30 08:00 +0200", "31 08:00 +0200"]),
        # A time that does not exist is due when the clock is put forward, once.
        ("30 2 * * *", "Europe/Berlin", "2026-03-28T02:30", ["29 03:00 +0200", "30 02:30 +0200"]),
        ("0,30 2,3 29 3 *", "Europe/Berlin", "2026-03-28T02:30", ["29 03:00 +0200", "29 03:30 +0200"]),
        ("15 2 * * *", "Australia/Lord_Howe", "2026-10-03T12:00", ["04 02:30 +1100", "05 02:15 +1100"]),
        ("0 8 * * *", "Pacific/Apia", "2011-12-29T08:00", ["31 00:00 +1400", "31 08:00 +1400"]),
        ("0 0 * * *", "America/Sao_Paulo", "2018-11-03T12:00", ["04 01:00 -0200", "05 00:00 -0200"]),
        # A time that exists twice is due at the first.
        ("30 2 * * *", "Europe/Berlin", "2026-10-24T12:00", ["25 02:30 +0200", "26 02:30 +0100"]),
        ("45 1 * * *", "Australia/Lord_Howe", "2026-04-04T12:00", ["05 01:45 +1100", "06 01:45 +1030"]),
        # What begins with a star follows the clock.
        (
            "*/30 * * * *",
            "Europe/Berlin",
            "2026-10-25T02:00",
            ["25 02:30 +0200", "25 02:00 +0100", "25 02:30 +0100", "25 03:00 +0100"],
        ),
        ("*/30 * * * *", "Europe/Berlin", "2026-03-29T01:00", ["29 01:30 +0100", "29 03:00 +0200"]),
        ("0 0 29 2 *", "Asia/Kolkata", "2096-02-29T12:00", ["29 00:00 +0530"]),  # in 2104: 2100 is no leap year
    ],
)
def test_clocks_that_are_put_and_leap_days_are_as_documented(
    cron: str, name: str, begin: str, expected: list[str]
) -> None:
    assert times(cron, name, begin, len(expected)) == expected


def test_a_time_that_exists_twice_is_not_due_between_its_first_and_its_second() -> None:
    zone = ZoneInfo("Europe/Berlin")
    between = at("Europe/Berlin", "2026-10-25T02:10", fold=1)
    assert next_time("30 2 * * *", zone, between) == at("Europe/Berlin", "2026-10-26T02:30")


@pytest.mark.parametrize(
    ("cron", "why"),
    [
        ("0 0 30 2 *", "comes true"),
        ("0 0 31 4,6 *", "comes true"),
        ("* * */20 * 1L", "within 50 years"),
        ("* * * * * *", "five fields"),
        ("@daily", "five fields"),
        ("", "five fields"),
        ("61 * * * *", "minute"),
        ("* * * * MON#6", "day-of-week"),
        ("1 1 1 1 1L/2", "day-of-week"),
        ("*/0 * * * *", "minute"),
        ("0 8 * * 1-5" + ",1" * 200, "five fields"),
    ],
)
def test_an_expression_that_is_none_or_never_comes_true_is_refused(cron: str, why: str) -> None:
    with pytest.raises(Invalid, match=why):
        DueTimes(every=cron).checked(0.0)


@pytest.mark.parametrize("tz", ["Mars/Base", "", "localtime", "../etc/passwd", "/etc/localtime", "America", "\0", 5])
def test_a_time_zone_that_is_none_is_refused(tz: object) -> None:
    with pytest.raises(Invalid, match="time zone"):
        DueTimes(every="0 8 * * *", tz=tz).checked(0.0)


def test_a_calendar_begins_now_or_at_a_time_and_is_the_same_elsewhere() -> None:
    berlin = ZoneInfo("Europe/Berlin")
    monday = datetime(2026, 11, 30, 8, tzinfo=berlin)
    weekdays = DueTimes(every=" 0 8  * * 1-5", tz=berlin, missed="all")
    checked = weekdays.checked(monday.timestamp())
    assert checked == DueTimes(at=monday.timestamp() + 86_400, every="0 8 * * 1-5", tz="Europe/Berlin", missed="all")
    assert checked.checked(monday.timestamp() + 1e6) == checked
    assert DueTimes(every="0 8 * * *", tz="Europe/Berlin", at=monday).checked(0.0).at == monday.timestamp()
    assert DueTimes(every="0 8 * * *", at=monday.timestamp() + 0.5).checked(0.0).at == monday.timestamp() + 3600
    assert DueTimes(every="0 8 * * *", in_s=86_400).checked(monday.timestamp()).at == monday.timestamp() + 90_000
    timer = new_timer("t", "hi", checked, now=0.0, prompt_bytes=1000)
    assert (timer.cron, timer.tz, timer.every_s, timer.missed) == ("0 8 * * 1-5", "Europe/Berlin", None, "all")
    assert timer.token == f"timer:t:{timer.at!r}"


DAILY = Timer(id="t", at=1_800_000_000.0, prompt="hi", cron="0 8 * * *", tz="UTC")
FORMS = [DAILY, Timer(id="t", at=1_800_000_000.0, prompt="hi", every_s=86_400.0)]


def fired(timer: Timer, now: float) -> list[float]:
    """The times that a process which begins at `now` makes turns for at once, in days after the first."""
    found, waiting = list[float](), without_missed({"t": timer}, now)
    while waiting["t"].at <= now:
        found.append((waiting["t"].at - timer.at) / 86_400)
        waiting = after_firing(waiting, waiting["t"], now)
    assert now < waiting["t"].at <= now + 86_400
    return found


@pytest.mark.parametrize("timer", FORMS, ids=["calendar", "period"])
@pytest.mark.parametrize(
    ("missed", "late_s", "expected"),
    [
        ("one", 10.0, [0.0]),
        ("one", 3.5 * 86_400, [0.0]),
        ("all", 3.5 * 86_400, [0.0, 1.0, 2.0, 3.0]),
        ("all", (MISSED_MAX - 0.5) * 86_400, [float(day) for day in range(MISSED_MAX)]),
        ("all", (MISSED_MAX + 0.5) * 86_400, [0.0]),
        ("none", MISSED_AFTER_S, [0.0]),
        ("none", MISSED_AFTER_S + 1, []),
        ("none", 3.5 * 86_400, []),
        ("none", 3 * 86_400 + 60.0, []),
    ],
)
def test_missed_times_have_one_turn_or_one_each_or_none(
    timer: Timer, missed: Missed, late_s: float, expected: list[float]
) -> None:
    assert fired(replace(timer, missed=missed), timer.at + late_s) == expected


def test_a_timer_whose_zone_this_machine_does_not_know_has_no_next_time() -> None:
    timer = Timer(id="t", at=5.0, prompt="hi", cron="0 8 * * *", tz="Mars/Base")
    with pytest.raises(Unavailable, match="tzdata"):
        timer.following(6.0)


def test_a_calendar_ends_before_its_times_cannot_be_written_down() -> None:
    assert next_time("0 0 1 1 *", ZoneInfo("Europe/Berlin"), 221_845_390_000.0) is None
