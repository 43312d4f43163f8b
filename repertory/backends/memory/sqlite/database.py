"""Every operation on a memory database, as a transaction on one connection.

Blocking: it belongs to one thread. Each method is one transaction; after an error nothing of it is stored.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from repertory.backends.memory.ranked import EntrySource, entry_of_row
from repertory.backends.memory.sqlite.entries import (
    create_tables,
    empty_log,
    forget_entries,
    forget_turns,
    has_tables,
    insert_fact,
    insert_turns,
    supersede,
    take_key,
)
from repertory.backends.memory.sqlite.recall import ScopeVectors, claim, pending, recall, store
from repertory.backends.memory.vectors import Pending, pack_vectors
from repertory.backends.sqlite_files import (
    MEMORY_ID,
    SESSIONS_ID,
    UNUSABLE_VALUES,
    Connection,
    DatabaseKind,
    read_marks,
    transaction,
    use_wal,
)
from repertory.core.memory.options import MemoryEntry
from repertory.core.recall.candidates import Query
from repertory.core.recall.entries import Saying
from repertory.errors import Corrupt, NotFound, RepertoryError, Unavailable

_ENTRIES = (
    "SELECT entries.id, content, kind, role, speaker, said_at, session, agent, seq, given_id, seen, recorded_at,"
    " gone_at, (SELECT coalesce(given_id, id) FROM memory_entries AS later WHERE later.id = entries.successor),"
    " metadata"
    " FROM memory_entries AS entries LEFT JOIN memory_conversations ON memory_conversations.id = conversation"
)


class MemoryDatabase:
    def __init__(self, path: Path, scope: str, *, busy_timeout_s: float) -> None:
        self._path = path
        self._name = str(path)
        self._scope = scope
        self._busy_timeout_s = busy_timeout_s
        self._connection = open_memory_database(path, busy_timeout_s=busy_timeout_s)
        self._inode = os.stat(path).st_ino
        self._erased_in_log = False
        self._vectors = ScopeVectors(self._connection, scope)

    def add_turns(self, turns: Sequence[Saying], key: str | None, *, now: float) -> list[int]:
        """Store turns. Returns the keys of those that were not stored before."""
        with self._writing():
            if not take_key(self._connection, self._scope, key):
                return []
            return insert_turns(self._connection, self._scope, turns, now=now)

    def add(self, saying: Saying, sources: Sequence[EntrySource], key: str | None, *, now: float) -> str | None:
        """Store one entry. Returns its id, or None when that key was taken before, or its source was forgotten."""
        with self._writing():
            if not take_key(self._connection, self._scope, key):
                return None
            return self._id(self._inserted(saying, sources, now))

    def supersede(
        self, old: str, saying: Saying, sources: Sequence[EntrySource], key: str | None, *, now: float
    ) -> str | None:
        """Store an entry that replaces `old`. Errors: `NotFound`."""
        with self._writing():
            if not take_key(self._connection, self._scope, key):
                return None
            before = self._keys(old)
            if not before:
                raise NotFound("no such memory", id=old)
            new = self._inserted(saying, sources, now)
            if new is not None:
                for entry in before:
                    supersede(self._connection, entry, new, at=saying.said_at or now)
            return self._id(new)

    def forget(self, memory_id: str) -> int:
        """Erase an entry, and what was extracted from it. Returns the number of erased entries."""
        with self._writing():
            entries = self._keys(memory_id)
            count = forget_entries(self._connection, self._scope_key(), entries) if entries else 0
        self._empty_log(count)
        return count

    def forget_messages(self, session_id: str, agent_id: str | None, seq: int | None) -> int:
        """Erase the turns of a session, or one of them, and what was extracted from them. Returns the number of erased
        entries.
        """
        with self._writing():
            found = self._connection.execute(
                "SELECT id FROM memory_conversations WHERE scope = ? AND session = ? AND (? IS NULL OR agent = ?)",
                (self._scope_key(), session_id, agent_id, agent_id),
            ).fetchall()
            count = forget_turns(
                self._connection, [key for (key,) in found], self._scope_key(), None if seq is None else [seq]
            )
        self._empty_log(count)
        return count

    def search(self, query: Query, vector: bytes | None = None) -> list[MemoryEntry]:
        """The best entries, best first; by their words and, given a vector, by similarity."""
        with self._reading():
            alike = None if vector is None else self._vectors.likeness(vector)
            best = recall(self._connection, query, alike)
            if not best:
                return []
            keys = [key for key, _ in best]
            marks = ", ".join("?" * len(keys))
            rows = self._connection.execute(f"{_ENTRIES} WHERE entries.id IN ({marks})", keys).fetchall()
            lines = {row[0]: row for row in rows}
            return [entry_of_row(lines[key], score) for key, score in best]

    def page(self, after: int, limit: int) -> list[tuple[int, MemoryEntry]]:
        """Entries in the order in which they came, superseded ones too, with their keys."""
        with self._reading():
            rows = self._connection.execute(
                f"{_ENTRIES} WHERE entries.scope = ? AND entries.id > ? ORDER BY entries.id LIMIT ?",
                (self._scope_key(), after, limit),
            ).fetchall()
            return [(row[0], entry_of_row(row, None)) for row in rows]

    def tidy(self) -> None:
        """Do the work that other processes blocked before. Failures are retried later."""
        if self._erased_in_log:
            with suppress(sqlite3.Error):
                self._erased_in_log = not empty_log(self._connection, busy_timeout_s=0.0)
            with suppress(sqlite3.Error):
                self._connection.execute(f"PRAGMA busy_timeout = {round(self._busy_timeout_s * 1000)}")

    def close(self) -> None:
        with mapped_errors(self._path):
            self._connection.close()

    def claim_vectors(self, name: str, dimensions: int, *, anew: bool) -> None:
        """Record the embedder of the vectors. Errors: `Invalid` when another one is recorded."""
        with self._writing():
            claim(self._connection, name, dimensions, anew=anew)

    def pending_vectors(self, limit: int) -> list[Pending]:
        with self._reading():
            return pending(self._connection, self._scope, limit)

    def packed_vectors(self, vectors: Sequence[Sequence[float]], texts: int, dimensions: int) -> list[bytes]:
        """Vectors in stored form. Errors: `Failed` for a wrong number or shape."""
        return pack_vectors(vectors, texts, dimensions)

    def store_vectors(self, made: Sequence[tuple[int, bytes]]) -> None:
        with self._writing():
            store(self._connection, made)

    # Within a transaction.

    def _inserted(self, saying: Saying, sources: Sequence[EntrySource], now: float) -> int | None:
        if saying.kind == "fact":
            return insert_fact(self._connection, self._scope, saying, sources, now=now)
        (key,) = insert_turns(self._connection, self._scope, [saying], now=now)
        return key

    def _id(self, key: int | None) -> str | None:
        if key is None:
            return None
        statement = "SELECT coalesce(given_id, id) FROM memory_entries WHERE id = ?"
        return str(self._connection.execute(statement, (key,)).fetchone()[0])

    def _keys(self, memory_id: str) -> list[int]:
        """The entries with that id: one, or those to which the caller gave this id."""
        own = int(memory_id) if memory_id.isascii() and memory_id.isdigit() and len(memory_id) < 19 else -1
        scope = self._scope_key()
        found = self._connection.execute(
            "SELECT id FROM memory_entries WHERE scope = ? AND given_id = ?"
            " UNION SELECT id FROM memory_entries WHERE id = ? AND scope = ? AND given_id IS NULL",
            (scope, memory_id, own, scope),
        ).fetchall()
        return [key for (key,) in found]

    def _scope_key(self) -> int:
        """The key of the scope; -1 when nothing was ever stored in it."""
        found = self._connection.execute("SELECT id FROM memory_scopes WHERE name = ?", (self._scope,)).fetchone()
        return -1 if found is None else found[0]

    # Transactions.

    @contextmanager
    def _writing(self) -> Generator[None, None, None]:
        with self._transaction("BEGIN IMMEDIATE"):
            yield

    @contextmanager
    def _reading(self) -> Generator[None, None, None]:
        with self._transaction("BEGIN"):
            yield

    @contextmanager
    def _transaction(self, begin: str) -> Generator[None, None, None]:
        """Commit; an error leaves no trace."""
        try:
            self._refuse_lost_file()
            with transaction(self._connection, begin):
                yield
            _KIND.refuse_lost_log(self._connection, self._path)
        except UNUSABLE_VALUES as error:
            if isinstance(error, RepertoryError):
                raise
            raise mapped_error(error, self._path) from error

    def _refuse_lost_file(self) -> None:
        """Refuse a file that was removed: SQLite would go on writing to it, and those memories would be lost."""
        if os.stat(self._name).st_ino != self._inode:
            raise Unavailable("the memory database was replaced while it was open", path=self._name)
        _KIND.refuse_lost_log(self._connection, self._path)

    def _empty_log(self, count: int) -> None:
        if count:
            with mapped_errors(self._path):
                self._erased_in_log = not empty_log(self._connection, busy_timeout_s=self._busy_timeout_s)


# Opening a memory database: the connection and its settings, and whether it is one of ours.
#
# Files, rights and errors are those of every database of ours (`backends/sqlite_files.py`).

_KIND = DatabaseKind(name="memory database", entry="a memory")
mapped_errors, mapped_error = _KIND.mapped_errors, _KIND.mapped_error


def open_memory_database(path: Path, *, busy_timeout_s: float) -> Connection:
    """A connection of this thread to the database; creates it with mode 0600 (its folder with 0700) if needed. A
    session database becomes a memory database as well.

    Erased contents are overwritten (`secure_delete`). Errors: `Invalid` for a symbolic link; `Corrupt` for a file that
    is damaged or not ours; `Failed` for one of a newer release; `Unavailable` when it cannot be opened now. The errors
    name the path.
    """
    with mapped_errors(path):
        _KIND.refuse_links(path)
        connection = _KIND.connect(path, busy_timeout_s=busy_timeout_s)
        try:
            if not _has_memory(connection, path):
                use_wal(connection)
                _write_schema(connection, path)
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("PRAGMA secure_delete = ON")
            connection.execute("PRAGMA trusted_schema = OFF")
        except BaseException:
            connection.close()
            raise
        return connection


def _has_memory(connection: sqlite3.Connection, path: Path) -> bool:
    """True if the tables exist. False for an empty database, and for one with only sessions. Raises `Corrupt` for any
    other file.
    """
    application, _, entries = read_marks(connection)
    if application == 0 and entries == 0:
        return False
    exists = application in (MEMORY_ID, SESSIONS_ID) and has_tables(connection, str(path))
    if not exists and application != SESSIONS_ID:
        raise Corrupt("this database is not a memory", path=str(path))
    return exists


def _write_schema(connection: sqlite3.Connection, path: Path) -> None:
    with transaction(connection):
        # Another process may have been faster.
        if not _has_memory(connection, path):
            create_tables(connection)
            if read_marks(connection).application != SESSIONS_ID:
                connection.execute(f"PRAGMA application_id = {MEMORY_ID}")
