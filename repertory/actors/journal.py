"""An agent's journal for its one author: each record is folded at once, and here the author waits for durability.

Not an actor: it belongs to the agent or orchestrator actor, the only author of its journal.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

import anyio

from repertory.actors.call import deadline
from repertory.actors.commit_buffer import CommitBuffer
from repertory.actors.conversation import NumberedMessage
from repertory.actors.persister import Begin, Commit, OpenJournal, PersisterMessage, Store, VerifyLease
from repertory.core.journal.author import JournalAuthor
from repertory.core.journal.pending_tools import pending_tools_of
from repertory.core.journal.records import MessageAdded, Record, StateChanged, ViewChanged
from repertory.core.state import AgentState
from repertory.errors import MailboxFull, SessionException
from repertory.runtime.ref import ActorRef

if TYPE_CHECKING:
    from repertory.actors.commit_buffer import CommitBuffer
    from repertory.actors.in_memory_journal import InMemoryJournal
    from repertory.actors.persister import PersisterMessage
    from repertory.core.journal.fold import Fold
    from repertory.core.journal.pending_tools import PendingTools
    from repertory.core.messages import Message

LATE_S = 2.0
"""How long after its deadline a call may still wait for the store, so that a turn that was cut short is stored."""

_log = logging.getLogger("repertory.journal")


class ActorJournal:
    """Gathers records until the author has to wait, so that related records are committed together.

    For a session without a store `hand_over`, `commit`, `begin` and `prove` do nothing.
    """

    def __init__(
        self,
        persister: ActorRef[PersisterMessage],
        journal: JournalAuthor | InMemoryJournal,
        wall: Callable[[], float],
        buffer: CommitBuffer,
    ) -> None:
        """`journal`: opened by the persister just now, with the lease. `wall` gives epoch seconds. `buffer`: the
        persister's.
        """
        self._persister = persister
        self._buffer = buffer
        self.wall = wall
        self._go_on(journal)

    @classmethod
    async def open(
        cls, persister: ActorRef[PersisterMessage], wall: Callable[[], float], *, buffer: CommitBuffer
    ) -> ActorJournal:
        """The journal that the persister has opened. Errors: `ActorDead`."""
        return cls(persister, await persister.ask(OpenJournal(), timeout_s=math.inf), wall, buffer)

    def _go_on(self, journal: JournalAuthor | InMemoryJournal) -> None:
        self._journal = journal
        self._author = journal if isinstance(journal, JournalAuthor) else None
        """None for a session without a store."""
        self._confirmed_at = self.wall() if self._author is not None else math.inf
        self._unshown: list[NumberedMessage] = []
        self.asked = _asked(journal.fold)
        """The user's last messages, one after the other with no answer between them."""

    @property
    def fold(self) -> Fold:
        """The state after every record so far. Read only."""
        return self._journal.fold

    @property
    def pending_tools(self) -> PendingTools:
        return pending_tools_of(self.fold)

    def add(self, record: Record) -> int:
        """Append a record; returns its sequence number. The persister gets it with the next `hand_over` or `commit`.

        Errors: `Invalid` (`UnpairedTools`) if the record is not allowed here; nothing has changed then.
        """
        last = self.fold.last_message
        seq = self._journal.add(record)
        if type(record) is MessageAdded:
            entry = NumberedMessage(seq, record.message)
            if record.message["role"] == "user":
                self.asked = [*(self.asked if last is not None and last["role"] == "user" else ()), entry]
            self._unshown.append(entry)
        return seq

    def add_view(self, change: ViewChanged) -> None:
        """Record a change of the view: as part of the message directly before it, if that is not handed over yet and
        can hold it; otherwise as its own record.
        """
        self._journal.add_view(change)

    def add_changes(self, state: AgentState) -> None:
        """Record what changed in the state since the last call."""
        patch = state.take_patch()
        if patch is not None:
            self.add(StateChanged(at=self.wall(), set=dict(patch.set), delete=patch.delete))

    def take_unshown(self) -> tuple[NumberedMessage, ...]:
        """The messages added since the last call, for the conversation manager."""
        unshown, self._unshown = tuple(self._unshown), []
        return unshown

    def show_from_here(self) -> None:
        """Forget the unshown messages: the conversation manager is about to load everything."""
        self._unshown, self.asked = [], _asked(self.fold)

    def redact(self, instead: Mapping[int, Message]) -> None:
        """Replace these messages, by sequence number, for good. The next commit destroys the originals."""
        left = self._journal.redact(instead, self.wall())
        if left:
            where = [copy.what for copy in left]
            _log.warning("copies of a redacted message remain where=%r", where)
        self.asked = [NumberedMessage(entry.seq, instead.get(entry.seq, entry.message)) for entry in self.asked]
        self.hand_over()

    def hand_over(self, *, soon: bool = False) -> None:
        """Have the persister write the gathered records in the background; at once if `soon`."""
        if self._author is not None and self._author.gathered:
            self._author.hand_over()
            with suppress(MailboxFull):  # The persister takes these rows with the messages in its full mailbox.
                self._persister.tell(Store(soon=soon))

    async def commit(self, *, closing: bool = False, patient: bool = True) -> None:
        """Wait until everything added so far is durable. Errors: those of the persister's `Commit`; `ActorDead`.

        `closing`: the turn is over, so a restatement that later openings need may be added. Without `patient` the
        store's first refusal is raised. A call with a deadline waits until `LATE_S` after it at most.
        """
        if self._author is None:
            return
        if closing:
            self._author.restate()
        self._author.hand_over()
        commit = Commit(seq=self.fold.last_seq, patient=patient, within_s=_within_s())
        await self._persister.ask(commit, timeout_s=math.inf)
        self._confirmed_at = self.wall()

    async def begin(self, *, stored: bool) -> bool:
        """Before a turn first asks the model: wait until the store confirms the lease and, with `stored`, has all
        records.

        True if another process has written meanwhile and the session was opened again: everything since the turn began
        is forgotten, and `fold` is the new state. Errors: as `commit`, `SessionBusy`.
        """
        if self._author is None:
            return False
        begin = Begin(before=self._author.handed_seq, stored=stored, within_s=_within_s())
        if stored:
            self._author.hand_over()
        reopened = await self._persister.ask(begin, timeout_s=math.inf)
        if reopened is not None:
            self._go_on(reopened)
        self._confirmed_at = self.wall()
        return reopened is not None

    @property
    def behind(self) -> bool:
        """True while the store refuses this agent's rows."""
        return self._buffer.error is not None

    @property
    def full(self) -> bool:
        return self._buffer.full(0 if self._author is None else self._author.gathered)

    def promise(self) -> None:
        """Note that a caller gets its answer before these records are stored."""
        self._buffer.promised = self.fold.last_seq

    async def catch_up(self) -> None:
        """Before a turn: wait until the rows of earlier turns are stored.

        Errors: `SessionException`, once, if turns that were answered will never be stored; those of `commit`.
        """
        lost = self._buffer.take_lost()
        if lost is not None:
            text = "turns that were answered are lost: they could not be stored; say again what matters of them"
            raise SessionException(text, session=lost.session_id, turns=lost.turns, cause=lost.error)
        if self.behind:
            await self.commit()

    async def prove(self) -> None:
        """Wait until the store confirms the lease. Errors: as `commit`."""
        await self._persister.ask(VerifyLease(within_s=_within_s()), timeout_s=math.inf)
        self._confirmed_at = self.wall()

    def confirmed_within(self, seconds: float) -> bool:
        """True if the lease was acquired or confirmed, or the store took a commit, in the last `seconds`."""
        return self.wall() - self._confirmed_at <= seconds


def _within_s() -> float:
    """How long the running call may wait for the store."""
    at = deadline()
    return math.inf if at == math.inf else max(at - anyio.current_time(), 0.0) + LATE_S


def _asked(fold: Fold) -> list[NumberedMessage]:
    """The user's last messages, as far as they are shown."""
    asked: list[NumberedMessage] = []
    for seq, message in reversed(tuple(fold.shown.recent)):
        if message["role"] == "user":
            asked.append(NumberedMessage(seq, message))
        elif asked:
            break
    return asked[::-1]
