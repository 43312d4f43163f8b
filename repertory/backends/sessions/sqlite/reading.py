"""Reading journals of a session database, within a transaction, and noticing what is not as it was written.

The database has no checksums, so a page that was damaged may look like another valid page. What is read here is
compared with what is stored elsewhere about the same thing: the last row with what the heads say, each row with the one
before it, a journal's line with its entry in the index and with its first row. Whoever gets the rows proves their
contents by the chain (`core/journal/rows.py`).
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from repertory.backends.sessions.sqlite.bodies import unpack, unpacked
from repertory.backends.sessions.sqlite.heads import Head, Heads
from repertory.core.journal.codec import at_of
from repertory.core.journal.rows import Row, first_link, link_of
from repertory.errors import CorruptJournal

CHAIN = (
    "WITH RECURSIVE chain (position, previous, journal, seq) AS ("
    " SELECT position, previous, journal, seq FROM rows WHERE position = ?1"
    " UNION ALL SELECT rows.position, rows.previous, rows.journal, rows.seq FROM chain CROSS JOIN rows"
    " ON rows.position = chain.previous WHERE rows.seq >= ?2 AND rows.seq = chain.seq - 1"
    " AND rows.journal = chain.journal) "
)
"""The positions of a journal's rows from the one at ?1 back to sequence number ?2. It ends before a row that is not the
one before, so it ends after as many rows as the first one's number says, whatever `previous` says."""

_COLUMNS = (
    "CAST(coalesce(rows.seq, 0) AS INTEGER), CAST(coalesce(kind, 0) AS INTEGER), CAST(coalesce(version, 0) AS INTEGER),"
    " CAST(coalesce(low, 0) AS INTEGER), CAST(coalesce(link, x'') AS BLOB), CAST(coalesce(salt, x'') AS BLOB),"
    " CAST(coalesce(body, x'') AS BLOB)"
)
"""Of a row, as we write them. Damage, or somebody's edit, may have left values of other types."""

LOAD = f"{CHAIN}SELECT ?3, {_COLUMNS} FROM chain CROSS JOIN rows ON rows.position = chain.position"

ROW_AT = f"SELECT ?2, {_COLUMNS} FROM rows WHERE position = ?1"
OWN_ROW_AT = f"{ROW_AT} AND journal = ?3"
OWN_ROW_ANYWHERE = f"SELECT ?2, {_COLUMNS} FROM rows WHERE +position = ?1 AND journal = ?3 LIMIT 1"
"""The same, looking at every row."""

_SCAN = f"SELECT ?1, {_COLUMNS} FROM rows WHERE position BETWEEN ?2 AND ?3 AND journal = ?2 ORDER BY position"
"""The rows of a whole journal, read past those of others."""

_LABELS = (
    f"SELECT previous, ?1, {_COLUMNS} FROM rows WHERE journal = ?2 AND kind = 10 AND salt != x'' AND position <= ?3"
    " ORDER BY position"
)
"""The snapshots of a journal, by the index that holds nothing but snapshots."""

_INDEX = "sqlite_autoindex_journals_1"
_LINES = "SELECT CAST(session AS TEXT), CAST(agent AS TEXT), id, created_at FROM journals"
_ENTRIES = f"SELECT CAST(session AS TEXT), CAST(agent AS TEXT), id FROM journals INDEXED BY {_INDEX}"
_SESSIONS = "SELECT CAST(name AS TEXT), CAST(owner AS TEXT), {journals} FROM sessions"
_COUNT = "CASE WHEN typeof(journals) IN ('integer', 'null') THEN journals ELSE 1 << 62 END"
"""A count that is damaged is one that no session has."""

_LINE = f"{_LINES} NOT INDEXED WHERE id = ?"
LINES_OF_ALL = f"{_LINES} NOT INDEXED ORDER BY id"
ENTRIES_OF_ALL = _ENTRIES
"""The same out of the index, which lies on other pages."""


@dataclass(slots=True)
class Listed:
    """What is known of a session without opening it."""

    agents: dict[str, int] = field(default_factory=dict[str, int])
    """Agent id to its last sequence number."""
    created_at: float = 0.0
    updated_at: float = 0.0
    owner: str | None = None
    damaged: bool = False


