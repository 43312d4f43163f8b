"""Records to bytes and back, version 1.

A body is a JSON object whose keys are the record's fields; fields at their default are left out. Mappings from sequence
numbers are lists of pairs. What a decoder does not know it refuses by name: a journal written by a later release is
never half understood.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields
from itertools import combinations
from typing import TypeAlias, TypeVar, cast

from repertory.core.interrupts import Interrupt
from repertory.core.journal.plain_json import dump, load, load_all
from repertory.core.journal.records import (
    Branched,
    CursorMoved,
    Interrupted,
    MessageAdded,
    NodeChanged,
    OwnerChanged,
    Record,
    Redacted,
    Resumed,
    SnapshotTaken,
    StateChanged,
    ToolFinished,
    ToolStarted,
    View,
    ViewChanged,
)
from repertory.core.journal.rows import VERSION, Kind, Row
from repertory.core.messages import Message
from repertory.errors import CorruptJournal

_Fields: TypeAlias = dict[str, object]
_Made = TypeVar("_Made")


def encode(record: Record) -> tuple[int, bytes]:
    """The kind (one of `Kind`) and the body of a record, in the current version.

    Errors: `Invalid` when a value is not JSON or bytes (NaN and infinities are not).
    """
    if type(record) is MessageAdded and record.idempotency_token is None and record.repaired is None:
        spelled: _Fields = {"at": record.at, "message": record.message, "turn": record.turn, "index": record.index}
        if record.view is not None:
            spelled["view"] = _view_spelled(record.view)
        return _MESSAGE, dump(spelled)
    kind = _KINDS[type(record)]
    spell = _SPELL.get(kind, _spelled)
    return kind, dump(spell(record))


def decode(kind: int, version: int, body: bytes) -> Record:
    """The record again.

    Errors: `CorruptJournal` when kind or version is not known to this release, or the body is not what its kind says.
    """
    made = _class_of(kind, version)
    try:
        return _record(kind, made, load(body))
    except (TypeError, ValueError, KeyError) as error:
        raise CorruptJournal("malformed record", kind=made.__name__, cause=str(error)) from error


def decode_all(rows: Sequence[Row]) -> list[Record] | None:
    """The records of verified rows, none of them erased, at once; None when one cannot be read: `decode` says which."""
    values = load_all([row.body for row in rows])
    if values is None:
        return None
    records: list[Record] = []
    plain = cast("Callable[..., Record]", MessageAdded)
    try:
        for row, value in zip(rows, values, strict=True):
            # Nearly every row of a long journal is such a message, and its bytes are known to be ours.
            if row[2] == _MESSAGE and row[3] == VERSION and type(value) is dict and tuple(value) in _MESSAGE_SHAPES:
                said = cast("_Fields", value)
                if "view" in said:
                    said["view"] = _message_view(said["view"])
                records.append(plain(**said))
            else:
                records.append(_record(row.kind, _class_of(row.kind, row.version), value))
    except (TypeError, ValueError, KeyError, CorruptJournal):
        return None
    return records


def decode_messages(rows: Sequence[Row]) -> list[Message] | None:
    """What was said in rows of messages, at once and without making their records; None when any of them is erased or
    unusual: decode the records then.
    """
    values = load_all([row.body for row in rows]) if all(row[2] == _MESSAGE and row.salt for row in rows) else None
    if values is None:
        return None
    messages: list[Message] = []
    for row, value in zip(rows, values, strict=True):
        if row[3] != VERSION or type(value) is not dict or tuple(value) not in _MESSAGE_SHAPES:
            return None
        messages.append(cast("Message", value["message"]))
    return messages


def at_of(body: bytes) -> float | None:
    """When the record was made, whatever its kind and version; None for a body that does not say."""
    try:
        said = load(body)
    except ValueError:
        return None
    at = said.get("at") if isinstance(said, dict) else None
    return float(at) if isinstance(at, float | int) else None


def _class_of(kind: int, version: int) -> type[Record]:
    if version != VERSION:
        raise CorruptJournal("unknown version of the journal format", version=version, known=VERSION)
    made = _CLASSES.get(kind)
    if made is None:
        raise CorruptJournal("unknown kind of record", kind=kind, version=version)
    return made


def _record(kind: int, made: type[Record], value: object) -> Record:
    said = _checked(value)
    read = _READ.get(kind)
    return _build(made, said if read is None else read(said))


def _build(made: Callable[..., _Made], said: Mapping[str, object]) -> _Made:
    """An unknown or a missing field is a TypeError, raised by the dataclass itself."""
    return made(**said)


def _checked(said: object) -> _Fields:
    """The fields of a body. Refuses what is no object, or has a field of the wrong type or an unknown one."""
    if type(said) is not dict:
        raise TypeError("a body is a JSON object")
    found = cast("_Fields", said)
    for name, value in found.items():
        if not isinstance(value, _TYPES[name]):
            raise TypeError(f"{name} is of the wrong type")
    return found


def _spelled(record: object) -> _Fields:
    """The fields that are not at their default."""
    said: _Fields = {}
    for name, default in _DEFAULTS[type(record)]:
        value = cast("object", getattr(record, name))
        if value != default:
            said[name] = value
    return said


def _spell_view(record: object) -> _Fields:
    said = _spelled(record)
    if "view" in said:
        said["view"] = _view_spelled(cast("View", said["view"]))
    return said


def _view_spelled(view: View) -> _Fields:
    """Field by field, since one is written in nearly every turn."""
    said: _Fields = {}
    if view.first_shown:
        said["first_shown"] = view.first_shown
    if view.pinned:
        said["pinned"] = [[seq, message] for seq, message in view.pinned.items()]
    if view.replaced:
        said["replaced"] = [[seq, message] for seq, message in view.replaced.items()]
    if view.summary is not None:
        said["summary"] = view.summary
    if view.hidden:
        said["hidden"] = view.hidden
    if view.manager:
        said["manager"] = view.manager
    if view.manager_state:
        said["manager_state"] = view.manager_state
    return said


def _spell_interrupts(record: object) -> _Fields:
    asked = cast("Interrupted", record)
    said: _Fields = {"at": asked.at, "interrupts": [_interrupt_spelled(one) for one in asked.interrupts]}
    if asked.parked:
        said["parked"] = asked.parked
    return said


def _interrupt_spelled(asked: Interrupt) -> _Fields:
    said: _Fields = {"id": asked.id, "name": asked.name, "reason": asked.reason}
    if asked.expires_at is not None:
        said["expires_at"] = asked.expires_at
    return said


def _read_view(said: _Fields) -> _Fields:
    return {**said, "view": _view_read(said.get("view", {}))}


def _read_branch(said: _Fields) -> _Fields:
    read = _read_view(said)
    if "copied" in read:
        read["copied"] = tuple(cast("list[int]", read["copied"]))
    return read


def _read_message(said: _Fields) -> _Fields:
    return _read_view(said) if "view" in said else said


def _message_view(said: object) -> View:
    """The view in a message whose bytes are known to be ours."""
    if type(said) is not dict:
        raise TypeError("a view is a JSON object")
    view = cast("_Fields", said)
    return _build(View, view) if tuple(view) == _LIGHT_VIEW else _view_read(view)


def _view_read(said: object) -> View:
    view = _checked(said)
    for name in ("pinned", "replaced"):
        if name in view:
            view[name] = dict(cast("list[tuple[int, object]]", view[name]))
    if "hidden" in view:
        view["hidden"] = tuple((first, last) for first, last in cast("list[tuple[int, int]]", view["hidden"]))
    return _build(View, view)


def _read_interrupts(said: _Fields) -> _Fields:
    interrupts = cast("list[_Fields]", said["interrupts"])
    parked = tuple(cast("list[str]", said.get("parked", ())))
    return {**said, "interrupts": tuple(_build(Interrupt, one) for one in interrupts), "parked": parked}


def _read_state(said: _Fields) -> _Fields:
    return {**said, "delete": tuple(cast("list[str]", said.get("delete", ())))}


def _read_node(said: _Fields) -> _Fields:
    return {**said, "frontier": tuple(cast("list[str]", said.get("frontier", ())))}


_CLASSES: Mapping[int, type[Record]] = {
    Kind.MESSAGE: MessageAdded,
    Kind.TOOL_STARTED: ToolStarted,
    Kind.TOOL_FINISHED: ToolFinished,
    Kind.VIEW: ViewChanged,
    Kind.STATE: StateChanged,
    Kind.REDACTION: Redacted,
    Kind.INTERRUPT: Interrupted,
    Kind.RESUME: Resumed,
    Kind.NODE: NodeChanged,
    Kind.SNAPSHOT: SnapshotTaken,
    Kind.BRANCH: Branched,
    Kind.CURSOR: CursorMoved,
    Kind.OWNER: OwnerChanged,
}
_MESSAGE = int(Kind.MESSAGE)
_MESSAGE_SHAPES = frozenset(
    ("at", "message", "turn", "index", *more)
    for count in range(4)
    for more in combinations(("idempotency_token", "repaired", "view"), count)
)
"""The fields that the body of a message may have, in the order in which they are written."""
_LIGHT_VIEW = ("first_shown", "manager", "manager_state")
_KINDS: Mapping[type, int] = {made: int(kind) for kind, made in _CLASSES.items()}
_SPELL: Mapping[int, Callable[[object], _Fields]] = {
    Kind.MESSAGE: _spell_view,
    Kind.REDACTION: _spell_view,
    Kind.VIEW: _spell_view,
    Kind.BRANCH: _spell_view,
    Kind.INTERRUPT: _spell_interrupts,
}
_READ: Mapping[int, Callable[[_Fields], _Fields]] = {
    Kind.MESSAGE: _read_message,
    Kind.REDACTION: _read_message,
    Kind.VIEW: _read_view,
    Kind.BRANCH: _read_branch,
    Kind.INTERRUPT: _read_interrupts,
    Kind.STATE: _read_state,
    Kind.NODE: _read_node,
}


def _defaults(made: type[Record | View]) -> tuple[tuple[str, object], ...]:
    found: list[tuple[str, object]] = []
    for each in fields(made):
        factory = each.default_factory
        found.append((each.name, each.default if factory is MISSING else cast("object", factory())))
    return tuple(found)


_DEFAULTS: Mapping[type, tuple[tuple[str, object], ...]] = {
    made: _defaults(made) for made in (*_CLASSES.values(), View)
}
_TYPES: Mapping[str, type | tuple[type, ...]] = {
    "at": (float, int),
    **dict.fromkeys(("turn", "turns", "index", "message_count", "attempt", "run", "generation"), int),
    **dict.fromkeys(("first_shown", "target", "position", "last", "source_position"), int),
    **dict.fromkeys(("idempotency_token", "repaired", "tool_use_id", "name", "idempotency_key", "manager"), str),
    **dict.fromkeys(("reason", "node", "status", "label", "digest", "source", "source_link", "owner"), str),
    **dict.fromkeys(("message", "view", "summary", "manager_state", "set", "full", "responses", "data"), dict),
    **dict.fromkeys(("metadata", "state", "positions", "kept"), dict),
    **dict.fromkeys(("pinned", "replaced", "hidden", "delete", "interrupts", "parked", "frontier", "copied"), list),
    "patch": bool,
    "result": object,
}
"""What a field may be, by its name: names mean the same in every record."""
