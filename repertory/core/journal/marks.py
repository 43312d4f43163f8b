"""Names for positions of a journal, with what else is to be kept of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from repertory.core.journal.appender import Appender
from repertory.core.journal.records import Record, SnapshotTaken
from repertory.core.journal.rows import Row
from repertory.core.messages import Json
from repertory.errors import Invalid

LABEL_BYTES_MAX = 255
"""The longest label, in UTF-8."""
_RESERVED = "history"
"""Where the records of numbered snapshots have their number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A name that somebody wants to give."""

    label: str
    """What `rewind`, `fork` and `diff` take as a position. The latest mark of a label counts."""
    metadata: Mapping[str, Json] = field(default_factory=dict[str, Json])
    position: int | None = None
    """What is named; None: the end."""


def mark_record(mark: Mark, link: bytes | None, at: float, position: int | None = None) -> SnapshotTaken:
    """The record by which a journal takes a mark in, for the position right before it unless another one is given.
    `link`: of the row that is named; None when there is none.

    Errors: `Invalid` for a label that is empty or a number (which would be read as a position), too long, or not
    printable, and for the metadata key `history`, which numbered snapshots have.
    """
    label = mark.label
    if not label or label.isdecimal() or not label.isprintable() or len(label.encode()) > LABEL_BYTES_MAX:
        msg = f"a label is printable, no number, and has 1 to {LABEL_BYTES_MAX} bytes"
        raise Invalid(msg, label=label[:LABEL_BYTES_MAX])
    if _RESERVED in mark.metadata:
        raise Invalid("this key of the metadata is kept for numbered snapshots", key=_RESERVED, label=label)
    digest = link.hex() if link is not None else ""
    return SnapshotTaken(at=at, label=label, metadata=dict(mark.metadata), digest=digest, position=position)


def mark_rows(appender: Appender, marks: Sequence[Mark], links: Mapping[int, bytes], at: float) -> list[Row]:
    """The rows that give these names, to be stored together; where a mark names nothing, that is the journal's end as
    it is now. `links` has those of the rows that are named and are not the last one.
    """
    end = appender.fold.last_seq
    known = {**links, end: appender.link} if end else links
    records: list[Record] = []
    for number, mark in enumerate(marks):
        position = end if mark.position is None else mark.position
        stated = None if position == end + number else position
        records.append(mark_record(mark, known.get(position), at, stated))
    return [*appender.append_all(records), *appender.restate(at)]
