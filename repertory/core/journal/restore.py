"""Rows back to a fold, as a restart needs it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from repertory.core.journal.codec import MENDED, decode, decode_all, decode_messages
from repertory.core.journal.fold import Fold
from repertory.core.journal.image import Image
from repertory.core.journal.records import Branched, MessageAdded, Record, Redacted
from repertory.core.journal.rows import RecordKind, Row, verify
from repertory.core.messages import Message
from repertory.errors import CorruptJournal, Invalid


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """An agent read back. `Appender(agent_id, restored.fold, restored.link, entropy)` goes on from here."""

    fold: Fold
    link: bytes | None
    """The link of the last row; None when there are no rows."""
    mended: Mapping[int, Message] = field(default_factory=dict[int, Message])
    """Messages that providers would refuse as stored: sequence number to the repaired message, which is shown."""


def restore(rows: Sequence[Row], *, session_id: str = "") -> Restored:
    """Verify an agent's rows and fold them: all rows, or those from the last row's `low` on.

    Errors: `CorruptJournal` with session, agent and sequence number. Corrupt rows are never repaired here.
    """
    if not rows:
        return Restored(fold=Fold(), link=None)
    verify(rows, session_id=session_id)
    # The first row of a partial journal is needed for its link only.
    folded = rows if rows[0].seq == 1 else rows[1:]
    if not folded:
        raise CorruptJournal("the journal's last row cannot stand alone", session=session_id, seq=rows[0].seq)
    first = folded[0].seq
    fold = Fold(Image(last_seq=first - 1), partial=first > 1)
    records = records_of(folded, session_id=session_id)
    replay(fold, folded, records, session_id=session_id)
    mended = {
        seq: record.message for seq, record in records if type(record) is MessageAdded and record.repaired is MENDED
    }
    return Restored(fold=fold, link=rows[-1].link, mended=mended)


def prove(rows: Sequence[Row], *, session_id: str = "") -> None:
    """Return if these rows, a whole journal, can be opened at the end and gone on with.

    A correct chain proves only that the rows were not changed: their writer may have written nonsense. Errors:
    `CorruptJournal` with session, agent and sequence number.
    """
    fold = restore(rows, session_id=session_id).fold
    if not rows:
        return
    last, view = rows[-1], fold.shown.view
    where: dict[str, object] = {"session": session_id, "agent": last.agent_id, "seq": last.seq}
    beyond = view.first_shown > last.seq + 1 or any(end > last.seq for _, end in view.hidden)
    said = {row.seq for row in rows if row.kind == RecordKind.MESSAGE}
    if beyond or not said.issuperset((*view.pinned, *view.replaced)):
        raise CorruptJournal("the view depends on rows that are missing", **where)
    opened = restore(rows[last.low - 1 :], session_id=session_id).fold.image()
    if opened.since(last.low) != fold.image().since(last.low):
        raise CorruptJournal("opening the journal gives another state than replaying all of its rows", **where)


def records_of(rows: Sequence[Row], *, session_id: str = "") -> list[tuple[int, Record | None]]:
    """Sequence number and record of each row; None for an erased content. Verify the rows first.

    A redacted message appears as its redaction says, even while the original is still there. Errors: `CorruptJournal`
    for a row that cannot be decoded.
    """
    decoded = _decoded_at_once(rows) or [(row.seq, None if row.erased else _decoded(row, session_id)) for row in rows]
    redactions = {record.target: record for _, record in decoded if type(record) is Redacted}
    if not redactions:
        return decoded
    return [(seq, _redacted(seq, record, redactions)) for seq, record in decoded]


def messages_of(records: Sequence[tuple[int, Record | None]]) -> dict[int, Message]:
    """Sequence number to message, in order: every message in these records, hidden or not."""
    return {seq: record.message for seq, record in records if type(record) is MessageAdded}


def said_in(rows: Sequence[Row], *, session_id: str = "") -> tuple[dict[int, Message], dict[int, Message]]:
    """The messages in rows of messages and redactions. First: sequence number to message, in order. Second: sequence
    number to the replacement, for each redaction. Errors: as `records_of`.
    """
    plain = decode_messages(rows)
    if plain is not None:
        return dict(zip([row[1] for row in rows], plain, strict=True)), {}
    records = records_of(rows, session_id=session_id)
    return messages_of(records), {record.target: record.message for _, record in records if type(record) is Redacted}


def replay(
    fold: Fold,
    rows: Sequence[Row],
    records: Sequence[tuple[int, Record | None]],
    *,
    session_id: str = "",
    after: int = 0,
) -> None:
    """Fold rows whose records are known, except those up to sequence number `after`, which the fold has already.
    Errors: `CorruptJournal` with the first record that may not follow.
    """
    branches = any(type(record) is Branched for _, record in records)
    history = messages_of(records) if branches else {}
    partial = bool(rows) and rows[0].seq > 1
    for (seq, record), row in zip(records, rows, strict=True):
        if seq <= after:
            continue
        try:
            if record is None:
                _skip(fold, row)
            elif type(record) is Branched:
                fold.rewind(seq, record, history, partial=partial)
            else:
                fold.apply(seq, record)
        except Invalid as error:
            raise CorruptJournal(str(error), session=session_id, agent=row.agent_id, seq=seq) from error


def _skip(fold: Fold, row: Row) -> None:
    if row.kind == RecordKind.MESSAGE:
        raise Invalid("a message was erased and nothing says what took its place")
    fold.skip(row.seq, branch=row.kind == RecordKind.BRANCH)


def _decoded_at_once(rows: Sequence[Row]) -> list[tuple[int, Record | None]] | None:
    present = rows if all(row.salt for row in rows) else [row for row in rows if row.salt]
    records = decode_all(present)
    if records is None:
        return None
    found: list[tuple[int, Record | None]] = [(row.seq, record) for row, record in zip(present, records, strict=True)]
    if len(found) < len(rows):
        found.extend((row.seq, None) for row in rows if row.erased)
        found.sort(key=lambda pair: pair[0])
    return found


def _decoded(row: Row, session_id: str) -> Record:
    try:
        return decode(row.kind, row.version, row.body)
    except CorruptJournal as error:
        raise CorruptJournal(str(error), session=session_id, agent=row.agent_id, seq=row.seq) from error


def _redacted(seq: int, record: Record | None, redactions: Mapping[int, Redacted]) -> Record | None:
    redaction = redactions.get(seq)
    if redaction is None:
        return record
    return MessageAdded(
        at=redaction.at,
        message=redaction.message,
        turn=redaction.turn,
        index=redaction.index,
        idempotency_token=redaction.idempotency_token,
        view=redaction.view,
    )
