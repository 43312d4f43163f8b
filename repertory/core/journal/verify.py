"""Proving that rows are what was written: in order, without gaps, unchanged."""

from __future__ import annotations

from collections.abc import Sequence

from repertory.core.journal.rows import DIGEST_BYTES, LINK_BYTES, SALT_BYTES, Row, first_link, link_of
from repertory.errors import CorruptJournal


def verify(rows: Sequence[Row], *, session_id: str = "") -> None:
    """Return if the rows are one unbroken stretch of one agent's journal; erased contents are fine.

    A stretch that does not begin at sequence number 1 is proved from its second row on: the first one is where the
    proof starts. Errors: `CorruptJournal` naming session, agent and sequence number of the first row that is wrong.
    """
    if not rows:
        return
    agent_id, seq, *_ = rows[0]
    previous = first_link(agent_id) if seq == 1 else None
    for row in rows:
        if previous is None or not _follows(row, agent_id, seq, previous):
            wrong = fault(row, agent_id, seq, previous)
            if wrong is not None:
                raise CorruptJournal(wrong, session=session_id, agent=agent_id, seq=row.seq)
        previous = row.link
        seq += 1


def verify_whole(rows: Sequence[Row], *, session_id: str = "") -> None:
    """The same for all rows of a journal, of which the first one must be there."""
    if rows and rows[0].seq != 1:
        where = {"session": session_id, "agent": rows[0].agent_id, "seq": rows[0].seq}
        raise CorruptJournal("the journal does not begin with its first row", **where)
    verify(rows, session_id=session_id)


def _follows(row: Row, agent_id: str, seq: int, previous: bytes) -> bool:
    """Whether nothing at all is wrong, decided as fast as can be: this runs for every row that is opened."""
    return (
        row[1] == seq
        and row[0] == agent_id
        and link_of(previous, row) == row[5]
        and len(row[6]) == SALT_BYTES
        and 1 <= row[4] <= seq
    )


def fault(row: Row, agent_id: str, seq: int, previous: bytes | None) -> str | None:
    """What is wrong with a row that should be `agent_id`'s at `seq`, after a row with the link `previous`; None when
    nothing is.
    """
    if row.agent_id != agent_id:
        return "the row is another agent's"
    if row.seq != seq:
        return f"the journal has a gap before this row (expected {seq})"
    if len(row.salt) not in (0, SALT_BYTES) or len(row.link) != LINK_BYTES or not 1 <= row.low <= seq:
        return "the row is malformed"
    if row.erased and len(row.body) != DIGEST_BYTES:
        return "the row has lost its digest"
    if previous is not None and link_of(previous, row) != row.link:
        return "the row does not match its checksum"
    return None
