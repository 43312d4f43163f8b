"""Records the summaries of one agent that are made ahead of need, between two turns, for those who owe them.

Not an actor: it belongs to the agent actor, whose queue it uses. Where no summary is made ahead of need there is none.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from repertory.actors.between_turns import RecordSummary, SummarySettled
from repertory.actors.conversation import Settle, Tidy
from repertory.core.journal.fold import is_answer
from repertory.core.turns.due_times import may_pass
from repertory.errors import Failed, RepertoryError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from repertory.actors.context import ActiveAgent
    from repertory.core.turns.due_times import DueTimeTracker
    from repertory.runtime.message import ReplySlot


class SummaryRecorder:
    """The summaries of one active agent that are to be recorded while no turn runs."""

    __slots__ = ("_agent", "_due", "_go_on", "_pending_work", "_settling", "_slots")

    def __init__(self, agent: ActiveAgent, pending_work: DueTimeTracker | None, go_on: Callable[[], None]) -> None:
        """`pending_work`: None where nobody can wake the session. `go_on` has the agent ask for the `next` work."""
        self._agent = agent
        self._pending_work = pending_work
        self._go_on = go_on
        self._due: RecordSummary | None = None
        """The summary to record before the next call; None without one."""
        self._settling = False
        """True while a job waits for a summary that is made ahead of need."""
        self._slots: list[ReplySlot[None]] = []

    def take(self, message: RecordSummary) -> None:
        """Record the summary before the next call, and answer when none is open."""
        self._slots.append(self._agent.context.defer())
        self._due = message
        self._go_on()

    def look(self) -> None:
        """Record a summary that has been made before the next call, if there is one."""
        self._due = self._due or RecordSummary()
        self._go_on()

    def settled(self) -> None:
        """A summary was made, or could not be."""
        self._settling = False
        self.look()

    def next(self) -> Awaitable[None] | None:
        """The work to do before the next call; None without any."""
        due, self._due = self._due, None
        return None if due is None else self._record(due)

    def answer(self, failed: Exception | None = None) -> None:
        """Answer those who wait. `failed`: why the summary could not be made."""
        while self._slots:
            slot = self._slots.pop()
            if failed is None:
                slot.reply(None)
            elif isinstance(failed, RepertoryError):
                slot.fail(failed)
            else:
                slot.fail(Failed("the summary could not be made", cause=repr(failed)))

    async def _record(self, wanted: RecordSummary) -> None:
        journal = self._agent.journal
        last = journal.fold.last_message
        if last is None or not is_answer(last):  # The turn goes on first, and takes the summary in.
            self.answer()
            return
        tidy = Tidy(added=journal.take_unshown(), again=True, recovering=wanted.recovering, between=True)
        view = await self._agent.conversation.ask(tidy, timeout_s=math.inf)
        for change in view.views:
            journal.add_view(change)
        if self._pending_work is not None:
            self._pending_work.note_summary(journal.wall() if view.ahead or may_pass(view.failed) else None)
        journal.hand_over(soon=True)
        # A summary that could not be made is pending no more, and no row would say so.
        journal.state_due()
        if not view.ahead:
            self.answer(view.failed)
        elif not self._settling:
            self._settling = True
            self._agent.context.job(self._settle, name="summary")

    async def _settle(self) -> None:
        await self._agent.conversation.ask(Settle(), timeout_s=math.inf)
        self._agent.context.self_ref.tell(SummarySettled())
