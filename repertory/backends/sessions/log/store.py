"""Sessions as logs in a folder.

    journals/<session>/owner         who owns the session (`owner_record.py`); beside snapshots, <session>/journal/owner
    journals/<session>/journal.log   its commits (`core/journal/log_frames.py`)
    pending/journals/<session>/...      markers of pending work, as beside journals on objects
    quarantine/journals/<session>/   what was set aside

A commit is one write and one sync. A session is taken and given up by a lock of the kernel, on the event loop.
"""

from __future__ import annotations

import errno
import math
import os
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import AsyncExitStack, contextmanager, suppress
from dataclasses import replace as dataclass_replace
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Protocol, TypeVar
from weakref import WeakKeyDictionary

import anyio
from anyio.lowlevel import checkpoint
from msgspec.structs import replace

from repertory.backends.folders import RootFolder, make_folders, refuse_link
from repertory.backends.owning_thread import OwningThread
from repertory.backends.ports import (
    Batch,
    IdPage,
    Inspection,
    Lease,
    ObjectStore,
    OwnedRows,
    Positions,
    SalvagedRows,
    SessionInfo,
    SessionStore,
    StoreCapabilities,
    StoreRepair,
    StoreSharing,
    Waking,
    WorkQuery,
    not_again,
    owned_rows,
    release_each,
)
from repertory.backends.sessions.journal.format import JOURNALS, Layout, SessionKeys
from repertory.backends.sessions.journal.pending_work import DueMarkers, SessionDebts, SessionOwner
from repertory.backends.sessions.liveness import Liveness
from repertory.backends.sessions.log.log_file import (
    LogEnd,
    LogReader,
    log_names,
)
from repertory.backends.sessions.log.owned_log import OwnedLog, frame_of, settle_log
from repertory.backends.sessions.log.owner_record import OWNER_FILES, OwnerFile, OwnerRecord, read_owner
from repertory.backends.sessions.log.reading import (
    read_log,
    rows_at,
    salvage,
    where_of,
)
from repertory.backends.sessions.requests import names_aside, remove_aside, side_by_side
from repertory.backends.sessions.table import (
    ON_LOOP_BYTES_MAX,
    AcquiredNow,
    CommitOutcome,
    LeaseLender,
    SessionEntry,
    SessionTable,
    StepLease,
    busy,
    check_agents,
    listed_session,
    lost,
    newest_first,
    page_by_name,
    parts_by_agent,
    position_after,
    refuse_gaps,
    unless_cancelled,
)
from repertory.backends.shields import Uncut
from repertory.backends.worker_threads import run_in_thread
from repertory.core.ids import check_id
from repertory.core.journal.log_frames import AgentEnd
from repertory.core.journal.rows import Row, size_of
from repertory.core.pending_work import DueTime, PendingWork
from repertory.core.retry import own_errors
from repertory.errors import (
    CorruptJournal,
    Invalid,
    LeaseLost,
    RepertoryError,
    StoreFailed,
    StoreNotFound,
    StoreUnavailable,
)

_TRIES = 100
_OPEN_MAX = 32
"""The logs of a group that are open at once."""
_THREADS = 4
"""The sessions of a group are committed in so many threads: disks sync several files at once."""
_ON_LOOP_MAX = 16
"""The frames that are written in one step of the event loop."""
_SLOW_S, _PAID_TIMES, _AHEAD_S = 0.001, 20, 10.0
"""Seconds that a frame may take there, how many times as long what is beyond is paid for, and how much may be owed: a
slow disk has the loop wait for a twentieth of the time, and for half a second at first. A busy machine looks like one.
"""
_OWE_EVERY_S = 1.0
"""Seconds between two looks for turns that have become due meanwhile."""
_NO_FILE = (errno.ENAMETOOLONG, errno.ENOTDIR, errno.EILSEQ, errno.ELOOP, errno.EISDIR)

T = TypeVar("T")

_Entry = SessionEntry[OwnedLog, object]


