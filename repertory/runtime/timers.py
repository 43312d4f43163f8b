"""Time: the clock, and messages that an actor sends to itself later, which are void after a restart."""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable, Hashable
from functools import partial
from typing import Protocol, TypeAlias

import anyio
from msgspec import Struct

from repertory.runtime.mailbox import Mailbox
from repertory.runtime.waker import Waiter, parking_here


class TimerFired(Struct, frozen=True, eq=False):
    """System message to an actor: a timer of one of its incarnations has run out."""

    timers: Timers
    key: Hashable
    message: object
    when: float
    period_s: float | None

    def fire(self) -> None:
        """Deliver the timer, which has run out."""
        self.timers.run_out(self)


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
        """Void the timer of that key, even one that has run out and waits to be handled. Unknown keys are fine."""
        entry = self._set.pop(key, None)
        if isinstance(entry, Alarm):
            self._alarms.cancel(entry)

    def close(self) -> None:
        for key in tuple(self._set):
            self.cancel(key)

    def claim(self, fired: TimerFired) -> bool:
        """True, once, if a timer that has run out still counts. A periodic one is set again."""
        # By identity: replaced or cancelled while it waited on the system lane.
        if self._set.get(fired.key) is not fired:
            return False
        del self._set[fired.key]
        if fired.period_s is not None:
            # Counted from the planned time and not from now, so that a slow handler causes no drift.
            missed = int((self._now() - fired.when) / fired.period_s)
            self._arm(fired.key, fired.message, fired.when + (missed + 1) * fired.period_s, fired.period_s)
        return True

    def _arm(self, key: Hashable, message: object, when: float, period_s: float | None) -> None:
        fired = TimerFired(self, key, message, when, period_s)
        self._set[key] = self._alarms.at(when, fired.fire)

    def run_out(self, fired: TimerFired) -> None:
        """Put the message into the mailbox."""
        self._set[fired.key] = fired
        self._mailbox.offer_system(fired)


# Everything in a system that happens later: exact timers in a heap, and ask deadlines on a wheel of 50 ms slots.
#
# One task waits for the earliest of them on the loop's own clock. A deadline per ask would cost more than the ask; a
# slot of the wheel is one timer for all asks that end in the same 50 ms, and an answered ask removes itself, so none is
# retained.

SLOT_S = 0.05
_COMPACT_FROM = 64


class Expiring(Protocol):
    """An object with a deadline on the wheel."""

    def expire(self) -> None: ...


class Alarm:
    """A timer that has been set. `action` is None once it was cancelled or has run."""

    __slots__ = ("action",)

    def __init__(self, action: Callable[[], object]) -> None:
        self.action: Callable[[], object] | None = action


class Alarms:
    """The timers of one system. Actions run in the loop's thread, must not raise, and must not wait."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._heap: list[tuple[float, int, Alarm]] = []
        self._count = 0
        self._cancelled = 0
        self.slots: dict[float, set[Expiring]] = {}
        """The wheel: what expires, by the number of the slot that its deadline lies in, `deadline // SLOT_S`."""
        self._sleep = anyio.CancelScope()
        self._due: Waiter | None = None
        """Wakes the task that waits: to cancel its sleep costs many times as much."""

    def at(self, when: float, action: Callable[[], object]) -> Alarm:
        """Run `action` at `when`, in seconds of the loop's clock, never earlier. Alarms of the same instant run in
        order.
        """
        alarm = Alarm(action)
        self._count += 1
        # The count orders alarms of the same instant, and keeps `heapq` from comparing alarms.
        heapq.heappush(self._heap, (when, self._count, alarm))
        # Only the earliest alarm changes how long the task sleeps. One that is due now wakes it: a deadline that has
        # passed would cancel the sleep, which costs many times as much.
        if self._heap[0][2] is alarm and when > self._now():
            self._sleep.deadline = when
        elif self._heap[0][2] is alarm and self._due is not None and not self._due.done():
            self._due.set_result(None)
        return alarm

    def expire_at(self, deadline: float, entry: Expiring) -> set[Expiring]:
        """Call `entry.expire()` at `deadline` or up to 50 ms later, unless it is taken out of the returned set."""
        # The end of the slot, so that nothing ever expires early.
        slot = deadline // SLOT_S
        bucket = self.slots.get(slot)
        if bucket is None:
            bucket = self.slots[slot] = set()
            self.at((slot + 1) * SLOT_S, partial(self._expire, slot))
        bucket.add(entry)
        return bucket

    def cancel(self, alarm: Alarm) -> None:
        """Never run it. Allowed at any time, more than once."""
        if alarm.action is None:
            return
        alarm.action = None
        self._cancelled += 1
        # Cancelled alarms stay in the heap, since removing one costs its length. Rebuilding at half keeps the cost of
        # each constant.
        if self._cancelled > _COMPACT_FROM and self._cancelled * 2 > len(self._heap):
            self._heap = [entry for entry in self._heap if entry[2].action is not None]
            heapq.heapify(self._heap)
            self._cancelled = 0

    async def run(self) -> None:
        """Wait and run the actions, until cancelled."""
        waiter = parking_here().waiter
        while True:
            with anyio.CancelScope(deadline=self._fire()) as sleep:
                self._sleep = sleep
                while True:
                    self._due = waiter()
                    await self._due
                    # The same scope as before: a new one, and its timer, would cost more than what is run.
                    if (earliest := self._fire()) != sleep.deadline:
                        sleep.deadline = earliest

    def _fire(self) -> float:
        """Run what is due. Returns the time of the next alarm."""
        now = self._now()
        while self._heap and self._heap[0][0] <= now:
            alarm = heapq.heappop(self._heap)[2]
            action, alarm.action = alarm.action, None
            if action is None:
                self._cancelled -= 1
            else:
                action()
        return self._heap[0][0] if self._heap else math.inf

    def _expire(self, slot: float) -> None:
        bucket = self.slots.pop(slot)
        # One by one: an entry that ends may take another one out, and a set must not change while it is iterated.
        while bucket:
            bucket.pop().expire()


# The clock and the random source, so that tests can replace them.

Clock: TypeAlias = Callable[[], float]
"""Seconds; only differences mean anything."""


class Rng(Protocol):
    """A random source, such as `random.Random`."""

    def uniform(self, a: float, b: float, /) -> float: ...


def unseeded() -> Rng:
    """A random source without a seed."""
    return random.SystemRandom()
