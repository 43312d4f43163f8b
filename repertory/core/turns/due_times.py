"""Work that an agent owes by its journal, and when it comes due."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping

from repertory.core.deliveries import next_delivery_at
from repertory.core.journal.deferrals import begins_turns, due_at, runs_due_at
from repertory.core.journal.fold import Fold, is_answer
from repertory.core.journal.pending_tools import PendingTools
from repertory.core.messages import Json
from repertory.core.pending_work import DueTime, Why
from repertory.core.timers import Timer
from repertory.errors import InterruptsWaiting, NodeFailed, Retryable, SessionException

GRACE_S = 2.0
"""Seconds from the beginning of work until it is due: most is done by then, and nobody has to look at it."""
AGAIN_S = 30.0
"""Seconds from a failure that may pass until a pending turn is tried again."""


def due_of(
    agent_id: str,
    fold: Fold,
    *,
    turn_at: float | None,
    memory_at: float | None,
    summary_at: float | None = None,
    timers_from: float = 0.0,
) -> DueTime:
    """The first work that an agent owes. All times are epoch seconds. `turn_at`: the beginning of its running call;
    None between calls. `memory_at`: the time when memories came due; None if none are. `summary_at`: the beginning of a
    summary ahead of need; None if none is open. `timers_from`: no timer, and no late result, is tried before it.

    Timers and late results wait for the turn that is under way, and for a person's answer.
    """
    found: list[tuple[float, Why]] = []
    first = fold.next_timer
    questions = fold.interrupts
    if questions:
        ends = [one.expires_at for one in questions if one.expires_at is not None]
        if len(ends) == len(questions):  # Otherwise the turn waits for a person in any case.
            # The last one: only then is nobody left who may answer.
            found.append((max(ends), "expiry"))
    elif turn_at is not None and fold.last_message is not None and not is_answer(fold.last_message):
        at = turn_at if memory_at is None else min(turn_at, memory_at)
        # Alone: what is due besides waits for the turn, which would otherwise be buried under another prompt.
        return DueTime(agent_id=agent_id, at=at + GRACE_S, why="turn")  # Memories are looked after with it.
    if not questions and first is not None:
        found.append((max(first.at, timers_from), "timer"))
    if not questions and (fold.came or fold.deferred):
        result_at = due_at(fold, GRACE_S)
        if result_at is not None:
            found.append((max(result_at, timers_from), "result"))
    if fold.deferred and (run_at := runs_due_at(fold, GRACE_S)) is not None:  # Beside turns, and beside questions.
        found.append((run_at, "task"))
    if memory_at is not None:
        found.append((memory_at + GRACE_S, "memory"))
    if summary_at is not None:
        found.append((summary_at + GRACE_S, "summary"))
    # Also while a person is asked: the question itself may be what is to be delivered.
    if fold.outbox and (delivery_at := next_delivery_at(fold.outbox)) is not None:
        found.append((delivery_at + GRACE_S, "delivery"))
    if not found:
        return DueTime(agent_id=agent_id)
    at, why = min(found)
    return DueTime(agent_id=agent_id, at=at, why=why)


def due_at_rest(agent_id: str, fold: Fold, now: float) -> DueTime:
    """The work of an agent that nobody holds, and whose journal was changed or brought here: no turn is owed."""
    return due_of(agent_id, fold, turn_at=None, memory_at=now if memories_are_pending(fold.kept) else None)


class WorkTracker(ABC):
    """The work that an actor owes as its calls begin and end, by the journal that it writes."""

    __slots__ = ("_call_at", "_found", "_stated", "_timers_from")

    def __init__(self) -> None:
        self._call_at: float | None = None
        """The beginning of the call whose work is owed; None between calls."""
        self._timers_from = 0.0
        """The time before which no timer is tried."""
        self._stated: DueTime | None = None
        """The last statement to the store; None if it is not known."""
        self._found: Mapping[str, Timer] | None = None
        """The timers of a journal that was found in the middle of a turn, until somebody goes on with that or says that
        nobody does; else None.
        """

    def begin(self, fold: Fold, now: float) -> None:
        """The journal was opened. Of a new one the store knows nothing."""
        del now
        self._call_at = None
        # An owner before may have stated anything, so the first statement always goes out. Of a new journal nothing was
        # stated, and nothing pending needs no statement.
        self._stated = None if fold.last_seq else DueTime(agent_id="")
        unfinished = fold.last_message is not None and not is_answer(fold.last_message)
        self._found = fold.timers if unfinished else None

    def call_began(self, now: float) -> None:
        """Note that a call is served: until it has ended, its unfinished work is pending."""
        self._call_at, self._found, self._timers_from = now, None, 0.0

    def call_ended(self) -> bool:
        """Note that the caller has the result or the error. True if the call's work was pending until now."""
        began, self._call_at, self._timers_from = self._call_at, None, 0.0
        return began is not None

    def try_again_at(self, at: float) -> None:
        """Note that work which nobody waits for has failed, and may succeed later."""
        self._call_at, self._timers_from = at - GRACE_S, at

    def note_summary(self, now: float | None) -> None:
        """A summary is being made ahead of need, or is made and not recorded; None: there is none. Of agents alone."""
        del now

    def forget_stated(self) -> None:
        """State pending work in any case the next time."""
        self._stated = self._found = None

    def changed(self, agent_id: str, fold: Fold, now: float) -> DueTime | None:
        """The statement of pending work now; None if the store has it.

        A turn that was found unfinished may be owed: only the store knows. So what was known when it was found is not
        stated anew, and a result that has come since has that turn go on first.
        """
        if self._found is fold.timers and self._call_at is None and not begins_turns(fold):
            return None
        due, before = self._due(agent_id, fold, now), self._stated
        # A statement is one more line of a commit, so only changes are told. Without a time the reason means nothing.
        if before is not None and (before.at, before.why if before.at else due.why) == (due.at, due.why):
            return None
        self._stated = due
        return due

    @abstractmethod
    def _due(self, agent_id: str, fold: Fold, now: float) -> DueTime:
        """The first pending work now."""


