"""The private event loop of sync code: one thread for the process, started by the first sync call.

Sync calls of every agent run there, on one host, so two agents on one session share its actors. At interpreter exit
the host is drained, which ends the calls of threads that are still in one, and the thread ends. That is bounded: the
thread is a daemon, so a process ends whatever its loop, its tools or its stores are doing.
"""

from __future__ import annotations

import atexit
import logging
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from typing import ParamSpec, TypeVar

import anyio
from anyio.from_thread import BlockingPortal

from repertory.app.host.host import Host, HostSettings
from repertory.app.host.unsaved import EXIT_S, UNSAVED_SHARE, end_process, finish_unsaved, left_s
from repertory.errors import Invalid
from repertory.forking import call_in_children, never_collect
from repertory.runtime.parking import parking_here

P = ParamSpec("P")
T = TypeVar("T")

_RESERVE_SHARE = 0.25
"""The part of the time for the end that is kept for committing journals and giving sessions up."""
_log = logging.getLogger("repertory.app")


class BlockingHost:
    """A host in a thread of its own."""

    def __init__(self, settings: HostSettings | None = None) -> None:
        """`settings.drain_timeout_s` is how long `stop` may take."""
        self._settings = settings or HostSettings(drain_timeout_s=EXIT_S)
        self._ready = threading.Event()
        self._portal: BlockingPortal | None = None
        self._wake: Callable[[], None] | None = None
        """Wakes the loop's own task and waits for nothing: the loop may be held up."""
        self._late: deque[Callable[[], Coroutine[object, object, None]]] = deque()
        """What that task is to start."""
        self._stopping = False
        self._end_by = 0.0
        """When `stop` is to return, by the monotonic clock."""
        self._thread = threading.Thread(target=anyio.run, args=(self._serve,), name="repertory-sync", daemon=True)
        self._thread.start()
        self._ready.wait()

    def run(self, function: Callable[P, Awaitable[T]], *args: P.args, **options: P.kwargs) -> T:
        """Run an async function there and wait for it. Errors: what it raises; `Invalid` from within that loop
        itself. Whoever is interrupted while waiting, by Ctrl-C for one, cancels it.
        """
        future = self.start(function, *args, **options)
        try:
            return future.result()
        except BaseException:
            future.cancel()  # Without effect on one that has ended, whose own error this is.
            raise

    def start(self, function: Callable[P, Awaitable[T]], *args: P.args, **options: P.kwargs) -> Future[T]:
        """Start an async function there; the future has what it returns or raises. Cancelling it cancels the function.

        Errors: `Invalid` from within that loop itself, where waiting for the future would never end.
        """
        if threading.current_thread() is self._thread:
            raise Invalid("a sync call from inside the sync loop would wait for itself; use invoke_async")
        if self._portal is None:
            raise Invalid("the process is exiting; sync calls are over")

        async def call() -> T:
            return await function(*args, **options)

        return self._portal.start_task_soon(call)

    def run_within(self, function: Callable[[], Awaitable[None]], within_s: float) -> None:
        """Run an async function there, and return when it has ended or that time is over, whatever runs there. It must
        not raise.
        """
        ended = threading.Event()

        async def call() -> None:
            await function()
            ended.set()

        self._late.append(call)
        if self._woken():
            ended.wait(within_s)

    def stop(self) -> None:
        """Do what nobody has done yet (`unsaved.py`), drain the host, and end the thread. Calling it twice is allowed.

        It returns in time, whatever runs there. What has not ended by then is left to itself, and logged.
        """
        if self._portal is None:
            return
        within_s = left_s(self._settings.drain_timeout_s)
        self._end_by = time.monotonic() + within_s
        finish_unsaved(self, within_s - self._settings.drain_timeout_s * (1 - UNSAVED_SHARE))
        self._portal, self._stopping = None, True
        self._woken()
        self._thread.join(max(0.0, self._end_by - time.monotonic()))
        if self._thread.is_alive():
            _log.error("sync calls did not end in time; the process does not wait for them within_s=%s", within_s)

    def _woken(self) -> bool:
        """Have the loop's own task look what there is to do. False when the loop has ended."""
        try:
            if self._wake is not None:
                self._wake()
        except RuntimeError:
            return False
        return self._wake is not None

    async def _serve(self) -> None:
        # The portal waits for every call, however long: so the drain, which has a deadline, comes before it.
        async with BlockingPortal() as portal, Host(self._settings) as host, anyio.create_task_group() as group:
            events, call_threadsafe = [anyio.Event()], parking_here().call_threadsafe
            self._wake = lambda: call_threadsafe(lambda: events[0].set())
            self._portal = portal
            self._ready.set()
            while not self._stopping:
                await events[0].wait()
                events[0] = anyio.Event()
                while self._late:
                    group.start_soon(self._late.popleft())
            group.start_soon(self._cut_short, host)
            await host.system.drain("the process ends")
            group.cancel_scope.cancel()

    async def _cut_short(self, host: Host) -> None:
        """Leave the drain no more than its reserve, when that is all the time there is."""
        reserve_s = self._settings.drain_timeout_s * _RESERVE_SHARE
        await anyio.sleep(max(0.0, self._end_by - reserve_s - time.monotonic()))
        host.system.cut_short()


_lock = threading.Lock()
_host: BlockingHost | None = None


def blocking_host() -> BlockingHost:
    """The process's host for sync calls, started by the first one who asks. A forked child starts its own."""
    global _host
    with _lock:
        if _host is None:
            _host = BlockingHost()
            atexit.register(_at_exit)
        return _host


def _at_exit() -> None:
    if _host is not None:
        end_process(blocking_host)


def _forget_parent() -> None:
    """In a forked child: none is started yet."""
    global _lock, _host
    never_collect(_host)
    _lock, _host = threading.Lock(), None


call_in_children(_forget_parent)
