"""Timers: turns that a session begins by itself, at a time, with a prompt.

A timer stands in the journal until it is due. The commit that stores its prompt as a message also takes it out, or
moves it to its next time, so that a crash in between neither loses nor repeats it.
`docs/guides/sessions/pending-work.md` says who fires.

A calendar is a cron expression and a time zone. `next_time` computes its times from those two alone, so any process can
go on with it. The library `cronsim` says which minutes of a local clock an expression means. What happens where that
clock is put forward or back stands here, since the library loses times where it is put by half an hour.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, tzinfo
from functools import lru_cache
from hashlib import blake2s
from math import ceil, floor
from typing import Literal, TypeAlias, TypedDict, cast, get_args

from msgspec import Struct

from repertory.core.ids import check_id
from repertory.core.limits import check_size
from repertory.errors import Invalid, TooLarge, Unavailable

Missed: TypeAlias = Literal["one", "all", "none"]
"""The turns for times that were missed: one for all of them, one each, or none."""


class CalendarOptions(TypedDict, total=False):
    """The times of a timer that is due again and again."""

    every: timedelta | float | str | None
    """A period of seconds, or a cron expression such as `0 8 * * 1-5`; from now on, or from the first due time."""
    tz: str | None
    """The time zone of a cron expression, such as `Europe/Berlin`; None: UTC."""
    missed: Missed
    """The turns for times that were missed: one for all of them, `all` (one each, up to 100) or `none`."""


class TimerOptions(CalendarOptions, total=False):
    """The due times of a timer."""

    at: datetime | float | None
    """An aware datetime or epoch seconds; or `in_s`, seconds from now."""
    in_s: float | None


TIMERS_MAX = 1000
"""The number of timers that a session may have."""
TIMERS_BYTES_MAX = 128 * 1024
"""The bytes of all their prompts and ids together: each change of one writes all of them."""
EVERY_S_MIN, EVERY_S_MAX = 1.0, 1e9
CRON_CHARS_MAX = 200
MISSED_MAX = 100
"""The number of missed times that have a turn each under `missed="all"`; if there are more, one turn is for all."""
MISSED_AFTER_S = 300.0
"""The seconds after which a time counts as missed for `missed="none"`: time enough to start a process again."""
_AT_MAX = 221_845_392_000.0
"""The latest due time, in epoch seconds: the year 9000. Some periods later a time could not be written down."""
_SECONDS_MAX = 1e15
NOBODY_WAKES = (
    "only a Runtime wakes sessions, and only those in SQLiteSessions, PostgresSessions or JournalSessions: here a timer"
    " would never be due; use runtime.agent(AgentSpec(...)) and Runtime(sessions=SQLiteSessions(...))"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Timer:
    """A turn that a session begins by itself.

    Args:
        id: The timer's name in its session.
    """

    id: str
    at: float
    """The next due time, in epoch seconds."""
    prompt: str
    """The prompt that the turn begins with."""
    every_s: float | None = None
    """The seconds from one due time to the next; None without a period."""
    cron: str | None = None
    """The cron expression of its times, in place of a period; None without one."""
    tz: str | None = None
    """The time zone of `cron`, such as `Europe/Berlin`."""
    missed: Missed = "one"
    """The turns for times at which no turn could begin: `one` for all of them, `all` (one each) or `none`."""
    deliver_to: tuple[str, ...] = ()
    """The destinations of `Runtime.deliver` that are told of its turns, besides those that are told of every turn."""

    @property
    def token(self) -> str:
        """The idempotency token of the turn that is due at `at`."""
        return f"timer:{self.id}:{self.at!r}"

    @property
    def weight(self) -> int:
        """The size of what its owner chose, in bytes."""
        texts = (self.id, self.cron or "", self.tz or "", *self.deliver_to)
        return len(self.prompt.encode()) + sum(map(len, texts))

    @property
    def has_known_zone(self) -> bool:
        """True if this machine knows its time zone, without which its next time cannot be told."""
        return self.cron is None or zone_named(self.tz) is not None

    def is_missed(self, now: float) -> bool:
        """True if the due time is to have no turn any more.

        Args:
            now: The time in epoch seconds.
        """
        return self.missed == "none" and now - self.at > MISSED_AFTER_S

    def following(self, now: float) -> Timer | None:
        """The timer after this due time, if it is due again: at the next regular time after `now`, or with
        `missed="all"` at the next one after this, unless too many were missed.

        Args:
            now: The time in epoch seconds.

        Raises:
            Unavailable: If this machine does not know the time zone. Install the package `tzdata`.
        """
        at = self._next_missed(now) if self.missed == "all" else None
        at = self._next_after(max(now, self.at)) if at is None else at
        return None if at is None else replace(self, at=at)

    def _next_missed(self, now: float) -> float | None:
        """The next time, if it has passed and has a turn of its own."""
        first = later = self._next_after(self.at)
        for _ in range(MISSED_MAX - 1):
            if later is None or later > now:
                return first
            later = self._next_after(later)
        return first if later is None or later > now else None

    def _next_after(self, after: float) -> float | None:
        if self.cron is not None:
            zone = zone_named(self.tz)
            if zone is None:
                raise Unavailable("this machine does not know the time zone; install tzdata", tz=self.tz)
            return next_time(self.cron, zone, after)
        if self.every_s is None:
            return None
        # From the first time and not from `after`, so that nothing drifts.
        periods = max(1, floor((after - self.at) / self.every_s) + 1)
        at = self.at + periods * self.every_s
        # Floats: for times far from the first one, the sum may fall short of `after` by rounding.
        return at if at > after else at + self.every_s


def after_firing(timers: Mapping[str, Timer], fired: Timer, now: float) -> Mapping[str, Timer]:
    """The timers once `fired`, which is one of them, has begun its turn."""
    remaining = {timer_id: timer for timer_id, timer in timers.items() if timer_id != fired.id}
    following = fired.following(now)
    return remaining if following is None else {**remaining, fired.id: following}


def without_missed(timers: Mapping[str, Timer], now: float) -> Mapping[str, Timer]:
    """The timers with those at their next times whose due times are to have no turn any more, as far as this machine
    knows their time zones.
    """
    for timer in timers.values():
        if timer.is_missed(now) and timer.has_known_zone:
            timers = after_firing(timers, timer, now)
    return timers


def next_timer(timers: Mapping[str, Timer]) -> Timer | None:
    """The timer that is due first; None without timers."""
    return min(timers.values(), key=lambda timer: (timer.at, timer.id), default=None)


def first_known(timers: Mapping[str, Timer], first: Timer | None, now: float) -> Timer | None:
    """The timer that is due first on this machine: those that are due in a time zone that it does not know hold the
    others not up. `first`: the first of all timers.
    """
    if first is None or first.at > now or first.has_known_zone:
        return first
    return next_timer({name: timer for name, timer in timers.items() if timer.at > now or timer.has_known_zone})


class DueTimes(Struct, frozen=True, kw_only=True):
    """The due times of a timer, as a caller gives them."""

    at: object = None
    """The first due time: an aware datetime, or epoch seconds. A calendar begins with its first time from then on."""
    in_s: object = None
    """The seconds from now to the first due time, instead of `at`."""
    every: object = None
    """The period, as seconds or a timedelta, or a cron expression. Without `at` and `in_s` the first due time is one
    period from now, or the next one of the calendar.
    """
    tz: object = None
    """The time zone of the cron expression; None: UTC."""
    missed: object = "one"
    """The turns for times that were missed, as `Missed`."""

    def checked(self, now: float) -> DueTimes:
        """The same times, to be read elsewhere: `at` in epoch seconds, and a period in seconds. Errors: `Invalid`."""
        if self.at is not None and self.in_s is not None:
            raise Invalid("say when a timer is due by at or by in_s, not by both", at=self.at, in_s=self.in_s)
        at = None if self.in_s is None else now + _seconds("in_s", self.in_s)
        if self.at is not None:
            at = self._read_at()
        if at is not None:
            self._check_at(at)
        if self.missed not in get_args(Missed) or (self.missed != "one" and self.every is None):
            raise Invalid("missed is one, all or none, for a timer with every", got=self.missed)
        if isinstance(self.every, str):
            return self._checked_calendar(now if at is None else ceil(at) - 1.0)
        if self.tz is not None:
            raise Invalid('a time zone is for cron expressions: every="0 8 * * 1-5"', tz=self.tz, every=self.every)
        every_s = None if self.every is None else _seconds("every", self.every)
        if every_s is not None and not EVERY_S_MIN <= every_s <= EVERY_S_MAX:
            raise Invalid(f"a timer's period is {EVERY_S_MIN:g} s to {EVERY_S_MAX:g} s", got=self.every)
        if at is None and every_s is None:
            raise Invalid("say when a timer is due: at, in_s or a period")
        if at is None:
            at = now + cast("float", every_s)
            self._check_at(at)
        return DueTimes(at=at, every=every_s, missed=self.missed)

    def _check_at(self, at: float) -> None:
        if not 0 <= at <= _AT_MAX:
            raise Invalid("a timer is due between the years 1970 and 9000", at=self.at, in_s=self.in_s)

    def _checked_calendar(self, after: float) -> DueTimes:
        """The calendar with its first time after `after`."""
        zone_name = "UTC" if self.tz is None else str(self.tz)  # A `ZoneInfo` is its name as text.
        zone = zone_named(zone_name)
        if zone is None:
            text = "this machine knows no such time zone; write one as Europe/Berlin, and install tzdata if it has none"
            raise Invalid(text, tz=self.tz)
        cron = " ".join(cast("str", self.every).split())
        at = next_time(cron, zone, after)
        if at is None:
            raise Invalid("the cron expression never comes true within 50 years", every=cron)
        return DueTimes(at=at, every=cron, tz=zone_name, missed=self.missed)

    def _read_at(self) -> float:
        if not isinstance(self.at, datetime):
            return _seconds("at", self.at)
        if self.at.tzinfo is None:
            raise Invalid("at has a time zone: datetime(..., tzinfo=...), or .astimezone() for local time", got=self.at)
        return self.at.timestamp()


def _seconds(name: str, value: object) -> float:
    """Errors: `Invalid` for what is no number of seconds, or a negative one."""
    if isinstance(value, timedelta) and name != "at":
        value = value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _SECONDS_MAX:
        meant = "an aware datetime or epoch seconds" if name == "at" else "a number of seconds"
        raise Invalid(f"{name} is {meant}", got=value)
    return float(value)


def new_timer(
    timer_id: object, prompt: object, due: DueTimes, *, now: float, prompt_bytes: int, deliver_to: tuple[str, ...] = ()
) -> Timer:
    """The timer that a caller asks for. Errors: `Invalid`; `TooLarge` for a prompt of more than `prompt_bytes`."""
    checked = check_id(timer_id, "timer id")
    if not isinstance(prompt, str) or not prompt.strip():
        raise Invalid("a timer has a prompt: the text that its turn begins with", got=prompt, timer=checked)
    try:
        prompt.encode()
    except UnicodeEncodeError as error:
        raise Invalid("a timer's prompt is text without lone surrogates", timer=checked) from error
    text = "the prompt is too large; say less, or put it where a tool can read it"
    check_size(prompt, prompt_bytes, text, "limits['prompt_bytes']")
    times = due.checked(now)
    calendar = times.every if isinstance(times.every, str) else None
    every_s = None if calendar is not None else cast("float | None", times.every)
    at, tz, missed = cast("float", times.at), cast("str | None", times.tz), cast("Missed", times.missed)
    return Timer(
        id=checked,
        at=at,
        prompt=prompt,
        every_s=every_s,
        cron=calendar,
        tz=tz,
        missed=missed,
        deliver_to=deliver_to,
    )


def zone_named(name: str | None) -> tzinfo | None:
    """The time zone, from the machine's database or the package `tzdata`; None if they do not have it."""
    try:
        # `localtime` is the zone of one machine, and another machine may go on with the timer.
        return None if not name or name == "localtime" else _zone(name)
    except (LookupError, ValueError, OSError):  # Names of folders, or with dots, are errors of several kinds.
        return None


