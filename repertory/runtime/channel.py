"""Streams: an ask with many answers. The actor writes into a `Sink`, the caller reads the `EventReader`.

Between them lies a bounded buffer. A send with room costs an append and, if the reader is waiting, a wake-up; without
room the writer waits, so a slow reader slows its producer down and nothing else.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Generic, TypeVar, cast

from repertory.errors import StreamClosed
from repertory.runtime.message import Reason, Receiver, Request, timed_out
from repertory.runtime.waker import Waiter, current_task

E_contra = TypeVar("E_contra", contravariant=True)
E_co = TypeVar("E_co", covariant=True)


class StreamCall(Request):
    """A message that is answered with a stream, and the buffer between writer and reader."""

    __slots__ = ("_make_waiter", "_reader", "_writers", "buffer", "capacity", "ended", "error", "on_closed", "on_ended")

    def __init__(
        self,
        message: object,
        at: float,
        trace: object,
        deadline: float,
        receiver: Receiver,
        waiter: Callable[[], Waiter],
    ) -> None:
        super().__init__(message, at, trace, deadline, receiver)
        self.buffer: deque[object] = deque()
        self.capacity = 1
        self.ended = False
        self.error: Exception | None = None
        self.on_closed: Callable[[], object] | None = None
        self.on_ended: Callable[[], object] | None = None
        self._make_waiter = waiter
        self._reader: Waiter | None = None
        self._writers: deque[Waiter] = deque()

    def unanswered(self) -> bool:
        """True if the stream is neither ended nor deferred."""
        return not self.ended and self.deferred is None

    def reply(self, value: object) -> None:
        """Fail the stream: answering it with one value is the handler's mistake, which the reader is told."""
        self.fail(StreamClosed("a stream was answered with a single value", value=type(value).__name__))

    def fail(self, error: Exception) -> None:
        """The reader gets the buffered events, then `error`."""
        if not self.ended:
            self.error = error
            self.end()

    def end(self) -> None:
        """The reader gets the buffered events, then the end."""
        self.ended = True
        self.release()
        self._wake_reader()
        self._wake_writers()
        if self.on_ended is not None:
            self.on_ended()

    def expire(self) -> None:
        """The deadline has passed: the reader is told at once, and the writer is told to stop."""
        if not self.ended and self.gone is None:
            # The deadline bounds the whole stream, also events that were not read in time.
            self.buffer.clear()
            self.fail(timed_out(self))
            self.leave(Reason.EXPIRED)

    def leave(self, reason: Reason) -> None:
        """The reader has gone: tell the writer to stop."""
        if self.gone is None:
            super().leave(reason)
            self.release()
            self._wake_writers()
            if self.on_closed is not None:
                self.on_closed()

    def put(self, event: object) -> bool:
        """Buffer an event. False without room.

        Raises:
            StreamClosed: If the reader has left, or the stream has ended. Stop sending.
        """
        if self.gone is not None or self.ended:
            raise StreamClosed("nobody reads the stream", actor=self.receiver.waits.path)
        if len(self.buffer) >= self.capacity:
            return False
        self.buffer.append(event)
        if self._reader is not None:
            self._wake_reader()
        return True

    def wait_no_more(self) -> None:
        """Make room for every event from now on."""
        self.capacity = sys.maxsize
        self._wake_writers()

    async def room(self) -> None:
        """Wait until there may be room. If cancelled, the next writer is woken instead."""
        waiter = self._make_waiter()
        self._writers.append(waiter)
        try:
            await waiter
        except BaseException:
            if waiter in self._writers:
                self._writers.remove(waiter)
            # Woken and cancelled in the same instant: the room that it was woken for would stay unused.
            elif len(self.buffer) < self.capacity:
                self._wake_one_writer()
            raise

    async def caught_up(self) -> None:
        """Wait until the reader has taken every event, and waits for the next."""
        while (self._reader is None or self._reader.done()) and self.capacity < sys.maxsize:
            if self.ended or self.gone is not None:
                return
            await self.room()

    async def until_event(self) -> None:
        """Wait until the reader has an event, an error or the end to take."""
        # Before the writers are woken: `caught_up` waits for a reader that waits.
        self._reader = self._make_waiter()
        if self._writers:
            self._wake_writers()
        try:
            await self._reader
        finally:
            self._reader = None

    def take(self) -> object:
        """The oldest buffered event; a waiting writer is woken to use its room."""
        event = self.buffer.popleft()
        if self._writers:
            self._wake_one_writer()
        return event

    def _wake_reader(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    def _wake_one_writer(self) -> None:
        while self._writers:
            waiter = self._writers.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return

    def _wake_writers(self) -> None:
        while self._writers:
            self._wake_one_writer()


class Sink(Generic[E_contra]):
    """The writer's end of a stream, taken with `context.sink()`. It may outlive the turn, as in a job.

    When the incarnation ends, a sink that was not ended fails with `ActorDead`.

    Args:
        call: The runtime's own: the stream that it writes.
    """

    __slots__ = ("_call",)

    def __init__(self, call: StreamCall) -> None:
        self._call = call

    @property
    def closed(self) -> bool:
        """True if the reader has left, or the sink was ended."""
        return self._call.gone is not None or self._call.ended

    @property
    def on_closed(self) -> Callable[[], object] | None:
        """The function that is called once when the reader leaves before the end, at once if it has left already. It
        must neither raise nor wait.
        """
        return self._call.on_closed

    @on_closed.setter
    def on_closed(self, callback: Callable[[], object] | None) -> None:
        self._call.on_closed = callback
        if callback is not None and self._call.gone is not None:
            callback()

    def send_nowait(self, event: E_contra) -> bool:
        """Hand `event` to the reader if there is room; False if not.

        Args:
            event: The event.

        Raises:
            StreamClosed: If the reader has left. Stop sending.
        """
        return self._call.put(event)

    async def send(self, event: E_contra) -> None:
        """Hand `event` to the reader, waiting for room. Cancelled, it was not sent.

        Args:
            event: The event.

        Raises:
            StreamClosed: If the reader has left, or the stream has ended. Stop sending.
        """
        while not self._call.put(event):
            await self._call.room()

    async def caught_up(self) -> None:
        """Wait until the reader has read every event and asks for the next one, or has left."""
        await self._call.caught_up()

    def wait_no_more(self) -> None:
        """Let `send` wait for no reader from now on: what it has not read yet is kept for it."""
        self._call.wait_no_more()

    def end(self) -> None:
        """End the stream. Allowed more than once."""
        if not self._call.ended:
            self._call.end()

    def fail(self, error: Exception) -> None:
        """End the stream with `error`, which the reader gets after the buffered events.

        Args:
            error: The error for the reader.
        """
        self._call.fail(error)


class EventReader(Generic[E_co]):
    """The reader's end of a stream: `async with ref.stream(...) as events: async for event in events: ...`.

    Args:
        call: The runtime's own: the stream that it reads.
        opening: The runtime's own: sends the request.
    """

    __slots__ = ("_call", "_close", "_open", "_task")

    def __init__(self, call: StreamCall, opening: Callable[[StreamCall], Awaitable[Callable[[], object]]]) -> None:
        self._call = call
        self._open = opening
        self._close: Callable[[], object] | None = None
        self._task: object = None
        """The task that has read last."""

    @property
    def read_here(self) -> bool:
        """True if the running task reads it, so that its writer waits for this task until it reads on."""
        call, task = self._call, self._task
        return task is not None and not call.ended and call.gone is None and task is current_task()

    def on_ended(self, callback: Callable[[], object]) -> None:
        """Call `callback` when the writer has ended the stream, at once if it has. The reader may still read the events
        that are buffered. The callback must neither raise nor wait.

        Args:
            callback: A function without arguments.
        """
        self._call.on_ended = callback
        if self._call.ended:
            callback()

    async def __aenter__(self) -> EventReader[E_co]:
        self._close = await self._open(self._call)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._close is not None:
            self._close()
        # In any order with the end of the producer: whoever is first decides, and the other call does nothing.
        if not self._call.ended:
            self._call.leave(Reason.ABANDONED)

    def __aiter__(self) -> EventReader[E_co]:
        return self

    async def __anext__(self) -> E_co:
        call, self._task = self._call, current_task()
        while not call.buffer:
            if call.error is not None:
                # Behind the buffered events: what the producer said before it failed is not lost.
                raise call.error
            if call.ended:
                raise StopAsyncIteration
            await call.until_event()
        return cast("E_co", call.take())