class Projection(Protocol):
    """Documents or snapshots that are written from the logs. Its methods block, and are called in worker threads."""

    def begin(self, session_id: str) -> None:
        """Called before a session gets its folder. Errors: `Invalid` if it may not have it, and those of files."""

    def committed(self, batch: Batch, window: Callable[[str], Sequence[Row]]) -> None:
        """Called after each commit of rows. Raises nothing. `window` reads the rows that opening an agent needs."""


class _Work:
    """A batch under way."""

    def __init__(self, batch: Batch, session: _Entry) -> None:
        self.batch, self.session, self.held = batch, session, session.held
        self.session_id = batch.lease.session_id
        self.writes = bool(batch.rows or batch.erase or batch.forget)
        self.dues: dict[str, DueTime] = {}
        self.noted: list[str] = []
        """The markers that were put for it."""
        self.is_written = False
        """True if its frame is in the log, and is to be brought to the disk."""
        self.error: RepertoryError | None = None

    def forget_log(self) -> None:
        if self.held is not None:
            self.held.close_log()  # Its end is unknown.

    def window(self, agent_id: str) -> Sequence[Row]:
        """The rows that opening an agent needs."""
        return () if self.held is None else self.held.load(agent_id) or ()


class LogSessionStore(SessionStore):
    """A `SessionStore` in a folder. For one event loop.

    Errors of every call: `Unavailable` (the disk is full, or the volume is gone: try again), `Failed` (no permission),
    `CorruptJournal` with session, file and offset (nothing was changed), `Invalid` after `aclose`.
    """

    def __init__(
        self,
        root: Path,
        objects: ObjectStore,
        *,
        owner: str,
        life: Liveness,
        wall: Callable[[], float],
        layout: Layout = JOURNALS,
    ) -> None:
        """`objects` are those in the same folder, for the markers of pending work, and are closed with the store.
        `owner` must be unique to this object, such as a random id. `wall` gives epoch seconds. `layout`: where the
        folders of sessions lie below the root.
        """
        self.projection: Projection | None = None
        """The documents or snapshots that follow the logs, if there are any."""
        self.lender: LeaseLender | None = self
        """The store whose leases are released and acquired at once: this one, or one above it; None: no lease is."""
        self._root = root
        self._layout = layout
        self._seen_root = RootFolder(root)
        self._objects = objects
        self._owner = check_id(owner, "owner")
        self._life = life
        self._wall = wall
        self._table: SessionTable[OwnedLog, object] = SessionTable(lambda: self.name)
        self._released: WeakKeyDictionary[Lease, OwnedLog] = WeakKeyDictionary()
        """Sessions for `_acquire_again`, each for as long as somebody keeps its lease."""
        self._acquiring = AcquiredNow()
        self._due = DueMarkers(self._objects, layout, self._owner_of, 0.0)
        self._threads = [OwningThread(f"repertory log {number}") for number in range(_THREADS)]
        """The threads of commits."""
        self._next = 0
        """The number of the thread that the next commit begins with."""
        self._slow_until = -math.inf
        """The time until which slow writes on the event loop are paid for."""

    @property
    def root(self) -> Path:
        """The folder below which everything lies."""
        return self._root

    @property
    def name(self) -> str:
        return f"log:{self._root}"

    @property
    def capabilities(self) -> StoreCapabilities:
        keeps_work = self._layout.pending_work is not None
        return StoreCapabilities(
            positions=Positions(load_at=self.load_at, load_range=self.load_range, labels=self.labels),
            waking=Waking(claim_due=self.claim_due, pending_work=self.pending_work) if keeps_work else None,
            repair=StoreRepair(
                inspect=self.inspect, salvage=self.salvage, set_aside=self.set_aside, quarantined=self.quarantined
            ),
            sharing=StoreSharing(
                asked_for=self.asked_for, listen=self._life.listen, waiting=self._life.waiting, abandon=self.abandon
            ),
            maintained=True,
            acquires_again="call",
        )

    # Owning.

    async def acquire(
        self, session_id: str, *, takeover: bool = False, load: str | None = None, again: Lease | None = None
    ) -> OwnedRows:
        """Become the owner. An earlier lease of this same object is fenced.

        Errors: `SessionBusy`, and see the class.
        """
        keys = self._keys(session_id)
        if again is not None:
            if not self.acquire_now(again):
                raise not_again(again)
            return await owned_rows(self, again, load)
        await self._life.begin()
        lease: Lease | None = None
        with Uncut():
            async with self._table.locked(session_id) as session:
                if session.held is not None:
                    session.held.let_go()
                    session.held = None
                with self._acquiring.include(session_id):
                    session.held = await self._acquire(session_id, keys, takeover)
                lease = session.held.lease
        self._due.changed(session_id)
        assert lease is not None
        return await owned_rows(self, await unless_cancelled(self, lease), load)

    async def _acquire(self, session_id: str, keys: SessionKeys, takeover: bool) -> OwnedLog:
        folder = self._root / keys.folder
        owner = OwnerFile(folder)
        # In a thread, since taking may copy a log. Taking again (`acquire_now`) never does, and runs on the loop.
        taken = await self._in_thread(partial(self._take, owner, folder, session_id, takeover), session_id)
        if taken is None:
            found = await self._in_thread(partial(read_owner, folder), session_id) or OwnerRecord()
            if found.owner is not None:
                await self._life.ask(found.owner, session_id)
            raise busy(session_id, found.owner)
        before, is_new = taken
        # "Held", and yet taken: a dead owner has left it so, or a living one was fenced by force.
        died = before.owner if before.state == "held" and before.owner != self._owner else None
        generation = owner.record.generation
        lease = StepLease(
            session_id=session_id, owner=self._owner, generation=generation, taken_from=died, lender=self.lender
        )
        debts = SessionDebts(self._objects, keys, session_id, generation, self._wall)
        if before.owner is not None and before.state == "free":
            debts.released_edition = before.edition
        return OwnedLog(lease, keys, folder, owner, debts, is_new=is_new)

    def _take(self, owner: OwnerFile, folder: Path, session_id: str, takeover: bool) -> tuple[OwnerRecord, bool] | None:
        """Lock a session's folder, which is made if need be. Returns the record of the owner before, and True if there
        is no log; or None if that owner lives and was not to be fenced.
        """
        # Refuses a root that was there and is gone: its volume is not mounted, and what is made now would be hidden
        # later.
        os.close(self._seen_root.open(create=True))
        if self.projection is not None:
            self.projection.begin(session_id)
        refuse_link(folder.parent)
        refuse_link(folder)
        # Making the folder and locking a file in it are two steps, between which somebody may delete the session.
        for _ in range(_TRIES):
            make_folders(folder)
            seen = read_owner(folder)
            # Only without a record: reading the generation out of logs costs a look into each.
            floor = 0 if seen is not None and seen.generation else self._floor(folder)
            with suppress(FileNotFoundError):  # Whoever deletes the session has just removed its folder.
                before = owner.take(self._owner, floor)
                if before is None:
                    if not takeover:
                        return None
                    before = owner.take_by_force(self._owner, floor)
                    if before is None:
                        continue
                try:
                    # While the lock is held. A log that a fenced owner may still write to must be copied before anybody
                    # reads it.
                    settle_log(owner, folder)
                except BaseException:
                    owner.give_up()
                    raise
                return before, not (owner.record.log or log_names(folder))
        raise StoreUnavailable("the session's folder is removed again and again", folder=str(folder))

    def _floor(self, folder: Path) -> int:
        """A number below the generation of the next owner, where no record has that of the last one."""
        last = 0
        for name in log_names(folder):
            with suppress(CorruptJournal, FileNotFoundError), LogReader(folder / name, "") as log:
                last = max(last, log.read_end(None).end.generation)
        # The clock, too: the record may be lost together with the logs, while a former owner still lives.
        return max(last, int(self._wall() * 1000))

    def acquire_now(self, lease: Lease) -> bool:
        """`acquire` with `again`: a lock, and a look at the record of who has owned the session since."""
        held = self._released.get(lease)
        if held is None or lease.session_id in self._acquiring:
            return False
        with suppress(OSError, RepertoryError), self._table.in_this_step(lease.session_id) as session:
            # Somebody works on the session, or this store has acquired it anew.
            if session is None or session.held is not None:
                return False
            again = held.owner.take_again()
            del self._released[lease]
            if again:
                held.debts.released_edition = held.owner.record.edition
                # With the caller's own lease: what is kept after the next release is kept as long as that one.
                session.held = replace(held, lease=lease)
            return again
        return False

    async def release(self, leases: Sequence[Lease]) -> Sequence[RepertoryError | None]:
        return await release_each(lambda lease: self._table.release(lease, self._release), leases)

    def release_now(self, lease: Lease) -> bool:
        """`release` of a session with a log, where nothing is owed."""
        with self._table.in_this_step(lease.session_id) as session:
            held = None if session is None else session.held
            if session is None or held is None or held.lease != lease:
                return False
            # Both need more than a step: a marker has to be put, or an empty folder removed.
            if held.debts.has_late or not held.owner.record.log:
                return False
            self._give_up(session, held)
            return True

    async def _release(self, session: _Entry) -> None:
        held = session.held
        assert held is not None
        if held.log is None and not held.owner.record.log:  # It frees the session as well.
            session.drop()
            await self._in_thread(held.remove_empty, held.lease.session_id)
            self._life.freed(held.lease.session_id)
        else:
            await held.debts.owe_late(leaving=True)
            self._give_up(session, held)

    def _give_up(self, session: _Entry, held: OwnedLog) -> None:
        session.drop()
        held.owner.give_up()
        self._due.changed(held.lease.session_id)
        # A copy, since a value that held its own key would keep it alive.
        self._released[held.lease] = replace(held, lease=replace(held.lease))
        self._life.freed(held.lease.session_id)

    async def asked_for(self) -> Sequence[str]:
        holding = self._table.held()
        asked = {*(await self._life.asked_for() if holding or self._acquiring else ())}
        return sorted(asked & (holding.keys() | self._acquiring.keys()))

    # Commits.

    async def append(self, batches: Sequence[Batch]) -> Sequence[CommitOutcome]:
        """Commit one group; one outcome per batch, in order. Cancellation waits for all of it.

        Small frames are written on the event loop: a thread would wait for the interpreter, which a busy loop holds,
        and a process that is killed meanwhile would lose them. A few threads bring them to the disk.
        """
        check_agents(batches)
        with Uncut():
            async with AsyncExitStack() as stack:
                # Sorted, so that two groups that want the same locks cannot wait for each other.
                ids = sorted({batch.lease.session_id for batch in batches})
                sessions = {each: await stack.enter_async_context(self._table.locked(each)) for each in ids}
                works = [_Work(batch, sessions[batch.lease.session_id]) for batch in batches]
                # All markers before all frames: they are requests of their own, and the frames are then written in few
                # steps.
                due = [work for work in works if await self._prepare(work)]
                behind = set[str]()
                try:
                    for number, work in enumerate(due, 1):
                        if work.session_id not in behind:  # Batches of a session are written in their order.
                            self._write_now(work)
                        if not work.is_written:
                            behind.add(work.session_id)
                        # A group of a thousand sessions would need a thousand descriptors. Its first 32 are kept open,
                        # to be synced.
                        if number > _OPEN_MAX and work.held is not None and work.held.log is not None:
                            work.held.log.close()  # Until it is synced.
                        if not number % _ON_LOOP_MAX:
                            await checkpoint()
                    # One session goes to one thread with all its batches, so that these are synced in their order.
                    thread = {session_id: number % _THREADS for number, session_id in enumerate(ids, self._next)}
                    self._next += len(ids)
                    parts = [[work for work in due if thread[work.session_id] == at] for at in range(_THREADS)]
                    calls = zip(self._threads, parts, strict=True)
                    await side_by_side([partial(to.run, partial(self._commit, part)) for to, part in calls if part])
                except BaseException:
                    # It is unknown which frames are on the disk. Each log is read again from its last acknowledged
                    # frame.
                    for work in due:
                        work.forget_log()
                    raise
                return [await self._outcome(work) for work in works]
        raise AssertionError

    def _write_now(self, work: _Work) -> None:
        """Write a small frame for which nothing must be read, or synced, before. A slow disk gets few of them."""
        held, batch, began = work.held, work.batch, anyio.current_time()
        # The loop has waited for the disk lately, and owes the program its time back: threads write for a while.
        if held is None or self._slow_until > began + _AHEAD_S:
            return
        is_ready = held.is_new if held.log is None else held.log.is_ready_for(batch.rows)
        # Reading the window, syncing an earlier frame and rewriting a log may take long.
        if not is_ready or batch.erase or batch.forget or not 0 < size_of(batch.rows) <= ON_LOOP_BYTES_MAX:
            return
        self._attempt(work, self._write, early=True)
        if (slow_s := anyio.current_time() - began - _SLOW_S) > 0:
            self._slow_until = max(self._slow_until, began) + slow_s * _PAID_TIMES

    async def _prepare(self, work: _Work) -> bool:
        """True if the batch is to be committed in a thread."""
        held, batch = work.held, work.batch
        if held is None or held.lease != batch.lease:
            work.held, work.error = None, lost(batch.lease)
            return False
        work.dues = {agent_id: DueTime(agent_id=agent_id) for agent_id in batch.forget}
        # Nothing to ask anybody; whether the session is still ours, the thread sees.
        if batch.due is None and work.writes:
            return True
        try:
            with own_errors(work.session_id), self._errors(work.session_id):
                if batch.due is not None:
                    work.dues |= {batch.due.agent_id: batch.due}
                    work.noted = await held.debts.owe(work.dues)
                return work.writes or not held.owner.is_mine()  # To prove the lease is a look at one name.
        except RepertoryError as error:
            work.error = error
        return False

    async def _outcome(self, work: _Work) -> CommitOutcome:
        held = work.held
        if held is not None and work.error is None:
            await held.debts.settle(work.dues)
            ends = {} if held.log is None else held.log.end.ends
            return position_after(work.batch, lambda agent_id: ends[agent_id].seq if agent_id in ends else 0)
        if held is not None and isinstance(work.error, LeaseLost):
            await held.debts.take_back(work.noted)
            if work.session.held is held and not held.owner.is_mine():
                held.let_go()
                work.session.held = None
        return work.error or lost(work.batch.lease)

    def _commit(self, works: Sequence[_Work]) -> None:
        """Write what is not written yet, bring it to the disk, and have the documents follow. Blocking.

        A log has one frame at a time that is not synced: what a crash leaves of two would be damage.
        """
        # Write and sync of one batch, before the next is written: a log has never two frames that are not synced.
        for work in works:
            for step in (self._write, self._sync):
                if work.error is None:
                    self._attempt(work, step)
        # All syncs before any document: callers of the group wait for both, and only the first must not be lost.
        for work in works:
            if work.error is None and self.projection is not None and work.batch.rows:
                self.projection.committed(work.batch, work.window)

    def _attempt(self, work: _Work, step: Callable[[_Work, OwnedLog], None], *, early: bool = False) -> None:
        held = work.held
        assert held is not None
        try:
            # `used` keeps `abandon`, in another thread, from closing files whose numbers another file could get at
            # once.
            with own_errors(work.session_id), self._errors(work.session_id), held.used:
                try:
                    step(work, held)
                except FileNotFoundError as error:
                    if early:  # The thread says what is gone.
                        return
                    # Our record has its name and the log has not: somebody has removed the log alone.
                    if held.owner.is_mine():
                        raise held.lost() from error
                    os.close(self._seen_root.open(create=False))  # Says so if the whole volume is gone.
                    raise lost(work.batch.lease) from None
        except RepertoryError as error:
            work.error = error
            if not isinstance(error, LeaseLost):  # A refusal hinders no other batch of the session.
                work.forget_log()

    def _write(self, work: _Work, held: OwnedLog) -> None:
        batch = work.batch
        if work.is_written:
            return
        if not held.owner.is_mine():
            raise FileNotFoundError
        log = held.opened()
        ends = {} if log is None else log.end.ends
        for agent_id, part in parts_by_agent(batch).items():
            last_seq = ends[agent_id].seq if agent_id in ends else 0
            refusal = refuse_gaps(batch.lease.session_id, part.rows, last_seq)
            if refusal is not None:
                raise refusal
        frame = frame_of(batch, LogEnd() if log is None else log.end, self._wall())
        if batch.erase or batch.forget:
            held.rewrite(batch, frame)
        else:
            (log or held.begin()).write(frame)
        work.is_written = True

    def _sync(self, work: _Work, held: OwnedLog) -> None:
        log = held.sync()
        if not held.owner.is_mine():
            # The next owner has copied the log before that write, or after it.
            text = "the session was taken over during the commit; open it again to see what is stored"
            raise StoreUnavailable(text, session=work.session_id)
        # After the sync: the record must never claim a frame that a crash could undo.
        held.owner.note(log.end.last)
        # Between commits no log is open, since a process may hold more sessions than it may have open files.
        log.close()

    # Reading.

    async def load(self, session_id: str, agent_id: str, *, whole: bool = False) -> Sequence[Row]:
        check_id(agent_id, "agent id")
        # An owner knows where its window begins, and reads nothing before it.
        if not whole:
            async with self._table.locked(session_id) as session:
                held = session.held
                with Uncut():
                    rows = None if held is None else await self._in_thread(partial(held.load, agent_id), session_id)
                    if rows is not None:
                        return rows
        with Uncut():
            return await self._read(session_id, agent_id, partial(LogReader.rows_of, whole=whole))
        raise AssertionError

    async def load_at(self, session_id: str, agent_id: str, seq: int) -> Sequence[Row]:
        """The rows, as the port says, found by marks in the frames."""
        return await self._read(session_id, agent_id, lambda log, agent: rows_at(log, agent, seq))

    async def load_range(self, session_id: str, agent_id: str, first: int, last: int) -> Sequence[Row]:
        """The rows, as the port says, found by marks in the frames."""
        return await self._read(session_id, agent_id, lambda log, agent: log.rows_between(agent, first, last))

    async def labels(self, session_id: str, agent_id: str) -> Sequence[Row]:
        """The rows, as the port says, each found by the one behind it."""
        return await self._read(session_id, agent_id, LogReader.labels)

    async def sessions(self, session_id: str | None = None, *, page: IdPage | None = None) -> Sequence[SessionInfo]:
        """Every session, or a page of them: one look into the folder, and into the sessions."""
        self._table.refuse_closed()
        if page is not None:
            names = await self._in_thread(self._names, None)
            some = [name for name in names if name.startswith(page.prefix) or not self._layout.is_id(name)]
            return await page_by_name(some, self._described, page)
        one = None if session_id is None else [self._layout.name_in(self._keys(session_id))]
        names = await self._in_thread(self._names, None) if one is None else one
        return newest_first(await self._described(names))

    def _names(self) -> list[str]:
        """The folders of sessions."""
        with suppress(FileNotFoundError):
            os.close(self._seen_root.open(create=False))
            above, _, beginning = self._layout.before.rpartition("/")
            names = [name for name in os.listdir(self._root / above) if name.startswith(beginning)]
            return sorted(name.removeprefix(beginning) for name in names if not name.startswith("."))
        return []

    def _folder_of(self, name: str) -> Path:
        """The folder of a session's log, by the name that stands for the session."""
        return self._root / f"{self._layout.before}{name}{self._layout.behind}"

    async def _described(self, names: Iterable[str]) -> list[SessionInfo]:
        described = await self._in_thread(lambda: [self._describe(name) for name in names], None)
        found: list[SessionInfo] = []
        for info in described:
            if info is not None:
                other = info.owner is not None and info.owner != self._owner
                gone = other and not await self._life.is_alive(info.owner or "", 0.0)
                found.append(dataclass_replace(info, owner=None) if gone else info)
        return found

    def _describe(self, name: str) -> SessionInfo | None:
        """The line of a session; None for a folder without one."""
        folder, known = self._folder_of(name), name if self._layout.is_id(name) else None
        session_id, owner = name, None
        try:
            found = read_log(partial(where_of, folder), lambda log, end: (known or log.session(), end), known or "")
            if found is None:
                return None
            (session_id, end), record = found
            owner = record.owner if record.state == "held" else None
        except NotADirectoryError:
            return None
        except (CorruptJournal, Invalid):
            changed_at = 0.0
            with suppress(OSError):
                changed_at = folder.stat().st_mtime
            return listed_session(session_id, {}, [], [changed_at], owner, damaged=True)
        agents = {agent.agent_id: agent.seq for agent in end.ends.values()}
        return listed_session(session_id, agents, [end.began_at, end.at], [], owner, damaged=False)

    async def _read(
        self, session_id: str, agent_id: str, read: Callable[[LogReader, AgentEnd], list[Row]]
    ) -> list[Row]:
        """Read an agent's rows in a log as it is now, whoever owns the session."""

        def read_agent(log: LogReader, end: LogEnd) -> list[Row]:
            agent = end.ends.get(agent_id)
            return [] if agent is None else read(log, agent)

        where = partial(where_of, self._root / self._keys(session_id).folder)
        self._table.refuse_closed()
        found = await self._in_thread(partial(read_log, where, read_agent, session_id), session_id)
        return [] if found is None else found[0]

    # Waking.

    async def claim_due(self, query: WorkQuery) -> Sequence[PendingWork]:
        self._table.refuse_closed()
        with Uncut():
            return await self._due.claim(query)
        raise AssertionError

    async def pending_work(self, session_id: str | None = None) -> Sequence[PendingWork]:
        self._table.refuse_closed()
        return await self._due.all(session_id)

    async def _owner_of(self, session_id: str, keys: SessionKeys) -> SessionOwner | None:
        held = self._table.held().get(session_id)
        if held is not None and held.owner.is_mine():
            edition = held.owner.record.edition
            return SessionOwner(here=True, alive=False, edition=edition, released=False)
        record = await self._in_thread(partial(read_owner, self._root / keys.folder), session_id)
        if record is None:
            return None
        other = record.owner if record.state == "held" else None
        alive = other is not None and other != self._owner and await self._life.is_alive(other, 0.0)
        released = record.state == "free"
        return SessionOwner(here=other == self._owner, alive=alive, edition=record.edition, released=released)

    # Damage.

    async def inspect(self) -> Inspection:
        """Files among the sessions that belong to none."""
        self._table.refuse_closed()
        return Inspection(strays=await self._in_thread(self._strays, None))

    def _strays(self) -> list[str]:
        found: list[str] = []
        for session in self._names():
            top = self._folder_of(session)
            if not self._layout.behind and not top.is_dir():
                found.append(str(top.relative_to(self._root)))
            for name, _, files in os.walk(top):
                folder = Path(name)
                known = {*OWNER_FILES, *log_names(folder)} if folder == top else ()
                found += [str((folder / file).relative_to(self._root)) for file in files if file not in known]
        return sorted(found)

    async def salvage(self, session_id: str) -> SalvagedRows:
        """The rows in every readable frame of a session's logs."""
        keys = self._keys(session_id)
        return await self._in_thread(partial(salvage, self._root / keys.folder, session_id), session_id)

    async def set_aside(self, session_id: str, keep: Sequence[Row]) -> str:
        """Keep a session's files in a quarantine folder, whose name is returned, and go on with a new log of these
        rows. Errors: `NotFound`, `SessionBusy`, and see the class.
        """
        keys = self._keys(session_id)
        await self._life.begin()
        with Uncut():
            async with self._table.locked(session_id) as session:
                held = await self._owned_to_remove(session, session_id, keys)
                session.drop()
                held.close_log()
                try:
                    moved_to = await self._in_thread(
                        partial(held.set_aside, self._root, keep, self._wall()), session_id
                    )
                    await held.debts.forget()
                    if not keep:
                        await self._in_thread(held.remove, session_id)
                finally:
                    held.owner.give_up()
                return moved_to
        raise AssertionError

    async def quarantined(self, session_id: str) -> Sequence[str]:
        keys = self._keys(session_id)
        return await names_aside(self._objects, keys.aside)

    async def delete(self, session_id: str) -> None:
        keys = self._keys(session_id)
        await self._life.begin()
        with Uncut():
            async with self._table.locked(session_id) as session:
                held = await self._owned_to_remove(session, session_id, keys)
                session.drop()
                held.close_log()
                try:
                    await held.debts.forget()
                    await self._in_thread(held.remove, session_id)
                except BaseException:
                    held.owner.give_up()
                    raise
            await remove_aside(self._objects, keys.aside)

    async def _owned_to_remove(self, session: _Entry, session_id: str, keys: SessionKeys) -> OwnedLog:
        """The session, which nobody else owns from now on. Errors: `NotFound`, `SessionBusy`."""
        held = session.held
        if held is None or not held.owner.is_mine():
            if held is not None:
                held.let_go()
                session.held = None
            if await self._in_thread(partial(read_owner, self._root / keys.folder), session_id) is None:
                raise StoreNotFound("no such session", session=session_id)
            held = await self._acquire(session_id, keys, takeover=False)
        if not held.owner.record.log and not await self._in_thread(partial(log_names, held.folder), session_id):
            session.drop()
            await self._in_thread(held.remove_empty, session_id)
            raise StoreNotFound("no such session", session=session_id)
        return held

    # The store.

    async def maintain(self) -> None:
        """Have the turns that take long marked as owed, until cancelled. Locks need no renewal."""
        while True:
            await anyio.sleep(_OWE_EVERY_S)
            for held in self._table.held().values():
                await held.debts.owe_late()

    def abandon(self) -> Thread | None:
        self._life.abandon()
        for commits in self._threads:
            commits.abandon()
        held = list(self._table.held().values())

        def free() -> None:
            for each in held:
                with each.used:
                    each.let_go()

        # Nearly always, and then no thread is needed at the end of a process.
        if not any(each.used.locked() for each in held):
            free()
            return None
        thread = Thread(target=free, name="closing logs of sessions")
        thread.start()
        return thread

    async def aclose(self) -> None:
        with Uncut():
            if await self._table.close(self._release):
                for held in self._released.values():
                    held.close_log()
                await side_by_side([thread.aclose for thread in self._threads])
                await self._life.end()
                await self._objects.aclose()

    def _keys(self, session_id: str) -> SessionKeys:
        keys = self._layout.keys_of(session_id)
        self._table.refuse_closed()
        return keys

    async def _in_thread(self, work: Callable[[], T], session_id: str | None) -> T:
        """The result of blocking work. Errors: see the class."""
        with self._errors(session_id):
            return await run_in_thread(work)
        raise AssertionError

    @contextmanager
    def _errors(self, session_id: str | None) -> Generator[None]:
        """Errors of the operating system as ours."""
        try:
            yield
        except OSError as error:
            where = {"session": session_id, "root": str(self._root), "cause": error.strerror or str(error)}
            if error.errno in _NO_FILE:
                raise Invalid("something else has the place of the session's files", **where) from error
            if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
                text = "no right to do this: check owner and mode of the files below the root"
                raise StoreFailed(text, **where) from error
            # Told apart, because "the files cannot be used" would send people to look at their disk.
            if error.errno == errno.EMFILE:
                text = "each session that is held keeps a file open, and the process may not have more: `ulimit -n`"
                raise StoreUnavailable(text, **where) from error
            raise StoreUnavailable("the files cannot be used now", **where) from error