@lru_cache(maxsize=64)
def _zone(name: str) -> tzinfo:
    """The time zone, whose file of about 2 KB is read once. Errors: those of `ZoneInfo`, which are not cached."""
    from zoneinfo import ZoneInfo  # loaded when used

    return ZoneInfo(name)


def next_time(cron: str, zone: tzinfo, after: float) -> float | None:
    """The first due time of the expression in the zone after `after`, in epoch seconds; None if it never comes.

    Where clocks are put forward, a time that is left out is due when they are put. Where they are put back, a time that
    comes twice is due at the first. Neither goes for an expression whose minute or hour begins with `*`: it follows the
    clock, so every quarter of an hour stays every quarter of an hour.

    Args:
        cron: A cron expression of five fields.
        after: Epoch seconds.

    Raises:
        Invalid: For what is no cron expression. Correct it.
    """
    minute, hour, *_ = cron.split() if len(cron.split()) == 5 else ("", "")
    if not minute or len(cron) > CRON_CHARS_MAX:
        text = "a cron expression has five fields, minute hour day month weekday, such as 0 8 * * 1-5"
        raise Invalid(text, every=cron[:CRON_CHARS_MAX])
    follows_clock = minute.startswith("*") or hour.startswith("*")
    base = floor(after)
    clock = _clock(zone, base)
    start = clock.replace(fold=0)
    if clock.fold and not follows_clock:  # The clock shows times that it has shown before: they are not due again.
        change = cast("int", _change_of_clock(zone, base - _DAY_S, base))
        start = max(start, _clock(zone, change - 1).replace(fold=0))
    clock = clock.replace(fold=0)
    while (match := _next_match(cron, start)) is not None:
        due = base + round((match - clock).total_seconds())
        near = min(due, base + 2 * _DAY_S)
        change = _change_of_clock(zone, base, near)
        if change is None and near == due:
            return float(due) if due <= _AT_MAX else None
        if change is None:  # No clock is put by more than a day, so nothing is due until shortly before.
            base = max(near, due - 2 * _DAY_S)
            start = clock = _clock(zone, base).replace(fold=0)
            continue
        before = clock + timedelta(seconds=change - base)
        base, clock = change, _clock(zone, change).replace(fold=0)
        if match < clock and not follows_clock:
            return float(change)
        start = (clock if follows_clock else max(clock, before)) - timedelta(seconds=1)
    return None


