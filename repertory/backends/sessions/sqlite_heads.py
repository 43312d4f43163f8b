"""Where each journal ends, without an index that every commit would have to write.

Rows lie in the order in which they came, whosever they are, so that a commit of fifty sessions fills a page or two
instead of touching fifty. Each row names the position of its journal's row before, so a journal is read backwards from
its last row. The last rows are kept in the table `journals`, but that is brought up to date only every `SETTLE_AFTER`
rows: up to `settled.position` it is exact. What came later is found by reading the rows behind that position, once per
process: this class remembers them and afterwards reads only what other processes add.
"""

from __future__ import annotations

import sqlite3
from typing import NamedTuple

SETTLE_AFTER = 1024
"""How many rows may follow `settled.position`. It bounds what a process reads before it can open its first session."""


class Head(NamedTuple):
    """The last row of a journal."""

    position: int
    seq: int


NO_HEAD = Head(0, 0)


class Heads:
    """The end of every journal as of the running transaction. Call `catch_up` first in each."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._others: int | None = None
        self._settled = 0
        self._recent: dict[int, Head] = {}
        self.end = 0
        """The last position in use, or ever used."""
        self.epoch = 0
        """Rises whenever something may have changed without us: what was read from the database before may be wrong."""

    def catch_up(self) -> None:
        """Read what other connections have committed since the last time; nothing, when they have committed nothing."""
        (others,) = self._connection.execute("PRAGMA data_version").fetchone()
        if others == self._others:
            return
        (settled,) = self._connection.execute("SELECT position FROM settled").fetchone()
        found = self._connection.execute(
            "SELECT journal, max(position), seq FROM rows WHERE position > ? GROUP BY journal",
            (max(settled, self.end),),
        ).fetchall()
        for journal, position, seq in found:
            self._recent[journal] = Head(position, seq)
        self.end = max(self.end, settled, *(position for _, position, _ in found))
        self._drop_settled(settled)
        self._others = others
        self.epoch += 1

    def of(self, journal: int) -> Head:
        """The journal's last row; `NO_HEAD` when it has none."""
        head = self._recent.get(journal)
        if head is not None:
            return head
        found = self._connection.execute("SELECT head, seq FROM journals WHERE id = ?", (journal,)).fetchone()
        return Head(*found) if found is not None else NO_HEAD

    def moved(self, journal: int, head: Head) -> None:
        """The running transaction has put this row at the end of the journal."""
        self._recent[journal] = head
        self.end = head.position

    def settle(self, *, at_once: bool = False) -> None:
        """Bring the table `journals` up to date within the running transaction, if it is time."""
        if not at_once and self.end - self._settled < SETTLE_AFTER:
            return
        recent = [(head.position, head.seq, journal) for journal, head in self._recent.items()]
        self._connection.executemany("UPDATE journals SET head = ?, seq = ? WHERE id = ?", recent)
        self._connection.execute("UPDATE settled SET position = ?", (self.end,))
        self._drop_settled(self.end)

    def forget(self) -> None:
        """The running transaction was rolled back, or rows were deleted: read everything again."""
        self._others = None
        self._settled = 0
        self._recent.clear()
        self.end = 0
        self.epoch += 1

    def _drop_settled(self, position: int) -> None:
        if position > self._settled:
            self._settled = position
            self._recent = {journal: head for journal, head in self._recent.items() if head.position > position}
