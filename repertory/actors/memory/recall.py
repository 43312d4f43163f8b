"""One search of all memory stores at once, for one turn, which waits for each of them within a bound.

Not an actor: it is run by the session's memory actor, as a job, and waited for by the turn. Whatever a store did
before, it is asked and waited for again, unless five turns in a row have asked it in vain: then one turn in four asks.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Literal

import anyio

from repertory.actors.memory.desk import StoreDesk
from repertory.core.memory.entry import MemoryEntry
from repertory.errors import RepertoryError

_log = logging.getLogger("repertory.memory")

Miss = Literal["failed", "late", "skipped"]
"""Why a turn has nothing of a store: it raised an error, did not answer in time, or was not asked at all."""


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
        self._missed: dict[StoreDesk, Miss] = {}

    async def run(self) -> None:
        """Ask every store. Ends when the last one has answered. Errors: none; they are logged."""
        async with anyio.create_task_group() as group:
            for desk in self._answers:
                group.start_soon(self._search, desk)

    async def found(self) -> list[Sequence[MemoryEntry]]:
        """What each store knows, in the order of the stores, as far as that is there in time."""
        with anyio.CancelScope(deadline=self.began_at + self._patience_s) as waiting:
            for answered in self._answers.values():
                await answered.wait()
        if waiting.cancelled_caught:
            for desk, answered in self._answers.items():
                if not answered.is_set():
                    self._miss(desk, "late")
        return [self._found[desk] for desk in self._answers if desk in self._found]

    @property
    def missed(self) -> Mapping[str, Miss]:
        """The stores that it has nothing of, by name."""
        return {desk.name: why for desk, why in self._missed.items()}

    async def _search(self, desk: StoreDesk) -> None:
        health = desk.health
        try:
            if not health.turns.allows:
                health.turns = health.turns.passed_over()
                self._miss(desk, "skipped")
                return
            health.turns = health.turns.asked()
            self._found[desk] = await desk.search(self.query, self._results, forced=True)
            if desk not in self._missed:
                health.turns = health.turns.answered()
        except RepertoryError as error:
            self._miss(desk, "failed", str(error))
        finally:
            self._answers[desk].set()

    def _miss(self, desk: StoreDesk, why: Miss, cause: str | None = None) -> None:
        """Note it, and say so, once."""
        if desk in self._missed:
            return
        self._missed[desk] = why
        if why != "skipped":
            desk.health.turns = desk.health.turns.failed()
        text = "a memory store is left out of what the model is told store=%r why=%s cause=%r in_a_row=%d"
        _log.warning(text, desk.name, why, cause, desk.health.turns.missed)
