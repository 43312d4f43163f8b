"""Opening a memory database: the connection and its settings, and whether it is one of ours.

Files, rights and errors are those of every database of ours (`backends/sqlite_files.py`).
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

from repertory.backends.memory.sqlite_schema import create_tables, has_tables
from repertory.backends.sqlite_files import MEMORY_ID, SESSIONS_ID, DatabaseKind, read_marks, use_wal
from repertory.errors import Corrupt

_KIND = DatabaseKind(name="memory database", entry="a memory")
mapped_errors, mapped_error = _KIND.mapped_errors, _KIND.mapped_error


def open_database(path: Path, *, busy_timeout_s: float) -> sqlite3.Connection:
    """A connection of this thread to the database, created with mode 0600 (its folder with 0700) if it is not there. It
    may be one of sessions: then it is one of both.

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
    """Whether the tables are there. False for an empty database, and for one that sessions alone have been in. Raises
    `Corrupt` for anything that is not ours.
    """
    application, _, entries = read_marks(connection)
    if application == 0 and entries == 0:
        return False
    there = application in (MEMORY_ID, SESSIONS_ID) and has_tables(connection, str(path))
    if not there and application != SESSIONS_ID:
        raise Corrupt("this database is not a memory", path=str(path))
    return there


def _write_schema(connection: sqlite3.Connection, path: Path) -> None:
    connection.execute("BEGIN IMMEDIATE")
    try:
        # Another process may have been quicker.
        if not _has_memory(connection, path):
            create_tables(connection)
            if read_marks(connection).application != SESSIONS_ID:
                connection.execute(f"PRAGMA application_id = {MEMORY_ID}")
        connection.execute("COMMIT")
    except BaseException:
        connection.execute("ROLLBACK")
        raise
