"""The events of a session: the package's own items, spelled as the package spells them, and ours beside them.

    message     `conversational` (from 100,000 characters on a blob), the message's record as JSON; then, when it is
                ours, a blob with the group of rows around it
    rows        a blob with a record group that has no message
    agent       metadata stateType=AGENT and agentId; a blob with the agent's record
    session     metadata stateType=SESSION; a blob with the session's record
    lease       a blob that says who owns the session, or released it

Our events carry an `EventMark` in their metadata, under `repertory`, and a digest of mark and items at the end of our
first blob. Other programs skip blobs that hold an object, and unknown metadata.

Source: bedrock-agentcore 1.25.0, `memory.integrations.strands`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from hashlib import blake2b, sha256
from typing import NamedTuple, cast

from msgspec import Struct
from msgspec.structs import replace

from repertory.backends.sessions.agentcore.events import ListedEvent, PayloadItem
from repertory.core.json_bytes import read, to_file
from repertory.core.message_tree.assembly import DocumentSource
from repertory.core.message_tree.documents import (
    ALTERED,
    DIGEST,
    OURS,
    AgentFile,
    Read,
    RecordGroup,
    message_fields,
    read_agent,
    read_message_fields,
    read_rows_fields,
    rows_fields,
    session_document,
    without_content_fields,
)
from repertory.core.messages import Message, check_message
from repertory.errors import Invalid

TEXT_CHARACTERS_MAX = 100_000
"""The most characters of a text and its role together; longer ones are blobs."""
STATE_TYPE = "stateType"
AGENT_ID = "agentId"

_SESSION = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_-]{0,99}")
_DIGESTED = re.compile(r"[0-9a-f]{32}$")
_DIGESTED_AGENT = re.compile(r"repertory:[0-9a-f]{32}")
_VALUE = re.compile(r"[a-zA-Z0-9\s._:/=+@-]{1,256}")
_MARK = re.compile(r"(rows|agent|session|held|free|asked)\.([0-9a-f]+)\.([0-9a-f]+)\.([a-zA-Z0-9_-]*)")
_ASIDE = re.compile(r"repertory-aside-[0-9a-f]{32}-([0-9]+)")
_SEAL = re.compile(r', "digest": "([0-9a-f]{32})"\}\}')
_OURS_BEGINS = f'{{"{OURS}"'
_UNREADABLE = "it cannot be read"
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


class FoundGroup(Struct, frozen=True, kw_only=True):
    """One of our record groups in an event."""

    agent_id: str
    source: DocumentSource
    read: Read
    ref: str
    """Its place, as that of `ForeignMessage`."""
    began: float
    """When the agent's first row was made."""
    edition: int = 0
    """How often it was rewritten."""
    events: Mapping[int, str] = {}
    """Number of a message that another program added, to its place."""


class ForeignMessage(NamedTuple):
    """A message that another program added."""

    ref: str
    """Its place: the event's id, a slash, and the item in it."""
    read: Read


class ParsedEvent(Struct, frozen=True, kw_only=True):
    """An event after parsing."""

    event: ListedEvent
    mark: EventMark | None
    """None when another program wrote it."""
    fault: str | None = None
    """How it differs from what we wrote. Salvage still uses the rest."""
    record_fault: str | None = None
    """The same for an agent's or a session's record, which opening does not need."""
    found: Sequence[FoundGroup] = ()
    said: Sequence[ForeignMessage] = ()
    agent: tuple[str, AgentFile] | None = None
    tails: Mapping[str, int] | None = None
    """Agent id to its last sequence number, as the event's writer knew them; None when it does not say."""
    committed_at: float = 0.0
    """When the last of these rows was stored; 0.0 when the event does not say."""
    session_id: str | None = None
    """The session's id, if the event has it."""


def usable_name(session_id: str) -> str:
    """The part of an id that the service's name for the session begins with."""
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


