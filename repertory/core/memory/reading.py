"""What was said in a conversation after a position, out of the rows of its journal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from repertory.core.journal.paths import paths_to, within
from repertory.core.journal.records import MessageAdded, Redacted
from repertory.core.journal.restore import records_of
from repertory.core.journal.rows import Row
from repertory.core.journal.turn_tokens import is_answer
from repertory.core.messages import Message


class SaidMessage(NamedTuple):
    """One message of a conversation."""

    seq: int
    """Where it stands in the journal."""
    at: float
    """Epoch seconds."""
    message: Message
    redacted: bool = False
    """Whether the message stands in the place of another one, which was erased."""


def said_in_rows(rows: Sequence[Row], after: int, until: int | None = None, *, session_id: str) -> list[SaidMessage]:
    """The messages after sequence number `after`, up to `until` or all, in order, as they stand now, without those that
    a rewind up to there has left behind. `rows`: all from the one after `after` on, at least.

    Errors: `CorruptJournal` for rows that cannot be decoded.
    """
    wanted = [row for row in rows if row.seq > after]
    if not wanted:
        return []
    records = records_of(wanted, session_id=session_id)
    path = paths_to(records, [wanted[-1].seq if until is None else until])
    redacted = {record.target for _, record in records if isinstance(record, Redacted)}
    return [
        SaidMessage(seq, record.at, record.message, seq in redacted)
        for seq, record in records
        if isinstance(record, MessageAdded) and within(seq, path)
    ]


def turns_in(said: Iterable[SaidMessage]) -> int:
    """How many turns were answered in these messages."""
    return sum(is_answer(each.message) for each in said)


def whole_turns(said: Sequence[SaidMessage]) -> Sequence[SaidMessage]:
    """The messages up to the last answer: what follows belongs to a turn that is not over."""
    for end in range(len(said), 0, -1):
        if is_answer(said[end - 1].message):
            return said[:end]
    return ()
