"""Messages: their base classes, the results of handlers, and the envelopes in which messages travel.

A message is a frozen dataclass. One that derives from `Ask[R]` is answered with an R, one that derives from `Stream[E]`
with any number of Es; one that derives from neither is told and not answered.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from enum import Enum
from typing import TYPE_CHECKING, ClassVar, Generic, Literal, Protocol, TypeAlias, TypeVar

from repertory.errors import ActorDead, AskTimeout, MailboxFull

if TYPE_CHECKING:
    from repertory.runtime.waker import Waiter


class Reason(Enum):
    """The reason for which a message was not handled."""

    STOPPED = "stopped"
    """The receiver had stopped, or stopped before the message's turn came."""
    FULL = "full"
    """The mailbox was full and drops the newest."""
    DROPPED = "dropped"
    """The message was the oldest in a full mailbox that drops the oldest."""
    EXPIRED = "expired"
    """The asker's deadline passed while it waited in the mailbox."""
    ABANDONED = "abandoned"
    """The asker was cancelled, or the reader left, while it waited in the mailbox."""
    CANCELLED = "cancelled"
    """The receiver was killed in the middle of its turn."""
    REJECTED = "rejected"
    """The handler refused it, and its sender did not wait for an answer."""


R_co = TypeVar("R_co", covariant=True)
E_co = TypeVar("E_co", covariant=True)

OnAbandon: TypeAlias = Literal["finish", "cancel"]


class Ask(Generic[R_co]):
    """A message that is answered once, with an R.

    `on_abandon` decides what happens to a turn whose asker has timed out or was cancelled: `finish` runs it to its end
    (writes), `cancel` cancels it at once (generation without a reader). A message that still waits in the mailbox is
    never run then.

    Attributes:
        on_abandon: `finish` or `cancel`.
    """

    __slots__ = ()
    on_abandon: ClassVar[OnAbandon] = "finish"


class Stream(Generic[E_co]):
    """A message that is answered with many Es, at the reader's pace."""

    __slots__ = ()


# The results of a handler: a closed set, built by the functions below.
#
# `carry_on()`, `reply(value)`, `refuse(error)`, `stop()`, `stop(reply=value)`, `fail(error)`; and `raise Reject(error)`
# from any depth, which does the same as `refuse`. Plain slotted classes, since one is made for every message.


class Unanswered(Enum):
    """The value of a `Stop` that answers no asker."""

    UNANSWERED = "unanswered"


class CarryOn:
    """Take the next message, without an answer."""

    __slots__ = ()


class Reply:
    """Answer the asker with `value`, then take the next message.

    Args:
        value: The answer.
    """

    __slots__ = ("value",)

    def __init__(self, value: object) -> None:
        self.value = value


class Refuse:
    """Give `error` to the asker alone, then take the next message. A refused tell becomes a dead letter.

    Args:
        error: The error for the asker.
    """

    __slots__ = ("error",)

    def __init__(self, error: Exception) -> None:
        self.error = error


class Stop:
    """End this actor for the reason `Normal`, after answering the asker if a reply was given.

    Args:
        value: The answer, if one was given.
    """

    __slots__ = ("value",)

    def __init__(self, value: object) -> None:
        self.value = value


class Fail:
    """End this incarnation for the reason `ExitFailed(error)`; the supervisor decides. The asker gets `ActorFailed`.

    Args:
        error: The error.
    """

    __slots__ = ("error",)

    def __init__(self, error: Exception) -> None:
        self.error = error


Next: TypeAlias = CarryOn | Reply | Refuse | Stop | Fail

CARRY_ON = CarryOn()

reply = Reply
refuse = Refuse
fail = Fail


class Reject(Exception):
    """Raised inside a handler to refuse the message from any depth: `error` goes to the asker, the actor lives.

    Args:
        error: The error for the asker.
    """

    def __init__(self, error: Exception) -> None:
        self.error = error
        super().__init__(error)


def carry_on() -> CarryOn:
    """Take the next message. An ask that was neither answered nor deferred fails with `ActorFailed`."""
    return CARRY_ON


def stop(*, reply: object = Unanswered.UNANSWERED) -> Stop:
    """End this actor for the reason `Normal`. Queued messages become dead letters; queued asks get `ActorDead`.

    Args:
        reply: The answer to the asker; without it an ask fails.
    """
    return Stop(reply)


# The calling actor of the running code: what an ask inherits from the turn or job that sends it.

# There is one record per incarnation and per job, in a context variable that is set once for the task. A turn changes
# the record's fields, which is cheaper than setting a variable for every message.


