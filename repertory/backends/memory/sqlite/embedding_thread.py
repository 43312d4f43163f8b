"""Making vectors beside everything else: a thread that runs while there is something to do, with an event loop.

A write wakes it and does not wait for it. What it has not done when the process ends is done after the next write.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Awaitable, Callable

import anyio
from anyio.lowlevel import checkpoint

from repertory.errors import RepertoryError
from repertory.forking import forget_in_children

_log = logging.getLogger("repertory.memory")


class EmbeddingThread:
    """Calls `work` until it says that nothing is left, in a thread that is there only meanwhile."""

    def __init__(self, work: Callable[[], Awaitable[bool]], name: str) -> None:
        """`work` does a piece and returns whether there was one. An error of ours is logged, and ends the thread."""
        self._work = work
        self._name = name
        self._guard = threading.Lock()
        self._thread: threading.Thread | None = None
        self._woken = False
        self._closing = False
        forget_in_children(self)

    def forget_parent(self) -> None:
        """In a forked child: no thread. What was to be done is done by the parent's."""
        self._guard, self._thread, self._woken = threading.Lock(), None, False

    def wake(self) -> None:
        """There may be something to do."""
        with self._guard:
            self._woken = True
            if (self._thread is None or not self._thread.is_alive()) and not self._closing:
                self._thread = threading.Thread(target=self._main, name=self._name, daemon=True)
                self._thread.start()

    async def aclose(self) -> None:
        """Let the piece that is worked on be finished, and nothing more. Returns when the thread is gone."""
        with self._guard:
            self._closing = True
            thread = self._thread
        with anyio.CancelScope(shield=True):
            while thread is not None and thread.is_alive():
                await checkpoint()

    def _main(self) -> None:
        try:
            anyio.run(self._run)
        except RepertoryError as error:
            _log.warning("vectors could not be made; texts are found by their words alone: %s", error)
            with self._guard:
                self._thread = None

    async def _run(self) -> None:
        while self._goes_on():
            while not self._closing and await self._work():
                pass

    def _goes_on(self) -> bool:
        """Whether somebody has called in the meantime. Otherwise the thread is as good as gone."""
        with self._guard:
            if not self._woken or self._closing:
                self._thread = None
                return False
            self._woken = False
            return True
