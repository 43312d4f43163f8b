"""Reading a session database in which some pages cannot be read.

Rows are found by reading the whole table once, around what is damaged; whose they are says the table `journals`. When
the last rows of a session lay on such a page, it looks as if there had never been any.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import suppress

from repertory.backends.mending_ports import Damage, Salvage
from repertory.backends.sessions.sqlite_bodies import unpacked
from repertory.core.journal.rows import Row

_SKIP = 8
"""Positions to go on behind when a page cannot be read."""
_UNKNOWN_END = 1_000_000
"""How far to look behind the last row that was read when nobody can say where the table ends."""
_JOURNALS = "SELECT id, session, agent, seq FROM journals ORDER BY id"
_ROW = (
    "SELECT ?2, CAST(seq AS INTEGER), CAST(kind AS INTEGER), CAST(version AS INTEGER), CAST(low AS INTEGER),"
    " CAST(link AS BLOB), CAST(salt AS BLOB), CAST(body AS BLOB) FROM rows WHERE position = ?1"
)


class Wreck:
    """A database as far as it can be read. Every method runs outside a transaction, or within a reading one."""

    def __init__(self, connection: sqlite3.Connection, path: str) -> None:
        self._connection = connection
        self._path = path
        self._positions: dict[int, list[int]] | None = None

    def sessions(self) -> dict[str, list[tuple[int, str, int]]]:
        """Session to its journals, in the order in which they began: key, agent, and a sequence number it has had."""
        found: dict[str, list[tuple[int, str, int]]] = {}
        with suppress(sqlite3.DatabaseError):
            for journal, session_id, agent_id, seq in self._connection.execute(_JOURNALS):
                found.setdefault(session_id, []).append((journal, agent_id, seq))
        return found

    def owners(self) -> list[tuple[str, int, str | None]]:
        """Session, generation and owner of every lease."""
        with suppress(sqlite3.DatabaseError):
            return self._connection.execute("SELECT name, generation, owner FROM sessions").fetchall()
        return []

    def last_generation(self) -> int:
        """The highest generation that a deleted session had; 0 when nobody can say."""
        with suppress(sqlite3.DatabaseError):
            (generation,) = self._connection.execute("SELECT generation FROM settled").fetchone()
            return int(generation)
        return 0

    def salvage(self, session_id: str) -> Salvage:
        """Every row of a session that can be read."""
        rows: list[Row] = []
        damages: list[Damage] = []
        for journal, agent_id, seq in self.sessions().get(session_id, ()):
            positions = self._found().get(journal, ())
            if len(positions) < seq:
                damages.append(Damage(where=f"{self._path}, agent {agent_id}", what="rows cannot be read"))
            for position in positions:
                try:
                    values = self._connection.execute(_ROW, (position, agent_id)).fetchone()
                    rows.append(unpacked(Row._make(values)))
                except sqlite3.DatabaseError as error:
                    damages.append(Damage(where=f"{self._path}, row at position {position}", what=str(error)))
        return Salvage(rows=rows, damages=damages)

    def _found(self) -> dict[int, list[int]]:
        """Journal to the positions of its rows."""
        if self._positions is None:
            self._positions = {}
            for journal, position in self._scanned():
                self._positions.setdefault(journal, []).append(position)
        return self._positions

    def _scanned(self) -> Iterator[tuple[int, int]]:
        start, end = 0, self._end()
        while start <= end:
            try:
                statement = "SELECT journal, position FROM rows WHERE position >= ? ORDER BY position"
                for journal, position in self._connection.execute(statement, (start,)):
                    start = position + 1
                    yield journal, position
                return
            except sqlite3.DatabaseError:
                start += _SKIP

    def _end(self) -> int:
        with suppress(sqlite3.DatabaseError):
            (end,) = self._connection.execute("SELECT coalesce(max(position), 0) FROM rows").fetchone()
            return int(end)
        return _UNKNOWN_END
