"""Subagents that have ended leave their session, the oldest first, when there are more than the agent keeps.

Not an actor: it is an item of the parent's queue, so no turn of the parent runs beside it. What goes follows from what
is stored at that moment, so a kill, or a store that is down, only means that it goes later.
"""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING

from repertory.backends.ports import Batch
from repertory.core.journal.codec import at_of
from repertory.core.journal.restore import restore
from repertory.core.turns.subagents import at_rest, is_subagent, retained_at_most, to_forget
from repertory.errors import RepertoryError
from repertory.logs import WARNING, note

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from repertory.actors.context import AgentSettings
    from repertory.actors.leases import Durable
    from repertory.core.journal.fold import Fold

_LOG = logging.getLogger("repertory.app")


class SubagentRetention:
    """The bound on the subagents of one session that have ended."""

    __slots__ = ("_count", "_gone", "_keeper", "_looked_at", "_parent", "due", "running")

    def __init__(self, parent: AgentSettings, keeper: Durable | None) -> None:
        """`keeper`: where the subagents are stored; None where they are not."""
        # The agent at the root looks after all of them: those below stand in its session, too.
        self._keeper = None if is_subagent(parent.agent_id) or parent.retain_subagents is None else keeper
        self._parent = parent
        self.due = False
        """True if a subagent has ended here since the last look."""
        self.running = 0
        """The number of subagents that are under way here."""
        self._looked_at = -1
        """The last record of the parent at the last look."""
        self._count = math.inf
        """The most subagents that the session can have by now."""
        self._gone = frozenset[str]()
        """The subagents that were to go at the last look."""

    def begun(self) -> None:
        """Count one more under way."""
        self.running += 1

    def ended(self) -> None:
        """Count one less under way."""
        self.running -= 1
        self._count += 1
        self.due = self._keeper is not None

    def work(self, fold: Fold) -> Awaitable[None] | None:
        """The work to be done now; None for nothing. `fold`: of the parent."""
        retain, keeper = self._parent.retain_subagents, self._keeper
        if keeper is None or retain is None or self.running or self._looked_at == fold.last_seq or not at_rest(fold):
            return None
        self._looked_at = fold.last_seq
        if self._count <= retained_at_most(retain):
            self.due = False
            return None
        return self._forget_oldest(keeper, retain)

    async def _forget_oldest(self, keeper: Durable, retain: int) -> None:
        """Forget the oldest subagents, if nothing in the session can ask for one again."""
        session_id, store = self._parent.session_id, keeper.store
        try:
            agents = [each for info in await store.sessions(session_id) for each in info.agents]
            found = [each for each in agents if is_subagent(each)]
            self._count = len(found)
            if self._gone.intersection(found):  # The store cannot forget them.
                self._keeper, self.due = None, False
                return
            if self._count > retained_at_most(retain):
                for other in set(agents).difference(found):
                    rows = await store.load(session_id, other)
                    if not at_rest(restore(rows, session_id=session_id).fold):
                        return
                ended = {each: at_of((await store.load(session_id, each))[-1].body) or 0.0 for each in found}
                await self._forget(keeper, to_forget(ended, retain))
            self.due = False
        except RepertoryError as error:
            note(_LOG, WARNING, "subagents that have ended could not be forgotten yet", error, session=session_id)

    async def _forget(self, keeper: Durable, going: list[str]) -> None:
        owned = await keeper.leases.acquire_and_load(
            self._parent.session_id, self._parent.agent_id, takeover=False, by=math.inf, joins=True
        )
        try:
            (outcome,) = await keeper.store.append([Batch(lease=owned.lease, rows=(), forget=going)])
            if isinstance(outcome, RepertoryError):
                raise outcome
            self._count, self._gone = self._count - len(going), frozenset(going)
        finally:
            await keeper.leases.release(owned.lease)
