"""The persister of one session: owns its lease, and makes durable what the author of its journal hands over.

State: the rows that are not durable yet, and the askers that wait for them. Fails: when another process owns the
session or the journal is corrupt; it then starts again from what is stored. Pace: the store's, through the writer; one
write runs at a time and takes everything that has gathered. Supervised by the session (first child, so its failure
restarts the rest).

A write that fails is repeated unchanged for as long as the session lives, and later rows wait behind it. A store
recognises the repeated write if the first one was stored after all; otherwise the journal's last row tells how much of
it was. Callers wait for a bounded time, and are then told that their messages are not stored yet.

A session without a store has an `InMemoryJournal` in the place of the store, so it is built of the same parts.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, ClassVar, TypeAlias, assert_never, cast

import anyio
from msgspec import Struct

from repertory.actors.call import trace_here
from repertory.actors.history import ReadHistory, ReadMessages, ReadRecords, ReadRun, read_for
from repertory.actors.in_memory_journal import InMemoryJournal
from repertory.actors.leases import Durable, PausableLease
from repertory.actors.taking import Take, Taking
from repertory.actors.writer import CommitBuffer, WriteLast, WriteRefused, WriteRows, Written
from repertory.backends.ports import Batch, Lease
from repertory.backends.worker_threads import OFF_LOOP_BYTES, run_in_thread
from repertory.core.journal.author import JournalAuthor
from repertory.core.journal.image import Image
from repertory.core.journal.restore import Appender, restore
from repertory.core.journal.rows import Row, first_link, following, size_of, stored_of
from repertory.core.retry import OutageVerdict, StorePatience, backoff_s, verdict_on
from repertory.errors import LeaseLost, RepertoryError, Retryable, SessionBusy, StoreUnavailable, Unavailable
from repertory.logs import ERROR, INFO, WARNING, note
from repertory.runtime.actor import Actor
from repertory.runtime.lifecycle import ExitFailed, ExitReason
from repertory.runtime.message import Ask, Next, ReplySlot, carry_on, fail, refuse, reply
from repertory.runtime.ref import ActorRef, Down
from repertory.runtime.spec import ChildSpec

if TYPE_CHECKING:
    from repertory.backends.telemetry_ports import CallTrace


class OpenJournal(Struct, Ask[JournalAuthor | InMemoryJournal], frozen=True, kw_only=True):
    """Answers the journal, for its one author. A persister that has failed takes no more rows from it."""


class Store(Struct, frozen=True, kw_only=True):
    """The author has handed rows over. They are written at once if `soon`, and otherwise in the next round of the event
    loop: by then the turn waits for something, such as its model, or has ended and brought its last rows, which the
    same commit takes.
    """

    soon: bool = False


class Commit(Struct, Ask[None], frozen=True, kw_only=True):
    """Answered when everything up to this record is durable; its author has handed it over.

    Errors: `Unavailable` (and `Failed`, when a person must change something first): the records wait until the store
    accepts them, and the session goes on. Others, such as `LeaseLost`: the persister starts again from what is stored.
    """

    seq: int
    patient: bool = True
    """True to wait while the store refuses; False to raise its first refusal."""
    within_s: float = math.inf
    ends: bool = False
    """True if nothing of the call follows, so that the same commit may give the session up."""


class Begin(Struct, Ask[JournalAuthor | InMemoryJournal | None], frozen=True, kw_only=True):
    """Sent when a turn has begun and not asked the model yet. Answers None when the store has confirmed the lease and,
    with `stored`, has everything that was handed over.

    If another process has written since, the session is opened again if possible and the turn's records are dropped;
    the answer is the journal that is there now. Errors: as `Commit`.
    """

    before: int
    """The last record that was handed over before the turn."""
    stored: bool = False
    within_s: float = math.inf


class VerifyLease(Struct, Ask[None], frozen=True, kw_only=True):
    """Answered when the store has confirmed the lease. Errors: as `Commit`."""

    within_s: float = math.inf


class Pause(Struct, Ask[bool], frozen=True, kw_only=True):
    """Release the lease when everything that was handed over is durable, and keep what was read. Nothing may be handed
    over until `Resume`.

    Answers True when no lease is held; False if that cannot be now, because the store refuses records or a caller
    waits: the persister goes on as before.
    """


class Resume(Struct, Ask[bool], frozen=True, kw_only=True):
    """Go on after a `Pause`. Answers False if another owner may have written since: the persister is then of no use.
    Errors: `Unavailable`.
    """

    late: bool = False
    """True if the next commit may take the session; if that fails, the session is opened again."""
    busy_by: float = math.inf
    """The latest time until which opening it again waits for another process."""


class ReadImage(Struct, Ask[Image], frozen=True, kw_only=True):
    """Answers everything that an agent needs to go on, as of now."""


class ShortenTimeouts(Struct, frozen=True, kw_only=True):
    """The session has to end soon: from now on callers wait at most this long, and the last write twice as long."""

    wait_s: float


# Messages of the persister to itself.


class TimeToLook(Struct, frozen=True, kw_only=True):
    """Something may be due: a write, another attempt, or the end of a caller's wait."""


