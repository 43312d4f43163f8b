"""The mailbox of an actor: a bounded lane of messages, and a lane of system messages, which are handled first.

The mailbox belongs to the address, so a restart keeps its messages. Taking a message and beginning its turn are one
step without an await, and a wake-up carries no message: nothing can be lost between the two.

A sender that waits for room keeps its message as well, and is given a place instead: asyncio can cancel a task whose
wait is over already, and a `send` that was cancelled promises that nothing was put. So the receiver cannot put the
message for it, as trio's channel does, and places are counted: queued messages and `_reserved` ones fill the capacity.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable, Mapping
from enum import Enum, StrEnum
from typing import Protocol

from msgspec import Struct

from repertory.errors import Invalid, MailboxFull
from repertory.logs import DEBUG, WARNING, note
from repertory.runtime.message import ORIGIN, Envelope, Reason, Waits, undelivered
from repertory.runtime.waker import Sleeper, Waiter


class Overflow(StrEnum):
    """The treatment of a message when the mailbox is full."""

    WAIT = "wait"
    """`send` and `ask` wait for room; `tell` raises `MailboxFull`."""
    REJECT = "reject"
    """Every sender gets `MailboxFull`."""
    DROP_OLDEST = "drop_oldest"
    """The oldest becomes a dead letter."""
    DROP_NEWEST = "drop_newest"
    """The new one becomes a dead letter."""


class MailboxSettings(Struct, frozen=True, kw_only=True):
    """The size of a mailbox, and what happens when it is full.

    Attributes:
        overflow: The treatment of a message when it is full.
    """

    capacity: int = 1000
    """Messages, not counting system messages. At least 1."""
    overflow: Overflow | str = Overflow.WAIT

    def __post_init__(self) -> None:
        if self.capacity < 1:
            raise Invalid("a mailbox holds at least one message", capacity=self.capacity)
        if self.overflow not in {policy.value for policy in Overflow}:
            raise Invalid("no such overflow policy", overflow=self.overflow, known=[p.value for p in Overflow])


class AcceptFrom(Enum):
    """The senders whose messages a mailbox accepts."""

    OPEN = "open"
    OWN = "own"
    """The actor itself and its jobs alone: it is draining."""
    CLOSED = "closed"


class AtOnce(Protocol):
    """The cell of an actor with `handle_now`."""

    @property
    def actor(self) -> object:
        """The actor that handles messages."""
        ...

    def handle_at_once(self, call: Envelope) -> bool:
        """Handle the message in its sender's step; False if it has to be queued."""
        ...


class WaitingSender:
    """A sender that waits for room."""

    __slots__ = ("granted", "waiter")

    def __init__(self, waiter: Waiter) -> None:
        self.waiter = waiter
        self.granted = False
        """True if a place in the queue is kept for it."""


class _NoQueue(deque[Envelope]):
    """The always empty queue of all actors without a task: a deque weighs as much as the rest of such an actor."""

    def append(self, envelope: Envelope, /) -> None:
        raise AssertionError("a message for an actor that rests is offered to its mailbox")


_NO_QUEUE = _NoQueue()


