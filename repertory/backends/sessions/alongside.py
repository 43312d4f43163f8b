"""What may lie in a session database besides sessions, and change in the commits of theirs."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Protocol

from repertory.core.journal.rows import Row


class Alongside(Protocol):
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