class EventOwner(NamedTuple):
    agent_id: str
    began: float
    """When the agent's first row was made."""
    session_id: str | None = None
    """The session's id, if it differs from the service's name."""

    @property
    def fields(self) -> dict[str, object]:
        of = {} if self.session_id is None else {"of": self.session_id}
        return {"agent": self.agent_id, "began": self.began, **of}


def message_items(whose: EventOwner, number: int, message: Message, at: float, group: RecordGroup) -> list[PayloadItem]:
    """The event items for a message and the rows around it."""
    fields = message_fields(number, message, at, group)
    ours = cast("dict[str, object]", fields.pop(OURS))
    fields["message_id"] = 0  # The package numbers nothing.
    return [_text_item(fields, message["role"]), _ours({**whose.fields, "number": number, **ours})]


def rows_item(
    whose: EventOwner,
    group: RecordGroup,
    files: Mapping[int, tuple[int, Message]],
    events: Mapping[int, str],
) -> PayloadItem:
    """Rows without a message, or for messages that other programs added: `events` has the places of those."""
    places = {"events": {str(number): ref for number, ref in events.items()}} if events else {}
    return _ours({**whose.fields, **places, **rows_fields(group, files)})


def lease_item(session_id: str, tails: Mapping[str, int] | None, committed_at: float = 0.0) -> PayloadItem:
    """The mark says who owns the session; this item says what that owner knew."""
    fields: dict[str, object] = {} if tails is None else {"tails": dict(tails), "at": committed_at}
    return _ours({"session": session_id, **fields})


def session_item(session_id: str, at: float) -> PayloadItem:
    return {"blob": to_file(read(session_document(session_id, at)), indent=None).decode()}


def _text_item(fields: Mapping[str, object], role: str) -> PayloadItem:
    text = to_file(fields, indent=None).decode()
    if len(text) + len(role) >= TEXT_CHARACTERS_MAX:
        return {"blob": json.dumps([text, role])}
    return {"conversational": {"content": {"text": text}, "role": role.upper()}}


def _ours(fields: Mapping[str, object]) -> PayloadItem:
    return {"blob": to_file({OURS: fields}, indent=None).decode()}


def sealed_items(mark: str, payload: Sequence[PayloadItem]) -> list[PayloadItem]:
    """The items with a digest in our first blob; unchanged when we have none. `mark`: the mark in the metadata."""
    items = list(payload)
    place = _first_of_ours(items)
    if place is not None:
        digest = _digest_of(mark, items)
        items[place] = {"blob": f'{items[place]["blob"][:-2]}, "digest": "{digest}"}}}}'}
    return items


def _first_of_ours(items: Sequence[PayloadItem]) -> int | None:
    """The first blob carries the digest, so a cut at the end of an event is detected."""
    ours = (place for place, item in enumerate(items) if str(item.get("blob", "")).startswith(_OURS_BEGINS))
    return next(ours, None)


def _digest_of(mark: str, items: Sequence[PayloadItem]) -> str:
    return sha256(json.dumps([mark, items], sort_keys=True, default=str).encode()).hexdigest()[:32]


def _is_altered(event: ListedEvent) -> bool:
    """True if an event differs from what its digest says, or our blob in it has none."""
    items = list(event.payload)
    place = _first_of_ours(items)
    if place is None:
        return False
    blob = str(items[place]["blob"])
    seal = _SEAL.search(blob, max(0, len(blob) - 48))
    if seal is None or seal.end() != len(blob):
        return True
    items[place] = {"blob": f"{blob[: seal.start()]}}}}}"}
    return seal[1] != _digest_of(event.metadata[OURS], items)


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
    if mark is None and OURS in event.metadata:
        return replace(_read_items(event, None), fault="its metadata are not as they were written")
    if mark is not None and mark.kind == "agent":
        agent = _agent_in(event)
        wrong = agent is None or agent[1].foreign or kind != "AGENT"
        return ParsedEvent(
            event=event, mark=mark, agent=None if wrong else agent, record_fault=ALTERED if wrong else None
        )
    if mark is not None and mark.kind == "session":
        session_id = _session_in(event)
        return ParsedEvent(
            event=event, mark=mark, session_id=session_id, record_fault=None if session_id else _UNREADABLE
        )
    if mark is None and kind is not None:
        return ParsedEvent(
            event=event,
            mark=mark,
            agent=_agent_in(event) if kind == "AGENT" else None,
            session_id=_session_in(event) if kind == "SESSION" else None,
        )
    return _read_items(event, mark)


