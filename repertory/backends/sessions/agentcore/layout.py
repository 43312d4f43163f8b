"""The events of a session: the package's own items, spelled as the package spells them, and our journal beside them.

    message     `conversational` (from 100,000 characters on a blob), the message's record as JSON; then, when it is
                ours, a blob with the rows around it
    rows        a blob with rows that have no message
    agent       metadata stateType=AGENT and agentId; a blob with the agent's record
    session     metadata stateType=SESSION; a blob with the session's record
    lease       a blob that says who owns the session, or released it

The rows are the journal, and hold every message by value. Our items are its projection for other programs. Our events
carry an `EventMark` in their metadata, under `repertory`, with a digest of mark and items. Other programs skip blobs
that hold an object, and unknown metadata.

Source: bedrock-agentcore 1.25.0, `memory.integrations.strands`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from hashlib import blake2b, sha256
from typing import NamedTuple, TypeAlias, cast

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from repertory.backends.sessions.agentcore.events import ListedEvent, PayloadItem
from repertory.core.journal.codec import at_of
from repertory.core.journal.rows import RecordKind, Row
from repertory.core.json_bytes import epoch, read, to_file
from repertory.core.message_tree.documents import (
    OURS,
    AgentFile,
    FoundMessage,
    message_fields,
    message_in,
    read_agent,
    replaced_message,
    session_document,
    tracked,
)
from repertory.core.messages import Message, check_shape
from repertory.core.provider_parts import as_ours

FORMAT = 1
TEXT_CHARACTERS_MAX = 100_000
"""The most characters of a text and its role together; longer ones are blobs."""
STATE_TYPE = "stateType"
AGENT_ID = "agentId"

_SESSION = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_-]{0,99}")
_DIGESTED = re.compile(r"[0-9a-f]{32}$")
_DIGESTED_AGENT = re.compile(r"repertory:[0-9a-f]{32}")
_VALUE = re.compile(r"[a-zA-Z0-9\s._:/=+@-]{1,256}")
_MARK = re.compile(r"(rows|agent|session|held|free|asked)\.([0-9a-f]+)\.([0-9a-f]+)\.([a-zA-Z0-9_-]*)\.[0-9a-f]{32}")
_ASIDE = re.compile(r"repertory-aside-[0-9a-f]{32}-([0-9]+)")
_UNREADABLE = "it cannot be read"
_ALTERED = "it is not as it was written"
_ROLES = {"USER": "user", "ASSISTANT": "assistant"}


class EventMark(NamedTuple):
    """The content of our metadata key in an event."""

    kind: str
    """`held` and `free` take and release a lease; `asked` asks the owner of a generation for its session."""
    generation: int
    """The generation of the owner who wrote it, or who is asked."""
    wall: float
    """Epoch seconds by the owner's clock: the event's own time is no earlier than that of the event before it."""
    owner: str = ""

    def __str__(self) -> str:
        return f"{self.kind}.{self.generation:x}.{max(0, int(self.wall * 1000)):x}.{self.owner}"


class TakenMessage(NamedTuple):
    """A message of another program that the rows of an event take in."""

    number: int
    """The message's number among all messages of the agent."""
    ref: str
    """The message's location: the event's id, a slash, and the item in it."""
    seq: int = 0
    """The row that holds it as it is; 0 where it had to be repaired."""


