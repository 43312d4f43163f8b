"""The persister of one session: owns its lease and its journal, and knows what is durable.

State: the fold of the journal, the rows that are not durable yet, who waits for them. Fails: when the session belongs
to somebody else or its journal is damaged; it then starts again from what is stored. Pace: the store's, through the
writer; one write is under way at a time and takes everything that has gathered. Supervised by the session (first child,
so its failure restarts the rest).

A write that fails is tried again as it was, for as long as the session lives, and what follows waits behind it. So a
store knows it again if it was stored all the same; where it does not, the journal's last row says how much of it was.
Callers wait for a bounded time, and are then told that what they said waits.

A session that is not kept has a `MemoryJournal` in the place of a store, so it is built of the same parts.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, assert_never

import anyio

from repertory.actors.backlog import Backlog
from repertory.actors.leases import Durable
from repertory.actors.memory_journal import MemoryJournal
from repertory.actors.persister_messages import (
    Append,
    Begin,
    Commit,
    Hurry,
    LeftBehind,
    LingerOver,
    Looked,
    PatienceOver,
    Prove,
    ReadHistory,
    ReadImage,
    ReadLeftBehind,
    ReadRun,
    ReadSaid,
    Redact,
    TryAgain,
)
from repertory.actors.said import read_history, read_said
from repertory.actors.writer import Write, WriteLast, WriteRefused, WriterMessage, Written
from repertory.backends.ports import Lease, TendedStore
from repertory.backends.worker_threads import OFF_LOOP_BYTES, run_in_thread
from repertory.core.journal.appender import Appender
from repertory.core.journal.fold import Fold
from repertory.core.journal.image import Image
from repertory.core.journal.records import CursorMoved, MessageAdded, Record, StateChanged
from repertory.core.journal.redaction import redact, repairs
from repertory.core.journal.restate import restatements
from repertory.core.journal.restore import records_of, restore
from repertory.core.journal.rows import Kind, Row, first_link, size_of
from repertory.core.journal.verify import verify
from repertory.core.orchestration.run import past_run
from repertory.core.outage import StorePatience, Verdict, following, retry_after_s, stored_of, verdict_on
from repertory.errors import Invalid, LeaseLost, RepertoryError, Retryable, StoreUnavailable, Unavailable
from repertory.runtime.actor import Actor
from repertory.runtime.clock import Rng
from repertory.runtime.envelope import ReplySlot
from repertory.runtime.lifecycle import ExitReason, Failed
from repertory.runtime.message import Next, carry_on, fail, refuse, reply
from repertory.runtime.ref import ActorRef

if TYPE_CHECKING:
    from repertory.core.orchestration.run import Run

_WRITING_SHARE = 0.8
"""Of the time to stop: the rest is for giving the session up."""
_MOVABLE = (CursorMoved, StateChanged)
"""Records to which no other one refers by number."""
_EARLY_S = 0.001
"""Clocks are read twice."""

PersisterMessage: TypeAlias = (
    Append | Begin | Commit | Prove | Redact | ReadImage | ReadLeftBehind | ReadHistory | ReadSaid | ReadRun | Hurry
) | (LingerOver | TryAgain | PatienceOver | Looked | Written | WriteRefused)


@dataclass(frozen=True, slots=True, kw_only=True)
class PersisterSettings:
    """What a persister persists, and how eagerly."""

    session_id: str
    agent_id: str
    takeover: bool = False
    """Fence a live owner instead of refusing to start."""
    linger_s: float = 0.005
    """How long records wait for company before they are written unasked, unless the store asks for longer."""
    patience: StorePatience | None = None
    """What the agent wants in the place of its host's."""
    busy_by: float = math.inf
    """Until when opening waits at most for another process, by the event loop's clock."""
    stop_timeout_s: float = 10.0
    """How long a stopping session waits for its last commit."""


class _Begun(NamedTuple):
    """A turn that has only just begun."""

    slot: ReplySlot[Image | None]
    before: int
    """The last record before it."""