class RoundOver(Struct, frozen=True, kw_only=True):
    """The round of the event loop in which rows were handed over has ended."""


_TIME_TO_LOOK, _ROUND_OVER = TimeToLook(), RoundOver()


class TailRead(Struct, frozen=True, kw_only=True):
    """The end of the stored journal, read after the store had refused a write that it may have stored before."""

    refused: LeaseLost
    last: Row | None = None
    """The last stored row."""
    error: RepertoryError | None = None


_WRITING_SHARE = 0.8
"""Share of the stop time for the last write; the rest is for releasing the lease."""
_EARLY_S = 0.001
"""Seconds that a timer may fire too early, by the clock that is read when it has fired."""

PersisterMessage: TypeAlias = (
    OpenJournal
    | Store
    | Commit
    | Begin
    | Take
    | VerifyLease
    | Pause
    | Resume
    | ReadImage
    | ReadHistory
    | ReadMessages
    | ReadRecords
    | ReadRun
    | ShortenTimeouts
) | (TimeToLook | RoundOver | TailRead | Written | WriteRefused)


class PersisterSettings(Struct, frozen=True, kw_only=True):
    """The agent that a persister writes for, and its time limits."""

    session_id: str
    agent_id: str
    takeover: bool = False
    """Fence a live owner instead of refusing to start."""
    joins: bool = False
    """True if another agent of this process has the session, for which this one works."""
    patience: StorePatience | None = None
    """The agent's own retry policy, instead of the host's."""
    busy_by: float = math.inf
    """The end of the wait for another process when the journal is opened, on the event loop's clock."""
    stop_timeout_s: float = 10.0
    """Seconds that a stopping session waits for its last commit."""


class _Waiter(Struct, kw_only=True, eq=False):
    """An asker that waits for a durable record, for a confirmed lease, or for both."""

    slot: ReplySlot[JournalAuthor | InMemoryJournal | None] | Taking
    since: float
    within_s: float
    """The longest wait; the persister's own limit may be shorter."""
    seq: int = 0
    """The record that has to be durable; 0 for none."""
    write: int = 0
    """The number of the first write that confirms the lease for this asker; 0 if it needs none."""
    patient: bool = True
    """True to wait while the store refuses."""
    before: int | None = None
    """The last record before the turn; None for askers that begin no turn."""
    ends: bool = False
    """True if the write may give the session up."""
    begins: bool = False
    """True if the write waits for the end of the round, for what the turn adds until then."""

    def until(self, patience_s: float) -> float:
        return self.since + min(patience_s, self.within_s)


def persister_spec(
    settings: PersisterSettings, keeper: Durable | InMemoryJournal, entropy: Callable[[int], bytes]
) -> ChildSpec:
    return ChildSpec(
        name="persister",
        factory=partial(SessionPersister, settings, keeper, entropy),
        # An actor's ten seconds would end a start that waits 30 s for another process, as `busy_s` says.
        start_timeout_s=math.inf,  # Stores, and the wait for another process, have bounds of their own.
        stop_timeout_s=settings.stop_timeout_s,
    )


