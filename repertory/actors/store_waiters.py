"""Those who wait for a store: for what they said to be durable, or for a proof that the session is still theirs.

Not an actor: it belongs to a persister, which answers them.
"""

from __future__ import annotations

import math
from collections import deque
from typing import NamedTuple

from repertory.core.journal.image import Image
from repertory.errors import RepertoryError
from repertory.runtime.envelope import ReplySlot


class Waited(NamedTuple):
    """When somebody began to wait, and how long that may last."""

    since: float
    within_s: float = math.inf
    """At most; the persister's patience may be shorter."""

    def until(self, patience_s: float) -> float:
        """When it has lasted long enough."""
        return self.since + min(patience_s, self.within_s)


class _Committing(NamedTuple):
    slot: ReplySlot[int]
    waited: Waited
    seq: int
    """The record that has to be durable."""
    patient: bool
    """Whether to wait while the store refuses."""


class _Proving(NamedTuple):
    slot: ReplySlot[None] | ReplySlot[Image | None]
    waited: Waited
    seq: int
    """The record that has to be durable by then; 0 for none."""


class StoreWaiters:
    """Times are seconds of the persister's clock."""

    def __init__(self) -> None:
        self._committing: deque[_Committing] = deque()
        self._doubting: list[_Proving] = []
        """Who waits for a proof that is not under way yet."""
        self._proving: list[_Proving] = []
        """Who is answered by the write under way."""

    @property
    def doubt(self) -> bool:
        """Whether somebody waits for a proof that is not under way."""
        return bool(self._doubting)

    def wait_for_commit(self, slot: ReplySlot[int], waited: Waited, seq: int, *, patient: bool) -> None:
        """Answer with `seq` when everything up to there is durable. Higher numbers come later."""
        self._committing.append(_Committing(slot, waited, seq, patient))

    def wait_for_proof(self, slot: ReplySlot[None] | ReplySlot[Image | None], waited: Waited, seq: int = 0) -> None:
        """Answer when a write that begins from now on has succeeded, and everything up to `seq` is durable."""
        self._doubting.append(_Proving(slot, waited, seq))

    def awaited(self, slot: ReplySlot[Image | None]) -> bool:
        """Whether somebody waits for an answer in this slot."""
        return any(waiter.slot is slot for waiter in self._all())

    def write_begins(self) -> None:
        """A write begins, which proves what is doubted now."""
        self._proving, self._doubting = self._doubting, self._proving

    def write_failed(self) -> None:
        """It proved nothing."""
        self._doubting[:0] = self._proving
        self._proving = []

    def write_succeeded(self, durable_seq: int) -> None:
        """Answer those who waited for it."""
        for waiter in self._proving:
            if waiter.seq <= durable_seq:
                waiter.slot.reply(None)
        self._doubting[:0] = [waiter for waiter in self._proving if waiter.seq > durable_seq]
        self._proving = []
        while self._committing and self._committing[0].seq <= durable_seq:
            waiter = self._committing.popleft()
            waiter.slot.reply(waiter.seq)

    def fail_impatient(self, error: RepertoryError) -> None:
        """Give the error to those who do not wait while the store refuses."""
        for waiter in self._committing:
            if not waiter.patient:
                waiter.slot.fail(error)
        self._committing = deque(waiter for waiter in self._committing if waiter.patient)

    def first(self, patience_s: float) -> Waited | None:
        """How long the one waits who has waited long enough first; None when nobody waits."""
        waits = [waiter.waited for waiter in self._all()]
        return min(waits, key=lambda waited: waited.until(patience_s), default=None)

    def fail(self, error: RepertoryError, now: float = math.inf, patience_s: float = 0.0) -> None:
        """Give the error to those who have waited long enough by `now`: all of them, unless it is said."""
        for waiter in self._all():
            if waiter.waited.until(patience_s) <= now:
                waiter.slot.fail(error)
        self._committing = deque(waiter for waiter in self._committing if waiter.waited.until(patience_s) > now)
        self._doubting = [waiter for waiter in self._doubting if waiter.waited.until(patience_s) > now]
        self._proving = [waiter for waiter in self._proving if waiter.waited.until(patience_s) > now]

    def _all(self) -> list[_Committing | _Proving]:
        return [*self._committing, *self._doubting, *self._proving]
