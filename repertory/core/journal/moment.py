"""A journal as it stood at one position: what going on from there needs, and nothing else.

It is read from the rows that opening the agent there would take (`moment_of`), or out of a whole journal when those
rows cannot tell: what was erased since is said by a later row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from repertory.core.journal.fold import Fold
from repertory.core.journal.image import Image
from repertory.core.journal.records import MessageAdded, Record
from repertory.core.journal.restore import Restored, records_of, replay
from repertory.core.journal.rows import Row
from repertory.core.journal.shown import SUMMARY_SEQ
from repertory.core.journal.verify import verify


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """An agent at a position."""

    session_id: str
    agent_id: str
    position: int
    link: bytes | None
    """Of the row at the position; None before the first one."""
    fold: Fold
    said: Mapping[int, MessageAdded]
    """Sequence number to message, in order: at least those that are shown from their own rows, and the last one."""

    @property
    def missing(self) -> list[int]:
        """The messages that are shown, or pinned, and whose records are not here."""
        wanted = {seq for seq, _ in self.fold.shown if seq != SUMMARY_SEQ} | ({self.fold.last_message_seq} - {0})
        return sorted(wanted - self.said.keys())

    def knowing(self, said: Mapping[int, MessageAdded]) -> Moment:
        """The same with more records of messages."""
        return replace(self, said=dict(sorted({**self.said, **said}.items())))


def moment_of(rows: Sequence[Row], *, session_id: str, agent_id: str) -> Moment | None:
    """The agent at the last of these rows, which are those from its `low` on; None when one of them was erased since,
    so that only the whole journal can tell.

    Errors: `CorruptJournal` for rows that are not what was written.
    """
    stretch = _stretch_of(rows, session_id)
    if stretch is None:
        return None
    fold, folded, records = stretch
    replay(fold, folded, records, session_id=session_id)
    return _moment(rows[-1], fold, records, (session_id, agent_id))


def tells(rows: Sequence[Row], position: int) -> bool:
    """Whether the rows that opening the agent at the position reads are among these, which follow on each other."""
    index = position - rows[0].seq if rows else -1
    return 0 <= index < len(rows) and rows[index].low >= rows[0].seq


def moment_and_end(
    rows: Sequence[Row], position: int, *, session_id: str, agent_id: str
) -> tuple[Moment, Restored] | None:
    """The agent at a position and at the last of these rows, for which they are read but once; None when they cannot
    tell both: they begin after the first one that the position needs, or one of them was erased since.

    Errors: `CorruptJournal` for rows that are not what was written.
    """
    stretch = _stretch_of(rows, session_id) if tells(rows, position) else None
    if stretch is None or position < stretch.folded[0].seq:
        return None
    fold, folded, records = stretch
    until = position - folded[0].seq + 1
    replay(fold, folded[:until], records[:until], session_id=session_id)
    then = _moment(folded[until - 1], Fold(fold.image()), records[:until], (session_id, agent_id))
    replay(fold, folded, records, session_id=session_id, after=position)
    return then, Restored(fold=fold, link=rows[-1].link)


class _Stretch(NamedTuple):
    """Rows that have their contents, and what to fold them into."""

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


def _moment(last: Row, fold: Fold, records: Sequence[tuple[int, Record | None]], of: tuple[str, str]) -> Moment:
    hidden = fold.shown.view.hidden
    said = {
        seq: record
        for seq, record in records
        if isinstance(record, MessageAdded) and not any(start <= seq <= end for start, end in hidden)
    }
    session_id, agent_id = of
    return Moment(session_id=session_id, agent_id=agent_id, position=last.seq, link=last.link, fold=fold, said=said)
