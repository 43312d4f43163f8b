"""A whole journal in memory: its records, and the state at any position.

A position is a sequence number: every record up to and including it counts. A later erasure also removes content from
earlier positions. Where that leaves the state unknown, the position is refused; nothing is guessed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from msgspec import Struct

from repertory.core.journal.fold import Fold
from repertory.core.journal.image import Image
from repertory.core.journal.records import (
    WHOLE,
    Branched,
    MessageAdded,
    NodeChanged,
    Record,
    SnapshotTaken,
    StateChanged,
    ViewChanged,
)
from repertory.core.journal.restore import Restored, records_of, replay_records
from repertory.core.journal.rows import RecordKind, Row, verify, verify_whole
from repertory.core.journal.view import SUMMARY_SEQ
from repertory.errors import CorruptJournal, Invalid, NotFound

_WINDOW, _STATE, _WAY = "what was shown", "the state", "where the conversation had gone back to"
_RUN = "what the run had come to"
_ERASED: Mapping[int, str] = {
    RecordKind.VIEW: _WINDOW,
    RecordKind.STATE: _STATE,
    RecordKind.BRANCH: _WAY,
    RecordKind.NODE: _RUN,
}
"""Kind of record to the name, in error texts, of what is unknown after an erased row of that kind."""


class WholeJournal(Struct, frozen=True):
    """Every row of one agent, verified, with its records. A redacted message appears as its redaction says."""

    session_id: str
    agent_id: str
    rows: Sequence[Row]
    records: Sequence[tuple[int, Record | None]]

    @property
    def last_seq(self) -> int:
        return self.rows[-1].seq if self.rows else 0

    def position(self, at: int | str | None) -> int:
        """A position from a sequence number, the label of a snapshot (its latest one), or None (the end).

        Errors: `Invalid` for a number out of range, `NotFound` for an unknown label.
        """
        if at is None:
            return self.last_seq
        if isinstance(at, str):
            return labelled(self.snapshots(), at, session_id=self.session_id, agent_id=self.agent_id)
        if not 0 <= at <= self.last_seq:
            raise Invalid("no such position", at=at, last=self.last_seq, session=self.session_id, agent=self.agent_id)
        return at

    def fold_at(self, position: int) -> Fold:
        """The state at a position. Errors: `Invalid` when part of it was erased since; `CorruptJournal`."""
        first = 1
        unknown, since = self._unknown_at(position)
        if unknown:
            # The erased row does not matter when opening at this position reads only rows behind it: a patch may say as
            # much as a full view. Then only these rows are folded, since earlier ones lack what the erased row changed.
            low = self.rows[position - 1].low
            first = low + 1 if low > 1 else 1
            unknown, _ = self._unknown_at(position, first)
        if unknown:
            msg = f"{' and '.join(sorted(unknown))} at that position was erased together with a message"
            raise Invalid(msg, at=position, session=self.session_id, agent=self.agent_id, known_before=since)
        fold = Fold(Image(last_seq=first - 1), partial=first > 1)
        # `replay_records` takes history from the records it is given: those after the position must not be among them.
        stretch = slice(first - 1, position)
        replay_records(fold, self.rows[stretch], self.records[stretch], session_id=self.session_id)
        return fold

    def moment(self, position: int) -> PointInTime:
        """The agent at a position. Errors: as `fold_at`."""
        return PointInTime(
            session_id=self.session_id,
            agent_id=self.agent_id,
            position=position,
            link=self.rows[position - 1].link if position else None,
            fold=self.fold_at(position),
            messages=self.conversation(position),
        )

    def conversation(self, position: int) -> dict[int, MessageAdded]:
        """Sequence number to message, in order: the conversation at a position, without what branches left behind.

        Errors: `CorruptJournal` when a branch names a message that is not before it.
        """
        before: dict[int, int] = {}
        messages: dict[int, MessageAdded] = {}
        last = 0
        hidden: tuple[tuple[int, int], ...] = ()
        for seq, record in self.records[:position]:
            if isinstance(record, MessageAdded):
                before[seq], messages[seq], last = last, record, seq
            elif isinstance(record, Branched):
                if record.last >= seq:  # Following it back would never end.
                    where = {"session": self.session_id, "agent": self.agent_id, "seq": seq}
                    raise CorruptJournal("a branch goes back to an earlier record", **where, last=record.last)
                last, hidden = record.last, record.view.hidden
        path: list[int] = []
        while last:
            path.append(last)
            last = before.get(last, 0)
        # The target of an erased branch is unknown; the branch that restates it lists the ranges that it had hidden.
        seen = (seq for seq in reversed(path) if not any(first <= seq <= end for first, end in hidden))
        return {seq: messages[seq] for seq in seen if seq in messages}

    def snapshots(self) -> list[tuple[int, SnapshotTaken]]:
        """Sequence number and record of each snapshot."""
        return [(seq, record) for seq, record in self.records if isinstance(record, SnapshotTaken)]

    def _unknown_at(self, position: int, first: int = 1) -> tuple[set[str], int]:
        """The names of all that is unknown at a position, of records from `first` on; the last position with none."""
        unknown: set[str] = set()
        since = 0
        stretch = slice(first - 1, position)
        for row, (_, record) in zip(self.rows[stretch], self.records[stretch], strict=True):
            if record is None and row.kind in _ERASED:
                since = since if unknown else row.seq - 1
                unknown.add(_ERASED[row.kind])
            elif isinstance(record, Branched):
                unknown.clear()
            elif isinstance(record, ViewChanged) and not record.patch:
                unknown.discard(_WINDOW)
            elif isinstance(record, StateChanged) and record.full is not None:
                unknown.discard(_STATE)
            elif isinstance(record, NodeChanged) and _begins(record):
                unknown.discard(_RUN)
        return unknown, since


def _begins(record: NodeChanged) -> bool:
    """True if the run depends on no earlier record. Only the first record of a run has no elapsed time."""
    return record.data.get(WHOLE) is True or (not record.node and "elapsed_ms" not in record.data)


def labelled(marks: Sequence[tuple[int, SnapshotTaken]], label: str, *, session_id: str, agent_id: str) -> int:
    """The position that the latest mark with this label names. Errors: `NotFound` with the known labels."""
    found = [position_named(seq, mark) for seq, mark in marks if mark.label == label]
    if not found:
        labels = sorted({mark.label for _, mark in marks})
        raise NotFound("no snapshot has this label", label=label, labels=labels, session=session_id, agent=agent_id)
    return found[-1]


def position_named(seq: int, mark: SnapshotTaken) -> int:
    """The position that the mark at `seq` names."""
    return seq - 1 if mark.position is None else mark.position


def read_whole(rows: Sequence[Row], *, session_id: str, agent_id: str) -> WholeJournal:
    """A journal from all its rows. Errors: `CorruptJournal` with the row that is wrong."""
    verify_whole(rows, session_id=session_id)
    return WholeJournal(session_id, agent_id, rows, records_of(rows, session_id=session_id))


# An agent at one position. It is read from the rows that opening it there takes (`moment_of`), or from the whole
# journal when one of those rows was erased since: then a later row says what it held.


@dataclass(frozen=True, slots=True, kw_only=True)
class PointInTime:
    """An agent at a position."""

    session_id: str
    agent_id: str
    position: int
    link: bytes | None
    """The link of the row at the position; None before the first row."""
    fold: Fold
    messages: Mapping[int, MessageAdded]
    """Sequence number to message, in order: at least the last one and those shown from their own rows."""

    @property
    def missing(self) -> list[int]:
        """Sequence numbers of shown, pinned or last messages whose records are not in `messages`."""
        wanted = {seq for seq, _ in self.fold.shown if seq != SUMMARY_SEQ} | ({self.fold.last_message_seq} - {0})
        return sorted(wanted - self.messages.keys())

    def knowing(self, messages: Mapping[int, MessageAdded]) -> PointInTime:
        """A copy with more records of messages."""
        return replace(self, messages=dict(sorted({**self.messages, **messages}.items())))


def moment_of(rows: Sequence[Row], *, session_id: str, agent_id: str) -> PointInTime | None:
    """The agent at the last of these rows, which are those from its `low` on; None when one of them was erased since:
    then only the whole journal can tell. Errors: `CorruptJournal` for rows that were changed.
    """
    stretch = _stretch_of(rows, session_id)
    if stretch is None:
        return None
    fold, folded, records = stretch
    replay_records(fold, folded, records, session_id=session_id)
    return _moment(rows[-1], fold, records, (session_id, agent_id))


def tells(rows: Sequence[Row], position: int) -> bool:
    """True if these rows, which are consecutive, include all that opening the agent at the position reads."""
    index = position - rows[0].seq if rows else -1
    return 0 <= index < len(rows) and rows[index].low >= rows[0].seq


def moment_and_end(
    rows: Sequence[Row], position: int, *, session_id: str, agent_id: str
) -> tuple[PointInTime, Restored] | None:
    """The agent at a position and at the last of these rows, read once for both. None when these rows do not suffice
    for both: they begin after the first one that the position needs, or one of them was erased since.

    Errors: `CorruptJournal` for rows that were changed.
    """
    stretch = _stretch_of(rows, session_id) if tells(rows, position) else None
    if stretch is None or position < stretch.folded[0].seq:
        return None
    fold, folded, records = stretch
    until = position - folded[0].seq + 1
    replay_records(fold, folded[:until], records[:until], session_id=session_id)
    then = _moment(folded[until - 1], Fold(fold.image()), records[:until], (session_id, agent_id))
    replay_records(fold, folded, records, session_id=session_id, after=position)
    return then, Restored(fold=fold, link=rows[-1].link)


class _Stretch(NamedTuple):
    """Verified rows without erased ones, and the fold to replay them into."""

    fold: Fold
    folded: Sequence[Row]
    records: Sequence[tuple[int, Record | None]]


def _stretch_of(rows: Sequence[Row], session_id: str) -> _Stretch | None:
    verify(rows, session_id=session_id)
    folded = rows if rows[0].seq == 1 else rows[1:]
    if not folded or any(row.erased for row in folded):
        return None
    first = folded[0].seq
    fold = Fold(Image(last_seq=first - 1), partial=first > 1)
    return _Stretch(fold, folded, records_of(folded, session_id=session_id))


def _moment(last: Row, fold: Fold, records: Sequence[tuple[int, Record | None]], of: tuple[str, str]) -> PointInTime:
    hidden = fold.shown.view.hidden
    messages = {
        seq: record
        for seq, record in records
        if isinstance(record, MessageAdded) and not any(start <= seq <= end for start, end in hidden)
    }
    session_id, agent_id = of
    return PointInTime(
        session_id=session_id, agent_id=agent_id, position=last.seq, link=last.link, fold=fold, messages=messages
    )
