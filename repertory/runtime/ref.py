"""Actor references: sending messages to an actor and watching it. An address outlives its incarnations.

Everything here must be called in the loop's thread, except `tell_threadsafe`. Messages of one sender arrive in order;
each is handled at most once. Every ask ends: with its answer or with one of the errors below.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Generic, TypeVar, cast

import anyio
from msgspec import Struct

from repertory.errors import ActorDead, Deadlock, Invalid, MailboxFull
from repertory.runtime.channel import EventReader, StreamCall
from repertory.runtime.lifecycle import ExitReason
from repertory.runtime.mailbox import Mailbox
from repertory.runtime.message import (
    ORIGIN,
    Ask,
    AskEnvelope,
    Envelope,
    Reason,
    Request,
    Stream,
    Waits,
    find_circle,
    timed_out,
)
from repertory.runtime.timers import SLOT_S, Alarms, Expiring
from repertory.runtime.waker import Waker

M_contra = TypeVar("M_contra", contravariant=True)
R = TypeVar("R")
E_co = TypeVar("E_co", covariant=True)

_FOREVER = math.inf


class Transport(Struct, frozen=True, kw_only=True):
    """The parts of a system that every ref needs to carry messages."""

    waker: Waker
    alarms: Alarms


class ActorRef(Generic[M_contra]):
    """An actor's address. Refs are compared by identity; there is one per address.

    A ref of any messages can be used as a ref of some, so the refs that the runtime gives out (`ActorRef[object]`) need
    no cast.

    Args:
        transport: The runtime's own: the system that delivers.
    """

    __slots__ = ("_make_waiter", "_now", "_transport", "_wheel", "ended", "mailbox", "path", "watchers")

    def __init__(self, path: str, mailbox: Mailbox, transport: Transport) -> None:
        self.path = path
        """The names from the root, such as `/sessions/user-1/agent`."""
        self.mailbox = mailbox
        """The runtime's own."""
        self.ended: ExitReason | None = None
        """The reason for which the actor has ended for good; None while it lives, restarts included."""
        self.watchers: dict[ActorRef[object], bool] | None = None
        """The runtime's own: the actors to tell of its end, and whether restarts are told as well."""
        self._transport = transport
        self._make_waiter = transport.waker.waiter
        self._now = transport.waker.now
        self._wheel = transport.alarms.slots

    def __repr__(self) -> str:
        return f"<ActorRef {self.path}>"

    @property
    def name(self) -> str:
        """The last part of the path: unique among its siblings."""
        return self.path.rpartition("/")[2]

    def tell(self, message: M_contra) -> None:
        """Put a message into the mailbox. Never waits, and does not fail if the receiver has stopped: the message then
        becomes a dead letter.

        Args:
            message: The message.

        Raises:
            MailboxFull: Under the policies `wait` and `reject`. Send again later.
        """
        mailbox = self.mailbox
        envelope = Envelope(message, self._now(), ORIGIN.get().trace)
        if len(mailbox.queue) >= mailbox.room:
            if not mailbox.offer(envelope):
                raise mailbox.full()
            return
        # As `offer` in the common case, without the call.
        mailbox.queue.append(envelope)
        waiter = mailbox.waiter
        if waiter is not None:
            mailbox.waiter = None
            if not waiter.done():
                waiter.set_result(None)

    def tell_now(self, message: M_contra) -> None:
        """`tell`, but an idle actor that handles the message without waiting (`Actor.handle_now`) does so here and now.

        For a sender that knows what its receiver does with the message: it takes as long as the receiver's handler.
        Errors: as `tell`.

        Args:
            message: The message.
        """
        mailbox = self.mailbox
        at_once = mailbox.at_once
        if at_once is not None and mailbox.waiter is not None:
            envelope = Envelope(message, self._now(), ORIGIN.get().trace)
            if at_once.handle_at_once(envelope):
                return
        self.tell(message)

    async def send(self, message: M_contra) -> None:
        """Put a message into the mailbox, waiting for room under the policy `wait`. Cancelled, it was not put there.

        Args:
            message: The message.

        Raises:
            MailboxFull: Under the policy `reject`. Send again later.
        """
        await self.mailbox.offer_patiently(Envelope(message, self._now(), ORIGIN.get().trace))

    def tell_threadsafe(self, message: M_contra) -> None:
        """Tell from any thread. A full mailbox is not reported: the message becomes a dead letter (`full`).

        Args:
            message: The message.

        Raises:
            ActorDead: When the loop itself has ended. Start the actor again, or look up its new ref.
        """
        try:
            self._transport.waker.call_threadsafe(lambda: self._tell_or_bury(message))
        except RuntimeError as error:
            raise ActorDead("the event loop has ended", actor=self.path) from error

    async def ask(self, message: Ask[R], *, timeout_s: float) -> R:
        """Send an ask and return the answer. `timeout_s` counts from now and includes waiting for room; inside a turn
        that was itself asked, the earlier deadline holds. Deadlines are noticed within 50 ms; `math.inf` waits for
        ever. An idle actor that handles the message without waiting (`Actor.handle_now`) does so here and now: such an
        ask does not let other tasks run, nor notice a cancellation.

        If the ask is cancelled or times out, a queued message is not run; for a running one `on_abandon` decides. If
        the handler refused the message, the error that it gave is raised.

        Args:
            message: The message.
            timeout_s: Seconds for the answer, or for the whole stream.

        Raises:
            AskTimeout: If no reply came in time. Ask again; the first message may still be handled.
            ActorDead: If the actor stopped before it answered. Start it again, or look up its new ref.
            ActorFailed: If the handler raised an error. Read its `__cause__`.
            Deadlock: If the ask would wait for itself. Do not wait for an actor that waits for you.
            MailboxFull: If the mailbox is full and rejects, or dropped the message. Send again later.
            Invalid: For a `timeout_s` that is not a number of seconds. Correct the argument.
        """
        origin = ORIGIN.get()
        at = self._now()
        deadline = at + timeout_s
        if origin.deadline < deadline:
            deadline = origin.deadline
        waiter = self._make_waiter()
        mailbox = self.mailbox
        call = AskEnvelope(message, at, origin.trace, deadline, mailbox, waiter)
        at_once = mailbox.at_once
        handled = at_once is not None and mailbox.waiter is not None and at < deadline and at_once.handle_at_once(call)
        if call.answered:
            if call.error is not None:
                raise call.error
            return cast("R", call.value)
        # A message that was handled and not answered was deferred, so its receiver's mailbox goes on: no edge.
        if origin.waits is not None and not handled:
            self._draw_edge(call, origin.waits)
        bucket = None
        try:
            if deadline < _FOREVER:
                # As `Alarms.expire_at` in the common case, without the call: two asks of the same 50 ms share a bucket.
                bucket = self._wheel.get(deadline // SLOT_S)
                if bucket is None:
                    bucket = self._transport.alarms.expire_at(deadline, call)
                bucket.add(call)
            # Only NaN is neither less than infinity nor equal to it; on the wheel it would never expire.
            elif deadline != _FOREVER:
                raise Invalid("a timeout is a number of seconds", timeout_s=timeout_s)
            if handled:
                pass  # It answers later.
            elif len(mailbox.queue) < mailbox.room:
                # As `offer` in the common case, without the call.
                mailbox.queue.append(call)
                parked = mailbox.waiter
                if parked is not None:
                    mailbox.waiter = None
                    if not parked.done():
                        parked.set_result(None)
            else:
                await self._offer_in_time(call)
            await waiter
        finally:
            if bucket is not None:
                bucket.discard(call)
            if origin.waits is not None:
                call.lift_edge()
            # Cancelled: what is still queued must not be run for nobody.
            if not call.answered:
                call.leave(Reason.ABANDONED)
        if call.error is not None:
            raise call.error
        return cast("R", call.value)

    def stream(self, message: Stream[E_co], *, timeout_s: float, buffer: int = 16) -> EventReader[E_co]:
        """A stream of answers: `async with ref.stream(message, timeout_s=60) as events`, then `async for`.

        `timeout_s` bounds the whole stream, as in `ask`; at most `buffer` events wait for the reader, then the producer
        waits. Leaving the block closes the stream: the producer is told, and unread events are dropped. Errors: as
        `ask`, while reading; and the error that the producer failed with, after the events before it.

        Args:
            message: The message.
            timeout_s: Seconds for the answer, or for the whole stream.
            buffer: The most events that wait for the reader.
        """
        return EventReader(self._stream_call(message, timeout_s, buffer), self._open)

    def _stream_call(self, message: object, timeout_s: float, buffer: int) -> StreamCall:
        if buffer < 1:
            raise Invalid("a stream buffers at least one event", buffer=buffer)
        if math.isnan(timeout_s):
            raise Invalid("a timeout is a number of seconds", timeout_s=timeout_s)
        origin = ORIGIN.get()
        at = self._now()
        deadline = min(at + timeout_s, origin.deadline)
        call = StreamCall(message, at, origin.trace, deadline, self.mailbox, self._make_waiter)
        call.capacity = buffer
        return call

    async def _open(self, call: StreamCall) -> Callable[[], object]:
        """Put the request into the mailbox. Call the result to undo what was set up for it."""
        asker = ORIGIN.get().waits
        if asker is not None:
            self._draw_edge(call, asker)
        try:
            await self._offer_in_time(call)
        except BaseException:
            call.lift_edge()
            raise
        bucket: set[Expiring] = set()
        if call.deadline < math.inf:
            bucket = self._transport.alarms.expire_at(call.deadline, call)

        def close() -> None:
            bucket.discard(call)
            call.lift_edge()

        return close

    async def _offer_in_time(self, request: Request) -> None:
        with anyio.CancelScope(deadline=request.deadline):
            await self.mailbox.offer_patiently(request)
            return
        # Reached only if the scope's own deadline ended the wait; an outer cancellation is raised by the scope.
        raise timed_out(request)

    def _draw_edge(self, request: Request, asker: Waits) -> None:
        target = self.mailbox.waits
        # Most receivers wait for nobody, so most asks search no graph.
        if target is asker or target.waiting_on:
            circle = find_circle(asker, target)
            if circle is not None:
                path = [asker.path, *(node.path for node in circle)]
                raise Deadlock("the ask would wait for itself", path=" -> ".join(path))
        request.draw_edge(asker)

    def _tell_or_bury(self, message: M_contra) -> None:
        try:
            self.tell(message)
        except MailboxFull:
            self.mailbox.dead_letter(Envelope(message, self._now(), None), Reason.FULL)


# Watching: being told when another actor has ended for good, or one of its incarnations.


class Down(Struct, frozen=True):
    """An actor that was watched has stopped. Handled by `on_down`.

    Attributes:
        ref: The actor that ended.
        reason: The reason why it ended.
    """

    ref: ActorRef[object]
    reason: ExitReason
    comes_back: bool = False
    """True if it may be restarted. What it had taken out of its mailbox is lost, what waits there is not."""


def watch(watcher: ActorRef[object], target: ActorRef[object], *, restarts: bool = False) -> None:
    """Put `Down` into the watcher's system lane when the target ends; at once if it has ended. Once per pair.
    `restarts`: also when an incarnation ends unexpectedly, and another one may follow.
    """
    if target.ended is not None:
        watcher.mailbox.offer_system(Down(target, target.ended))
    elif target.watchers is None:
        target.watchers = {watcher: restarts}
    else:
        target.watchers[watcher] = restarts


def unwatch(watcher: ActorRef[object], target: ActorRef[object]) -> None:
    """Undo `watch`."""
    if target.watchers is not None:
        target.watchers.pop(watcher, None)


def announce_end(target: ActorRef[object], reason: ExitReason) -> None:
    """The target has ended for good: tell its watchers."""
    # First: whoever begins to watch in one of the steps below is told at once.
    target.ended = reason
    watchers, target.watchers = target.watchers, None
    for watcher in watchers or ():
        if watcher.ended is None:
            watcher.mailbox.offer_system(Down(target, reason))


def announce_restart(target: ActorRef[object], reason: ExitReason) -> None:
    """An incarnation has ended, and another one may follow: tell those that watch for that."""
    for watcher, restarts in tuple((target.watchers or {}).items()):
        if restarts and watcher.ended is None:
            watcher.mailbox.offer_system(Down(target, reason, comes_back=True))