class _Phase(Enum):
    """What is being done about writing."""

    READY = "ready"
    WRITING = "writing"
    RESTING = "resting"
    """The last write was refused, and will be tried again."""
    LOOKING = "looking"
    """The store is asked what of it is stored."""


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
        self._backlog = Backlog(settings.session_id, settings.agent_id)
        """What waits to be stored."""
        self._phase = _Phase.READY
        self._write: Write | None = None
        """The last one."""
        self._failures = 0
        """Of writes, since the last one that succeeded."""
        self._unsure = False
        """Whether what was refused may be stored all the same."""
        self._lingering = False
        self._linger_s = settings.linger_s
        self._patience_s = 0.0
        self._last_s = settings.stop_timeout_s * _WRITING_SHARE
        """How long the last write is tried."""
        self._looks_at = math.inf
        """When a timer will look for those who have waited long enough."""
        self._durable_seq = 0
        self._restated = 0
        """Rows that were added to a closing commit, and that the author may not count yet."""
        self._last_at = 0.0
        self._waiters = StoreWaiters()
        self._begun: _Begun | None = None
        self._turn_rows: list[Row] = []
        """Those of the running turn, or of the last one."""

    def summary(self) -> object:
        backlog = self._backlog
        said: dict[str, object] = {"seq": self._fold.last_seq, "durable": self._durable_seq, "waiting": backlog.count}
        if backlog.error is not None:
            said |= {"waiting_bytes": backlog.size_bytes, "failures": self._failures, "error": str(backlog.error)}
        return said

    async def on_start(self) -> None:
        """Take the lease, then read what the last owner left. What an earlier incarnation could not store follows."""
        if isinstance(self._keeper, MemoryJournal):
            self._fold = self._keeper.fold
            return
        settings, store = self._settings, self._keeper.store
        self._linger_s = max(self._linger_s, store.linger_s if isinstance(store, TendedStore) else 0.0)
        self._patience_s = (settings.patience or self._keeper.backlogs.patience).wait_s
        self._backlog = self._keeper.backlog_of(settings.session_id, settings.agent_id, settings.patience)
        again = isinstance(self._backlog.failed, LeaseLost)  # Whoever has it now is not fenced in turn, nor waited for.
        await self._open(self._keeper, takeover=settings.takeover and not again, wait=not again)
        self._backlog.failed = None

    async def _open(self, keeper: Durable, *, takeover: bool, wait: bool = True) -> None:
        session_id, agent_id = self._settings.session_id, self._settings.agent_id
        patience, by = self._settings.patience, self._settings.busy_by if wait else -math.inf
        self._lease = lease = await keeper.leases.acquire(session_id, takeover=takeover, patience=patience, by=by)
        try:
            rows = await keeper.store.load(session_id, agent_id)
            rows_and_kept = [*rows, *self._kept(rows)]
            restoring = partial(restore, rows_and_kept, session_id=session_id)
            large = size_of(rows_and_kept) > OFF_LOOP_BYTES
            restored = await run_in_thread(restoring) if large else restoring()
        except BaseException:
            self._lease = None
            with suppress(RepertoryError):
                await keeper.leases.leave(lease)
            raise
        self._fold, self._turn_rows = restored.fold, rows_and_kept
        self._appender = Appender(agent_id, restored.fold, restored.link, self._entropy)
        self._durable_seq = rows[-1].seq if rows else 0
        for redaction in repairs(self._appender, rows_and_kept, restored.mended):
            self._backlog.redact(redaction)
            self._turn_rows += redaction.rows
        if restored.mended:
            self.context.logger.warning("stored messages were mended messages=%r", sorted(restored.mended))

    async def on_ready(self) -> None:
        self._push()

    async def handle(self, message: PersisterMessage) -> Next:
        match message:
            case Append(first=first, records=records, soon=soon):
                self._check_first(first, records)
                self._add(records)
                self._write_later(soon)
                return carry_on()
            case Commit(first=first):
                self._check_first(first)
                return self._commit(message)
            case Begin(first=first, records=records):
                self._check_first(first)
                return self._begin(records, message.within_s)
            case Redact(first=first, records=records):
                self._check_first(first)
                self._add(records)
                return self._redact(message)
            case Prove(within_s=within_s):
                return self._prove(within_s)
            case Written() | WriteRefused() if message.of is not self._write:
                return carry_on()  # It is for an incarnation that is gone.
            case Written(seq=seq):
                self._note_written(seq)
                return carry_on()
            case WriteRefused(error=error, final=final):
                return await self._note_refused(error, final=final)
            case Looked():
                return self._go_on_from(message)
            case LingerOver():
                self._lingering = False
                self._push()
                return carry_on()
            case TryAgain():
                self._try_now()
                return carry_on()
            case PatienceOver():
                self._lose_patience()
                return carry_on()
            case Hurry(wait_s=wait_s):
                self._patience_s, self._last_s = min(self._patience_s, wait_s), min(self._last_s, 2 * wait_s)
                self._lose_patience()
                return carry_on()
            case ReadImage():
                return reply(self._fold.image())
            case ReadLeftBehind(token=token):
                return reply(LeftBehind.in_fold(self._fold, token))
            case ReadHistory() | ReadSaid() | ReadRun():
                try:
                    return reply(await self._read(message))
                except RepertoryError as error:  # It concerns whoever wants to read, and nobody else.
                    return refuse(error)
            case _:
                assert_never(message)

    async def _read(self, message: ReadHistory | ReadSaid | ReadRun) -> object:
        keeper, session_id, backlog = self._keeper, self._settings.session_id, self._backlog
        match message:
            case ReadHistory():
                return await read_history(keeper, session_id, backlog)
            case ReadSaid(after=after, until=until):
                return await read_said(keeper, session_id, backlog, after, until)
            case ReadRun(number=number):
                return await read_run(keeper, session_id, backlog, number)

    async def on_stop(self, reason: ExitReason) -> None:
        """Write what is left, then give the session up. What cannot be written stays in the backlog."""
        keeper, lease = self._keeper, self._lease
        if isinstance(keeper, MemoryJournal) or lease is None:
            return
        if isinstance(reason, Failed):
            keeper.leases.forget(lease)
            return
        with anyio.move_on_after(self._last_s):
            await write_last(keeper.writer, lease, self._backlog, self._last_stored, self.context.rng)
        backlog = self._backlog
        keeper.backlogs.forget(keeper.store.name, backlog)
        if backlog.count:
            self.context.logger.error(
                "records could not be stored records=%d cause=%r", backlog.count, str(backlog.error)
            )
        with suppress(Retryable):  # It is given up when somebody asks for it, or the store is closed.
            await keeper.leases.release(lease)

    def _kept(self, rows: Sequence[Row]) -> list[Row]:
        """What an earlier incarnation accepted and could not store, as far as it still follows on what is stored."""
        backlog = self._backlog
        kept = following(rows, backlog.rows, first_link(self._settings.agent_id))
        if kept is None:
            fields = {"session": self._settings.session_id, "records": backlog.count}
            self._abandon(LeaseLost("somebody else has written to the session since", **fields))
        backlog.sent, backlog.unsent, backlog.error = (), kept or [], None
        self._unsure = bool(kept)  # They may be on their way.
        backlog.put_back()
        return backlog.unsent

    def _abandon(self, error: RepertoryError) -> None:
        lost = self._backlog.abandon(error)
        if lost is not None:
            self.context.logger.error("answered turns are lost turns=%r cause=%r", lost.turns, lost.error)

    def _check_first(self, first: int, records: tuple[Record, ...] = ()) -> None:
        """What an author takes to be number n must become number n: views and keys refer to it.

        While a turn's closing commit is under way, the author does not know of the rows that were restated with it.
        Whatever else it says meanwhile (how far memory has got, what state was set) moves up by as many.
        """
        expected = self._fold.last_seq + 1
        if first == expected:
            self._restated = 0
        elif first + self._restated != expected or not all(isinstance(each, _MOVABLE) for each in records):
            raise Invalid("the author of records lost count", first=first, expected=expected)

    def _add(self, records: tuple[Record, ...]) -> None:
        """Fold the records and turn them into rows. One that may not stand here is refused before it is kept."""
        if not records:
            return
        self._last_at = records[-1].at
        if self._appender is not None:
            for record in records:
                if isinstance(record, MessageAdded) and record.turn != self._fold.turns:
                    self._turn_rows = []
                row = self._appender.append(record)
                self._backlog.unsent.append(row)
                self._turn_rows.append(row)
            return
        assert isinstance(self._keeper, MemoryJournal)
        for record in records:
            self._keeper.add(record)

    def _write_later(self, soon: bool) -> None:
        if soon:
            self._push()
        elif self._backlog.unsent and not self._lingering and self._phase is _Phase.READY:
            self._lingering = True
            self.context.after(self._linger_s, LingerOver(), key="linger")

    def _commit(self, commit: Commit) -> Next:
        self._add(commit.records)
        if self._appender is None:
            return reply(self._fold.last_seq)
        if commit.closing and self._last_at:
            restated = tuple(restatements(self._fold, self._last_at))
            self._add(restated)
            self._restated += len(restated)
        last = self._fold.last_seq
        if last <= self._durable_seq:
            return reply(last)
        slot, waited = self.context.defer(), self._waits(commit.within_s)
        self._waiters.wait_for_commit(slot, waited, last, patient=commit.patient)
        self._try_now()
        return carry_on()

    def _begin(self, records: tuple[Record, ...], within_s: float) -> Next:
        before = self._fold.last_seq
        self._add(records)
        if self._appender is None:
            return reply(None)
        self._begun = _Begun(self.context.defer(), before)
        durable = self._fold.last_seq if records else 0
        self._waiters.wait_for_proof(self._begun.slot, self._waits(within_s), durable)
        self._try_now()
        return carry_on()

    def _redact(self, message: Redact) -> Next:
        for target, said in message.instead.items():
            if isinstance(self._keeper, MemoryJournal):
                self._keeper.redact(target, said, message.at)
            elif self._appender is not None:
                redaction = redact(self._appender, self._turn_rows, target, said, message.at)
                self._backlog.redact(redaction)
                self._turn_rows += redaction.rows
                if redaction.left:
                    where = [copy.what for copy in redaction.left]
                    self.context.logger.warning("what was redacted is said elsewhere too where=%r", where)
        self._write_later(soon=False)
        return reply(self._fold.last_seq)

    def _prove(self, within_s: float) -> Next:
        if self._appender is None:
            return reply(None)
        self._waiters.wait_for_proof(self.context.defer(), self._waits(within_s))
        self._try_now()
        return carry_on()

    def _waits(self, within_s: float) -> Waited:
        """Somebody waits from now on, and will be looked for."""
        waited = Waited(self.context.clock(), within_s)
        self._look_at(waited.until(self._patience_s))
        return waited

    def _look_at(self, at: float) -> None:
        """Look then for those who have waited long enough. One timer for all: it outlasts those who wait."""
        if at < self._looks_at:
            self._looks_at = at
            self.context.after(max(at - self.context.clock(), 0.0) + _EARLY_S, PatienceOver(), key="patience")

    def _try_now(self) -> None:
        """Write, also when the last attempt was refused and the next one is not due yet."""
        if self._phase is _Phase.RESTING:
            self.context.cancel_timer("again")
            self._phase = _Phase.READY
        self._push()

    def _push(self) -> None:
        """Hand everything gathered to the writer, unless a write is under way: its answer pushes again."""
        backlog = self._backlog
        if self._phase is not _Phase.READY or self._lease is None or isinstance(self._keeper, MemoryJournal):
            return
        if not (backlog.waits or self._waiters.doubt):
            backlog.error = None
            return
        if self._lingering:
            self._lingering = False
            self.context.cancel_timer("linger")
        if not backlog.sent:
            backlog.take_all()
        self._waiters.write_begins()
        self._phase = _Phase.WRITING
        erase = tuple((backlog.agent_id, seq) for seq in sorted(backlog.erasing))
        self._write = Write(lease=self._lease, rows=backlog.sent, erase=erase, reply_to=self.context.self_ref)
        self._keeper.writer.tell(self._write)

    def _note_written(self, seq: int) -> None:
        if self._failures:
            self.context.logger.info("the store takes records again failures=%d", self._failures)
        self._phase, self._failures, self._unsure = _Phase.READY, 0, False
        self._durable_seq = max(self._durable_seq, seq)
        self._backlog.stored(seq)
        self._waiters.write_succeeded(self._durable_seq)
        self._push()

    # When the store does not take what it is given.

    async def _note_refused(self, error: RepertoryError, *, final: bool) -> Next:
        self._waiters.write_failed()
        if isinstance(error, LeaseLost) and self._unsure and self._backlog.sent:
            self._phase = _Phase.LOOKING
            self.context.job(self._look, error, name="look")
            return carry_on()
        verdict = Verdict.GIVE_UP if final else verdict_on(error)
        if verdict is Verdict.GIVE_UP:
            return await self._open_again(error)
        self._unsure = True
        self._rest(error)
        if verdict is Verdict.TELL:
            self._waiters.fail(error)
        else:
            self._waiters.fail_impatient(self._not_stored_yet(self.context.clock()))
        return carry_on()

    def _rest(self, error: RepertoryError) -> None:
        """Try again in a while."""
        self._failures += 1
        if self._failures == 1:
            self.context.logger.warning("the store takes no records cause=%r", str(error))
        self._backlog.error = error
        self._phase = _Phase.RESTING
        delay_s = retry_after_s(error, self._failures, self.context.rng.uniform(0.0, 1.0))
        self.context.after(delay_s, TryAgain(), key="again")

    async def _look(self, refused: LeaseLost) -> None:
        """Ask how much of what was refused is stored. A job: meanwhile callers are told that they have waited."""
        try:
            looked = Looked(refused=refused, last=await self._last_stored())
        except RepertoryError as error:
            looked = Looked(refused=refused, error=error)
        self.context.self_ref.tell(looked)

    async def _last_stored(self) -> Row | None:
        assert isinstance(self._keeper, Durable)
        rows = await self._keeper.store.load(self._settings.session_id, self._settings.agent_id)
        return rows[-1] if rows else None

    def _go_on_from(self, looked: Looked) -> Next:
        if looked.error is not None:
            self._rest(looked.error)
            return carry_on()
        sent = self._backlog.sent
        stored = stored_of(sent, looked.last)
        if not stored:
            return self._start_over(looked.refused)
        self._backlog.put_back()
        self._note_written(sent[stored - 1].seq)
        return carry_on()

    def _lose_patience(self) -> None:
        """Tell those who have waited long enough that what they said waits on."""
        now, patience_s = self.context.clock() + _EARLY_S, self._patience_s
        first = self._waiters.first(patience_s)
        if first is not None and first.until(patience_s) <= now:
            error = self._not_stored_yet(first.since)
            self._backlog.error = self._backlog.error or error
            self._waiters.fail(error, now, patience_s)
            first = self._waiters.first(patience_s)
        self._looks_at = math.inf
        if first is not None:
            self._look_at(first.until(patience_s))

    def _not_stored_yet(self, since: float) -> Unavailable:
        backlog = self._backlog
        text = "the store has not taken what was said: it waits, and is stored when the store is back; try again later"
        error = StoreUnavailable(
            text,
            session=self._settings.session_id,
            waited_s=round(self.context.clock() - since, 1),
            records=backlog.count,
            bytes=backlog.size_bytes,
            cause=str(backlog.error or "no answer"),
        )
        error.__cause__ = backlog.error
        return error

    async def _open_again(self, error: RepertoryError) -> Next:
        """Take in what somebody else has written, for a turn that has only just begun: it can go on from there."""
        begun, self._begun, keeper = self._begun, None, self._keeper
        just_begun = begun is not None and self._waiters.awaited(begun.slot) and self._durable_seq >= begun.before
        if not (isinstance(error, LeaseLost) and begun and just_begun and self._lease and isinstance(keeper, Durable)):
            return self._start_over(error)
        self._backlog.abandon(error)
        keeper.leases.forget(self._lease)
        self._lease = None
        try:
            await self._open(keeper, takeover=False, wait=False)
        except RepertoryError:
            return self._start_over(error)
        self._waiters, self._phase = StoreWaiters(), _Phase.READY
        begun.slot.reply(self._fold.image())
        return carry_on()

    def _start_over(self, error: RepertoryError) -> Next:
        """What was said cannot be stored: tell who waits, and start again from what the store says."""
        self._waiters.fail(error)
        self._abandon(error)
        self._backlog.failed = error
        return fail(error)


