"""The time at which a run continues by itself: its process was killed, or nobody answered its questions in time.

a call works on it                      due soon after the call has begun, as a turn is
every node that may start waits for     due when the first of these nodes has no question left that can be
a person                                answered; not at all if none of them ever has
a caller has it back unfinished         not due: the caller was told, by an error or a reason
its snapshot is not loaded to its end   not due: nobody can go on with it

A timer is due at its time, unless a call works on a run, or one waits for a person.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from repertory.core.orchestration.calls import waiting
from repertory.core.pending_work import DueTime
from repertory.core.run_results import Status
from repertory.core.turns.due_times import GRACE_S, WorkTracker

if TYPE_CHECKING:
    from repertory.core.journal.fold import Fold
    from repertory.core.orchestration.run import Run


def due_of_run(agent_id: str, run: Run, *, call_at: float | None) -> DueTime:
    """The due time of the run. `call_at`: the start of the call that works on it, epoch seconds; None between calls."""
    nothing = DueTime(agent_id=agent_id)
    if run.over or run.loading:
        return nothing
    if run_goes_on(run, -math.inf if call_at is None else call_at):
        return nothing if call_at is None else DueTime(agent_id=agent_id, at=call_at + GRACE_S, why="turn")
    ends = [[one.expires_at for one in asked] for asked in waiting(run).values()]
    dues = [max(at for at in each if at is not None) for each in ends if None not in each]
    return DueTime(agent_id=agent_id, at=min(dues), why="expiry") if dues else nothing


def run_goes_on(run: Run, now: float) -> bool:
    """True if a node of the run may start, as its questions are answered or are over. `now`: epoch seconds."""
    if run.over or run.loading:
        return False
    if any(node not in run.notes or run.notes[node].status is not Status.INTERRUPTED for node in run.ready):
        return True  # Mostly the first one: of wide graphs this is asked for each node that ends.
    asked = waiting(run)
    return any(node not in asked or all(one.is_over(now) for one in asked[node]) for node in run.ready)


class PendingRun(WorkTracker):
    """The pending work of an active orchestrator: its run and its timers."""

    def __init__(self, run: Callable[[], Run]) -> None:
        """`run`: the run that its calls work on, as it is now."""
        super().__init__()
        self._run = run

    def _due(self, agent_id: str, fold: Fold, now: float) -> DueTime:
        del now
        run, first = self._run(), fold.next_timer
        due = due_of_run(agent_id, run, call_at=self._call_at)
        if first is None or due.at is not None or waiting(run):
            return due
        return DueTime(agent_id=agent_id, at=max(first.at, self._timers_from), why="timer")