class _Known(NamedTuple):
    """What the line of a session says."""

    owner: str | None
    journals: int | None
    """How many it has at least; None: nobody has counted them."""


class Reading:
    """Reads within transactions of the caller's, after `Heads.catch_up`. Errors of every method: `CorruptJournal`,
    those of SQLite.
    """

    def __init__(self, connection: sqlite3.Connection, heads: Heads, path: str, *, counting: bool) -> None:
        """`counting`: whether the journals of each session are counted."""
        self._connection = connection
        self._heads = heads
        self._path = path
        self._sessions = _SESSIONS.format(journals=_COUNT if counting else "NULL")

    def journal(self, session_id: str, agent_id: str, *, fresh: bool = False) -> int | None:
        """The key of an agent's journal; None when there is none.

        Where there is none but the session has been there before, its other journals and their lines are looked at: a
        damaged one must not make an agent begin anew. `fresh`: the session has not been there before.
        """
        key = self._key(session_id, agent_id)
        if key is None and not fresh and self._known(session_id):
            found = self.listed(session_id).get(session_id)
            if found is not None and (found.damaged or agent_id in found.agents):
                text = "the session is damaged, so nobody can say whether it has such an agent; `doctor` says more"
                raise self._corrupt(text, session=session_id, agent=agent_id)
        return key

    def load(self, session_id: str, agent_id: str, *, whole: bool, fresh: bool = False) -> list[Row]:
        """Rows in order, from the last row's `low` on, or all of them."""
        journal = self.journal(session_id, agent_id, fresh=fresh)
        if journal is None:
            return []
        head = self._heads.of(journal)
        low = self._low(journal, head, session_id, agent_id)
        if whole and is_dense(journal, head):
            found = self._connection.execute(_SCAN, (agent_id, journal, head.position))
            return self._complete(unpack(list(map(Row._make, found))), 1, head.seq, session_id, agent_id)
        return self._stretch(session_id, agent_id, head, 1 if whole else low)

    def rows_at(self, session_id: str, agent_id: str, seq: int) -> list[Row]:
        """Rows in order, from the `low` of the row at `seq` up to that one; none when there is no such row."""
        journal = self.journal(session_id, agent_id)
        if journal is None or not 0 < seq <= (head := self._heads.of(journal)).seq:
            return []
        self._low(journal, head, session_id, agent_id)
        near = nearest(self._connection, journal, head, seq)
        found = self._connection.execute(f"{CHAIN}SELECT min(position) FROM chain", (near.position, seq))
        (position,) = found.fetchone()
        head = Head(position or 0, seq)
        return self._stretch(session_id, agent_id, head, self._low(journal, head, session_id, agent_id))

    def label_rows(self, session_id: str, agent_id: str) -> list[Row]:
        """The rows of kind `snapshot` that have their content, each proved by the row before it."""
        journal = self.journal(session_id, agent_id)
        if journal is None:
            return []
        head = self._heads.of(journal)
        rows: list[Row] = []
        for previous, *values in self._connection.execute(_LABELS, (agent_id, journal, head.position)).fetchall():
            row = unpacked(Row._make(values))
            if not self._is_proved(journal, row, previous):
                raise self._corrupt(
                    "the row does not match its checksum", session=session_id, agent=agent_id, seq=row.seq
                )
            rows.append(row)
        return rows

    def listed(self, session_id: str | None) -> dict[str, Listed]:
        """Every session that has a journal, or that one alone; in the order in which they began."""
        found: dict[str, Listed] = {}
        known = self._known(session_id)
        if session_id is None:
            lines = self._connection.execute(LINES_OF_ALL).fetchall()
            entries = set(self._connection.execute(ENTRIES_OF_ALL))
        else:
            # Those of a session that are counted are found by the index; else all lines are looked through.
            entries = set(self._connection.execute(f"{_ENTRIES} WHERE session = ?", (session_id,)))
            if any(each.journals for each in known.values()):
                keys = sorted(key for _, _, key in entries)
                lines = [line for key in keys for line in self._connection.execute(_LINE, (key,))]
            else:
                scan = f"{_LINES} NOT INDEXED WHERE session = ? ORDER BY id"
                lines = self._connection.execute(scan, (session_id,)).fetchall()
        for name, agent, journal, created_at in lines:
            sound = name in known and (name, agent, journal) in entries
            entries.discard((name, agent, journal))
            if not name:
                raise self._corrupt("a journal does not say of which session it is", position=journal)
            about = found.setdefault(name, Listed())
            try:
                created_at, updated_at, seq = self._about(journal, agent, created_at)
            except (sqlite3.DatabaseError, UnicodeDecodeError, CorruptJournal):
                about.damaged = True
                continue
            about.damaged = about.damaged or not sound
            about.agents[agent] = seq
            about.created_at = about.created_at or created_at
            about.updated_at = max(about.updated_at, updated_at)
        for name, *_ in entries:  # Their lines are gone.
            found.setdefault(name, Listed()).damaged = True
        for name, (owner, journals) in known.items():
            if name in found or journals:
                about = found.setdefault(name, Listed())
                about.owner = owner
                about.damaged = about.damaged or len(about.agents) < (journals or 0)
        return found

    def _known(self, session_id: str | None) -> dict[str, _Known]:
        where, values = ("", ()) if session_id is None else (" WHERE name = ?", (session_id,))
        found = self._connection.execute(f"{self._sessions}{where}", values)
        return {name: _Known(owner, journals) for name, owner, journals in found}

    def _about(self, journal: int, agent_id: str, created_at: object) -> tuple[float, float, int]:
        """When a journal began and was last added to, and its last sequence number."""
        head = self._heads.of(journal)
        self._low(journal, head, "", agent_id)
        first = self._row(journal, journal, agent_id)
        if first.seq != 1 or link_of(first_link(agent_id), first) != first.link:
            raise self._corrupt("the row does not match its checksum", agent=agent_id, seq=first.seq)
        began = at_of(first.body) if not first.erased else created_at
        began = float(began) if isinstance(began, int | float) else 0.0
        return began, self._last_at(journal, agent_id, head), head.seq

    def _last_at(self, journal: int, agent_id: str, head: Head) -> float:
        """When the last row was made that still has its content; 0.0 when nobody can tell."""
        for seq, position in self._connection.execute(f"{CHAIN}SELECT seq, position FROM chain", (head.position, 1)):
            row = self._row(journal, position, agent_id)
            statement = "SELECT previous FROM rows WHERE position = ?"
            if not self._is_proved(journal, row, *self._connection.execute(statement, (position,)).fetchone()):
                raise self._corrupt("the row does not match its checksum", agent=agent_id, seq=seq)
            if not row.erased:
                return at_of(row.body) or 0.0
        return 0.0

    def _is_proved(self, journal: int, row: Row, previous: object) -> bool:
        """Whether a row follows the one before it; the first one, its agent's name."""
        if row.seq == 1:
            return link_of(first_link(row.agent_id), row) == row.link
        statement = "SELECT CAST(link AS BLOB) FROM rows WHERE position = ? AND journal = ? AND seq = ?"
        found = self._connection.execute(statement, (previous, journal, row.seq - 1)).fetchone()
        return found is not None and link_of(found[0] or b"", row) == row.link

    def _row(self, journal: int, position: int, agent_id: str) -> Row:
        found = self._connection.execute(OWN_ROW_AT, (position, agent_id, journal)).fetchone()
        if found is None:
            raise self._corrupt("a row is missing", agent=agent_id, position=position)
        return unpacked(Row._make(found))

    def _stretch(self, session_id: str, agent_id: str, head: Head, low: int) -> list[Row]:
        """The rows from sequence number `low` up to the one at a position."""
        rows = list(map(Row._make, self._connection.execute(LOAD, (head.position, low, agent_id))))
        rows.reverse()
        return self._complete(unpack(rows), low, head.seq, session_id, agent_id)

    def _complete(self, rows: list[Row], first: int, last: int, session_id: str, agent_id: str) -> list[Row]:
        """The rows, if they are those numbers."""
        for expected, row in zip(range(first, last + 1), rows, strict=False):
            if row.seq != expected:
                break
        else:
            if len(rows) == last + 1 - first:
                return rows
        there = {row.seq for row in rows}
        seq = next((number for number in range(last, first - 1, -1) if number not in there), last)
        raise self._corrupt(
            "a row is missing, or is not linked to the one before it", session=session_id, agent=agent_id, seq=seq
        )

    def _low(self, journal: int, head: Head, session_id: str, agent_id: str) -> int:
        """Of the row at a head, which has to be there."""
        found = self._connection.execute(
            "SELECT CAST(journal AS INTEGER), CAST(seq AS INTEGER), CAST(low AS INTEGER) FROM rows WHERE position = ?",
            (head.position,),
        ).fetchone()
        corrupt = partial(self._corrupt, session=session_id, agent=agent_id, seq=head.seq, position=head.position)
        if found is None:
            raise corrupt("a row is missing")
        key, seq, low = found
        if (key, seq) != (journal, head.seq):
            raise corrupt("another row stands where this one should be")
        if not isinstance(low, int) or not 1 <= low <= seq:
            raise corrupt("the row is malformed")
        return low

    def _key(self, session_id: str, agent_id: str) -> int | None:
        statement = f"SELECT id FROM journals INDEXED BY {_INDEX} WHERE session = ? AND agent = ?"
        found = self._connection.execute(statement, (session_id, agent_id)).fetchone()
        if found is None:
            return None
        # The index alone says whose journal it is: damaged, it could lead to another session's.
        line = self._connection.execute(_LINE, found).fetchone()
        if line is None or line[:2] != (session_id, agent_id):
            what = "the line of the journal is not what the index says"
            raise self._corrupt(what, session=session_id, agent=agent_id, position=found[0])
        return found[0]

    def _corrupt(
        self, what: str, *, session: str = "", agent: str = "", seq: int | None = None, position: int | None = None
    ) -> CorruptJournal:
        where = {"session": session or None, "agent": agent or None, "seq": seq, "position": position}
        return CorruptJournal(
            what, path=self._path, **{name: value for name, value in where.items() if value is not None}
        )