async def write_last(
    writer: ActorRef[WriterMessage],
    lease: Lease,
    backlog: Backlog,
    last_stored: Callable[[], Awaitable[Row | None]],
    rng: Rng,
) -> None:
    """Try until the backlog is empty, or trying makes no sense. Cancel it when the time is over.

    A write that is under way reaches the store before. `last_stored` asks the store for the journal's last row. What is
    left stays in the backlog, with the reason.
    """
    failures = 0
    while backlog.waits:
        backlog.take_all()
        rows = backlog.sent
        erase = tuple((backlog.agent_id, seq) for seq in sorted(backlog.erasing))
        try:
            seq = await writer.ask(WriteLast(lease=lease, rows=rows, erase=erase), timeout_s=math.inf)
        except LeaseLost as error:
            backlog.error = error
            seq = await _stored_after_all(rows, backlog, last_stored) if rows else 0
        except RepertoryError as error:
            backlog.error = error
            seq = 0
        if seq:
            if backlog.error is not None:
                backlog.put_back()
            backlog.stored(seq)
        elif backlog.error is None or verdict_on(backlog.error) is Verdict.GIVE_UP:
            return
        else:
            failures += 1
            await anyio.sleep(retry_after_s(backlog.error, failures, rng.uniform(0.0, 1.0)))


