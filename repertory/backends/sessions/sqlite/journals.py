"""Every statement that runs on a session database, over one connection.

Blocking: it belongs to one thread. Each method is one transaction; after an error nothing of it is stored. Errors are
those of the port. `reading.py` says how rows lie in the file and how they are found.
"""

from __future__ import annotations

import math
import os
import sqlite3
import threading
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal, TypeVar, cast

from msgspec import field
from msgspec.structs import force_setattr, replace

from repertory.backends.folders import open_file
from repertory.backends.peer_ports import QueuedCall
from repertory.backends.ports import (
    Batch,
    Corruption,
    IdPage,
    Inspection,
    Lease,
    OwnedRows,
    Position,
    SalvagedRows,
    SessionInfo,
    WorkQuery,
)
from repertory.backends.sessions.asking import Bells
from repertory.backends.sessions.liveness import OwnerLock, noted_in
from repertory.backends.sessions.sqlite.calls import CallTable
from repertory.backends.sessions.sqlite.corrupt_file import CorruptFile, Quarantine, is_id
from repertory.backends.sessions.sqlite.file import (
    CommitHook,
    lease_file,
    mapped_error,
    mapped_errors,
    open_database,
    owners_folder,
    refuse_lost_log,
    refuse_other_versions,
)
from repertory.backends.sessions.sqlite.pending_work import PendingWorkTable
from repertory.backends.sessions.sqlite.reading import (
    CHAIN,
    LOAD,
    SANE_GENERATION,
    Heads,
    JournalReader,
    LastRow,
    Listed,
    pack_rows,
    unpacked,
)
from repertory.backends.sessions.table import busy, lost, newest_first
from repertory.backends.sqlite_files import UNUSABLE_VALUES, roll_back
from repertory.core.ids import check_id
from repertory.core.journal.codec import at_of
from repertory.core.journal.rows import Row
from repertory.core.pending_work import DueTime, PendingWork
from repertory.errors import (
    Corrupt,
    CorruptJournal,
    LeaseLost,
    RepertoryError,
    StoreNotFound,
    StoreUnavailable,
)

T = TypeVar("T")

CHECKPOINT_BYTES = 1024 * 1024
"""About how large the write-ahead log may grow before it is checkpointed. A log that has once grown to this size is
overwritten from its beginning, which is faster than growing it: so keep it small.
"""

_WAIT_S = 0.1
"""A caller whose time is over waits this much longer for other processes at most."""
_PAGE_BYTES = 4096
_PAGES_ALONGSIDE = 12
"""About how many pages a commit changes in the tables alongside."""
_PAGES_OF_CALLS = 4
"""About how many pages a commit of calls changes."""

