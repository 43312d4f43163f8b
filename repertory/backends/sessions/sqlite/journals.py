"""Every statement that runs on a session database, over one connection.

Blocking: it belongs to one thread. Each method is one transaction; after an error nothing of it is stored. Errors are
those of the port. `reading.py` says how rows lie in the file and how they are found.
"""

from __future__ import annotations

import math
import os
import sqlite3
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar, cast

from msgspec import Struct
from msgspec.structs import replace

from repertory.backends.peer_ports import BoxedCall
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
    not_again,
)
from repertory.backends.sessions.asking import Bells
from repertory.backends.sessions.liveness import OwnerLock, noted_in
from repertory.backends.sessions.sqlite.calls import CallTable
from repertory.backends.sessions.sqlite.corrupt_file import CorruptFile, Quarantine, is_id
from repertory.backends.sessions.sqlite.file import (
    CommitHook,
    counts_journals,
    is_ours,
    mapped_error,
    mapped_errors,
    open_database,
    owners_folder,
    refuse_lost_log,
)
from repertory.backends.sessions.sqlite.owed import OwedTable
from repertory.backends.sessions.sqlite.reading import (
    CHAIN,
    LOAD,
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
from repertory.core.owed import DueTime, OwedWork, Resting
from repertory.errors import (
    Corrupt,
    CorruptJournal,
    LeaseLost,
    RepertoryError,
    StoreNotFound,
    StoreUnavailable,
)

if TYPE_CHECKING:
    from repertory.backends.sessions.sqlite.peers import PeerFiles

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
        alongside: CommitHook | None = None,
        given_up: Callable[[], bool] = lambda: False,
    ) -> None:
        """`given_up`: True when nobody waits any more for what is done now."""
        self._given_up = given_up
        self._path = path
        self._name, self._log = str(path), f"{path}-wal"
        self._alongside = alongside
        owners = owners_folder(path)
        noted = noted_in(owners)
        self._connection = open_database(path, busy_timeout_s=busy_timeout_s, alongside=alongside)
        self._inode = os.stat(path).st_ino
        self._lock = OwnerLock(owners, owner)
        self.bells = Bells(owners, owner)
        self._leases = LeaseTable(self._connection, self._lock, owner)
        self._heads = Heads(self._connection, self._name)
        self._owed: OwedTable | None = None
        self._calls: CallTable | None = None
        """None as long as the table was not seen, both of them."""
        self._owner = owner
        self._peers: PeerFiles | None = None
        self._unchecked_bytes = 0
        self._busy_timeout_s = busy_timeout_s
        self._erased_in_log = False
        """True if the log may still hold erased contents."""
        self._in_vain = False
        """True if the last transaction did not get the lock."""
        try:
            with mapped_errors(path):
                self._counting = counts_journals(self._connection)
            self._reading = JournalReader(self._connection, self._heads, self._name, counting=self._counting)
            self._refuse_lost_commits(noted)
        except BaseException:
            self._connection.close()
            raise

    def _refuse_lost_commits(self, noted: int) -> None:
        """Raise `CorruptJournal` when the database ends before the last commit that an owner noted."""
        with self._transaction("read"):
            end = self._heads.end
        if end < noted:
            text = (
                "commits that were acknowledged are missing: the database or its log was cut, damaged or replaced;"
                " restore it, or call `doctor --repair` to go on with what is there"
            )
            raise CorruptJournal(text, path=self._name, last_position=end, committed=noted)

    def acquire(
        self, session_id: str, *, takeover: bool = False, load: str | None = None, again: Lease | None = None
    ) -> OwnedRows:
        """The lease is committed before the rows are read, so that reading many keeps no other writer waiting."""
        scope = self._scope_of(session_id)
        with self._transaction("unsynced"):
            if again is None:
                held = self._leases.acquire(session_id, takeover=takeover)
            elif not is_ours(self._connection) or (held := self._leases.acquire_again(again)) is None:
                raise not_again(again)
            held.scope = scope
            if held.fresh and not self._reading.is_unknown(session_id):
                held.fresh = False
                if self._counting and self._reading.least(session_id):
                    # The lease was lost, and with it how many journals there were: `doctor` finds out.
                    self._connection.execute("UPDATE sessions SET journals = 1 << 62 WHERE name = ?", (session_id,))
        try:
            return OwnedRows(held.lease, () if load is None else self.load(session_id, load, whole=False))
        except RepertoryError as error:
            return OwnedRows(held.lease, error)

    def release(self, leases: Sequence[Lease]) -> None:
        with self._transaction("unsynced"):
            owed = self._owing()
            for lease in leases:
                self._leases.release(lease)
                if owed is not None:
                    owed.released(lease.session_id)
        for lease in leases:
            self._lock.freed(lease.session_id)

    def asked_for(self) -> list[str]:
        with mapped_errors(self._path):
            return [session_id for session_id in self._lock.asked_for() if session_id in self._leases.held]

    def append(self, batches: Sequence[Batch]) -> list[Position | LeaseLost]:
        rows: list[tuple[object, ...]] = []
        erased = False
        packed = [pack_rows(batch.rows) for batch in batches]  # Here, no other process waits for this yet.
        with self._transaction("synced"):
            outcomes: list[Position | LeaseLost] = []
            for batch, stored in zip(batches, packed, strict=True):
                outcome = self._place(batch, stored, rows)
                outcomes.append(outcome)
                if self._alongside is not None and isinstance(outcome, Position):
                    self._store_alongside(self._alongside, batch)
                if batch.due is not None and isinstance(outcome, Position):
                    self._note_due(batch.lease.session_id, batch.due)
                if batch.erase and isinstance(outcome, Position):
                    # Erased contents may be in rows of this same group.
                    self._insert(rows)
                    self._erase(batch)
                    erased = True
            self._insert(rows)
            self._heads.note()
        if erased:
            self._empty_log()
        return outcomes

    def claim_due(
        self, now: float, limit: int, agents: Collection[str], resting: Collection[Resting], passing: Collection[str]
    ) -> list[OwedWork]:
        with self._transaction("read"):  # Without waiting for writers: most looks find nothing.
            owed = self._owing()
            if owed is None or not owed.claimable(now, 1, agents, self._leases.owned, resting, passing):
                return []
        with self._transaction("unsynced"):
            works = owed.claimable(now, limit, agents, self._leases.owned, resting, passing)
            owed.claim(now, works)
            return works

    def owed(self, session_id: str | None) -> list[OwedWork]:
        with self._transaction("read"):
            owed = self._owing()
            return [] if owed is None else owed.all(session_id)

    def on_calls(self, work: Callable[[CallTable], T], *, size_bytes: int = 0) -> T:
        """Change the calls that nobody waits for, durably. `size_bytes`: of what is stored."""
        with self._transaction("synced"):
            if (calls := self._calling()) is None:
                calls = self._calls = CallTable.made(self._connection)
            result = work(calls)
        self._unchecked_bytes += _PAGES_OF_CALLS * _PAGE_BYTES + size_bytes
        return result

    def calls(self, session_id: str | None) -> list[BoxedCall]:
        with self._transaction("read"):
            return [] if (calls := self._calling()) is None else calls.all(session_id)

    def may_take(self, agents: Collection[str], passing: Collection[str]) -> bool:
        """False if `take` would take and change nothing. Waits for no writer."""
        with self._transaction("read"):
            calls = self._calling()
            return calls is not None and calls.anything(self._owner, agents, passing, self._lock.alive)

    def take(self, limit: int, agents: Collection[str], passing: Collection[str]) -> list[BoxedCall]:
        """This owner is alive from now on. Not synced: a power cut ends every owner that has taken something."""
        with self._transaction("unsynced"):
            self._lock.acquire()
            calls = self._calling()
            taken = [] if calls is None else calls.take(self._owner, limit, agents, passing, self._lock.alive)
        self._unchecked_bytes += _PAGES_OF_CALLS * _PAGE_BYTES
        return taken

    def on_peers(self, work: Callable[[PeerFiles], T]) -> T:
        """Read or change the list of peers."""
        from repertory.backends.sessions.sqlite.peers import PeerFiles  # loaded when used

        with mapped_errors(self._path):
            self._refuse_lost_file()
            self._peers = self._peers or PeerFiles(self._path, self._owner, self._lock)
            return work(self._peers)

    def owner_of(self, session_id: str) -> str | None:
        """The live owner of a session."""
        with self._transaction("read"):
            found = self._leases.line(session_id)
        return found[1] if found is not None and self._leases.alive(found[1]) else None

    def load(self, session_id: str, agent_id: str, *, whole: bool) -> list[Row]:
        with self._transaction("read"):
            held = self._leases.held.get(session_id)
            fresh = held is not None and held.fresh
            return self._reading.load(session_id, agent_id, whole=whole, fresh=fresh)

    def rows_at(self, session_id: str, agent_id: str, seq: int) -> list[Row]:
        with self._transaction("read"):
            return self._reading.rows_at(session_id, agent_id, seq)

    def rows_between(self, session_id: str, agent_id: str, first: int, last: int) -> list[Row]:
        with self._transaction("read"):
            return self._reading.rows_between(session_id, agent_id, first, last)

    def label_rows(self, session_id: str, agent_id: str) -> list[Row]:
        with self._transaction("read"):
            return self._reading.label_rows(session_id, agent_id)

    def sessions(self, session_id: str | None = None) -> list[SessionInfo]:
        with self._transaction("read"):
            listed = self._reading.listed(session_id)
        return self._infos(listed)

    def session_page(self, page: IdPage) -> list[SessionInfo]:
        listed: dict[str, Listed] = {}
        after = page.after
        with self._transaction("read"):
            while page.limit > len(listed) and (
                names := self._reading.names_after(page.prefix, after, page.limit - len(listed))
            ):
                for after in names:
                    listed |= self._reading.listed(after)
        return sorted(self._infos(listed), key=lambda info: info.session_id)

    def _infos(self, listed: Mapping[str, Listed]) -> list[SessionInfo]:
        infos = [
            SessionInfo(
                session_id=name,
                agents=about.agents,
                created_at=about.created_at,
                updated_at=about.updated_at or about.created_at,
                owner=about.owner if self._leases.alive(about.owner) else None,
                damaged=about.damaged,
            )
            for name, about in listed.items()
        ]
        return newest_first(infos)

    def delete(self, session_id: str) -> None:
        with self._transaction("synced"):
            called = (calls := self._calling()) is not None and calls.forget(session_id)
            try:
                self._delete(session_id)
            except StoreNotFound:
                if not called:
                    raise
        self._heads.forget()
        self._empty_log()

    def inspect(self) -> Inspection:
        found = self._quarantine().inspect()
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

    def quarantined(self, session_id: str) -> list[str]:
        with self._transaction("read"):
            return self._quarantine().names(session_id)

    def set_aside(self, session_id: str, keep: Sequence[Row]) -> str:
        scope = self._scope_of(session_id)
        with self._transaction("synced"):
            self._refuse_other_hands(session_id)
            self._heads.settle()
            moved_to = self._quarantine().move(session_id)
            if self._counting:
                self._connection.execute("UPDATE sessions SET journals = 0 WHERE name = ?", (session_id,))
            held = self._leases.acquire(session_id, takeover=False)
            held.scope = scope
            self._place_all(held, pack_rows(keep), keep)
            self._heads.settle()
            self._leases.release(held.lease)
        self._heads.forget()
        return moved_to

    def tidy(self) -> None:
        """Checkpoint the log when it has grown, off the path of commits. Failures are retried later."""
        try:
            if self._erased_in_log:
                self._empty_log(wait_s=0.0)
            elif self._unchecked_bytes >= CHECKPOINT_BYTES:
                self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
                self._unchecked_bytes = 0
        except (sqlite3.Error, RepertoryError):
            return

    def close(self) -> None:
        """Writes nothing: leases end with their owner's lock."""
        try:
            with mapped_errors(self._path):
                self._connection.close()
        finally:
            self._lock.release()

    def _quarantine(self) -> Quarantine:
        return Quarantine(self._connection, self._name)

    def _scope_of(self, session_id: str) -> str | None:
        scope_of = None if self._alongside is None else self._alongside.scope_of
        return None if scope_of is None else scope_of(session_id)

    # Within a transaction.

    def _owing(self) -> OwedTable | None:
        """The table of owed work; None while nothing was ever owed here."""
        if self._owed is None:
            statement = "SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND name = 'owed'"
            if self._connection.execute(statement).fetchone() != (0,):
                self._owed = OwedTable(self._connection)
        return self._owed

    def _calling(self) -> CallTable | None:
        """The table of calls; None while none was ever put here."""
        if self._calls is None:
            self._calls = CallTable.found(self._connection)
        return self._calls

    def _note_due(self, session_id: str, due: DueTime) -> None:
        owed = self._owing()
        if owed is None and due.at is not None:
            owed = self._owed = OwedTable.made(self._connection)
        if owed is not None:
            owed.note(session_id, due)

    def _delete(self, session_id: str) -> None:
        generation = self._refuse_other_hands(session_id)
        # Heads must not depend on the deleted rows, whose positions are never used again.
        self._heads.settle()
        self._delete_rows(session_id)
        self._quarantine().remove(session_id)
        if self._alongside is not None:
            self._alongside.deleted(self._connection, session_id)
        self._connection.execute("UPDATE settled SET generation = max(generation, ?)", (generation,))
        if (owed := self._owing()) is not None:
            owed.forget(session_id)
        self._leases.held.pop(session_id, None)

    def _refuse_other_hands(self, session_id: str) -> int:
        """The generation of a session that exists and has no live owner other than this one."""
        found = self._leases.line(session_id)
        if found is None and not self._reading.least(session_id):  # Journals are there even if this line was lost.
            raise StoreNotFound("no such session", session=session_id)
        generation, owner = found or (0, None)
        if owner is not None and self._leases.in_other_hands(owner):
            raise busy(session_id, owner)
        return generation

    def _place(self, batch: Batch, stored: Sequence[Row], rows: list[tuple[object, ...]]) -> Position | LeaseLost:
        """Add the batch's rows, given in stored form, to `rows` for the insert: all of them or none."""
        held = self._leases.check(batch.lease, self._heads.epoch)
        if isinstance(held, LeaseLost):
            return held
        ends: dict[str, tuple[int, int, int]] = {}
        placed: list[tuple[object, ...]] = []
        first: list[tuple[int, Row]] = []
        position = self._heads.end
        for row in stored:
            agent_id, seq = row[0], row[1]
            journal, previous, last = ends.get(agent_id) or self._end_of(held, agent_id)
            if seq != last + 1:
                return LeaseLost(
                    "rows do not follow what is stored", session=held.lease.session_id, seq=seq, stored=last
                )
            position += 1
            if not journal:
                journal = position
                first.append((position, row))
            placed.append((position, journal, previous, *row[1:]))
            ends[agent_id] = journal, position, seq
        for journal, row in first:
            self._create_journal(held, row, journal, batch.rows)
        for journal, end, seq in ends.values():
            self._heads.moved(journal, LastRow(end, seq))
        rows += placed
        return self._position(batch, held)

    def _place_all(self, held: OwnedLease, packed: Sequence[Row], rows: Sequence[Row]) -> None:
        """Insert the rows, given in stored form and as they are."""
        batch, placed = Batch(lease=held.lease, rows=rows), list[tuple[object, ...]]()
        outcome = self._place(batch, packed, placed)
        if isinstance(outcome, LeaseLost):
            raise outcome
        if self._alongside is not None:
            self._store_alongside(self._alongside, batch)
        self._insert(placed)

    def _position(self, batch: Batch, held: OwnedLease) -> Position:
        if batch.rows:
            return Position(agent_id=batch.rows[-1].agent_id, seq=batch.rows[-1].seq)
        agent_id = batch.erase[-1][0] if batch.erase else ""
        return Position(agent_id=agent_id, seq=self._end_of(held, agent_id)[2])

    def _end_of(self, held: OwnedLease, agent_id: str) -> tuple[int, int, int]:
        """The key of the agent's journal (0 when there is none), and position and sequence number of its last row."""
        journal = held.journals.get(agent_id)
        if journal is None:
            journal = self._reading.journal(held.lease.session_id, agent_id, fresh=held.fresh)
            if journal is None:
                return 0, 0, 0
            held.journals[agent_id] = journal
        head = self._heads.of(journal)
        return journal, head.position, head.seq

    def _create_journal(self, held: OwnedLease, first: Row, position: int, rows: Sequence[Row]) -> None:
        its_own = (row for row in rows if row.agent_id == first.agent_id and not row.erased)
        created_at = next((at_of(row.body) for row in its_own), None)
        self._connection.execute(
            "INSERT INTO journals (id, session, agent, created_at, head, seq) VALUES (?, ?, ?, ?, 0, 0)",
            (position, held.lease.session_id, check_id(first.agent_id, "agent id"), created_at),
        )
        if self._counting:
            self._connection.execute(
                "UPDATE sessions SET journals = coalesce(journals, 0) + 1 WHERE name = ?", (held.lease.session_id,)
            )
        held.journals[first.agent_id] = position

    def _insert(self, rows: list[tuple[object, ...]]) -> None:
        if rows:
            self._connection.executemany(_INSERT, rows)
            self._unchecked_bytes += _PAGE_BYTES + sum(len(cast("bytes", row[9])) + 64 for row in rows)
            rows.clear()

    def _store_alongside(self, alongside: CommitHook, batch: Batch) -> None:
        """Contents that the batch itself erases are left out."""
        held = self._leases.check(batch.lease, self._heads.epoch)
        if isinstance(held, LeaseLost) or held.scope is None:
            return
        rows = [row for row in batch.rows if (row.agent_id, row.seq) not in batch.erase] if batch.erase else batch.rows
        alongside.stored(self._connection, held.scope, held.lease.session_id, rows)
        self._unchecked_bytes += _PAGES_ALONGSIDE * _PAGE_BYTES

    def _erase(self, batch: Batch) -> None:
        held = self._leases.check(batch.lease, self._heads.epoch)
        erased: list[tuple[str, int]] = []
        for agent_id, seq in batch.erase:
            _, position, last = self._end_of(held, agent_id) if isinstance(held, OwnedLease) else (0, 0, 0)
            if not 0 < seq <= last:
                continue
            values = self._connection.execute(f"{LOAD} WHERE rows.seq = ?", (position, seq, agent_id, seq)).fetchone()
            gone = unpacked(Row._make(values)).without_content()
            self._connection.execute(
                f"{CHAIN}UPDATE rows SET salt = ?, body = ? WHERE position = (SELECT min(position) FROM chain)",
                (position, seq, gone.salt, gone.body),
            )
            erased.append((agent_id, seq))
        if self._alongside is not None and erased:
            self._alongside.erased(self._connection, batch.lease.session_id, erased)

    def _delete_rows(self, session_id: str) -> None:
        journals = self._connection.execute(
            "SELECT id, head, seq FROM journals WHERE session = ?", (session_id,)
        ).fetchall()
        if len(journals) < self._reading.least(session_id):
            text = "the session is damaged, so some of it would stay in the file; `doctor` says more"
            raise CorruptJournal(text, path=self._name, session=session_id)
        for journal, head, seq in journals:
            self._connection.execute(
                f"{CHAIN}DELETE FROM rows WHERE position IN (SELECT position FROM chain)", (head, 1)
            )
            if self._connection.execute("SELECT changes()").fetchone() != (seq,):  # The chain is broken: look anywhere.
                self._connection.execute("DELETE FROM rows WHERE journal = ?", (journal,))
        self._connection.execute("DELETE FROM journals WHERE session = ?", (session_id,))
        self._connection.execute("DELETE FROM sessions WHERE name = ?", (session_id,))

    @contextmanager
    def _transaction(self, mode: Literal["synced", "unsynced", "read"]) -> Generator[None, None, None]:
        """Begin, catch up with other processes, and commit. An error leaves no trace."""
        try:
            self._refuse_lost_file()
            if mode == "read":
                self._connection.execute("BEGIN")
            else:
                self._connection.execute(f"PRAGMA synchronous = {'FULL' if mode == 'synced' else 'NORMAL'}")
                self._begin_to_write()
            self._heads.catch_up()
            yield
            self._connection.execute("COMMIT")
            if mode != "read":
                self._refuse_lost_log()
            if mode == "synced":
                self._lock.note(self._heads.end)
        except BaseException as error:
            roll_back(self._connection)
            self._heads.forget()
            self._owed = self._calls = None  # They may have been made in this transaction.
            if isinstance(error, UNUSABLE_VALUES) and not isinstance(error, RepertoryError):
                raise mapped_error(error, self._path) from error
            raise

    def _begin_to_write(self) -> None:
        """Wait for other processes piece by piece: a caller whose time is over waits to the end of one, or not at all
        behind one that waited in vain. A drain has many of them.
        """
        pieces = max(1, math.ceil(self._busy_timeout_s / _WAIT_S))
        piece_s = 0.0 if self._in_vain and self._given_up() else self._busy_timeout_s / pieces
        self._connection.execute(f"PRAGMA busy_timeout = {round(piece_s * 1000)}")
        self._in_vain = True
        try:
            for left in range(pieces - 1, -1, -1):
                try:
                    self._connection.execute("BEGIN IMMEDIATE")
                except sqlite3.OperationalError as error:
                    if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or not left or self._given_up():
                        raise
                else:
                    self._in_vain = False
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
                (busy, _, _) = self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            finally:
                self._connection.execute(f"PRAGMA busy_timeout = {round(self._busy_timeout_s * 1000)}")
        self._erased_in_log = bool(busy)
        self._unchecked_bytes = 0


