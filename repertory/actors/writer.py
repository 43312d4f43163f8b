"""The writer of one session store, which commits the rows of many sessions in groups, and the keeper of its leases.

State: which sessions have a commit under way, where groups need not wait for each other. Fails: never for a store's
error or bug: the sessions concerned get it, and other sessions' writes go on. Pace: the store's. Supervised by the
runtime's root, permanent; started before and stopped after every session.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, TypeAlias, TypeVar, assert_never

import anyio
from msgspec import Struct

from repertory.actors.background import Background
from repertory.backends.ports import Batch, Lease, Position, SessionStore
from repertory.core.journal.codec import at_of, decode
from repertory.core.journal.records import MessageAdded
from repertory.core.journal.redact import Redaction
from repertory.core.journal.rows import RecordKind, Row
from repertory.core.pending_work import DueTime
from repertory.core.retry import DEFAULT_PATIENCE, StorePatience, unwritable
from repertory.errors import LeaseLost, RepertoryError, Retryable, StoreUnavailable
from repertory.logs import DEBUG, note
from repertory.runtime.actor import Actor, SerialQueue
from repertory.runtime.faults import failure_of
from repertory.runtime.message import Ask, Next, carry_on, refuse, reply
from repertory.runtime.ref import ActorRef
from repertory.runtime.spec import ChildSpec

if TYPE_CHECKING:
    from repertory.backends.telemetry_ports import CallTrace

T = TypeVar("T")


class Written(Struct, frozen=True, kw_only=True):
    """Everything up to `seq` is on stable storage."""

    of: WriteRows
    seq: int
    released: bool = False
    """True if the commit has given the session up, as its batch wanted."""


class WriteRefused(Struct, frozen=True, kw_only=True):
    """The rows of the last `WriteRows` may not be stored. Usual errors: `LeaseLost`, `Unavailable`."""

    of: WriteRows
    error: RepertoryError


class WriteRows(Struct, frozen=True, kw_only=True):
    """Commit these rows of one session. Answered by one `Written` or `WriteRefused` to `reply_to`,
    unless the writer ends before: its sender watches it.

    A session sends its next `WriteRows` after the answer to the last one, so that no row overtakes a refusal.
    """

    batch: Batch
    reply_to: ActorRef[Written | WriteRefused]
    trace: CallTrace | None = None
    """The trace of the call that the rows belong to."""


class WriteLast(Struct, Ask[int], frozen=True, kw_only=True):
    """Commit the last rows of a session that is stopping; answers with the last durable sequence number.

    It may follow a `WriteRows` that is not answered yet. Errors: as in `WriteRefused`.
    """

    batch: Batch


WriterMessage: TypeAlias = "WriteRows | WriteLast"


class WriterSettings(Struct, frozen=True, kw_only=True):
    """Bounds of the writer."""

    # Bounds a transaction: every session of a group waits for its last row.
    group_writes_max: int = 512


class CommitCounts(Struct):
    """The commits of all stores of a host so far."""

    count: int = 0
    """Commits that a store has taken, of one session or of many."""
    records: int = 0
    failed: int = 0
    """Commits that a store has refused, or not answered."""
    last_group: int = 0
    """The sessions of the last commit."""
    observe: Callable[[int, float, RepertoryError | None], None] | None = None
    """Called after each commit with its sessions, its seconds and its error."""
    clock: Callable[[], float] = anyio.current_time

    def ended(self, batches: Sequence[Batch], began: float, error: RepertoryError | None = None) -> None:
        if error is None:
            self.count += 1
            for batch in batches:
                self.records += len(batch.rows)
        else:
            self.failed += 1
        self.last_group = len(batches)
        if self.observe is not None:
            self.observe(len(batches), self.clock() - began, error)


class StoreWriter(Actor[WriterMessage]):
    """Commits one group per turn of its mailbox: the writes that wait when a commit ends are the next group.

    Where a store lets sessions write independently, groups run side by side, so a slow request delays its own session
    alone.
    """

    def __init__(self, store: SessionStore, settings: WriterSettings, commits: CommitCounts | None = None) -> None:
        """`commits`: the counters of the commits."""
        self._store = store
        self._commits = commits or CommitCounts()
        self._settings = settings
        self._groups = 0
        self._apart = store.capabilities.maintained
        """True if groups run side by side: commits are requests there, and `StoreCapabilities.maintained` allows it."""
        self._under_way: dict[str, anyio.Event] = {}
        """The end of each session's commit, where groups run side by side."""
        self._waiting: list[tuple[Sequence[WriteRows], anyio.Event]] = []
        """Groups that one of the lanes is about to commit, each with the event of its end."""
        self._lanes: list[SerialQueue] = []

    def summary(self) -> object:
        return {"store": self._store.name, "groups": self._groups}

    async def handle(self, message: WriterMessage) -> Next:
        match message:
            case WriteRows():
                # What came during the last commit is one group: it grows with the load by itself, and an idle store
                # commits at once.
                queued = self.context.take_queued(self._settings.group_writes_max - 1, WriteRows)
                if self._apart:
                    self._begin([message, *queued])
                else:
                    await self._commit([message, *queued])
                return carry_on()
            case WriteLast(batch=batch):
                return await self._commit_last(batch)
            case _:
                assert_never(message)

    def _begin(self, group: Sequence[WriteRows]) -> None:
        """Commit a group beside others. A session has at most one write under way, and its last one waits for that."""
        ended = anyio.Event()
        self._under_way |= {write.batch.lease.session_id: ended for write in group}
        self._waiting.append((group, ended))
        # Lanes are kept, and their jobs linger: to start a job for each turn added a tenth to its cost. The first idle
        # one is taken, so more of them gather at the end. There they go, but one, or the worst burst's would all stay.
        while len(self._lanes) > 1 and not self._lanes[-1].busy and not self._lanes[-2].busy:
            self._lanes.pop()
        lane = next((lane for lane in self._lanes if not lane.busy), None)
        if lane is None:
            lane = SerialQueue("commit", lambda: self._commit_apart(*self._waiting.pop(0)) if self._waiting else None)
            self._lanes.append(lane)
        lane.wake(self.context)

    async def _commit_apart(self, group: Sequence[WriteRows], ended: anyio.Event) -> None:
        try:
            await self._commit(group)
        finally:
            # Also when the commit failed or was killed: the session's last write waits for this.
            ended.set()
            for write in group:
                # By identity: the session may have its next write under way already.
                if self._under_way.get(write.batch.lease.session_id) is ended:
                    del self._under_way[write.batch.lease.session_id]

    async def _commit_last(self, batch: Batch) -> Next:
        under_way = self._under_way.get(batch.lease.session_id)
        if under_way is not None:
            await under_way.wait()
        try:
            (outcome,) = await self._append([batch])
        except RepertoryError as error:
            return refuse(error)
        return refuse(outcome) if isinstance(outcome, RepertoryError) else reply(outcome.seq)

    async def _commit(self, group: Sequence[WriteRows]) -> None:
        """Answer every write, unless this job is killed: then its sessions are told that the writer has ended."""
        traces = [write.trace for write in group if write.trace is not None]
        with self._traced(group, traces) if traces else nullcontext():
            outcomes = await self._outcomes(group)
        # The senders are told when the whole group is stored: one sync has made all of it durable.
        for write, outcome in zip(group, outcomes, strict=True):
            if isinstance(outcome, RepertoryError):
                # In this step: a round of the event loop less between the sync and the caller's answer.
                write.reply_to.tell_now(WriteRefused(of=write, error=outcome))
            else:
                write.reply_to.tell_now(Written(of=write, seq=outcome.seq, released=outcome.released))
        self._groups += 1

    def _traced(self, group: Sequence[WriteRows], traces: Sequence[CallTrace]) -> AbstractContextManager[object]:
        """A span of the commit, of the traced calls that wait for it."""
        records = sum(len(write.batch.rows) for write in group)
        attributes = {"repertory.store": self._store.name, "repertory.commit.records": records}
        return traces[0].commit(traces[1:], {**attributes, "repertory.commit.sessions": len(group)})

    async def _outcomes(self, group: Sequence[WriteRows]) -> Sequence[Position | RepertoryError]:
        """The outcome of each write. If one makes the group fail, each write is tried alone."""
        batches = [write.batch for write in group]
        try:
            return await self._append(batches)
        except RepertoryError as error:
            # The store is down, which trying each alone would find out once for each session.
            if isinstance(error, Retryable) or len(batches) == 1:
                return [error] * len(batches)
        outcomes: list[Position | RepertoryError] = []
        # One session's value (which a store cannot write, say) must not fail the others of its group.
        for batch in batches:
            try:
                outcomes += await self._append([batch])
            except RepertoryError as error:
                outcomes.append(error)
            # Believed, it would end the session though its rows may stand in the store under this very lease.
            if isinstance(outcomes[-1], LeaseLost):  # The group may have stored it; the persister looks.
                msg = "it is unknown if this is stored: other writes of its group failed"
                outcomes[-1] = StoreUnavailable(msg, session=batch.lease.session_id)
        return outcomes

    async def _append(self, batches: Sequence[Batch]) -> Sequence[Position | RepertoryError]:
        """Errors: the store's; `Unwritable` for anything else it raises."""
        began = self._commits.clock()
        try:
            outcomes = await self._store.append(batches)
        except RepertoryError as error:
            self._commits.ended(batches, began, error)
            raise
        except BaseException as error:
            # A bug of a store is an error of its sessions: raised, it would end the writer, and nobody would hear of
            # his write.
            failed = unwritable(failure_of(error), sorted({batch.lease.session_id for batch in batches}))
            self._commits.ended(batches, began, failed)
            raise failed from error
        self._commits.ended(batches, began)
        return outcomes