class Mailbox:
    """The queue of one address."""

    __slots__ = (
        "_dead_letters",
        "_intake",
        "_make_waiter",
        "_overflow",
        "_reserved",
        "at_once",
        "capacity",
        "kind",
        "lane",
        "queue",
        "room",
        "senders",
        "waiter",
        "waits",
    )

    def __init__(
        self, path: str, settings: MailboxSettings, dead_letters: DeadLetters, waiter: Callable[[], Waiter]
    ) -> None:
        self.capacity = settings.capacity
        """Messages, not counting system messages."""
        self._overflow = Overflow(settings.overflow)
        self._dead_letters = dead_letters
        self._make_waiter = waiter
        self.waiter: Sleeper | None = None
        """The future that an idle actor awaits, a new one each time; of an actor without a task, its cell."""
        self.at_once: AtOnce | None = None
        """The cell of an actor with `handle_now`, to be asked only while `waiter` is set: the actor is idle then."""
        self._intake = AcceptFrom.OPEN
        self._reserved = 0
        self.room = settings.capacity
        """The queue length from which on a sender must check further: the capacity less the reserved places, and 0
        while the actor drains, has ended or rests.
        """
        self.waits = Waits(path)
        self.kind = ""
        """The actor's class, for statistics."""
        self.queue: deque[Envelope] = deque()
        self.lane: deque[object] | None = None
        """The queue of system messages; None while there were none."""
        self.senders: deque[WaitingSender] | None = None
        """Senders that wait for room, in order."""

    def offer(self, envelope: Envelope) -> bool:
        """Add the envelope, or treat it as the overflow policy says. False if its sender has to wait for room.

        Raises:
            MailboxFull: Under the policy `reject`. Send again later.
        """
        if len(self.queue) >= self.room:
            return self._offer_at_limit(envelope)
        self.queue.append(envelope)
        # A future of a receiver that was cancelled in this instant is done already, and would raise
        # `InvalidStateError`.
        waiter = self.waiter  # As `wake`, without the call.
        if waiter is not None:
            self.waiter = None
            if not waiter.done():
                waiter.set_result(None)
        return True

    def rest(self, sleeper: Sleeper) -> None:
        """The actor is idle, and gives up its queue. Whoever has a message is told by `room` to offer it."""
        self.waiter, self.queue, self.room = sleeper, _NO_QUEUE, 0

    def rest_no_more(self) -> None:
        """Have a queue again."""
        if self.queue is _NO_QUEUE:
            self.queue = deque()
            self._reserve(0)

    def offer_system(self, message: object) -> None:
        """Add a system message: never refused, handled before all others."""
        if self.lane is None:
            self.lane = deque()
        self.lane.append(message)
        self.wake()

    async def offer_patiently(self, envelope: Envelope) -> None:
        """Add the envelope, waiting for room if need be. Cancelled, it was not added. Errors: as `offer`."""
        if self.offer(envelope):
            return
        sender = WaitingSender(self._make_waiter())
        if self.senders is None:
            self.senders = deque()
        self.senders.append(sender)
        try:
            await sender.waiter
        # Also for asyncio's own cancellation of a task whose wait is over: then a place is kept for it, which must go
        # to the next.
        except BaseException:
            self._give_up(sender)
            raise
        self._reserve(-1)
        # The actor may have stopped since the place was kept, in the steps between `set_result` and this one.
        if self._takes_from_here():
            self._append(envelope)
        else:
            self.dead_letter(envelope, Reason.STOPPED)

    def admit(self) -> None:
        """Keep each free place for one waiting sender, which fills it in its own step: there is room again."""
        while self.senders and len(self.queue) + self._reserved < self.capacity:
            self._grant(self.senders.popleft())

    def wake(self) -> None:
        """Wake the actor, if it is idle."""
        waiter, self.waiter = self.waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def drain(self) -> None:
        """Accept only the actor's own messages from now on."""
        self.rest_no_more()
        self._intake = AcceptFrom.OWN
        self._let_senders_go()

    def close(self) -> None:
        """Accept nothing more. Queued messages become dead letters."""
        # First, so that a subscriber of dead letters that sends something here gets a dead letter too, and not an
        # endless loop.
        self._intake = AcceptFrom.CLOSED
        self._let_senders_go()
        self.lane = None
        while self.queue:
            self.dead_letter(self.queue.popleft(), Reason.STOPPED)

    def dead_letter(self, envelope: Envelope, reason: Reason) -> None:
        """Make a dead letter of an envelope, and tell its asker, if it has one."""
        letter = DeadLetter(self.waits.path, self.kind, envelope.message, reason, envelope.asked)
        self._dead_letters.add(letter)
        envelope.fail(undelivered(envelope, reason, self.waits.path))

    def note_late_reply(self) -> None:
        """Count an answer whose asker had gone."""
        self._dead_letters.late_replies += 1

    def full(self) -> MailboxFull:
        """The error of a sender that does not wait."""
        return MailboxFull("the mailbox is at its bound", actor=self.waits.path, capacity=self.capacity)

    def _offer_at_limit(self, envelope: Envelope) -> bool:
        if self.queue is _NO_QUEUE:
            self.rest_no_more()
            return self.offer(envelope)
        if self._intake is not AcceptFrom.OPEN:
            if self._takes_from_here():
                self._append(envelope)
            else:
                self.dead_letter(envelope, Reason.STOPPED)
            return True
        match self._overflow:
            case Overflow.WAIT:
                return False
            case Overflow.REJECT:
                raise self.full()
            case Overflow.DROP_NEWEST:
                self.dead_letter(envelope, Reason.FULL)
            case Overflow.DROP_OLDEST:
                self.dead_letter(self.queue.popleft(), Reason.DROPPED)
                self._append(envelope)
        return True

    def _takes_from_here(self) -> bool:
        return self._intake is AcceptFrom.OPEN or (self._intake is AcceptFrom.OWN and ORIGIN.get().owner is self.waits)

    def _append(self, envelope: Envelope) -> None:
        self.rest_no_more()  # It may have begun to rest since its waiting sender was given a place.
        self.queue.append(envelope)
        self.wake()

    def _reserve(self, places: int) -> None:
        self._reserved += places
        queues = self._intake is AcceptFrom.OPEN and self.queue is not _NO_QUEUE
        self.room = self.capacity - self._reserved if queues else 0

    def _grant(self, sender: WaitingSender) -> None:
        """Let a waiting sender go on, unless it was cancelled in this very instant."""
        if not sender.waiter.done():
            sender.granted = True
            self._reserve(1)
            sender.waiter.set_result(None)

    def _give_up(self, sender: WaitingSender) -> None:
        """A waiting sender was cancelled: if a place was kept for it, the next one gets it."""
        if sender.granted:
            self._reserve(-1)
            self.admit()
        elif self.senders is not None and sender in self.senders:
            self.senders.remove(sender)

    def _let_senders_go(self) -> None:
        while self.senders:
            self._grant(self.senders.popleft())
        self._reserve(0)


