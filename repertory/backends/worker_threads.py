"""Blocking work in worker threads, and the start of threads of their own.

Our own code is always waited for: no write happens after its caller has gone on. Users' code may never return, and is
waited for within a time limit.

A cancellation by asyncio itself passes through anyio's shield and would leave the thread running unobserved.
"""

from __future__ import annotations

import contextvars
import math
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Generic, TypeVar

import anyio
import anyio.to_thread
from anyio.lowlevel import RunVar
from msgspec import Struct, field

from repertory.errors import StoreUnavailable, Unavailable

THREADS_MAX = 32
"""The most file operations that run at once in one event loop, independent of other threads; more wait for one."""
OFF_LOOP_BYTES = 256 * 1024
"""Work on this many bytes takes milliseconds and should not block the event loop."""
ABANDONED_MAX = 16
"""Abandoned threads with users' code in one event loop, before more such calls are refused."""
_LOOK_S = 0.001

T = TypeVar("T")

_limiter: RunVar[anyio.CapacityLimiter] = RunVar("repertory_file_threads")


async def run_in_thread(work: Callable[[], T]) -> T:
    """The result or the exception of `work`. Cancellation waits until the work has ended, or prevents its start.

    Errors: `StoreUnavailable` when the system starts no more threads, and the work was not begun.
    """
    item = _WorkItem(work)
    try:
        return await call_in_thread(item.do, limiter_of_loop(_limiter, THREADS_MAX), abandon=False)
    except anyio.get_cancelled_exc_class():
        await item.ended()
        raise


async def run_foreign(
    work: Callable[[], T],
    *,
    by: float = math.inf,
    grace_s: float = math.inf,
    give_up: Callable[[], None] = lambda: None,
) -> T:
    """The result or the exception of users' code. It has its own threads, so a hanging call blocks no other work.

    Cancellation calls `give_up`, which may make it end, and waits for it too, but only until `by` (event loop time) and
    for `grace_s`. Then its thread is abandoned and its result dropped. Errors: `Unavailable` while `ABANDONED_MAX` such
    threads run; `StoreUnavailable` when the system starts no more threads, and the work was not begun.
    """
    foreign = _foreign_threads()
    foreign.abandoned = [each for each in foreign.abandoned if each.running]
    # Abandoned threads cannot be ended in Python. Without a bound, a tool that hangs would use up the process.
    if len(foreign.abandoned) >= ABANDONED_MAX:
        raise Unavailable("calls that did not return in time are still running", calls=len(foreign.abandoned))
    item = _WorkItem(work)
    try:
        return await call_in_thread(item.do, foreign.limiter, abandon=True)
    except anyio.get_cancelled_exc_class():
        give_up()
        await item.ended(min(by, anyio.current_time() + grace_s))
        if item.running:
            foreign.abandoned.append(item)
        raise


def start_thread(target: Callable[..., object], *args: object, name: str) -> threading.Thread:
    """A daemon thread that has started. Remember it only once it is returned: one that could not start never ends.

    Errors: `StoreUnavailable` when the system starts no more threads; try again later.
    """
    # A daemon, so that the interpreter's exit does not wait for a store that was never closed.
    thread = threading.Thread(target=target, args=args, name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError as error:
        raise out_of_threads(error) from error
    return thread


def out_of_threads(error: RuntimeError) -> StoreUnavailable:
    """The error for what Python raises when the system starts no more threads.

    It is a store's error as well, since stores need threads, and whoever catches a store's errors must not miss it.
    """
    text = "no thread could be started; raise the limit of processes (`ulimit -u`, `pids.max`), or try again"
    return StoreUnavailable(text, cause=str(error))


_running = threading.local()


def context_of_work() -> contextvars.Context | None:
    """The context variables that the running worker thread was given its work with, also for code that runs in a
    context of its own. None in other threads.
    """
    return getattr(_running, "context", None)


async def call_in_thread(work: Callable[[], T], limiter: anyio.CapacityLimiter, *, abandon: bool) -> T:
    """The result or the exception of `work`. `abandon`: cancellation returns at once and abandons the thread, instead
    of waiting for its end.

    Errors: `StoreUnavailable` when the system starts no more threads, and the work was not begun.
    """
    has_begun = False

    def do() -> tuple[T]:
        nonlocal has_begun
        has_begun = True
        # anyio runs this within a copy of the caller's context. Users' code that starts in a context of its own, such
        # as another event loop in this thread, finds it here.
        _running.context = contextvars.copy_context()
        try:
            return (work(),)  # in a tuple, since trio takes no coroutine as a thread's result
        finally:
            _running.context = None

    try:
        (result,) = await anyio.to_thread.run_sync(do, abandon_on_cancel=abandon, limiter=limiter)
    except RuntimeError as error:
        # "can't start new thread" is a bare RuntimeError, told from others only by its words. One that the work itself
        # raised is the work's.
        if has_begun or "thread" not in str(error):
            raise
        raise out_of_threads(error) from error
    return result


class _WorkItem(Generic[T]):
    """Work that either starts and is waited for, or is called off before it starts."""

    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        self._guard = threading.Lock()
        self._state = "waiting"

    def do(self) -> T:
        with self._guard:
            # The exception reaches nobody: whoever waited was cancelled.
            if self._state == "called off":
                raise InterruptedError
            self._state = "running"
        try:
            return self._work()
        finally:
            self._state = "ended"

    @property
    def running(self) -> bool:
        """True if it has started and not ended."""
        return self._state == "running"

    async def ended(self, by: float = math.inf) -> None:
        """Call the work off or, if it has started, wait for its end, at most until `by`. This is rare, so it polls."""
        with self._guard:
            if self._state == "waiting":
                # The worker thread may not have picked the work up when its task is cancelled, and must not begin it
                # later.
                self._state = "called off"
        while self.running and anyio.current_time() < by:
            # Another cancellation by asyncio itself passes through the shield.
            with anyio.CancelScope(shield=True), suppress(anyio.get_cancelled_exc_class()):
                await anyio.sleep(_LOOK_S)


class _ForeignThreads(Struct):
    limiter: anyio.CapacityLimiter = field(default_factory=lambda: anyio.CapacityLimiter(THREADS_MAX))
    abandoned: list[_WorkItem[Any]] = []
    """Calls that are no longer waited for."""


_foreign: RunVar[_ForeignThreads] = RunVar("repertory_foreign_threads")


def _foreign_threads() -> _ForeignThreads:
    try:
        return _foreign.get()
    except LookupError:
        threads = _ForeignThreads()
        _foreign.set(threads)
        return threads


def limiter_of_loop(variable: RunVar[anyio.CapacityLimiter], threads_max: int) -> anyio.CapacityLimiter:
    """The limiter of the running event loop in this variable, made when first asked for."""
    try:
        return variable.get()
    except LookupError:
        limiter = anyio.CapacityLimiter(threads_max)
        variable.set(limiter)
        return limiter
