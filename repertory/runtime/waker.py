"""Waiting and waking with each event loop's own means. Only this file and `host_task.py` name an event loop.

An idle mailbox waits on the lowest level of each loop: a Future on asyncio and uvloop, a rescheduled task on trio. A
wake-up carries no message, so a receiver that is cancelled in the instant of a delivery loses nothing: the message is
still in the queue. Portable primitives cost two to three times as much, and a portable stream drops a message when its
receiver is cancelled natively.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Coroutine, Generator
from functools import cache
from typing import Protocol

import anyio


class Sleeper(Protocol):
    """An object that others wake, once."""

    def done(self) -> bool: ...

    def set_result(self, result: None, /) -> None: ...


class Waiter(Sleeper, Protocol):
    """A sleeper that one task awaits. A Future of asyncio is one."""

    def __await__(self) -> Generator[object, None, object]: ...


class Waker(Protocol):
    """The operations of an event loop that the runtime uses."""

    @property
    def waiter(self) -> Callable[[], Waiter]:
        """Makes a waiter for the running loop."""
        ...

    @property
    def now(self) -> Callable[[], float]:
        """The loop's own clock in seconds. Deadlines must be read from no other: origins differ."""
        ...

    @property
    def pause(self) -> Callable[[], Coroutine[object, object, None]]:
        """Lets other tasks run, and notices cancellation."""
        ...

    def in_a_task(self) -> bool:
        """True if a task runs this code, and not a callback of the loop, which cannot begin tasks."""
        ...

    def call_threadsafe(self, function: Callable[[], object]) -> None:
        """Run `function` in the loop's thread, from any thread."""
        ...

    def look_if_begun(self, work: Coroutine[object, object, object], unbegun: Callable[[], object]) -> None:
        """Call `unbegun` if the task that was just made for `work` ends before its first step, as asyncio's tasks do
        which are cancelled natively until then. Nothing of `work` has run then, not even its `finally`.
        """
        ...


class _AsyncioParking:
    def __init__(self) -> None:
        import asyncio  # Here, so that building an agent does not load an event loop.

        loop = asyncio.get_running_loop()
        # asyncio's own loop only passes `time.monotonic` on; each message reads the clock, so the method call is left
        # out. uvloop's clock and virtual ones have other origins.
        standard = type(loop).time is asyncio.BaseEventLoop.time
        self.waiter: Callable[[], Waiter] = loop.create_future
        self.now = time.monotonic if standard else loop.time
        self._call = loop.call_soon_threadsafe
        self._soon = loop.call_soon
        self._sleep = asyncio.sleep
        self._current = asyncio.current_task

    def in_a_task(self) -> bool:
        return self._current() is not None

    async def pause(self) -> None:
        # anyio cancels scopes by `Task.cancel` on asyncio, so the bare yield notices both kinds of cancellation.
        await self._sleep(0)

    def call_threadsafe(self, function: Callable[[], object]) -> None:
        self._call(function)

    def look_if_begun(self, work: Coroutine[object, object, object], unbegun: Callable[[], object]) -> None:
        self._soon(_look_if_begun, work, unbegun)  # The loop calls this behind the task's first step.


def _look_if_begun(work: Coroutine[object, object, object], unbegun: Callable[[], object]) -> None:
    if inspect.getcoroutinestate(work) == inspect.CORO_CREATED:
        # Python would warn of a coroutine that was never awaited.
        work.close()
        unbegun()


class _TrioParking:
    def __init__(self) -> None:
        import trio

        self.now = trio.lowlevel.current_clock().current_time
        self.pause = trio.lowlevel.checkpoint
        self.waiter = _trio_waiter()
        self._token = trio.lowlevel.current_trio_token()

    def in_a_task(self) -> bool:
        """Trio's callbacks run in a task of its own."""
        return True

    def call_threadsafe(self, function: Callable[[], object]) -> None:
        self._token.run_sync_soon(function)

    def look_if_begun(self, work: Coroutine[object, object, object], unbegun: Callable[[], object]) -> None:
        """Do nothing more: trio's tasks begin, cancelled or not."""


@cache
def _trio_waiter() -> Callable[[], Waiter]:
    """The class of waiters on trio, made once trio is loaded. One is made for every wait, so it holds the functions it
    calls.
    """
    from trio.lowlevel import Abort, Task, current_task, reschedule, wait_task_rescheduled

    park: Callable[[Callable[[object], Abort]], Coroutine[object, object, object]] = wait_task_rescheduled

    class TrioWaiter:
        __slots__ = ("_done", "_task")

        def __init__(self) -> None:
            self._done = False
            self._task: Task | None = None

        def __await__(self) -> Generator[object, None, object]:
            # Woken before it waited: `wait_task_rescheduled` would sleep for ever.
            if self._done:
                return _nothing()
            self._task = current_task()
            return park(self._abort).__await__()

        def done(self) -> bool:
            return self._done

        def set_result(self, result: None, /) -> None:
            self._done = True
            if self._task is not None:
                reschedule(self._task)

        def _abort(self, raise_cancel: object, /) -> Abort:
            # After `Abort.SUCCEEDED` trio reschedules the task itself, and a second `reschedule` breaks its run queue.
            # See https://trio.readthedocs.io/en/stable/reference-lowlevel.html#trio.lowlevel.wait_task_rescheduled
            self._done = True
            self._task = None
            return Abort.SUCCEEDED

    return TrioWaiter


def _nothing() -> Generator[object, None, None]:
    yield from ()


def runs_on_asyncio() -> bool:
    """True if the running loop is one of asyncio or uvloop; else it is trio's."""
    return anyio.get_cancelled_exc_class().__module__.startswith("asyncio")


def current_task() -> object:
    """The running task of either kind of loop; None in a callback of one."""
    if runs_on_asyncio():
        import asyncio

        return asyncio.current_task()
    import trio

    return trio.lowlevel.current_task()


def cancelled_natively() -> bool:
    """True if the running task has been cancelled by asyncio's own `Task.cancel`, or by a scope through it."""
    if not runs_on_asyncio():
        return False
    import asyncio

    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def parking_here() -> Waker:
    """The waker of the running loop."""
    return _AsyncioParking() if runs_on_asyncio() else _TrioParking()
