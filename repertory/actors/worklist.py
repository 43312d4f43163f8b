"""The one job in which an actor does one thing after another, and who waits until it has nothing left to do.

One job for all of it: starting one costs more than a plain turn's messages. Not an actor: it belongs to one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import anyio

if TYPE_CHECKING:
    from repertory.runtime.context import Context


class Worklist:
    """What an actor has to do, in a job that waits while that is nothing."""

    def __init__(self, name: str, take: Callable[[], Awaitable[None] | None]) -> None:
        """`name`: of the job. `take` gives the next thing to do, None when there is none."""
        self._name = name
        self._take = take
        self.busy = False
        """Whether something is done, or is about to be."""
        self._beside = 0
        self._called: anyio.Event | None = None
        self._waiting: list[Callable[[], None]] = []

    def wake(self, context: Context) -> None:
        """There is something to do."""
        self.busy = True
        if self._called is None:
            self._called = anyio.Event()
            context.job(self._work, name=self._name)
        self._called.set()

    def begin_beside(self) -> None:
        """Something else begins that is to be over before there is nothing left to do. Needs one `end_beside`."""
        self._beside += 1

    def end_beside(self) -> None:
        """It is over."""
        self._beside -= 1
        self._tell()

    def when_idle(self, callback: Callable[[], None]) -> None:
        """Call it once when there is nothing left to do, perhaps at once."""
        self._waiting.append(callback)
        self._tell()

    def _tell(self) -> None:
        while self._waiting and not (self.busy or self._beside):
            self._waiting.pop()()

    async def _work(self) -> None:
        while True:
            while (one := self._take()) is not None:
                await one
            self.busy = False
            self._tell()
            self._called = anyio.Event()
            await self._called.wait()
