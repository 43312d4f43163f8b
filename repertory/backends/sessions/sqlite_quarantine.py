"""What is damaged in a session database: finding it, and the table where it is set aside.

The table `quarantine` is made when it is first needed. It has a row's columns as they were, whose row it was, and the
number of the time at which it was moved. Nothing reads it but people.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

from repertory.backends.mending_ports import Damage, Inspection

_TABLE = (
    "CREATE TABLE IF NOT EXISTS quarantine (number INTEGER NOT NULL, session TEXT NOT NULL, agent TEXT NOT NULL,"
    " position, previous, seq, kind, version, low, link, salt, body)"
)
_MOVE = (
    "INSERT INTO quarantine SELECT ?1, journals.session, journals.agent, position, previous, rows.seq, kind, version,"
    " low, link, salt, body FROM journals JOIN rows ON rows.journal = journals.id WHERE journals.session = ?2"
)
_STRAYS = "SELECT count(*), min(position) FROM rows WHERE journal NOT IN (SELECT id FROM journals) HAVING count(*) > 0"
_UNLINKED = (
    "SELECT CAST(journals.session AS TEXT), CAST(journals.agent AS TEXT), min(rows.seq) FROM rows"
    " JOIN journals ON journals.id = rows.journal LEFT JOIN rows AS before ON before.position = rows.previous"
    " WHERE CASE WHEN rows.seq = 1 THEN rows.previous IS NOT 0"
    " ELSE before.journal IS NOT rows.journal OR before.seq IS NOT rows.seq - 1 END GROUP BY journals.id"
)
"""Rows that do not name the one before them. Reading a journal by other ways does not meet them."""
_FAULTS_MAX = 20


class Quarantine:
    """Every method but `inspect` runs within a transaction of the caller's."""

    def __init__(self, connection: sqlite3.Connection, path: str) -> None:
        self._connection = connection
        self._path = path

    def inspect(self) -> Inspection:
        """What SQLite says of the file, and rows of nobody."""
        damages: list[Damage] = []
        try:
            said = [text for (text,) in self._connection.execute(f"PRAGMA integrity_check({_FAULTS_MAX})")]
            damages = [Damage(where=self._path, what=text) for text in said if text != "ok"]
            strays = [f"{count} rows of no journal, from position {first} on" for count, first in self._strays()]
            unlinked = self._connection.execute(_UNLINKED).fetchall()
        except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
            damages.append(Damage(where=self._path, what=str(error)))
            strays = unlinked = []
        sick = {
            session: f"agent {agent}: row {seq} does not name the row before it" for session, agent, seq in unlinked
        }
        return Inspection(damages=damages, sick=sick, strays=strays)

    def move(self, session_id: str) -> str:
        """Move every row of a session here. Gives the name by which they are found."""
        self._connection.execute(_TABLE)
        (number,) = self._connection.execute("SELECT coalesce(max(number), 0) + 1 FROM quarantine").fetchone()
        self._connection.execute(_MOVE, (number, session_id))
        self._connection.execute(
            "DELETE FROM rows WHERE journal IN (SELECT id FROM journals WHERE session = ?)", (session_id,)
        )
        self._connection.execute("DELETE FROM journals WHERE session = ?", (session_id,))
        return self._name(number)

    def names(self, session_id: str) -> list[str]:
        """What was moved of a session, the oldest first."""
        if not self._there():
            return []
        statement = "SELECT DISTINCT number FROM quarantine WHERE session = ? ORDER BY number"
        return [self._name(number) for (number,) in self._connection.execute(statement, (session_id,))]

    def remove(self, session_id: str) -> None:
        """Destroy what was moved of a session."""
        if self._there():
            self._connection.execute("DELETE FROM quarantine WHERE session = ?", (session_id,))

    def _strays(self) -> Iterator[tuple[int, int]]:
        return self._connection.execute(_STRAYS)

    def _there(self) -> bool:
        statement = "SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND name = 'quarantine'"
        (count,) = self._connection.execute(statement).fetchone()
        return bool(count)

    def _name(self, number: int) -> str:
        return f"{self._path}, table quarantine, number {number}"
