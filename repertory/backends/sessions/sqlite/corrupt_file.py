"""Reading a session database with unreadable or wrong pages.

One scan of the whole table, around the damage, finds the rows. The table `journals`, or its index where that is lost,
says whose they are. If the last rows of a session lay on a damaged page, the noted ends show that they are missing.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from typing import Any, TypeGuard, cast

from msgspec import Struct

from repertory.backends.ports import Corruption, Inspection, SalvagedRows
from repertory.backends.sessions.sqlite.reading import (
    CHAIN,
    ENTRIES_OF_ALL,
    LINES_OF_ALL,
    OWN_ROW_ANYWHERE,
    OWN_ROW_AT,
    POSITION_MAX,
    ROW_AT,
    SANE_GENERATION,
    unpacked,
)
from repertory.core.ids import check_id
from repertory.core.journal.rows import Row, first_link, link_of
from repertory.core.pending_work import DueTime, Why
from repertory.errors import Invalid

UNREADABLE = sqlite3.Error, UnicodeDecodeError
"""The errors of SQLite for damage; the second class when its message quotes damaged text."""
_SKIP = 8
"""Positions skipped when a page cannot be read."""
_PROBES_MAX = 100_000
CALLS = "SELECT session, agent, token, call, created_at, tries, ended, error, parked_at FROM calls ORDER BY id"
"""Reads what `CallTable.restore` stores."""
_DUE_TIMES = "SELECT session, agent, CAST(at AS REAL), why FROM pending_work"
_ENDS = (
    "SELECT id, CAST(head AS INTEGER), CAST(seq AS INTEGER) FROM journals NOT INDEXED",
    "SELECT CAST(journal AS INTEGER), position, CAST(seq AS INTEGER) FROM recent",
)
_SETTLED = "SELECT generation, position FROM settled"
_NUMBERED = "SELECT position FROM rows WHERE position > ? AND seq = ?"
_SCAN = "SELECT CAST(journal AS INTEGER), position FROM rows WHERE position >= ? ORDER BY position"


def is_id(value: object) -> TypeGuard[str]:
    """True if the value is a valid session or agent id."""
    try:
        return isinstance(value, str) and bool(check_id(value, "id"))
    except Invalid:
        return False


def _following(before: bytes, rows: Iterable[tuple[int, Row]]) -> tuple[int, Row] | None:
    """The row, with its position, whose link follows the link `before`."""
    return next(((at, row) for at, row in rows if link_of(before, row) == row.link), None)


class CorruptFile:
    """A damaged database, as far as it can be read. Call every method outside a transaction, or in a reading one. None
    raises for damage.
    """

    def __init__(self, connection: sqlite3.Connection, path: str) -> None:
        self._connection = connection
        self._path = path
        self._probes = 0
        self.unread: str | None = None
        """SQLite's error for a table that could not be read completely; None when all were."""

    @cached_property
    def sessions(self) -> dict[str, list[tuple[int, str]]]:
        """Session to its journals (key and agent), in the order in which they began."""
        known = {name for name, _, _ in self.owners()}
        lines, entries = ([line[:3] for line in self._read(of_all)] for of_all in (LINES_OF_ALL, ENTRIES_OF_ALL))
        agreed = {*lines} & {*entries}
        sound = {journal for _, _, journal in agreed}
        found: dict[int, tuple[str, str]] = {}
        # What both tables say comes first, and wins: of two that differ, one lies.
        for session_id, agent_id, journal in (*agreed, *lines, *entries):
            if not (is_id(session_id) and is_id(agent_id) and isinstance(journal, int)):
                continue
            before = found.setdefault(journal, (session_id, agent_id))
            # Where a line has no such entry, the session with a lease is right, and the agent whose name the first
            # row proves. If two sessions have one, it is that of the entry, if this row proves its agent.
            if before != (session_id, agent_id) and journal not in sound:
                begins = self._begins(journal, agent_id)
                right = session_id in known and (begins or before[0] not in known)
                found[journal] = session_id if right else before[0], agent_id if begins else before[1]
        sessions: dict[str, list[tuple[int, str]]] = {}
        for journal, (session_id, agent_id) in sorted(found.items()):
            sessions.setdefault(session_id, []).append((journal, agent_id))
        return sessions

    def owners(self) -> list[tuple[str, int, str | None]]:
        """Session, generation and owner of every session's last lease."""
        return [
            (name, generation if isinstance(generation, int) else 0, owner if isinstance(owner, str) else None)
            for name, generation, owner in self._read(f"SELECT name, {SANE_GENERATION}, owner FROM sessions")
            if isinstance(name, str)
        ]

    def calls(self) -> list[tuple[object, ...]]:
        """The readable lines of calls that nobody waits for."""
        return self._read(CALLS)

    def due_times(self) -> dict[str, list[DueTime]]:
        """Session to what its agents owe."""
        found: dict[str, list[DueTime]] = {}
        for session_id, agent_id, at, why in self._read(_DUE_TIMES):
            if isinstance(session_id, str) and isinstance(agent_id, str) and isinstance(at, float):
                due = DueTime(agent_id=agent_id, at=at, why=cast("Why", str(why)))
                found.setdefault(session_id, []).append(due)
        return found

    def last_generation(self) -> int:
        """The highest generation of any lease; 0 when it cannot be read."""
        found = self._read(f"SELECT {SANE_GENERATION} FROM settled")
        return max((generation for (generation,) in found if isinstance(generation, int)), default=0)

    def last_position(self) -> int:
        """The highest position that any table names."""
        ends = [end for statement in (*_ENDS, _SETTLED) for _, end, *_ in self._read(statement)]
        ends += [position for positions in self._found.values() for position in positions]
        return max((end for end in ends if isinstance(end, int) and end <= POSITION_MAX), default=0)

    def salvage(self, session_id: str) -> SalvagedRows:
        """Every readable row of a session."""
        rows: list[Row] = []
        damages: list[Corruption] = []
        ends = self._ends
        for journal, agent_id in self.sessions.get(session_id, ()):
            position, end = ends.get(journal, (0, 1))
            chain = [at for (at,) in self._read(f"{CHAIN}SELECT position FROM chain", (position, 1))]
            positions = {*self._found.get(journal, ()), *(at for at in chain if isinstance(at, int))}
            if len(positions) < end:
                damages.append(Corruption(where=f"{self._path}, agent {agent_id}", what="rows cannot be read"))
            read = ((position, self._own_row(journal, position, agent_id, damages)) for position in sorted(positions))
            own = {position: row for position, row in read if row is not None}
            rows += own.values()
            rows += self._astray(agent_id, own, end)
        return SalvagedRows(rows=rows, damages=damages)

    def _begins(self, journal: int, agent_id: str) -> bool:
        """True if the first row of a journal is this agent's."""
        row = self._own_row(journal, journal, agent_id, [])
        return row is not None and link_of(first_link(agent_id), row) == row.link

    def _own_row(self, journal: int, position: int, agent_id: str, damages: list[Corruption]) -> Row | None:
        """The row of a journal at a scanned position. Where pages are out of order, its key may not lead to it."""
        try:
            for statement in (OWN_ROW_AT, OWN_ROW_ANYWHERE):
                values = self._connection.execute(statement, (agent_id, position, journal)).fetchone()
                if values is not None:
                    return unpacked(Row._make(values))
        except UNREADABLE as error:
            damages.append(Corruption(where=f"{self._path}, row at position {position}", what=str(error)))
        return None

    def _astray(self, agent_id: str, own: Mapping[int, Row], end: int) -> Iterator[Row]:
        """Rows up to a sequence number that belong to the journal though their journal key is wrong. Each is proved by
        the row before it: a first row would fit any journal of an agent with that name.
        """
        by_seq: dict[int, list[tuple[int, Row]]] = {}
        for position, row in own.items():
            by_seq.setdefault(row.seq, []).append((position, row))
        last, before = 0, first_link(agent_id)
        for seq in range(1, end + 1):
            # By link: of several rows with one number, the link tells which belongs here.
            found = _following(before, by_seq.get(seq, ()))
            if found is None and seq > 1:
                places = [at for (at,) in self._read(_NUMBERED, (last, seq)) if isinstance(at, int)]
                met = [(at, values) for at in places for values in self._read(ROW_AT, (agent_id, at))]
                read = [(at, unpacked(Row._make(cast("tuple[Any, ...]", values)))) for at, values in met]
                found = _following(before, read)
                if found is not None:
                    yield found[1]
            if found is None:
                return
            last, before = found[0], found[1].link

    @cached_property
    def _ends(self) -> dict[int, tuple[int, int]]:
        """Journal to the noted position and sequence number of its last row."""
        ends: dict[int, tuple[int, int]] = {}
        for statement in _ENDS:
            for journal, position, seq in self._read(statement):
                if not (isinstance(journal, int) and isinstance(position, int) and isinstance(seq, int)):
                    continue
                if seq < POSITION_MAX and seq > ends.get(journal, (0, 0))[1]:
                    ends[journal] = position, seq
        return ends

    def _read(self, statement: str, values: tuple[object, ...] = ()) -> list[tuple[object, ...]]:
        """The readable lines of a small table."""
        found: list[tuple[object, ...]] = []
        try:
            for line in self._connection.execute(statement, values):
                found.append(line)
        except UNREADABLE as error:
            self.unread = str(error)
        return found

    @cached_property
    def _found(self) -> dict[int, list[int]]:
        """Journal to the positions of its rows."""
        positions: dict[int, dict[int, None]] = {}
        for journal, position in self._scanned():
            positions.setdefault(journal, {})[position] = None
        return {journal: list(found) for journal, found in positions.items()}

    def _scanned(self) -> Iterator[tuple[int, int]]:
        """Journal key and position of every readable row. Each step continues after the one before."""
        start: int | None = 0
        # A position after every noted one may be damaged itself: the next readable row may lie before it.
        last = max((position for position, _ in self._ends.values()), default=POSITION_MAX)
        while start is not None and start <= POSITION_MAX:
            try:
                for journal, position in self._connection.execute(_SCAN, (start,)):
                    # Behind the last noted position a number may be garbage: jumping there would skip readable rows.
                    start = max(start, position + 1) if position <= last else start
                    if journal is not None:
                        yield journal, position
                return
            except UNREADABLE:
                start = self._readable_behind(start)

    def _readable_behind(self, start: int) -> int | None:
        """The next position from which the table can be read; None when there is none.

        The search takes small steps for at most some seconds in all, then growing ones.
        """
        step = _SKIP
        while not self._is_readable(start + step):
            start += step
            self._probes += 1
            step = _SKIP if self._probes < _PROBES_MAX else step * 2
            if start > POSITION_MAX:
                return None
        if step > _SKIP:
            return start + step
        # The step may have jumped over readable rows; the last stretch is looked at one by one.
        return next(position for position in range(start + 1, start + step + 1) if self._is_readable(position))

    def _is_readable(self, position: int) -> bool:
        try:
            self._connection.execute(f"{_SCAN} LIMIT 1", (position,)).fetchone()
        except UNREADABLE:
            return False
        return True


