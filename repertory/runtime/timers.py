"""Messages that an actor sends to itself later. They are void after a restart."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass

from repertory.runtime.alarms import Alarm, Alarms
from repertory.runtime.mailbox import Mailbox


@dataclass(frozen=True, slots=True, eq=False)
class TimerFired:
    """System message to an actor: a timer of one of its incarnations has run out."""

    timers: Timers
    key: Hashable
    message: object
    when: float
    period_s: float | None


class Timers:
    """The timers of one incarnation."""

    __slots__ = ("_alarms", "_mailbox", "_now", "_set")

    def __init__(self, mailbox: Mailbox, alarms: Alarms, now: Callable[[], float]) -> None:
        self._mailbox = mailbox
        self._alarms = alarms
        self._now = now
        self._set: dict[Hashable, Alarm | TimerFired] = {}

    def __len__(self) -> int:
        return len(self._set)

    def after(self, delay_s: float, message: object, key: Hashable) -> None:
        """Deliver `message` once; replaces the timer of that key."""
        self.cancel(key)
        self._arm(key, message, self._now() + delay_s, None)

    def every(self, period_s: float, message: object, key: Hashable) -> None:
        """Deliver `message` again and again; a period that ends before the last delivery was handled is skipped."""
        self.cancel(key)
        self._arm(key, message, self._now() + period_s, period_s)

    def cancel(self, key: Hashable) -> None:
        """Void the timer of that key, even one that has run out and waits to be handled. None is fine."""
        entry = self._set.pop(key, None)
        if isinstance(entry, Alarm):
            entry.cancel()

    def close(self) -> None:
        """Void all."""
        for key in tuple(self._set):
            self.cancel(key)

    def claim(self, fired: TimerFired) -> bool:
        """Whether a timer that has run out still counts; it does once. A periodic one is set again."""
        if self._set.get(fired.key) is not fired:
            return False
        del self._set[fired.key]
        if fired.period_s is not None:
            missed = int((self._now() - fired.when) / fired.period_s)
            self._arm(fired.key, fired.message, fired.when + (missed + 1) * fired.period_s, fired.period_s)
        return True

    def _arm(self, key: Hashable, message: object, when: float, period_s: float | None) -> None:
        def fire() -> None:
            fired = TimerFired(self, key, message, when, period_s)
            self._set[key] = fired
            self._mailbox.offer_system(fired)

        self._set[key] = self._alarms.at(when, fire)