# The keeper of one session store: renews leases and tidies up, if the store needs maintenance, and looks for sessions
# that other processes ask for.
#
# State: none. Fails: by a bug of its own alone, and is started again. Pace: the store's own. Supervised by the root.

OnGiveUp: TypeAlias = Callable[[str], Awaitable[None]]
"""Gives a session up unless it is in use."""


class LookForAskers(Struct, frozen=True, kw_only=True):
    """Look for sessions that other processes ask for."""


class StoreKeeper(Actor[LookForAskers]):
    """Runs the store's background work. `give_up` is called with each session that another process asks for."""

    def __init__(self, store: SessionStore, give_up: OnGiveUp | None) -> None:
        self._store = store
        self._give_up = give_up
        self._looks = False
        """True while a look that a request has caused is due."""
        self._asking: Background
        self._asked_for: Callable[[], Awaitable[Sequence[str]]] | None = None
        """`Sharing.asked_for`, if the store has that part."""

    async def on_start(self) -> None:
        capabilities, where = self._store.capabilities, {"store": self._store.name}
        self._asking = Background(self.context, "requests for sessions cannot be read", where)
        if capabilities.maintained:
            maintaining = Background(self.context, "a store cannot be maintained", where)
            self.context.job(maintaining.keep, self._store.maintain, name="maintain")
        if (sharing := capabilities.sharing) is not None and self._give_up is not None:
            self._asked_for = sharing.asked_for
            self.context.every(sharing.look_every_s, LookForAskers())
            if sharing.listen is not None:
                listening = Background(self.context, "requests for sessions cannot be heard", where)
                self.context.job(listening.keep, partial(sharing.listen, self._look), name="listen")

    def _look(self) -> None:
        # One look for any number of requests: a bell may ring a hundred times before it is heard.
        if not self._looks:
            self._looks = True
            self.context.self_ref.tell(LookForAskers())

    async def handle(self, message: LookForAskers) -> Next:
        # Before the look: a request that comes during it causes another one.
        self._looks = False
        if self._give_up is not None and self._asked_for is not None:
            for session_id in await self._asking.attempt(self._asked_for, ()):
                note(self.context.logger, DEBUG, "another process asks for a session", session=session_id)
                giving = Background(self.context, "a session cannot be given up", {"session": session_id})
                # In a job for each: a session that takes long to give up keeps no other asker waiting.
                self.context.job(giving.attempt, partial(self._give_up, session_id), None, name="give up")
        return carry_on()