class CallContext:
    """The actor that the running code belongs to.

    `waits` is that actor if its turn waits for the answers of asks made here; `owner` is set in its jobs too.
    """

    __slots__ = ("deadline", "owner", "trace", "waits")

    def __init__(self, owner: Waits | None, waits: Waits | None, trace: object = None) -> None:
        self.owner = owner
        self.waits = waits
        self.deadline = math.inf
        self.trace = trace


OUTSIDE = CallContext(None, None)

ORIGIN: ContextVar[CallContext] = ContextVar("repertory_origin", default=OUTSIDE)


def current_trace() -> object:
    """The trace token of messages sent from here; None without one."""
    return ORIGIN.get().trace


@contextmanager
def traced(token: object) -> Generator[None]:
    """Messages sent inside the block carry `token`, and so do the messages that they cause. The runtime never reads
    it.
    """
    outer = ORIGIN.get()
    # A record of its own, since the outer one is shared by all tasks of the turn, which keep their token.
    inner = CallContext(outer.owner, outer.waits, token)
    inner.deadline = outer.deadline
    reset = ORIGIN.set(inner)
    try:
        yield
    finally:
        ORIGIN.reset(reset)


# The wait-for graph, in which a deadlock of asks is found before it happens.
#
# A chain of calls is not enough: two independent chains can block each other. Each node knows the actors that its turn
# waits for; an ask that would close a circle raises instead of waiting. Asks from jobs have no edge, since the actor's
# mailbox goes on meanwhile.


class Waits:
    """An actor in the graph of waiting actors."""

    __slots__ = ("path", "waiting_on")

    def __init__(self, path: str) -> None:
        self.path = path
        self.waiting_on: tuple[Waits, ...] = ()
        """The actors whose answers its running turn awaits; more than one if a handler asks from several tasks."""

    def wait_for(self, other: Waits) -> None:
        # A tuple, though it is copied: nearly all actors wait for nobody, and share the empty one.
        self.waiting_on += (other,)

    def wait_no_more_for(self, other: Waits) -> None:
        """Undo one `wait_for`."""
        remaining = list(self.waiting_on)
        remaining.remove(other)
        self.waiting_on = tuple(remaining)


def find_circle(asker: Waits, target: Waits) -> list[Waits] | None:
    """The path from `target` back to `asker` along the edges, both included; None if there is none."""
    if asker is target:
        return [target]
    trail: list[Waits] = [target]
    return trail if target.waiting_on and _leads_to(asker, trail, {target}) else None


def _leads_to(asker: Waits, trail: list[Waits], seen: set[Waits]) -> bool:
    for following in trail[-1].waiting_on:
        if following in seen:
            continue
        seen.add(following)
        trail.append(following)
        if following is asker or _leads_to(asker, trail, seen):
            return True
        trail.pop()
    return False


# A message on its way: its trace, its deadline, and the asker that waits for the reply.

# `Envelope` is a tell, `AskEnvelope` an ask; a stream's is in `channel.py`. An ask is answered at most once: later
# answers, and answers after the asker has gone, are dropped and counted.


class Receiver(Protocol):
    """The receiving mailbox, as its envelopes see it."""

    @property
    def waits(self) -> Waits: ...

    def note_late_reply(self) -> None: ...


class Envelope:
    """A message that was told."""

    __slots__ = ("at", "message", "trace")

    asked = False
    cancellable = False
    """True if its turn is cancelled once the asker has gone."""
    deadline: float = math.inf
    gone: Reason | None = None

    def __init__(self, message: object, at: float, trace: object) -> None:
        self.message = message
        self.at = at
        self.trace = trace

    def reply(self, value: object) -> None:
        """Do nothing: a tell has no asker."""

    def fail(self, error: Exception) -> None:
        """Do nothing: a tell has no asker."""

    def unanswered(self) -> bool:
        """True if an asker waits and no answer was given or deferred."""
        return False

    def on_gone(self, cancel: Callable[[], None]) -> None:
        """Call `cancel` when the asker goes. A tell has none."""


class Note(Envelope):
    """A message of the runtime's own, such as a timer's. It is not counted."""

    __slots__ = ()


