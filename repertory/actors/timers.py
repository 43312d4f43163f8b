"""Fires the timers of one active session: each begins a turn that nobody waits for.

Not an actor: it belongs to the agent actor, in whose queue such a turn waits like any call. One stands there at a time.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from repertory.actors.call import ChangeTimers, Invocation, TimersDue
from repertory.core.journal.fold import is_answer
from repertory.core.owed import AGAIN_S
from repertory.core.timers import NOBODY_WAKES, Timer
from repertory.errors import Invalid, RepertoryError, Retryable, SessionException
from repertory.logs import WARNING, note
from repertory.runtime.message import Next, carry_on, refuse, reply

if TYPE_CHECKING:
    from repertory.actors.journal import ActorJournal
    from repertory.core.owed import OwedTimes
    from repertory.runtime.actor import Context
    from repertory.runtime.message import ReplySlot

_ALARM = "timers"
_LOOK_S = 600.0
"""The longest wait between two looks at the wall clock, which may be set meanwhile."""


class Unheard:
    """The channel of a call that nobody waits for."""

    publish = None
    followed = False

    def on_left(self, callback: Callable[[], None]) -> None:
        """Does nothing: nobody can leave."""
        del callback

    async def succeed(self, result: object) -> None:
        """Does nothing."""

    def fail(self, error: RepertoryError) -> None:
        """Does nothing: what becomes of the timer is decided where its turn ends."""


class TimerAlarm:
    """Begins the turns of an agent's timers as they come due."""

    __slots__ = (
        "_begun",
        "_call",
        "_closed",
        "_context",
        "_journal",
        "_owes",
        "_queued",
        "_ready",
        "_rests_until",
        "_servants",
    )

    def __init__(self, context: Context, journal: ActorJournal, owes: OwedTimes, call: Callable[[Timer], None]) -> None:
        """`call` queues the turn of a timer."""
        self._context = context
        self._journal = journal
        self._owes = owes
        self._call = call
        self._queued = False
        """Whether the turn of a timer is queued or runs."""
        self._begun: Timer | None = None
        """Of a turn that stopped early and is to go on: the timer, as it was."""
        self._rests_until = 0.0
        """After a failure that may pass, in epoch seconds."""
        self._closed = False
        self._servants: tuple[ReplySlot[None], ...] = ()
        last = journal.fold.last_message
        self._ready = last is None or is_answer(last)
        """False after opening in the middle of a turn: whoever woke the session, or calls, goes on with it first."""

    @property
    def rests(self) -> bool:
        """Whether a turn failed for a reason that may pass, and is tried again later."""
        return self._journal.wall() < self._rests_until

    def begin(self) -> None:
        """The agent has started."""
        self._set_alarm()

    def go_on(self) -> None:
        """Queue the next turn that is due, or wait until one is."""
        if self._queued:
            return
        timer = self._next_due()
        if timer is not None:
            self._queued = True
            self._call(timer)
            return
        servants, self._servants = self._servants, ()
        for servant in servants:
            servant.reply(None)
        self._set_alarm()

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

    def is_over(self, timer: Timer) -> bool:
        """True if it was cancelled or replaced while its turn waited for others; then that turn is not to begin."""
        over = timer != self._begun and self._journal.fold.timers.get(timer.id) != timer
        if over:
            self._queued = False
            self.go_on()
        return over

    def note_outcome(self, timer: Timer, outcome: object) -> None:
        """The turn of a timer has ended; nobody else learns how."""
        self._queued, self._begun = False, None
        if isinstance(outcome, Retryable | SessionException):
            self._log(timer, outcome, "is tried again")
            if self._journal.fold.timers.get(timer.id) != timer:  # Its prompt stands in the journal.
                self._begun = timer
            self._rests_until = self._journal.wall() + AGAIN_S
            self._owes.try_again_at(self._rests_until)
            return
        if isinstance(outcome, RepertoryError):
            self._log(timer, outcome, "has failed")
        self._rests_until = 0.0
        self._owes.call_ended()
        self._journal.fire(timer)
        self._journal.hand_over(soon=True)

    def _next_due(self) -> Timer | None:
        if not self._may_fire or self.rests:
            return None
        first = self._begun or self._journal.fold.next_timer
        return None if first is None or first.at > self._journal.wall() else first

    @property
    def _may_fire(self) -> bool:
        """Not while a person is asked: the turn that asks is not over."""
        return self._ready and not self._closed and not self._journal.fold.interrupts

    def _set_alarm(self) -> None:
        first = self._begun or self._journal.fold.next_timer
        if first is None or not self._may_fire:
            self._context.cancel_timer(_ALARM)
            return
        left_s = max(first.at, self._rests_until) - self._journal.wall()
        self._context.after(min(max(left_s, 0.0), _LOOK_S), TimersDue(), key=_ALARM)

    def _log(self, timer: Timer, error: Exception, what: str) -> None:
        note(self._context.logger, WARNING, f"the turn of a timer {what}", error, timer=timer.id, due=timer.at)

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
                book.set(message.timer_id, message.prompt, message.due)
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


def invocation_of(timer: Timer) -> Invocation:
    """The call that a timer makes."""
    return Invocation(
        prompt=timer.prompt,
        busy="queue",
        invocation_state={"request_state": {}},
        idempotency_token=timer.token,
        deadline=math.inf,
        timer=timer,
    )