def keeper_spec(store: SessionStore, name: str, give_up: OnGiveUp | None = None) -> ChildSpec | None:
    """The child spec of a store's keeper; None for a store that needs none. Without `give_up`, requests are not looked
    for.
    """
    capabilities = store.capabilities
    hears = give_up is not None and capabilities.sharing is not None
    if not hears and not capabilities.maintained:
        return None
    return ChildSpec(name=name, factory=lambda: StoreKeeper(store, give_up))


# The commit buffer: records that sessions have accepted and their store has not stored yet.

# Not an actor. A persister writes its session's buffer; the agent's journal, the host and the drain read it in the same
# event loop without asking. The buffer outlives its persister, so a killed persister leaves a report of what it held.


@dataclass(frozen=True, slots=True, kw_only=True)
class NotStored:
    """Records of one agent in one session that are not on stable storage.

    Args:
        session_id: The id of the session.
        agent_id: The id of the agent in its session.
        size_bytes: The size of the records.
        error: The error for which they were not stored.
    """

    session_id: str
    agent_id: str
    records: int
    """The number of records; 0 if only an erasure is open: contents that were to be destroyed may still be stored."""
    size_bytes: int
    turns: tuple[int, ...]
    """Numbers of the turns that have such records."""
    since: float
    """The epoch seconds at which the first of these records was made."""
    answered: bool
    """True if a caller already has the answer of one of these turns: `relaxed` turns are answered before they are
    stored.
    """
    error: str