class Request(Envelope):
    """A message whose sender waits for an answer."""

    __slots__ = ("_cancel_turn", "_edge", "cancellable", "deadline", "deferred", "gone", "receiver")

    asked = True

    def __init__(self, message: object, at: float, trace: object, deadline: float, receiver: Receiver) -> None:
        self.message = message
        self.at = at
        self.trace = trace
        self.deadline = deadline
        self.receiver = receiver
        self.gone: Reason | None = None
        """The reason why the asker no longer waits: `EXPIRED` or `ABANDONED`; None while it waits."""
        self.deferred: list[Request] | None = None
        """The list that holds a deferred request until it is answered; None if it was not deferred."""
        self.cancellable = False
        self._cancel_turn: Callable[[], None] | None = None
        self._edge: Waits | None = None

    def unanswered(self) -> bool:
        """True if no answer was given or deferred."""
        return self.deferred is None

    def on_gone(self, cancel: Callable[[], None]) -> None:
        """Call `cancel` when the asker goes."""
        self._cancel_turn = cancel

    def draw_edge(self, asker: Waits) -> None:
        """Record that the asker's turn waits for the receiver from here on."""
        asker.wait_for(self.receiver.waits)
        self._edge = asker

    def lift_edge(self) -> None:
        """The asker's turn no longer waits for the receiver's turn."""
        asker, self._edge = self._edge, None
        if asker is not None:
            asker.wait_no_more_for(self.receiver.waits)

    def leave(self, reason: Reason) -> None:
        """The asker has gone."""
        if self.gone is None:
            self.gone = reason
            self.release()
            if self._cancel_turn is not None:
                self._cancel_turn()

    def release(self) -> None:
        """Remove it from the deferred requests: it is answered."""
        if self.deferred is not None:
            self.deferred.remove(self)
            self.deferred = None


class AskEnvelope(Request):
    """A message that is answered once."""

    __slots__ = ("_waiter", "answered", "error", "value")

    def __init__(
        self, message: Ask[object], at: float, trace: object, deadline: float, receiver: Receiver, waiter: Waiter
    ) -> None:
        # Written out instead of calling the base class, because one is made for every ask.
        self.message = message
        self.at = at
        self.trace = trace
        self.deadline = deadline
        self.receiver = receiver
        self.gone = None
        self.deferred = None
        self.cancellable = message.on_abandon == "cancel"
        self._cancel_turn = None
        self._edge = None
        self._waiter = waiter
        self.answered = False
        self.error: Exception | None = None
        self.value: object = None

    @property
    def open(self) -> bool:
        return not self.answered and self.gone is None

    def unanswered(self) -> bool:
        """True if no answer was given or deferred."""
        return not self.answered and self.deferred is None

    def reply(self, value: object) -> None:
        """Give the answer to the asker, unless it was answered or has gone."""
        if self.answered or self.gone is not None:
            # Counted: many of them say that timeouts are too short for the work.
            self.receiver.note_late_reply()
            return
        self.value = value
        self.answered = True
        if self.deferred is not None:
            self.release()
        if not self._waiter.done():
            self._waiter.set_result(None)

    def fail(self, error: Exception) -> None:
        """Raise `error` in the asker, unless it was answered or has gone."""
        if not self.answered and self.gone is None:
            self.error = error
            self._settle()

    def expire(self) -> None:
        if not self.answered and self.gone is None:
            self.error = timed_out(self)
            self.leave(Reason.EXPIRED)
            self._settle()

    def _settle(self) -> None:
        self.answered = True
        if self.deferred is not None:
            self.release()
        if not self._waiter.done():
            self._waiter.set_result(None)


def timed_out(request: Request) -> AskTimeout:
    """The error of an ask that was not answered in time."""
    waited = round(request.deadline - request.at, 3)
    return AskTimeout("no answer in time", actor=request.receiver.waits.path, message=_name(request), waited_s=waited)


def undelivered(request: Envelope, reason: Reason, path: str) -> Exception:
    """The asker's error if its message was not handled."""
    fields = {"actor": path, "message": _name(request)}
    match reason:
        case Reason.FULL | Reason.DROPPED:
            return MailboxFull("the mailbox is at its bound", **fields)
        case Reason.EXPIRED:
            return AskTimeout("no answer in time", **fields)
        case _:
            return ActorDead("the actor stopped before it answered", **fields)


def _name(envelope: Envelope) -> str:
    return type(envelope.message).__name__


R_contra = TypeVar("R_contra", contravariant=True)


class ReplySlot(Protocol[R_contra]):
    """One asker's place for one answer, taken with `context.defer()`.

    The first of `reply` and `fail` counts; an answer to an asker that has gone is dropped and counted. A slot that is
    still open when the incarnation ends fails with `ActorDead`.
    """

    @property
    def open(self) -> bool:
        """True if the asker still waits."""
        ...

    def reply(self, value: R_contra) -> None:
        """Give the answer to the asker."""
        ...

    def fail(self, error: Exception) -> None:
        """Raise `error` in the asker."""
        ...

    def on_gone(self, cancel: Callable[[], None]) -> None:
        """Call `cancel` when the asker goes before it is answered, so that its work can be stopped."""
        ...
