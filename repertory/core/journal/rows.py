"""A row: one record as a store keeps it, and the hash chain that rows form.

    digest = sha256(salt + body)
    link   = sha256(previous link + header + digest), its first 16 bytes
    header = seq (8 bytes), kind (1), version (1), low (8), big-endian

The chain covers digests, not contents, so a content can be erased without breaking it: an erased row has no salt, and
its body is the digest of the content. Without the salt nobody can guess a short content from its digest.
`docs/reference/formats/journal-format.md` has a worked example.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from enum import IntEnum
from hashlib import sha256
from typing import NamedTuple

from repertory.errors import CorruptJournal

VERSION = 1
"""The journal format version that this release writes."""

LINK_BYTES = 16
SALT_BYTES = 16
DIGEST_BYTES = 32

_HEADER = struct.Struct(">QBBQ")
_pack = _HEADER.pack
_BYTE_MAX = 255


class RecordKind(IntEnum):
    """The kinds of records, as rows number them. A number is never reused."""

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
    TIMERS = 14
    DEFERRALS = 15
    DEFERRED_RESULT = 16
    ANSWERS = 17
    STEP_STARTED = 18
    STEP_FINISHED = 19
    DELIVERIES = 20
    SPENDING = 21


EFFECT_STARTS = frozenset((RecordKind.TOOL_STARTED, RecordKind.STEP_STARTED, RecordKind.DEFERRALS))
"""The kinds of records behind which something takes effect: no owner may act on one without owning the session."""


class Row(NamedTuple):
    """One record as stored. A named tuple, since rows are made by the ten thousand and passed to SQLite as they are."""

    agent_id: str
    seq: int
    """The agent's sequence number: from 1, without gaps."""
    kind: int
    """One of `RecordKind`. A number that this release does not know is kept; decoding it fails."""
    version: int
    low: int
    """The first row needed to open the agent at this row; the rows before it need not be read."""
    link: bytes
    salt: bytes
    """Empty when the row's content has been erased."""
    body: bytes
    """The record's bytes, or their digest when the content has been erased."""

    @property
    def erased(self) -> bool:
        return not self.salt

    def without_content(self) -> Row:
        """The same row, erased. Erasing twice changes nothing."""
        return self if self.erased else self._replace(salt=b"", body=digest_of(self.salt, self.body))


class MadeRow(Row):
    """A row that this process has just made of a record, which whoever follows the journal need not decode."""

    record: object = None
    """The record; None where it must be decoded."""


def size_of(rows: Iterable[Row]) -> int:
    """The sum of the rows' body sizes, in bytes."""
    return sum(len(row[7]) for row in rows)


def first_link(agent_id: str) -> bytes:
    """The link that the first row of an agent's journal follows."""
    # The chain begins with the agent's name, so that no row fits into another agent's journal.
    return sha256(b"repertory journal\0" + agent_id.encode()).digest()[:LINK_BYTES]


def digest_of(salt: bytes, body: bytes) -> bytes:
    """The digest of a content."""
    return sha256(salt + body).digest()


def header_of(seq: int, kind: int, version: int, low: int) -> bytes:
    """The part of a row that the chain covers besides its content."""
    return _HEADER.pack(seq, kind, version, low)


def link_of(previous: bytes, row: Row) -> bytes:
    """The link that `row` should have after `previous`, whatever its own link is; empty when its numbers are
    impossible.
    """
    _, seq, kind, version, low, _, salt, body = row
    digest = sha256(salt + body).digest() if salt else body
    try:
        header = _HEADER.pack(seq, kind, version, low)
    except struct.error:  # A number out of range: the row was edited.
        return b""
    return sha256(previous + header + digest).digest()[:LINK_BYTES]


# Verifying rows: in order, without gaps, unchanged.


def verify(rows: Sequence[Row], *, session_id: str = "") -> None:
    """Return if the rows are one unbroken range of one agent's journal; erased contents are fine.

    A range that does not begin at sequence number 1 is verified from its second row on: the first one only supplies its
    link. Errors: `CorruptJournal` with session, agent and sequence number of the first wrong row.
    """
    if not rows:
        return
    agent_id, seq, *_ = rows[0]
    previous = first_link(agent_id) if seq == 1 else None
    for row in rows:
        # Kept fast, with `link_of` written out, since this runs for every row that is opened.
        agent, number, kind, version, low, link, salt, body = row
        if (
            previous is None
            or number != seq
            or agent != agent_id
            # Erased rows go the slow way: there are few of them.
            or len(salt) != SALT_BYTES
            or not (1 <= low <= seq and 0 <= kind <= _BYTE_MAX and 0 <= version <= _BYTE_MAX)
            or sha256(previous + _pack(seq, kind, version, low) + sha256(salt + body).digest()).digest()[:LINK_BYTES]
            != link
        ):
            wrong = fault(row, agent_id, seq, previous)
            if wrong is not None:
                raise CorruptJournal(wrong, session=session_id, agent=agent_id, seq=number)
        previous = link
        seq += 1


def verify_whole(rows: Sequence[Row], *, session_id: str = "") -> None:
    """`verify` for a whole journal: the first row must be there."""
    if rows and rows[0].seq != 1:
        where = {"session": session_id, "agent": rows[0].agent_id, "seq": rows[0].seq}
        raise CorruptJournal("the journal does not begin with its first row", **where)
    verify(rows, session_id=session_id)


def fault(row: Row, agent_id: str, seq: int, previous: bytes | None) -> str | None:
    """The fault of a row that should be row `seq` of `agent_id`, after the link `previous`; None when it has none."""
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


def stored_of(sent: Sequence[Row], last: Row | None) -> int | None:
    """The number of sent rows that are stored, when `last` is the journal's last row; None when that row is another
    writer's. A row is recognised by its link, which is unique.
    """
    if last is None or last.seq < sent[0].seq:
        return 0
    index = last.seq - sent[0].seq
    return index + 1 if index < len(sent) and sent[index].link == last.link else None


def following(stored: Sequence[Row], own: Sequence[Row], first: bytes) -> list[Row] | None:
    """The rows of `own` that are not stored yet and directly follow `stored`; None when another writer has appended
    since. `first`: the link that the journal's first row follows.
    """
    last_seq, link = (stored[-1].seq, stored[-1].link) if stored else (0, first)
    known = {row.seq: row.link for row in stored}
    # The same number with another link: another writer has been here.
    if any(known.get(row.seq, row.link) != row.link for row in own):
        return None
    rest = [row for row in own if row.seq > last_seq]
    if not rest or (rest[0].seq == last_seq + 1 and link_of(link, rest[0]) == rest[0].link):
        return rest
    return None
