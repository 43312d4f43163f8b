"""A session that a turn's first commit takes, while the turn asks its model."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import anyio
from msgspec import Struct

if TYPE_CHECKING:
    from repertory.actors.in_memory_journal import InMemoryJournal
    from repertory.core.journal.author import JournalAuthor


class Taking:
    """A turn's first commit, which takes the session while the model is asked: nothing of the answer may be seen, and
    nothing be done, before it is over.
    """

    __slots__ = ("_note_owned", "_over", "error", "moved", "on_lost", "patient", "waiting")

    def __init__(self, note_owned: Callable[[JournalAuthor | InMemoryJournal | None], None]) -> None:
        """`note_owned` is called when the session is owned, with the journal if it was opened again."""
        self._note_owned = note_owned
        self._over = anyio.Event()
        self.moved = False
        """True if another process has written meanwhile, and the session was opened again: the turn must begin anew."""
        self.error: Exception | None = None
        """The reason why the turn cannot go on."""
        self.on_lost: Callable[[], None] | None = None
        """Called when the turn must not go on as it has begun."""
        self.waiting: anyio.CancelScope | None = None
        """Around the persister's wait for another owner, while there is one."""
        self.patient = True
        """False if the answer is not to wait for another owner any more."""

    @property
    def over(self) -> bool:
        return self._over.is_set()

    @property
    def owned(self) -> bool:
        """True if the turn may go on."""
        return self.over and not self.moved and self.error is None

    def reply(self, value: JournalAuthor | InMemoryJournal | None) -> None:
        # First: the turn's journal must be the new one before anything that waits here reads it.
        self._note_owned(value)
        self.moved = value is not None
        self._end()

    def fail(self, error: Exception) -> None:
        self.error = error
        self._end()

    def _end(self) -> None:
        # Before `_over` is set: the model's call is cancelled, so no waiter sees a piece of its answer.
        if self.on_lost is not None and (self.moved or self.error is not None):
            self.on_lost()
        self._over.set()

    def give_up(self) -> None:
        """Wait for no other owner any more."""
        # For a persister that has not begun to wait yet.
        self.patient = False
        if self.waiting is not None:
            self.waiting.cancel()

    async def wait(self) -> None:
        await self._over.wait()

    async def wait_for_session(self) -> None:
        """Return when the session is owned; never if it is not."""
        await self._over.wait()
        if not self.owned:
            # Not an error: `on_lost` has cancelled the scope around the model's call, and what a model raises here
            # could be retried.
            await anyio.sleep_forever()


class Take(Struct, frozen=True, kw_only=True):
    """A turn begins in a session that its first commit takes: as `Begin` with `stored`, but its model is asked
    meanwhile.
    """

    before: int
    pending: Taking
    within_s: float = math.inf
