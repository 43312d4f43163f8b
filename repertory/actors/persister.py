"""The persister of one session: owns its lease and its journal, and knows what is durable.

State: the fold of the journal, the rows that are not durable yet, who waits for them. Fails: when a write is refused
or its outcome is unknown; it then starts again from what is stored. Pace: the store's, through the writer; one write
is under way at a time and takes everything that has gathered. Supervised by the session (first child, so its failure
restarts the rest).

A session that is not kept has a `MemoryJournal` in the place of a store, so it is built of the same parts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias, assert_never

import anyio.lowlevel

from repertory.actors.leases import Leases
from repertory.actors.writer import Write, WriteLast, WriteRefused, WriterMessage, Written
from repertory.backends.ports import Lease, SessionStore, TendedStore
from repertory.core.journal.appender import Appender
from repertory.core.journal.fold import Fold
from repertory.core.journal.image import Image
from repertory.core.journal.records import MessageAdded, Record
from repertory.core.journal.restate import restatements
from repertory.core.journal.restore import restore, said_in
from repertory.core.journal.rows import Kind, Row
from repertory.core.messages import Message, copy_message
from repertory.errors import Invalid, RepertoryError
from repertory.runtime.actor import Actor
from repertory.runtime.exit import ExitReason, Failed
from repertory.runtime.message import Ask
from repertory.runtime.next import Next, carry_on, fail, reply
from repertory.runtime.ref import ActorRef
from repertory.runtime.reply import ReplySlot


@dataclass(frozen=True, slots=True, kw_only=True)
class Append:
    """Add records to the journal. They are committed with the next `Commit`, or after `linger_s`, or at once when
    `soon`.
    """

    first: int
    """The sequence number that their author gave to the first of them."""
    records: tuple[Record, ...]
    soon: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit(Ask[int]):
    """Add records and answer with the last sequence number when everything so far is durable.

    With `closing`, the number may be higher than the records explain: what later openings need may have been restated.
    Errors: what the store said (`LeaseLost`, `Unavailable`); the session then starts again from what is stored.
    """

    first: int
    """The sequence number that their author gave to the first of them."""
    records: tuple[Record, ...] = ()
    closing: bool = False
    """A turn is over, and its author waits for the answer before it numbers anything else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prove(Ask[None]):
    """Answered when the store has said that the session is still ours. Errors: as `Commit`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadImage(Ask[Image]):
    """Everything an agent needs to go on, as of now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadHistory(Ask[tuple[Message, ...]]):
    """Every message ever said, oldest first, whatever the model is shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LingerOver:
    """Records have waited long enough: write them now."""


_SLICE_ROWS = 512
"""Rows that are decoded in one go: about two milliseconds."""
_SAYING = frozenset({Kind.MESSAGE, Kind.REDACTION})
"""The kinds of rows that say what was said."""

PersisterMessage: TypeAlias = "Append | Commit | Prove | ReadImage | ReadHistory | LingerOver | Written | WriteRefused"


@dataclass(frozen=True, slots=True, kw_only=True)
class PersisterSettings:
    """What a persister persists, and how eagerly."""

    session_id: str
    agent_id: str
    takeover: bool = False
    """Fence a live owner instead of refusing to start."""
    linger_s: float = 0.005
    """How long records wait for company before they are written unasked, unless the store asks for longer."""
    stop_timeout_s: float = 10.0
    """How long a stopping session waits for its last commit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Durable:
    """A store and its writer: what makes a session outlive its process."""

    store: SessionStore
    leases: Leases
    writer: ActorRef[WriterMessage]


@dataclass(slots=True)
class MemoryJournal:
    """A session that lives in memory only. It outlasts the actors that work on it."""

    fold: Fold = field(default_factory=Fold)
    messages: list[Message] = field(default_factory=list[Message])
    """Every message ever said."""