# Dead letters: messages that no handler finished. They are counted, the last ones are kept, and subscribers see each.

# Every accepted tell ends in exactly one place: `processed` of its actor, or here.

_LOG = logging.getLogger("repertory.runtime")
_LOG_EVERY_S = 10.0


class DeadLetter(Struct, frozen=True):
    """One message that was not handled.

    Attributes:
        message: The message.
        reason: The reason why it was not handled.
    """

    path: str
    """The receiver's path."""
    kind: str
    """The receiver's class."""
    message: object
    reason: Reason
    asked: bool
    """True if the sender waited for an answer; it was told."""


class DeadLetters:
    """The dead letters of one system."""

    def __init__(self, now: Callable[[], float], keep: int) -> None:
        """
        Args:
            keep: The number of the last dead letters that are held.
        """
        self._now = now
        self._recent: deque[DeadLetter] = deque(maxlen=keep)
        self._counts: Counter[tuple[str, Reason]] = Counter()
        self._subscribers: list[Callable[[DeadLetter], None]] = []
        self.tells = 0
        """The number of tells among all dead letters."""
        self._unlogged = 0
        self._logged_at = -_LOG_EVERY_S
        self.late_replies = 0
        """Answers that came after the asker had gone."""

    @property
    def counts(self) -> Mapping[tuple[str, Reason], int]:
        """The number of dead letters, by the receiver's class and the reason."""
        return dict(self._counts)

    def recent(self) -> list[DeadLetter]:
        """The last dead letters, oldest first."""
        return list(self._recent)

    def subscribe(self, subscriber: Callable[[DeadLetter], None]) -> Callable[[], None]:
        """Show every further dead letter to `subscriber`, which must neither raise nor wait. Call the result to end
        it.
        """
        self._subscribers.append(subscriber)
        return lambda: self._subscribers.remove(subscriber)

    def add(self, letter: DeadLetter) -> None:
        """Add a dead letter. Never causes another one."""
        self.tells += not letter.asked
        self._counts[letter.kind, letter.reason] += 1
        self._recent.append(letter)
        # A copy, since a subscriber may end its subscription when it is called.
        for subscriber in tuple(self._subscribers):
            subscriber(letter)
        self._log(letter)

    def _log(self, letter: DeadLetter) -> None:
        """Log those of a full mailbox, at most one line in ten seconds with the number of them since the last. Others
        are usual: whoever stops, or no longer waits, leaves some.
        """
        fields = {"actor": letter.path, "last_message": type(letter.message).__name__, "reason": letter.reason.value}
        if letter.reason not in (Reason.FULL, Reason.DROPPED):
            note(_LOG, DEBUG, "a dead letter", **fields)
            return
        self._unlogged += 1
        now = self._now()
        if now - self._logged_at < _LOG_EVERY_S:
            return
        note(_LOG, WARNING, "dead letters: a mailbox is full", count=self._unlogged, **fields)
        self._unlogged, self._logged_at = 0, now
