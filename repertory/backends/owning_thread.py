"""A thread that owns a blocking resource and runs every call on it, in order.

Any number of loops and threads may hand work over and wait, concurrently. The thread starts with the first piece of
work and ends in `aclose`. A task that is cancelled while it waits goes on waiting, so work is never cut in half and no
caller sees a failure for a commit that succeeded. A fork waits for the running piece of work; the child starts without
a thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from typing import Generic, Protocol, TypeVar, cast

import anyio
from anyio.lowlevel import checkpoint, current_token

from repertory.backends.worker_threads import start_thread
from repertory.errors import Invalid
from repertory.forking import forget_in_children, unforked

T = TypeVar("T")


class OwningThread:
    """Runs functions one after the other on its own thread."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._queue: SimpleQueue[_Work | None] = SimpleQueue()
        self._guard = threading.Lock()
        self._thread: threading.Thread | None = None
        self._closed = False
        self._now: list[_Work] = []
        """The piece of work that the thread does, if it does one."""
        forget_in_children(self)

    def given_up(self) -> bool:
        """True if the caller of the work that the thread does now was cancelled: it need not wait for others."""
        return any(work.given_up for work in tuple(self._now))

    def forget_parent(self) -> None:
        """Drop thread and work in a forked child, which has only the thread that forked."""
        # New ones: another thread of the parent may have held the lock at the fork, and the child has nobody to release
        # it.
        self._queue, self._guard, self._thread = SimpleQueue(), threading.Lock(), None

    def retire(self) -> None:
        """Run nothing more, not even work that was handed over."""
        self._closed = True

    async def run(
        self,
        work: Callable[[], T],
        *,
        after: Callable[[], None] | None = None,
        undo: Callable[[T], None] | None = None,
    ) -> T:
        """The result or the exception of `work`.

        `after` runs on the thread once the caller has its answer, and must not raise. `undo` receives a result that the
        caller will not see, because it was cancelled meanwhile. Errors: `Invalid` when the thread is closed;
        `StoreUnavailable` when the system starts no more threads, and the work was not begun.
        """
        item = _WorkItem(work, after)
        self._hand_over(item)
        try:
            await item.done()
        except anyio.get_cancelled_exc_class():
            if undo is not None and item.succeeded:
                undoing = _WorkItem(partial(undo, item.outcome()), None)
                self._hand_over(undoing)
                await undoing.done_shielded()
            raise
        return item.outcome()

    async def aclose(self, last: Callable[[], None] = lambda: None) -> None:
        """Run the work that was handed over, then `last`, then end the thread. Without a thread, nothing runs.

        Returns when the thread is gone. Calling it twice is allowed.
        """
        with self._guard:
            thread, closed = self._thread, self._closed
            self._closed = True
        if thread is None:
            return
        # A second call only waits for the thread to be gone.
        item = None if closed else _WorkItem(last, None)
        if item is not None:
            self._queue.put(item)
            self._queue.put(None)
            await item.done()
        with anyio.CancelScope(shield=True):
            # The loop is not blocked by `join`. The thread has its end in the queue and is nearly there.
            while thread.is_alive():
                await checkpoint()
        if item is not None:
            item.outcome()

    def abandon(self, last: Callable[[], None] = lambda: None) -> threading.Thread | None:
        """`aclose` without an event loop, for one that will not run again: returns at once, with the thread that still
        closes, if there is one. Errors of `last` are dropped.
        """
        with self._guard:
            thread, closed = self._thread, self._closed
            self._closed = True
        if thread is None or closed:
            return None
        self._queue.put(_LastWork(last))
        self._queue.put(None)
        return thread

    def refuse_closed(self) -> None:
        """Raise `Invalid` if nothing is run any more."""
        if self._closed:
            raise Invalid("this was closed before", name=self._name)

    def _hand_over(self, item: _WorkItem[T]) -> None:
        with self._guard:
            self.refuse_closed()
            if self._thread is None:
                self._thread = start_thread(_work, self._queue, self._now, name=self._name)
            # Under the guard: nothing may come behind the None that ends the thread, where it would wait for ever.
            self._queue.put(item)


