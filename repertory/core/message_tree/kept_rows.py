"""Rows as the documents of the tree keep them: a line of proof each, and the content once.

    "5 1 1 4 <link> <salt> <digest>"     sequence number, kind, version, low, then hexadecimal; no salt: erased

The content of a message's row is the message of its document and the rest of its record beside it; every other
content stands there as text. So nothing stands twice, and whoever edits a message in its document has edited what the
line proves, and is found out. The digest can be told from salt and content; it is there for the day when the
content is not.
"""

from __future__ import annotations

import binascii
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import NamedTuple, cast

from repertory.core.journal.plain_json import dump, load
from repertory.core.journal.rows import DIGEST_BYTES, LINK_BYTES, SALT_BYTES, RecordKind, Row, digest_of
from repertory.core.message_tree.json_files import read, to_file
from repertory.core.messages import Message, repair_stored_message
from repertory.errors import Invalid

_TRACKING = "tracking_id"
_SIGNED = ("at", "message")
"""How the body of a message begins."""


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
        """The line that proves a row."""
        digest = row.body if row.erased else digest_of(row.salt, row.body)
        return cls(row.seq, row.kind, row.version, row.low, row.link, row.salt, digest)

    @classmethod
    def read(cls, text: object) -> Line:
        """The line as it was written. Errors: `ValueError`."""
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
        """The line of the same row when its content is gone."""
        return self._replace(salt=b"")

    def row(self, agent_id: str, body: bytes | None) -> Row | None:
        """The row with this content; None when that is not what the line proves. Without a body: erased."""
        if not self.salt or body is None:
            return Row(agent_id, self.seq, self.kind, self.version, self.low, self.link, b"", self.digest)
        if sha256(self.salt + body).digest() != self.digest:
            return None
        return Row(agent_id, self.seq, self.kind, self.version, self.low, self.link, self.salt, body)


class KeptRow(NamedTuple):
    """A row as a document keeps it: its line, and where its content is."""

    line: Line
    body: bytes | None = None
    """The content, when it stands beside the line."""
    rest: Mapping[str, object] | None = None
    """The record without its message, when the message is that of a document."""
    file: int | None = None
    """The number of that document, when it is not the one that holds the line."""
    tracked: bool = True
    """Whether the message had its tracking id by itself."""


def message_in(row: Row) -> Message | None:
    """What a row says was said; None for every other row, and for one that this release cannot read."""
    if row.kind != RecordKind.MESSAGE or row.erased:
        return None
    try:
        value = load(row.body)
        return repair_stored_message(value["message"]) if isinstance(value, dict) else None
    except (ValueError, KeyError, Invalid):
        return None


def tracked(message: Message, link: bytes) -> Message:
    """The message with a tracking id: its own, or one that is as unique as its row's link."""
    if _TRACKING in message:
        return message
    text = link.hex()
    variant = "89ab"[int(text[16], 16) & 3]
    made = f"{text[:8]}-{text[8:12]}-4{text[13:16]}-{variant}{text[17:20]}-{text[20:]}"
    return cast("Message", {**message, _TRACKING: made})


def entry(row: Row, shown: Message | None = None, file: int | None = None) -> dict[str, object]:
    """How a document keeps a row. `shown` is the message as the document (or `file`) has it, when it has one."""
    kept: dict[str, object] = {"row": str(Line.of(row))}
    if row.erased:
        return kept
    if shown is not None:
        beside = _beside(row, shown)
        if beside is not None:
            return {**kept, **beside} if file is None else {**kept, "file": file, **beside}
    try:
        return {**kept, "body": row.body.decode()}
    except UnicodeDecodeError:
        return {**kept, "bytes": row.body}


def read_entry(value: object) -> KeptRow:
    """The same back. Errors: `ValueError`."""
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
    """The content of a kept row, given the message of its document; None when there is none, or nobody can say it."""
    if kept.body is not None or kept.rest is None or message is None:
        return kept.body
    said: dict[str, object] = dict(message)
    if not kept.tracked:
        said.pop(_TRACKING, None)
    at, rest = kept.rest.get("at"), {name: value for name, value in kept.rest.items() if name != "at"}
    try:
        return dump({"at": at, "message": said, **rest})
    except Invalid:
        return None


def _beside(row: Row, shown: Message) -> dict[str, object] | None:
    """The record without its message, when that and the document give the very content again."""
    value = load(row.body)
    if not isinstance(value, dict) or tuple(value)[:2] != _SIGNED:
        return None
    message = value["message"]
    beside: dict[str, object] = {"record": {name: item for name, item in value.items() if name != "message"}}
    if isinstance(message, dict) and _TRACKING not in message:
        beside["tracked"] = False
    # Both go through a file before anybody reads them again.
    again = read(to_file({**beside, "row": str(Line.of(row)), "message": shown}))
    said = cast("Message", again.pop("message"))
    return beside if content(read_entry(again), said) == row.body else None


# What opening an agent needs, by value, as of when its session was given up in good order.
#
# It spares a reader the listing and a request per message. It holds as long as nobody has written since: the agent's
# document is the one it names, and the document after the last message is not there.


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentHead:
    """An agent at rest."""

    rows: Sequence[Row]
    """Those from the last one's `low` on."""
    next_number: int
    """Of the next message's document."""
    messages: int
    """Documents of messages that there are."""
    numbers: Mapping[int, int]
    """Sequence number of a message's row to the number of its document."""
    tail: Sequence[Line]
    """The rows of the last document."""
    agent_version: str
    """Of the agent's document."""

    def spelled(self) -> dict[str, object]:
        """As the lease's object keeps it."""
        return {
            "next": self.next_number,
            "messages": self.messages,
            "numbers": [f"{seq} {number}" for seq, number in self.numbers.items()],
            "tail": [str(line.erased()) for line in self.tail],
            "agent": self.agent_version,
            "rows": [entry(row) for row in self.rows],
        }


def read_head(agent_id: str, value: object) -> AgentHead | None:
    """The head again; None when it cannot be read: then the documents say it all."""
    try:
        said = cast("dict[str, object]", value)
        kept = [read_entry(each) for each in cast("list[object]", said["rows"])]
        rows = [row for each in kept if (row := each.line.row(agent_id, each.body)) is not None]
        pairs = [str(text).split(" ") for text in cast("list[object]", said["numbers"])]
        head = AgentHead(
            rows=rows,
            next_number=int(cast("int", said["next"])),
            messages=int(cast("int", said["messages"])),
            numbers={int(seq): int(number) for seq, number in pairs},
            tail=tuple(Line.read(text) for text in cast("list[object]", said["tail"])),
            agent_version=str(said["agent"]),
        )
    except (ValueError, TypeError, KeyError):
        return None
    return head if rows and len(rows) == len(kept) else None