# Finding damage in a session database, and the table to which damaged rows are moved.
#
# The table `quarantine` has a row's columns as they were, its session and agent, and the number of the move. Only
# people read it.

QUARANTINE = (
    "CREATE TABLE quarantine (number INTEGER NOT NULL, session TEXT NOT NULL, agent TEXT NOT NULL,"
    " position, previous, seq, kind, version, low, link, salt, body)"
)
_MOVE = (
    "INSERT INTO quarantine SELECT ?, journals.session, journals.agent, position, previous, rows.seq, kind, version,"
    " low, link, salt, body FROM journals JOIN rows ON rows.journal = journals.id WHERE journals.session = ?"
)
_STRAYS = "SELECT count(*), min(position) FROM rows WHERE journal NOT IN (SELECT id FROM journals) HAVING count(*) > 0"
_UNLINKED = (
    "SELECT CAST(journals.session AS TEXT), CAST(journals.agent AS TEXT), min(rows.seq) FROM rows"
    " JOIN journals ON journals.id = rows.journal LEFT JOIN rows AS before ON before.position = rows.previous"
    " WHERE CASE WHEN rows.seq = 1 THEN rows.previous IS NOT 0"
    " ELSE before.journal IS NOT rows.journal OR before.seq IS NOT rows.seq - 1 END GROUP BY journals.id"
)
"""Rows that do not name the row before them. Reading a journal does not meet them."""
_FAULTS_MAX = 20


