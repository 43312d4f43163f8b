"""What a session's persister is asked to do: by its agent, and by whoever looks at the session."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from repertory.actors.said import History
from repertory.core.journal.fold import Fold
from repertory.core.journal.image import Image, UnansweredTurn
from repertory.core.journal.records import Record
from repertory.core.journal.rows import Row
from repertory.core.memory.progress import SaidMessage
from repertory.core.messages import Message
from repertory.core.orchestration.run import Run
from repertory.errors import LeaseLost, RepertoryError
from repertory.runtime.message import Ask


@dataclass(frozen=True, slots=True, kw_only=True)
class Append:
    """Add records to the journal. They are committed with the next `Commit`, or after `linger_s`, or at once when
    `soon`.
    """

    first: int
    """The sequence number that their author gave to the first of them."""
    records: tuple[Record, ...]
    soon: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit(Ask[int]):
    """Add records and answer with the last sequence number when everything so far is durable.

    With `closing`, the number may be higher than the records explain: what later openings need may have been restated.
    Errors: `Unavailable` (and `Failed`, where somebody has to change something first): the records wait, and are stored
    when the store takes them, so the session goes on; others, such as `LeaseLost`: it starts again from what is stored.
    """

    first: int
    """The sequence number that their author gave to the first of them."""
    records: tuple[Record, ...] = ()
    closing: bool = False
    """A turn is over, and its author waits for the answer before it numbers anything else."""
    patient: bool = True
    """Whether to wait while the store refuses what it is given; without it the first refusal is the answer."""
    within_s: float = math.inf
    """How long to wait at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Begin(Ask[Image | None]):
    """Add the first records of a turn, if any; answered with None when they are durable, and the store has said that
    the session is still ours.

    When somebody else has written to it since, it is opened again if it can be; the answer is then what is there now,
    and nothing of the records is kept. Errors: as `Commit`.
    """

    first: int
    """The sequence number of the first of them, or of the one that comes next."""
    records: tuple[Record, ...] = ()
    within_s: float = math.inf
    """How long to wait at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Redact(Ask[int]):
    """Add records, then put other messages in the place of some that the running turn has said; answers with the last
    sequence number. The commit that stores this destroys the originals. Others than those of the turn are a mistake.
    """

    first: int
    records: tuple[Record, ...]
    at: float
    instead: Mapping[int, Message]
    """By sequence number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prove(Ask[None]):
    """Answered when the store has said that the session is still ours. Errors: as `Commit`."""

    within_s: float = math.inf
    """How long to wait at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadImage(Ask[Image]):
    """Everything an agent needs to go on, as of now."""


class LeftBehind(NamedTuple):
    """A named turn without an answer, behind which another one began."""

    turn: UnansweredTurn
    shown: Sequence[tuple[int, Message]]
    """What the model is shown from its own rows, by sequence number."""

    @classmethod
    def in_fold(cls, fold: Fold, token: str) -> LeftBehind | None:
        """The turn of that name, if it is one."""
        turn = fold.unanswered_turn(token)
        return None if turn is None else cls(turn, tuple(fold.shown.recent))


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadLeftBehind(Ask[LeftBehind | None]):
    """The turn of that name, if it has no answer and another one began behind it."""

    token: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadHistory(Ask[History]):
    """Every message ever said here, whatever the model is shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadSaid(Ask[Sequence[SaidMessage]]):
    """What was said after a sequence number, oldest first, without what a rewind up to `until` has left behind."""

    after: int
    until: int | None = None
    """The last sequence number to look at; None for all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRun(Ask[Run | None]):
    """A run of the orchestrator that was followed by others; None when it is not there or is not over."""

    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Hurry:
    """The session has to end soon: from now on callers wait no longer than this, and its last write twice as long."""

    wait_s: float


# What a persister tells itself.


@dataclass(frozen=True, slots=True, kw_only=True)
class LingerOver:
    """Records have waited long enough: write them now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TryAgain:
    """A write that was refused has rested long enough."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PatienceOver:
    """Somebody may have waited long enough."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Looked:
    """What the store said of the journal's end, after it had refused a write that it may have done before."""

    refused: LeaseLost
    last: Row | None = None
    """The last row that is stored."""
    error: RepertoryError | None = None
    """It said nothing."""
