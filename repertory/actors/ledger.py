"""The agent's pen: numbers its records, hands them to the persister, and waits for them to be durable.

Not an actor: it belongs to the agent actor, which is the only author of its journal, so it can number records without
asking.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from repertory.actors.persister import Append, Commit, PersisterMessage, Prove
from repertory.core.journal.records import MessageAdded, Record, StateChanged, ViewChanged
from repertory.core.journal.view_change import message_with_view
from repertory.core.state import AgentState
from repertory.runtime.ref import ActorRef


class Ledger:
    """Gathers records until somebody has to wait, so that what belongs together is committed together."""

    def __init__(
        self, persister: ActorRef[PersisterMessage], last_seq: int, wall: Callable[[], float], *, durable: bool
    ) -> None:
        """`last_seq` is the sequence number of the last record there is; `wall` gives epoch seconds. The lease was
        taken just now.

        Without `durable` there is nothing to wait for: records are handed over with each commit, and that is all.
        """
        self._persister = persister
        self._last_seq = last_seq
        self._gathered: list[Record] = []
        self._confirmed_at = wall() if durable else math.inf
        self._durable = durable
        self.wall = wall

    def add(self, record: Record) -> int:
        """Number a record. It reaches the persister with the next `hand_over` or `commit`."""
        self._gathered.append(record)
        self._last_seq += 1
        return self._last_seq

    def add_view(self, change: ViewChanged) -> None:
        """A change of what is shown: part of the message that it follows directly, when that is still here and can
        hold it; else a record of its own.
        """
        last = self._gathered[-1] if self._gathered else None
        whole = message_with_view(last, change) if isinstance(last, MessageAdded) else None
        if whole is None:
            self.add(change)
        else:
            self._gathered[-1] = whole

    def add_changes(self, state: AgentState) -> None:
        """Record what changed in the state since this was last asked."""
        patch = state.take_patch()
        if patch is not None:
            self.add(StateChanged(at=self.wall(), set=dict(patch.set), delete=patch.delete))

    def hand_over(self, *, soon: bool = False) -> None:
        """Give what was gathered to the persister, which writes it in the background: at once when `soon`.

        Without a store there is no hurry, so that only `soon` does it.
        """
        if self._durable or soon:
            self._pass_on(soon=soon)

    def _pass_on(self, *, soon: bool) -> None:
        if self._gathered:
            records, self._gathered = tuple(self._gathered), []
            first = self._last_seq - len(records) + 1
            self._persister.tell(Append(first=first, records=records, soon=soon))

    async def commit(self, *, closing: bool = False) -> None:
        """Wait until everything added so far is durable. Errors: `LeaseLost`, `Unavailable`, `ActorDead`.

        Others may add meanwhile. Who may be cancelled hands over first: a commit that the persister has not read yet
        takes its records with it. `closing`: the turn is over; such a commit must not be cancelled, since its answer
        says how records are numbered from here.
        """
        if not self._durable:
            self._pass_on(soon=False)
            return
        records, self._gathered = tuple(self._gathered), []
        first = self._last_seq - len(records) + 1
        last = self._last_seq
        committed = await self._persister.ask(Commit(first=first, records=records, closing=closing), timeout_s=math.inf)
        self._last_seq += committed - last
        self._confirmed_at = self.wall()

    async def prove(self) -> None:
        """Wait until the store has said that the session is still ours. Errors: as `commit`."""
        await self._persister.ask(Prove(), timeout_s=math.inf)
        self._confirmed_at = self.wall()

    def confirmed_within(self, seconds: float) -> bool:
        """Whether the lease was taken or proved, or the store took a commit of ours, that recently."""
        return self.wall() - self._confirmed_at <= seconds
