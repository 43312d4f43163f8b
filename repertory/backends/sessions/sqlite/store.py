"""Sessions in one SQLite database: the embedded default.

Durability: `append` returns after an fsync of the write-ahead log (`synchronous=FULL`). Ownership lasts as long as the
owning process: when it is killed, the next one opens its sessions at once. Any number of processes on one machine may
share a database; it must lie on a local disk, as SQLite requires.

Nothing is created before the first write. A store belongs to the process that made it: in a forked child the leases are
the parent's, and every call raises `Invalid`. Make another store there.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, closing, suppress
from functools import partial
from pathlib import Path
from shutil import rmtree
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import quote

from repertory.backends.owning_thread import OwningThread
from repertory.backends.ports import (
    Batch,
    Corruption,
    Inspection,
    OwnedRows,
    Positions,
    SalvagedRows,
    SessionStore,
    StoreCapabilities,
    StoreRepair,
    StoreSharing,
    UntilFree,
    Waking,
    WorkQuery,
    by_the_clock,
    not_again,
    owned_rows,
)
from repertory.backends.sessions.liveness import OwnerLock, noted_in
from repertory.backends.sessions.sqlite.corrupt_file import CorruptFile
from repertory.backends.sessions.sqlite.file import (
    CommitHook,
    lease_file,
    mapped_errors,
    owners_folder,
    readable_text,
    refuse_links,
    refuse_lost,
)
from repertory.backends.sessions.sqlite.journals import Journals, LeaseMarks
from repertory.backends.sessions.table import busy
from repertory.core.ids import check_id
from repertory.core.journal.rows import Row
from repertory.errors import Corrupt, CorruptJournal, LeaseLost, StoreFailed
from repertory.forking import forget_in_children

if TYPE_CHECKING:
    from repertory.backends.ports import IdPage, Lease, Position, SessionInfo
    from repertory.backends.sessions.sqlite.shared import SQLiteCallQueue, SQLiteDirectory
    from repertory.core.pending_work import PendingWork

T = TypeVar("T")


class SQLiteSessionStore(SessionStore):
    """A `SessionStore` in a file. May be used from several event loops and threads at once.

    Errors of every call: `Unavailable` (locked for too long, disk full, no access: try again), `Corrupt` (not a session
    database, damaged, or made by another release: nothing was changed), `Invalid` (symbolic link, closed store). All
    name the path.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        owner: str,
        busy_timeout_s: float = 5.0,
        commit_hook: Callable[[Path], CommitHook] | None = None,
    ) -> None:
        """A relative `path` is resolved against the current folder when the database is first used.

        `owner` must be unique to this object, such as a random id; leases carry it.

        `busy_timeout_s` is how long to wait while other processes commit.

        `commit_hook` makes the component whose tables share the file and its commits; called with the path, on the
        store's thread, when the database is opened.
        """
        # Bound now: the program may change its folder before the first call.
        self._path = Path(path).absolute()
        self._owner = check_id(owner, "owner")
        self._busy_timeout_s = busy_timeout_s
        self._make_commit_hook = commit_hook
        self._thread = OwningThread(f"repertory {self._path.name}")
        self._journals: Journals | None = None
        self._directory: SQLiteDirectory | None = None
        self._call_queue: SQLiteCallQueue | None = None
        forget_in_children(self)

    def forget_parent(self) -> None:
        """Count as closed in a forked child."""
        self._journals = None
        self._thread.retire()

    @property
    def capabilities(self) -> StoreCapabilities:
        return StoreCapabilities(
            positions=Positions(load_at=self.load_at, load_range=self.load_range, labels=self.labels),
            waking=Waking(claim_due=self.claim_due, pending_work=self.pending_work),
            repair=StoreRepair(
                inspect=self.inspect,
                salvage=self.salvage,
                set_aside=self.set_aside,
                quarantined=self.quarantined,
                rebuild=self.rebuild,
                corrupt_files=self.corrupt_files,
            ),
            sharing=StoreSharing(
                asked_for=self.asked_for,
                listen=self.listen,
                waiting=self.waiting,
                abandon=self.abandon,
                directory=self.directory,
                call_queue=self.call_queue,
            ),
            acquires_again="call",
        )

    @property
    def name(self) -> str:
        return f"sqlite:{self._path}"

    async def acquire(
        self, session_id: str, *, takeover: bool = False, load: str | None = None, again: Lease | None = None
    ) -> OwnedRows:
        """One piece of work for the thread; `again` is none."""
        check_id(session_id, "session id")
        if again is not None:
            self._thread.refuse_closed()
            # On the event loop and not in the thread: two reads and a write of two bytes take less than waking a
            # thread.
            if self._journals is None or not self._journals.leases.acquire_again(again):
                raise not_again(again)
            return await owned_rows(self, again, load)
        return await self._thread.run(
            lambda: self._opened().acquire(session_id, takeover=takeover, load=load),
            # A caller that was cancelled never sees its lease, and nobody else would give it up.
            undo=lambda owned: self._opened().release([owned.lease]),
        )

    async def release(self, leases: Sequence[Lease]) -> Sequence[None]:
        """No work for the thread, unless work of theirs was claimed. Errors: see the class; those sessions are not
        released then.
        """
        self._thread.refuse_closed()
        if (journals := self._journals) is not None:
            late = [lease for lease in leases if not journals.leases.release(lease)]
            if late:
                await self._thread.run(lambda: self._opened().release(late))
        return [None] * len(leases)

    async def append(self, batches: Sequence[Batch]) -> Sequence[Position | LeaseLost]:
        """Commit one group with one fsync; one outcome per batch, in order. Errors: see the class; nothing is stored
        then.
        """
        return await self._thread.run(lambda: self._opened().append(batches), after=self._tidy)

    async def asked_for(self) -> Sequence[str]:
        """Sessions held by this object that other processes have asked for since the last call.
        Errors: see the class.
        """
        return [] if self._journals is None else await self._thread.run(lambda: self._opened().asked_for())

    async def listen(self, asked: Callable[[], None]) -> None:
        if self._journals is not None:
            await self._journals.bells.listen(asked)

    def waiting(self, session_id: str) -> AbstractAsyncContextManager[UntilFree]:
        journals = self._journals
        return by_the_clock() if journals is None else journals.bells.waiting(session_id)

    async def load(self, session_id: str, agent_id: str, *, whole: bool = False) -> Sequence[Row]:
        """Rows in order, from the last row's `low` on, or all of them. One query, which reads no other rows."""
        check_id(session_id, "session id")
        return await self.read(lambda journals: journals.load(session_id, agent_id, whole=whole), [])

    async def load_at(self, session_id: str, agent_id: str, seq: int) -> Sequence[Row]:
        """Rows in order, from the `low` of the row at `seq` up to that row, found without walking the journal."""
        check_id(session_id, "session id")
        return await self._look(lambda journals: journals.reading.rows_at(session_id, agent_id, seq), [])

    async def load_range(self, session_id: str, agent_id: str, first: int, last: int) -> Sequence[Row]:
        """Found without walking the journal."""
        check_id(session_id, "session id")
        return await self._look(lambda journals: journals.reading.rows_between(session_id, agent_id, first, last), [])

    async def labels(self, session_id: str, agent_id: str) -> Sequence[Row]:
        """The rows of kind `snapshot` that still have their content, in order, by their own index."""
        check_id(session_id, "session id")
        return await self._look(lambda journals: journals.reading.label_rows(session_id, agent_id), [])

    async def claim_due(self, query: WorkQuery) -> Sequence[PendingWork]:
        return await self.read(lambda journals: journals.claim_due(query), [])

    async def pending_work(self, session_id: str | None = None) -> Sequence[PendingWork]:
        return await self._look(lambda journals: journals.pending_work.all(session_id), [])

    async def sessions(self, session_id: str | None = None, *, page: IdPage | None = None) -> Sequence[SessionInfo]:
        if page is not None:
            return await self.read(lambda journals: journals.session_page(page), [])
        return await self.read(lambda journals: journals.sessions(session_id), [])

    async def delete(self, session_id: str) -> None:
        """Erase a session, in the file and in its log. Errors: `NotFound`, `SessionBusy`, and see the class."""
        check_id(session_id, "session id")
        await self._thread.run(lambda: self._opened().delete(session_id))

    async def inspect(self) -> Inspection:
        """Find damage: by `PRAGMA integrity_check`, in what opening and listing need, and rows of no journal.

        Errors: see the class; `Corrupt` for a file that is not ours.
        """
        try:
            return await self.read(lambda journals: journals.inspect(), Inspection())
        except Corrupt as error:
            if isinstance(error, CorruptJournal) or isinstance(error.__cause__, sqlite3.Error | UnicodeDecodeError):
                return Inspection(damages=[Corruption(where=str(self._path), what=str(error))])
            raise

    async def salvage(self, session_id: str) -> SalvagedRows:
        """Every readable row of a session, around damaged pages. Errors: see the class."""
        check_id(session_id, "session id")
        return await self.read(lambda journals: journals.salvage(session_id), SalvagedRows())

    async def set_aside(self, session_id: str, keep: Sequence[Row]) -> str:
        """Move every row of a session to the table `quarantine` and store these in their place, in one commit.

        Errors: `NotFound`, `SessionBusy`, and see the class.
        """
        check_id(session_id, "session id")
        return await self._thread.run(lambda: self._opened().set_aside(session_id, keep), after=self._tidy)

    async def quarantined(self, session_id: str) -> Sequence[str]:
        return await self._look(lambda journals: journals.quarantine.names(session_id), [])

    async def rebuild(self, keep: Callable[[SalvagedRows], Sequence[Row]]) -> str:
        """Build a new database from what can be read; the damaged file is moved to `<path>.damaged-<number>`.

        Errors: `SessionBusy`, and see the class.
        """
        return await self._thread.run(partial(self._rebuilt, keep))

    def directory(self) -> SQLiteDirectory:
        from repertory.backends.sessions.sqlite.shared import SQLiteDirectory  # loaded when used

        self._directory = self._directory or SQLiteDirectory(self, self._path, self._owner)
        return self._directory

    def call_queue(self) -> SQLiteCallQueue:
        from repertory.backends.sessions.sqlite.shared import SQLiteCallQueue  # loaded when used

        self._call_queue = self._call_queue or SQLiteCallQueue(self, self._owner)
        return self._call_queue

    async def aclose(self) -> None:
        """Close. Leases held by this object end; no thread and no file stays open. Calling it twice is allowed."""
        await self._thread.aclose(self._close)

    def abandon(self) -> threading.Thread | None:
        return self._thread.abandon(self._close)

    async def _look(self, work: Callable[[Journals], T], nothing: T) -> T:
        return await self.read(lambda journals: journals.look(work), nothing)

    async def read(
        self, work: Callable[[Journals], T], nothing: T, *, undo: Callable[[Journals, T], None] | None = None
    ) -> T:

        def undone(result: T) -> None:
            if undo is not None:
                undo(self._opened(), result)

        return await self._thread.run(partial(self._worked, work, nothing), undo=None if undo is None else undone)

    async def make(self, work: Callable[[Journals], T]) -> T:
        return await self._thread.run(lambda: work(self._opened()), after=self._tidy)

    # On the thread.

    def _worked(self, work: Callable[[Journals], T], nothing: T) -> T:
        # Reading makes no file: a program that lists sessions in a wrong folder should leave nothing there.
        if self._journals is None and not os.path.lexists(self._path):
            refuse_lost(self._path)
            return nothing
        return work(self._opened())

    async def corrupt_files(self) -> Sequence[str]:
        """The damaged files that were moved aside, oldest first."""
        return await self._thread.run(lambda: corrupt_files_of(self._path))

    def _rebuilt(self, keep: Callable[[SalvagedRows], Sequence[Row]]) -> str:
        self._close()
        # Another owner's name: that of this store may have a lock file beside the old database.
        path, owner, commit_hook = self._path, f"{self._owner}-rebuilding", self._commit_hook()
        return rebuild(path, owner, keep, busy_timeout_s=self._busy_timeout_s, commit_hook=commit_hook)

    def _opened(self) -> Journals:
        if self._journals is None:
            self._journals = Journals(
                self._path,
                self._owner,
                busy_timeout_s=self._busy_timeout_s,
                commit_hook=self._commit_hook(),
                given_up=self._thread.given_up,
            )
        return self._journals

    def _commit_hook(self) -> CommitHook | None:
        return None if self._make_commit_hook is None else self._make_commit_hook(self._path)

    def _tidy(self) -> None:
        if self._journals is not None:
            self._journals.tidy()

    def _close(self) -> None:
        journals, self._journals = self._journals, None
        if journals is not None:
            journals.close()


