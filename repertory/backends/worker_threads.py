"""Blocking work in worker threads. Ours is always waited for: no write lands after its caller has gone on. Code of
others may never return, and is waited for within a bound.

A cancellation by asyncio itself goes through anyio's shield and would leave the thread alone with its work.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import anyio
import anyio.to_thread
from anyio.lowlevel import RunVar

from repertory.errors import Unavailable

THREADS_MAX = 32
"""Operations on files that run at once in one event loop, whatever else runs in threads; more wait for one."""
OFF_LOOP_BYTES = 256 * 1024
"""Work on so many bytes takes milliseconds, which other tasks of the event loop need not wait for."""
LEFT_MAX = 16
"""Threads with code of others that may be left to themselves in one event loop before more of it is refused."""
_LOOK_S = 0.001

T = TypeVar("T")

_limiter: RunVar[anyio.CapacityLimiter] = RunVar("repertory_file_threads")


async def run_in_thread(work: Callable[[], T]) -> T:
    """What `work` returned or raised. Cancellation waits until the work has ended, or never lets it begin."""
    errand = _Errand(work)
    try:
        return await anyio.to_thread.run_sync(errand.do, limiter=_threads())
    except anyio.get_cancelled_exc_class():
        await errand.ended()
        raise


async def run_foreign(work: Callable[[], T], *, by: float = math.inf, grace_s: float = math.inf) -> T:
    """What code of others returned or raised. It has threads of its own, so what hangs in it is in nobody's way.

    A cancellation waits for it as well, but only until `by`, a time of the event loop's clock, and for `grace_s`. Then
    its thread is left to itself, and what it still gives is thrown away. Errors: `Unavailable` while `LEFT_MAX` such
    threads run.
    """
    foreign = _foreign_threads()
    foreign.left = [each for each in foreign.left if each.running]
    if len(foreign.left) >= LEFT_MAX:
        raise Unavailable("calls that did not return in time are still running", calls=len(foreign.left))
    errand = _Errand(work)
    try:
        return await anyio.to_thread.run_sync(errand.do, abandon_on_cancel=True, limiter=foreign.limiter)
    except anyio.get_cancelled_exc_class():
        await errand.ended(min(by, anyio.current_time() + grace_s))
        if errand.running:
            foreign.left.append(errand)
        raise


class _Errand(Generic[T]):
    """Work that either begins and is waited for, or is called off before."""

    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        self._guard = threading.Lock()
        self._state = "waiting"

    def do(self) -> T:
        with self._guard:
            if self._state == "called off":
                raise InterruptedError
            self._state = "running"
        try:
            return self._work()
        finally:
            self._state = "ended"

    @property
    def running(self) -> bool:
        """Whether it has begun and not ended."""
        return self._state == "running"

    async def ended(self, by: float = math.inf) -> None:
        """Call the work off or, when it has begun, wait for its end, until then at most. Rare, so it may look instead
        of being told.
        """
        with self._guard:
            if self._state == "waiting":
                self._state = "called off"
        while self.running and anyio.current_time() < by:
            # Another cancellation by asyncio itself passes through the shield.
            with anyio.CancelScope(shield=True), suppress(anyio.get_cancelled_exc_class()):
                await anyio.sleep(_LOOK_S)


@dataclass(slots=True)
class _ForeignThreads:
    limiter: anyio.CapacityLimiter = field(default_factory=lambda: anyio.CapacityLimiter(THREADS_MAX))
    left: list[_Errand[Any]] = field(default_factory=list["_Errand[Any]"])
    """Those that nobody waits for any more."""


_foreign: RunVar[_ForeignThreads] = RunVar("repertory_foreign_threads")


def _foreign_threads() -> _ForeignThreads:
    try:
        return _foreign.get()
    except LookupError:
        threads = _ForeignThreads()
        _foreign.set(threads)
        return threads


def _threads() -> anyio.CapacityLimiter:
    try:
        return _limiter.get()
    except LookupError:
        limiter = anyio.CapacityLimiter(THREADS_MAX)
        _limiter.set(limiter)
        return limiter
