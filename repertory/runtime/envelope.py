"""A message on its way: its trace, its deadline, and the asker that waits for the reply.

`Envelope` is a tell, `AskEnvelope` an ask; a stream's is in `channel.py`. An ask is answered at most once: later
answers, and answers after the asker has gone, are dropped and counted.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from repertory.errors import ActorDead, AskTimeout, MailboxFull
from repertory.runtime.call_context import Waits
from repertory.runtime.dead_letters import Reason
from repertory.runtime.message import Ask

if TYPE_CHECKING:
    from repertory.runtime.waker import Waiter


class Receiver(Protocol):
    """What an envelope knows of the mailbox that it is sent to."""

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

    def answer(self, value: object) -> None:
        """Does nothing: a tell has no asker."""

    def fail(self, error: Exception) -> None:
        """Does nothing: a tell has no asker."""

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

    __slots__ = ("_cancel_turn", "_edge", "cancellable", "deadline", "gone", "kept", "receiver")

    asked = True

    def __init__(self, message: object, at: float, trace: object, deadline: float, receiver: Receiver) -> None:
        self.message = message
        self.at = at
        self.trace = trace
        self.deadline = deadline
        self.receiver = receiver
        self.gone: Reason | None = None
        """Set when the asker no longer waits: `EXPIRED` or `ABANDONED`."""
        self.kept: set[Request] | None = None
        """Where a deferred request is kept until it is answered."""
        self.cancellable = False
        self._cancel_turn: Callable[[], None] | None = None
        self._edge: Waits | None = None

    def unanswered(self) -> bool:
        """True if no answer was given or deferred."""
        return self.kept is None

    def on_gone(self, cancel: Callable[[], None]) -> None:
        """Call `cancel` when the asker goes."""
        self._cancel_turn = cancel

    def draw_edge(self, asker: Waits) -> None:
        """From here on the asker's turn waits for the receiver."""
        asker.waiting_on.append(self.receiver.waits)
        self._edge = asker

    def lift_edge(self) -> None:
        """The asker's turn no longer waits for the receiver's turn."""
        asker, self._edge = self._edge, None
        if asker is not None:
            asker.waiting_on.remove(self.receiver.waits)

    def keep_in(self, kept: set[Request]) -> None:
        """Defer the answer to after the turn's end."""
        self.lift_edge()
        kept.add(self)
        self.kept = kept

    def leave(self, reason: Reason) -> None:
        """The asker has gone."""
        if self.gone is None:
            self.gone = reason
            self.release()
            if self._cancel_turn is not None:
                self._cancel_turn()

    def release(self) -> None:
        """Remove it from the deferred requests: it is answered."""
        if self.kept is not None:
            self.kept.discard(self)
            self.kept = None


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
        self.kept = None
        self.cancellable = message.on_abandon == "cancel"
        self._cancel_turn = None
        self._edge = None
        self._waiter = waiter
        self.answered = False
        self.error: Exception | None = None
        self.value: object = None

    def unanswered(self) -> bool:
        """True if no answer was given or deferred."""
        return not self.answered and self.kept is None

    def answer(self, value: object) -> None:
        """Give the answer to the asker, unless it was answered or has gone."""
        if self.answered or self.gone is not None:
            self.receiver.note_late_reply()
            return
        self.value = value
        self.answered = True
        if self.kept is not None:
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
        if self.kept is not None:
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


class ReplySlot(Generic[R_contra]):
    """One asker's place for one answer, taken with `context.defer()`.

    The first of `reply` and `fail` counts; an answer to an asker that has gone is dropped and counted. A slot that is
    still open when the incarnation ends fails with `ActorDead`.
    """

    __slots__ = ("_call",)

    def __init__(self, call: AskEnvelope) -> None:
        self._call = call

    @property
    def open(self) -> bool:
        """True if the asker still waits."""
        return not self._call.answered and self._call.gone is None

    def reply(self, value: R_contra) -> None:
        self._call.answer(value)

    def fail(self, error: Exception) -> None:
        """Raise `error` in the asker."""
        self._call.fail(error)

    def on_gone(self, cancel: Callable[[], None]) -> None:
        """Call `cancel` when the asker goes before it is answered, so that its work can be stopped."""
        self._call.on_gone(cancel)
