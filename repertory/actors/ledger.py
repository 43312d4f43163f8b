"""The agent's pen: numbers its records, hands them to the persister, and waits for them to be durable.

Not an actor: it belongs to the agent actor, which is the only author of its journal, so it can number records without
asking.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import anyio

from repertory.actors.backlog import Backlog
from repertory.actors.call import deadline
from repertory.actors.persister import PersisterMessage
from repertory.actors.persister_messages import Append, Begin, Commit, Prove, Redact
from repertory.core.journal.records import MessageAdded, Record, StateChanged, ViewChanged
from repertory.core.journal.view_change import message_with_view
from repertory.core.state import AgentState
from repertory.errors import MailboxFull, RepertoryError, SessionException
from repertory.runtime.ref import ActorRef

if TYPE_CHECKING:
    from repertory.core.journal.image import Image
    from repertory.core.messages import Message

LATE_S = 2.0
"""How long after its deadline a call may still wait for its store: a turn that was cut short is written down then."""


class Ledger:
    """Gathers records until somebody has to wait, so that what belongs together is committed together."""

    def __init__(
        self,
        persister: ActorRef[PersisterMessage],
        last_seq: int,
        wall: Callable[[], float],
        *,
        backlog: Backlog,
        durable: bool,
    ) -> None:
        """`last_seq` is the sequence number of the last record there is; `wall` gives epoch seconds; `backlog` is what
        the persister could not store. The lease was taken just now.

        Without `durable` there is nothing to wait for: records are handed over with each commit, and that is all.
        """
        self._persister = persister
        self._backlog = backlog
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

        Without a store there is no hurry, so that only `soon` does it. While its mailbox is full, records go on being
        gathered.
        """
        if self._durable or soon:
            self._pass_on(soon=soon)

    def _pass_on(self, *, soon: bool) -> None:
        if self._gathered:
            records = tuple(self._gathered)
            first = self._last_seq - len(records) + 1
            try:
                self._persister.tell(Append(first=first, records=records, soon=soon))
            except MailboxFull:  # It has much to read: this goes with what comes next.
                return
            self._gathered = []

    async def commit(self, *, closing: bool = False, patient: bool = True) -> None:
        """Wait until everything added so far is durable. Errors: those of the persister's `Commit`; `ActorDead`.

        Others may add meanwhile. Who may be cancelled hands over first: a commit that the persister has not read yet
        takes its records with it. `closing`: the turn is over; such a commit must not be cancelled, since its answer
        says how records are numbered from here. Without `patient` the store's first refusal is raised. A call with a
        deadline waits until `LATE_S` after it at most.
        """
        if not self._durable:
            self._pass_on(soon=False)
            return
        records, self._gathered = tuple(self._gathered), []
        first = self._last_seq - len(records) + 1
        last = self._last_seq
        commit = Commit(first=first, records=records, closing=closing, patient=patient, within_s=_within_s())
        try:
            committed = await self._persister.ask(commit, timeout_s=math.inf)
        except RepertoryError:
            self._last_seq = max(self._last_seq, self._backlog.last_seq)  # What was restated waits as well.
            raise
        self._last_seq += committed - last
        self._confirmed_at = self.wall()

    async def begin(self, *, stored: bool) -> Image | None:
        """Before a turn's model is asked for the first time: wait until the store has said that the session is still
        ours, and with `stored` has what was gathered.

        When somebody else has written to it meanwhile and it can be opened again, what was gathered is forgotten:
        answers with what is there now, and records are numbered from there. Errors: as `commit`, `SessionBusy`.
        """
        if not self._durable:
            return None
        first = self._last_seq - len(self._gathered) + 1
        records: tuple[Record, ...] = ()
        if stored:
            records, self._gathered = tuple(self._gathered), []
        begin = Begin(first=first, records=records, within_s=_within_s())
        image = await self._persister.ask(begin, timeout_s=math.inf)
        if image is not None:
            self._gathered, self._last_seq = [], image.last_seq
        self._confirmed_at = self.wall()
        return image

    async def redact(self, instead: Mapping[int, Message]) -> None:
        """Put other messages in the place of these, by sequence number, for good: what is committed next destroys the
        originals.
        """
        records, self._gathered = tuple(self._gathered), []
        first = self._last_seq - len(records) + 1
        ask = Redact(first=first, records=records, at=self.wall(), instead=instead)
        self._last_seq = await self._persister.ask(ask, timeout_s=math.inf)

    @property
    def behind(self) -> bool:
        """Whether the store does not take what was said."""
        return self._backlog.error is not None

    @property
    def full(self) -> bool:
        """Whether as much waits for the store as may."""
        return self._backlog.full(len(self._gathered))

    def promise(self) -> None:
        """A caller is answered before this is stored."""
        self._backlog.promised = self._last_seq

    async def catch_up(self) -> None:
        """Before a turn: wait until what earlier ones left behind is stored. Nothing of this one is on record yet.

        Errors: `SessionException`, once, when turns that were answered will never be stored; those of `commit`.
        """
        lost = self._backlog.take_lost()
        if lost is not None:
            text = "turns that were answered are lost: they could not be stored; say again what matters of them"
            raise SessionException(text, session=lost.session_id, turns=lost.turns, cause=lost.error)
        if self.behind:
            await self.commit()

    async def prove(self) -> None:
        """Wait until the store has said that the session is still ours. Errors: as `commit`."""
        await self._persister.ask(Prove(within_s=_within_s()), timeout_s=math.inf)
        self._confirmed_at = self.wall()

    def confirmed_within(self, seconds: float) -> bool:
        """Whether the lease was taken or proved, or the store took a commit of ours, that recently."""
        return self.wall() - self._confirmed_at <= seconds


def _within_s() -> float:
    """How long the call for which code runs here may wait for its store."""
    at = deadline()
    return math.inf if at == math.inf else max(at - anyio.current_time(), 0.0) + LATE_S
