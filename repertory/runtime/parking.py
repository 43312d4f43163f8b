"""Waiting natively: the only file of the runtime that names an event loop.

A mailbox parks on what each loop offers at its lowest level: a Future on asyncio and uvloop, a rescheduled task on
trio. Waking carries no payload, so a receiver that is cancelled in the instant of a delivery loses nothing: the message
is still in the queue. Portable primitives cost two to three times as much, and a portable stream drops a message when
its receiver is cancelled natively.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from types import ModuleType
from typing import TYPE_CHECKING, Protocol

import anyio

if TYPE_CHECKING:
    import trio


class Waiter(Protocol):
    """Something that one task awaits and others complete, once. A Future of asyncio is one."""

    def __await__(self) -> Generator[object, None, None]: ...

    def done(self) -> bool: ...

    def set_result(self, result: None, /) -> None: ...


class Parking(Protocol):
    """What the runtime asks of a loop."""

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

    def call_threadsafe(self, function: Callable[[], object]) -> None:
        """Run `function` in the loop's thread, from any thread."""
        ...


class _AsyncioParking:
    def __init__(self) -> None:
        import asyncio  # here, so that building an agent does not load an event loop

        loop = asyncio.get_running_loop()
        self.waiter: Callable[[], Waiter] = loop.create_future
        self.now = loop.time
        self._call = loop.call_soon_threadsafe
        self._sleep = asyncio.sleep

    async def pause(self) -> None:
        await self._sleep(0)

    def call_threadsafe(self, function: Callable[[], object]) -> None:
        self._call(function)


class _TrioParking:
    def __init__(self) -> None:
        import trio

        self.now = trio.current_time
        self.pause = trio.lowlevel.checkpoint
        self._lowlevel = trio.lowlevel
        self._token = trio.lowlevel.current_trio_token()

    def waiter(self) -> Waiter:
        return _TrioWaiter(self._lowlevel)

    def call_threadsafe(self, function: Callable[[], object]) -> None:
        self._token.run_sync_soon(function)


class _TrioWaiter:
    __slots__ = ("_done", "_lowlevel", "_task")

    def __init__(self, lowlevel: ModuleType) -> None:
        self._lowlevel = lowlevel
        self._done = False
        self._task: trio.lowlevel.Task | None = None

    def __await__(self) -> Generator[object, None, None]:
        if self._done:
            return
        self._task = self._lowlevel.current_task()
        yield from self._lowlevel.wait_task_rescheduled(self._abort).__await__()

    def done(self) -> bool:
        return self._done

    def set_result(self, result: None, /) -> None:
        self._done = True
        if self._task is not None:
            self._lowlevel.reschedule(self._task)
            self._task = None

    def _abort(self, raise_cancel: object, /) -> trio.lowlevel.Abort:
        self._done = True
        self._task = None
        return self._lowlevel.Abort.SUCCEEDED


def parking_here() -> Parking:
    """The parking of the loop that runs now."""
    if anyio.get_cancelled_exc_class().__module__.startswith("asyncio"):
        return _AsyncioParking()
    return _TrioParking()
