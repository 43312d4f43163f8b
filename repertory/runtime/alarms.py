"""Everything in a system that happens later: exact timers in a heap, and ask deadlines on a wheel of 50 ms slots.

One task waits for the earliest of them on the loop's own clock. A deadline per ask would cost more than the ask; a slot
of the wheel is one timer for all asks that end in the same 50 ms, and an answered ask takes itself out again, so none
is retained.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from functools import partial
from typing import Protocol

import anyio

SLOT_S = 0.05
_COMPACT_FROM = 64


class Expiring(Protocol):
    """Something with a deadline on the wheel."""

    def expire(self) -> None: ...


class Alarm:
    """A timer that has been set. `action` is None once it was cancelled or has run."""

    __slots__ = ("_alarms", "action")

    def __init__(self, action: Callable[[], object], alarms: Alarms) -> None:
        self.action: Callable[[], object] | None = action
        self._alarms = alarms

    def cancel(self) -> None:
        """Never run it. Allowed at any time, more than once."""
        if self.action is not None:
            self.action = None
            self._alarms.forget_one()


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

    def at(self, when: float, action: Callable[[], object]) -> Alarm:
        """Run `action` at `when`, in seconds of the loop's clock, never earlier.

        Alarms of the same instant run in order.
        """
        alarm = Alarm(action, self)
        self._count += 1
        heapq.heappush(self._heap, (when, self._count, alarm))
        if self._heap[0][2] is alarm:
            self._sleep.deadline = when
        return alarm

    def expire_at(self, deadline: float, entry: Expiring) -> set[Expiring]:
        """Call `entry.expire()` at `deadline` or up to 50 ms later, unless it is taken out of the returned set."""
        slot = deadline // SLOT_S
        bucket = self.slots.get(slot)
        if bucket is None:
            bucket = self.slots[slot] = set()
            self.at((slot + 1) * SLOT_S, partial(self._expire, slot))
        bucket.add(entry)
        return bucket

    def forget_one(self) -> None:
        """An alarm in the heap was cancelled: rebuild the heap once most of it is cancelled ones."""
        self._cancelled += 1
        if self._cancelled > _COMPACT_FROM and self._cancelled * 2 > len(self._heap):
            self._heap = [entry for entry in self._heap if entry[2].action is not None]
            heapq.heapify(self._heap)
            self._cancelled = 0

    async def run(self) -> None:
        """Wait and fire, until cancelled."""
        while True:
            with anyio.CancelScope(deadline=self._heap[0][0] if self._heap else math.inf) as self._sleep:
                await anyio.sleep_forever()
            self._fire()

    def _fire(self) -> None:
        now = self._now()
        while self._heap and self._heap[0][0] <= now:
            alarm = heapq.heappop(self._heap)[2]
            action, alarm.action = alarm.action, None
            if action is None:
                self._cancelled -= 1
            else:
                action()

    def _expire(self, slot: float) -> None:
        for entry in self.slots.pop(slot):
            entry.expire()
