"""The numbered snapshots of one agent: the next number, and writing the snapshots that the journal has marked.

A mark is a journal record, committed together with the turn that it follows. The document is written later, off the
path of the answer, and from the journal alone: so after a crash the next owner can write the missing ones.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from repertory.core.journal.codec import decode
from repertory.core.journal.records import SnapshotTaken
from repertory.core.journal.rows import RecordKind, Row
from repertory.core.snapshots.location import Numbering, file_name, number_of
from repertory.errors import CorruptJournal, SnapshotException

if TYPE_CHECKING:
    from repertory.backends.sessions.snapshots.makers import HistoryStore, Maker
    from repertory.core.snapshots.location import SnapshotLocation

_log = logging.getLogger("repertory.sessions")
_NUMBER = "history"
"""The metadata key in a mark for the snapshot's number."""


class Marked(NamedTuple):
    """A marked snapshot that has no document yet."""

    number: int
    seq: int
    """The sequence number of its mark."""
    at: float
    rows: Sequence[Row]
    """The rows that it shows, from the `low` of the row before the mark on."""


class AgentHistory:
    """The numbered snapshots of an agent whose session is owned."""

    def __init__(
        self, shelf: HistoryStore, location: SnapshotLocation, maker: Maker[Any], wall: Callable[[], float]
    ) -> None:
        self._shelf = shelf
        self._location = location
        self._maker = maker
        self._wall = wall
        self._waiting: deque[Marked] = deque()
        self._next = 1
        self.numbering = Numbering()
        """The content of the manifest."""
        self.remade = False
        """True if the manifest is damaged and the new one is not written yet."""
        self.last_at: float | None = None
        """When the last snapshot was taken, in epoch seconds."""

    @property
    def due(self) -> bool:
        return bool(self._waiting)

    async def read(self) -> None:
        """Read the manifest. A damaged one is rebuilt from the stored snapshots and the marks in the journal."""
        try:
            self.numbering = await self._shelf.numbering(self._location)
        except SnapshotException as error:
            self.numbering, self.remade = await self._remade(), True
            await self._shelf.keep_manifest(self._location)
            _log.warning("a manifest is damaged, and is rebuilt why=%r", str(error))
        self._next, self.last_at = self.numbering.next_number, self.numbering.last_at

    async def _remade(self) -> Numbering:
        ids = await self._shelf.ids(self._location)
        last = max((number for each in ids if (number := number_of(each)) is not None), default=0)
        found = await self._shelf.history(self._location, str(last)) if last else None
        at = found.snapshot.created_at if found is not None and found.snapshot is not None else None
        return Numbering(next_number=last + 1, last_at=at or None)

    def mark(self, at: float) -> SnapshotTaken:
        """The record that marks the next snapshot; it follows the rows that the snapshot shows."""
        number, self._next = self._next, self._next + 1
        self.last_at = at
        return SnapshotTaken(at=at, label=file_name(str(number)).removesuffix(".json"), metadata={_NUMBER: number})

    def see(self, before: Sequence[Row], added: Sequence[Row]) -> None:
        """Collect the marks among `added`, which follow the rows `before`."""
        for place, row in enumerate(added):
            taken = mark_in(row)
            if taken is not None:
                shown = [*before, *added[:place]]
                shown = shown[max(shown[-1].low - shown[0].seq, 0) :] if shown else []
                number = marked_number(taken)
                self._waiting.append(Marked(number, row.seq, taken.at, shown))
                self._next, self.last_at = max(self._next, number + 1), taken.at

    async def publish(self) -> None:
        """Write the documents of all marks, in order; after each, the manifest. Errors: the snapshot store's."""
        while self._waiting:
            marked = self._waiting[0]
            try:
                made = await self._maker.made(marked.rows, marked.at)
                await self._shelf.put_history(self._location, str(marked.number), made.document, made.size_bytes)
            except CorruptJournal as error:  # Its rows cannot be read any more; give this snapshot up for good.
                fields = self._location.session_id, self._location.scope_id, marked.number, str(error)
                _log.warning("a snapshot cannot be made session=%r agent=%r number=%r why=%r", *fields)
            number, seq = marked.number + 1, marked.seq
            await self._put(Numbering(next_number=number, last_at=marked.at, taken=seq, mark=seq))
            if self._waiting and self._waiting[0] is marked:
                self._waiting.popleft()

    async def branch(self, number: int | None, at: float, mark: int) -> None:
        """Continue after that number and overwrite later snapshots. None: there is no such number, and numbering is
        unchanged.

        `mark`: the last record of the journal.
        """
        following = self.numbering.next_number if number is None else number + 1
        await self._put(replace(self.numbering, next_number=following, last_at=at or None, mark=mark))
        self._next, self.last_at = following, at or None

    async def settle(self, mark: int) -> None:
        """Write into the manifest that every mark up to that record has its document."""
        await self._put(replace(self.numbering, mark=mark))

    async def _put(self, numbering: Numbering) -> None:
        await self._shelf.put_numbering(self._location, numbering, self._wall())
        self.numbering, self.remade = numbering, False


def mark_in(row: Row) -> SnapshotTaken | None:
    """The row's mark of a numbered snapshot; None for every other row."""
    if row.kind != RecordKind.SNAPSHOT or row.erased:
        return None
    record = decode(row.kind, row.version, row.body)
    if not isinstance(record, SnapshotTaken) or not isinstance(record.metadata.get(_NUMBER), int):
        return None
    return record


def marked_number(mark: SnapshotTaken) -> int:
    return int(str(mark.metadata[_NUMBER]))


def marked_numbers(rows: Iterable[Row]) -> set[int]:
    return {marked_number(mark) for row in rows if (mark := mark_in(row)) is not None}
