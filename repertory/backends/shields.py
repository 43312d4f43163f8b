"""Shields: blocks that a cancellation waits for, such as a commit. A drain ends them when its time is over: a process
must end even when a server gives no answer.
"""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from functools import wraps
from types import TracebackType
from typing import Final

import anyio

from repertory.errors import RepertoryError, StoreUnavailable


class Shields:
    """The shields of one program of actors: of all tasks that begin within `entered`, and of theirs."""

    def __init__(self) -> None:
        self._open: set[anyio.CancelScope] = set()
        self._cut = False

    @contextmanager
    def entered(self) -> Generator[None]:
        """A block in which new tasks, and theirs, have these shields."""
        token = _shields.set(self)
        try:
            yield
        finally:
            _shields.reset(token)

    def cut(self) -> None:
        """Cancel what they hold, now and from now on: whoever is cancelled, or waits for a server, goes on at once."""
        self._cut = True
        # A copy: a scope that is cancelled leaves the set.
        for scope in tuple(self._open):
            scope.cancel()

    def mend(self) -> None:
        """Let shields hold again."""
        self._cut = False

    def opened(self, scope: anyio.CancelScope) -> None:
        self._open.add(scope)
        # A shield that opens after the end of time would hold it up as much as one from before.
        if self._cut:
            scope.cancel()

    def closed(self, scope: anyio.CancelScope) -> None:
        self._open.discard(scope)

    def around(self, work: Callable[[], Awaitable[object]]) -> Callable[[], Awaitable[None]]:
        """The same work, with shields that hold until its caller is cancelled. Errors: those of the work."""

        @wraps(work)
        async def run() -> None:
            over, failed = False, None
            self.mend()

            async def cut_when_cancelled() -> None:
                try:
                    await anyio.sleep_forever()
                finally:
                    # The end of the block cancels this task as well, and that is no reason to cut.
                    if not over:
                        self.cut()

            async with anyio.create_task_group() as group:
                group.start_soon(cut_when_cancelled)
                try:
                    await work()
                except RepertoryError as error:  # It is raised below, since the task group would wrap it.
                    failed = error
                over = True
                group.cancel_scope.cancel()
            if failed is not None:
                raise failed

        return run


_shields: Final[ContextVar[Shields | None]] = ContextVar("repertory_shields", default=None)


class Uncut:
    """A block that a cancellation waits for; used once.

    Args:
        within_s: The most seconds that it may take.

    Raises:
        StoreUnavailable: It took longer, or a drain's time was over. What it asked for may have been done.
    """

    __slots__ = ("_scope", "_shields", "_within_s")

    def __init__(self, within_s: float = math.inf) -> None:
        self._within_s = within_s

    def __enter__(self) -> None:
        self._shields = _shields.get()
        deadline = math.inf if self._within_s == math.inf else anyio.current_time() + self._within_s
        self._scope = anyio.CancelScope(deadline=deadline, shield=True)
        self._scope.__enter__()
        if self._shields is not None:
            self._shields.opened(self._scope)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if self._shields is not None:
            self._shields.closed(self._scope)
        ended = bool(self._scope.__exit__(kind, error, trace))
        # Nothing inside is told that it was cut, since a cancellation may be swallowed there; its caller must learn it.
        if self._scope.cancelled_caught:
            raise StoreUnavailable("there was no answer in time")
        return ended


@asynccontextmanager
async def waited_for(within_s: float, *, if_cancelled_s: float) -> AsyncGenerator[anyio.CancelScope]:
    """A block that a cancellation waits for. It is cut `within_s` after it began, and `if_cancelled_s` after it began
    if its caller is cancelled by then: `cancelled_caught` of the scope says so. What it asked for may have been done.
    """
    began, failed = anyio.current_time(), None
    scope = anyio.CancelScope(shield=True, deadline=began + within_s)

    async def look_for_cancellation() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            scope.deadline = min(scope.deadline, began + if_cancelled_s)

    async with anyio.create_task_group() as group:
        group.start_soon(look_for_cancellation)
        try:
            with scope:
                yield scope
        except RepertoryError as error:  # It is raised below, since the task group would wrap it.
            failed = error
        group.cancel_scope.cancel()
    if failed is not None:
        raise failed