_NO_ROWS: frozenset[int] = frozenset()


class CommitBuffer:
    """The records of one agent of a session that are accepted and not stored.

        author --> unsent --take_all--> sent --stored--> gone            rows
                   erase  --take_all--> erasing --stored--> gone         erasures of stored rows
                   due    --take_all--> sent_due --stored--> gone        the time of pending work

    `sent` is repeated unchanged until it is stored, since a store recognises its rows. Erasures and times it need not
    recognise, so `put_back` asks for these again.
    """

    __slots__ = (
        "_patience",
        "agent_id",
        "due",
        "erase",
        "erasing",
        "error",
        "failed",
        "lost",
        "promised",
        "resumed_at",
        "sent",
        "sent_due",
        "session_id",
        "takes",
        "unsent",
    )

    def __init__(self, session_id: str, agent_id: str, patience: StorePatience = DEFAULT_PATIENCE) -> None:
        self.session_id = session_id
        self.agent_id = agent_id
        self._patience = patience
        self.sent: tuple[Row, ...] = ()
        """The rows that were handed to the writer, and are not known to be stored."""
        self.unsent: list[Row] = []
        """The rows that are still to be handed to the writer."""
        self.erasing: frozenset[int] = _NO_ROWS
        """Stored rows whose contents the writer was asked to destroy; it has not confirmed that."""
        self.erase: frozenset[int] = _NO_ROWS
        """Stored rows whose contents the next request is to destroy."""
        self.due: DueTime | None = None
        """The time at which the agent's pending work is due, to be stored with the next write; None: as before."""
        self.sent_due: DueTime | None = None
        """The time that was handed to the writer with its writes."""
        self.error: RepertoryError | None = None
        """The error for which the store does not accept rows; None while it accepts them."""
        self.failed: RepertoryError | None = None
        """The error for which the persister restarted; None once the session is open again."""
        self.promised = 0
        """Records up to this sequence number belong to turns that were answered before they were stored."""
        self.lost: NotStored | None = None
        """Records that were answered and will never be stored; None again once the next turn has told its caller."""
        self.resumed_at = -math.inf
        """The last time at which a paused session was acquired again, on the event loop's clock."""
        self.takes = False
        """True while a commit has given the session up, so that the next one must take it again."""

    @property
    def count(self) -> int:
        return len(self.sent) + len(self.unsent)

    @property
    def rows(self) -> tuple[Row, ...]:
        return (*self.sent, *self.unsent)

    @property
    def holds(self) -> bool:
        """True if there are records to store or contents to erase."""
        return bool(self.sent or self.unsent or self.erase or self.erasing)

    @property
    def waits(self) -> bool:
        """True if there is anything to tell the store."""
        return bool(self.sent or self.unsent or self.erase or self.erasing or self.due or self.sent_due)

    @property
    def size_bytes(self) -> int:
        return sum(len(row.body) for row in self.rows)

    def full(self, more: int = 0) -> bool:
        """True if the buffer holds as much as it may, counting `more` further records."""
        rows = self.rows
        size_bytes = sum(len(row.body) for row in rows)
        return len(rows) + more >= self._patience.records_max or size_bytes >= self._patience.bytes_max

    @property
    def last_seq(self) -> int:
        """The last record in the buffer; 0 if it is empty."""
        rows = self.unsent or self.sent
        return rows[-1].seq if rows else 0

    def redact(self, redaction: Redaction) -> None:
        """Apply a redaction. Contents that are not sent yet are destroyed here and never leave."""
        waiting = {row.seq for row in self.unsent}
        # The row stays, without its content: its number and link are part of the chain.
        self.unsent = [row.without_content() if row.seq in redaction.erase else row for row in self.unsent]
        self.unsent += redaction.rows
        # Rows in `sent` too: they may be stored by now, and must be repeated unchanged if they are not.
        self.erase |= frozenset(redaction.erase) - waiting

    def take_all(self) -> None:
        """Move everything to `sent`: the writer gets it next."""
        # Only between two writes: `sent` is empty then, or its rows have been put back.
        self.sent, self.unsent = self.rows, []
        # The later one counts: it was computed with the later rows.
        self.sent_due, self.due = self.due or self.sent_due, None
        if self.erase:
            self.erasing, self.erase = self.erasing | self.erase, _NO_ROWS

    def batch(self, lease: Lease, *, release: bool = False) -> Batch:
        """The rows that were handed to the writer, to be committed under this lease; see `Batch` for `release`."""
        erase = tuple((self.agent_id, seq) for seq in sorted(self.erasing)) if self.erasing else ()
        return Batch(lease=lease, rows=self.sent, erase=erase, due=self.sent_due, release=release, take=self.takes)

    def put_back(self) -> None:
        """Ask again for what the writer may not have done besides storing rows."""
        self.due, self.sent_due = self.due or self.sent_due, None
        if self.erasing:
            self.erase, self.erasing = self.erase | self.erasing, _NO_ROWS

    def stored(self, seq: int) -> None:
        """The rows up to `seq` are stored. Also clears the error."""
        self.sent = tuple(row for row in self.sent if row.seq > seq) if self.sent and self.sent[-1].seq > seq else ()
        # A store does rows, erasures and the due time of a batch together, or nothing of it.
        if not self.sent:
            self.erasing, self.sent_due = _NO_ROWS, None
        self.error = None

    def abandon(self, error: RepertoryError) -> NotStored | None:
        """Forget all rows. If some were answered, remember and return them as lost."""
        rows, self.sent, self.unsent, self.error = self.rows, (), [], None
        self.erase = self.erasing = _NO_ROWS
        self.due = self.sent_due = None
        # Nobody was told that these are stored: their callers get the error, and there is nothing to report.
        if not rows or rows[0].seq > self.promised:
            return None
        self.lost = _sum(self.lost, self._report(rows, error))
        # The same numbers are given to other records next.
        self.promised = rows[0].seq - 1
        return self.lost

    def not_stored(self) -> NotStored | None:
        """The records that are not stored, and those that were answered and lost; None if neither exists."""
        return _sum(self.lost, self._report(self.rows, self.error) if self.holds else None)

    def _report(self, rows: Sequence[Row], error: RepertoryError | None) -> NotStored:
        records = (
            decode(row.kind, row.version, row.body) for row in rows if row.kind == RecordKind.MESSAGE and not row.erased
        )
        return NotStored(
            session_id=self.session_id,
            agent_id=self.agent_id,
            records=len(rows),
            size_bytes=sum(len(row.body) for row in rows),
            turns=tuple(sorted({record.turn for record in records if isinstance(record, MessageAdded)})),
            since=at_of(rows[0].body) or 0.0 if rows else 0.0,
            answered=bool(rows) and rows[0].seq <= self.promised,
            error=str(error) if error is not None else "the store has not answered",
        )


