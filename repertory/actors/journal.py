"""An agent's journal for its one author: each record is folded at once, and here the author waits for durability.

Not an actor: it belongs to the agent or orchestrator actor, the only author of its journal.
"""

# It decides what a turn waits for. The fold is ahead of the store, so what a caller is told is told after `commit`,
# unless it was promised; promised turns that are lost are told once, before the next one. `begin` and `take` may open
# the session again, when another process has written: everything that the turn has added is forgotten then, and `fold`
# is another object.

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable, Collection, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import anyio
from msgspec import Struct

from repertory.actors.call import deadline
from repertory.actors.drafts import Draft
from repertory.actors.persister import (
    Begin,
    Commit,
    OpenJournal,
    PersisterMessage,
    ReadMessages,
    ReadRecords,
    Store,
    VerifyLease,
)
from repertory.actors.taking import Take, Taking
from repertory.actors.writer import CommitBuffer
from repertory.core.deferral import deferred_id
from repertory.core.interrupts import step_mark
from repertory.core.journal import deferrals
from repertory.core.journal.author import JournalAuthor
from repertory.core.journal.events import event_of
from repertory.core.journal.fold import FINISHED_TURNS_MAX, Fold, is_answer
from repertory.core.journal.pending_tools import PendingTools, TurnState, pending_tools_of
from repertory.core.journal.records import DeferredResult, MessageAdded, StateChanged, TimersChanged
from repertory.core.journal.view import VisibleSlice
from repertory.core.messages import copy_message, is_stopped, text_of
from repertory.core.result import AgentResult
from repertory.core.state import AgentState
from repertory.core.timers import after_firing, without_missed
from repertory.core.turn import is_whole
from repertory.errors import (
    Gone,
    Invalid,
    MailboxFull,
    RepertoryError,
    SessionException,
    Unavailable,
)
from repertory.logs import WARNING, note
from repertory.runtime.ref import ActorRef

if TYPE_CHECKING:
    from repertory.actors.call import Invocation, ReplyChannel
    from repertory.actors.in_memory_journal import InMemoryJournal
    from repertory.actors.stream_channel import StreamChannel
    from repertory.backends.ports import OutputSchema
    from repertory.core.answer import Assembler
    from repertory.core.deferral import Deferral, DeferredTool
    from repertory.core.deliveries import DeliveryEvent, EventDelivery
    from repertory.core.journal.image import Image
    from repertory.core.journal.records import Record, ViewChanged
    from repertory.core.messages import Json, Message, ToolResult, ToolUse
    from repertory.core.pending_work import DueTime
    from repertory.core.timers import Timer, TimerBook
    from repertory.core.turns.due_times import WorkTracker
    from repertory.core.turns.subagents import UnshownCalls
    from repertory.core.turns.turn_start import KnownTurn
    from repertory.runtime.message import Ask

R = TypeVar("R")

_STORE, _STORE_SOON = Store(), Store(soon=True)
LATE_S = 2.0
"""Seconds after its deadline that a call may still wait for the store, so that a turn that was cut short is stored."""

_log = logging.getLogger("repertory.journal")


class NumberedMessage(Struct, frozen=True):
    """One message with the sequence number of its record."""

    seq: int
    message: Message