class SessionPersister(Actor[PersisterMessage]):
    """Folds every record at once, and makes it durable in the order in which it came."""

    def __init__(
        self, settings: PersisterSettings, keeper: Durable | MemoryJournal, entropy: Callable[[int], bytes]
    ) -> None:
        self._settings = settings
        self._keeper = keeper
        self._entropy = entropy
        self._fold = Fold()
        self._appender: Appender | None = None
        self._lease: Lease | None = None
        self._unsent: list[Row] = []
        self._in_flight = False
        self._sent: tuple[Row, ...] = ()
        """What is in flight."""
        self._lingering = False
        self._linger_s = settings.linger_s
        self._durable_seq = 0
        self._last_at = 0.0
        self._waiting: deque[tuple[int, ReplySlot[int]]] = deque()
        self._doubting: list[ReplySlot[None]] = []
        """Who waits for a proof that is not under way yet."""
        self._proving: list[ReplySlot[None]] = []
        """Who is answered by the write under way."""

    def summary(self) -> object:
        return {"seq": self._fold.last_seq, "durable": self._durable_seq, "unsent": len(self._unsent)}

    async def on_start(self) -> None:
        """Take the lease, then read what the last owner left."""
        if isinstance(self._keeper, MemoryJournal):
            self._fold = self._keeper.fold
            return
        settings, store = self._settings, self._keeper.store
        if isinstance(store, TendedStore):
            self._linger_s = max(self._linger_s, store.linger_s)
        self._lease = await self._keeper.leases.acquire(settings.session_id, takeover=settings.takeover)
        rows = await store.load(settings.session_id, settings.agent_id)
        restored = restore(rows, session_id=settings.session_id)
        self._fold = restored.fold
        self._appender = Appender(settings.agent_id, restored.fold, restored.link, self._entropy)
        self._durable_seq = self._fold.last_seq

    async def handle(self, message: PersisterMessage) -> Next:
        match message:
            case Append(first=first, records=records, soon=soon):
                self._check_first(first)
                self._add(records)
                self._write_later(soon)
                return carry_on()
            case Commit(first=first, records=records, closing=closing):
                self._check_first(first)
                return self._commit(records, closing)
            case Prove():
                return self._prove()
            case Written(seq=seq):
                self._note_written(seq)
                return carry_on()
            case WriteRefused(error=error):
                return self._start_over(error)
            case LingerOver():
                self._lingering = False
                self._push()
                return carry_on()
            case ReadImage():
                return reply(self._fold.image())
            case ReadHistory():
                return reply(await self._history())
            case _:
                assert_never(message)

    async def on_stop(self, reason: ExitReason) -> None:
        """Write what is left, then give the session up. Rows in flight reach the writer before these."""
        keeper, lease = self._keeper, self._lease
        if isinstance(keeper, MemoryJournal) or lease is None:
            return
        if isinstance(reason, Failed):
            keeper.leases.forget(lease)
            return
        rows, self._unsent = tuple(self._unsent), []
        if rows or self._in_flight:
            await keeper.writer.ask(WriteLast(lease=lease, rows=rows), timeout_s=self._settings.stop_timeout_s)
        await keeper.leases.release(lease)

    def _check_first(self, first: int) -> None:
        """What an author takes to be number n must become number n: views and keys refer to it."""
        if first != self._fold.last_seq + 1:
            raise Invalid("the author of records lost count", first=first, expected=self._fold.last_seq + 1)

    def _add(self, records: tuple[Record, ...]) -> None:
        """Fold the records and turn them into rows. One that may not stand here is refused before it is kept."""
        if not records:
            return
        self._last_at = records[-1].at
        if self._appender is not None:
            append = self._appender.append
            self._unsent.extend([append(record) for record in records])
            return
        assert isinstance(self._keeper, MemoryJournal)
        for record in records:
            self._fold.apply(self._fold.last_seq + 1, record)
            if isinstance(record, MessageAdded):
                self._keeper.messages.append(record.message)

    def _write_later(self, soon: bool) -> None:
        if soon:
            self._push()
        elif self._unsent and not self._lingering and not self._in_flight:
            self._lingering = True
            self.context.after(self._linger_s, LingerOver(), key="linger")

    def _commit(self, records: tuple[Record, ...], closing: bool) -> Next:
        self._add(records)
        if self._appender is None:
            return reply(self._fold.last_seq)
        if closing and self._last_at:
            self._add(tuple(restatements(self._fold, self._last_at)))
        last = self._fold.last_seq
        if last <= self._durable_seq:
            return reply(last)
        self._waiting.append((last, self.context.defer()))
        self._push()
        return carry_on()

    def _prove(self) -> Next:
        if self._appender is None:
            return reply(None)
        self._doubting.append(self.context.defer())
        self._push()
        return carry_on()

    def _push(self) -> None:
        """Hand everything gathered to the writer, unless a write is under way: its answer pushes again."""
        if self._in_flight or self._lease is None or isinstance(self._keeper, MemoryJournal):
            return
        if not self._unsent and not self._doubting:
            return
        if self._lingering:
            self._lingering = False
            self.context.cancel_timer("linger")
        rows, self._unsent = tuple(self._unsent), []
        self._proving, self._doubting = self._doubting, []
        self._in_flight, self._sent = True, rows
        self._keeper.writer.tell(Write(lease=self._lease, rows=rows, reply_to=self.context.self_ref))

    def _note_written(self, seq: int) -> None:
        self._in_flight, self._sent = False, ()
        self._durable_seq = max(self._durable_seq, seq)
        while self._proving:
            self._proving.pop().reply(None)
        while self._waiting and self._waiting[0][0] <= seq:
            last, slot = self._waiting.popleft()
            slot.reply(last)
        self._push()

    def _start_over(self, error: RepertoryError) -> Next:
        """What is stored is unknown: tell who waits, and start again from what the store says."""
        while self._waiting:
            self._waiting.popleft()[1].fail(error)
        for slot in (*self._proving, *self._doubting):
            slot.fail(error)
        return fail(error)

    async def _history(self) -> tuple[Message, ...]:
        """Read in slices, so that a long history holds nobody up."""
        if isinstance(self._keeper, MemoryJournal):
            return tuple(map(copy_message, self._keeper.messages))
        settings = self._settings
        rows = list(await self._keeper.store.load(settings.session_id, settings.agent_id, whole=True))
        stored = rows[-1].seq if rows else 0
        rows += [row for row in (*self._sent, *self._unsent) if row.seq > stored]
        rows = [row for row in rows if row.kind in _SAYING]
        messages: dict[int, Message] = {}
        redacted: dict[int, Message] = {}
        for start in range(0, len(rows), _SLICE_ROWS):
            said, restated = said_in(rows[start : start + _SLICE_ROWS], session_id=settings.session_id)
            messages |= said
            redacted |= restated
            await anyio.lowlevel.checkpoint()
        if not redacted:
            return tuple(messages.values())
        messages |= redacted
        return tuple(messages[seq] for seq in sorted(messages))