def _sum(first: NotStored | None, then: NotStored | None) -> NotStored | None:
    if first is None or then is None:
        return first or then
    return replace(
        then,
        records=first.records + then.records,
        size_bytes=first.size_bytes + then.size_bytes,
        turns=tuple(sorted({*first.turns, *then.turns})),
        since=min(first.since, then.since),
        answered=first.answered or then.answered,
    )


class CommitBuffers:
    """The buffers of all sessions of a host."""

    def __init__(self, patience: StorePatience = DEFAULT_PATIENCE) -> None:
        self.patience = patience
        self.commits = CommitCounts()
        self._by_key: dict[tuple[str, str, str], CommitBuffer] = {}

    def of(self, store: str, session_id: str, agent_id: str, patience: StorePatience | None = None) -> CommitBuffer:
        """An agent's buffer; every call gives the same one. `store` tells sessions of the same name apart. `patience`:
        the agent's own, instead of the host's.
        """
        key = store, session_id, agent_id
        buffer = self._by_key.get(key)
        if buffer is None:
            buffer = self._by_key[key] = CommitBuffer(session_id, agent_id, patience or self.patience)
        return buffer

    def forget(self, store: str, buffer: CommitBuffer) -> None:
        """Drop the buffer of a session at rest, unless it still has something to report."""
        # What a drain has to report must outlive the session.
        if not buffer.holds and buffer.lost is None:
            self._by_key.pop((store, buffer.session_id, buffer.agent_id), None)

    def drop(self, buffer: CommitBuffer) -> NotStored | None:
        """Drop the buffer with all that it holds; returns what is lost by that."""
        self._by_key = {key: each for key, each in self._by_key.items() if each is not buffer}
        return buffer.not_stored()

    def __iter__(self) -> Iterator[CommitBuffer]:
        return iter(tuple(self._by_key.values()))

    def not_stored(self) -> tuple[NotStored, ...]:
        """The reports of all that is not stored, or was answered and lost, by agent and session."""
        reports = [buffer.not_stored() for buffer in self]
        return tuple(report for report in reports if report is not None)