_DAY_S = 86_400
_CHANGES_APART_S = 21_600
"""The seconds within which no zone puts its clocks twice."""


def _clock(zone: tzinfo, at: int) -> datetime:
    """The clock on the wall, without its zone; `fold` is 1 where it shows a time for the second time."""
    return datetime.fromtimestamp(at, zone).replace(tzinfo=None)


def _change_of_clock(zone: tzinfo, after: int, until: int) -> int | None:
    """The first second in which clocks run otherwise than at `after`; None if there is none up to `until`."""

    def offset(at: int) -> timedelta | None:
        return datetime.fromtimestamp(at, zone).utcoffset()

    while after < until:
        step = min(after + _CHANGES_APART_S, until)
        if offset(step) != offset(after):
            while step - after > 1:
                middle = (after + step) // 2
                after, step = (middle, step) if offset(middle) == offset(after) else (after, middle)
            return step
        after = step
    return None


def _next_match(cron: str, start: datetime) -> datetime | None:
    """The next time after `start` that the expression means, on a clock that is never put."""
    from cronsim import CronSim, CronSimError  # loaded when used

    # The library takes 3-3/2, which is 3, for 3/2, which is 3 and every second one after it.
    cron = re.sub(r"\b(\w+)-\1/\d+", r"\1", cron)
    try:
        return next(CronSim(cron, start), None)
    except (CronSimError, AssertionError, TypeError, ValueError, OverflowError) as error:  # Some mistakes end so there.
        raise Invalid("this is no cron expression that ever comes true", every=cron, cause=str(error)) from None


