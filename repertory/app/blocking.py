"""The private event loop of sync code: one thread for the process, started by the first sync call.

Sync calls of every agent run there, on one host, so two agents on one session share its actors. At interpreter exit
the host is drained, which ends the calls of threads that are still in one, and the thread ends. The thread is a daemon
only so that a process without a clean exit can still end.
"""

from __future__ import annotations

import atexit
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from typing import ParamSpec, TypeVar

import anyio
from anyio.from_thread import BlockingPortal

from repertory.app.host import Host, HostSettings
from repertory.app.unsaved import flush_unsaved
from repertory.errors import Invalid

P = ParamSpec("P")
T = TypeVar("T")


class BlockingHost:
    """A host in a thread of its own."""

    def __init__(self, settings: HostSettings | None = None) -> None:
        self._settings = settings or HostSettings()
        self._ready = threading.Event()
        self._portal: BlockingPortal | None = None
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

    def stop(self) -> None:
        """Store state that nobody has stored, drain the host, and end the thread. Calling it twice is allowed."""
        if self._portal is not None:
            flush_unsaved(self)
        portal, self._portal = self._portal, None
        if portal is not None:
            portal.start_task_soon(portal.stop)
            self._thread.join()

    async def _serve(self) -> None:
        # The portal waits for every call, however long: so the drain, which has a deadline, comes before it.
        async with BlockingPortal() as portal, Host(self._settings):
            self._portal = portal
            self._ready.set()
            await portal.sleep_until_stopped()


_lock = threading.Lock()
_host: BlockingHost | None = None


def blocking_host() -> BlockingHost:
    """The process's host for sync calls, started by the first one who asks."""
    global _host
    with _lock:
        if _host is None:
            _host = BlockingHost()
            atexit.register(_host.stop)
        return _host
