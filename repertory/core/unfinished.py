"""What a conversation has left unfinished, and why: for callers that come back to it, such as the client of a service
that was restarted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from repertory.core.interrupts import Interrupt
from repertory.core.journal.fold import is_answer
from repertory.core.messages import is_stopped

if TYPE_CHECKING:
    from repertory.core.deferral import DeferredTool
    from repertory.core.journal.pending_tools import PendingTools


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingTurn:
    """A turn that has no answer yet, an answer that is not stored yet, or tools whose results come later."""

    why: Literal["runs", "cut short", "asks", "store", "waits for a tool"]
    """`runs`: it is under way. `cut short`: its process ended, it failed, or it was stopped; a call without a prompt
    goes on with it. `asks`: it waits for a person, whose responses go on with it. `store`: it waits for its store,
    which takes nothing now. `waits for a tool`: its turns are over, a prompt may come at any time, and so may the
    results of `tools`.
    """
    interrupts: Sequence[Interrupt] = ()
    """The questions that wait for a response, in the order asked."""
    tools: Sequence[DeferredTool] = ()
    """The tools that wait for results which come later, whatever else is unfinished."""


def pending_turn(
    pending: PendingTools, deferred: Mapping[str, DeferredTool], *, session_id: str | None, runs: bool, behind: bool
) -> PendingTurn | None:
    """What is unfinished; None for nothing. `deferred`: the tools that wait, by id; `runs`: a call is served now;
    `behind`: the store refuses what was said.
    """
    tools = tuple(deferred.values())
    if behind:
        return PendingTurn(why="store", interrupts=pending.waiting_in(session_id), tools=tools)
    if runs:
        return PendingTurn(why="runs", tools=tools)
    if pending.waiting:
        return PendingTurn(why="asks", interrupts=pending.waiting_in(session_id), tools=tools)
    if pending.last is not None and (not is_answer(pending.last) or is_stopped(pending.last)):
        return PendingTurn(why="cut short", tools=tools)
    return PendingTurn(why="waits for a tool", tools=tools) if tools else None
