"""What a session's persister is asked to do: by its agent, and by whoever looks at the session."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from repertory.actors.memory_journal import MemoryJournal
from repertory.actors.said import History
from repertory.core.journal.author import JournalAuthor
from repertory.core.journal.image import Image
from repertory.core.journal.rows import Row
from repertory.core.memory.progress import SaidMessage
from repertory.core.orchestration.run import Run
from repertory.errors import LeaseLost, RepertoryError
from repertory.runtime.message import Ask

if TYPE_CHECKING:
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenJournal(Ask[JournalAuthor | MemoryJournal]):
    """The journal, for its author, who alone writes to it. A persister that has failed takes nothing of it any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Store:
    """The author has handed something over. It is written after `linger_s` at the latest, or at once when `soon`."""

    soon: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit(Ask[None]):
    """Answered when everything up to this record is durable; its author has handed it over.

    Errors: `Unavailable` (and `Failed`, where somebody has to change something first): the records wait, and are stored
    when the store takes them, so the session goes on; others, such as `LeaseLost`: it starts again from what is stored.
    """

    seq: int
    patient: bool = True
    """Whether to wait while the store refuses what it is given; without it the first refusal is the answer."""
    within_s: float = math.inf
    """How long to wait at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Begin(Ask[JournalAuthor | MemoryJournal | None]):
    """A turn has only just begun. Answered with None when the store has said that the session is still ours, and, with
    `stored`, has what was handed over.

    When somebody else has written to it since, it is opened again if it can be, and nothing of the turn is kept; the
    answer is the journal that is there now. Errors: as `Commit`.
    """

    before: int
    """The last record that was handed over before the turn."""
    stored: bool = False
    within_s: float = math.inf
    """How long to wait at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prove(Ask[None]):
    """Answered when the store has said that the session is still ours. Errors: as `Commit`."""

    within_s: float = math.inf
    """How long to wait at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadImage(Ask[Image]):
    """Everything an agent needs to go on, as of now."""


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
class TimeToLook:
    """Something may be due: a write, another attempt, or an answer for somebody who has waited long enough."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Looked:
    """What the store said of the journal's end, after it had refused a write that it may have done before."""

    refused: LeaseLost
    last: Row | None = None
    """The last row that is stored."""
    error: RepertoryError | None = None
    """It said nothing."""
