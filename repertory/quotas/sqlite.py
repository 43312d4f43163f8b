"""A store in a SQLite file, for the processes of one machine. The time is SQLite's."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

from repertory.backends.owning_thread import OwningThread
from repertory.backends.sqlite_files import Connection, DatabaseKind, read_marks, transaction, use_wal
from repertory.errors import Failed
from repertory.forking import forget_in_children
from repertory.quotas.decisions import Grant, Report, WindowLimits
from repertory.quotas.stores import exchanged

STORE_ID = 0x52707475
"""The application id that marks a store, at byte 68 of the file."""
_VERSION = 1
_SCHEMA = (
    "CREATE TABLE quotas (key TEXT PRIMARY KEY, account BLOB NOT NULL) WITHOUT ROWID",
    f"PRAGMA user_version = {_VERSION}",
    f"PRAGMA application_id = {STORE_ID}",
)
_NOW = "(julianday('now') - 2440587.5) * 86400.0"
_READ = f"SELECT {_NOW}, (SELECT account FROM quotas WHERE key = ?)"
_WRITE = "INSERT INTO quotas VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET account = excluded.account"
_KIND = DatabaseKind(name="quota database", entry="an account")


class SQLiteQuotaStore:
    """The accounts of quotas in a file of their own, for all processes of one machine. The file is made when it is
    first used. If the machine loses power, the last seconds may be gone.

    Args:
        path: The database file.
        busy_timeout_s: Seconds to wait while other processes write.

    Examples:
        >>> from repertory import ModelQuota, ModelQuotas, SQLiteQuotaStore
        >>> quota = ModelQuota(tokens_per_minute=200_000)
        >>> quotas = ModelQuotas({"gpt-5": quota}, store=SQLiteQuotaStore("quotas.db"))
    """

    def __init__(self, path: str | os.PathLike[str], *, busy_timeout_s: float = 5.0) -> None:
        self._path = Path(path).absolute()
        self._busy_timeout_s = busy_timeout_s
        self._thread = OwningThread(f"repertory {self._path.name}")
        self._connection: Connection | None = None
        forget_in_children(self)

    def forget_parent(self) -> None:
        """Have a forked child open the file anew."""
        self._connection = None

    def __repr__(self) -> str:
        return f"SQLiteQuotaStore({str(self._path)!r})"

    async def exchange(self, key: str, report: Report, limits: WindowLimits) -> Grant:
        """The answer of one account to a report.

        Args:
            key: The name of the account.
            report: The report of a process.
            limits: The limits of the quota, as that process has them.
        """
        return await self._thread.run(partial(self._exchange, key, report, limits))

    async def aclose(self) -> None:
        """Close the file. The next call opens it again."""
        thread, self._thread = self._thread, OwningThread(f"repertory {self._path.name}")
        await thread.aclose(self._close)

    # On the thread.

    def _exchange(self, key: str, report: Report, limits: WindowLimits) -> Grant:
        with _KIND.mapped_errors(self._path):
            connection = self._connection = self._connection or self._opened()
            _KIND.refuse_lost_log(connection, self._path)
            with transaction(connection):
                # After BEGIN IMMEDIATE: what others have reported before is in, and their time is not later.
                wall, data = connection.execute(_READ, (key,)).fetchone()
                data, grant = exchanged(data, report, limits, wall)
                connection.execute(_WRITE, (key, data))
            return grant

    def _opened(self) -> Connection:
        _KIND.refuse_links(self._path)
        connection = _KIND.connect(self._path, busy_timeout_s=self._busy_timeout_s)
        try:
            if not self._is_store(connection):
                use_wal(connection)
                with transaction(connection):
                    if not self._is_store(connection):  # Another process may have been faster.
                        for statement in _SCHEMA:
                            connection.execute(statement)
            connection.execute("PRAGMA synchronous = NORMAL")
            connection.execute("PRAGMA trusted_schema = OFF")
        except BaseException:
            connection.close()
            raise
        return connection

    def _is_store(self, connection: Connection) -> bool:
        marks = read_marks(connection)
        if marks.application == 0 and marks.entries == 0:
            return False
        if (marks.application, marks.version) != (STORE_ID, _VERSION):
            text = "this database is no store of quotas that this release knows: name another file"
            raise Failed(text, path=str(self._path))
        return True

    def _close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
