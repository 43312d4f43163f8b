"""Opening a session database: the file and its rights, the connection and its settings, the schema and its version.

Files, rights and errors are those of every database of ours (`backends/sqlite_files.py`).
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from repertory.backends.sessions.sqlite.reading import RECENT
from repertory.backends.sqlite_files import MEMORY_ID, SESSIONS_ID, DatabaseKind, read_marks, use_wal
from repertory.core.journal.rows import Row
from repertory.errors import Corrupt, StoreFailed, StoreUnavailable

SCHEMA_VERSION = 2
"""In version 1 no body was packed. Such a database is read as it is, and is one of this version from then on."""

SCHEMA = (
    # What a lease says. `owner` is NULL when the session was given up. `journals`: see `COUNTS`.
    "CREATE TABLE sessions (name TEXT PRIMARY KEY, generation INTEGER NOT NULL, owner TEXT, journals INTEGER)"
    " WITHOUT ROWID",
    # One line per agent. `id` is the position of its first row, so that no key is ever used twice; `head` and `seq`
    # are those of its last row among the rows up to `settled.position`.
    "CREATE TABLE journals (id INTEGER PRIMARY KEY, session TEXT NOT NULL, agent TEXT NOT NULL, created_at REAL,"
    " head INTEGER NOT NULL, seq INTEGER NOT NULL, UNIQUE (session, agent))",
    # Rows of all journals in the order in which they came; `previous` is the position of the journal's row before.
    "CREATE TABLE rows (position INTEGER PRIMARY KEY, journal INTEGER NOT NULL, previous INTEGER NOT NULL,"
    " seq INTEGER NOT NULL, kind INTEGER NOT NULL, version INTEGER NOT NULL, low INTEGER NOT NULL,"
    " link BLOB NOT NULL, salt BLOB NOT NULL, body BLOB NOT NULL)",
    # A single line. `generation` is the highest that a deleted session had.
    "CREATE TABLE settled (position INTEGER NOT NULL, generation INTEGER NOT NULL)",
    "INSERT INTO settled VALUES (0, 0)",
    RECENT,
    f"PRAGMA application_id = {SESSIONS_ID}",
    f"PRAGMA user_version = {SCHEMA_VERSION}",
)

LABELS = "CREATE INDEX IF NOT EXISTS labels ON rows (journal, position) WHERE kind = 10"
"""Finds snapshots. A row of another kind neither stands in it nor pays for it."""

COUNTS = "ALTER TABLE sessions ADD COLUMN journals INTEGER"
"""How many journals a session has at least, so that one whose line is lost is missed."""

_KIND = DatabaseKind(name="session database", entry="a record", unavailable=StoreUnavailable, failed=StoreFailed)
mapped_errors, mapped_error = _KIND.mapped_errors, _KIND.mapped_error


def open_database(path: Path, *, busy_timeout_s: float, alongside: CommitHook | None = None) -> sqlite3.Connection:
    """A connection of this thread to the database, created with mode 0600 (its folder with 0700) if it is not there.

    A memory's database becomes one of sessions too. What lies `alongside` has its tables then.

    Errors: `Invalid` for a symbolic link; `Corrupt` for a file that is damaged or not ours; `Failed` for one
    of a newer release, and without the right to write there; `Unavailable` when it cannot be opened now. The
    errors name the path.
    """
    with mapped_errors(path):
        refuse_links(path)
        refuse_lost(path)
        connection = _KIND.connect(path, busy_timeout_s=busy_timeout_s)
        connection.text_factory = readable_text
        try:
            _prepare(connection, path, alongside)
        except BaseException:
            connection.close()
            raise
        return connection


def readable_text(stored: bytes) -> str:
    """A text in the database. Damage in one must not keep the others from being read."""
    return stored.decode(errors="replace")


def refuse_links(path: Path) -> None:
    """Raise `Invalid` when the database, or a file that SQLite puts beside it, is a symbolic link."""
    _KIND.refuse_links(path, [owners_folder(path)])


def refuse_lost(path: Path) -> None:
    """Raise `Corrupt` when the file is gone or empty, though sessions were stored in it: it must not begin anew."""
    size = os.stat(path).st_size if os.path.lexists(path) else 0
    if not size and owners_folder(path).is_dir():
        raise _lost(path)


def _lost(path: Path) -> Corrupt:
    text = (
        "the session database is gone, though it was in use: restore it; or, to begin anew, remove the folder of its"
        " owners as well"
    )
    return Corrupt(text, path=str(path), owners=str(owners_folder(path)))


def owners_folder(path: Path) -> Path:
    """Where the owners of a database prove that they are alive."""
    return Path(f"{path}-owners")


def _prepare(connection: sqlite3.Connection, path: Path, alongside: CommitHook | None) -> None:
    """Check whose database it is, make it ours when it is empty, and settle how it works.

    Checkpoints run where the store says, not inside a commit. Erased contents are overwritten (`secure_delete`).
    """
    there = _checked_version(connection, path)
    ready = alongside is None or alongside.is_ready(connection)
    if there:
        _take_over_first_version(connection)
        _add_what_is_new(connection)
    elif owners_folder(path).is_dir():
        raise _lost(path)
    else:
        use_wal(connection)
    if not (there and ready):
        _write_schema(connection, path, alongside)
    if _value(connection, "PRAGMA journal_mode") != "wal":
        use_wal(connection)
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA wal_autocheckpoint = 0")
    connection.execute("PRAGMA secure_delete = ON")
    connection.execute("PRAGMA trusted_schema = OFF")
    connection.execute("PRAGMA cell_size_check = ON")


def _checked_version(connection: sqlite3.Connection, path: Path) -> bool:
    """Whether the schema is there. False for an empty database, and for one that a memory alone has been in. Raises
    `Corrupt` for anything that is not ours.
    """
    application, version, entries = read_marks(connection)
    if version == 0 and (application == MEMORY_ID or (application == 0 and entries == 0)):
        return False
    if application != SESSIONS_ID:
        raise Corrupt("this database is not a session database", path=str(path))
    if version > SCHEMA_VERSION:
        raise StoreFailed(
            "a newer release of Repertory has written this database: upgrade this one, or name another file",
            path=str(path),
            version=version,
            known=SCHEMA_VERSION,
        )
    if version not in (1, SCHEMA_VERSION):
        raise Corrupt("unknown version of the session database", path=str(path), version=version, known=SCHEMA_VERSION)
    return True


def _write_schema(connection: sqlite3.Connection, path: Path, alongside: CommitHook | None) -> None:
    connection.execute("BEGIN IMMEDIATE")
    try:
        # Another process may have been quicker.
        if not _checked_version(connection, path):
            for statement in SCHEMA:
                connection.execute(statement)
            connection.execute(LABELS)
        if alongside is not None and not alongside.is_ready(connection):
            alongside.prepare(connection)
        connection.execute("COMMIT")
    except BaseException:
        connection.execute("ROLLBACK")
        raise


def _take_over_first_version(connection: sqlite3.Connection) -> None:
    """Earlier releases refuse the database from now on, instead of taking packed bodies for damaged ones."""
    if _value(connection, "PRAGMA user_version") != SCHEMA_VERSION:
        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")


def _add_what_is_new(connection: sqlite3.Connection) -> None:
    """The index and the column that earlier releases did not make. Without them (the disk is full, somebody writes, a
    page is damaged) snapshots are found more slowly, and journals are not counted; the next opening tries again.
    """
    if not _value(connection, "SELECT count(*) FROM sqlite_schema WHERE name = 'labels'"):
        with suppress(sqlite3.DatabaseError):
            connection.execute(LABELS)
    if not counts_journals(connection):
        with suppress(sqlite3.DatabaseError):
            connection.execute(COUNTS)


def counts_journals(connection: sqlite3.Connection) -> bool:
    """Whether the journals of each session are counted."""
    return bool(_value(connection, "SELECT count(*) FROM pragma_table_info('sessions') WHERE name = 'journals'"))


def _value(connection: sqlite3.Connection, statement: str) -> object:
    found: tuple[object] = connection.execute(statement).fetchone()
    return found[0]


class CommitHook(Protocol):
    """Tables of somebody else's in the same file.

    All methods that are given a connection work within the transaction that is open and commit nothing. What they raise
    undoes the transaction: nothing of it is stored, there or here.
    """

    def is_ready(self, connection: sqlite3.Connection) -> bool:
        """Whether the tables that are needed are there. Errors: `Failed` for those of a newer release."""
        ...

    def prepare(self, connection: sqlite3.Connection) -> None:
        """Make the tables."""
        ...

    def scope_of(self, session_id: str) -> str | None:
        """Under which name the session is kept there; None: it is not. Asked when the session gets an owner. Errors:
        `Invalid` when it cannot be told.
        """
        ...

    def stored(self, connection: sqlite3.Connection, scope: str, session_id: str, rows: Sequence[Row]) -> None:
        """These rows are stored by this commit."""
        ...

    def erased(self, connection: sqlite3.Connection, session_id: str, rows: Sequence[tuple[str, int]]) -> None:
        """The contents of these rows, by agent and sequence number, are destroyed by this commit."""
        ...

    def deleted(self, connection: sqlite3.Connection, session_id: str) -> None:
        """The session is destroyed by this commit."""
        ...