def _read_items(event: ListedEvent, mark: EventMark | None) -> ParsedEvent:
    """Parse an event with messages, rows or a lease."""
    found: list[FoundGroup] = []
    messages: list[ForeignMessage] = []
    tails: dict[str, int] | None = None
    session_id: str | None = None
    committed_at = 0.0
    units = _units(event)
    copied = any("stands_for" in (unit.ours or {}) for unit in units)
    faults: list[str] = [ALTERED] if mark is not None and _is_altered(event) else []
    for unit in units:
        ours = unit.ours or {}
        if unit.text is not None and "number" not in ours:
            messages.append(ForeignMessage(unit.ref, _message_said(unit.text, event.at_ms / 1000)))
        elif "session" in ours:
            known = ours.get("tails")
            try:
                session_id = str(ours["session"])
                tails = None if known is None else _numbers_in(known)
                committed_at = float(cast("float", ours.get("at") or 0.0))
            except (ArithmeticError, AttributeError, TypeError, ValueError):
                faults.append(_UNREADABLE)
        elif "agent" in ours:
            session_id = str(ours["of"]) if "of" in ours else session_id
            try:
                found.append(_group_in(unit.ref, ours, unit.text))
            except (ArithmeticError, AttributeError, KeyError, TypeError, ValueError) as error:
                faults.append(str(error) or _UNREADABLE)
        if mark is None and ours:
            faults.append("its metadata were removed")
        elif mark is not None and not ours and (unit.text is not None or not copied):
            faults.append(_UNREADABLE)
    if mark is not None and mark.kind != "asked" and not units:
        faults.append("it is empty")
    return ParsedEvent(
        event=event,
        mark=mark,
        fault=faults[0] if faults else None,
        found=found,
        said=messages,
        tails=tails,
        committed_at=committed_at,
        session_id=session_id,
    )


def _numbers_in(value: object) -> dict[str, int]:
    return {agent: int(cast("int", seq)) for agent, seq in cast("dict[str, object]", value).items()}


class _Text(NamedTuple):
    text: str
    role: str


class _Unit(NamedTuple):
    """A message with our blob that belongs to it, or any other item."""

    ref: str
    item: PayloadItem
    text: _Text | None
    ours: dict[str, object] | None


def _units(event: ListedEvent) -> list[_Unit]:
    units: list[_Unit] = []
    place = 0
    while place < len(event.payload):
        item = event.payload[place]
        text, ref = _text_of(item), f"{event.event_id}/{place}"
        ours = _ours_in(event.payload[place + 1]) if text is not None and place + 1 < len(event.payload) else None
        if ours is not None and ("number" in ours or "stands_for" in ours):
            units.append(_Unit(str(ours.get("stands_for") or ref), item, text, ours))
            place += 2
        else:
            units.append(_Unit(ref, item, text, _ours_in(item) if text is None else None))
            place += 1
    return units


def _text_of(item: PayloadItem) -> _Text | None:
    """The message in an item, written by this or another program; None for every other item."""
    conversational = cast("Mapping[str, object] | None", item.get("conversational"))
    if conversational is not None:
        content = cast("Mapping[str, object]", conversational.get("content") or {})
        return _Text(str(content.get("text", "")), str(conversational.get("role", "")))
    value = _json_in(item)
    pair = cast("list[object]", value) if isinstance(value, list) else []
    if len(pair) == 2 and all(isinstance(part, str) for part in pair):
        return _Text(str(pair[0]), str(pair[1]).upper())
    return None


def _json_in(item: PayloadItem) -> object:
    blob = item.get("blob")
    if not isinstance(blob, str):
        return None
    try:
        return json.loads(blob)
    except (ValueError, RecursionError):
        return None


