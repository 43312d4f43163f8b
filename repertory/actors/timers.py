"""Begins the turns of one active session that nobody waits for: of its timers, and of results that came later.

Not an actor: it belongs to the agent actor, in whose queue such a turn waits like any call. One stands there at a time.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from msgspec.structs import replace

from repertory.actors.call import ChangeTimers, Invocation, TimersDue
from repertory.core.deferral import Telling, next_expiry
from repertory.core.journal.deferrals import begins_turns, stands, telling
from repertory.core.journal.fold import is_answer
from repertory.core.timers import NOBODY_WAKES, first_known
from repertory.core.turns.due_times import AGAIN_S, begins_again
from repertory.errors import Invalid, RepertoryError, Unavailable
from repertory.logs import WARNING, note
from repertory.runtime.message import Next, carry_on, refuse, reply

if TYPE_CHECKING:
    from repertory.actors.call import DueTurn
    from repertory.actors.journal import ActorJournal
    from repertory.core.timers import Timer
    from repertory.core.turns.due_times import WorkTracker
    from repertory.runtime.actor import Context
    from repertory.runtime.message import ReplySlot

_ALARM = "timers"
_LOOK_S = 600.0
"""The longest wait between two looks at the wall clock, which may be set meanwhile."""


class NoCaller:
    """The channel of a call that nobody waits for."""

    publish = None

    def goes_on_alone(self) -> bool:
        """True, though nobody asks: there is no caller who could leave."""
        return True

    def wait_no_more(self) -> None:
        """Does nothing: nobody reads."""

    async def succeed(self, result: object) -> None:
        """Does nothing."""

    def fail(self, error: RepertoryError) -> None:
        """Does nothing: what becomes of it is decided where its turn ends."""


_GOING_ON = Telling()
"""The turn that was found cut short, when a result has come."""


class TimerAlarm:
    """Begins an agent's turns that nobody calls for, as they come due."""

    __slots__ = (
        "_begun",
        "_call",
        "_closed",
        "_context",
        "_holds",
        "_journal",
        "_pending_work",
        "_queued",
        "_ready",
        "_rests_until",
        "_servants",
        "_unknown_until",
    )

    def __init__(
        self,
        context: Context,
        journal: ActorJournal,
        pending_work: WorkTracker | None,
        call: Callable[[DueTurn], None],
        *,
        holds: Callable[[], bool] = lambda: False,
        ready: bool = True,
    ) -> None:
        """`call` queues a turn that is due. `pending_work`: None where nobody wakes the session. `holds`: whether
        a run waits for a person. `ready`: False in the middle of a run.
        """
        self._context = context
        self._journal = journal
        self._pending_work = pending_work
        self._call = call
        self._holds = holds
        self._queued = False
        """True while a turn that was due is queued or runs."""
        self._begun: DueTurn | None = None
        """The cause of a turn that stopped early and is to go on; None without one."""
        self._rests_until = 0.0
        """The epoch seconds until which no turn begins, after a failure that may pass."""
        self._unknown_until = 0.0
        """The epoch seconds until which nobody looks again for a time zone that this machine does not know."""
        self._closed = False
        self._servants: tuple[ReplySlot[None], ...] = ()
        last = journal.fold.last_message
        self._ready = ready and (last is None or is_answer(last))
        """False after opening in the middle of a turn: whoever woke the session, or calls, goes on with it first."""

    @property
    def rests(self) -> bool:
        """True if a turn failed for a reason that may pass, and is tried again later."""
        return self._journal.wall() < self._rests_until

    def begin(self) -> None:
        """Set the alarm: the agent has started."""
        self._set_alarm()

    def go_on(self) -> None:
        """Queue the next turn that is due, or wait until one is."""
        if self._queued:
            return
        fold = self._journal.fold
        waits = self._begun is not None or bool(fold.timers or fold.came or fold.deferred)
        due = self._next_due() if waits else None
        if due is not None:
            self._queued = True
            # Before the call, which may be refused in this very step.
            self._call(due)
            return
        servants, self._servants = self._servants, ()
        for servant in servants:
            servant.reply(None)
        if waits:
            self._set_alarm()
        else:
            self._context.cancel_timer(_ALARM)

    def serve(self) -> Next:
        """Answer when no timer is due any more, or may be fired now. No turn is to go on first."""
        self._ready = True
        self._servants = (*self._servants, self._context.defer())
        self.go_on()
        return carry_on()

    def note_call_ended(self) -> None:
        """Any call has ended, so none that was found half done is to go on first."""
        self._ready = True
        self.go_on()

    def close(self, *, at_once: bool) -> None:
        """No more turns are begun. `at_once`: those that waited were refused."""
        self._closed = True
        self._queued = self._queued and not at_once
        self.go_on()

    def give_back(self) -> None:
        """The turn that waited for others is begun later, or by the next owner of the session."""
        self._queued = False

    def skips(self, due: DueTurn) -> bool:
        """True if a turn that waited for others is not to begin now: its timer was cancelled or replaced, another turn
        has told the results, or the turn before it asks a person, after whose answer it begins.
        """
        if self._asks:
            self.give_back()
            return True
        self._first_timer()
        over = due != self._begun and self._is_settled(due)
        if over:
            self._queued = False
            self.go_on()
        return over

    def _is_settled(self, due: DueTurn) -> bool:
        """True if the journal has the cause with which the turn was to begin, or has taken it back."""
        fold = self._journal.fold
        if due == _GOING_ON:
            return self._ready or not self._is_unfinished
        return not stands(fold, due.id) if isinstance(due, Telling) else fold.timers.get(due.id) != due

    def note_outcome(self, due: DueTurn, outcome: object) -> None:
        """A turn that was due has ended; nobody else learns how."""
        self._queued, self._begun = False, None
        if isinstance(outcome, RepertoryError) and begins_again(outcome):
            self._log(due, outcome, "is tried again")
            if self._is_unfinished if due == _GOING_ON else self._is_settled(due):  # Its prompt stands in the journal.
                self._begun = due
            self._rest()
            return
        if isinstance(outcome, RepertoryError):
            self._log(due, outcome, "has failed")
        self._rests_until = 0.0
        if self._pending_work is not None:
            self._pending_work.call_ended()
        if isinstance(due, Telling):
            self._journal.hold_results(
                due.ids, failed=isinstance(outcome, RepertoryError)
            )  # Those that it has not told.
        else:
            # A timer that fails for good is used up: tried again, it would fail each time.
            self._journal.fire(due)
        self._journal.hand_over(soon=True)

    def _rest(self) -> None:
        self._rests_until = self._journal.wall() + AGAIN_S
        if self._pending_work is not None:
            self._pending_work.try_again_at(self._rests_until)

    def _next_due(self) -> DueTurn | None:
        fold = self._journal.fold
        # A result came to a turn that was found cut short: it goes on first, and its tools may still be the ones that
        # the result is for.
        if not (self._ready or self._closed or self.rests or fold.interrupts) and begins_turns(fold):
            return _GOING_ON
        if not self._may_fire or self.rests:
            return None
        timer = self._first_timer()
        first = self._begun or self._telling() or timer
        return None if first is None or first.at > self._journal.wall() else first

    def _first_timer(self) -> Timer | None:
        """The first timer, when those that are due no more have moved to their next times. One in a time zone that this
        machine does not know waits, since another machine may know it.
        """
        first, now = self._journal.fold.next_timer, self._journal.wall()
        if first is None or first.at > now:
            return first
        self._journal.pass_missed()
        self._journal.hand_over(soon=True)
        first = self._journal.fold.next_timer
        found = first_known(self._journal.fold.timers, first, now)
        if first is not None and first is not found:
            if now >= self._unknown_until:
                self._unknown_until = now + AGAIN_S
                error = Unavailable("this machine does not know the time zone; install tzdata", tz=first.tz)
                self._log(first, error, "is tried again")
            if self._pending_work is not None:
                self._pending_work.try_again_at(self._unknown_until)
        return found

    def _telling(self) -> Telling | None:
        """The turn that tells results that have come, or that none has come in time."""
        fold = self._journal.fold
        if not (fold.deferred or fold.came):
            return None
        # Here, where a turn is about to tell it: an expired tool is one more thing that has come.
        self._journal.expire_deferred()
        self._journal.hand_over(soon=True)
        found = telling(fold)
        # A clock that was set back would have the result wait for as long.
        return None if found is None else replace(found, at=min(found.at, self._journal.wall()))

    @property
    def _is_unfinished(self) -> bool:
        fold = self._journal.fold
        return not fold.interrupts and fold.last_message is not None and not is_answer(fold.last_message)

    @property
    def _may_fire(self) -> bool:
        """True if a turn may begin; False while a person is asked: the turn that asks is not over."""
        return self._ready and not self._closed and not self._asks

    @property
    def _asks(self) -> bool:
        return bool(self._journal.fold.interrupts) or self._holds()

    def _set_alarm(self) -> None:
        fold = self._journal.fold
        first = first_known(fold.timers, fold.next_timer, self._journal.wall())
        times = [due.at for due in (self._begun, first) if due is not None]
        if first is not fold.next_timer:
            times.append(self._unknown_until)
        expiry = next_expiry(fold.deferred) if fold.deferred else None
        if expiry is not None:
            times.append(expiry)
        if begins_turns(fold):
            times.append(0.0)
        if not times or not self._may_fire:
            self._context.cancel_timer(_ALARM)
            return
        remaining_s = max(min(times), self._rests_until) - self._journal.wall()
        self._context.after(min(max(remaining_s, 0.0), _LOOK_S), TimersDue(), key=_ALARM)

    def _log(self, due: DueTurn, error: Exception, what: str) -> None:
        kind = "of late results" if isinstance(due, Telling) else "of a timer"
        note(self._context.logger, WARNING, f"the turn {kind} {what}", error, timer=due.id, due=due.at)

    # Changes that programs ask for.

    def change(self, message: ChangeTimers) -> Next:
        """Set or cancel a timer; answered when that is stored."""
        book = self._journal.timers
        if book is None:
            return refuse(Invalid(NOBODY_WAKES))
        if message.due is None:
            if not book.cancel(message.timer_id):
                return reply(False)
        else:
            try:
                book.set(message.timer_id, message.prompt, message.due, message.deliver_to)
            except RepertoryError as error:
                return refuse(error)
        self._journal.add_timers()
        self._journal.hand_over(soon=True)
        self._context.job(self._store, self._context.defer(), name="timers")
        self.go_on()
        return carry_on()

    async def _store(self, slot: ReplySlot[bool]) -> None:
        try:
            await self._journal.commit()
        except RepertoryError as error:
            slot.fail(error)
        else:
            slot.reply(True)


def invocation_of(due: DueTurn) -> Invocation:
    """The call that a session makes by itself."""
    return Invocation(
        prompt=None if isinstance(due, Telling) else due.prompt,
        busy="queue",
        invocation_state={"request_state": {}},
        idempotency_token=due.token,
        deadline=math.inf,
        deliver_to=due.deliver_to,
        due=due,
    )
