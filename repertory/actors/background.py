"""Work that actors do by themselves, such as a look at a store each second, and that no error of it ends.

An error there says that a store, a queue or the code of a program fails for now: nobody waits who could be told, and an
actor that ended by it would end others with it. So it is logged, and the work is done again after a pause.
`core/retry.py` decides how long the pause is, and which errors are worth a line.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import TypeVar

import anyio

from repertory.core.retry import Outage, foreign_errors
from repertory.errors import RepertoryError
from repertory.logs import INFO, WARNING, note
from repertory.runtime.actor import Context

T = TypeVar("T")

_NOWHERE: Mapping[str, object] = MappingProxyType({})
_HEALTHY_S = 60.0
"""Seconds of running after which work that goes on and on has no failures behind it."""


class Background:
    """One kind of background work of an actor, with the failures behind it."""

    def __init__(
        self, context: Context, failing: str, where: Mapping[str, object] = _NOWHERE, *, limit_s: float = 2.0
    ) -> None:
        """`failing` and `where` are for the log. `limit_s`: the longest pause."""
        self._context = context
        self._failing = failing
        self._where = where
        self._outage = Outage(limit_s)
        self.pause_s = 0.0
        """Seconds before the work is done again; 0 while it succeeds."""

    async def attempt(self, work: Callable[[], Awaitable[T]], otherwise: T) -> T:
        """The result of the work, or `otherwise` if it fails. Errors: none."""
        try:
            with foreign_errors():
                result = await work()
        except RepertoryError as error:
            self._failed(error)
            return otherwise
        if failures := self._outage.over():
            self.pause_s = 0.0
            note(self._context.logger, INFO, f"it works again: {self._failing}", failures=failures, **self._where)
        return result

    async def keep(self, work: Callable[[], Awaitable[object]]) -> None:
        """Do the work, and again whenever it fails, until it succeeds or is cancelled. Errors: none."""
        failed = object()
        began = self._context.clock()
        while await self.attempt(work, failed) is failed:
            if self._context.clock() - began >= _HEALTHY_S + self.pause_s:
                self._outage.over()
            await anyio.sleep(self.pause_s)
            began = self._context.clock()

    def _failed(self, error: RepertoryError) -> None:
        context = self._context
        self.pause_s, is_reported = self._outage.failed(error, context.clock(), context.rng.uniform(0.0, 1.0))
        if is_reported:
            note(context.logger, WARNING, self._failing, error, failures=self._outage.failures, **self._where)