def _ours_in(item: PayloadItem) -> dict[str, object] | None:
    blob = item.get("blob")
    if not isinstance(blob, str) or not blob.startswith(_OURS_BEGINS):
        return None
    try:
        ours = read(blob.encode("utf-8", "surrogatepass")).get(OURS)
    except ValueError:
        return None
    if not isinstance(ours, dict):
        return None
    return {name: value for name, value in cast("dict[str, object]", ours).items() if name != DIGEST}


def _group_in(ref: str, ours: dict[str, object], text: _Text | None) -> FoundGroup:
    """Errors: `ValueError`, `TypeError`, `KeyError` and the like, for edited items."""
    number = ours.get("number")
    if isinstance(number, int) and text is not None:
        source, group = DocumentSource(number), read_message_fields({**(_fields_of(text) or {}), OURS: ours})
    else:
        group = read_rows_fields(ours)
        source = DocumentSource(None, group.kept[0].line.seq if group.kept else 0)
    if group.fault is not None or not group.kept:
        raise ValueError(group.fault or "it has no rows")
    events = cast("dict[str, object]", ours.get("events") or {})
    return FoundGroup(
        agent_id=str(ours["agent"]),
        source=source,
        read=group,
        ref=ref,
        began=float(cast("float", ours.get("began") or 0.0)),
        edition=int(cast("int", ours.get("edition") or 0)),
        events={int(each): str(where) for each, where in events.items()},
    )


def _fields_of(text: _Text) -> dict[str, object] | None:
    try:
        return read(text.text.encode("utf-8", "surrogatepass"))
    except ValueError:
        return None


def _message_said(text: _Text, at: float) -> Read:
    """Another program's message: the package's record, or the bare text that other tools of the service write."""
    fields = _fields_of(text)
    if fields is not None and "message" in fields:
        return read_message_fields({name: value for name, value in fields.items() if name != OURS})
    role = _ROLES.get(text.role)
    if fields is not None or role is None or not text.text.strip():
        return Read(fault="it is not a message of a session")
    try:
        return Read(message=check_message({"role": role, "content": [{"text": text.text}]}), at=at)
    except Invalid as error:
        return Read(fault=str(error))


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
    """The session's id from its record."""
    blob = event.payload[-1].get("blob") if event.payload else None
    try:
        session_id = read(blob.encode("utf-8", "surrogatepass")).get("session_id") if isinstance(blob, str) else None
    except ValueError:
        return None
    return session_id if isinstance(session_id, str) else None


# Erasing.


def erased_payload(
    seen: ParsedEvent, wanted: Mapping[str, Collection[int]], shown: Mapping[str, Message], at: float
) -> list[PayloadItem]:
    """The items of an event without the contents of these rows (by agent), with `shown` in place of messages (by ref),
    and without the request to erase.
    """
    items: list[PayloadItem] = []
    for unit in _units(seen.event):
        text = unit.text
        ours: dict[str, object] = dict(unit.ours or {})
        rows = wanted.get(str(ours.get("agent")))
        fields = _fields_of(text) if text is not None else None
        if "agent" in ours and rows is not None:
            if fields is None:
                ours = without_content_fields(ours, rows, None, at)
            else:
                fields = without_content_fields({**fields, OURS: ours}, rows, shown.get(unit.ref), at)
                ours = cast("dict[str, object]", fields.pop(OURS))
        elif "agent" not in ours and text is not None:
            ours = {"stands_for": unit.ref}
            if unit.ref in shown:
                fields = without_content_fields({"message": {}, **(fields or {})}, (), shown[unit.ref], at)
        if "agent" in ours:
            ours["edition"] = int(cast("int", ours.get("edition") or 0)) + 1
        if text is not None:
            items.append(_text_item(fields, text.role.lower()) if fields and "message" in fields else unit.item)
        items += [_ours(ours)] if ours else ([unit.item] if text is None else [])
    return items