class ActorJournal:
    """Gathers records until the author has to wait, so that related records are committed together.

    For a session without a store `hand_over`, `commit`, `begin` and `prove` do nothing.
    """

    __slots__ = (
        "_author",
        "_buffer",
        "_confirmed_at",
        "_ended",
        "_journal",
        "_persister",
        "_read_model",
        "_unshown",
        "asked",
        "buffer",
        "fold",
        "on_late_result",
        "pending_work",
        "timers",
        "unshown_calls",
        "wall",
    )

    def __init__(
        self,
        persister: ActorRef[PersisterMessage],
        journal: JournalAuthor | InMemoryJournal,
        wall: Callable[[], float],
        buffer: CommitBuffer,
        pending_work: WorkTracker | None = None,
        timers: TimerBook | None = None,
    ) -> None:
        """`journal`: opened by the persister just now, with the lease. `wall` gives epoch seconds. `buffer`: the
        persister's. `pending_work`: for an author that says what it owes. `timers`: where its timers are set.
        """
        self._persister = persister
        self.buffer = self._buffer = buffer
        self.wall = wall
        self.pending_work = pending_work
        self.timers = timers
        self._read_model: ReadModel | None = None
        self.unshown_calls: UnshownCalls | None = None
        """The model calls for a subagent that no message shows, to be stated with its next records; None for others."""
        self.on_late_result: Callable[[int, DeferredResult], object] | None = None
        """Called with each record of a result that came later, or did not come in time, and its number."""
        self._go_on(journal)

    @classmethod
    async def open(
        cls,
        persister: ActorRef[PersisterMessage],
        wall: Callable[[], float],
        *,
        buffer: CommitBuffer,
        pending_work: WorkTracker | None = None,
        timers: TimerBook | None = None,
    ) -> ActorJournal:
        """The journal that the persister has opened. Errors: `ActorDead`."""
        return cls(
            persister, await persister.ask(OpenJournal(), timeout_s=math.inf), wall, buffer, pending_work, timers
        )

    def _go_on(self, journal: JournalAuthor | InMemoryJournal) -> None:
        self._journal = journal
        self.fold: Fold = journal.fold
        """The state after every record so far. Read only."""
        self._author = journal if isinstance(journal, JournalAuthor) else None
        """The author of records; None for a session without a store."""
        # Opening has just taken the lease, or confirmed it.
        self._confirmed_at = self.wall()
        self._unshown: list[NumberedMessage] = []
        self._ended: Mapping[str, ToolResult] = {}
        if self.pending_work is not None:
            self.pending_work.begin(journal.fold, self.wall())
        if self.timers is not None:
            self.timers.note_recorded(journal.fold.timers)
        self.asked = _asked(journal.fold)
        """The user's last messages, one after the other with no answer between them."""

    def step_mark(self, *location: str) -> str:
        """The mark of the running step's questions. `location`: the session and the agent. A rewind goes on with later
        numbers. Safe from any thread.
        """
        return step_mark(*location, *self.step)

    @property
    def step(self) -> tuple[int, str]:
        """The running step, among those of all conversations. Safe from any thread."""
        return self.fold.last_message_seq, self._journal.before_last_message().hex()

    def add(self, record: Record) -> int:
        """Append a record; returns its sequence number. The persister gets it with the next `hand_over` or `commit`.

        Errors: `Invalid` (`UnpairedTools`) if the record is not allowed here; nothing has changed then.
        """
        # Read before the record is folded, which replaces it.
        last = self.fold.last_message
        came = record if type(record) is DeferredResult and record.id not in self.fold.came else None
        seq = self._journal.add(record)
        # Results of tools stand in the message now, so readers need no copies of them beside it.
        if type(record) is MessageAdded:
            entry = NumberedMessage(seq, record.message)
            if record.message["role"] == "user":
                self.asked = [*(self.asked if last is not None and last["role"] == "user" else ()), entry]
            self._unshown.append(entry)
            self._ended = {}
        elif came is not None and self.on_late_result is not None:
            self.on_late_result(seq, came)
        self._publish()
        return seq

    def add_view(self, change: ViewChanged) -> None:
        """Record a change of the view: as part of the message directly before it, if that is not handed over yet and
        can hold it; otherwise as its own record.
        """
        self._journal.add_view(change)
        self._publish()

    def publish_to(self, read_model: ReadModel) -> None:
        """Have this read model show the journal from now on, and nothing else."""
        self._read_model = read_model
        read_model.look_at(self._read_state())

    def show_result(self, result: ToolResult) -> None:
        """Have readers see the result of a tool of the running step, recorded or not."""
        self._ended = {**self._ended, result["toolUseId"]: result}
        self._publish()

    def forget_results(self) -> None:
        """Have readers see recorded results only: a step begins."""
        self._ended = {}
        self._publish()

    def _publish(self) -> None:
        """Give readers the state after a change. It costs the same whatever is shown."""
        # One new value for each change, so that readers in other threads never see half of one; no lock, and nothing is
        # copied.
        if self._read_model is not None:
            self._read_model.recorded = self._read_state()

    def _read_state(self) -> ReadState:
        fold = self.fold
        view, tools, parked = fold.shown, fold.open_tools, fold.parked
        turn = TurnState(
            fold.last_message, tools, fold.finished_tools, parked, fold.questions, fold.responses, fold.steps
        )
        untold = bool(fold.came) and deferrals.has_untold(fold)
        return ReadState(view.at_present, turn, self._ended, view.manager_state, fold.turns, fold.deferred, untold)

    def add_changes(self, state: AgentState) -> None:
        """Record what changed in the state, and of the timers, since the last call."""
        # Every change between two calls is one record, whatever number of keys it has.
        patch = state.take_patch()
        if patch is not None:
            self.add(StateChanged(at=self.wall(), set=dict(patch.set), delete=patch.delete))
        self.add_timers()

    def add_timers(self) -> None:
        """Record the timers that were set or cancelled since the last call."""
        if self.timers is not None and self.timers.changes and (changed := self.timers.take()) is not None:
            self._keep_timers(changed)

    def fire(self, timer: Timer) -> None:
        """A timer begins its turn now: it is taken out, or moved to its next time. Nothing changes if that was before,
        or the timer was cancelled or replaced.
        """
        # The whole timer is compared: one that was set again under the same id has another time or prompt, and must not
        # be used up by the firing of the old one.
        if self.fold.timers.get(timer.id) == timer:
            self._keep_timers(after_firing(self.fold.timers, timer, self.wall()))

    def pass_missed(self) -> None:
        """Move the timers that are due no more to their next times."""
        timers = without_missed(self.fold.timers, self.wall())
        if timers is not self.fold.timers:
            self._keep_timers(timers)

    def _keep_timers(self, timers: Mapping[str, Timer]) -> None:
        self.add(TimersChanged(at=self.wall(), timers=tuple(timers.values())))
        if self.timers is not None:
            self.timers.note_recorded(self.fold.timers)

    # Results that come later. `core/journal/deferrals.py` decides.

    def new_deferred_id(self, idempotency_key: str) -> str:
        """The id under which the result of a running tool may come. From any thread. Errors: `Invalid` while too many
        wait, and where none can come.
        """
        return deferrals.new_id(self.fold, idempotency_key, self._journal.secret())

    def defer(self, deferral: Deferral, use: ToolUse) -> None:
        """A tool has returned, and its result comes later."""
        self._add_any(deferrals.defer(self.fold, deferral, use, self.wall()))

    def withdraw(self, idempotency_key: str) -> None:
        """The tool was tried again, and has its result at once: nothing comes later."""
        deferred = deferred_id(idempotency_key, self._journal.secret())
        self._add_any(deferrals.withdraw(self.fold, deferred, self.wall()))

    def take_result(self, deferred: str, result: ToolResult, *, starts: bool) -> bool:
        """A result has come. False if there is one already. Errors: `Gone` if nothing waits for it."""
        fold = self.fold
        # An early result, of a tool that has not returned yet, is proved by the secret; a known id needs no proof.
        secret = self._journal.secret() if fold.open_tools or fold.parked else b""
        record = deferrals.take(fold, deferred, result, self.wall(), starts=starts, secret=secret)
        self._add_any(record)
        return record is not None

    def expire_deferred(self) -> None:
        """Record that tools which have waited for their results long enough wait no longer."""
        for record in deferrals.expired(self.fold, self.wall()):
            self.add(record)

    def tell_results(self, ids: Collection[str]) -> None:
        """Record that the last message tells these results."""
        self._add_any(deferrals.tell(self.fold, ids, self.wall()))

    def hold_results(self, ids: Collection[str], *, failed: bool) -> None:
        """Record that no turn begins for these results. `failed`: the one that was to tell them has failed."""
        # A tuple first: adding a record changes the fold that the generator reads.
        for record in tuple(deferrals.hold(self.fold, ids, self.wall(), failed=failed)):
            self.add(record)

    def _add_any(self, record: Record | None) -> None:
        if record is not None:
            self.add(record)

    def take_unshown(self) -> tuple[NumberedMessage, ...]:
        """The messages added since the last call, for the conversation manager."""
        unshown, self._unshown = tuple(self._unshown), []
        return unshown

    def show_from_here(self) -> None:
        """Forget the unshown messages: the conversation manager is about to load everything."""
        self._unshown, self.asked = [], _asked(self.fold)

    def redact(self, instead: Mapping[int, Message]) -> None:
        """Replace these messages, by sequence number, for good. The next commit destroys the originals."""
        remaining = self._journal.redact(instead, self.wall())
        # Only named: what a tool has copied into the state may be anything, and nothing here can tell what to leave of
        # it.
        if remaining:
            where = [copy.what for copy in remaining]
            note(_log, WARNING, "copies of a redacted message remain", where=where, session=self._buffer.session_id)
        self._publish()
        self.asked = [NumberedMessage(entry.seq, instead.get(entry.seq, entry.message)) for entry in self.asked]
        # With the next commit, which destroys the originals; until then they are not shown to anybody any more.
        self.hand_over()

    def hand_over(self, *, soon: bool = False) -> None:
        """Have the persister write the gathered records in the background; at once if `soon`."""
        if self._author is not None and self._author.gathered:
            if self.unshown_calls is not None:
                self._state_calls(self._author, self.unshown_calls)
            self._author.hand_over(self._new_due())
            # Not lost: the rows stand in the author, and any message makes the persister take them (`handle_now`).
            with suppress(MailboxFull):  # The persister takes these rows with the messages in its full mailbox.
                self._persister.tell_now(_STORE_SOON if soon else _STORE)

    def _state_calls(self, author: JournalAuthor, unshown: UnshownCalls) -> None:
        if (spending := unshown.take(self.wall(), others=bool(author.gathered))) is not None:
            self.add(spending)

    def _new_due(self) -> DueTime | None:
        return (
            None
            if self.pending_work is None
            else self.pending_work.changed(self._buffer.agent_id, self.fold, self.wall())
        )

    def state_due(self) -> None:
        """Have the store told pending work, if that has changed, though nothing was added."""
        if self._author is not None and (due := self._new_due()) is not None:
            self._author.hand_over(due)
            with suppress(MailboxFull):
                self._persister.tell_now(_STORE_SOON)

    def call_ended(self) -> None:
        """Note that the caller learns how its call ended, so nothing of it is pending any more."""
        if self.pending_work is not None and self.pending_work.call_ended():
            self.state_due()

    def report_pending_work(self, again_at: float | None, *, rests: bool = False) -> None:
        """Have the store told of pending work between two calls, whatever it was told before; see
        `ReportPendingWork`. `rests`: a turn that nobody waits for is tried again later.
        """
        if self.pending_work is not None:
            if again_at is not None:
                self.pending_work.try_again_at(again_at)
            self.pending_work.forget_stated()
            self.state_due()
            if not rests:
                self.pending_work.call_ended()

    async def commit(self, *, closing: bool = False, patient: bool = True, ends: bool = False) -> None:
        """Wait until everything added so far is durable. Errors: those of the persister's `Commit`; `ActorDead`.

        `closing`: the turn is over, so a restatement that later openings need may be added. Without `patient` the
        store's first refusal is raised. `ends`: nothing of the call follows. A call with a deadline waits until
        `LATE_S` after it at most.
        """
        if self._author is None:
            return
        if closing:
            # At the end of a turn, when rows are written anyway: a restatement of its own would be a commit more.
            self._author.restate()
        if self.unshown_calls is not None:
            self._state_calls(self._author, self.unshown_calls)
        self._author.hand_over(self._new_due())
        await self._ask(Commit(seq=self.fold.last_seq, patient=patient, within_s=_within_s(), ends=ends))

    async def begin(self, *, stored: bool) -> bool:
        """Wait, before a turn first asks the model, until the store confirms the lease and, with `stored`, has all
        records.

        True if another process has written meanwhile and the session was opened again: everything since the turn began
        is forgotten, and `fold` is the new state. Errors: as `commit`, `SessionBusy`.
        """
        if self._author is None:
            return False
        # Read before the turn's rows are handed over: by this number the persister tells them from earlier ones.
        begin = Begin(before=self._author.handed_seq, stored=stored, within_s=_within_s())
        if stored:
            self._author.hand_over(self._new_due())
        reopened = await self._ask(begin)
        if reopened is not None:
            self._go_on(reopened)
        return reopened is not None

    def take(self) -> Taking:
        """Have the turn's first commit take the session. Everything added since the last `hand_over` is of the turn."""
        assert self._author is not None
        taking, before = Taking(self._taken), self._author.handed_seq
        self._author.hand_over(self._new_due())
        # A tell: the turn goes on to its model, and `Taking` hears the outcome.
        self._persister.tell(Take(before=before, pending=taking, within_s=_within_s()))
        return taking

    def _taken(self, reopened: JournalAuthor | InMemoryJournal | None) -> None:
        """The session is owned; see `begin` for `reopened`."""
        if reopened is not None:
            self._go_on(reopened)
        self._confirmed_at = self.wall()

    async def answer_at(self, seq: int) -> Message:
        """The answer with this sequence number. Errors: `Gone` for one that was lost; those of reading."""
        found = await self._persister.ask(ReadMessages(after=seq - 1, until=seq), timeout_s=math.inf)
        if not found:
            raise Gone("the turn of this token has its answer, which is not there any more", seq=seq)
        return copy_message(found[0].message)

    @property
    def source(self) -> tuple[str, str]:
        """The ids of the session and of the agent."""
        return self._buffer.session_id, self._buffer.agent_id

    async def event_of(self, delivery: EventDelivery) -> DeliveryEvent:
        """The event as it is told, with what the journal still has of it. Errors: those of reading."""
        seqs = tuple(seq for seq in (delivery.seq, delivery.about) if seq)
        author = self._author
        records: Mapping[int, Record | None] | None = {} if author is None or not seqs else author.records_at(*seqs)
        if records is None:
            records = await self._persister.ask(ReadRecords(seqs=seqs), timeout_s=math.inf)
        return event_of(delivery, self.source, records)

    @property
    def full(self) -> bool:
        return self._buffer.full(0 if self._author is None else self._author.gathered)

    def promise(self) -> None:
        """Note that a caller gets its answer before these records are stored."""
        self._buffer.promised = self.fold.last_seq

    async def catch_up(self) -> None:
        """Wait, before a turn, until the rows of earlier turns are stored.

        Errors: `SessionException`, once, if turns that were answered will never be stored; those of `commit`.
        """
        lost, self._buffer.lost = self._buffer.lost, None  # Told once.
        if lost is not None:
            text = "turns that were answered are lost: they could not be stored; say again what matters of them"
            raise SessionException(text, session=lost.session_id, turns=lost.turns, cause=lost.error)
        if self._buffer.error is not None:
            await self.commit()

    async def prove(self) -> None:
        """Wait until the store confirms the lease. Errors: as `commit`."""
        await self._ask(VerifyLease(within_s=_within_s()))

    async def _ask(self, question: Ask[R]) -> R:
        """The persister's answer, with which the store has confirmed the lease."""
        read_model = self._read_model
        turn = None if read_model is None else read_model.turn
        if read_model is None or turn is None:
            # Without a timeout of the ask: the persister bounds the wait, and its error says what became of the
            # records.
            answer = await self._persister.ask(question, timeout_s=math.inf)
            self._confirmed_at = self.wall()
            return answer
        since = turn.store_since = self.wall()
        try:
            answer = await self._persister.ask(question, timeout_s=math.inf)
        finally:
            turn.store_since = None
        self._confirmed_at = self.wall()
        if len(read_model.stored) < STORED_MAX:
            read_model.stored.append((since, self._confirmed_at))
        return answer

    def confirmed_within(self, seconds: float) -> bool:
        """True if the lease was acquired or confirmed, or the store took a commit, in the last `seconds`. A clock that
        was set back since confirms nothing.
        """
        # Not below zero: after a clock was set back, an hour-old confirmation would count as young for an hour.
        if self._author is None or 0 <= self.wall() - self._confirmed_at <= seconds:
            return True
        # By the loop's clock, which nobody sets.
        return anyio.current_time() - self._buffer.resumed_at <= seconds


