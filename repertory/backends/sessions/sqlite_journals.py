"""Everything that is asked of a session database, as statements on one connection.

Blocking: it belongs to one thread. Each method is one transaction; after an error nothing of it is stored. Errors are
those of the port. `sqlite_heads.py` says how rows lie in the file and how they are found.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from repertory.backends.mending_ports import Inspection, Salvage
from repertory.backends.ports import Batch, Lease, Position, SessionInfo
from repertory.backends.sessions.alongside import Alongside
from repertory.backends.sessions.owner_lock import OwnerLock
from repertory.backends.sessions.sqlite_bodies import packed, unpack, unpacked
from repertory.backends.sessions.sqlite_file import mapped_error, mapped_errors, open_database, owners_folder
from repertory.backends.sessions.sqlite_heads import NO_HEAD, Head, Heads
from repertory.backends.sessions.sqlite_leases import Held, Leases
from repertory.backends.sessions.sqlite_positions import nearest
from repertory.backends.sessions.sqlite_quarantine import Quarantine
from repertory.backends.sessions.sqlite_wreck import Wreck
from repertory.core.ids import check_id
from repertory.core.journal.codec import at_of
from repertory.core.journal.rows import Row
from repertory.errors import CorruptJournal, LeaseLost, SessionBusy, StoreNotFound, StoreUnavailable, Unavailable

CHECKPOINT_BYTES = 1024 * 1024
"""About how much the log in front of the database may hold before it is copied over. A log that has once grown to this
size is written over from its beginning, which is quicker than letting it grow: so not too much."""

_PAGE_BYTES = 4096
_PAGES_ALONGSIDE = 12
"""About how many pages a commit changes in the tables alongside."""

_INSERT = (
    "INSERT INTO rows (position, journal, previous, seq, kind, version, low, link, salt, body)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)

_CHAIN = (
    "WITH RECURSIVE chain (position, previous) AS ("
    " SELECT position, previous FROM rows WHERE position = ?1"
    " UNION ALL SELECT rows.position, rows.previous FROM chain CROSS JOIN rows"
    " ON rows.position = chain.previous WHERE rows.seq >= ?2) "
)
"""The positions of a journal's rows from the one at ?1 back to sequence number ?2."""

_COLUMNS = (
    "CAST(seq AS INTEGER), CAST(kind AS INTEGER), CAST(version AS INTEGER), CAST(low AS INTEGER), CAST(link AS BLOB),"
    " CAST(salt AS BLOB), CAST(body AS BLOB)"
)
"""Of a row, as we write them. Whoever has edited one by hand may have left values of other types."""

_LOAD = f"{_CHAIN}SELECT ?3, {_COLUMNS} FROM chain CROSS JOIN rows ON rows.position = chain.position"

_SCAN = f"SELECT ?1, {_COLUMNS} FROM rows WHERE position BETWEEN ?2 AND ?3 AND journal = ?2 ORDER BY position"
"""The rows of a whole journal, read past those of others."""

_LABELS = (
    f"SELECT ?1, {_COLUMNS} FROM rows WHERE journal = ?2 AND kind = 10 AND salt != x'' AND position <= ?3"
    " ORDER BY position"
)
"""The snapshots of a journal, by the index that holds nothing but snapshots."""

_AGENTS = (
    "SELECT journals.session, journals.created_at, sessions.owner, journals.agent, journals.id"
    " FROM journals LEFT JOIN sessions ON sessions.name = journals.session"
    " WHERE ?1 IS NULL OR journals.session = ?1 ORDER BY journals.id"
)