class Quarantine(Struct, eq=False):
    """Every method but `inspect` runs within the caller's transaction."""

    connection: sqlite3.Connection
    path: str

    def inspect(self) -> Inspection:
        """SQLite's integrity check, and rows of no journal."""
        damages: list[Corruption] = []
        try:
            faults = [text for (text,) in self.connection.execute(f"PRAGMA integrity_check({_FAULTS_MAX})")]
            damages = [Corruption(where=self.path, what=text) for text in faults if text != "ok"]
            found = self.connection.execute(_STRAYS)
            strays = [f"{count} rows of no journal, from position {first} on" for count, first in found]
            unlinked = self.connection.execute(_UNLINKED).fetchall()
        except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
            damages.append(Corruption(where=self.path, what=str(error)))
            strays = unlinked = []
        sick = {
            session: f"agent {agent}: row {seq} does not name the row before it" for session, agent, seq in unlinked
        }
        return Inspection(damages=damages, sick=sick, strays=strays)

    def move(self, session_id: str) -> str:
        """Move every row of a session to the table `quarantine`. Returns the name under which they are found."""
        (number,) = self.connection.execute("SELECT coalesce(max(number), 0) + 1 FROM quarantine").fetchone()
        self.connection.execute(_MOVE, (number, session_id))
        self.connection.execute(
            "DELETE FROM rows WHERE journal IN (SELECT id FROM journals WHERE session = ?)", (session_id,)
        )
        self.connection.execute("DELETE FROM journals WHERE session = ?", (session_id,))
        return self._name(number)

    def names(self, session_id: str) -> list[str]:
        """The names of a session's quarantined rows, oldest first."""
        statement = "SELECT DISTINCT number FROM quarantine WHERE session = ? ORDER BY number"
        return [self._name(number) for (number,) in self.connection.execute(statement, (session_id,))]

    def remove(self, session_id: str) -> None:
        self.connection.execute("DELETE FROM quarantine WHERE session = ?", (session_id,))

    def _name(self, number: int) -> str:
        return f"{self.path}, table quarantine, number {number}"