def _within_s() -> float:
    """Seconds that the running call may wait for the store."""
    at = deadline()
    # The rest behind the deadline is for the store alone: a turn that its deadline has cut short still has to be
    # recorded.
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


# The read model of one agent: what its model is shown and its pending tools, without asking the agent.

# After each change of the journal, the agent actor publishes an immutable value in the loop's thread. Between two turns
# a program may show something else, which counts until the journal records it. Callbacks of a turn's hooks may edit
# their copies: the edits become part of the turn.


class ReadState(NamedTuple):
    """An agent at one moment, as readers see it; read all that must agree from one value."""

    visible: VisibleSlice = VisibleSlice()
    turn: TurnState | PendingTools = PendingTools(last=None)
    ended: Mapping[str, ToolResult] = MappingProxyType({})
    """Results of the running step, by tool use id, recorded or not."""
    manager_state: Mapping[str, Json] = MappingProxyType({})
    turns: int = 0
    """Turns ever begun."""
    deferred: Mapping[str, DeferredTool] = MappingProxyType({})
    """The tools that wait for results which come later, by id."""
    untold: bool = False
    """True if results have come that a turn is about to tell."""

    def messages(self) -> list[Message]:
        """A new list of the shown messages, oldest first."""
        return self.visible.messages()

    @property
    def pending_tools(self) -> PendingTools:
        """The pending tools of the last message, and the interrupts that the turn waits for."""
        return self.turn if isinstance(self.turn, PendingTools) else pending_tools_of(self.turn).ended(self.ended)