class TimerBook:
    """The timers of an agent in one session, with changes that the journal does not have yet.

    Single operations are safe from any thread, as those of `AgentState` are.
    """

    __slots__ = ("_known", "_prompt_bytes", "_recorded", "_wall", "changes")

    def __init__(self, wall: Callable[[], float], prompt_bytes: int) -> None:
        """`wall` gives epoch seconds; `prompt_bytes` bounds each prompt."""
        self._wall = wall
        self._prompt_bytes = prompt_bytes
        self._recorded: Mapping[str, Timer] = {}
        self.changes: list[tuple[str, Timer | None]] = []
        """The timers that were set and cancelled (None) since `take`."""
        self._known: dict[str, Timer] = {}
        """The recorded timers with the changes, by id."""

    def note_recorded(self, timers: Mapping[str, Timer]) -> None:
        """The journal has these, and those changes that were taken."""
        self._recorded = timers
        self._known = _with_changes(timers, tuple(self.changes))

    def set(self, timer_id: object, prompt: object, due: DueTimes, deliver_to: tuple[str, ...] = ()) -> str:
        """Set a timer, in place of one with the same id; returns the id. Errors: those of `new_timer`; `Invalid` for
        more than `TIMERS_MAX`; `TooLarge` above `TIMERS_BYTES_MAX`.
        """
        timer = new_timer(
            timer_id, prompt, due, now=self._wall(), prompt_bytes=self._prompt_bytes, deliver_to=deliver_to
        )
        others = [one for one in tuple(self._known.values()) if one.id != timer.id]
        if len(others) >= TIMERS_MAX:
            raise Invalid("a session has that many timers at most; cancel one", timers_max=TIMERS_MAX)
        if timer.weight + sum(one.weight for one in others) > TIMERS_BYTES_MAX:
            text = "the prompts of all timers are too large together; say less, or put it where a tool can read it"
            raise TooLarge(text, timer=timer.id, bytes_max=TIMERS_BYTES_MAX)
        self._known[timer.id] = timer
        self.changes.append((timer.id, timer))
        return timer.id

    def cancel(self, timer_id: str) -> bool:
        """Cancel the timer; True if there was one of this id."""
        known = self._known.pop(timer_id, None) is not None
        if known:
            self.changes.append((timer_id, None))
        return known

    def take(self) -> Mapping[str, Timer] | None:
        """All timers, for the journal; None if they are those that it has. The changes count as taken."""
        changes: list[tuple[str, Timer | None]] = []
        # Taken one by one: tools in threads add to the list meanwhile, and a copy that is cleared afterwards would lose
        # such a change.
        while self.changes:
            changes.append(self.changes.pop(0))
        changed = _with_changes(self._recorded, changes)
        return None if changed == self._recorded else changed