async def _stored_after_all(
    rows: Sequence[Row], backlog: Backlog, last_stored: Callable[[], Awaitable[Row | None]]
) -> int:
    """The last of the rows that is stored; 0 when none is, or when the store does not say."""
    try:
        stored = stored_of(rows, await last_stored())
    except RepertoryError as error:
        backlog.error = error
        return 0
    return rows[stored - 1].seq if stored else 0


_TELLING = frozenset({Kind.NODE, Kind.BRANCH})
"""The kinds of rows that say what became of runs."""


async def read_run(keeper: Durable | MemoryJournal, session_id: str, backlog: Backlog, number: int) -> Run | None:
    """The run of that number; None when it is not there or is not over. The whole journal is read for it."""
    if isinstance(keeper, MemoryJournal):
        return past_run(keeper.told_of_runs(), number)
    rows = list(await keeper.store.load(session_id, backlog.agent_id, whole=True))
    await run_in_thread(partial(verify, rows, session_id=session_id))
    stored = rows[-1].seq if rows else 0
    rows += [row for row in backlog.rows if row.seq > stored]
    telling = [row for row in rows if row.kind in _TELLING]
    return await run_in_thread(lambda: past_run(records_of(telling, session_id=session_id), number))


class Waited(NamedTuple):
    """When somebody began to wait, and how long that may last."""

    since: float
    within_s: float = math.inf
    """At most; the persister's patience may be shorter."""

    def until(self, patience_s: float) -> float:
        """When it has lasted long enough."""
        return self.since + min(patience_s, self.within_s)


