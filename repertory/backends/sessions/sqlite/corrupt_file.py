"""Reading a session database in which some pages cannot be read, or say what they never said.

Rows are found by reading the whole table once, around what is damaged; whose they are says the table `journals`, and
its index where that is lost. When the last rows of a session lay on such a page, the ends that are noted say so.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeGuard, cast

from repertory.backends.ports import Corruption, SalvagedRows
from repertory.backends.sessions.sqlite.reading import (
    CHAIN,
    ENTRIES_OF_ALL,
    LINES_OF_ALL,
    OWN_ROW_ANYWHERE,
    OWN_ROW_AT,
    POSITION_MAX,
    ROW_AT,
    unpacked,
)
from repertory.core.ids import check_id
from repertory.core.journal.rows import Row, first_link, link_of
from repertory.errors import Invalid

UNREADABLE = sqlite3.Error, UnicodeDecodeError
"""What SQLite raises for damage; the second when it cannot say it, since what it quotes is damaged."""
_SKIP = 8
"""Positions to go on behind when a page cannot be read."""
_PROBES_MAX = 100_000
_ENDS = (
    "SELECT id, CAST(head AS INTEGER), CAST(seq AS INTEGER) FROM journals NOT INDEXED",
    "SELECT CAST(journal AS INTEGER), position, CAST(seq AS INTEGER) FROM recent",
)
_SETTLED = "SELECT generation, position FROM settled"
_NUMBERED = "SELECT position FROM rows WHERE position > ? AND seq = ?"
_SCAN = "SELECT CAST(journal AS INTEGER), position FROM rows WHERE position >= ? ORDER BY position"


def is_id(value: object) -> TypeGuard[str]:
    """Whether a session or an agent can be called so."""
    try:
        return isinstance(value, str) and bool(check_id(value, "id"))
    except Invalid:
        return False


def _following(before: bytes, rows: Iterable[tuple[int, Row]]) -> tuple[int, Row] | None:
    """The row, with its position, that follows the link of the one before it."""
    return next(((place, row) for place, row in rows if link_of(before, row) == row.link), None)


class Wreck:
    """A database as far as it can be read. Every method runs outside a transaction, or within a reading one. Raises
    nothing for damage.
    """

    def __init__(self, connection: sqlite3.Connection, path: str) -> None:
        self._connection = connection
        self._path = path
        self._positions: dict[int, list[int]] | None = None
        self._journals: dict[str, list[tuple[int, str]]] | None = None
        self._last: dict[int, tuple[int, int]] | None = None
        self._probes = 0
        self.unread: str | None = None
        """What SQLite has said of a table that could not be read, or not wholly; None when all were."""

    def sessions(self) -> dict[str, list[tuple[int, str]]]:
        """Session to its journals, in the order in which they began: key and agent."""
        if self._journals is None:
            self._journals = self._read_journals()
        return self._journals

    def _read_journals(self) -> dict[str, list[tuple[int, str]]]:
        known = {name for name, _, _ in self.owners()}
        found: dict[int, tuple[str, str]] = {}
        for session_id, agent_id, journal, *_ in (*self._read(LINES_OF_ALL), *self._read(ENTRIES_OF_ALL)):
            if not (is_id(session_id) and is_id(agent_id) and isinstance(journal, int)):
                continue
            before = found.setdefault(journal, (session_id, agent_id))
            # Where a line and its entry in the index differ, the session that has a lease is right, and the agent whose
            # name the first row proves.
            if before != (session_id, agent_id):
                agent_id = agent_id if self._begins(journal, agent_id) else before[1]
                found[journal] = (session_id if session_id in known else before[0]), agent_id
        sessions: dict[str, list[tuple[int, str]]] = {}
        for journal, (session_id, agent_id) in sorted(found.items()):
            sessions.setdefault(session_id, []).append((journal, agent_id))
        return sessions

    def owners(self) -> list[tuple[str, int, str | None]]:
        """Session, generation and owner of every lease."""
        return [
            (name, generation if isinstance(generation, int) else 0, owner if isinstance(owner, str) else None)
            for name, generation, owner in self._read("SELECT name, generation, owner FROM sessions")
            if isinstance(name, str)
        ]

    def last_generation(self) -> int:
        """The highest generation that a deleted session had; 0 when nobody can say."""
        found = self._read("SELECT generation FROM settled")
        return max((generation for (generation,) in found if isinstance(generation, int)), default=0)

    def last_position(self) -> int:
        """The highest position that anything tells of."""
        ends = [end for statement in (*_ENDS, _SETTLED) for _, end, *_ in self._read(statement)]
        ends += [position for positions in self._found().values() for position in positions]
        return max((end for end in ends if isinstance(end, int) and end <= POSITION_MAX), default=0)

    def salvage(self, session_id: str) -> SalvagedRows:
        """Every row of a session that can be read."""
        rows: list[Row] = []
        damages: list[Corruption] = []
        ends = self._ends()
        for journal, agent_id in self.sessions().get(session_id, ()):
            position, end = ends.get(journal, (0, 1))
            chain = [place for (place,) in self._read(f"{CHAIN}SELECT position FROM chain", (position, 1))]
            positions = {*self._found().get(journal, ()), *(place for place in chain if isinstance(place, int))}
            if len(positions) < end:
                damages.append(Corruption(where=f"{self._path}, agent {agent_id}", what="rows cannot be read"))
            read = ((position, self._own_row(journal, position, agent_id, damages)) for position in sorted(positions))
            own = {position: row for position, row in read if row is not None}
            rows += own.values()
            rows += self._astray(agent_id, own, end)
        return SalvagedRows(rows=rows, damages=damages)

    def _begins(self, journal: int, agent_id: str) -> bool:
        """Whether the first row of a journal is this agent's."""
        row = self._own_row(journal, journal, agent_id, [])
        return row is not None and link_of(first_link(agent_id), row) == row.link

    def _own_row(self, journal: int, position: int, agent_id: str, damages: list[Corruption]) -> Row | None:
        """A row of a journal that was met at a position. Where pages are out of order its key may not lead to it."""
        try:
            for statement in (OWN_ROW_AT, OWN_ROW_ANYWHERE):
                values = self._connection.execute(statement, (position, agent_id, journal)).fetchone()
                if values is not None:
                    return unpacked(Row._make(values))
        except UNREADABLE as error:
            damages.append(Corruption(where=f"{self._path}, row at position {position}", what=str(error)))
        return None

    def _astray(self, agent_id: str, own: Mapping[int, Row], end: int) -> Iterator[Row]:
        """Rows up to a sequence number that are the journal's though they do not say so. Each is proved by the one
        before it: a first row would fit any journal of an agent with that name.
        """
        by_seq: dict[int, list[tuple[int, Row]]] = {}
        for position, row in own.items():
            by_seq.setdefault(row.seq, []).append((position, row))
        last, before = 0, first_link(agent_id)
        for seq in range(1, end + 1):
            found = _following(before, by_seq.get(seq, ()))
            if found is None and seq > 1:
                places = [place for (place,) in self._read(_NUMBERED, (last, seq)) if isinstance(place, int)]
                met = [(place, values) for place in places for values in self._read(ROW_AT, (place, agent_id))]
                read = [(place, unpacked(Row._make(cast("tuple[Any, ...]", values)))) for place, values in met]
                found = _following(before, read)
                if found is not None:
                    yield found[1]
            if found is None:
                return
            last, before = found[0], found[1].link

    def _ends(self) -> dict[int, tuple[int, int]]:
        """Journal to the position and the number of the last row that it is said to have."""
        if self._last is not None:
            return self._last
        ends: dict[int, tuple[int, int]] = {}
        for statement in _ENDS:
            for journal, position, seq in self._read(statement):
                if not (isinstance(journal, int) and isinstance(position, int) and isinstance(seq, int)):
                    continue
                if seq < POSITION_MAX and seq > ends.get(journal, (0, 0))[1]:
                    ends[journal] = position, seq
        self._last = ends
        return ends

    def _read(self, statement: str, values: tuple[object, ...] = ()) -> list[tuple[object, ...]]:
        """The lines of a small table, as far as they can be read."""
        found: list[tuple[object, ...]] = []
        try:
            for line in self._connection.execute(statement, values):
                found.append(line)
        except UNREADABLE as error:
            self.unread = str(error)
        return found

    def _found(self) -> dict[int, list[int]]:
        """Journal to the positions of its rows."""
        if self._positions is None:
            positions: dict[int, dict[int, None]] = {}
            for journal, position in self._scanned():
                positions.setdefault(journal, {})[position] = None
            self._positions = {journal: list(found) for journal, found in positions.items()}
        return self._positions

    def _scanned(self) -> Iterator[tuple[int, int]]:
        """Key of the journal and position of every row that can be read. Each step goes on behind the one before."""
        start: int | None = 0
        # A position behind all that was ever noted may be damaged itself: what is read next may lie before it.
        last = max((position for position, _ in self._ends().values()), default=POSITION_MAX)
        while start is not None and start <= POSITION_MAX:
            try:
                for journal, position in self._connection.execute(_SCAN, (start,)):
                    start = max(start, position + 1) if position <= last else start
                    if journal is not None:
                        yield journal, position
                return
            except UNREADABLE:
                start = self._readable_behind(start)

    def _readable_behind(self, start: int) -> int | None:
        """The next position from which the table can be read; None when there is none.

        It is looked for step by step as long as that takes no more than some seconds in all, then in growing steps.
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
        return next(position for position in range(start + 1, start + step + 1) if self._is_readable(position))

    def _is_readable(self, position: int) -> bool:
        try:
            self._connection.execute(f"{_SCAN} LIMIT 1", (position,)).fetchone()
        except UNREADABLE:
            return False
        return True