# Building a new session database from what can be read of a damaged one, which is moved aside unchanged.
#
# The new file is made under another name, and takes the old one's place when it is complete: killed before that,
# nothing has changed. Processes that have the old file open are told so by their next call.

_BESIDE = ("", "-wal", "-shm")
"""The suffixes of a database and of the files that SQLite keeps beside it."""


def rebuild(
    path: Path,
    owner: str,
    keep: Callable[[SalvagedRows], Sequence[Row]],
    *,
    busy_timeout_s: float,
    commit_hook: CommitHook | None = None,
) -> str:
    """Rebuild the database at `path`, which must not be open in this process. Returns the path of the old one. The
    component `commit_hook` starts empty, and receives every row.

    Errors: `SessionBusy` when a live owner has a session there; `Corrupt` when no session can be read; those of the new
    database.
    """
    new = path.with_name(f"{path.name}.rebuilt")
    with mapped_errors(path):
        refuse_links(path)
        if not os.path.lexists(path) and os.path.lexists(new):  # An earlier rebuild was killed at its last steps.
            return _exchanged(path, new)
        _remove(new)
        with closing(sqlite3.connect(f"file:{quote(str(path))}?mode=rw", uri=True, isolation_level=None)) as old:
            # Without this, SQLite reads nothing of a truncated file. Nothing is written to it.
            old.execute("PRAGMA writable_schema = ON")
            old.text_factory = readable_text
            with suppress(sqlite3.DatabaseError):  # Keep writers out meanwhile, if possible.
                old.execute("BEGIN IMMEDIATE")
            corrupt_file = CorruptFile(old, str(path))
            looking, leases = OwnerLock(owners_folder(path), "nobody"), LeaseMarks(lease_file(path))
            for session_id, generation, holder in corrupt_file.owners():
                if holder is not None and leases.says_held(generation) and looking.alive(holder):
                    raise busy(session_id, holder)
            if not corrupt_file.sessions and corrupt_file.unread is not None:
                text = "no session can be read in this file, so it was left as it is: restore a copy, or move it away"
                raise Corrupt(text, path=str(path), cause=corrupt_file.unread)
            journals = Journals(new, owner, busy_timeout_s=busy_timeout_s, commit_hook=commit_hook)
            try:
                _fill(journals, corrupt_file, keep, noted_in(owners_folder(path)))
            finally:
                journals.close()
        return _exchanged(path, new)