def _with_changes(timers: Mapping[str, Timer], changes: Iterable[tuple[str, Timer | None]]) -> dict[str, Timer]:
    changed = dict(timers)
    for timer_id, timer in changes:
        if timer is None:
            changed.pop(timer_id, None)
        else:
            changed[timer_id] = timer
    return changed


class ToolTimers:
    """The timers that one tool use sets. Those without an id of their own get one that every attempt at the call gives
    them again, so that a tool that runs twice sets them once.
    """

    def __init__(
        self, book: TimerBook, key: str, deliver_to: tuple[str, ...], check: Callable[[tuple[str, ...]], None]
    ) -> None:
        """`key`: the idempotency key of the tool use. `deliver_to`: the destinations that the turn's caller named.
        `check` refuses those that this process has not.
        """
        self._book = book
        self._key = key
        self._check = check
        self._deliver_to = deliver_to
        self._unnamed: dict[int, int] = {}

    def set(
        self,
        timer_id: object,
        prompt: object,
        due: DueTimes,
        *,
        attempt: int,
        deliver_to: tuple[str, ...] | None = None,
    ) -> str:
        """See `TimerBook.set`. `timer_id`: None to be given one. `deliver_to`: None for those of the turn."""
        if deliver_to is not None:
            self._check(deliver_to)
        to = self._deliver_to if deliver_to is None else deliver_to
        if timer_id is not None:
            return self._book.set(timer_id, prompt, due, to)
        number = self._unnamed.get(attempt, 0)
        # From the idempotency key: a tool that runs again after a crash replaces its own timer.
        set_id = self._book.set(f"tool-{_digest(self._key, number)}", prompt, due, to)
        self._unnamed[attempt] = number + 1
        return set_id


def _digest(key: str, number: int) -> str:
    return blake2s(f"{number}/{key}".encode(errors="surrogatepass"), digest_size=10).hexdigest()
