"""The base classes of messages that are answered, and the results of handlers.

A message is a frozen dataclass. One that derives from `Ask[R]` is answered with an R, one that derives from `Stream[E]`
with any number of Es; one that derives from neither is told and not answered.
"""

from __future__ import annotations

from enum import Enum
from typing import ClassVar, Generic, Literal, TypeAlias, TypeVar

R_co = TypeVar("R_co", covariant=True)
E_co = TypeVar("E_co", covariant=True)

OnAbandon: TypeAlias = Literal["finish", "cancel"]


class Ask(Generic[R_co]):
    """A message that is answered once, with an R.

    `on_abandon` decides what happens to a turn whose asker has timed out or was cancelled: `finish` runs it to its end
    (writes), `cancel` cancels it at once (generation without a reader). A message that still waits in the mailbox is
    never run then.
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
    """Answer the asker with `value`, then take the next message."""

    __slots__ = ("value",)

    def __init__(self, value: object) -> None:
        self.value = value


class Refuse:
    """Give `error` to the asker alone, then take the next message. A refused tell becomes a dead letter."""

    __slots__ = ("error",)

    def __init__(self, error: Exception) -> None:
        self.error = error


class Stop:
    """End this actor for the reason `Normal`, after answering the asker if a reply was given."""

    __slots__ = ("value",)

    def __init__(self, value: object) -> None:
        self.value = value


class Fail:
    """End this incarnation for the reason `ExitFailed(error)`; the supervisor decides. The asker gets `ActorFailed`."""

    __slots__ = ("error",)

    def __init__(self, error: Exception) -> None:
        self.error = error


Next: TypeAlias = CarryOn | Reply | Refuse | Stop | Fail

CARRY_ON = CarryOn()

reply = Reply
refuse = Refuse
fail = Fail


class Reject(Exception):
    """Raised inside a handler to refuse the message from any depth: `error` goes to the asker, the actor lives."""

    def __init__(self, error: Exception) -> None:
        self.error = error
        super().__init__(error)


def carry_on() -> CarryOn:
    """Take the next message. An ask that was neither answered nor deferred fails with `ActorFailed`."""
    return CARRY_ON


def stop(*, reply: object = Unanswered.UNANSWERED) -> Stop:
    """End this actor for the reason `Normal`. Queued messages become dead letters; queued asks get `ActorDead`."""
    return Stop(reply)