class Journals:
    """A session database, open."""

    def __init__(self, path: Path, owner: str, *, busy_timeout_s: float, alongside: Alongside | None = None) -> None:
        self._path = path
        self._name = str(path)
        self._alongside = alongside
        self._connection = open_database(path, busy_timeout_s=busy_timeout_s, alongside=alongside)
        self._inode = os.stat(path).st_ino
        self._lock = OwnerLock(owners_folder(path), owner)
        self._leases = Leases(self._connection, self._lock, owner)
        self._heads = Heads(self._connection)
        self._quarantine = Quarantine(self._connection, self._name)
        self._unchecked_bytes = 0
        self._busy_timeout_s = busy_timeout_s
        self._erased_in_log = False
        """Whether the log may still hold what was erased."""

    def acquire(self, session_id: str, *, takeover: bool) -> Lease:
        scope = self._scope_of(session_id)
        with self._transaction("unsynced"):
            held = self._leases.acquire(session_id, takeover=takeover)
            held.scope = scope
            return held.lease

    def release(self, lease: Lease) -> None:
        with self._transaction("unsynced"):
            self._leases.release(lease)

    def asked_for(self) -> list[str]:
        with mapped_errors(self._path):
            return self._leases.asked_for()

    def append(self, batches: Sequence[Batch]) -> list[Position | LeaseLost]:
        rows: list[tuple[object, ...]] = []
        erased = False
        stored = [replace(batch, rows=packed(batch.rows)) for batch in batches]  # Before anybody has to wait for this.
        with self._transaction("synced"):
            outcomes: list[Position | LeaseLost] = []
            for given, batch in zip(batches, stored, strict=True):
                outcome = self._place(batch, rows)
                outcomes.append(outcome)
                if isinstance(outcome, Position):
                    self._store_alongside(given)
                if batch.erase and isinstance(outcome, Position):
                    # What is erased may stand in rows of this very group.
                    self._insert(rows)
                    self._erase(batch)
                    erased = True
            self._insert(rows)
            self._heads.settle()
        if erased:
            self._empty_log()
        return outcomes

    def load(self, session_id: str, agent_id: str, *, whole: bool) -> list[Row]:
        with self._transaction("read"):
            journal = self._journal(session_id, agent_id)
            if journal is None:
                return []
            head = self._heads.of(journal)
            if whole and _is_dense(journal, head):
                found = self._connection.execute(_SCAN, (agent_id, journal, head.position))
                return unpack(list(map(Row._make, found)))
            low = 1 if whole else self._low(head)
            return self._stretch(agent_id, head.position, low)

    def rows_at(self, session_id: str, agent_id: str, seq: int) -> list[Row]:
        with self._transaction("read"):
            journal = self._journal(session_id, agent_id)
            if journal is None or not 0 < seq <= (head := self._heads.of(journal)).seq:
                return []
            near = nearest(self._connection, journal, head, seq)
            found = self._connection.execute(f"{_CHAIN}SELECT min(position) FROM chain", (near.position, seq))
            (position,) = found.fetchone()
            return self._stretch(agent_id, position, self._low(Head(position, seq)))

    def label_rows(self, session_id: str, agent_id: str) -> list[Row]:
        with self._transaction("read"):
            journal = self._journal(session_id, agent_id)
            if journal is None:
                return []
            head = self._heads.of(journal)
            return unpack(list(map(Row._make, self._connection.execute(_LABELS, (agent_id, journal, head.position)))))

    def sessions(self, session_id: str | None = None) -> list[SessionInfo]:
        with self._transaction("read"):
            agents: dict[str, dict[str, int]] = {}
            about: dict[str, tuple[float, str | None]] = {}
            updated: dict[str, float] = {}
            damaged: set[str] = set()
            for name, created_at, owner, agent, journal in self._connection.execute(_AGENTS, (session_id,)).fetchall():
                head = self._heads.of(journal)
                if head == NO_HEAD:
                    continue
                about.setdefault(name, (created_at or 0.0, owner))
                try:
                    updated[name] = max(updated.get(name, 0.0), self._last_at(head))
                except (sqlite3.DatabaseError, CorruptJournal):
                    damaged.add(name)
                else:
                    agents.setdefault(name, {})[agent] = head.seq
        infos = [
            SessionInfo(
                session_id=name,
                agents=agents.get(name, {}),
                created_at=created_at,
                updated_at=updated.get(name, created_at),
                owner=owner if self._leases.alive(owner) else None,
                damaged=name in damaged,
            )
            for name, (created_at, owner) in about.items()
        ]
        return sorted(infos, key=lambda info: info.updated_at, reverse=True)

    def delete(self, session_id: str) -> None:
        with self._transaction("synced"):
            generation = self._refuse_other_hands(session_id)
            # Heads must not depend on the rows that go: their positions are never used again.
            self._heads.settle(at_once=True)
            self._delete_rows(session_id)
            self._quarantine.remove(session_id)
            if self._alongside is not None:
                self._alongside.deleted(self._connection, session_id)
            self._connection.execute("UPDATE settled SET generation = max(generation, ?)", (generation,))
            self._leases.forget(session_id)
        self._heads.forget()
        self._empty_log()

    def inspect(self) -> Inspection:
        return self._quarantine.inspect()

    def salvage(self, session_id: str) -> Salvage:
        return Wreck(self._connection, self._name).salvage(session_id)

    def raise_generation(self, generation: int) -> None:
        """Every later lease has a higher one."""
        with self._transaction("synced"):
            self._connection.execute("UPDATE settled SET generation = max(generation, ?)", (generation,))

    def quarantined(self, session_id: str) -> list[str]:
        with self._transaction("read"):
            return self._quarantine.names(session_id)

    def set_aside(self, session_id: str, keep: Sequence[Row]) -> str:
        scope = self._scope_of(session_id)
        with self._transaction("synced"):
            self._refuse_other_hands(session_id)
            self._heads.settle(at_once=True)
            moved_to = self._quarantine.move(session_id)
            held = self._leases.acquire(session_id, takeover=False)
            held.scope = scope
            rows: list[tuple[object, ...]] = []
            outcome = self._place(Batch(lease=held.lease, rows=packed(keep)), rows)
            if isinstance(outcome, LeaseLost):
                raise outcome
            self._store_alongside(Batch(lease=held.lease, rows=keep))
            self._insert(rows)
            self._heads.settle(at_once=True)
            self._leases.release(held.lease)
        self._heads.forget()
        return moved_to

    def tidy(self) -> None:
        """Copy the log into the database when it has grown; off anyone's path. What fails here is tried again later."""
        try:
            if self._erased_in_log:
                self._empty_log(wait_s=0.0)
            elif self._unchecked_bytes >= CHECKPOINT_BYTES:
                self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
                self._unchecked_bytes = 0
        except (sqlite3.Error, Unavailable):
            return

    def close(self) -> None:
        """Leases end with their owner's lock, so nothing need be written."""
        try:
            with mapped_errors(self._path):
                self._connection.close()
        finally:
            self._lock.release()

    def _scope_of(self, session_id: str) -> str | None:
        return None if self._alongside is None else self._alongside.scope_of(session_id)

    # Within a transaction.

    def _refuse_other_hands(self, session_id: str) -> int:
        """The generation of a session that is here and that no live owner other than this one has."""
        found = self._connection.execute(
            "SELECT generation, owner FROM sessions WHERE name = ?", (session_id,)
        ).fetchone()
        if found is None:
            raise StoreNotFound("no such session", session=session_id)
        generation, owner = found
        if owner is not None and self._leases.in_other_hands(owner):
            raise SessionBusy("another live owner has the session", session=session_id, owner=owner)
        return generation

    def _place(self, batch: Batch, rows: list[tuple[object, ...]]) -> Position | LeaseLost:
        """Add the batch's rows, which are as they are stored, to those that will be inserted, all of them or none."""
        held = self._leases.check(batch.lease, self._heads.epoch)
        if isinstance(held, LeaseLost):
            return held
        placed: list[tuple[object, ...]] = []
        ends: dict[str, tuple[int, int, int]] = {}
        position = self._heads.end
        for row in batch.rows:
            agent_id, seq = row[0], row[1]
            end = ends.get(agent_id)
            journal, previous, last = end if end is not None else self._end_of(held, agent_id)
            if seq != last + 1:
                return LeaseLost(
                    "rows do not follow what is stored", session=held.lease.session_id, seq=seq, stored=last
                )
            position += 1
            journal = journal or self._create_journal(held, row, position, batch.rows)
            placed.append((position, journal, previous, *row[1:]))
            ends[agent_id] = journal, position, seq
        for journal, end_position, seq in ends.values():
            self._heads.moved(journal, Head(end_position, seq))
        rows += placed
        return self._position(batch, held)

    def _position(self, batch: Batch, held: Held) -> Position:
        if batch.rows:
            return Position(agent_id=batch.rows[-1].agent_id, seq=batch.rows[-1].seq)
        agent_id = batch.erase[-1][0] if batch.erase else ""
        return Position(agent_id=agent_id, seq=self._end_of(held, agent_id)[2])

    def _end_of(self, held: Held, agent_id: str) -> tuple[int, int, int]:
        """The key of the agent's journal (0 when there is none), and position and sequence number of its last row."""
        journal = held.journals.get(agent_id)
        if journal is None:
            journal = self._journal(held.lease.session_id, agent_id)
            if journal is None:
                return 0, 0, 0
            held.journals[agent_id] = journal
        head = self._heads.of(journal)
        return journal, head.position, head.seq

    def _create_journal(self, held: Held, first: Row, position: int, rows: Sequence[Row]) -> int:
        its_own = (row for row in rows if row.agent_id == first.agent_id and not row.erased)
        created_at = next((at_of(unpacked(row).body) for row in its_own), None)
        self._connection.execute(
            "INSERT INTO journals (id, session, agent, created_at, head, seq) VALUES (?, ?, ?, ?, 0, 0)",
            (position, held.lease.session_id, check_id(first.agent_id, "agent id"), created_at),
        )
        held.journals[first.agent_id] = position
        return position

    def _insert(self, rows: list[tuple[object, ...]]) -> None:
        if rows:
            self._connection.executemany(_INSERT, rows)
            self._unchecked_bytes += _PAGE_BYTES + sum(len(row[9]) + 64 for row in rows)  # type: ignore[arg-type]
            rows.clear()

    def _store_alongside(self, batch: Batch) -> None:
        """What the batch itself erases is not shown to anybody."""
        held = self._leases.check(batch.lease, self._heads.epoch)
        if self._alongside is None or isinstance(held, LeaseLost) or held.scope is None:
            return
        rows = [row for row in batch.rows if (row.agent_id, row.seq) not in batch.erase] if batch.erase else batch.rows
        self._alongside.stored(self._connection, held.scope, held.lease.session_id, rows)
        self._unchecked_bytes += _PAGES_ALONGSIDE * _PAGE_BYTES

    def _erase(self, batch: Batch) -> None:
        held = self._leases.check(batch.lease, self._heads.epoch)
        erased: list[tuple[str, int]] = []
        for agent_id, seq in batch.erase:
            _, position, last = self._end_of(held, agent_id) if isinstance(held, Held) else (0, 0, 0)
            if not 0 < seq <= last:
                continue
            values = self._connection.execute(f"{_LOAD} WHERE rows.seq = ?2", (position, seq, agent_id)).fetchone()
            gone = unpacked(Row._make(values)).without_content()
            self._connection.execute(
                f"{_CHAIN}UPDATE rows SET salt = ?3, body = ?4 WHERE position = (SELECT min(position) FROM chain)",
                (position, seq, gone.salt, gone.body),
            )
            erased.append((agent_id, seq))
        if self._alongside is not None and erased:
            self._alongside.erased(self._connection, batch.lease.session_id, erased)

    def _delete_rows(self, session_id: str) -> None:
        journals = self._connection.execute(
            "SELECT id, head, seq FROM journals WHERE session = ?", (session_id,)
        ).fetchall()
        for journal, head, seq in journals:
            self._connection.execute(
                f"{_CHAIN}DELETE FROM rows WHERE position IN (SELECT position FROM chain)", (head, 1)
            )
            if self._connection.execute("SELECT changes()").fetchone() != (seq,):  # The chain is broken: look anywhere.
                self._connection.execute("DELETE FROM rows WHERE journal = ?", (journal,))
        self._connection.execute("DELETE FROM journals WHERE session = ?", (session_id,))
        self._connection.execute("DELETE FROM sessions WHERE name = ?", (session_id,))

    def _journal(self, session_id: str, agent_id: str) -> int | None:
        """The key of an agent's journal; None when there is none."""
        found = self._connection.execute(
            "SELECT id FROM journals WHERE session = ? AND agent = ?", (session_id, agent_id)
        ).fetchone()
        return None if found is None else found[0]

    def _stretch(self, agent_id: str, position: int, low: int) -> list[Row]:
        """The rows from sequence number `low` up to the one at a position."""
        rows = list(map(Row._make, self._connection.execute(_LOAD, (position, low, agent_id))))
        rows.reverse()
        return unpack(rows)

    def _low(self, head: Head) -> int:
        (low,) = self._values("CAST(low AS INTEGER)", head.position)
        return low

    def _values(self, columns: str, position: int) -> tuple[Any, ...]:
        """Columns of the row at a position. Errors: `CorruptJournal` when there is none."""
        found = self._connection.execute(f"SELECT {columns} FROM rows WHERE position = ?", (position,)).fetchone()
        if found is None:
            raise CorruptJournal("a row is missing", path=self._name, position=position)
        return found

    def _last_at(self, head: Head) -> float:
        """When the last row was made that still has its content; 0.0 when nobody can tell."""
        position = head.position
        while position:
            previous, *values = self._values(f"previous, '', {_COLUMNS}", position)
            row = unpacked(Row._make(values))
            if not row.erased:
                return at_of(row.body) or 0.0
            position = previous
        return 0.0

    @contextmanager
    def _transaction(self, mode: Literal["synced", "unsynced", "read"]) -> Generator[None, None, None]:
        """Begin, catch up with other processes, and commit; after an error, as if nothing had been."""
        try:
            self._refuse_lost_file()
            if mode == "unsynced":
                self._connection.execute("PRAGMA synchronous = NORMAL")
            self._connection.execute("BEGIN" if mode == "read" else "BEGIN IMMEDIATE")
            self._heads.catch_up()
            yield
            self._connection.execute("COMMIT")
        except BaseException as error:
            self._roll_back()
            if isinstance(error, (sqlite3.Error, OSError)):
                raise mapped_error(error, self._path) from error
            raise
        finally:
            if mode == "unsynced":
                self._connection.execute("PRAGMA synchronous = FULL")

    def _roll_back(self) -> None:
        """Forget what the transaction did. After some errors SQLite has rolled it back already."""
        self._heads.forget()
        with suppress(sqlite3.Error):
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")

    def _refuse_lost_file(self) -> None:
        """SQLite would go on writing to a file that was removed, and nobody would ever see those rows again."""
        if os.stat(self._name).st_ino != self._inode:
            raise StoreUnavailable("the session database was replaced while it was open", path=str(self._path))

    def _empty_log(self, *, wait_s: float | None = None) -> None:
        """Erased contents also stand in the log in front of the database: empty it. While other readers need it, which
        is waited for a while, it is left to `tidy`.
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


def _is_dense(journal: int, head: Head) -> bool:
    """Whether at least every fourth row between a journal's first and last is its own: then reading past the others is
    quicker.
    """
    return head.seq * 4 > head.position - journal
