"""What a conversation has left unfinished, and why: for callers that come back to it, such as the client of a service
that was restarted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from repertory.core.interrupts import Interrupt
from repertory.core.journal.fold import is_answer

if TYPE_CHECKING:
    from repertory.core.journal.pending_tools import PendingTools


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingTurn:
    """A turn that has no answer yet, or an answer that is not stored yet."""

    why: Literal["runs", "cut short", "asks", "store"]
    """`runs`: it is under way. `cut short`: its process ended, or it failed; a call without a prompt goes on with it.
    `asks`: it waits for a person, whose responses go on with it. `store`: it waits for its store, which takes nothing
    now.
    """
    interrupts: Sequence[Interrupt] = ()
    """The questions that wait for a response, in the order asked."""


def pending_turn(pending: PendingTools, *, runs: bool, behind: bool) -> PendingTurn | None:
    """What is unfinished; None for nothing. `runs`: a call is served now; `behind`: the store refuses what was said."""
    if behind:
        return PendingTurn(why="store", interrupts=pending.waiting)
    if runs:
        return PendingTurn(why="runs")
    if pending.waiting:
        return PendingTurn(why="asks", interrupts=pending.waiting)
    if pending.last is not None and not is_answer(pending.last):
        return PendingTurn(why="cut short")
    return None