_INSERT = (
    "INSERT INTO rows (position, journal, previous, seq, kind, version, low, link, salt, body)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)


class Journals:
    def __init__(
        self,
        path: Path,
        owner: str,
        *,
        busy_timeout_s: float,
        commit_hook: CommitHook | None = None,
        given_up: Callable[[], bool] = lambda: False,
    ) -> None:
        """`given_up`: True when nobody waits any more for what is done now."""
        self._given_up = given_up
        self._path = path
        self._name, self._log = str(path), f"{path}-wal"
        self._commit_hook = commit_hook
        owners = owners_folder(path)
        # Read before the database is opened: `open_database` creates the folder, and the notes are older than the
        # file's end.
        noted = noted_in(owners)
        self._connection = open_database(path, busy_timeout_s=busy_timeout_s, commit_hook=commit_hook)
        # Compared before each transaction: SQLite goes on writing to a file that was removed or replaced.
        self._inode = os.stat(path).st_ino
        self._lock = OwnerLock(owners, owner)
        self.bells = Bells(owners, owner)
        self.quarantine = Quarantine(self._connection, self._name)
        self._heads = Heads(self._connection, self._name)
        self.reading = JournalReader(self._connection, self._heads, self._name)
        self.pending_work = PendingWorkTable(self._connection)
        self.calls = CallTable(self._connection)
        self.leases = LeaseTable(self._connection, lease_file(path), self._lock, owner)
        self._owner = owner
        self._unchecked_bytes = 0
        self._busy_timeout_s = busy_timeout_s
        self._erased_in_log = False
        """True if the log may still hold erased contents."""
        try:
            with self._transaction("read"):
                end = self._heads.end
            # SQLite takes a log that was cut for one that ended there. The owners' notes are in other files, and know
            # better.
            if end < noted:
                text = (
                    "commits that were acknowledged are missing: the database or its log was cut, damaged or replaced;"
                    " restore it, or call `doctor --repair` to go on with what is there"
                )
                raise CorruptJournal(text, path=self._name, last_position=end, committed=noted)
        except BaseException:
            self._connection.close()
            raise

    def acquire(self, session_id: str, *, takeover: bool = False, load: str | None = None) -> OwnedRows:
        """The lease is committed before the rows are read, so that reading many keeps no other writer waiting."""
        # Users' code, so it runs before the lock of the database is taken: it may be slow, and it may raise.
        scope = self._scope_of(session_id)
        with self._transaction("unsynced"):
            # Without a lease and yet with a journal: the page of leases is damaged. Other damage must be noticed later,
            # too.
            lost = self.leases.line(session_id) is None and not self.reading.is_unknown(session_id)
            journals = self.reading.least(session_id) if lost else 0
            held = self.leases.acquire(session_id, scope, takeover=takeover)
            if journals:
                # The line was lost, and with it how many journals there were: `doctor` finds out.
                self._connection.execute("UPDATE sessions SET journals = 1 << 62 WHERE name = ?", (session_id,))
        try:
            rows = () if load is None else self.load(session_id, load, whole=False)
            return OwnedRows(held, rows)
        except RepertoryError as error:
            return OwnedRows(held, error)

    def release(self, leases: Sequence[Lease]) -> None:
        with self._transaction("unsynced"):
            for lease in leases:
                self.pending_work.released(lease.session_id)
        for lease in leases:
            if not self.leases.release(lease, settled=True):
                raise StoreUnavailable("a session cannot be given up now", path=self._name, session=lease.session_id)

    def asked_for(self) -> list[str]:
        with mapped_errors(self._path):
            return [session_id for session_id in self._lock.asked_for() if session_id in self.leases.held]

    def append(self, batches: Sequence[Batch]) -> list[Position | LeaseLost]:
        rows: list[tuple[object, ...]] = []
        packed = [pack_rows(batch.rows) for batch in batches]  # Here, no other process waits for this yet.
        with self._transaction("synced"):
            outcomes = [self._stored(*each, rows) for each in zip(batches, packed, strict=True)]
            self._insert(rows)
            # In the same transaction as the rows, on other pages: if the newest page of rows is lost, this says so.
            self._heads.note()
        # The log still has the old pages, with their contents, until it is truncated.
        if any(each.erase and isinstance(outcome, Position) for each, outcome in zip(batches, outcomes, strict=True)):
            self._empty_log()
        return outcomes

    def claim_due(self, query: WorkQuery) -> list[PendingWork]:
        with self._transaction("read"):  # Without waiting for writers: most looks find nothing.
            if not self.pending_work.claimable(query, self.leases.owned, 1):
                return []
        with self._transaction("unsynced"):
            # Asked again: between the two transactions another process may have claimed the same.
            works = self.pending_work.claimable(query, self.leases.owned, query.limit)
            self.pending_work.claim(query.now, works)
            for work in works:
                # Its release has to set the count back in a transaction, which the cheap release by two bytes would
                # skip.
                self.leases.claimed(work.session_id)
            return works

    def on_calls(self, work: Callable[[CallTable], T], *, size_bytes: int = 0) -> T:
        """Change the calls that nobody waits for, durably. `size_bytes`: of what is stored."""
        with self._transaction("synced"):
            result = work(self.calls)
        self._unchecked_bytes += _PAGES_OF_CALLS * _PAGE_BYTES + size_bytes
        return result

    def may_take(self, agents: Collection[str], passing: Collection[str]) -> bool:
        """False if `take` would take and change nothing. Waits for no writer."""
        with self._transaction("read"):
            return self.calls.anything(self._owner, agents, passing, self._lock.alive)

    def take(self, limit: int, agents: Collection[str], passing: Collection[str]) -> list[QueuedCall]:
        """This owner is alive from now on. Not synced: a power cut ends every owner that has taken something."""
        with self._transaction("unsynced"):
            self._lock.acquire()
            taken = self.calls.take(self._owner, limit, agents, passing, self._lock.alive)
        self._unchecked_bytes += _PAGES_OF_CALLS * _PAGE_BYTES
        return taken

    def on_peers(self, work: Callable[[OwnerLock], T]) -> T:
        """Read or change the list of peers."""
        with mapped_errors(self._path):
            self._refuse_lost_file()
            return work(self._lock)

    def owner_of(self, session_id: str) -> str | None:
        """The live owner of a session."""
        with self._transaction("read"):
            generation, owner = self.leases.line(session_id) or (0, "")
            return owner if self.leases.owned(session_id, generation, owner) is not None else None

    def load(self, session_id: str, agent_id: str, *, whole: bool) -> list[Row]:
        held = self.leases.held.get(session_id)
        known = 0 if held is None else len(held.journals)
        return self.look(lambda here: here.reading.load(session_id, agent_id, whole=whole, known=known))

    def look(self, work: Callable[[Journals], T]) -> T:
        """The result of work that only reads, within one transaction."""
        with self._transaction("read"):
            return work(self)

    def sessions(self, session_id: str | None = None) -> list[SessionInfo]:
        with self._transaction("read"):
            listed = self.reading.listed(session_id)
        # After the transaction: whether owners live is asked of lock files, and a reader must not keep the log from
        # being checkpointed meanwhile.
        return self._infos(listed)

    def session_page(self, page: IdPage) -> list[SessionInfo]:
        listed: dict[str, Listed] = {}
        after, find = page.after, self.reading.asking_after if page.asking else self.reading.names_after
        with self._transaction("read"):
            # A loop, since of the ids that are found some may have no journal.
            while page.limit > len(listed) and (names := find(page.prefix, after, page.limit - len(listed))):
                for after in names:
                    listed |= self.reading.listed(after)
        return sorted(self._infos(listed), key=lambda info: info.session_id)

    def _infos(self, listed: Mapping[str, Listed]) -> list[SessionInfo]:
        infos = [
            SessionInfo(
                session_id=name,
                agents=about.agents,
                created_at=about.created_at,
                updated_at=about.updated_at or about.created_at,
                owner=about.owner if self.leases.owned(name, about.generation, about.owner) is not None else None,
                damaged=about.damaged,
            )
            for name, about in listed.items()
        ]
        return newest_first(infos)

    def delete(self, session_id: str) -> None:
        with self._transaction("synced"):
            # A session may have calls and nothing else yet; then deleting it is deleting those.
            called = self.calls.forget(session_id)
            with suppress(*([StoreNotFound] if called else [])):
                self._delete(session_id)
        self.leases.forget(session_id)
        # What is remembered of the ends of journals names rows that are gone.
        self._heads.forget()
        self._empty_log()

    def inspect(self) -> Inspection:
        found = self.quarantine.inspect()
        if not found.damages:
            try:
                names = [info.session_id for info in self.sessions()]
            except Corrupt as error:
                return replace(found, damages=[Corruption(where=self._name, what=str(error))])
            wrong = (f"a session is called {name!r}" for name in names if not is_id(name))
            found = replace(found, damages=[Corruption(where=self._name, what=what) for what in wrong])
        return found

    def salvage(self, session_id: str) -> SalvagedRows:
        return CorruptFile(self._connection, self._name).salvage(session_id)

    def begin_behind(self, generation: int, position: int) -> None:
        """Give every later lease a higher generation, and every later row a higher position."""
        with self._transaction("synced"):
            self._connection.execute(
                "UPDATE settled SET generation = max(generation, ?), position = max(position, ?)",
                (generation, position),
            )
        self._heads.forget()

    def set_aside(self, session_id: str, keep: Sequence[Row]) -> str:
        scope = self._scope_of(session_id)
        with self._transaction("synced"):
            self._refuse_other_hands(session_id)
            self._heads.settle()
            moved_to = self.quarantine.move(session_id)
            # All its journals are in quarantine now. With the old count, the new session would be taken for a damaged
            # one.
            self._connection.execute("UPDATE sessions SET journals = 0 WHERE name = ?", (session_id,))
            held = self.leases.acquire(session_id, scope)
            rows: list[tuple[object, ...]] = []
            outcome = self._stored(Batch(lease=held, rows=keep), pack_rows(keep), rows)
            if isinstance(outcome, LeaseLost):
                raise outcome
            self._insert(rows)
            self._heads.settle()
        self.leases.forget(session_id)
        self._heads.forget()
        return moved_to

    def tidy(self) -> None:
        """Checkpoint the log when it has grown, off the path of commits. Failures are retried later."""
        try:
            # A reader had the log open when contents were erased, so it could not be truncated then.
            if self._erased_in_log:
                self._empty_log(wait_s=0.0)
            elif self._unchecked_bytes >= CHECKPOINT_BYTES:
                # PASSIVE waits for nobody, neither readers nor writers. What it cannot move stays for the next time.
                self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
                self._unchecked_bytes = 0
        except (sqlite3.Error, RepertoryError):
            # On the store's thread, after the caller had its answer: nobody is there to be told.
            return

    def close(self) -> None:
        """Writes nothing: leases end with their owner's lock."""
        try:
            with mapped_errors(self._path):
                self._connection.close()
        finally:
            # Last, also after an error: it is what ends the leases, and others may then open the database.
            self._lock.release()

    def _scope_of(self, session_id: str) -> str | None:
        scope_of = None if self._commit_hook is None else self._commit_hook.scope_of
        return None if scope_of is None else scope_of(session_id)

    # Within a transaction.

    def _delete(self, session_id: str) -> None:
        self._refuse_other_hands(session_id)
        # Heads must not depend on the deleted rows, whose positions are never used again.
        self._heads.settle()
        self._delete_rows(session_id)
        self.quarantine.remove(session_id)
        if self._commit_hook is not None:
            self._commit_hook.deleted(self._connection, session_id)
        self.pending_work.forget(session_id)

    def _refuse_other_hands(self, session_id: str) -> None:
        """Raise `NotFound` if there is no such session, and `SessionBusy` if another owner holds it."""
        found = self.leases.line(session_id)
        if found is None and not self.reading.least(session_id):  # Journals are there even if this line was lost.
            raise StoreNotFound("no such session", session=session_id)
        # Ending the lease makes its owner's commits fail, so nothing is written behind the deletion.
        if found is not None and not self.leases.end(session_id, *found):
            raise busy(session_id, found[1])

    def _stored(self, batch: Batch, packed: Sequence[Row], rows: list[tuple[object, ...]]) -> Position | LeaseLost:
        """Store all of a batch or nothing; its rows, given in stored form, are added to `rows` for the insert."""
        held = self.leases.check(batch.lease, self._heads.epoch)
        if isinstance(held, LeaseLost):
            return held
        outcome = self._appended(held, batch, packed, rows)
        if isinstance(outcome, LeaseLost):
            return outcome
        if self._commit_hook is not None and held.scope is not None:
            # Contents that the batch itself erases are left out.
            remaining = [row for row in batch.rows if not batch.erase or (row.agent_id, row.seq) not in batch.erase]
            self._commit_hook.stored(self._connection, held.scope, held.session_id, remaining)
            self._unchecked_bytes += _PAGES_ALONGSIDE * _PAGE_BYTES
        # A turn that ends within its first commit states "nothing is pending" of a session that had nothing: no write.
        if batch.due is not None and (held.has_debts or batch.due.at is not None):
            force_setattr(held, "has_debts", True)
            self.pending_work.note(held.session_id, batch.due)
        if batch.erase:
            self._insert(rows)  # Erased contents may be in rows of this same group.
            self._erase(held, batch.erase)
        if batch.forget:
            self._insert(rows)
            self._forget(held, batch.forget)
        return outcome

    def _appended(
        self, held: OwnedLease, batch: Batch, stored: Sequence[Row], rows: list[tuple[object, ...]]
    ) -> Position | LeaseLost:
        ends: dict[str, tuple[int, int, int]] = {}
        # Collected, and taken over only when the whole batch fits: a refused batch must leave nothing in the group.
        placed: list[tuple[object, ...]] = []
        first: list[tuple[int, Row]] = []
        # Positions are given out here, not by SQLite (AUTOINCREMENT writes another table), and never twice: the link of
        # a row to its predecessor is a position.
        position = self._heads.end
        for row in stored:
            agent_id, seq = row[0], row[1]
            journal, previous, last = ends.get(agent_id) or self._end_of(held, agent_id)
            if seq != last + 1:
                return LeaseLost("rows do not follow what is stored", session=held.session_id, seq=seq, stored=last)
            position += 1
            if not journal:
                # The key of a journal is the position of its first row, so that no two journals ever had the same key.
                journal = position
                first.append((position, row))
            placed.append((position, journal, previous, *row[1:]))
            ends[agent_id] = journal, position, seq
        for journal, row in first:
            self._create_journal(held, row, journal, batch.rows)
        for journal, end, seq in ends.values():
            self._heads.moved(journal, LastRow(end, seq))
        rows += placed
        if first:  # Whoever looks for another agent of the session finds this one whole.
            self._insert(rows)
        if batch.rows:
            return Position(agent_id=batch.rows[-1].agent_id, seq=batch.rows[-1].seq)
        agent_id = batch.erase[-1][0] if batch.erase else ""
        return Position(agent_id=agent_id, seq=self._end_of(held, agent_id)[2] if agent_id else 0)

    def _end_of(self, held: OwnedLease, agent_id: str) -> tuple[int, int, int]:
        """The key of the agent's journal (0 when there is none), and position and sequence number of its last row."""
        journal = held.journals.get(agent_id)
        if journal is None:
            journal = self.reading.journal(held.session_id, agent_id, len(held.journals))
            if journal is None:
                return 0, 0, 0
            held.journals[agent_id] = journal
        head = self._heads.of(journal)
        return journal, head.position, head.seq

    def _create_journal(self, held: OwnedLease, first: Row, position: int, rows: Sequence[Row]) -> None:
        # The first row of a fork may be erased, and has no time then.
        its_own = (row for row in rows if row.agent_id == first.agent_id and not row.erased)
        created_at = next((at_of(row.body) for row in its_own), None)
        self._connection.execute(
            "INSERT INTO journals (id, session, agent, created_at, head, seq) VALUES (?, ?, ?, ?, 0, 0)",
            (position, held.session_id, check_id(first.agent_id, "agent id"), created_at),
        )
        statement = "UPDATE sessions SET journals = journals + 1 WHERE name = ?"
        self._connection.execute(statement, (held.session_id,))
        held.journals[first.agent_id] = position

    def _insert(self, rows: list[tuple[object, ...]]) -> None:
        if rows:
            self._connection.executemany(_INSERT, rows)
            # Estimated, since asking for the size of the log is a system call in each commit.
            self._unchecked_bytes += _PAGE_BYTES + sum(len(cast("bytes", row[9])) + 64 for row in rows)
            # Bound and cleared in place: the list belongs to the whole group.
            rows.clear()

    def _erase(self, held: OwnedLease, erase: Sequence[tuple[str, int]]) -> None:
        erased: list[tuple[str, int]] = []
        for agent_id, seq in erase:
            _, position, last = self._end_of(held, agent_id)
            # Not there (yet): a row that comes later under this number must keep its content.
            if not 0 < seq <= last:
                continue
            values = self._connection.execute(f"{LOAD} WHERE rows.seq = ?", (position, seq, agent_id, seq)).fetchone()
            # The digest that stays is that of the plain body, as its link has it.
            gone = unpacked(Row._make(values)).without_content()
            self._connection.execute(
                f"{CHAIN}UPDATE rows SET salt = ?, body = ? WHERE position = (SELECT min(position) FROM chain)",
                (position, seq, gone.salt, gone.body),
            )
            erased.append((agent_id, seq))
        if self._commit_hook is not None and erased:
            self._commit_hook.erased(self._connection, held.session_id, erased)

    def _delete_rows(self, session_id: str) -> None:
        journals = self._connection.execute(
            "SELECT id, head, seq FROM journals WHERE session = ?", (session_id,)
        ).fetchall()
        # The rows of a journal whose line is lost would stay in the file, after "deleted" was told.
        if len(journals) < self.reading.least(session_id):
            text = "the session is damaged, so some of it would stay in the file; `doctor` says more"
            raise CorruptJournal(text, path=self._name, session=session_id)
        for journal in journals:
            self._delete_rows_of(*journal)
        self._connection.execute("DELETE FROM journals WHERE session = ?", (session_id,))
        self._connection.execute("DELETE FROM sessions WHERE name = ?", (session_id,))

    def _delete_rows_of(self, journal: int, head: int, seq: int) -> None:
        self._connection.execute(f"{CHAIN}DELETE FROM rows WHERE position IN (SELECT position FROM chain)", (head, 1))
        if self._connection.execute("SELECT changes()").fetchone() != (seq,):  # The chain is broken: look anywhere.
            self._connection.execute("DELETE FROM rows WHERE journal = ?", (journal,))

    def _forget(self, held: OwnedLease, agents: Sequence[str]) -> None:
        """Remove the journals of these agents."""
        found = {agent_id: self._end_of(held, agent_id) for agent_id in agents}
        found = {agent_id: end for agent_id, end in found.items() if end[0]}
        if found:
            self._heads.settle()  # As in `_delete`.
        for agent_id, end in found.items():
            self._delete_rows_of(*end)
            self._connection.execute("DELETE FROM journals WHERE id = ?", (end[0],))
            self.pending_work.note(held.session_id, DueTime(agent_id=agent_id))
            del held.journals[agent_id]
        least = "UPDATE sessions SET journals = journals - ? WHERE name = ?"
        self._connection.execute(least, (len(found), held.session_id))

    @contextmanager
    def _transaction(self, mode: Literal["synced", "unsynced", "read"]) -> Generator[None, None, None]:
        """Begin, catch up with other processes, and commit. An error leaves no trace."""
        try:
            self._refuse_lost_file()
            if mode == "read":
                self._connection.execute("BEGIN")
            else:
                # Leases are not worth a sync: a power cut that undoes them has ended all their owners as well.
                self._connection.execute(f"PRAGMA synchronous = {'FULL' if mode == 'synced' else 'NORMAL'}")
                # IMMEDIATE: a transaction that reads first and then writes fails at once if another process has written
                # in between.
                self._begin_to_write()
            # Within the transaction, so that what is caught up with stays true until the commit.
            epoch = self._heads.epoch
            self._heads.catch_up()
            if self._heads.epoch != epoch:  # A newer release may be among the others.
                refuse_other_versions(self._connection, self._path)
            yield
            self._connection.execute("COMMIT")
            # Before this is acknowledged: a commit into a log that was deleted under us would be lost.
            if mode != "read":
                self._refuse_lost_log()
            if mode == "synced":
                # After the sync and never before, so the note says nothing that was not acknowledged.
                self._lock.note(self._heads.end)
        except BaseException as error:
            roll_back(self._connection)
            self._heads.forget()
            if isinstance(error, UNUSABLE_VALUES) and not isinstance(error, RepertoryError):
                raise mapped_error(error, self._path) from error
            raise

    def _begin_to_write(self) -> None:
        """Wait for other processes piece by piece: a caller whose time is over waits to the end of one."""
        pieces = max(1, math.ceil(self._busy_timeout_s / _WAIT_S))
        self._connection.execute(f"PRAGMA busy_timeout = {round(self._busy_timeout_s / pieces * 1000)}")
        try:
            for more_tries in range(pieces - 1, -1, -1):
                try:
                    self._connection.execute("BEGIN IMMEDIATE")
                except sqlite3.OperationalError as error:
                    # The low byte is the kind; extended codes such as SQLITE_BUSY_SNAPSHOT are in the bytes above.
                    if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or not more_tries or self._given_up():
                        raise
                else:
                    return
        finally:
            self._connection.execute(f"PRAGMA busy_timeout = {round(self._busy_timeout_s * 1000)}")

    def _refuse_lost_file(self) -> None:
        """SQLite would go on writing to a removed file, and those rows would be lost."""
        if os.stat(self._name).st_ino != self._inode:
            raise StoreUnavailable("the session database was replaced while it was open", path=str(self._path))
        self._refuse_lost_log()

    def _refuse_lost_log(self) -> None:
        with suppress(FileNotFoundError):
            found = os.stat(self._log)
            # The usual case costs one stat. Only a log that looks different is looked into.
            if (found.st_dev, found.st_ino) == self._connection.log_file:
                return
        refuse_lost_log(self._connection, self._path)

    def _empty_log(self, *, wait_s: float | None = None) -> None:
        """Empty the write-ahead log, which also holds erased contents. If other readers still need it after the wait,
        `tidy` empties it later.
        """
        wait_s = self._busy_timeout_s if wait_s is None else wait_s
        with mapped_errors(self._path):
            self._connection.execute(f"PRAGMA busy_timeout = {round(wait_s * 1000)}")
            try:
                # TRUNCATE and not RESTART, which would leave the erased bytes in the file until they are written over.
                (busy, _, _) = self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            finally:
                self._connection.execute(f"PRAGMA busy_timeout = {round(self._busy_timeout_s * 1000)}")
        self._erased_in_log = bool(busy)
        self._unchecked_bytes = 0


# Leases: who owns a session.
#
# The line of a session in the table `sessions` names its last lease, by owner and generation. No two leases of a
# database have one generation, and at twice that number the file `<database>-leases` has two bytes of the lease:
#
#     first byte    its owner writes "h" when it takes the session, and "f" when it gives it up
#     second byte   the next owner writes "x": nobody owns the session under this lease again
#
# A session is held while its lease says "h" and its owner lives, which a lock of the kernel shows (`OwnerLock`). Its
# owner gives it up and takes it again by these bytes alone. Everybody else ends the lease first, in the transaction
# that writes the line of the next one. Each of two that meet writes its byte and then reads the other one, so that at
# least one gives way. The file decides who tries, and the database who writes: each commit compares the line
# (`docs/design/ownership.md`).
#
# Transactions that only change lines are not synced. A power cut can undo them, but it ends every owner on the machine
# with them, and an owner that had committed rows has its line on disk: the sync of the rows covers all before them.


_LINE = f"SELECT {SANE_GENERATION}, coalesce(CAST(owner AS TEXT), '') FROM sessions WHERE name = ?"
"""A session's generation and owner, with the types that we write."""
_LATEST = (
    f"SELECT coalesce(max({SANE_GENERATION}), 0), (SELECT max(claims) FROM pending_work WHERE session = ?) FROM settled"
)
_HELD, _FREE, _ENDED = b"h", b"f", b"x"


class LeaseMarks:
    """The bytes of leases. Errors of every method: `OSError`; `Invalid` where no file has its place."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def begin(self, generation: int) -> None:
        self._write(2 * generation, _HELD + b"\0")

    def begin_again(self, generation: int) -> bool:
        """Hold a lease that its owner has given up. False if it was ended, or nothing is known of it."""
        with self._opened() as file:
            if os.pread(file, 2, 2 * generation) != _FREE + b"\0":
                return False
            # Write, then look at the other's byte: the successor does the same the other way round, so at least one of
            # the two sees the other.
            os.pwrite(file, _HELD, 2 * generation)
            if os.pread(file, 1, 2 * generation + 1) != _ENDED:
                return True
            os.pwrite(file, _FREE, 2 * generation)
            return False

    def give_up(self, generation: int) -> None:
        self._write(2 * generation, _FREE)

    def end(self, generation: int) -> None:
        """Let nobody hold a lease again. Whoever holds it now notices at its next commit."""
        self._write(2 * generation + 1, _ENDED)

    def says_held(self, generation: int) -> bool:
        """True if the lease is held, or its owner died with it."""
        with self._opened() as file:
            return os.pread(file, 1, 2 * generation) == _HELD

    def _write(self, at: int, marks: bytes) -> None:
        with self._opened() as file:
            os.pwrite(file, marks, at)

    @contextmanager
    def _opened(self) -> Generator[int]:
        """The file that has the name now, since nobody looks into one that was removed."""
        file = open_file(self._path, os.O_RDWR | os.O_CREAT)
        try:
            yield file
        finally:
            os.close(file)


class OwnedLease(Lease, frozen=True, kw_only=True, eq=False):
    """A lease of this process, which is released and acquired again in any thread, and what is known under it."""

    table: LeaseTable
    scope: str | None
    """The session's name in the tables alongside; None: it has none."""
    has_debts: bool
    """True if the table of pending work may have lines of the session."""
    journals: dict[str, int] = field(default_factory=dict[str, int])
    """Agent id to the key of its journal."""
    epoch: int = -1
    """The epoch of the heads when the lease was last compared with the database."""

    def release_now(self) -> bool:
        return self.table.release(self)

    def acquire_now(self) -> bool:
        return self.table.acquire_again(self)


class LeaseTable:
    """The leases of one owner. `acquire_again` and `release` are called in any thread and raise nothing, the others in
    the transaction of the thread that has the connection.
    """

    def __init__(self, connection: sqlite3.Connection, path: Path, lock: OwnerLock, owner: str) -> None:
        self._connection = connection
        self._file = LeaseMarks(path)
        self._lock = lock
        self._owner = owner
        self.held: dict[str, OwnedLease] = {}
        self._claimed: set[str] = set()
        """Sessions whose work was claimed: their release says that the owner did not die of it."""
        self._guard = threading.Lock()
        """Guards what is held, between the threads."""

    def acquire(self, session_id: str, scope: str | None, *, takeover: bool = False) -> OwnedLease:
        """The next lease of a session, which nobody else holds; it is lost if the transaction fails. Errors:
        `SessionBusy`, when the owner was asked for the session.
        """
        self._lock.acquire()
        found, before = self.line(session_id), None
        # The highest of any session, since bytes of leases are found by generation alone. One page that is written
        # anyway.
        generation, claims = self._connection.execute(_LATEST, (session_id,)).fetchone()
        self.forget(session_id)
        if found is not None:
            last, owner = found
            before = owner if owner != self._owner and self._file.says_held(last) else None
            # By force, without asking whether the owner lives: its next commit finds another line, and is refused.
            if takeover:
                self._file.end(last)
            elif not self.end(session_id, last, owner):
                self._lock.ask(owner, session_id)
                raise busy(session_id, owner)
            # In a database that was put back from a copy, the table may be behind the line of the session.
            generation = max(generation, last)
        generation += 1
        # Before the transaction ends: if that fails, these two bytes say that a lease is held which no line names.
        # Harmless.
        self._file.begin(generation)
        held = OwnedLease(
            session_id=session_id,
            owner=self._owner,
            generation=generation,
            taken_from=before,
            table=self,
            scope=scope,
            has_debts=claims is not None,
        )
        # Somebody has claimed work of this session, and this owner has to say that it did not die of it.
        if claims:
            self._claimed.add(session_id)
        self.held[session_id] = held
        self._connection.execute(
            "INSERT INTO sessions (name, generation, owner) VALUES (?, ?, ?)"
            " ON CONFLICT (name) DO UPDATE SET generation = excluded.generation, owner = excluded.owner",
            (session_id, generation, self._owner),
        )
        self._connection.execute("UPDATE settled SET generation = ?", (generation,))
        return held

    def acquire_again(self, lease: Lease) -> bool:
        """Hold a lease that was released. False if the session may have had another owner since."""
        if not isinstance(lease, OwnedLease) or lease.table is not self:
            return False
        with self._guard, suppress(OSError, RepertoryError):
            # Without the lock of its own file, others would take this owner for dead while it holds the session.
            if self._lock.held and lease.session_id not in self.held and self._file.begin_again(lease.generation):
                self.held[lease.session_id] = lease
                return True
        return False

    def release(self, lease: Lease, *, settled: bool = False) -> bool:
        """Give a session up, if the lease is still held here, and tell those that wait for it. False if its claims must
        be `settled` first, or the file cannot be written now.
        """
        with self._guard:
            if self.held.get(lease.session_id) != lease:
                return True
            if not settled and lease.session_id in self._claimed:
                return False
            try:
                self._file.give_up(lease.generation)
            except (OSError, RepertoryError):
                return False
            # After the byte was written: if that fails the session stays held, and can be given up later.
            del self.held[lease.session_id]
            self._claimed.discard(lease.session_id)
        # Outside of the guard, since it rings others, which opens a pipe.
        self._lock.freed(lease.session_id)
        return True

    def claimed(self, session_id: str) -> None:
        """Work of a session was claimed. Whoever owns it next must know, and reads so when it acquires the session."""
        generation, owner = self.line(session_id) or (0, self._owner)
        if owner == self._owner:
            self._claimed.add(session_id)
        else:
            # Claimed for another store that gave it up: its lease is ended, so that it must acquire it anew, and then
            # reads that there is a claim.
            self._file.end(generation)

    def forget(self, session_id: str) -> None:
        """Hold a session no longer, and never again under its lease: it was lost, deleted or acquired anew."""
        held = self.held.get(session_id)
        if held is not None:
            self._file.end(held.generation)
            self.release(held, settled=True)

    def check(self, lease: Lease, epoch: int) -> OwnedLease | LeaseLost:
        """The lease with its journals, or the error for its holder. Reads the database only when `epoch` changed."""
        held = self.held.get(lease.session_id)
        if held is None or held != lease:
            return lost(lease)
        # As long as no other connection has changed the file, the line cannot have changed: no read in most commits.
        if held.epoch != epoch:
            if self.line(lease.session_id) != (lease.generation, lease.owner):
                self.forget(lease.session_id)
                return lost(lease)
            force_setattr(held, "epoch", epoch)
            # Another process may have deleted the session and begun it anew: keys are looked up again.
            held.journals.clear()
        return held

    def line(self, session_id: str) -> tuple[int, str] | None:
        """The generation and the owner of a session's last lease; None when it does not exist."""
        return self._connection.execute(_LINE, (session_id,)).fetchone()

    def end(self, session_id: str, generation: int, owner: str) -> bool:
        """End a session's last lease, unless this store holds it. False if another one does, perhaps since just now."""
        if self.owned(session_id, generation, owner) is None:
            self._file.end(generation)
        return self.owned(session_id, generation, owner) is not False

    def owned(self, session_id: str, generation: int, owner: str) -> bool | None:
        """True if this store holds that lease of a session, False if another one does, None if nobody."""
        held = self.held.get(session_id)
        if held is not None and held.generation == generation:
            return True
        # In this order: the byte is one read, the lock of the owner an open and a lock.
        others = owner != self._owner and self._file.says_held(generation)
        return False if others and self._lock.alive(owner) else None
