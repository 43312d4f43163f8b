"""What the agent of a session is asked to do: by callers, by whoever shuts it down, and by its own timers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from repertory.actors.call import Invocation
from repertory.core.events import TurnEvent
from repertory.core.journal.editing import MessagesEdit
from repertory.core.messages import Json
from repertory.core.result import AgentResult
from repertory.core.snapshots.fields import SnapshotFields
from repertory.runtime.message import Ask, Stream


@dataclass(frozen=True, slots=True, kw_only=True)
class Invoke(Ask[AgentResult]):
    """Run a turn and answer with its result."""

    invocation: Invocation


@dataclass(frozen=True, slots=True, kw_only=True)
class InvokeStreaming(Stream[TurnEvent]):
    """Run a turn and send what happens on the way; leaving the stream cancels the turn."""

    invocation: Invocation


@dataclass(frozen=True, slots=True, kw_only=True)
class ShowSnapshot(Ask[None]):
    """Go on from a snapshot, or from what a program made of the messages; answered when that is durable. Waits for the
    turn that runs, not for those that wait.
    """

    wanted: SnapshotFields | MessagesEdit


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelTurn:
    """End the running turn early, if one runs: as the stop wish says, unless the turn has heard that already."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeUp:
    """A call has had its time."""

    invocation: Invocation


@dataclass(frozen=True, slots=True, kw_only=True)
class Abandon:
    """The caller of this very invocation has gone: cut its turn short, or do not begin it."""

    invocation: Invocation


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishTurns(Ask[None]):
    """Take no more turns, and answer when the running one and those that wait are over."""

    at_once: bool = False
    """Cut the running turn short, and refuse the calls that wait."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepProgress(Ask[None]):
    """Put on record how far a memory store has got; answered when that is on its way to the store."""

    store: str
    position: int
    kept: Json = None
    """What the journal is to keep of the store besides; None for nothing."""


AgentMessage: TypeAlias = (
    Invoke | InvokeStreaming | ShowSnapshot | KeepProgress | CancelTurn | TimeUp | Abandon | FinishTurns
)
