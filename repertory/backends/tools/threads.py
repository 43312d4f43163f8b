"""The worker threads that synchronous tools run in: bounded, with contextvars, never waited for after cancellation.

A thread cannot be stopped. When the call is cancelled (a timeout, the end of the turn) the tool's thread runs on by
itself and its answer is thrown away. So that abandoned threads do not pile up without a bound, they are counted, and
with `ABANDONED_MAX` of them still running further synchronous tools are refused.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import anyio
import anyio.to_thread
from anyio.lowlevel import RunVar

from repertory.errors import LimitReached

THREADS_MAX = 32
"""Synchronous tools that run at once in one event loop; more wait for a thread."""
ABANDONED_MAX = 16
"""Abandoned calls that may still run before synchronous tools are refused."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadStatistics:
    """A look at one event loop's tool threads."""

    running_count: int
    abandoned_count: int
    """How many of them nobody waits for any more."""


class ToolThreads:
    """The tool threads of one event loop."""

    def __init__(self) -> None:
        self._limiter = anyio.CapacityLimiter(THREADS_MAX)
        self._running: set[object] = set()
        self._abandoned: set[object] = set()

    def statistics(self) -> ThreadStatistics:
        """How many threads run now. Safe from any thread."""
        return ThreadStatistics(running_count=len(self._running), abandoned_count=len(self._abandoned))

    async def run(self, function: Callable[[], T]) -> T:
        """Call `function` in a thread and give its result, or raise what it raised.

        Cancellation returns at once and leaves the thread to itself. Errors: `LimitReached` when too many abandoned
        calls still run: wait for them, or give what those tools wait for a timeout of its own.
        """
        abandoned_count = len(self._abandoned)
        if abandoned_count >= ABANDONED_MAX:
            raise LimitReached("synchronous tools that were given up on still run", abandoned_count=abandoned_count)
        call = object()

        def work() -> tuple[T]:
            self._running.add(call)
            try:
                return (function(),)  # in a tuple, since trio takes no coroutine as a thread's result
            finally:
                self._running.discard(call)
                self._abandoned.discard(call)

        try:
            (result,) = await anyio.to_thread.run_sync(work, abandon_on_cancel=True, limiter=self._limiter)
        except anyio.get_cancelled_exc_class():
            self._abandon(call)
            raise
        return result

    def _abandon(self, call: object) -> None:
        """Count the call as abandoned while it runs.

        Added first and looked at second, in the opposite order of the thread: whichever is last takes it out again.
        """
        self._abandoned.add(call)
        if call not in self._running:
            self._abandoned.discard(call)


_threads: RunVar[ToolThreads] = RunVar("repertory_tool_threads")


def tool_threads() -> ToolThreads:
    """The tool threads of the running event loop, made when first asked for."""
    try:
        return _threads.get()
    except LookupError:
        threads = ToolThreads()
        _threads.set(threads)
        return threads
