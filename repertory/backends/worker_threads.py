"""Blocking work in worker threads, always waited for: no write lands after its caller has gone on.

A cancellation by asyncio itself goes through anyio's shield and would leave the thread alone with its work.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Generic, TypeVar

import anyio
import anyio.to_thread
from anyio.lowlevel import RunVar

THREADS_MAX = 32
"""Operations on files that run at once in one event loop, whatever else runs in threads; more wait for one."""
OFF_LOOP_BYTES = 256 * 1024
"""Work on so many bytes takes milliseconds, which other tasks of the event loop need not wait for."""
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

    async def ended(self) -> None:
        """Call the work off or, when it has begun, wait for its end. Rare, so it may look instead of being told."""
        with self._guard:
            if self._state == "waiting":
                self._state = "called off"
        while self._state == "running":
            # Another cancellation by asyncio itself passes through the shield.
            with anyio.CancelScope(shield=True), suppress(anyio.get_cancelled_exc_class()):
                await anyio.sleep(_LOOK_S)


def _threads() -> anyio.CapacityLimiter:
    try:
        return _limiter.get()
    except LookupError:
        limiter = anyio.CapacityLimiter(THREADS_MAX)
        _limiter.set(limiter)
        return limiter
