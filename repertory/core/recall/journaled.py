"""The messages in the rows of a session, as entries of a memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from repertory.core.journal.codec import decode
from repertory.core.journal.records import MessageAdded
from repertory.core.journal.rows import RecordKind, Row
from repertory.core.memory.options import AddMessagesContext
from repertory.core.memory.progress import JournaledMessage
from repertory.core.recall.entries import Saying, sayings_of
from repertory.errors import CorruptJournal


def sayings_in(session_id: str, rows: Sequence[Row]) -> list[Saying]:
    """The messages among these rows that have text. Rows that this release cannot read are left out."""
    sayings: list[Saying] = []
    for agent_id, of_agent in groupby(rows, key=lambda row: row.agent_id):
        messages = list(_messages_in(of_agent))
        context = AddMessagesContext(
            session_id=session_id,
            agent_id=agent_id,
            sequence_numbers=[each.seq for each in messages],
            message_times=[each.at for each in messages],
        )
        sayings += sayings_of([each.message for each in messages], context)
    return sayings


def _messages_in(rows: Iterable[Row]) -> Iterator[JournaledMessage]:
    for row in rows:
        if row.kind != RecordKind.MESSAGE or row.erased:
            continue
        try:
            record = decode(row.kind, row.version, row.body)
        except CorruptJournal:
            continue
        if isinstance(record, MessageAdded):
            yield JournaledMessage(row.seq, record.at, record.message)
