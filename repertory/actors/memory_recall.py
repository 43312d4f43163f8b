"""One search of all memory stores at once, for one turn, that nobody has to wait for.

Not an actor: it is run by the session's memory actor, as a job, and waited for by the turn, within a bound. A store
that was waited for in vain is not waited for again until it has once answered within the bound.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import anyio

from repertory.actors.memory_desk import StoreDesk
from repertory.core.memory.entry import MemoryEntry
from repertory.errors import RepertoryError

_log = logging.getLogger("repertory.memory")


class Recall:
    """What the stores know of one query."""

    def __init__(self, query: str, desks: Sequence[StoreDesk], results: int, patience_s: float) -> None:
        """`results`: entries of each store at most; `patience_s`: how long anybody will wait for them."""
        self.query = query
        self.began_at = anyio.current_time()
        self._results = results
        self._patience_s = patience_s
        self._answers = {desk: anyio.Event() for desk in desks}
        self._found: dict[StoreDesk, Sequence[MemoryEntry]] = {}

    async def run(self) -> None:
        """Ask every store. Ends when the last one has answered. Errors: none; they are logged."""
        async with anyio.create_task_group() as group:
            for desk in self._answers:
                group.start_soon(self._search, desk)

    async def found(self) -> list[Sequence[MemoryEntry]]:
        """What each store knows, in the order of the stores, as far as that is there in time."""
        deadline = self.began_at + self._patience_s
        with anyio.CancelScope(deadline=deadline) as waiting:
            for desk, answered in self._answers.items():
                if not desk.late:
                    await answered.wait()
        if waiting.cancelled_caught:
            for desk, answered in self._answers.items():
                desk.late = desk.late or not answered.is_set()
        return [self._found[desk] for desk in self._answers if desk in self._found]

    async def _search(self, desk: StoreDesk) -> None:
        if desk.rests:
            self._answers[desk].set()
            return
        try:
            self._found[desk] = await desk.search(self.query, self._results)
        except RepertoryError as error:
            _log.warning("a memory store could not be searched store=%r cause=%r", desk.name, str(error))
        else:
            desk.late = anyio.current_time() - self.began_at > self._patience_s
        finally:
            self._answers[desk].set()
