"""The messages about what an agent does between its turns: for memory stores, for whoever wakes it, for summaries."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from repertory.core.messages import Json
from repertory.runtime.message import Ask

if TYPE_CHECKING:
    from repertory.core.budget import Budget


class TurnEnded(Struct, frozen=True, kw_only=True):
    """Turns are over, and their messages are recorded."""

    turns: int
    last: int
    """Sequence number of the last message."""
    messages: int
    """The messages of the conversation by now."""
    budgets: tuple[Budget, ...] = ()
    """The call's budgets; extraction because of these turns counts towards them."""


class SkipTo(Struct, frozen=True, kw_only=True):
    """Messages up to this sequence number came with a snapshot from another conversation; do not extract from them."""

    seq: int


class ManualMessages(Struct, frozen=True, kw_only=True):
    """Messages were added without a turn."""


class KeepProgress(Struct, Ask[None], frozen=True, kw_only=True):
    """Record how far a memory store has got; answered when the record is on its way to the store."""

    store: str
    position: int
    state: Json = None
    """Further data that the journal keeps for the memory store; None for nothing."""


class ReportPendingWork(Struct, Ask[None], frozen=True, kw_only=True):
    """Tell the store pending work, whatever it was told before; answered when that is on its way."""

    again_at: float | None = None
    """The time at which a turn that could not be finished is tried again, in epoch seconds; None without one."""


class RecordSummary(Struct, Ask[None], frozen=True, kw_only=True):
    """Have the summary that is made ahead of need recorded, though no turn begins; answered when none is open, at once
    if the agent shuts down. Errors: why it could not be made.
    """

    recovering: bool = False
    """Begin one that an earlier process had begun."""


class SummarySettled(Struct, frozen=True, kw_only=True):
    """The agent's message to itself: a summary was made, or could not be."""
