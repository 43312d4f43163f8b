"""SQLite databases as files: created with narrow permissions, opened, and their errors mapped to ours."""

from __future__ import annotations

import errno
import os
import sqlite3
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple, TypeAlias
from urllib.parse import quote
from weakref import WeakSet

from msgspec import Struct

from repertory.backends.folders import make_root
from repertory.errors import Corrupt, Failed, Invalid, RepertoryError, Unavailable
from repertory.forking import forget_in_children, never_collect

SESSIONS_ID, MEMORY_ID = 0x52707430, 0x5270746D
"""Application ids that mark our databases, at byte 68 of the file. A session database may hold a memory as well."""

_MARKS = (
    "SELECT (SELECT application_id FROM pragma_application_id()), (SELECT user_version FROM pragma_user_version()),"
    " (SELECT count(*) FROM sqlite_schema)"
)
_TRIES = 50
_UNUSABLE = {
    sqlite3.SQLITE_CORRUPT,
    sqlite3.SQLITE_NOTADB,
    sqlite3.SQLITE_ERROR,
    sqlite3.SQLITE_SCHEMA,
    sqlite3.SQLITE_MISMATCH,
}
_TAKEN = {
    sqlite3.SQLITE_CONSTRAINT_UNIQUE,
    sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY,
    sqlite3.SQLITE_CONSTRAINT_ROWID,
    sqlite3.SQLITE_CONSTRAINT_NOTNULL,
}
"""The codes of constraints that our statements violate only if the data are damaged."""

UNUSABLE_VALUES = sqlite3.Error, OSError, TypeError, ValueError, AttributeError, OverflowError
"""Raised for values of types that we do not store: SQLite allows any value in any column, and a damaged page has one
even where a column refuses it, so that a text may be where a number should be, or nothing at all.
"""


_File: TypeAlias = tuple[int, int]
"""A file by device and inode."""


class Marks(NamedTuple):
    application: int
    version: int
    entries: int
    """Tables, indexes and the like."""


def read_marks(connection: sqlite3.Connection) -> Marks:
    """Read in one statement: another process may be creating the database."""
    return Marks(*connection.execute(_MARKS).fetchone())


def use_wal(connection: sqlite3.Connection) -> None:
    """Switch the database to a write-ahead log, permanently and for every process.

    SQLite ignores its busy timeout here: while another process creates the same database, it reports a lock at once. A
    transaction does wait. Errors: those of SQLite.
    """
    for _ in range(_TRIES - 1):
        try:
            connection.execute("PRAGMA journal_mode = WAL").fetchone()
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY:
                raise
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("COMMIT")
        else:
            return
    connection.execute("PRAGMA journal_mode = WAL").fetchone()


def roll_back(connection: sqlite3.Connection) -> None:
    """Undo what was begun. Errors: none, which would hide the error that led here: after some, such as a full disk,
    SQLite has ended the transaction itself, and refuses to do so again.
    """
    with suppress(sqlite3.Error):
        if connection.in_transaction:
            connection.execute("ROLLBACK")


@contextmanager
def transaction(connection: sqlite3.Connection, begin: str = "BEGIN IMMEDIATE") -> Generator[None]:
    """A transaction: committed at the end of the block, undone by an error in it."""
    try:
        connection.execute(begin)
        yield
        connection.execute("COMMIT")
    except BaseException:
        roll_back(connection)
        raise


class Connection(sqlite3.Connection):
    """A connection that a forked child closes at once. One thread at a time uses it, and no fork happens while it works
    (`forking.unforked`).

    SQLite keeps one table per process of its locks in each file. A child inherits a copy of that table but none of the
    locks: its own new connection would assume that it holds them, and its commits could be lost with a log that others
    delete. Closing the inherited connection clears the table. It releases no lock of the parent.

    The system releases all locks of a process on a file when the process closes any descriptor of it, such as one that
    it opened for a copy. Another process that ends then takes itself for the last one and deletes the log. `lost_log`
    notices that. Such a connection is never closed, and the database is not opened again in this process: SQLite would
    write the old log over what others have stored since, or go on without locks.
    """

    def watch(self, path: Path) -> None:
        """Note where the files are."""
        self._path, self._log = str(path), f"{path}-wal"
        self._file = _file_at(path)
        self.log_file: _File | None = None
        """The log since it was first seen, by device and inode."""
        _connections.add(self)

    def lost_log(self) -> bool:
        """True if the log of before is gone, and the database is not: what is committed to that log is lost."""
        found = _file_at(self._log)
        # SQLite makes the log with the first transaction, so it may not be there when the connection opens.
        self.log_file = self.log_file or found
        if found == self.log_file or _file_at(self._path) != self._file:
            return False
        _lost.add(self._file)
        # Its destructor would close it, and with it checkpoint an old log over what others have stored.
        never_collect(self)
        return True

    def has_open(self, file: _File) -> bool:
        """True for one of its files."""
        return file in (self._file, self.log_file, _file_at(f"{self._path}-shm"))

    def close(self) -> None:
        if not self.lost_log():
            super().close()

    def forget_parent(self) -> None:
        """Close it without a checkpoint, since the parent goes on using the database and its log."""
        # `setconfig` came with Python 3.12.
        if sys.version_info >= (3, 12):
            with suppress(sqlite3.Error):
                self.setconfig(sqlite3.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, True)
        with suppress(sqlite3.Error):
            super().close()


