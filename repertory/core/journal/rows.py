"""A row: one record as a store keeps it, and the hash chain that rows form.

    digest = sha256(salt + body)
    link   = sha256(previous link + header + digest), its first 16 bytes
    header = seq (8 bytes), kind (1), version (1), low (8), big-endian

The chain runs over digests and not over contents, so a content can be destroyed without breaking it: an erased row has
no salt, and its body is the digest of what was there. The salt is what keeps a short content from being guessed from
that digest. `docs/journal-format.md` has a worked example.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from enum import IntEnum
from hashlib import sha256
from typing import NamedTuple

from repertory.errors import CorruptJournal

VERSION = 1
"""The version of the journal format that is written."""

LINK_BYTES = 16
SALT_BYTES = 16
DIGEST_BYTES = 32

_HEADER = struct.Struct(">QBBQ")


class RecordKind(IntEnum):
    """The kinds of records, as rows number them. Numbers are never used again."""

    MESSAGE = 1
    TOOL_STARTED = 2
    TOOL_FINISHED = 3
    VIEW = 4
    STATE = 5
    REDACTION = 6
    INTERRUPT = 7
    RESUME = 8
    NODE = 9
    SNAPSHOT = 10
    BRANCH = 11
    CURSOR = 12
    OWNER = 13


class Row(NamedTuple):
    """One record with its place. A named tuple, since rows are made by the ten thousand and cross into SQLite as they
    are.
    """

    agent_id: str
    seq: int
    """From 1, without gaps, per agent."""
    kind: int
    """One of `RecordKind`; a number that this release does not know is kept, and refused when it is decoded."""
    version: int
    low: int
    """The first row that opening the agent at this row needs. The rows before it need not be read."""
    link: bytes
    salt: bytes
    """Empty when the row's content has been erased."""
    body: bytes
    """The record's bytes, or their digest when the content has been erased."""

    @property
    def erased(self) -> bool:
        """Whether the content is gone for good."""
        return not self.salt

    def without_content(self) -> Row:
        """The same row with its content destroyed. Erasing twice changes nothing."""
        return self if self.erased else self._replace(salt=b"", body=digest_of(self.salt, self.body))


def size_of(rows: Iterable[Row]) -> int:
    """The bytes of the rows' bodies."""
    return sum(len(row[7]) for row in rows)


def first_link(agent_id: str) -> bytes:
    """What the first row of an agent's journal is linked to."""
    return sha256(b"repertory journal\0" + agent_id.encode()).digest()[:LINK_BYTES]


def digest_of(salt: bytes, body: bytes) -> bytes:
    """The digest of a content that is there."""
    return sha256(salt + body).digest()


def next_link(previous: bytes, header: bytes, digest: bytes) -> bytes:
    """The link of a row from the one before it."""
    return sha256(previous + header + digest).digest()[:LINK_BYTES]


def header_of(seq: int, kind: int, version: int, low: int) -> bytes:
    """What the chain covers besides the content."""
    return _HEADER.pack(seq, kind, version, low)


def link_of(previous: bytes, row: Row) -> bytes:
    """The link that `row` should have when it follows `previous`; empty when it cannot have any. Its own link is not
    looked at.
    """
    _, seq, kind, version, low, _, salt, body = row
    digest = sha256(salt + body).digest() if salt else body
    try:
        header = _HEADER.pack(seq, kind, version, low)
    except struct.error:  # A number that no row has: somebody has edited it.
        return b""
    return sha256(previous + header + digest).digest()[:LINK_BYTES]


# Proving that rows are what was written: in order, without gaps, unchanged.


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