def corrupt_files_of(path: Path) -> list[str]:
    prefix = f"{path.name}.damaged-"
    numbers: list[int] = []
    with suppress(OSError):
        found = (name.removeprefix(prefix) for name in os.listdir(path.parent) if name.startswith(prefix))
        numbers = sorted(int(number) for number in found if number.isdecimal())
    return [str(path.with_name(f"{prefix}{number}")) for number in numbers]


def _fill(journals: Journals, corrupt: CorruptFile, keep: Callable[[SalvagedRows], Sequence[Row]], noted: int) -> None:
    generations = {session_id: generation for session_id, generation, _ in corrupt.owners()}
    # Behind everything that was ever given out: a process that still has a lease of the old file must not own a session
    # of the new one, and the note in its lock file must not look like lost commits.
    journals.begin_behind(max([corrupt.last_generation(), *generations.values()]), max(noted, corrupt.last_position()))
    due_times = corrupt.due_times()
    for session_id in corrupt.sessions:
        rows = keep(corrupt.salvage(session_id))
        if not rows:
            continue
        lease, _ = journals.acquire(session_id)
        agents = {row.agent_id for row in rows}
        dues = [Batch(lease=lease, rows=(), due=due) for due in due_times.get(session_id, ()) if due.agent_id in agents]
        # The rows and what is pending of them in one transaction, as the owner has stored them.
        outcome, *_ = journals.append([Batch(lease=lease, rows=rows), *dues])
        if isinstance(outcome, LeaseLost):
            raise StoreFailed("rows do not follow each other", session=session_id) from outcome
        journals.release([lease])
    if calls := corrupt.calls():
        journals.on_calls(lambda table: table.restore(calls))


def _exchanged(path: Path, new: Path) -> str:
    before = corrupt_files_of(path)
    number = int(before[-1].rpartition("-")[2]) + 1 if before else 1
    if not os.path.lexists(path):
        # Going on with an interrupted exchange: its files belong together under one number.
        number = max(1, number - 1)
    aside = path.with_name(f"{path.name}.damaged-{number}")
    # Move the database first: as long as it is missing, every process refuses to create a new one.
    for ending in _BESIDE:
        with suppress(FileNotFoundError):
            os.rename(f"{path}{ending}", f"{aside}{ending}")
    os.rename(new, path)
    _remove(new)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        # Renames are in the folder, and a power cut could otherwise leave neither file under the name.
        os.fsync(folder)
    finally:
        os.close(folder)
    return str(aside)


def _remove(path: Path) -> None:
    """Remove an unfinished database and the files beside it."""
    for ending in _BESIDE:
        Path(f"{path}{ending}").unlink(missing_ok=True)
    lease_file(path).unlink(missing_ok=True)
    rmtree(owners_folder(path), ignore_errors=True)
