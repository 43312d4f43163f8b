"""Where each journal ends, without an index that every commit would have to write.

Rows lie in the order in which they came, whosever they are, so that a commit of fifty sessions fills a page or two
instead of touching fifty. Each row names the position of its journal's row before, so a journal is read backwards from
its last row. The last rows are kept in the table `journals`, but that is brought up to date only every `SETTLE_AFTER`
rows: up to `settled.position` it is exact. What came later is found by reading the rows behind that position, once per
process: this class remembers them and afterwards reads only what other processes add.

The table `recent` says the same of those later rows on pages of its own: each commit notes which row is the last one of
each journal that it has added to. So when the end of `rows` is lost, the journals that ended there are known to be
damaged, instead of ending earlier. The farther of the two ends counts.
"""

from __future__ import annotations

import sqlite3
from typing import NamedTuple

from repertory.errors import CorruptJournal

SETTLE_AFTER = 1024
"""How many rows may follow `settled.position`. It bounds what a process reads before it can open its first session."""

POSITION_MAX = 2**62
"""No database gets there. A position beyond it is damage."""

RECENT = (
    "CREATE TABLE IF NOT EXISTS recent (position INTEGER PRIMARY KEY, journal INTEGER NOT NULL, seq INTEGER NOT NULL)"
)

_ROWS = (
    "SELECT found.journal, found.position, found.seq FROM (SELECT CAST(journal AS INTEGER) AS journal, position,"
    " max(CAST(seq AS INTEGER)) AS seq FROM rows WHERE position > ? GROUP BY journal) AS found"
    " LEFT JOIN journals ON journals.id = found.journal WHERE found.seq > coalesce(CAST(journals.seq AS INTEGER), 0)"
)
"""The rows with the highest numbers, of those behind a position. A row that is there twice is no end."""
_NOTED = (
    "SELECT CAST(recent.journal AS INTEGER), recent.position, CAST(recent.seq AS INTEGER) FROM recent"
    " LEFT JOIN journals ON journals.id = recent.journal WHERE recent.position > ?"
    " AND CAST(recent.seq AS INTEGER) > coalesce(CAST(journals.seq AS INTEGER), 0)"
)
"""Ends that were noted, without those that have been settled since by a release that does not know the table."""
_END = "SELECT coalesce(max(position), 0) FROM rows UNION ALL SELECT coalesce(max(position), 0) FROM recent"
_HEAD = "SELECT CAST(head AS INTEGER), CAST(seq AS INTEGER) FROM journals WHERE id = ?"


class Head(NamedTuple):
    """The last row of a journal."""

    position: int
    seq: int


NO_HEAD = Head(0, 0)


class Heads:
    """The end of every journal as of the running transaction. Call `catch_up` first in each.

    Errors: `CorruptJournal` naming the database.
    """

    def __init__(self, connection: sqlite3.Connection, path: str) -> None:
        self._connection = connection
        self._path = path
        self._others: int | None = None
        self._settled = 0
        self._recent: dict[int, Head] = {}
        self._moved: dict[int, Head] = {}
        """Of the running transaction."""
        self._noting = False
        """Whether the table `recent` is there: earlier releases did not make it."""
        self.end = 0
        """The last position in use, or ever used."""
        self.epoch = 0
        """Rises whenever something may have changed without us: what was read from the database before may be wrong."""

    def catch_up(self) -> None:
        """Read what other connections have committed since the last time; nothing, when they have committed nothing."""
        (others,) = self._connection.execute("PRAGMA data_version").fetchone()
        if others == self._others:
            return
        settled = self._settled_position()
        self._noting = bool(self._connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'recent'").fetchall())
        found = self._connection.execute(_ROWS, (max(settled, self.end),)).fetchall()
        ends = _END if self._noting else _END.partition(" UNION ")[0]
        end = max(self.end, settled, *(last for (last,) in self._connection.execute(ends)))
        if self._noting:
            found += self._connection.execute(_NOTED, (self.end,)).fetchall()
        if end > POSITION_MAX:
            raise CorruptJournal("a position in the database is beyond every bound", path=self._path, position=end)
        self._drop_settled(settled)
        for journal, position, seq in found:
            if seq > self._recent.get(journal, NO_HEAD).seq:
                self._recent[journal] = Head(position, seq)
        self.end = end
        self._others = others
        self.epoch += 1

    def of(self, journal: int) -> Head:
        """The journal's last row."""
        head = self._recent.get(journal)
        if head is not None:
            return head
        found = self._connection.execute(_HEAD, (journal,)).fetchone()
        if found is None or found[0] is None or found[1] is None:
            raise CorruptJournal("the line of a journal is missing or damaged", path=self._path, journal=journal)
        return Head(*found)

    def moved(self, journal: int, head: Head) -> None:
        """The running transaction has put this row at the end of the journal."""
        self._recent[journal] = self._moved[journal] = head
        self.end = head.position

    def note(self) -> None:
        """Store what `moved` was told, within the running transaction, or settle if it is time."""
        if self.end - self._settled >= SETTLE_AFTER:
            self.settle()
            return
        self._make_recent()
        noted = [(head.position, journal, head.seq) for journal, head in self._moved.items()]
        self._connection.executemany("INSERT OR REPLACE INTO recent (position, journal, seq) VALUES (?, ?, ?)", noted)
        self._moved.clear()

    def settle(self) -> None:
        """Bring the table `journals` up to date within the running transaction."""
        self._make_recent()
        self._moved.clear()
        recent = [(head.position, head.seq, journal) for journal, head in self._recent.items()]
        self._connection.executemany("UPDATE journals SET head = ?, seq = ? WHERE id = ?", recent)
        self._connection.execute("UPDATE settled SET position = ?", (self.end,))
        self._connection.execute("DELETE FROM recent")
        self._drop_settled(self.end)

    def forget(self) -> None:
        """The running transaction was rolled back, or rows were deleted: read everything again."""
        self._others = None
        self._settled = 0
        self._recent.clear()
        self._moved.clear()
        self.end = 0
        self.epoch += 1

    def _make_recent(self) -> None:
        if not self._noting:
            self._connection.execute(RECENT)
            self._noting = True

    def _settled_position(self) -> int:
        found = self._connection.execute("SELECT CAST(position AS INTEGER) FROM settled").fetchall()
        if len(found) != 1 or found[0][0] is None:
            raise CorruptJournal("the line of the table settled is missing or damaged", path=self._path)
        return found[0][0]

    def _drop_settled(self, position: int) -> None:
        if position > self._settled:
            self._settled = position
            self._recent = {journal: head for journal, head in self._recent.items() if head.position > position}
