"""Those who wait for a store: for what they said to be durable, or for a proof that the session is still theirs.

Not an actor: it belongs to a persister, which answers them.
"""

from __future__ import annotations

import math
from collections import deque
from typing import NamedTuple

from repertory.core.journal.image import Image
from repertory.errors import RepertoryError
from repertory.runtime.reply import ReplySlot


class _Committing(NamedTuple):
    slot: ReplySlot[int]
    since: float
    seq: int
    """The record that has to be durable."""
    patient: bool
    """Whether to wait while the store refuses."""


class _Proving(NamedTuple):
    slot: ReplySlot[None] | ReplySlot[Image | None]
    since: float
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

    def wait_for_commit(self, slot: ReplySlot[int], since: float, seq: int, *, patient: bool) -> None:
        """Answer with `seq` when everything up to there is durable. Higher numbers come later."""
        self._committing.append(_Committing(slot, since, seq, patient))

    def wait_for_proof(self, slot: ReplySlot[None] | ReplySlot[Image | None], since: float, seq: int = 0) -> None:
        """Answer when a write that begins from now on has succeeded, and everything up to `seq` is durable."""
        self._doubting.append(_Proving(slot, since, seq))

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

    def oldest(self) -> float | None:
        """Since when the first of them waits; None when nobody does."""
        return min((waiter.since for waiter in self._all()), default=None)

    def fail(self, error: RepertoryError, until: float = math.inf) -> None:
        """Give the error to those who wait since then, or for longer."""
        for waiter in self._all():
            if waiter.since <= until:
                waiter.slot.fail(error)
        self._committing = deque(waiter for waiter in self._committing if waiter.since > until)
        self._doubting = [waiter for waiter in self._doubting if waiter.since > until]
        self._proving = [waiter for waiter in self._proving if waiter.since > until]

    def _all(self) -> list[_Committing | _Proving]:
        return [*self._committing, *self._doubting, *self._proving]
