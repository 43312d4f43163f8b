"""Dead letters: messages that no handler finished. They are counted, the last ones are kept, and subscribers see each.

Every accepted tell ends in exactly one place: `processed` of its actor, or here.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum

_LOG = logging.getLogger("repertory.runtime")
_LOG_EVERY_S = 10.0


class Reason(Enum):
    """Why a message was not handled."""

    STOPPED = "stopped"
    """Its receiver had stopped, or stopped before its turn came."""
    FULL = "full"
    """The mailbox was full and drops the newest."""
    DROPPED = "dropped"
    """It was the oldest in a full mailbox that drops the oldest."""
    EXPIRED = "expired"
    """The asker's deadline passed while it waited in the mailbox."""
    ABANDONED = "abandoned"
    """The asker was cancelled, or the reader left, while it waited in the mailbox."""
    CANCELLED = "cancelled"
    """The receiver was killed in the middle of its turn."""
    REJECTED = "rejected"
    """The handler refused it, and its sender did not wait for an answer."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """One message that was not handled."""

    path: str
    """The receiver's path."""
    kind: str
    """The receiver's class."""
    message: object
    reason: Reason
    asked: bool
    """True if the sender waited for an answer; it was told."""


class DeadLetters:
    """The dead letters of one system."""

    def __init__(self, now: Callable[[], float], keep: int) -> None:
        """`keep`: how many of the last dead letters are held."""
        self._now = now
        self._recent: deque[DeadLetter] = deque(maxlen=keep)
        self._counts: Counter[tuple[str, Reason]] = Counter()
        self._subscribers: list[Callable[[DeadLetter], None]] = []
        self._tells = 0
        self._unlogged = 0
        self._logged_at = -_LOG_EVERY_S
        self.late_replies = 0
        """Answers that came after the asker had gone."""

    @property
    def tells(self) -> int:
        """How many of all dead letters were tells."""
        return self._tells

    @property
    def counts(self) -> Mapping[tuple[str, Reason], int]:
        """The number of dead letters, by the receiver's class and the reason."""
        return dict(self._counts)

    def recent(self) -> list[DeadLetter]:
        """The last dead letters, oldest first."""
        return list(self._recent)

    def subscribe(self, subscriber: Callable[[DeadLetter], None]) -> Callable[[], None]:
        """Show every further dead letter to `subscriber`, which must neither raise nor wait. Call the result to end
        it.
        """
        self._subscribers.append(subscriber)
        return lambda: self._subscribers.remove(subscriber)

    def add(self, letter: DeadLetter) -> None:
        """Add a dead letter. Never causes another one."""
        self._tells += not letter.asked
        self._counts[letter.kind, letter.reason] += 1
        self._recent.append(letter)
        for subscriber in tuple(self._subscribers):
            subscriber(letter)
        self._log(letter)

    def _log(self, letter: DeadLetter) -> None:
        """Log at most one line in ten seconds, with the number of dead letters since the last."""
        self._unlogged += 1
        now = self._now()
        if now - self._logged_at < _LOG_EVERY_S:
            return
        message = type(letter.message).__name__
        fields = (self._unlogged, letter.path, message, letter.reason.value)
        _LOG.info("dead letters count=%d last_path=%s last_message=%s last_reason=%s", *fields)
        self._unlogged, self._logged_at = 0, now