def is_dense(journal: int, head: Head) -> bool:
    """Whether at least every fourth row between a journal's first and last is its own: then reading past the others is
    quicker.
    """
    return head.seq * 4 > head.position - journal


# Where a row of a long journal lies, found without walking back through all that follow it.
#
# Rows of all journals lie in the order in which they came. So within one journal positions rise with sequence numbers,
# and a row is found by guessing where it should lie. From the nearest row that was met, the chain leads to it.

_NEAR = 48
"""Rows that the chain walks back about as quickly as one more guess is made."""
_PASSED_MAX = 2048
"""Rows of other journals that a guess may pass by. Where a journal's own lie further apart, the chain is quicker."""
_BEFORE = (
    "SELECT position, CAST(seq AS INTEGER) FROM rows WHERE position > ? AND position <= ? AND journal = ?"
    " ORDER BY position DESC"
)


def nearest(connection: sqlite3.Connection, journal: int, head: Head, seq: int) -> Head:
    """A row of the journal at or behind sequence number `seq`, near to it where the journal's rows lie close enough.

    `journal` is its key, which is the position of its first row; `head` its last row.
    """
    low, high = Head(journal, 1), head
    halve = False
    while high.seq - seq > _NEAR and high.position - low.position > 1:
        share = 0.5 if halve else (seq + _NEAR // 2 - low.seq) / (high.seq - low.seq)
        guess = low.position + int(share * (high.position - low.position))
        guess = min(max(guess, low.position + 1), high.position - 1)
        first = max(low.position, guess - _PASSED_MAX)
        found = connection.execute(f"{_BEFORE} LIMIT 1", (first, guess, journal)).fetchone()
        if found is None and first > low.position:
            break
        met = Head(*found) if found is not None else Head(guess, low.seq)
        if met.seq >= seq:
            high = met
        else:
            # Nothing of the journal lies between the row that was met and the guess.
            low = Head(guess, met.seq)
        halve = not halve
    return high
