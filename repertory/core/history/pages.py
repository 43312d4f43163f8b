"""A page of a journal: some consecutive records, with the facts that need no other records."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from repertory.core.journal.records import Branched, Record
from repertory.core.journal.restore import records_of
from repertory.core.journal.rows import Row
from repertory.errors import Invalid


class StoredRecord(Struct, frozen=True, kw_only=True):
    """One record of a journal."""

    seq: int
    kind: int
    """The kind of the record, one of `RecordKind`."""
    record: Record | None
    """The record; for a redacted message, its replacement. None when the content was erased, and the replacement is
    on another page or nowhere.
    """
    left_behind: bool = False
    """True if a rewind on the same page left it behind."""


def page_span(end: int, records_max: int, *, at: int | None = None, before: int | None = None) -> tuple[int, int]:
    """The first and the last number of a page: around a position, or up to the record before a number, or at the end.

    It is full wherever the journal is long enough. Errors: `Invalid` for both, and for a number below 1.
    """
    if at is not None and before is not None:
        raise Invalid("a page is around a position or before a number, not both", at=at, before=before)
    if before is not None and before < 1:
        raise Invalid("a page ends before a number from 1 on", before=before)
    last = end if before is None else min(end, before - 1)
    if at is not None:
        last = min(end, max(at + records_max // 2, records_max))
    if before is not None:
        last = max(last, min(end, records_max))
    return max(1, last - records_max + 1), last


def page_records(rows: Sequence[Row], *, session_id: str = "") -> list[StoredRecord]:
    """The records of verified rows, in order. Errors: `CorruptJournal` for a row that cannot be decoded."""
    records = records_of(rows, session_id=session_id)
    rewound: list[tuple[int, int]] = [
        (record.position + 1, seq - 1) for seq, record in records if isinstance(record, Branched) and not record.source
    ]
    return [
        StoredRecord(
            seq=seq,
            kind=row.kind,
            record=record,
            left_behind=any(first <= seq <= last for first, last in rewound),
        )
        for row, (seq, record) in zip(rows, records, strict=True)
    ]
