"""Clocks that jump: when every task waits for time to pass, it has passed. On asyncio and on trio.

Caveat, the same on both loops: while a worker thread runs *and* a timer is pending, the clock may jump past the thread.
Tests that mix real threads, files or sockets with timeouts need a real clock.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable
from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    import trio.abc

_OUTSIDE_POLL_S = 0.05
_FOREVER_S = 86_400.0
"""The longest wait of asyncio: a task that waits that long may be waiting for a thread."""
_RESOLUTION_S = 1e-6
"""The resolution of timers. For times far in the future floats are no finer, and a timer that is due must be seen as
due.
"""


class AsyncioOptions(TypedDict):
    """The `backend_options` of `anyio.run` on asyncio.

    Attributes:
        loop_factory: Makes the loop.
    """

    loop_factory: Callable[[], asyncio.AbstractEventLoop]


class TrioOptions(TypedDict):
    """The `backend_options` of `anyio.run` on trio.

    Attributes:
        clock: The clock of the run.
    """

    clock: trio.abc.Clock


class JumpingSelector(selectors.DefaultSelector):
    """A selector that advances the loop's clock where the loop would wait.

    Attributes:
        virtual_s: The seconds by which the clock was advanced.
    """

    virtual_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Advance the clock by `timeout`, and return what is ready.

        Args:
            timeout: Seconds to the next timer; None when there is none.
        """
        # Ready I/O comes before any timer, or a timeout would always win against an answer that is already there.
        ready = super().select(0)
        if ready:
            return ready
        if timeout is None or timeout >= _FOREVER_S:
            ready = super().select(_OUTSIDE_POLL_S)  # Only a thread or the outside can wake us.
        if timeout is not None and not ready:
            self.virtual_s += timeout
        return ready


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An asyncio loop whose clock starts at 0 and jumps to the next timer whenever nothing else can run."""

    def __init__(self) -> None:
        self._jumping = JumpingSelector()
        super().__init__(self._jumping)
        # A private attribute of `BaseEventLoop`: it has no parameter for it, and takes the resolution of the real
        # clock.
        self._clock_resolution = _RESOLUTION_S

    def time(self) -> float:
        """Seconds since the loop was made, by its own clock."""
        return self._jumping.virtual_s


def virtual_asyncio() -> tuple[str, AsyncioOptions]:
    """Backend name and options for anyio: asyncio on virtual time."""
    return "asyncio", {"loop_factory": VirtualTimeLoop}


def virtual_trio() -> tuple[str, TrioOptions]:
    """Backend name and options for anyio: trio on virtual time. A clock serves one run, so call this anew for each."""
    import trio.testing

    return "trio", {"clock": trio.testing.MockClock(autojump_threshold=0)}
