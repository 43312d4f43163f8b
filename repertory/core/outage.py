"""What to do when a store does not take a commit, what of it is stored all the same, and how long callers wait."""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from enum import Enum

from repertory.core.journal.rows import Row, link_of
from repertory.errors import Failed, Invalid, RepertoryError, Retryable, SessionException, Throttled, Unwritable

_FIRST_S = 0.1
_MAX_S = 2.0
_UNWRITABLE = "the store cannot write what was said, and would fail again: leave out what the cause names"
_CAUSE_MAX = 300
_NAMED_MAX = 3


@contextmanager
def own_errors(*sessions: str) -> Generator[None]:
    """Whatever is raised within becomes an error of ours, so that the work of one session ends for it alone.
    `sessions`: those that it is done for.

    Errors: those of ours as they are; `Unwritable` for every other one.
    """
    try:
        yield
    except RepertoryError:
        raise
    except Exception as error:
        raise unwritable(error, sessions) from error


def unwritable(error: Exception, sessions: Sequence[str]) -> Unwritable:
    """What to raise from an error that is none of a store's: its own bug, or a value that it cannot write."""
    cause = f"{type(error).__name__}: {error}"
    return Unwritable(_UNWRITABLE, sessions=list(sessions[:_NAMED_MAX]), cause=cause[:_CAUSE_MAX])


class OutageVerdict(Enum):
    """What follows from an error of the store."""

    WAIT = "wait"
    """It will pass: callers wait, and the same commit is tried again."""
    TELL = "tell"
    """Somebody has to change something outside (rights, credentials, a bucket): callers are told at once, what they
    said waits, and the same commit is tried again."""
    GIVE_UP = "give up"
    """Trying again makes no sense: go on from what is stored."""


def verdict_on(error: RepertoryError) -> OutageVerdict:
    """What follows from this error of a commit."""
    match error:
        case Retryable():
            return OutageVerdict.WAIT
        case Unwritable():
            return OutageVerdict.GIVE_UP
        case Failed():
            return OutageVerdict.TELL
        case _ if type(error) is SessionException:  # What a user's own repository may raise, which says no more.
            return OutageVerdict.TELL
        case _:
            return OutageVerdict.GIVE_UP


def backoff_s(error: RepertoryError, failures: int, jitter: float) -> float:
    """Seconds before the next attempt, after so many failed ones in a row. `jitter`: a random number from 0 up to 1,
    by which up to half of the wait is left out, so that many sessions do not come back at once.
    """
    asked_s = error.retry_after_s if isinstance(error, Throttled) else None
    delay_s = min(_FIRST_S * 2.0 ** min(failures - 1, 16), _MAX_S)
    return max(asked_s or 0.0, delay_s * (1 - jitter / 2))


def stored_of(sent: Sequence[Row], last: Row | None) -> int | None:
    """How many of the rows that were sent are stored, when `last` is the journal's last row; None when that is
    somebody else's. A row is known by its link, which nobody else can have made.
    """
    if last is None or last.seq < sent[0].seq:
        return 0
    place = last.seq - sent[0].seq
    return place + 1 if place < len(sent) and sent[place].link == last.link else None


def following(stored: Sequence[Row], kept: Sequence[Row], first: bytes) -> list[Row] | None:
    """Of rows that were kept in memory those that are not stored and follow directly on what is; None when somebody
    else has written since. `first`: what the first row of the journal is linked to.
    """
    last_seq, link = (stored[-1].seq, stored[-1].link) if stored else (0, first)
    known = {row.seq: row.link for row in stored}
    if any(known.get(row.seq, row.link) != row.link for row in kept):
        return None
    rest = [row for row in kept if row.seq > last_seq]
    if not rest or (rest[0].seq == last_seq + 1 and link_of(link, rest[0]) == rest[0].link):
        return rest
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class StorePatience:
    """What a session does while its store is down, slow or full. What was said waits in memory, and is stored in order
    when the store is back.

    Errors: `Invalid` for what is not positive, or not finite.
    """

    wait_s: float = 30.0
    """Seconds that a call waits for what it said to be stored, or for room. Then it fails with `Unavailable`. One with
    `timeout_s` waits until 2 seconds after its deadline at most."""
    records_max: int = 1000
    """Records of one agent in one session that may wait. With more, its turns wait before they go on."""
    bytes_max: int = 16 * 1024 * 1024
    """The same in bytes. What one step of a turn adds may go beyond both: it is never dropped."""
    busy_s: float = 30.0
    """Seconds that opening a session waits at most for another process to give it up, which it does at once when no
    turn of it runs, else with the end of the turn. Then it fails with `SessionBusy`."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            least = 0 if field.name == "busy_s" else 1e-9
            if isinstance(value, bool | str) or not least <= value < math.inf:
                raise Invalid(f"{field.name} is a positive number", got=value)


DEFAULT_PATIENCE = StorePatience()