# Leases: a line of the table `sessions` says who owns a session.
#
# A lease is current as long as its line names its generation and its owner. The owner is alive as long as it holds its
# lock. Transactions that only change leases are not fsynced. A power cut can undo them, but it ends every owner on the
# machine with them, and an owner that had committed rows has its lease on disk: the fsync of the rows covers everything
# before them.


_SANE = "CASE WHEN typeof(generation) = 'integer' AND generation BETWEEN 0 AND 1 << 62 THEN generation ELSE 0 END"
"""A damaged generation counts as 0: owner names are unique, so leases still differ."""
_LINE = f"SELECT {_SANE}, CAST(owner AS TEXT) FROM sessions WHERE name = ?"
"""A session's generation and owner, with the types that we write."""


class OwnedLease(Struct):
    """A lease of this store, and what is known while it is current."""

    lease: Lease
    journals: dict[str, int] = {}
    """Agent id to the key of its journal."""
    scope: str | None = None
    """The session's name in the tables alongside; None: it has none."""
    fresh: bool = False
    """True if the session did not exist when it was acquired."""
    epoch: int = -1
    """The epoch of the heads when this lease was last compared with the database."""


class LeaseTable:
    """The leases of one owner on one database. Every method runs within the caller's transaction."""

    def __init__(self, connection: sqlite3.Connection, lock: OwnerLock, owner: str) -> None:
        self._connection = connection
        self._lock = lock
        self._owner = owner
        self.held: dict[str, OwnedLease] = {}

    def acquire(self, session_id: str, *, takeover: bool) -> OwnedLease:
        self._lock.acquire()
        found, before = self.line(session_id), None
        if found is None:
            generation = self._create(session_id)
        else:
            generation, owner = found
            before = owner if owner != self._owner else None
            if owner is not None and not takeover and self.in_other_hands(owner):
                self._lock.ask(owner, session_id)
                raise busy(session_id, owner)
            generation += 1
            self._connection.execute(
                "UPDATE sessions SET generation = ?, owner = ? WHERE name = ?", (generation, self._owner, session_id)
            )
        lease = Lease(session_id=session_id, owner=self._owner, generation=generation, taken_from=before)
        held = self.held[session_id] = OwnedLease(lease, fresh=found is None)
        return held

    def acquire_again(self, lease: Lease) -> OwnedLease | None:
        """None if somebody has owned the session since this lease was released, or it was deleted."""
        self._lock.acquire()
        statement = "UPDATE sessions SET owner = ? WHERE name = ? AND generation = ? AND owner IS NULL"
        values = self._owner, lease.session_id, lease.generation
        if lease.owner != self._owner or not self._connection.execute(statement, values).rowcount:
            return None
        held = self.held[lease.session_id] = OwnedLease(lease)
        return held

    def release(self, lease: Lease) -> None:
        held = self.held.get(lease.session_id)
        if held is not None and held.lease == lease:
            del self.held[lease.session_id]
        self._connection.execute(
            "UPDATE sessions SET owner = NULL WHERE name = ? AND generation = ? AND owner = ?",
            (lease.session_id, lease.generation, lease.owner),
        )

    def check(self, lease: Lease, epoch: int) -> OwnedLease | LeaseLost:
        """What is known under this lease, or the error for its holder. Reads the database only when `epoch` has changed
        since.
        """
        held = self.held.get(lease.session_id)
        if held is None or held.lease != lease:
            return lost(lease)
        if held.epoch != epoch:
            if self.line(lease.session_id) != (lease.generation, lease.owner):
                del self.held[lease.session_id]
                return lost(lease)
            held.epoch = epoch
            held.journals.clear()
        return held

    def line(self, session_id: str) -> tuple[int, str | None] | None:
        """The session's generation and owner; None when it does not exist."""
        return self._connection.execute(_LINE, (session_id,)).fetchone()

    def in_other_hands(self, owner: str) -> bool:
        """True if the owner is alive and not this one."""
        return owner != self._owner and self._lock.alive(owner)

    def alive(self, owner: str | None) -> bool:
        """True if the owner is alive: this one or another."""
        return owner is not None and ((owner == self._owner and self._lock.held) or self.in_other_hands(owner))

    def owned(self, owner: str | None) -> bool | None:
        """True if the owner is this one, False if it is another one that is alive, None if it is dead."""
        if owner is None or not self.alive(owner):
            return None
        return owner == self._owner

    def _create(self, session_id: str) -> int:
        """The first generation of a session: higher than any of a deleted session."""
        (floor,) = self._connection.execute(
            "SELECT coalesce(max(CAST(generation AS INTEGER)), 0) FROM settled"
        ).fetchone()
        self._connection.execute(
            "INSERT INTO sessions (name, generation, owner) VALUES (?, ?, ?)", (session_id, floor + 1, self._owner)
        )
        return floor + 1