_connections: WeakSet[Connection] = WeakSet()
_lost: set[_File | None] = set()
"""Databases by device and inode."""


def refuse_open_database(path: str | Path, folder: int | None = None) -> None:
    """Raise `Invalid` when one of this process's connections has the file open: reading it would cost them their locks.

    `folder`: the descriptor of the folder that a relative path begins at.
    """
    file = _file_at(path, folder) if _connections else None
    if file is not None and any(each.has_open(file) for each in list(_connections)):
        raise Invalid("this file is a database that this process uses: copy it in another process", path=str(path))


def _file_at(path: str | Path, folder: int | None = None) -> _File | None:
    try:
        found = os.stat(path, dir_fd=folder)
    except OSError:
        return None
    return found.st_dev, found.st_ino


class DatabaseKind(Struct, frozen=True, kw_only=True):
    name: str
    """The name of the kind, such as `session database`."""
    entry: str
    """The name of a thing that may be too large for it, such as `a record`."""
    unavailable: type[Unavailable] = Unavailable
    """The error when the database cannot be used now."""
    failed: type[Failed] = Failed
    """The error when the database can never be used like this."""

    def connect(self, path: Path, *, busy_timeout_s: float) -> Connection:
        """A connection in autocommit mode. Creates the file with mode 0600 (its folder with 0700) if needed.

        Errors: `Invalid` for a path that is no file; those of SQLite and the file system, unmapped.
        """
        self._create(path)
        if _file_at(path) in _lost:
            raise self._lost_log(path)
        # mode=rw: a file that vanishes after `_create` is an error, and not an empty database with a wide mode.
        uri = f"file:{quote(str(path))}?mode=rw"
        connection = sqlite3.connect(
            uri,
            uri=True,
            timeout=busy_timeout_s,
            # Python's own transactions begin late and commit by themselves; here each statement says what it does.
            isolation_level=None,
            check_same_thread=False,  # In a forked child, another thread closes it.
            factory=Connection,
        )
        connection.watch(path)
        forget_in_children(connection)
        return connection

    def refuse_lost_log(self, connection: Connection, path: Path) -> None:
        """Raise `failed` when others have deleted the log: before a transaction, and before what it has committed
        is acknowledged.
        """
        if connection.lost_log():
            raise self._lost_log(path)

    def _lost_log(self, path: Path) -> Failed:
        text = (
            f"the log of the {self.name} is gone, since this process opened and closed the file by other means than"
            " SQLite: start the process again"
        )
        return self.failed(text, path=str(path))

    def refuse_links(self, path: Path, beside: Sequence[Path] = ()) -> None:
        """Raise `Invalid` when the database, or a file that SQLite or its user puts beside it, is a symbolic link."""
        for each in (path, Path(f"{path}-wal"), Path(f"{path}-shm"), *beside):
            if each.is_symlink():
                raise Invalid(f"a {self.name} must not be a symbolic link", path=str(each))

    @contextmanager
    def mapped_errors(self, path: Path) -> Generator[None, None, None]:
        """Map errors of SQLite and the file system to ours, with the path."""
        try:
            yield
        except RepertoryError:
            raise
        except UNUSABLE_VALUES as error:
            raise self.mapped_error(error, path) from error

    def mapped_error(self, error: Exception, path: Path) -> RepertoryError:
        where = {"path": str(path), "cause": str(error)}
        if isinstance(error, OSError):
            if error.errno in (errno.ELOOP, errno.ENOTDIR, errno.ENAMETOOLONG):
                return Invalid(f"a {self.name} cannot be there: name a file in a folder", **where)
            if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
                text = f"no right to keep a {self.name} there: name a file in a folder that you may write"
                return self.failed(text, **where)
            return self.unavailable(f"the {self.name} cannot be used now", **where)
        if not isinstance(error, sqlite3.Error):
            return Corrupt(f"a value in the {self.name} is not of the type that is stored there", **where)
        extended_code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
        code = extended_code & 0xFF
        if code == sqlite3.SQLITE_NOTADB:
            return Corrupt(f"this file is no SQLite database, so it is no {self.name}: name another file", **where)
        # SQLITE_ERROR is "no such column" and the like: our statements are constant, so the file has another schema.
        if code in _UNUSABLE or extended_code in _TAKEN:
            return Corrupt(f"not a usable {self.name}", **where)
        if code == sqlite3.SQLITE_TOOBIG:
            return Invalid(f"{self.entry} is too large for the {self.name}", **where)
        return self.unavailable(f"the {self.name} cannot be used now", **where)

    def _create(self, path: Path) -> None:
        """Create the folder and an empty file with narrow permissions. An existing file is not opened here.

        Closing a file that a connection of this process has open would release its locks: a flaw of POSIX locks.
        """
        make_root(path.parent)
        try:
            # SQLite would create it with the process's umask: conversations readable by everybody on the machine.
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        except FileExistsError:
            if not path.is_file():
                text = f"a {self.name} is a file, and something else is there: add a name, such as 'sessions.db'"
                raise Invalid(text, path=str(path)) from None
