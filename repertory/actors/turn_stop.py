"""Ending a turn early: who wants it, and cutting short what the turn is doing.

A message tells the agent that there is a wish. The turn itself looks too, at each place where it may end, so that a
tool or a hook that asks for the end is heard before anything else happens, whoever is quicker.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio

from repertory.core.turn import Stop
from repertory.forking import forget_in_children

T = TypeVar("T")


class StopWish:
    """What somebody wants of a running turn that it has not heard yet: at most one wish. Safe from any thread."""

    __slots__ = ("__weakref__", "_lock", "_wish")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._wish: tuple[Stop, bool] | None = None
        forget_in_children(self)

    def forget_parent(self) -> None:
        """In a forked child: the wish was for the parent's turn."""
        self._lock, self._wish = threading.Lock(), None

    def ask(self, stop: Stop, *, after_tools: bool) -> None:
        """Wish for the end. A wish that waits already stays, unless this one is for an earlier end."""
        with self._lock:
            if self._wish is None or (self._wish[1] and not after_tools):
                self._wish = (stop, after_tools)

    def take(self) -> tuple[Stop, bool] | None:
        """The wish, and whether tools that run may end first; None when there is none. It is fulfilled by whoever
        takes it.
        """
        if self._wish is None:
            return None
        with self._lock:
            wish, self._wish = self._wish, None
        return wish


class TurnStop:
    """Whether one turn is to end at once, and the scope of what it is doing now."""

    def __init__(self, wish: StopWish, after_tools: Callable[[Stop], None]) -> None:
        """`after_tools` is told of wishes that may wait for tools."""
        self._wish = wish
        self._after_tools = after_tools
        self._stop: Stop | None = None
        self._scope: anyio.CancelScope | None = None

    def ask(self, stop: Stop) -> None:
        """End it. The first one to ask decides how."""
        self._stop = self._stop or stop
        if self._scope is not None:
            self._scope.cancel()

    def heard(self) -> Stop | None:
        """How it is to end; None when it is to go on. Takes in now what was wished for just before."""
        wish = self._wish.take()
        if wish is not None:
            stop, after_tools = wish
            (self._after_tools if after_tools else self.ask)(stop)
        return self._stop

    def scope(self) -> anyio.CancelScope:
        """A scope that is cancelled when the turn is to end, and now if it is already."""
        self._scope = anyio.CancelScope()
        if self.heard() is not None:
            self._scope.cancel()
        return self._scope

    async def unless(self, work: Callable[[], Awaitable[T]]) -> T | None:
        """What the work gives; None when the turn is to end before it or meanwhile, which cuts it short."""
        return None if self.heard() is not None else await self._cut_short(work)

    async def even_so(self, work: Callable[[], Awaitable[T]]) -> T | None:
        """The same for what tidies up: it is done when the turn was to end before it, too."""
        return await (work() if self.heard() is not None else self._cut_short(work))

    async def _cut_short(self, work: Callable[[], Awaitable[T]]) -> T | None:
        with anyio.CancelScope() as self._scope:
            return await work()
        return None