class SessionPersister(Actor[PersisterMessage]):
    """Makes its author's rows durable, in order.

    The next action follows from the state alone: `_go_on` computes it after every message.
    """

    rests: ClassVar[bool] = True

    def __init__(
        self, settings: PersisterSettings, keeper: Durable | InMemoryJournal, entropy: Callable[[int], bytes]
    ) -> None:
        self._settings = settings
        self._keeper = keeper
        self._entropy = entropy
        self._journal: JournalAuthor | InMemoryJournal = (
            keeper if isinstance(keeper, InMemoryJournal) else InMemoryJournal()
        )
        ids = settings.session_id, settings.agent_id
        durable = isinstance(keeper, Durable)
        self._buffer = keeper.buffer_of(*ids, settings.patience) if durable else CommitBuffer(*ids)
        self._lease = PausableLease(keeper.leases if durable else None, self._buffer)
        self._durable_seq = 0
        self._waiters: list[_Waiter] = []
        self._write: WriteRows | None = None
        """The write that the writer has in hand; an answer to another one was for an earlier incarnation."""
        self._trace: CallTrace | None = None
        """The trace of the call that the waiting rows belong to; of the last one, if there are several."""
        self._writes = 0
        """The number of writes begun."""
        self._busy_by = settings.busy_by
        self._looking = False
        """True while the tail of the journal is read, after a refused write that may have been stored before."""
        self._unasked = False
        """True if the waiting rows are to be written though no asker waits for them."""
        self._again_at = -math.inf
        """The time at which a refused write is repeated, unless a new asker comes first."""
        self._failures = 0
        """Failed writes since the last successful one."""
        self._unsure = False
        """True if a refused write may have been stored after all."""
        self._rounds = False
        """True while a `RoundOver` is due."""
        self._patience_s = 0.0
        self._last_s = settings.stop_timeout_s * _WRITING_SHARE
        """Seconds for the last write of a stopping session, its repetitions included."""
        self._looks_at = math.inf
        """The time of the next `TimeToLook`."""

    def summary(self) -> object:
        buffer = self._buffer
        seq = self._journal.fold.last_seq
        state: dict[str, object] = {"seq": seq, "durable": self._durable_seq, "waiting": buffer.count}
        if buffer.error is not None:
            state |= {"waiting_bytes": buffer.size_bytes, "failures": self._failures, "error": str(buffer.error)}
        return state

    async def on_start(self) -> None:
        """Take the lease and read the stored journal; append the rows that an earlier incarnation could not store."""
        if isinstance(self._keeper, InMemoryJournal):
            return
        settings = self._settings
        # A writer that is killed answers nothing: the persister waited for ever, and its session stored nothing any
        # more.
        self.context.watch(cast("ActorRef[object]", self._keeper.writer), restarts=True)
        self._patience_s = (settings.patience or self._keeper.buffers.patience).wait_s
        again = isinstance(self._buffer.failed, LeaseLost | SessionBusy)  # Neither fence the new owner nor wait for it.
        await self._open(self._keeper, takeover=settings.takeover and not again, wait=not again)
        self._buffer.failed = None

    async def _open(self, keeper: Durable, *, takeover: bool, wait: bool = True) -> None:
        session_id, agent_id = self._settings.session_id, self._settings.agent_id
        patience, by = self._settings.patience, self._busy_by if wait else -math.inf
        leases = keeper.leases
        lease, rows = await leases.acquire_and_load(
            session_id, agent_id, takeover=takeover, patience=patience, by=by, joins=self._settings.joins
        )
        # Held from here on, so that every error below gives it back.
        self._lease.held, self._buffer.takes = lease, False
        try:
            if isinstance(rows, RepertoryError):
                raise rows
            all_rows = [*rows, *self._take_over_rows(rows)]
            restoring = partial(restore, all_rows, session_id=session_id)
            # Folding megabytes would hold every session of the process up; a thread for a small journal costs more than
            # the fold.
            large = size_of(all_rows) > OFF_LOOP_BYTES
            restored = await run_in_thread(restoring) if large else restoring()
            sealing = keeper.store.capabilities.sealing
            seal = None if sealing is None else await sealing.seal(session_id)
        # Also for a cancelled start: a lease that nobody knows of would keep every other process out until it ends.
        except BaseException:
            self._lease.held = None
            with suppress(RepertoryError):
                await keeper.leases.release(lease)
            raise
        appender = Appender(agent_id, restored.fold, restored.link, self._entropy, seal)
        self._journal = author = JournalAuthor(appender, all_rows)
        # Of the rows that the store has; those taken over from the buffer are not durable yet.
        self._durable_seq = rows[-1].seq if rows else 0
        author.repair(restored.repaired)
        author.hand_over()
        self._take_handed_over()
        self._write_what_waits()
        if restored.repaired:
            repaired = len(restored.repaired)
            note(self.context.logger, WARNING, "stored messages were repaired", messages=repaired, **self._ids)

    async def on_ready(self) -> None:
        self._go_on()

    async def on_down(self, down: Down) -> Next:
        """The writer has ended: what it had in hand is lost, or its answer is. It is told again what to write, and the
        store, or a look at it, says what is stored.
        """
        # Only a write in hand is concerned: rows that wait are handed to the next writer anyway.
        if self._write is None:
            return carry_on()
        self._write = None
        error = StoreUnavailable("the writer of the store has ended before it answered", **self._ids)
        # The commit may have happened: told as unavailable, it is repeated unchanged, and the store recognises it.
        then = await self._note_refused(error, final=not down.comes_back)
        self._go_on()
        return then

    def handle_now(self, message: PersisterMessage) -> Next | None:
        # First of all, whatever the message: its sender's rows may have been handed over while the mailbox was full.
        self._take_handed_over()
        # A pause ends with a release, which has to be awaited.
        then = self._handled(message) if self._lease.pausing is None else None
        if then is not None:
            self._go_on()
        return then

    async def handle(self, message: PersisterMessage) -> Next:
        then = self._handled(message)
        if then is None:
            then = await self._handled_by_store(message)
        self._go_on()
        if self._lease.pausing is not None:
            refused = bool(self._waiters) or self._buffer.error is not None or self._buffer.failed is not None
            if refused or not (self._buffer.waits or self._busy):
                await self._lease.end_pause(stored=not refused)
        return then

    def _handled(self, message: PersisterMessage) -> Next | None:
        """The next step of the actor; None for a message whose handling waits for the store."""
        match message:
            case Commit(seq=seq, patient=patient):
                self._trace = trace_here() or self._trace
                return self._wait(message.within_s, seq=seq, patient=patient, ends=message.ends)
            case Take(before=before, pending=pending):
                self._trace = trace_here() or self._trace
                waiter = _Waiter(slot=pending, since=self.context.clock(), within_s=message.within_s, before=before)
                # `begins` holds the write back until the round is over, so that the whole beginning of the turn is in
                # the one commit that takes the session.
                waiter.seq, waiter.write, waiter.begins = self._handed_seq, self._writes + 1, True
                self._waiters.append(waiter)
                self._rounds, self._again_at = True, -math.inf
                self.context.after(0.0, _ROUND_OVER, key="round")
                return carry_on()
            case Store(soon=soon):
                self._trace = trace_here() or self._trace
                # The end of a round and no time: nobody should wait for an idle disk, and a turn whose model answers at
                # once is one commit.
                if soon or not self._buffer.waits:
                    self._write_what_waits()
                elif not self._rounds:
                    self._rounds = True
                    self.context.after(0.0, _ROUND_OVER, key="round")
                return carry_on()
            case RoundOver():
                self._rounds = False
                self._write_what_waits()
                for waiter in self._waiters:
                    waiter.begins = False
                return carry_on()
            # By identity: two writes with equal rows are still two, and the first one's answer says nothing of the
            # second.
            case Written() | WriteRefused() if message.of is not self._write:
                return carry_on()  # For an earlier incarnation.
            case Written(seq=seq):
                self._write = None
                if message.of.batch.take or message.of.batch.release:
                    self._note_owner(message.of.batch, released=message.released)
                # One write runs at a time, so this is the last one: it confirms the lease for all who asked before it
                # began.
                self._note_written(seq, proved=self._writes)
                return carry_on()
            case OpenJournal():
                return reply(self._journal)
            case Begin(before=before, stored=stored):
                seq = self._handed_seq if stored else 0
                # The next write and not the running one: that may have been sent before the caller asked.
                return self._wait(message.within_s, seq=seq, write=self._writes + 1, before=before)
            case VerifyLease():
                return self._wait(message.within_s, write=self._writes + 1)
            case Pause() | Resume():
                waits = self._busy or self._waiters
                done = not waits and self._lease.change_now(pause=isinstance(message, Pause))
                return reply(True) if done else None
            case WriteRefused() | ReadHistory() | ReadMessages() | ReadRecords() | ReadRun():
                return None
            case TailRead(refused=refused):
                self._looking = False
                error = self._note_tail(message)
                if error is refused:
                    return self._start_over(refused)
                if error is not None:
                    self._try_later(error)
                return carry_on()
            case TimeToLook():
                # The timers have run out; `_go_on` sets the next ones.
                self._looks_at = math.inf
                return carry_on()
            case ShortenTimeouts(wait_s=wait_s):
                # Never longer than before: several drains may ask, each with less time.
                self._patience_s, self._last_s = min(self._patience_s, wait_s), min(self._last_s, 2 * wait_s)
                return carry_on()
            case ReadImage():
                return reply(self._journal.fold.image())
            case _:
                assert_never(message)

    async def _handled_by_store(self, message: PersisterMessage) -> Next:
        match message:
            case WriteRefused(error=error):
                self._write = None
                return await self._note_refused(error)
            case Pause():
                if self._buffer.error is not None or self._waiters or self._lease.pausing is not None:
                    return reply(False)
                self._lease.pausing = self.context.defer()
                self._write_what_waits()
                return carry_on()
            case Resume(late=late):
                self._busy_by = message.busy_by
                asked: Awaitable[object] = self._lease.resume(late=late)
            case _:
                assert isinstance(message, ReadHistory | ReadMessages | ReadRecords | ReadRun)
                asked = read_for(message, self._keeper, self._settings.session_id, self._buffer)
        try:
            return reply(await asked)
        except RepertoryError as error:  # Only the asker is told; the persister goes on.
            return refuse(error)

    def stop_now(self, reason: ExitReason) -> bool:
        """Needs the store only if rows are not durable, or the lease has to be released by itself."""
        keeper, lease = self._keeper, self._lease
        if isinstance(keeper, InMemoryJournal):
            return True
        if isinstance(reason, ExitFailed):
            # The lease may be lost, and releasing it could end that of the next owner; the next start acquires anew,
            # which fences this one.
            lease.forget()
        elif lease.held is not None:
            if isinstance(self._journal, JournalAuthor):
                # An agent that was killed has not handed its last rows over.
                self._journal.hand_over()
                self._take_handed_over()
            if self._busy or self._buffer.waits or not lease.release_with_others():
                return False
        if lease.paused is not None:  # With nothing left to write.
            keeper.buffers.forget(keeper.store.name, self._buffer)
        return True

    async def on_stop(self, reason: ExitReason) -> None:
        """Write the remaining rows, then give the session up. Rows that cannot be written stay in the buffer."""
        keeper, lease = self._keeper, self._lease.held
        assert isinstance(keeper, Durable)  # Otherwise it has stopped at once.
        assert lease is not None
        # Else whoever joins the session would wait for the answer to a commit that this actor takes no more.
        keeper.leases.end_release(lease)  # Nobody hears of a commit that is under way.
        # Less than the actor's stop time: a lease that is not released keeps other processes out longer than rows that
        # are late.
        with anyio.move_on_after(self._last_s):
            await self._write_last(keeper, lease)
        buffer = self._buffer
        keeper.buffers.forget(keeper.store.name, buffer)
        if buffer.count:
            text = "records could not be stored"
            note(self.context.logger, ERROR, text, buffer.error, records=buffer.count, **self._ids)
        with suppress(Retryable):  # It is released when another process asks for it, or when the store is closed.
            await keeper.leases.release(lease)

    def _take_over_rows(self, rows: Sequence[Row]) -> list[Row]:
        """The rows that an earlier incarnation could not store; empty if another process has written since."""
        buffer = self._buffer
        # By links: equal numbers prove nothing, since another process may have written rows with the same ones.
        unstored = following(rows, buffer.rows, first_link(self._settings.agent_id))
        if unstored is None:
            fields = {"session": self._settings.session_id, "records": buffer.count}
            self._abandon(LeaseLost("another process has written to the session since", **fields))
        buffer.sent, buffer.unsent, buffer.error = (), unstored or [], None
        # A refusal is then looked at before it is believed (`_note_refused`).
        self._unsure = bool(unstored)  # They may have been stored.
        buffer.put_back()
        return buffer.unsent

    @property
    def _ids(self) -> dict[str, str]:
        return {"session": self._settings.session_id, "agent": self._settings.agent_id}

    def _abandon(self, error: RepertoryError) -> None:
        lost = self._buffer.abandon(error)
        if lost is not None:
            note(self.context.logger, ERROR, "answered turns are lost", error, turns=lost.turns, **self._ids)

    @property
    def _handed_seq(self) -> int:
        return self._journal.handed_seq if isinstance(self._journal, JournalAuthor) else 0

    def _take_handed_over(self) -> None:
        journal, buffer = self._journal, self._buffer
        if not isinstance(journal, JournalAuthor):
            return
        # The latest one counts: it was computed with the latest rows.
        handed, due = journal.take()
        buffer.due = due or buffer.due
        for each in handed:
            if isinstance(each, Row):
                buffer.unsent.append(each)
            else:
                buffer.redact(each)

    def _wait(
        self,
        within_s: float,
        *,
        seq: int = 0,
        write: int = 0,
        patient: bool = True,
        before: int | None = None,
        ends: bool = False,
    ) -> Next:
        """Add a waiting asker. The store is tried for it at once, even if it has just refused."""
        # Without a lease there is nothing that could be stored: a conversation in memory, or a paused one.
        if self._lease.held is None or (seq <= self._durable_seq and not write):
            return reply(None)
        waiter = _Waiter(slot=self.context.defer(), since=self.context.clock(), within_s=within_s, seq=seq, write=write)
        waiter.patient, waiter.before, waiter.ends = patient, before, ends
        self._waiters.append(waiter)
        # A new caller has its own patience: it must not wait out the backoff of those before it.
        self._again_at = -math.inf
        return carry_on()

    # What follows from the state.

    def _go_on(self) -> None:
        """After every change: answer the askers whose wait is over, begin a write if one is due, and set the next
        timer.
        """
        lease = self._lease.held
        if lease is None:
            return
        # asyncio runs timers up to its clock's resolution early, and a look that finds nothing due yet would set the
        # same timer again.
        clock = self.context.clock()
        now = clock + _EARLY_S
        if late := [waiter for waiter in self._waiters if waiter.until(self._patience_s) <= now]:
            error = self._not_stored_yet(min(waiter.since for waiter in late))
            self._buffer.error = self._buffer.error or error
            self._fail(late, error)
        due_at = math.inf if self._busy else self._write_due_at()
        if due_at < math.inf and due_at <= now:
            self._begin_write(lease)
            due_at = math.inf
        look_at = min([due_at, *(waiter.until(self._patience_s) for waiter in self._waiters)])
        if look_at < self._looks_at:  # One timer for the write and all askers; it may outlast them.
            self._looks_at = look_at
            self.context.after(look_at - clock, _TIME_TO_LOOK, key="look")

    def _write_due_at(self) -> float:
        """The time at which the next write is to begin; infinity if there is nothing to do."""
        # Its turn is still adding to the commit that takes the session.
        if any(waiter.begins for waiter in self._waiters):
            due_at = math.inf
        elif self._buffer.waits:
            due_at = -math.inf if self._waiters or self._unasked else math.inf
        else:
            # A commit without rows proves the lease: its condition is the generation. It also tells whether a store
            # that refused takes records again.
            proving = any(waiter.write for waiter in self._waiters)
            due_at = -math.inf if proving or self._buffer.error is not None else math.inf
        return max(due_at, self._again_at)

    @property
    def _busy(self) -> bool:
        """True while the store has not said what became of the rows that were sent."""
        return self._write is not None or self._looking

    def _begin_write(self, lease: Lease) -> None:
        """Hand all rows to the writer. A refused write is repeated first, unchanged."""
        buffer = self._buffer
        if not (buffer.waits or any(waiter.write for waiter in self._waiters)):
            buffer.error = None
            return
        assert isinstance(self._keeper, Durable)
        # Otherwise a refused write is repeated, and it must have the very rows of the first time: stores recognise it
        # by them.
        if not buffer.sent:
            buffer.take_all()
        self._unasked, self._again_at = False, -math.inf
        if self._rounds:
            self._rounds = False
            self.context.cancel_timer("round")
        self._writes += 1
        trace, self._trace = self._trace, None
        # Where commits give sessions up, the last one of a call saves the request of a release.
        release = self._keeper.leases.by_commit
        if release and self._lease.pausing is None:
            release = any(one.ends for one in self._waiters) and self._keeper.ends()
        batch = buffer.batch(lease, release=release and self._keeper.leases.begin_release(lease))
        self._write = WriteRows(batch=batch, reply_to=self.context.self_ref, trace=trace)
        # A tell: the answer comes as a message, and callers' waits end in time meanwhile.
        self._keeper.writer.tell(self._write)

    def _write_what_waits(self) -> None:
        """Write the waiting rows without a further delay."""
        self._unasked = self._buffer.waits

    def _fail(self, waiters: Sequence[_Waiter], error: RepertoryError) -> None:
        # Taken out before they are told: the end of a wait may bring the next question in the same step.
        self._waiters = [waiter for waiter in self._waiters if waiter not in waiters]
        for waiter in waiters:
            waiter.slot.fail(error)

    # What the store answers.

    def _note_owner(self, batch: Batch, *, released: bool) -> None:
        """The store has taken this batch, which may have taken the session or given it up."""
        assert isinstance(self._keeper, Durable)
        # The next commit has to take the session again before it may store anything.
        self._buffer.takes = released
        self._keeper.leases.note_commit(batch, released=released)

    def _note_written(self, seq: int, *, proved: int = 0) -> None:
        """Everything up to `seq` is stored. `proved`: the number of the write that confirmed the lease; 0 for none."""
        if self._failures:
            note(self.context.logger, INFO, "the store takes records again", failures=self._failures, **self._ids)
        self._failures, self._unsure = 0, False
        self._durable_seq = max(self._durable_seq, seq)
        self._buffer.stored(seq)
        # Rows that gathered during the write are written now: their round is long over.
        self._write_what_waits()
        waiting, self._waiters = self._waiters, []
        for waiter in waiting:
            if waiter.seq <= self._durable_seq and waiter.write <= proved:
                waiter.slot.reply(None)
            else:
                self._waiters.append(waiter)

    async def _note_refused(self, error: RepertoryError, *, final: bool = False) -> Next:
        if self._lease.held is not None and isinstance(self._keeper, Durable):
            self._keeper.leases.end_release(self._lease.held)
        # The first attempt may have been stored without an answer. Its rows then stand where the second wants to go,
        # which looks just like another owner's.
        if isinstance(error, LeaseLost) and self._unsure and self._buffer.sent:
            self._looking = True
            self.context.job(self._look, error, name="look")  # Beside it, callers' waits still end in time.
            return carry_on()
        verdict = OutageVerdict.GIVE_UP if final else verdict_on(error)
        if verdict is OutageVerdict.GIVE_UP:
            return await self._open_again(error)
        # From now on these rows may be stored, whatever the store says next.
        self._unsure = True
        self._try_later(error)
        # Waiting does not change missing rights or a missing bucket, so nobody waits; the rows are kept, since a person
        # may.
        if verdict is OutageVerdict.TELL:
            self._fail(self._waiters, error)
        else:
            impatient = [waiter for waiter in self._waiters if not waiter.patient]
            self._fail(impatient, self._not_stored_yet(self.context.clock()))
        return carry_on()

    def _try_later(self, error: RepertoryError) -> None:
        if not self._failures:
            note(self.context.logger, WARNING, "the store takes no records", error, **self._ids)
        self._unasked, self._again_at = True, self.context.clock() + self._pause_s(error)

    def _pause_s(self, error: RepertoryError) -> float:
        """Count a failed write; the pause in seconds before the next."""
        self._failures += 1
        self._buffer.error = error
        return backoff_s(error, self._failures, self.context.rng.uniform(0.0, 1.0))

    async def _look(self, refused: LeaseLost) -> None:
        self.context.self_ref.tell(await self._read_tail(refused))

    async def _read_tail(self, refused: LeaseLost) -> TailRead:
        assert isinstance(self._keeper, Durable)
        try:
            rows = await self._keeper.store.load(self._settings.session_id, self._settings.agent_id)
        except RepertoryError as error:
            return TailRead(refused=refused, error=error)
        return TailRead(refused=refused, last=rows[-1] if rows else None)

    def _note_tail(self, tail: TailRead) -> RepertoryError | None:
        """Note how much of a refused write is stored. Returns why it counts as failed; None if some of it is stored."""
        sent = self._buffer.sent
        # The link of the last stored row is that of one of ours, or it is not: a proof, since each link covers all
        # before it.
        stored = stored_of(sent, tail.last) if tail.error is None else 0
        if not stored:
            return tail.error or tail.refused
        self._buffer.put_back()
        self._note_written(sent[stored - 1].seq)
        return None

    async def _write_last(self, keeper: Durable, lease: Lease) -> None:
        """Repeat the last write until the buffer is empty or the store refuses for good. The caller cancels it when
        time is up. Rows that remain stay in the buffer, with the reason. A write that still runs reaches the store
        first.
        """
        # The backoff begins anew: there are seconds left, and the last pause may be longer than them.
        buffer, self._failures = self._buffer, 0
        while buffer.waits:
            buffer.take_all()
            error: RepertoryError | None
            batch = buffer.batch(lease)
            try:
                self._note_written(await keeper.writer.ask(WriteLast(batch=batch), timeout_s=math.inf))
                if batch.take:
                    self._note_owner(batch, released=False)
                continue
            except LeaseLost as refused:
                error = self._note_tail(await self._read_tail(refused)) if buffer.sent else refused
            except RepertoryError as refused:
                error = refused
            if error is None:
                continue
            pause_s = self._pause_s(error)
            if verdict_on(error) is OutageVerdict.GIVE_UP:
                return
            await anyio.sleep(pause_s)

    def _not_stored_yet(self, since: float) -> Unavailable:
        buffer = self._buffer
        text = "the store has not taken what was said: it waits, and is stored when the store is back; try again later"
        error = StoreUnavailable(
            text,
            session=self._settings.session_id,
            waited_s=round(self.context.clock() - since, 1),
            records=buffer.count,
            bytes=buffer.size_bytes,
            cause=str(buffer.error or "no answer"),
        )
        error.__cause__ = buffer.error
        return error

    async def _open_again(self, error: RepertoryError) -> Next:
        """Take in what another process has written, and let a turn that has not asked its model yet begin again.
        Otherwise start over.
        """
        # Only a turn of which nothing is stored can begin again as if it had never begun.
        begun = next((one for one in self._waiters if one.before is not None and one.before <= self._durable_seq), None)
        keeper, takes = self._keeper, self._buffer.takes
        if begun is not None and takes and begun.before != self._durable_seq:
            begun = None  # A part of the turn is stored, which goes on with it.
        if not (isinstance(error, LeaseLost) and begun and self._lease.held and isinstance(keeper, Durable)):
            return self._start_over(error)
        self._buffer.abandon(error)
        self._lease.forget()
        pending = begun.slot if isinstance(begun.slot, Taking) else None
        try:
            with anyio.CancelScope() as waiting:
                if pending is not None:
                    pending.waiting = waiting
                # An owner that was fenced does not wait for the next one: its caller gets `LeaseLost` at once. One that
                # had given the session up may wait.
                wait = takes and (pending is None or pending.patient)
                await self._open(keeper, takeover=takes and self._settings.takeover, wait=wait)
        except RepertoryError as refused:
            # Who had a lease hears how it was lost; who had given it up hears who has it now.
            return self._start_over(refused if takes else error)
        if waiting.cancelled_caught:
            return self._start_over(error)
        self._again_at = -math.inf
        self._waiters.remove(begun)
        self._fail(self._waiters, error)
        begun.slot.reply(self._journal)
        return carry_on()

    def _start_over(self, error: RepertoryError) -> Next:
        """The rows cannot be stored: tell the askers, and restart from what is stored."""
        self._fail(self._waiters, error)
        self._abandon(error)
        self._buffer.failed = error
        return fail(error)
