"""Which rows go into which document, and what stands in the place of a message that was erased."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from repertory.core.journal.codec import decode
from repertory.core.journal.records import Redacted
from repertory.core.journal.rows import Kind, Row
from repertory.core.message_tree.documents import ERASED_TEXT
from repertory.core.message_tree.kept_rows import message_in
from repertory.core.messages import Message

_BLANK: Mapping[str, Message] = {
    "user": {"role": "user", "content": [{"text": ERASED_TEXT}]},
    "assistant": {"role": "assistant", "content": [{"text": ERASED_TEXT}]},
}
"""What stands where a message was erased and nothing says what took its place."""


def parts_of(rows: Sequence[Row]) -> list[tuple[list[Row], Message | None]]:
    """The rows by document: one message each, what leads up to it and what follows it. A message that was erased
    before it was written is the one that took its place.
    """
    instead = shown_instead(rows, [row.seq for row in rows if row.kind == Kind.MESSAGE and row.erased])
    parts: list[tuple[list[Row], Message | None]] = []
    waiting: list[Row] = []
    for row in rows:
        message = message_in(row) or instead.get(row.seq)
        if message is not None:
            parts.append(([*waiting, row], message))
            waiting = []
        elif parts:
            parts[-1][0].append(row)
        else:
            waiting.append(row)
    if waiting:
        parts.append((waiting, None))
    return parts


def shown_instead(rows: Sequence[Row], wanted: Collection[int]) -> dict[int, Message]:
    """What is shown in the place of messages whose contents are to be erased, by sequence number."""
    redactions: dict[int, Message] = {}
    for row in rows:
        if row.kind == Kind.REDACTION and not row.erased:
            record = decode(row.kind, row.version, row.body)
            if isinstance(record, Redacted):
                redactions[record.target] = record.message
    shown: dict[int, Message] = {}
    for row in rows:
        said = message_in(row) if row.seq in wanted else None
        instead = redactions.get(row.seq) or (_BLANK.get(said["role"]) if said is not None else None)
        if row.seq in wanted and instead is not None:
            shown[row.seq] = instead
    return shown