class _Work(Protocol):
    @property
    def given_up(self) -> bool: ...

    def do(self) -> None:
        """Called on the thread."""
        ...


class _LastWork:
    """A piece of work for which nobody waits."""

    given_up = False

    def __init__(self, work: Callable[[], None]) -> None:
        self._work = work

    def do(self) -> None:
        with suppress(Exception):
            self._work()


class _WorkItem(Generic[T]):
    """A piece of work, and the place where its caller waits.

    The only place here that distinguishes the two kinds of loops. anyio's way to call a loop would block the thread
    until the loop answers, and an asyncio Future costs half as much as a portable event, which matters at every commit.
    """

    __slots__ = ("_after", "_call", "_error", "_event", "_finished", "_future", "_result", "_work", "given_up")

    def __init__(self, work: Callable[[], T], after: Callable[[], None] | None) -> None:
        self._work = work
        self._after = after
        self._finished = False
        self.given_up = False
        self._result: T | None = None
        self._error: BaseException | None = None
        self._event: anyio.Event | None = None
        self._future: _Future | None = None
        # Taken on the caller's loop: stores are used from several loops, and each answer must go to its own.
        native = current_token().native_token
        if hasattr(native, "create_future"):
            loop = cast("_AsyncioLoop", native)
            self._future = loop.create_future()
            self._call: Callable[[Callable[[], object]], object] = loop.call_soon_threadsafe
        else:
            self._event = anyio.Event()
            self._call = cast("_TrioToken", native).run_sync_soon

    def do(self) -> None:
        """Run the work on the thread, answer, then run `after`."""
        try:
            self._result = self._work()
        except BaseException as error:  # noqa: BLE001 - relayed: whoever waits raises it
            self._error = error
        # Before the wake-up, and set on this thread: `done_shielded` reads it from the loop.
        self._finished = True
        # When the loop has ended, so has the task that waited in it.
        with suppress(RuntimeError):
            self._call(self._wake)
        if self._after is not None:
            with suppress(Exception):  # Nobody waits for it, and the thread must go on.
                self._after()

    def _wake(self) -> None:
        # Done already if its task was cancelled, which cancels the future.
        if self._future is not None and not self._future.done():
            self._future.set_result(None)
        if self._event is not None:
            self._event.set()

    async def done(self) -> None:
        """Wait until the work is done, cancelled or not. A cancellation that came meanwhile is raised then."""
        try:
            if self._future is not None:
                await self._future
            elif self._event is not None:
                await self._event.wait()
        except anyio.get_cancelled_exc_class():
            self.given_up = True
            await self.done_shielded()
            raise

    async def done_shielded(self) -> None:
        # The future is cancelled by now and cannot be waited for again. If the work ended before this event was there,
        # `_finished` says so.
        event = self._event = self._event or anyio.Event()
        while not self._finished:
            # A second cancellation by asyncio itself passes through the shield.
            with anyio.CancelScope(shield=True), suppress(anyio.get_cancelled_exc_class()):
                await event.wait()

    @property
    def succeeded(self) -> bool:
        return self._finished and self._error is None

    def outcome(self) -> T:
        if self._error is not None:
            raise self._error
        return cast("T", self._result)


class _Future(Protocol):
    def __await__(self) -> Generator[object, None, object]: ...

    def done(self) -> bool: ...

    def set_result(self, result: None, /) -> None: ...


class _AsyncioLoop(Protocol):
    def create_future(self) -> _Future: ...

    def call_soon_threadsafe(self, callback: Callable[[], object], /) -> object: ...


class _TrioToken(Protocol):
    def run_sync_soon(self, callback: Callable[[], object], /) -> object: ...


def _work(queue: SimpleQueue[_Work | None], now: list[_Work]) -> None:
    while (item := queue.get()) is not None:
        now.append(item)
        # A fork in the middle of a transaction would give the child half of SQLite's state.
        with unforked:
            item.do()
        now.clear()