class _Committing(NamedTuple):
    slot: ReplySlot[int]
    waited: Waited
    seq: int
    """The record that has to be durable."""
    patient: bool
    """Whether to wait while the store refuses."""


class _Proving(NamedTuple):
    slot: ReplySlot[None] | ReplySlot[Image | None]
    waited: Waited
    seq: int
    """The record that has to be durable by then; 0 for none."""


class StoreWaiters:
    """Times are seconds of the persister's clock."""

    def __init__(self) -> None:
        self._committing: deque[_Committing] = deque()
        self._doubting: list[_Proving] = []
        """Who waits for a proof that is not under way yet."""
        self._proving: list[_Proving] = []
        """Who is answered by the write under way."""

    @property
    def doubt(self) -> bool:
        """Whether somebody waits for a proof that is not under way."""
        return bool(self._doubting)

    def wait_for_commit(self, slot: ReplySlot[int], waited: Waited, seq: int, *, patient: bool) -> None:
        """Answer with `seq` when everything up to there is durable. Higher numbers come later."""
        self._committing.append(_Committing(slot, waited, seq, patient))

    def wait_for_proof(self, slot: ReplySlot[None] | ReplySlot[Image | None], waited: Waited, seq: int = 0) -> None:
        """Answer when a write that begins from now on has succeeded, and everything up to `seq` is durable."""
        self._doubting.append(_Proving(slot, waited, seq))

    def awaited(self, slot: ReplySlot[Image | None]) -> bool:
        """Whether somebody waits for an answer in this slot."""
        return any(waiter.slot is slot for waiter in self._all())

    def write_begins(self) -> None:
        """A write begins, which proves what is doubted now."""
        self._proving, self._doubting = self._doubting, self._proving

    def write_failed(self) -> None:
        """It proved nothing."""
        self._doubting[:0] = self._proving
        self._proving = []

    def write_succeeded(self, durable_seq: int) -> None:
        """Answer those who waited for it."""
        for waiter in self._proving:
            if waiter.seq <= durable_seq:
                waiter.slot.reply(None)
        self._doubting[:0] = [waiter for waiter in self._proving if waiter.seq > durable_seq]
        self._proving = []
        while self._committing and self._committing[0].seq <= durable_seq:
            waiter = self._committing.popleft()
            waiter.slot.reply(waiter.seq)

    def fail_impatient(self, error: RepertoryError) -> None:
        """Give the error to those who do not wait while the store refuses."""
        for waiter in self._committing:
            if not waiter.patient:
                waiter.slot.fail(error)
        self._committing = deque(waiter for waiter in self._committing if waiter.patient)

    def first(self, patience_s: float) -> Waited | None:
        """How long the one waits who has waited long enough first; None when nobody waits."""
        waits = [waiter.waited for waiter in self._all()]
        return min(waits, key=lambda waited: waited.until(patience_s), default=None)

    def fail(self, error: RepertoryError, now: float = math.inf, patience_s: float = 0.0) -> None:
        """Give the error to those who have waited long enough by `now`: all of them, unless it is said."""
        for waiter in self._all():
            if waiter.waited.until(patience_s) <= now:
                waiter.slot.fail(error)
        self._committing = deque(waiter for waiter in self._committing if waiter.waited.until(patience_s) > now)
        self._doubting = [waiter for waiter in self._doubting if waiter.waited.until(patience_s) > now]
        self._proving = [waiter for waiter in self._proving if waiter.waited.until(patience_s) > now]

    def _all(self) -> list[_Committing | _Proving]:
        return [*self._committing, *self._doubting, *self._proving]