_HOOKED: ContextVar[ReadModel | None] = ContextVar("repertory_hooked", default=None)
"""The read model whose callbacks are running."""


STORED_MAX = 16


class TurnProgress(Struct):
    """The present activity of a turn: plain values that it sets as it goes, for whoever looks at the process."""

    began_at: float
    """The turn's start, on the event loop's clock."""
    waiting: Sequence[object] = ()
    """The calls that wait behind the turn."""
    step: int = 0
    """Model calls so far, repeated ones included."""
    tools: list[str] = []
    """The tools that run, by name."""
    answer: Assembler | None = None
    """The answer that the model gives now, as far as it has come; None between its answers, and where middleware may
    still change what it says.
    """
    store_since: float | None = None
    """The epoch seconds since which it waits for its store; None while it does not."""
    token: str | None = None
    """The idempotency token of the turn, once that is decided."""


class ReadModel:
    """One agent as readers in any thread see it.

    A reader takes one reference to an immutable `ReadState`, which Python does in one step: so it sees the state before
    or after a record, never one in between, and neither side waits for the other.
    """

    __slots__ = (
        "_adding",
        "_edited",
        "draft",
        "ended_at",
        "manager_changed",
        "recorded",
        "stored",
        "tasks",
        "tries",
        "turn",
    )

    def __init__(self) -> None:
        self.draft: Draft | None = None
        """The messages as callbacks of the running turn edit them; None before one has read them."""
        self._adding: Message | None = None
        self.turn: TurnProgress | None = None
        """The present activity of the running turn; None between turns."""
        self.stored: list[tuple[float, float]] = []
        """The waits of the current or last turn for its store, as epoch seconds: the first `STORED_MAX`."""
        self.ended_at = -math.inf
        """The end of the last turn, on the event loop's clock."""
        self.tasks = 0
        """The number of tools that run in the background now."""
        self.tries = 0
        """The number of tries to deliver an event that are made now."""
        self.manager_changed = False
        """True if the journal names another conversation manager than the one in use; the next records then name the
        new one.
        """
        self.look_at(ReadState())

    def look_at(self, recorded: ReadState) -> None:
        """Show what the journal holds, and nothing else."""
        self.recorded = recorded
        """The contents of the journal; the agent's `ActorJournal` replaces them after each change."""
        self._edited: ReadState | None = None

    def show(
        self,
        *,
        messages: Sequence[Message] | None = None,
        pending: PendingTools | None = None,
        manager_state: Mapping[str, Json] | None = None,
    ) -> None:
        """Show these, all at once, until the journal has them. They must not be edited afterwards."""
        now = self.now
        self._edited = now._replace(
            visible=now.visible if messages is None else VisibleSlice.of(messages),
            turn=now.turn if pending is None else pending,
            manager_state=now.manager_state if manager_state is None else manager_state,
        )

    def show_edited(self, messages: Sequence[Message], *, waits: bool) -> None:
        """Show messages that a program has edited between two turns. `waits`: the last message and its pending tools
        are unchanged.
        """
        pending = None if waits else PendingTools(last=messages[-1] if messages else None)
        self.show(messages=messages, pending=pending)

    @property
    def in_a_turn(self) -> bool:
        """True while a turn runs."""
        return self.turn is not None

    @property
    def works(self) -> bool:
        """True while a turn runs, or a tool beside it, or an event is being delivered."""
        return self.turn is not None or self.tasks > 0 or self.tries > 0

    @property
    def now(self) -> ReadState:
        """The state that readers see. The value stays as it is when the agent goes on."""
        edited = self._edited
        return self.recorded if edited is None else edited

    def messages(self) -> list[Message]:
        """A new list of the shown messages, oldest first."""
        return self.now.messages()

    @property
    def pending_tools(self) -> PendingTools:
        """The tools whose results are pending; see `ReadState.pending_tools`."""
        return self.now.pending_tools

    @contextmanager
    def hooked(self) -> Generator[None]:
        """Callbacks of the running turn are called in this block; the messages that they read are editable."""
        before = _HOOKED.set(self)
        try:
            yield
        finally:
            _HOOKED.reset(before)

    def drafted(self) -> list[Message] | None:
        """The editable list of copies within `hooked`, always the same one; None elsewhere."""
        # A context variable, so that a tool or another task that reads the same agent meanwhile gets copies.
        if _HOOKED.get() is not self:
            return None
        messages = self.messages()
        # An edited draft stays until it is taken: it would be lost if the journal changed in between.
        if self.draft is None or (self.draft.visible != messages and not self.draft.edited):
            self.draft = Draft(messages, before=None if self.draft is None else self.draft.messages)
        if self._adding is not None and self.draft.adding is not self._adding:
            self.draft.begin(self._adding)
        return self.draft.messages

    def begin_adding(self, message: Message) -> None:
        """Have callbacks see this message as the last one until the journal has it."""
        self._adding = message

    def end_adding(self) -> Message:
        """The message that was being added, as callbacks left it in their list. It counts as added from now on."""
        adding, self._adding = self._adding, None
        assert adding is not None
        added = None if self.draft is None else self.draft.end()
        return adding if added is None else added

    def assign(self, messages: Sequence[object]) -> bool:
        """Replace the messages of the editable list within `hooked`. False elsewhere, with nothing changed.

        Errors: as `edit_of`; then nothing has changed.
        """
        if self.drafted() is None:
            return False
        assert self.draft is not None
        self.draft.assign(messages)
        return True


