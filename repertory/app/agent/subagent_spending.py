"""The spending of subagents that is on record in the journals of their session, for budgets in a later process.

Not an actor: it belongs to the starter of a session's subagents.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio

from repertory.core.journal.restore import records_of
from repertory.core.turns.subagents import (
    depth_of,
    is_subagent,
    past_work,
    shared_budgets,
    work_name,
    works_below,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from repertory.backends.ports import SessionStore
    from repertory.core.budget import Budget
    from repertory.core.journal.records import Record
    from repertory.core.turns.subagents import PastWork

POOLS_MAX = 256
"""Turns of earlier processes whose budgets are known; beyond this the first of them is forgotten."""


class PastSpending:
    """The spending on record of the subagents of one session."""

    __slots__ = ("_agent_id", "_lock", "_pools", "_session_id", "_store")

    def __init__(self, session_id: str, agent_id: str, store: SessionStore) -> None:
        """`agent_id`: of the agent that starts them."""
        self._session_id, self._agent_id, self._store = session_id, agent_id, store
        self._pools: dict[str, tuple[Budget, ...]] = {}
        """The budgets of turns of a process that is gone, by the turn's name, for the subagents that they have
        detached.
        """
        self._lock = anyio.Lock()

    async def tell(self, budgets: Iterable[Budget], child: str, *, begun: bool) -> None:
        """Tell these budgets what a subagent, and those below it, have spent before they knew it. `begun`: False for
        one that has no messages yet.
        """
        name = work_name(self._session_id, child)
        new = [each for each in budgets if not each.has_seen(name)]
        if not new:
            return
        own = past_work(child, await self._records(child)) if begun else None
        works = [] if own is None else [own, *works_below(child, await self._works(depth_of(child) + 1))]
        for budget in new:
            for work in works:
                budget.take_over(work_name(self._session_id, work.agent_id), work.calls)
            budget.take_over(name, ())  # It has seen all of one that begins.

    async def pool(self, name: str, otherwise: Budget, model: str) -> tuple[Budget, ...]:
        """The budgets that subagents share which a turn of a process that is gone has detached.

        `name`: of the turn. `otherwise`: where nothing is on record of it. `model`: the id of the agent's model.
        """
        async with self._lock:  # What the first of them spends must not be taken for something before it.
            known = self._pools.get(name)
            if known is None:
                works = await self._works(depth_of(self._agent_id) + 1)
                begun = [each for each in works if each.begun.parent_turn == name]
                ids = {each.agent_id for each in begun}
                below = [each for one in begun for each in works_below(one.agent_id, works) if each.agent_id not in ids]
                records = await self._records(self._agent_id)
                known = (*shared_budgets(self._session_id, name, records, [*begun, *below], model),) or (otherwise,)
                if len(self._pools) >= POOLS_MAX:
                    del self._pools[next(iter(self._pools))]
                self._pools[name] = known
            return known

    async def _works(self, depth: int) -> list[PastWork]:
        """The subagents of the session that stand at least so deep."""
        infos = await self._store.sessions(self._session_id)
        deep = [each for info in infos for each in info.agents if is_subagent(each) and depth_of(each) >= depth]
        works = [past_work(each, await self._records(each)) for each in deep]
        return [each for each in works if each is not None]

    async def _records(self, agent_id: str) -> Sequence[Record | None]:
        rows = await self._store.load(self._session_id, agent_id, whole=True)
        return [record for _, record in records_of(rows, session_id=self._session_id)]
