"""Opening a session database: the file and its permissions, the connection and its settings, the schema and its
version.

`backends/sqlite_files.py` has what all our databases share: files, permissions and errors.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from repertory.backends.sessions.sqlite.calls import CALLS
from repertory.backends.sessions.sqlite.corrupt_file import QUARANTINE
from repertory.backends.sessions.sqlite.pending_work import PENDING_WORK
from repertory.backends.sessions.sqlite.reading import RECENT
from repertory.backends.sqlite_files import (
    MEMORY_ID,
    SESSIONS_ID,
    Connection,
    DatabaseKind,
    read_marks,
    transaction,
    use_wal,
)
from repertory.core.journal.rows import Row
from repertory.errors import Corrupt, StoreFailed, StoreUnavailable

SCHEMA_VERSION = 1

SCHEMA = (
    # A session, and its last lease; a file says whether somebody holds it (`journals.py`). `journals` is the
    # least number of its journals, so that a lost line is noticed.
    "CREATE TABLE sessions (name TEXT PRIMARY KEY, generation INTEGER NOT NULL, owner TEXT NOT NULL,"
    " journals INTEGER NOT NULL DEFAULT 0) WITHOUT ROWID",
    # One line per agent. `id` is the position of its first row, so that no key is ever used twice; `head` and `seq`
    # are those of its last row among the rows up to `settled.position`.
    "CREATE TABLE journals (id INTEGER PRIMARY KEY, session TEXT NOT NULL, agent TEXT NOT NULL, created_at REAL,"
    " head INTEGER NOT NULL, seq INTEGER NOT NULL, UNIQUE (session, agent))",
    # Rows of all journals in the order in which they came; `previous` is the position of the journal's row before.
    "CREATE TABLE rows (position INTEGER PRIMARY KEY, journal INTEGER NOT NULL, previous INTEGER NOT NULL,"
    " seq INTEGER NOT NULL, kind INTEGER NOT NULL, version INTEGER NOT NULL, low INTEGER NOT NULL,"
    " link BLOB NOT NULL, salt BLOB NOT NULL, body BLOB NOT NULL)",
    # Finds snapshots. Rows of other kinds are not in the index and cost nothing.
    "CREATE INDEX labels ON rows (journal, position) WHERE kind = 10",
    # Finds the journals in which a person was asked, in the same way.
    "CREATE INDEX asking ON rows (journal) WHERE kind = 7",
    # A single line. `generation` is that of the latest lease of any session.
    "CREATE TABLE settled (position INTEGER NOT NULL, generation INTEGER NOT NULL)",
    "INSERT INTO settled VALUES (0, 0)",
    RECENT,
    *PENDING_WORK,
    *CALLS,
    QUARANTINE,
    f"PRAGMA application_id = {SESSIONS_ID}",
    f"PRAGMA user_version = {SCHEMA_VERSION}",
)

_KIND = DatabaseKind(name="session database", entry="a record", unavailable=StoreUnavailable, failed=StoreFailed)
mapped_errors, mapped_error, refuse_lost_log = _KIND.mapped_errors, _KIND.mapped_error, _KIND.refuse_lost_log


def open_database(path: Path, *, busy_timeout_s: float, commit_hook: CommitHook | None = None) -> Connection:
    """A connection of this thread to the database; creates it with mode 0600 (its folder with 0700) if needed.

    A memory database becomes a session database as well. The tables `commit_hook` are made, too.

    Errors: `Invalid` for a symbolic link; `Corrupt` for a file that is damaged or not ours; `Failed` for one of a newer
    release, and without permission to write; `Unavailable` when it cannot be opened now. The errors name the path.
    """
    with mapped_errors(path):
        refuse_links(path)
        # Before `connect`, which creates the file: an empty database in the place of a lost one would look like a first
        # start.
        refuse_lost(path)
        connection = _KIND.connect(path, busy_timeout_s=busy_timeout_s)
        # Before anything is read: `sqlite3` raises for a text that is no UTF-8, and one damaged id would hide all
        # sessions.
        connection.text_factory = readable_text
        try:
            _prepare(connection, path, commit_hook)
        except BaseException:
            connection.close()
            raise
        return connection


def readable_text(stored: bytes) -> str:
    """Decodes text with replacement: one damaged text must not keep the others from being read."""
    return stored.decode(errors="replace")


def refuse_links(path: Path) -> None:
    """Raise `Invalid` when the database, or a file that SQLite puts beside it, is a symbolic link."""
    _KIND.refuse_links(path, [owners_folder(path), peers_folder(path), lease_file(path)])


def refuse_lost(path: Path) -> None:
    """Raise `Corrupt` when the file is gone or empty, though sessions were stored in it: it must not start empty."""
    used = owners_folder(path).is_dir()  # Asked first: whoever creates the database makes the folder afterwards.
    size = os.stat(path).st_size if os.path.lexists(path) else 0
    if used and not size:
        raise _lost(path)


def _lost(path: Path) -> Corrupt:
    text = (
        "the session database is gone, though it was in use: restore it; or, to begin anew, remove the folder of its"
        " owners as well"
    )
    return Corrupt(text, path=str(path), owners=str(owners_folder(path)))


def owners_folder(path: Path) -> Path:
    """The folder with the lock files of a database's owners."""
    return Path(f"{path}-owners")