# The answers of turns with idempotency tokens, for callers who ask again.


def output_in(answer: Message, form: OutputSchema) -> object:
    """The structured output that a stored answer is; None if it is none: hooks may have edited it, or its caller wanted
    none.
    """
    with suppress(Invalid):
        return form.read(text_of(answer))[0]
    return None


class NamedTurns:
    """The answers of the latest turns of one agent by idempotency token."""

    __slots__ = ("_results",)

    def __init__(self, image: Image) -> None:
        # A turn whose answer was stopped has an answer by number; under its token it goes on all the same.
        open_tokens = () if is_answered(image.last_message) else image.tokens
        self._results = {
            # Only the number: reading up to 64 answers at each opening would cost more than opening does.
            token: turn.answer_seq if turn.answer_seq != image.last_message_seq else _answered_with(image.last_message)
            for token, turn in image.finished_turns.items()
            if token not in open_tokens
        }
        """The results by token, the newest last. A number is the message of an answer that has not been read yet."""

    @property
    def known(self) -> bool:
        """True if the result of any turn is known by its token."""
        return bool(self._results)

    def has(self, token: str | None) -> bool:
        """True if the turn with this token has its answer."""
        return token in self._results

    def state_of(self, token: str | None, fold: Fold) -> KnownTurn:
        """The state of the turn with this token. `fold`: of its journal."""
        if token in self._results:
            return "answered"
        if token is not None and token in fold.open_tokens:
            return "stopped" if fold.last_message is not None and is_stopped(fold.last_message) else "open"
        if token is None or fold.turn_tokens.left_behind(token, fold.last_message) is None:
            return "unknown"
        return "left behind"

    def note_read(self, token: str, answer: Message) -> None:
        self._results[token] = _answered_with(answer)

    def answered_before(self, invocation: Invocation) -> AgentResult | None:
        """The result of the turn with the same token, if it is known and read."""
        token = invocation.idempotency_token
        if token is None:
            return None
        result = self._results.get(token)
        if result is None or isinstance(result, int):
            return None
        if result.structured_output is None and invocation.output_schema is not None and result.message is not None:
            output = output_in(result.message, invocation.output_schema)
            result = replace(result, structured_output=output)
        return replace(result, replayed=True)

    async def answered(self, invocation: Invocation, journal: ActorJournal) -> AgentResult | None:
        """The result of the turn with the same token, if it has its answer, which is read if need be. Errors: those of
        `ActorJournal.answer_at`.
        """
        token = invocation.idempotency_token
        result = None if token is None else self._results.get(token)
        if token is None or result is None:
            return None
        if isinstance(result, int):
            self.note_read(token, await journal.answer_at(result))
        return self.answered_before(invocation)

    async def answer_of(self, invocation: Invocation, *, journal: ActorJournal) -> AgentResult:
        """The result of the turn with the same token, which has its answer. Errors: as `answered`; `Unavailable`."""
        known = await self.answered(invocation, journal)
        if known is None:
            raise Unavailable("the conversation has gone on elsewhere: call again")
        return known

    def note_end(self, tokens: Collection[str], last: Message | None) -> None:
        """Note that the turn of these tokens has ended. With its answer in the journal it is answered, even if its
        caller got an error, for example because the answer could not be stored in time.
        """
        result = AgentResult(stop_reason="end_turn", message=last)
        for token in tokens:
            # Popped first, so that the token moves to the end: the oldest one is dropped.
            self._results.pop(token, None)
            self.remember(token, result, last)

    def remember(self, token: str | None, result: AgentResult, last: Message | None) -> None:
        """Keep a token's result. As in the journal, only the latest `FINISHED_TURNS_MAX` are kept."""
        if token is None or not is_answered(last):
            return
        self._results[token] = result
        if len(self._results) > FINISHED_TURNS_MAX:
            # A dict keeps the order of insertion.
            del self._results[next(iter(self._results))]


async def read_in_time(
    answer: Callable[[Invocation], Awaitable[AgentResult]], invocation: Invocation, time_up: RepertoryError
) -> AgentResult | RepertoryError:
    """The answer of an earlier turn, or the error for its caller: `time_up` when its deadline passes before that."""
    with anyio.CancelScope(deadline=invocation.deadline):
        try:
            return await answer(invocation)
        except RepertoryError as error:
            return error
    return time_up


async def answer_again(
    channel: ReplyChannel | StreamChannel,
    answer: Callable[[Invocation], Awaitable[AgentResult]],
    invocation: Invocation,
    time_up: RepertoryError,
) -> None:
    """Read an answer and give it to its caller. `time_up`: see `read_in_time`."""
    result = await read_in_time(answer, invocation, time_up)
    if isinstance(result, RepertoryError):
        channel.fail(result)
    else:
        await channel.succeed(result)


def _answered_with(answer: Message | None) -> AgentResult:
    return AgentResult(stop_reason="end_turn", message=answer)


def is_answered(last: Message | None) -> bool:
    """True if the last message of a conversation is the whole answer of a turn."""
    return last is not None and is_answer(last) and is_whole(last)