class DueTimeTracker(WorkTracker):
    """The work that an active agent owes."""

    __slots__ = ("_claims_soon", "_memory_at", "summary_at")

    def __init__(self, claims_soon: Callable[[], bool] | None) -> None:
        """`claims_soon`: true if memories are extracted after the next answer; None without a memory."""
        super().__init__()
        self._claims_soon = claims_soon
        self._memory_at: float | None = None
        self.summary_at: float | None = None
        """The time since which a summary is made ahead of need, or made and not recorded; None: there is none."""

    def begin(self, fold: Fold, now: float) -> None:
        super().begin(fold, now)
        self._memory_at = now if memories_are_pending(fold.kept) else None
        self.summary_at = None

    def try_again_at(self, at: float) -> None:
        super().try_again_at(at)
        if self.summary_at is not None:
            self.summary_at = at - GRACE_S

    def memory_progressed(self, fold: Fold, now: float) -> None:
        """A memory store's progress was recorded."""
        # The first time stays: each step of a long extraction would put it off otherwise.
        self._memory_at = (self._memory_at or now) if memories_are_pending(fold.kept) else None

    def note_summary(self, now: float | None) -> None:
        self.summary_at = None if now is None else self.summary_at or now

    def _due(self, agent_id: str, fold: Fold, now: float) -> DueTime:
        if self._claims_soon is not None and self._call_at is not None and self._memory_at is None:
            answered = fold.last_message is not None and is_answer(fold.last_message)
            if answered and self._claims_soon():
                self._memory_at = now
        goes_on = self._found is not None and begins_turns(fold)
        return due_of(
            agent_id,
            fold,
            turn_at=now if goes_on and self._call_at is None else self._call_at,
            memory_at=self._memory_at,
            summary_at=self.summary_at,
            timers_from=self._timers_from,
        )


def memories_are_pending(stored: Mapping[str, Json]) -> bool:
    """True if any memory store has ranges to be extracted, or writes to be done, by the journal's last cursor record
    (`core/memory/progress.py`).
    """
    return any(isinstance(each, dict) and (each.get("pending") or each.get("again")) for each in stored.values())


def goes_on(why: str, pending: PendingTools, now: float) -> bool:
    """True if an agent that was woken goes on with its turn. Memories are looked after in any case. `now`: epoch
    seconds.
    """
    if pending.waiting:
        return why == "expiry" and all(one.is_over(now) for one in pending.waiting)
    return why == "turn" and pending.last is not None and not is_answer(pending.last)


def may_pass(error: BaseException | None) -> bool:
    """True if the work that failed so may succeed later. The failure of a run is that of its node."""
    while isinstance(error, NodeFailed):
        error = error.__cause__
    return isinstance(error, Retryable)


def begins_again(error: BaseException | None) -> bool:
    """True if a turn that nobody has called for is begun again after this failure: a store that is down costs no
    reminder, nor does a person whom another process has asked meanwhile.
    """
    return may_pass(error) or isinstance(error, SessionException | InterruptsWaiting)
