"""Opening a memory database: the connection and its settings, and whether it is one of ours.

Files, rights and errors are those of every database of ours (`backends/sqlite_files.py`).
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

from repertory.backends.memory.sqlite_schema import create_tables, has_tables
from repertory.backends.sqlite_files import DatabaseKind
from repertory.errors import Corrupt

APPLICATION_ID = 0x5270746D
"""Tells our databases from other people's, at byte 68 of the file."""

_KIND = DatabaseKind(name="memory database", entry="a memory")
mapped_errors, mapped_error = _KIND.mapped_errors, _KIND.mapped_error


def open_database(path: Path, *, busy_timeout_s: float) -> sqlite3.Connection:
    """A connection of this thread to the database, created with mode 0600 (its folder with 0700) if it is not there.

    Erased contents are overwritten (`secure_delete`). Errors: `Invalid` for a symbolic link; `Corrupt` for a file that
    is damaged, not ours or of another version; `Unavailable` when it cannot be opened now. The errors name the path.
    """
    with mapped_errors(path):
        _KIND.refuse_links(path)
        connection = _KIND.connect(path, busy_timeout_s=busy_timeout_s)
        try:
            if not _is_ours(connection, path):
                connection.execute("PRAGMA journal_mode = WAL").fetchone()
                _write_schema(connection, path)
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("PRAGMA secure_delete = ON")
            connection.execute("PRAGMA trusted_schema = OFF")
        except BaseException:
            connection.close()
            raise
        return connection


def _is_ours(connection: sqlite3.Connection, path: Path) -> bool:
    """Whether the tables are there. False for an empty database. Raises `Corrupt` for anything that is not ours."""
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    if application == 0 and tables == 0:
        return False
    if application != APPLICATION_ID or not has_tables(connection, str(path)):
        raise Corrupt("this database is not a memory", path=str(path))
    return True


def _write_schema(connection: sqlite3.Connection, path: Path) -> None:
    connection.execute("BEGIN IMMEDIATE")
    try:
        # Another process may have been quicker.
        if not _is_ours(connection, path):
            create_tables(connection)
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute("COMMIT")
    except BaseException:
        connection.execute("ROLLBACK")
        raise
