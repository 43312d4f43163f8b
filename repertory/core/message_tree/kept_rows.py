"""Rows as events of AgentCore Memory keep them: a proof line for each row, and each content once.

    "5 1 1 4 <link> <salt> <digest>"     sequence number, kind, version, low, then hexadecimal; no salt: erased

The content of a message's row is its document's message plus the rest of its record; every other content is kept as
text. So nothing is stored twice, and an edit of the message in the document breaks the proof. The digest follows from
salt and content; it is stored for when the content is gone.
"""

from __future__ import annotations

import binascii
from collections.abc import Mapping
from hashlib import sha256
from typing import NamedTuple, cast

from repertory.core.journal.codec import dump, load
from repertory.core.journal.rows import DIGEST_BYTES, LINK_BYTES, SALT_BYTES, RecordKind, Row, digest_of
from repertory.core.json_bytes import read, to_file
from repertory.core.messages import Message, repair_stored_message
from repertory.core.provider_parts import as_ours, for_others
from repertory.errors import Invalid

_TRACKING = "tracking_id"
_SIGNED = ("at", "message")
"""The first keys of a message's body."""


class Line(NamedTuple):
    """A row without its content."""

    seq: int
    kind: int
    version: int
    low: int
    link: bytes
    salt: bytes
    """Empty when the content is erased."""
    digest: bytes

    @classmethod
    def of(cls, row: Row) -> Line:
        digest = row.body if row.erased else digest_of(row.salt, row.body)
        return cls(row.seq, row.kind, row.version, row.low, row.link, row.salt, digest)

    @classmethod
    def read(cls, text: object) -> Line:
        """The line in a text. Errors: `ValueError`."""
        seq, kind, version, low, link, salt, digest = str(text).split(" ")
        try:
            line = cls(
                int(seq),
                int(kind),
                int(version),
                int(low),
                bytes.fromhex(link),
                b"" if salt == "-" else bytes.fromhex(salt),
                bytes.fromhex(digest),
            )
        except binascii.Error as error:
            raise ValueError(str(error)) from error
        lengths = len(line.link), len(line.salt) or SALT_BYTES, len(line.digest)
        if lengths != (LINK_BYTES, SALT_BYTES, DIGEST_BYTES) or line.seq < 1:
            raise ValueError("a malformed line")
        return line

    def __str__(self) -> str:
        salt = self.salt.hex() or "-"
        return f"{self.seq} {self.kind} {self.version} {self.low} {self.link.hex()} {salt} {self.digest.hex()}"

    def erased(self) -> Line:
        """The line of the same row, erased."""
        return self._replace(salt=b"")

    def row(self, agent_id: str, body: bytes | None) -> Row | None:
        """The row with this content; None when the content does not match the line. Without a body: the erased row."""
        if not self.salt or body is None:
            return Row(agent_id, self.seq, self.kind, self.version, self.low, self.link, b"", self.digest)
        if sha256(self.salt + body).digest() != self.digest:
            return None
        return Row(agent_id, self.seq, self.kind, self.version, self.low, self.link, self.salt, body)


class KeptRow(NamedTuple):
    """A row as a document keeps it: its line, and where its content is."""

    line: Line
    body: bytes | None = None
    """The content, when it is kept next to the line."""
    rest: Mapping[str, object] | None = None
    """The record without its message, when the message is a document's."""
    file: int | None = None
    """The number of that document, when it is not the one with the line."""
    tracked: bool = True
    """True if the message had a tracking id of its own."""


def message_in(row: Row) -> Message | None:
    """The message in a row; None for other rows, and for rows that this release cannot read."""
    if row.kind != RecordKind.MESSAGE or row.erased:
        return None
    try:
        value = load(row.body)
        return repair_stored_message(value["message"]) if isinstance(value, dict) else None
    except (ValueError, KeyError, Invalid):
        return None


def tracked(message: Message, link: bytes) -> Message:
    """The message with a tracking id: its own, or one made from the row's unique link."""
    if _TRACKING in message:
        return message
    text = link.hex()
    variant = "89ab"[int(text[16], 16) & 3]
    made = f"{text[:8]}-{text[8:12]}-4{text[13:16]}-{variant}{text[17:20]}-{text[20:]}"
    return cast("Message", {**message, _TRACKING: made})


def entry(row: Row, shown: Message | None = None, file: int | None = None) -> dict[str, object]:
    """The JSON form of a row. `shown`: the message as the document (or document `file`) has it, if any."""
    fields: dict[str, object] = {"row": str(Line.of(row))}
    if row.erased:
        return fields
    if shown is not None:
        beside = _beside(row, shown)
        if beside is not None:
            return {**fields, **beside} if file is None else {**fields, "file": file, **beside}
    try:
        return {**fields, "body": row.body.decode()}
    except UnicodeDecodeError:
        return {**fields, "bytes": row.body}


def read_entry(value: object) -> KeptRow:
    """The row from its JSON form. Errors: `ValueError`."""
    if not isinstance(value, dict):
        raise ValueError("a row is an object")
    fields = cast("dict[str, object]", value)
    line = Line.read(fields.get("row"))
    body, raw, rest, file = fields.get("body"), fields.get("bytes"), fields.get("record"), fields.get("file")
    if isinstance(body, str):
        return KeptRow(line, body.encode("utf-8", "surrogatepass"))
    if isinstance(raw, bytes):
        return KeptRow(line, raw)
    record = cast("dict[str, object]", rest) if isinstance(rest, dict) else None
    number = file if isinstance(file, int) else None
    return KeptRow(line, None, record, number, fields.get("tracked") is not False)


def content(kept: KeptRow, message: Message | None) -> bytes | None:
    """The content of a kept row, given its document's message; None when it is missing or cannot be rebuilt."""
    if kept.body is not None or kept.rest is None or message is None:
        return kept.body
    own: dict[str, object] = dict(message)
    if not kept.tracked:
        own.pop(_TRACKING, None)
    at, rest = kept.rest.get("at"), {name: value for name, value in kept.rest.items() if name != "at"}
    try:
        return dump({"at": at, "message": own, **rest})
    except Invalid:
        return None


def _beside(row: Row, shown: Message) -> dict[str, object] | None:
    """The record without its message, if it and the document's message rebuild the exact content."""
    value = load(row.body)
    if not isinstance(value, dict) or tuple(value)[:2] != _SIGNED:
        return None
    message = value["message"]
    beside: dict[str, object] = {"record": {name: item for name, item in value.items() if name != "message"}}
    if isinstance(message, dict) and _TRACKING not in message:
        beside["tracked"] = False
    # Tested through a file, as a reader will get it.
    again = read(to_file({**beside, "row": str(Line.of(row)), "message": for_others(shown)}, indent=None))
    shown_again = as_ours(cast("Message", again.pop("message")))
    return beside if content(read_entry(again), shown_again) == row.body else None


# An agent's head: all that opening needs, as of the last orderly release of its session.
#
# It saves a reader the listing and a request per message. It is valid while no other program has written: the agent's
# document has the version it names, and no document follows the last message.
