"""Timers: turns that a session begins by itself, at a time, with a prompt.

A timer stands in the journal until it is due. The commit that stores its prompt as a message also takes it out, or
moves it to its next time, so that a crash in between neither loses nor repeats it.
`docs/guides/sessions/pending-work.md` says who fires.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from hashlib import blake2s
from math import floor

from msgspec import Struct

from repertory.core.ids import check_id
from repertory.core.limits import check_size
from repertory.errors import Invalid, TooLarge

TIMERS_MAX = 1000
"""The number of timers that a session may have."""
TIMERS_BYTES_MAX = 128 * 1024
"""The bytes of all their prompts and ids together: each change of one writes all of them."""
EVERY_S_MIN, EVERY_S_MAX = 1.0, 1e9
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
    """The seconds from one due time to the next; None: it is due once."""

    @property
    def token(self) -> str:
        """The idempotency token of the turn that is due at `at`."""
        return f"timer:{self.id}:{self.at!r}"

    @property
    def weight(self) -> int:
        """The size of the id and the prompt, in bytes."""
        return len(self.id) + len(self.prompt.encode())

    def following(self, now: float) -> Timer | None:
        """The timer after this due time, if it is due again: at the next regular time after `now`, whatever was missed.

        Args:
            now: The time in epoch seconds.
        """
        if self.every_s is None:
            return None
        # From the first time and not from `now`, so that nothing drifts; one turn for all that was missed.
        periods = max(1, floor((now - self.at) / self.every_s) + 1)
        at = self.at + periods * self.every_s
        # Floats: for times far from the first one, the sum may fall short of `now` by rounding.
        return replace(self, at=at if at > now else at + self.every_s)


def after_firing(timers: Mapping[str, Timer], fired: Timer, now: float) -> Mapping[str, Timer]:
    """The timers once `fired`, which is one of them, has begun its turn."""
    remaining = {timer_id: timer for timer_id, timer in timers.items() if timer_id != fired.id}
    following = fired.following(now)
    return remaining if following is None else {**remaining, fired.id: following}


def next_timer(timers: Mapping[str, Timer]) -> Timer | None:
    """The timer that is due first; None without timers."""
    return min(timers.values(), key=lambda timer: (timer.at, timer.id), default=None)


class DueTimes(Struct, frozen=True, kw_only=True):
    """The due times of a timer, as a caller gives them."""

    at: object = None
    """The first due time: an aware datetime, or epoch seconds."""
    in_s: object = None
    """The seconds from now to the first due time, instead of `at`."""
    every: object = None
    """The period, as seconds or a timedelta; alone, the first due time is one period from now."""

    def read(self, now: float) -> tuple[float, float | None]:
        """The first due time, in epoch seconds, and the period in seconds. Errors: `Invalid`."""
        every_s = None if self.every is None else _seconds("every", self.every)
        if every_s is not None and not EVERY_S_MIN <= every_s <= EVERY_S_MAX:
            raise Invalid(f"a timer's period is {EVERY_S_MIN:g} s to {EVERY_S_MAX:g} s", got=self.every)
        if self.at is not None and self.in_s is not None:
            raise Invalid("say when a timer is due by at or by in_s, not by both", at=self.at, in_s=self.in_s)
        if self.at is not None:
            at = self._read_at()
        elif self.in_s is not None:
            at = now + _seconds("in_s", self.in_s)
        elif every_s is not None:
            at = now + every_s
        else:
            raise Invalid("say when a timer is due: at, in_s or a period")
        if not 0 <= at <= _AT_MAX:
            raise Invalid("a timer is due between the years 1970 and 9000", at=self.at, in_s=self.in_s)
        return at, every_s

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


def new_timer(timer_id: object, prompt: object, due: DueTimes, *, now: float, prompt_bytes: int) -> Timer:
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
    at, every_s = due.read(now)
    return Timer(id=checked, at=at, prompt=prompt, every_s=every_s)


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

    def set(self, timer_id: object, prompt: object, due: DueTimes) -> str:
        """Set a timer, in place of one with the same id; returns the id. Errors: those of `new_timer`; `Invalid` for
        more than `TIMERS_MAX`; `TooLarge` above `TIMERS_BYTES_MAX`.
        """
        timer = new_timer(timer_id, prompt, due, now=self._wall(), prompt_bytes=self._prompt_bytes)
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

    def __init__(self, book: TimerBook, key: str) -> None:
        """`key`: the idempotency key of the tool use."""
        self._book = book
        self._key = key
        self._unnamed: dict[int, int] = {}

    def set(self, timer_id: object, prompt: object, due: DueTimes, *, attempt: int) -> str:
        """See `TimerBook.set`. `timer_id`: None to be given one."""
        if timer_id is not None:
            return self._book.set(timer_id, prompt, due)
        number = self._unnamed.get(attempt, 0)
        # From the idempotency key: a tool that runs again after a crash replaces its own timer.
        set_id = self._book.set(f"tool-{_digest(self._key, number)}", prompt, due)
        self._unnamed[attempt] = number + 1
        return set_id


def _digest(key: str, number: int) -> str:
    return blake2s(f"{number}/{key}".encode(errors="surrogatepass"), digest_size=10).hexdigest()