class RecordGroup(Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind", tag="rows"):
    """Rows of one agent, as an event keeps them: those around a message, or some without a message of their own."""

    format: int
    agent: str
    began: float
    """The time at which the agent's first row was made."""
    generation: int
    """The generation of the owner who wrote the rows."""
    rows: Sequence[Row]
    of: str | None = None
    """The session's id, if it differs from the service's name."""
    number: int | None = None
    """The number of the message."""
    following: int = 0
    """The number of the next message, for rows without one."""
    batch: tuple[int, int] | None = None
    """First and last sequence number of the commit, when it took several events."""
    erase: Sequence[int] = ()
    """Rows that this commit erases, until that is done."""
    taken: Sequence[TakenMessage] = ()
    edition: int = 0
    """The number of times that it was rewritten."""


class LeaseState(Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind", tag="lease"):
    """The session of a lease event, and the last rows that its owner knew."""

    session: str
    tails: Mapping[str, int] | None = None
    """Agent id to its last sequence number; None when the owner does not say."""
    at: float = 0.0
    """The time at which the last of these rows was stored, in epoch seconds; 0.0 if unknown."""


class StandIn(Struct, frozen=True, tag_field="kind", tag="instead"):
    """The message before it stands for another program's, whose event was rewritten."""

    ref: str


OurBlob: TypeAlias = "RecordGroup | LeaseState | StandIn"


class _Blob(Struct):
    repertory: RecordGroup | LeaseState | StandIn


_decode_blob = msgspec.json.Decoder(_Blob).decode


class ForeignMessage(NamedTuple):
    """A message that another program added, and its place."""

    ref: str
    read: FoundMessage


class FoundGroup(NamedTuple):
    """One of our record groups in an event."""

    group: RecordGroup
    ref: str
    text: ItemText | None
    """The item of its message."""
    event_id: str

    @property
    def bare(self) -> ForeignMessage:
        """The group's message alone: from its row, or from the item if the row's content is erased or damaged."""
        for row in self.group.rows:
            message = message_in(row)
            if message is not None:
                return ForeignMessage(self.ref, FoundMessage(message=message, at=at_of(row.body) or 0.0))
        return ForeignMessage(self.ref, _message_of(self.text or ItemText("", ""), 0.0))


class ParsedEvent(Struct, frozen=True, kw_only=True):
    """An event after parsing."""

    event: ListedEvent
    mark: EventMark | None
    """None when another program wrote it."""
    fault: str | None = None
    """The difference from the event that we wrote, in words; salvage still uses the rest."""
    record_fault: str | None = None
    """The same for an agent's or a session's record, which opening does not need."""
    found: Sequence[FoundGroup] = ()
    messages: Sequence[ForeignMessage] = ()
    agent: tuple[str, AgentFile] | None = None
    lease: LeaseState | None = None
    session_id: str | None = None
    """The session's id, if the event has it."""


def usable_name(session_id: str) -> str:
    """The part of an id that the service's name for the session begins with."""
    # The service wants a letter or digit at the beginning, and at most a hundred characters with the digest.
    return re.sub(r"[^a-zA-Z0-9_-]+", "-", session_id)[:60].lstrip("-_")


def session_name(session_id: str) -> str:
    """The service's name for a session: its id, or the usable part of it and a digest."""
    if _SESSION.fullmatch(session_id) and not _ASIDE.fullmatch(session_id):
        return session_id
    usable = usable_name(session_id)
    digest = blake2b(session_id.encode(), digest_size=16).hexdigest()
    return f"{usable}-{digest}" if usable else digest


def aside_name(name: str, number: int) -> str:
    """The service's name for a session's copy of that number."""
    return f"repertory-aside-{blake2b(name.encode(), digest_size=16).hexdigest()}-{number}"


def number_aside(name: str, of: str | None = None) -> int | None:
    """The number of a copy; None for a session, and for the copy of another session than `of`."""
    found = _ASIDE.fullmatch(name)
    number = int(found[1]) if found is not None else None
    return number if number is None or of is None or aside_name(of, number) == name else None


def may_be_shared(name: str) -> bool:
    """True if two session ids may lead to this name: one it was derived from, and one equal to it."""
    return _DIGESTED.search(name) is not None


def agent_value(agent_id: str) -> str:
    """An agent's name in metadata: its id, or a digest when the id is no valid value, or looks like such a digest."""
    if _VALUE.fullmatch(agent_id) and not _DIGESTED_AGENT.fullmatch(agent_id):
        return agent_id
    return f"repertory:{blake2b(agent_id.encode(), digest_size=16).hexdigest()}"


def is_metadata(key: str, value: str) -> bool:
    """True if the service accepts this pair."""
    return len(key) <= 128 and all(_VALUE.fullmatch(text) for text in (key, value or "-"))


# Writing.


def message_items(message: Message, at: float, group: RecordGroup) -> list[PayloadItem]:
    """The event items for a message and the rows around it."""
    row = next(row for row in group.rows if row.kind == RecordKind.MESSAGE)
    # The package numbers nothing.
    fields = message_fields(0, tracked(message, row.link), at, redacted=row.erased)
    return [_text_item(fields, message["role"]), our_item(group)]


def our_item(ours: OurBlob) -> PayloadItem:
    return {"blob": msgspec.json.encode(_Blob(ours)).decode()}


def session_item(session_id: str, at: float) -> PayloadItem:
    return {"blob": to_file(read(session_document(session_id, at)), indent=None).decode()}


def _text_item(fields: Mapping[str, object], role: str) -> PayloadItem:
    text = to_file(fields, indent=None).decode()
    # The service refuses a longer text, and the package spells such a message as a blob.
    if len(text) + len(role) >= TEXT_CHARACTERS_MAX:
        return {"blob": json.dumps([text, role])}
    return {"conversational": {"content": {"text": text}, "role": role.upper()}}


def sealed(mark: EventMark, items: Sequence[PayloadItem]) -> str:
    """The text of a mark in the metadata of an event with these items."""
    return f"{mark}.{_digest_of(str(mark), items)}"


def _digest_of(mark: str, items: Sequence[PayloadItem]) -> str:
    # Sorted, since nobody promises the order of an item's keys.
    return sha256(json.dumps([mark, items], sort_keys=True, default=str).encode()).hexdigest()[:32]


def _is_altered(event: ListedEvent) -> bool:
    mark, _, digest = event.metadata[OURS].rpartition(".")
    return digest != _digest_of(mark, list(event.payload))


def item_bytes(item: PayloadItem) -> int:
    """The approximate size of an item."""
    blob = item.get("blob")
    return len(blob) if isinstance(blob, str) else len(item["conversational"]["content"]["text"])


# Reading.


def read_mark(metadata: Mapping[str, str]) -> EventMark | None:
    found = _MARK.fullmatch(metadata.get(OURS, ""))
    if found is None:
        return None
    return EventMark(found[1], int(found[2], 16), int(found[3], 16) / 1000, found[4])


def read_event(event: ListedEvent) -> ParsedEvent:
    """Parse an event. Unreadable items are left out, and reported if they are ours."""
    mark = read_mark(event.metadata)
    kind = event.metadata.get(STATE_TYPE)
    # Somebody has edited our metadata. It is damage, and no message of another program.
    if mark is None and OURS in event.metadata:
        return _read_items(event, None, "its metadata are not as they were written")
    fault = _ALTERED if mark is not None and _is_altered(event) else None
    if mark is not None and mark.kind == "agent":
        agent = _agent_in(event)
        if fault is not None or agent is None or kind != "AGENT":
            return ParsedEvent(event=event, mark=mark, record_fault=_ALTERED)
        return ParsedEvent(event=event, mark=mark, agent=agent)
    if mark is not None and mark.kind == "session":
        session_id = _session_in(event)
        return ParsedEvent(
            event=event,
            mark=mark,
            session_id=session_id,
            record_fault=fault if session_id is not None else _UNREADABLE,
        )
    if mark is None and kind is not None:
        return ParsedEvent(
            event=event,
            mark=mark,
            agent=_agent_in(event) if kind == "AGENT" else None,
            session_id=_session_in(event) if kind == "SESSION" else None,
        )
    return _read_items(event, mark, fault)


def _read_items(event: ListedEvent, mark: EventMark | None, fault: str | None) -> ParsedEvent:
    """Parse an event with messages, rows or a lease."""
    found: list[FoundGroup] = []
    messages: list[ForeignMessage] = []
    lease: LeaseState | None = None
    session_id: str | None = None
    units = _units(event)
    copied = any(isinstance(unit.ours, StandIn) for unit in units)
    faults = [] if fault is None else [fault]
    for unit in units:
        match unit.ours:
            case RecordGroup() as group if group.format != FORMAT or not group.rows:
                faults.append(f"it is of a format that this release does not know: {group.format!r}")
            case RecordGroup() as group:
                session_id = group.of or session_id
                found.append(FoundGroup(group, unit.ref, unit.text, event.event_id))
            case LeaseState() as lease:
                session_id = lease.session
            case _ if unit.text is not None:
                messages.append(ForeignMessage(unit.ref, _message_of(unit.text, event.at_ms / 1000)))
            case _:
                pass
        if mark is None and unit.ours is not None:
            faults.append("its metadata were removed")
        elif mark is not None and unit.ours is None and (unit.text is not None or not copied):
            faults.append(_UNREADABLE)
    if mark is not None and mark.kind != "asked" and not units:
        faults.append("it is empty")
    return ParsedEvent(
        event=event,
        mark=mark,
        fault=faults[0] if faults else None,
        found=found,
        messages=messages,
        lease=lease,
        session_id=session_id,
    )


class ItemText(NamedTuple):
    """The text of an item, and its role as the service spells it."""

    text: str
    role: str


class _Unit(NamedTuple):
    """A message with our blob that belongs to it, or any other item."""

    ref: str
    item: PayloadItem
    text: ItemText | None
    ours: OurBlob | None


def _units(event: ListedEvent) -> list[_Unit]:
    units: list[_Unit] = []
    index = 0
    while index < len(event.payload):
        item = event.payload[index]
        text, ref = _text_of(item), f"{event.event_id}/{index}"
        ours = _ours_in(event.payload[index + 1]) if text is not None and index + 1 < len(event.payload) else None
        if isinstance(ours, StandIn) or (isinstance(ours, RecordGroup) and ours.number is not None):
            units.append(_Unit(ours.ref if isinstance(ours, StandIn) else ref, item, text, ours))
            index += 2
        else:
            units.append(_Unit(ref, item, text, _ours_in(item) if text is None else None))
            index += 1
    return units


def _text_of(item: PayloadItem) -> ItemText | None:
    """The message in an item, written by this or another program; None for every other item."""
    conversational = cast("Mapping[str, object] | None", item.get("conversational"))
    if conversational is not None:
        content = cast("Mapping[str, object]", conversational.get("content") or {})
        return ItemText(str(content.get("text", "")), str(conversational.get("role", "")))
    value = _json_in(item)
    pair = cast("list[object]", value) if isinstance(value, list) else []
    if len(pair) == 2 and all(isinstance(part, str) for part in pair):
        return ItemText(str(pair[0]), str(pair[1]).upper())
    return None


def _json_in(item: PayloadItem) -> object:
    blob = item.get("blob")
    if not isinstance(blob, str):
        return None
    try:
        return json.loads(blob)
    except (ValueError, RecursionError):
        return None


def _ours_in(item: PayloadItem) -> OurBlob | None:
    blob = item.get("blob")
    try:
        return _decode_blob(blob).repertory if isinstance(blob, str) else None
    except ValueError:
        return None


def _fields_of(text: ItemText) -> dict[str, object] | None:
    try:
        return read(text.text.encode("utf-8", "surrogatepass"))
    except ValueError:
        return None


def _message_of(text: ItemText, at: float) -> FoundMessage:
    """Another program's message: the package's record, or the bare text that other tools of the service write."""
    fields = _fields_of(text)
    if fields is None and text.role in _ROLES and text.text.strip():
        fields = {"message": {"role": _ROLES[text.role], "content": [{"text": text.text}]}}
    if fields is None or "message" not in fields:
        return FoundMessage(fault="it is not a message of a session")
    try:
        redacted = fields.get("redact_message")
        message = as_ours(check_shape(redacted if redacted is not None else fields["message"]))
        return FoundMessage(message=message, at=epoch(fields["created_at"]) if "created_at" in fields else at)
    except (ValueError, TypeError, KeyError) as error:
        return FoundMessage(fault=str(error) or "it is empty")


def _agent_in(event: ListedEvent) -> tuple[str, AgentFile] | None:
    """The agent's record: the last one, when the package has gathered several."""
    blob = event.payload[-1].get("blob") if event.payload else None
    if not isinstance(blob, str):
        return None
    body = blob.encode("utf-8", "surrogatepass")
    found = read_agent(body)
    if found is None:
        return None
    agent_id = read(body).get("agent_id")
    if not isinstance(agent_id, str):
        return None
    named = agent_value(agent_id)
    return (agent_id, found) if event.metadata.get(AGENT_ID, named) == named else None


def _session_in(event: ListedEvent) -> str | None:
    blob = event.payload[-1].get("blob") if event.payload else None
    try:
        session_id = read(blob.encode("utf-8", "surrogatepass")).get("session_id") if isinstance(blob, str) else None
    except ValueError:
        return None
    return session_id if isinstance(session_id, str) else None


# Erasing.


def erased_payload(
    seen: ParsedEvent, wanted: Mapping[str, Collection[int]], replaced: Mapping[str, Message], at: float
) -> list[PayloadItem]:
    """The items of an event without the contents of these rows (by agent) and without the request to erase. `replaced`:
    the messages to put in place of others, by ref.
    """
    items: list[PayloadItem] = []
    for unit in _units(seen.event):
        item, ours = unit.item, unit.ours
        if unit.text is not None and unit.ref in replaced:
            fields = replaced_message({"message": {}, **(_fields_of(unit.text) or {})}, replaced[unit.ref], at)
            item = _text_item(fields, unit.text.role.lower())
        if isinstance(ours, RecordGroup):
            gone = wanted.get(ours.agent)
            rows = [row.without_content() if gone and row.seq in gone else row for row in ours.rows]
            erase = () if gone is not None else ours.erase
            ours = replace(ours, rows=rows, erase=erase, edition=ours.edition + 1)
        elif unit.text is not None:
            ours = StandIn(unit.ref)
        items += [item] if unit.text is not None or ours is None else []
        items += [our_item(ours)] if ours is not None else []
    return items
