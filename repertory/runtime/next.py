"""What a handler says comes next: a closed set, built by the functions below.

`carry_on()`, `reply(value)`, `refuse(error)`, `stop()`, `stop(reply=value)`, `fail(error)`; and `raise Reject(error)`
from any depth, which does the same as `refuse`. Plain slotted classes, since one is made for every message.
"""

from __future__ import annotations

from enum import Enum
from typing import TypeAlias


class Unanswered(Enum):
    """The value of a `Stop` that answers nobody."""

    UNANSWERED = "unanswered"


class CarryOn:
    """Nothing to say; take the next message."""

    __slots__ = ()


class Reply:
    """Answer the asker with `value`, then take the next message."""

    __slots__ = ("value",)

    def __init__(self, value: object) -> None:
        self.value = value


class Refuse:
    """Give `error` to the asker and to nobody else, then take the next message.

    A refused tell becomes a dead letter.
    """

    __slots__ = ("error",)

    def __init__(self, error: Exception) -> None:
        self.error = error


class Stop:
    """End this actor for the reason `Normal`, after answering the asker if a reply was given."""

    __slots__ = ("value",)

    def __init__(self, value: object) -> None:
        self.value = value


class Fail:
    """End this incarnation for the reason `Failed(error)`; the supervisor decides. The asker gets `ActorFailed`."""

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
    """Nothing to say; take the next message. An ask that nobody answered or deferred fails with `ActorFailed`."""
    return CARRY_ON


def stop(*, reply: object = Unanswered.UNANSWERED) -> Stop:
    """End this actor for the reason `Normal`.

    What waits in its mailbox becomes dead letters; queued asks get `ActorDead`.
    """
    return Stop(reply)