def lease_file(path: Path) -> Path:
    """The file in which the owners of a database's sessions say which ones they hold."""
    return Path(f"{path}-leases")


def peers_folder(path: Path) -> Path:
    """The folder of a database's peers."""
    return Path(f"{path}.peers")


def _prepare(connection: sqlite3.Connection, path: Path, commit_hook: CommitHook | None) -> None:
    """Check that the database is ours, create the schema in an empty one, and set how the connection works.

    Checkpoints run where the store asks for them, not inside a commit. Erased contents are overwritten
    (`secure_delete`).
    """
    used = owners_folder(path).is_dir()  # As in `refuse_lost`: another process may create the schema just now.
    there = refuse_other_versions(connection, path)
    ready = commit_hook is None or commit_hook.is_ready(connection)
    # Only for a new file: the journal mode is written in the file, and changing it needs a lock of the whole database.
    if not there:
        if used:
            raise _lost(path)
        use_wal(connection)
    if not (there and ready):
        _write_schema(connection, path, commit_hook)
    # A copy by `VACUUM INTO` is in rollback mode. Each commit would lock readers out, and there would be no log to
    # check.
    if connection.execute("PRAGMA journal_mode").fetchone() != ("wal",):
        use_wal(connection)
    # In WAL mode, NORMAL does not sync at a commit: what was acknowledged could be gone after a power cut.
    connection.execute("PRAGMA synchronous = FULL")
    # SQLite would checkpoint within the commit that crosses 1,000 pages, and its caller would wait for two more syncs.
    connection.execute("PRAGMA wal_autocheckpoint = 0")
    connection.execute("PRAGMA secure_delete = ON")
    # A planted database may have views and triggers that call functions; ours has none.
    connection.execute("PRAGMA trusted_schema = OFF")
    # A damaged page is then an error where it is read, instead of a wild read within the page.
    connection.execute("PRAGMA cell_size_check = ON")


def refuse_other_versions(connection: sqlite3.Connection, path: Path) -> bool:
    """True if the schema exists. False for an empty database, and for one with only memory tables. Raises `Corrupt` for
    any other file, and `Failed` for one of a newer release.
    """
    application, version, entries = read_marks(connection)
    # Zero and no tables: a file that was just created. A foreign database has tables, or an id.
    if version == 0 and (application == MEMORY_ID or (application == 0 and entries == 0)):
        return False
    if application != SESSIONS_ID:
        raise Corrupt("this database is not a session database", path=str(path))
    if version != SCHEMA_VERSION:
        text = "a newer release of Repertory has written this database: upgrade this one, or name another file"
        raise StoreFailed(text, path=str(path), version=version, known=SCHEMA_VERSION)
    return True


def _write_schema(connection: sqlite3.Connection, path: Path, commit_hook: CommitHook | None) -> None:
    with transaction(connection):
        # Another process may have been faster.
        # Asked again within the transaction, since the first look was outside of it.
        if not refuse_other_versions(connection, path):
            for statement in SCHEMA:
                connection.execute(statement)
        if commit_hook is not None and not commit_hook.is_ready(connection):
            commit_hook.prepare(connection)


class CommitHook(Protocol):
    """Another component's tables in the same file.

    Methods that receive a connection work within its open transaction and commit nothing. An exception from them rolls
    the whole transaction back, both their tables and ours.
    """

    def is_ready(self, connection: sqlite3.Connection) -> bool:
        """True if the needed tables exist. Errors: `Failed` for those of a newer release."""
        ...

    def prepare(self, connection: sqlite3.Connection) -> None: ...

    @property
    def scope_of(self) -> Callable[[str], str | None] | None:
        """Gives the name under which the component keeps a session; None: it does not. Called when the session gets an
        owner. Errors: `Invalid` when the name cannot be determined. None where it keeps no session.
        """
        ...

    def stored(self, connection: sqlite3.Connection, scope: str, session_id: str, rows: Sequence[Row]) -> None:
        """Called with the rows that this commit stores."""
        ...

    def erased(self, connection: sqlite3.Connection, session_id: str, rows: Sequence[tuple[str, int]]) -> None:
        """Called with the rows (agent, sequence number) whose contents this commit destroys."""
        ...

    def deleted(self, connection: sqlite3.Connection, session_id: str) -> None:
        """Called when this commit destroys the session."""
        ...
