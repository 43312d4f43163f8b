"""The base class of actors: state that only its own handlers touch, one message at a time."""

from __future__ import annotations

from typing import Generic, TypeVar

from repertory.runtime.context import Context
from repertory.runtime.lifecycle import ExitReason
from repertory.runtime.message import Next, carry_on
from repertory.runtime.ref import Down

M_contra = TypeVar("M_contra", contravariant=True)


class Actor(Generic[M_contra]):
    """Base class of all actors. `M` is the union of its messages.

    Handlers are serial: while one awaits, the actor takes no other message. Work that must not block the mailbox runs
    as `context.job`. A failure ends the incarnation, not the address: the supervisor makes a new actor, and the
    messages in the mailbox are kept.
    """

    context: Context

    async def on_start(self) -> None:
        """Prepare the actor. The start is acknowledged when this returns; an exception here makes the start fail.

        Bounded by the spec's `start_timeout_s`; a shutdown cancels it.
        """

    async def on_ready(self) -> None:
        """Runs after the acknowledgement and before the first message, so that the starter does not wait for it."""

    async def handle(self, message: M_contra) -> Next:
        """Handle one message and say what comes next. An exception ends the incarnation."""
        raise NotImplementedError

    async def on_down(self, down: Down) -> Next:
        """An actor that this one watches has ended for good."""
        del down
        return carry_on()

    async def on_stop(self, reason: ExitReason) -> None:
        """Clean up: jobs and children have ended. Shielded, bounded by the spec's `stop_timeout_s`; not run when
        killed.
        """

    def summary(self) -> object:
        """What the tree shows of this actor's state. Must be cheap and small."""
        return None
