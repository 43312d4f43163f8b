"""Opening a memory database: the file and its rights, the connection and its settings.

Also the one place where errors of SQLite and of the file system become ours.
"""

from __future__ import annotations

import errno
import os
import sqlite3
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from repertory.backends.memory.sqlite_schema import create_tables, has_tables
from repertory.errors import Corrupt, Invalid, RepertoryError, Unavailable

APPLICATION_ID = 0x5270746D
"""Tells our databases from other people's, at byte 68 of the file."""

_UNUSABLE = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR, sqlite3.SQLITE_SCHEMA}


def open_database(path: Path, *, busy_timeout_s: float) -> sqlite3.Connection:
    """A connection of this thread to the database, created with mode 0600 (its folder with 0700) if it is not there.

    Erased contents are overwritten (`secure_delete`). Errors: `Invalid` for a symbolic link; `Corrupt` for a file that
    is damaged, not ours or of another version; `Unavailable` when it cannot be opened now. The errors name the path.
    """
    with mapped_errors(path):
        _refuse_links(path)
        _create(path)
        uri = f"file:{quote(str(path))}?mode=rw"
        connection = sqlite3.connect(uri, uri=True, timeout=busy_timeout_s, isolation_level=None)
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


@contextmanager
def mapped_errors(path: Path) -> Generator[None, None, None]:
    """Turn what SQLite and the file system raise into errors of ours that name the path."""
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        raise mapped_error(error, path) from error


def mapped_error(error: sqlite3.Error | OSError, path: Path) -> RepertoryError:
    """What to raise instead."""
    where = {"path": str(path), "cause": str(error)}
    if isinstance(error, OSError):
        if error.errno in (errno.ELOOP, errno.ENOTDIR, errno.ENAMETOOLONG):
            return Invalid("a memory database cannot be there", **where)
        return Unavailable("the memory database cannot be used now", **where)
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
    if code in _UNUSABLE:
        return Corrupt("not a usable memory database", **where)
    if code == sqlite3.SQLITE_TOOBIG:
        return Invalid("a memory is too large for the database", **where)
    return Unavailable("the memory database cannot be used now", **where)


def _refuse_links(path: Path) -> None:
    for each in (path, Path(f"{path}-wal"), Path(f"{path}-shm")):
        if each.is_symlink():
            raise Invalid("a memory database must not be a symbolic link", path=str(each))


def _create(path: Path) -> None:
    """Make the folder and an empty file with narrow rights. An existing file is not opened here.

    Closing a file that a connection of this process has open would take its locks away: a flaw of POSIX locks.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        if not path.is_file():
            raise Invalid("a memory database is a file", path=str(path)) from None


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
