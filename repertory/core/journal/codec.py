"""Records to bytes and back, version 1.

A body is a JSON object with the record's fields; fields at their default are left out. Mappings from sequence numbers
are lists of pairs. A decoder refuses what it does not know, by name: a journal of a later release is never half
understood. Every field that folds and readers rely on is checked, since a correct chain proves only that a body was not
changed, not that it makes sense. The one exception: content blocks of wrong types are repaired (`core/messages.py`),
since an export may have been written by any program.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import TypeAlias, TypeVar, cast, get_args

from msgspec import NODEFAULT, MsgspecError, Struct
from msgspec.json import Decoder as JSONDecoder

from repertory.core.deferral import BackgroundRun, DeferredTool, OnExpiry, RunAsks, deferral_fields
from repertory.core.deliveries import EventDelivery, read_delivery
from repertory.core.interrupts import Interrupt
from repertory.core.journal.records import (
    AnswersStated,
    Branched,
    CursorMoved,
    DeferralsChanged,
    DeferredResult,
    DeliveriesChanged,
    FinishedTurn,
    Interrupted,
    MessageAdded,
    NodeChanged,
    NodeStatus,
    OwnerChanged,
    Record,
    Redacted,
    Resumed,
    RunChanged,
    SnapshotTaken,
    SpentCall,
    StateChanged,
    StepFinished,
    StepStarted,
    SubagentSpending,
    TimersChanged,
    ToolFinished,
    ToolStarted,
    View,
    ViewChanged,
)
from repertory.core.journal.rows import VERSION, RecordKind, Row
from repertory.core.journal.sealing import MARK, SEALED, head_of, plain_bodies, plain_of
from repertory.core.json_bytes import from_base64, refuse_constant, to_base64
from repertory.core.limits import RECORD_DEPTH_MAX, is_too_deep, well_formed
from repertory.core.messages import Json, Message, is_plainly_sound, read_result, repair_stored_message
from repertory.core.steps import Lane
from repertory.core.timers import Missed, Timer
from repertory.errors import CorruptJournal, Invalid

_Fields: TypeAlias = dict[str, object]
_Made = TypeVar("_Made")

MENDED = "content blocks of wrong types stand as text"
"""The `repaired` reason of a message that differs from its row. The session that opens it records the repair."""
_PLAIN = (None, None, ())
# Python's `datetime` ends there, and readers show these times.
_YEAR_10000 = 253_402_300_800.0
_TIME_FIRST = b'{"at":'
_NEVER_SENT = frozenset(("set", "delete", "full", "state", "metadata"))
"""Fields with values of programs, which come back exactly: the state, in `StateChanged` and `Branched`, and what a
snapshot is labelled with.
"""


def encode(record: Record) -> tuple[int, bytes]:
    """The kind (one of `RecordKind`) and the body of a record, in the current version.

    Errors: `Invalid` when a value is not JSON or bytes (NaN and infinities are not).
    """
    # Written out for nearly every record, without the tables and the comparisons with defaults.
    if type(record) is MessageAdded and (record.idempotency_token, record.repaired, record.joined) == _PLAIN:
        spelled: _Fields = {"at": record.at, "message": record.message, "turn": record.turn, "index": record.index}
        if record.view is not None:
            spelled["view"] = _view_spelled(record.view)
        return _MESSAGE, dump(spelled)
    kind = _KINDS[type(record)]
    spell = _SPELL.get(kind, _spelled)
    return kind, dump(spell(record))


def with_view(body: bytes, view: View) -> bytes:
    """The body of a message with this view, from the message's body without one. Errors: as `encode`."""
    fields = _view_spelled(view)
    return b'%b,"view":%b}' % (body[:-1], dump(fields))


def decode(kind: int, version: int, body: bytes) -> Record:
    """The record in a body.

    Errors: `CorruptJournal` when this release does not know the kind or version, or the body does not fit its kind;
    those of `plain_of`.
    """
    # By exact type: a `SealedBody` is bytes too, and its plain body is asked for here alone.
    if version >= SEALED or type(body) is not bytes:
        version, body = plain_of(version, body)
    made = _class_of(kind, version)
    try:
        value = load(body)
        # A record that somebody else has written could be nested so deep that every later copy of it fails.
        if _has_many_containers(body) and is_too_deep(value, RECORD_DEPTH_MAX):
            raise ValueError("nested too deep")
        if may_be_unsendable(kind, body):
            value = _sendable(value)
        return _record(kind, made, value)
    except (TypeError, ValueError, KeyError) as error:
        raise CorruptJournal("malformed record", kind=made.__name__, cause=str(error)) from error


def may_be_unsendable(kind: int, body: bytes) -> bool:
    """True if the body may hold half of a surrogate pair, with which every later request would fail: `decode` replaces
    it, except in what is never sent (`_NEVER_SENT`).
    """
    return kind != RecordKind.STATE and (b"\\ud" in body or b"\\uD" in body)


def _sendable(value: Json) -> Json:
    if not isinstance(value, dict):
        return value
    return {name: each if name in _NEVER_SENT else well_formed(each) for name, each in value.items()}


def decode_all(rows: Sequence[Row]) -> list[Record] | None:
    """The records of verified rows, none erased, in one pass; None when one cannot be read: use `decode` then."""
    bodies = [row[7] for row in rows]
    if not all(type(body) is bytes for body in bodies):
        bodies = plain_bodies(rows)
    values = load_all(bodies)
    if values is None:
        return None
    records: list[Record] = []
    plain = cast("Callable[..., Record]", MessageAdded)
    try:
        for row, body, value in zip(rows, bodies, values, strict=True):
            version = row[3] & ~SEALED
            # Nearly every row of a long journal is a message of one of these shapes.
            if row[2] == _MESSAGE and version == VERSION and type(value) is dict and tuple(value) in _MESSAGE_SHAPES:
                fields = cast("_Fields", value)
                if _is_plain_message(fields):
                    view = fields.get("view")
                    if view is not None:
                        fields["view"] = _build(View, cast("_Fields", view))
                elif _may_be_deep(body):
                    return None
                else:
                    fields = _checked_message(fields)
                    if "view" in fields:
                        fields["view"] = _view_read(fields["view"])
                records.append(plain(**fields))
            elif _may_be_deep(body):
                return None
            else:
                records.append(_record(row.kind, _class_of(row.kind, version), value))
    # Not told here: `decode`, one by one, names the row that is wrong.
    except (TypeError, ValueError, KeyError, CorruptJournal):
        return None
    return records


def decode_messages(rows: Sequence[Row]) -> list[Message] | None:
    """The messages in rows of messages, in one pass and without their records. None when a row is erased or unusual:
    decode the records then.
    """
    if not all(row[2] == _MESSAGE and row.salt for row in rows):
        return None
    bodies = [row[7] for row in rows]
    values = load_all(bodies if all(type(body) is bytes for body in bodies) else plain_bodies(rows))
    if values is None:
        return None
    messages: list[Message] = []
    for row, value in zip(rows, values, strict=True):
        if row[3] & ~SEALED != VERSION or type(value) is not dict or tuple(value) not in _MESSAGE_SHAPES:
            return None
        message: object = value["message"]
        try:
            plain = type(message) is dict and is_plainly_sound(cast("_Fields", message))
            messages.append(cast("Message", message) if plain else repair_stored_message(message))
        except Invalid:
            return None
    return messages


def at_of(body: bytes) -> float | None:
    """The time of a record of any kind or version, sealed or not; None when the body has none."""
    if body[:1] == MARK and (head := head_of(body)) is not None:
        return head.at if _is_time(head.at) else None
    try:
        if body.startswith(_TIME_FIRST):  # As in nearly all: the rest need not be read.
            at = cast("object", _READ_JSON(body.decode(), len(_TIME_FIRST))[0])
        else:
            fields = load(body)
            at = fields.get("at") if isinstance(fields, dict) else None
        return float(cast("float", at)) if _is_time(at) else None
    except (ValueError, OverflowError, RecursionError):
        return None


def _may_be_deep(body: bytes) -> bool:
    return len(body) > RECORD_DEPTH_MAX and _has_many_containers(body)


def _has_many_containers(body: bytes) -> bool:
    """True if the body may be nested too deep. Counting brackets is faster than walking."""
    return body.count(b"{") + body.count(b"[") > RECORD_DEPTH_MAX


def _class_of(kind: int, version: int) -> type[Record]:
    if version != VERSION:
        raise CorruptJournal("unknown version of the journal format", version=version, known=VERSION)
    made = _CLASSES.get(kind)
    if made is None:
        raise CorruptJournal("unknown kind of record", kind=kind, version=version)
    return made


def _record(kind: int, made: type[Record], value: object) -> Record:
    fields = _checked(value)
    read = _READ.get(kind)
    return _build(made, fields if read is None else read(fields))


def _build(made: Callable[..., _Made], fields: Mapping[str, object]) -> _Made:
    """Errors: TypeError for an unknown or missing field, raised by the dataclass itself."""
    return made(**fields)


def _checked(fields: object) -> _Fields:
    """The fields of a body. Errors: TypeError when it is no object, or a field is unknown or of the wrong type."""
    if type(fields) is not dict:
        raise TypeError("a body is a JSON object")
    found = cast("_Fields", fields)
    for name, value in found.items():
        look = _LOOKS.get(name)
        if look is None:
            raise TypeError(f"{name} is unknown")
        if not look(value):
            raise TypeError(f"{name} is of the wrong type")
    return found


def _is_plain_message(fields: _Fields) -> bool:
    """True if the fields of a message of a usual shape need neither repair nor another type than they have; False
    leaves that open.
    """
    at, turn, index, message = fields["at"], fields["turn"], fields["index"], fields["message"]
    return (
        (len(fields) == _USUAL_FIELDS or (len(fields) == _USUAL_FIELDS + 1 and _is_plain_view(fields.get("view"))))
        and type(at) is float
        and abs(at) < _YEAR_10000
        and type(turn) is int
        and type(index) is int
        and 0 <= turn < 2**63 > index >= 0
        and type(message) is dict
        and is_plainly_sound(cast("_Fields", message))
    )


def _is_plain_view(fields: object) -> bool:
    """True if the view in a message is nothing but where it begins and the counts of its manager."""
    if type(fields) is not dict:
        return False
    view = cast("_Fields", fields)
    if tuple(view) != _LIGHT_VIEW:
        return False
    first, manager, state = view.values()
    if type(state) is not dict or not (type(first) is int and 0 <= first < 2**63 and type(manager) is str):
        return False
    return all(type(each) is int or type(each) is str for each in cast("_Fields", state).values())


def _checked_message(fields: _Fields) -> _Fields:
    """`_checked` for a message of a usual shape, as most rows have it."""
    at, turn, index = fields["at"], fields["turn"], fields["index"]
    if type(turn) is not int or type(index) is not int or not (0 <= index < 2**63 > turn >= 0) or not _is_time(at):
        raise TypeError("a number of a message is of the wrong type")
    if len(fields) > _USUAL_FIELDS:
        for name in ("idempotency_token", "repaired"):
            if not isinstance(fields.get(name, ""), str):
                raise TypeError(f"{name} is of the wrong type")
    message = fields["message"]
    if type(message) is dict and is_plainly_sound(cast("_Fields", message)):
        return fields
    mended = repair_stored_message(cast("object", message))
    return fields if mended is message else {**fields, "message": mended, "repaired": MENDED}


def _spelled(record: object) -> _Fields:
    """The fields that differ from their default."""
    fields: _Fields = {}
    for name, default in _DEFAULTS[type(record)]:
        value = cast("object", getattr(record, name))
        if value != default:
            fields[name] = _view_spelled(value) if type(value) is View else value
    return fields


def _view_spelled(view: View) -> _Fields:
    """Written field by field for speed: nearly every turn writes one."""
    fields: _Fields = {}
    if view.first_shown:
        fields["first_shown"] = view.first_shown
    if view.pinned:
        fields["pinned"] = [[seq, message] for seq, message in view.pinned.items()]
    if view.replaced:
        fields["replaced"] = [[seq, message] for seq, message in view.replaced.items()]
    if view.summary is not None:
        fields["summary"] = view.summary
    if view.hidden:
        fields["hidden"] = view.hidden
    if view.manager:
        fields["manager"] = view.manager
    if view.manager_state:
        fields["manager_state"] = view.manager_state
    return fields


def _spell_interrupts(record: object) -> _Fields:
    asked = cast("Interrupted", record)
    fields: _Fields = {"at": asked.at, "interrupts": [_interrupt_spelled(one) for one in asked.interrupts]}
    if asked.parked:
        fields["parked"] = asked.parked
    return fields


def _interrupt_spelled(asked: Interrupt) -> _Fields:
    fields: _Fields = {"id": asked.id, "name": asked.name, "reason": asked.reason}
    if asked.expires_at is not None:
        fields["expires_at"] = asked.expires_at
    if asked.tool is not None:  # Of another agent's question: others are about the tools of the last message.
        fields |= {"tool": asked.tool, "input": asked.input}
    if asked.may_answer:
        fields["may_answer"] = asked.may_answer
    return fields


def _spell_timers(record: object) -> _Fields:
    changed = cast("TimersChanged", record)
    fields: _Fields = {"at": changed.at}
    if changed.timers:
        fields["timers"] = [_timer_spelled(one) for one in changed.timers]
    return fields


def _timer_spelled(timer: Timer) -> _Fields:
    fields: _Fields = {"id": timer.id, "at": timer.at, "prompt": timer.prompt}
    if timer.every_s is not None:
        fields["every_s"] = timer.every_s
    if timer.cron is not None:
        fields |= {"cron": timer.cron, "tz": timer.tz}
    if timer.missed != "one":
        fields["missed"] = timer.missed
    return {**fields, "deliver_to": [*timer.deliver_to]} if timer.deliver_to else fields


def _spell_answers(record: object) -> _Fields:
    stated = cast("AnswersStated", record)
    fields: _Fields = {"at": stated.at}
    if stated.answers:
        fields["answers"] = [[turn.token, turn.seq, turn.answer_seq] for turn in stated.answers]
    return fields


def _spell_deferrals(record: object) -> _Fields:
    fields, changed = _spelled(record), cast("DeferralsChanged", record)
    if changed.deferrals:
        fields["deferrals"] = [deferral_fields(one) for one in changed.deferrals]
    if changed.runs:
        fields["runs"] = [_spelled(one) for one in changed.runs]
    if changed.steps:
        fields["steps"] = [[_KINDS[type(step)], _spelled(step)] for step in changed.steps]
    return fields


def _read_view(fields: _Fields) -> _Fields:
    return {**fields, "view": _view_read(fields.get("view", {}))}


def _read_branch(fields: _Fields) -> _Fields:
    read = _read_view(fields)
    if "copied" in read:
        read["copied"] = tuple(cast("list[int]", read["copied"]))
    return read


def _read_joined(fields: _Fields) -> _Fields:
    read = _read_view(fields) if "view" in fields else fields
    return {**read, "joined": tuple(cast("list[str]", read["joined"]))} if "joined" in read else read


def _read_message(fields: _Fields) -> _Fields:
    read = _read_joined(fields)
    message = repair_stored_message(read.get("message"))
    return read if message is read["message"] else {**read, "message": message, "repaired": MENDED}


def _read_redaction(fields: _Fields) -> _Fields:
    read = _read_joined(fields)
    resumed = tuple(
        (seq, tuple(tokens)) for seq, tokens in cast("list[tuple[int, list[str]]]", read.get("resumed", ()))
    )
    return {**read, "message": repair_stored_message(read.get("message")), "resumed": resumed}


def _read_finished(fields: _Fields) -> _Fields:
    return {**fields, "result": read_result(fields.get("result"))}


def _view_read(fields: object) -> View:
    view = _checked(fields)
    for name in ("pinned", "replaced"):
        if name in view:
            pairs = cast("list[tuple[int, object]]", view[name])
            view[name] = {seq: repair_stored_message(message) for seq, message in pairs}
    if "summary" in view:
        view["summary"] = repair_stored_message(view["summary"])
    if "hidden" in view:
        view["hidden"] = tuple((first, last) for first, last in cast("list[tuple[int, int]]", view["hidden"]))
    return _build(View, view)


def _read_interrupts(fields: _Fields) -> _Fields:
    interrupts = [_interrupt_checked(one) for one in cast("list[object]", fields.get("interrupts", ()))]
    parked = tuple(cast("list[str]", fields.get("parked", ())))
    return {**fields, "interrupts": tuple(_build(Interrupt, one) for one in interrupts), "parked": parked}


def _interrupt_checked(fields: object) -> _Fields:
    if not isinstance(fields, dict):
        raise TypeError("an interrupt is a JSON object")
    asked = cast("_Fields", fields)
    until = asked.get("expires_at")
    if not (isinstance(asked.get("id"), str) and isinstance(asked.get("name"), str)):
        raise TypeError("an interrupt has an id and a name")
    if not (until is None or _is_time(until)):
        raise TypeError("expires_at is of the wrong type")
    if not isinstance(asked.get("tool"), str | None):
        raise TypeError("tool is of the wrong type")
    people = asked.get("may_answer", [])
    if not (isinstance(people, list) and all(isinstance(one, str) for one in cast("list[object]", people))):
        raise TypeError("may_answer is of the wrong type")
    return {**asked, "may_answer": tuple(cast("list[str]", people))} if people else asked


def _read_timers(fields: _Fields) -> _Fields:
    timers = [_build(Timer, _timer_checked(one)) for one in cast("list[object]", fields.get("timers", ()))]
    return {**fields, "timers": tuple(timers)}


def _timer_checked(fields: object) -> _Fields:
    if not isinstance(fields, dict):
        raise TypeError("a timer is a JSON object")
    timer = cast("_Fields", fields)
    if not (_is_text(timer.get("id")) and _is_text(timer.get("prompt")) and _is_time(timer.get("at"))):
        raise TypeError("a timer has an id, a time and a prompt")
    every_s = timer.get("every_s")
    if not (every_s is None or (_is_time(every_s) and cast("float", every_s) > 0)):
        raise TypeError("every_s is of the wrong type")
    if not (_is_text(timer.get("cron", "")) and _is_text(timer.get("tz", "")) and ("cron" in timer) == ("tz" in timer)):
        raise TypeError("a calendar has an expression and a time zone")
    if timer.get("missed", "one") not in get_args(Missed):
        raise TypeError("missed is of the wrong type")
    return {**timer, "deliver_to": _destinations(timer)}


def _destinations(fields: _Fields) -> tuple[str, ...]:
    names = fields.get("deliver_to", [])
    if not _are(_is_text)(names):
        raise TypeError("deliver_to is a list of names")
    return tuple(cast("list[str]", names))


def _read_deferrals(fields: _Fields) -> _Fields:
    tools = [_build(DeferredTool, _deferral_checked(one)) for one in cast("list[object]", fields.get("deferrals", ()))]
    read = {**fields, "deferrals": tuple(tools)}
    read |= {name: tuple(cast("list[str]", fields[name])) for name in _DEFERRAL_IDS if name in fields}
    if "runs" in read:
        read["runs"] = tuple(_build(RunChanged, _checked(one)) for one in cast("list[object]", read["runs"]))
    if "steps" in read:
        steps = cast("list[tuple[int, object]]", read["steps"])
        if any(kind not in (RecordKind.STEP_STARTED, RecordKind.STEP_FINISHED) for kind, _ in steps):
            raise TypeError("the steps of background runs are records of steps")
        read["steps"] = tuple(_record(kind, _CLASSES[kind], one) for kind, one in steps)
    return read


def _deferral_checked(fields: object) -> _Fields:
    if not isinstance(fields, dict):
        raise TypeError("a deferral is a JSON object")
    tool = cast("_Fields", fields)
    if not (all(_is_text(tool.get(name)) for name in ("id", "tool", "tool_use_id")) and _is_time(tool.get("since"))):
        raise TypeError("a deferral has an id, a tool, a tool use and a time")
    until = tool.get("expires_at")
    if not ((until is None or _is_time(until)) and tool.get("on_expiry", "tell") in get_args(OnExpiry)):
        raise TypeError("when a deferral expires is of the wrong type")
    tool = {**tool, "deliver_to": _destinations(tool)}
    if "run" not in tool:
        return tool
    run = _checked(tool["run"])
    if "input" not in run:
        raise TypeError("a background run has an input")
    return {**tool, "run": _build(BackgroundRun, run)}


def _tuples(fields: _Fields, name: str, made: Callable[..., object]) -> _Fields:
    return {**fields, name: tuple(made(*one) for one in cast("list[list[object]]", fields.get(name, ())))}


def _read_state(fields: _Fields) -> _Fields:
    return {**fields, "delete": tuple(cast("list[str]", fields.get("delete", ())))}


def _read_node(fields: _Fields) -> _Fields:
    return {**fields, "frontier": tuple(cast("list[str]", fields.get("frontier", ())))}


_CLASSES: Mapping[int, type[Record]] = {
    RecordKind.MESSAGE: MessageAdded,
    RecordKind.TOOL_STARTED: ToolStarted,
    RecordKind.TOOL_FINISHED: ToolFinished,
    RecordKind.VIEW: ViewChanged,
    RecordKind.STATE: StateChanged,
    RecordKind.REDACTION: Redacted,
    RecordKind.INTERRUPT: Interrupted,
    RecordKind.RESUME: Resumed,
    RecordKind.NODE: NodeChanged,
    RecordKind.SNAPSHOT: SnapshotTaken,
    RecordKind.BRANCH: Branched,
    RecordKind.CURSOR: CursorMoved,
    RecordKind.OWNER: OwnerChanged,
    RecordKind.TIMERS: TimersChanged,
    RecordKind.DEFERRALS: DeferralsChanged,
    RecordKind.DEFERRED_RESULT: DeferredResult,
    RecordKind.ANSWERS: AnswersStated,
    RecordKind.STEP_STARTED: StepStarted,
    RecordKind.STEP_FINISHED: StepFinished,
    RecordKind.DELIVERIES: DeliveriesChanged,
    RecordKind.SPENDING: SubagentSpending,
}
_MESSAGE = int(RecordKind.MESSAGE)
_MESSAGE_SHAPES = frozenset(
    ("at", "message", "turn", "index", *more)
    for count in range(4)
    for more in combinations(("idempotency_token", "repaired", "view"), count)
)
"""The field sequences that a message body can have, as written."""
_USUAL_FIELDS = 4
_DEFERRAL_IDS = ("ended", "settled", "told")
_LIGHT_VIEW = ("first_shown", "manager", "manager_state")
_KINDS: Mapping[type, int] = {made: int(kind) for kind, made in _CLASSES.items()}
_SPELL: Mapping[int, Callable[[object], _Fields]] = {
    RecordKind.INTERRUPT: _spell_interrupts,
    RecordKind.TIMERS: _spell_timers,
    RecordKind.DEFERRALS: _spell_deferrals,
    RecordKind.DELIVERIES: lambda record: {
        name: [*map(_spelled, cast("tuple[object, ...]", value))] if name == "deliveries" else value
        for name, value in _spelled(record).items()
    },
    RecordKind.ANSWERS: _spell_answers,
}
_READ: Mapping[int, Callable[[_Fields], _Fields]] = {
    RecordKind.MESSAGE: _read_message,
    RecordKind.REDACTION: _read_redaction,
    RecordKind.TOOL_FINISHED: _read_finished,
    RecordKind.VIEW: _read_view,
    RecordKind.BRANCH: _read_branch,
    RecordKind.INTERRUPT: _read_interrupts,
    RecordKind.RESUME: _read_joined,
    RecordKind.STATE: _read_state,
    RecordKind.NODE: _read_node,
    RecordKind.TIMERS: _read_timers,
    RecordKind.DEFERRALS: _read_deferrals,
    RecordKind.DELIVERIES: lambda fields: {
        name: tuple(read_delivery(one) if name == "deliveries" else one for one in cast("list[object]", value))
        if isinstance(value, list)
        else value
        for name, value in fields.items()
    },
    RecordKind.DEFERRED_RESULT: lambda fields: {**_read_finished(fields), "deliver_to": _destinations(fields)},
    RecordKind.ANSWERS: lambda fields: _tuples(fields, "answers", FinishedTurn),
    RecordKind.SPENDING: lambda fields: _tuples(fields, "calls", SpentCall),
}


def defaults_of(made: type[Struct]) -> Mapping[str, object]:
    """The default of each field, in order; for one that has none, what no value is equal to."""
    named = made.__struct_fields__
    given = (NODEFAULT,) * (len(named) - len(made.__struct_defaults__)) + made.__struct_defaults__
    missing = {name: NODEFAULT for name, default in zip(named, given, strict=True) if default is NODEFAULT}
    bare = made(**missing)
    return {name: cast("object", getattr(bare, name)) for name in named}


_DEFAULTS: Mapping[type, tuple[tuple[str, object], ...]] = {
    made: tuple(defaults_of(made).items()) for made in (*_CLASSES.values(), View, EventDelivery, RunChanged)
}


def _is_time(value: object) -> bool:
    """Epoch seconds, before the year 10000."""
    # By exact type, since True is an int.
    return type(value) in (float, int) and abs(cast("float", value)) < _YEAR_10000


def _is_number(value: object) -> bool:
    # What fits into a column of SQLite.
    return type(value) is int and 0 <= value < 2**63


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_object(value: object) -> bool:
    return type(value) is dict


def _are(look: Callable[[object], bool]) -> Callable[[object], bool]:
    return lambda value: type(value) is list and all(map(look, cast("list[object]", value)))


def _list_of(*checks: Callable[[object], bool]) -> Callable[[object], bool]:
    def look(value: object) -> bool:
        items = cast("list[object]", value) if type(value) is list else []
        return len(items) == len(checks) and all(check(item) for check, item in zip(checks, items, strict=True))

    return look


_LOOKS: Mapping[str, Callable[[object], bool]] = {
    "at": _is_time,
    **dict.fromkeys(("turn", "turns", "index", "message_count", "attempt", "run", "generation"), _is_number),
    **dict.fromkeys(("first_shown", "target", "position", "last", "source_position"), _is_number),
    **dict.fromkeys(("idempotency_token", "repaired", "tool_use_id", "name", "idempotency_key", "manager"), _is_text),
    **dict.fromkeys(("id", "reason", "node", "label", "digest", "source", "source_link", "owner"), _is_text),
    **dict.fromkeys(("step", "failure", "error", "tool", "parent", "parent_turn", "who", "model"), _is_text),
    "calls": _are(_list_of(_is_text, _is_text, _is_number, _is_number, _is_number)),
    "lane": lambda value: value in get_args(Lane),
    **dict.fromkeys(("message", "view", "summary", "manager_state", "set", "full", "responses", "data"), _is_object),
    **dict.fromkeys(("metadata", "state", "kept"), _is_object),
    **dict.fromkeys(("pinned", "replaced"), _are(_list_of(_is_number, _is_object))),
    **dict.fromkeys(
        ("delete", "parked", "frontier", "settled", "told", "joined", "ended", "to", "deliver_to"), _are(_is_text)
    ),
    "hidden": _are(_list_of(_is_number, _is_number)),
    "resumed": _are(_list_of(_is_number, _are(_is_text))),
    "answers": _are(_list_of(_is_text, _is_number, _is_number)),
    "steps": _are(_list_of(_is_number, _is_object)),
    "asks": lambda value: value in get_args(RunAsks),
    "input": lambda value: True,
    "copied": _are(_is_number),
    **dict.fromkeys(("interrupts", "timers", "deferrals", "runs", "deliveries"), lambda value: type(value) is list),
    "positions": lambda value: type(value) is dict and all(map(_is_number, cast("_Fields", value).values())),
    "status": lambda value: value in get_args(NodeStatus),
    **dict.fromkeys(("patch", "starts", "expired", "ran", "idempotent", "whole"), lambda value: type(value) is bool),
    **dict.fromkeys(("result", "input"), lambda value: True),
}
"""The check for each field, by name: a name means the same in every record."""


# JSON for record bodies: compact, exact, and able to hold raw bytes that user data cannot be mistaken for.

# Bytes become `{"$bytes": "<base64>"}`. A user's dictionary key that reads like that marker (any number of dollar
# signs, then `bytes`) gets one more dollar sign when written and loses it when read. Data without such keys and without
# bytes, which is nearly all of it, is plain JSON and costs nothing extra.

_MARKER = "$bytes"
_AT_ONCE_BYTES = 1024 * 1024
_MARK = b'$bytes"'
"""A body without these bytes needs no unescaping. (A body with them may not need it either: a text can end so.)"""
_BYTES = re.compile(rb'\{"\$bytes":"([A-Za-z0-9+/=]*)"\}')


def dump(value: object) -> bytes:
    """UTF-8 JSON without spaces. Dictionary keys must be strings.

    Errors: `Invalid` for NaN, infinities, values that are neither JSON nor bytes, and too deep nesting.
    """
    try:
        # Written first and looked at then: nearly no value has the marker, and a walk through every value would cost as
        # much again.
        text = _ENCODE(value)
        if _MARKER in text:
            text = _ENCODE(_escaped(value))
        try:
            return text.encode()
        except UnicodeEncodeError:
            # Half of a surrogate pair, in the state of a program, which comes back exactly as it was.
            return _ENCODE_ASCII(_escaped(value)).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise Invalid("a record holds JSON values and bytes only", cause=str(error)) from error


# Reads what the standard library reads, to the last digit, in 0.6 of the time. What it refuses is left to that.
_PARSER = JSONDecoder()


def load(body: bytes) -> Json:
    """The value that was dumped; tuples come back as lists.

    Errors: ValueError when the bytes are not JSON, hold a constant like NaN, or continue after the value.
    """
    text = body.decode()
    try:
        value, end = _READ_JSON(text)
        found = _unescaped(value) if _MARK in body else value
    except RecursionError as error:
        raise ValueError("nested too deep") from error
    if end != len(text):
        raise ValueError("bytes after the JSON value")
    return cast("Json", found)


def bytes_held(body: bytes) -> Iterator[bytes]:
    """The bytes that a dumped value holds. A text cannot pass for some: its quotation marks are escaped."""
    return (from_base64(found.decode()) for found in _BYTES.findall(body)) if _MARK in body else iter(())


def load_all(bodies: Sequence[bytes]) -> list[Json] | None:
    """Load many bodies in one parse, a third faster than one by one; None when they must be loaded one by one.

    Only for bodies that `dump` made, such as those of verified rows. Parsing JSON holds the interpreter lock, so large
    inputs are parsed a megabyte at a time.
    """
    if sum(map(len, bodies)) <= _AT_ONCE_BYTES:
        return _load_at_once(bodies)
    values: list[Json] = []
    first = size = 0
    for end, body in enumerate(bodies, 1):
        size += len(body)
        if size >= _AT_ONCE_BYTES or end == len(bodies):
            some = _load_at_once(bodies[first:end])
            if some is None:
                return None
            values += some
            first, size = end, 0
    return values


def _load_at_once(bodies: Sequence[bytes]) -> list[Json] | None:
    joined = b"[%b]" % b",".join(bodies)
    # Marked bytes and escaped keys are undone body by body (`load`).
    if _MARK in joined:
        return None
    try:
        values: object = _PARSER.decode(joined)
    except (MsgspecError, ValueError, RecursionError):  # of half a surrogate pair, too: `decode` repairs it
        return None
    found = cast("list[Json]", values) if isinstance(values, list) else []
    # A body such as `1,2` would move every value behind it to the wrong row.
    return found if len(found) == len(bodies) else None


def _bytes_as_dict(value: object) -> dict[str, str]:
    if isinstance(value, bytes | bytearray):
        return {_MARKER: to_base64(value)}
    raise TypeError(f"{type(value).__name__} is not JSON")


def _encoder(*, ascii_only: bool) -> Callable[[object], str]:
    return json.JSONEncoder(
        ensure_ascii=ascii_only,
        # A circle ends in a RecursionError, which `dump` reports; keeping a record of every container costs a fifth.
        check_circular=False,
        allow_nan=False,
        separators=(",", ":"),
        default=_bytes_as_dict,
    ).encode


_ENCODE = _encoder(ascii_only=False)
_ENCODE_ASCII = _encoder(ascii_only=True)
_READ_JSON = json.JSONDecoder(parse_constant=refuse_constant).raw_decode


def _is_marker(key: str) -> bool:
    return key.endswith(_MARKER) and not key[: -len(_MARKER)].strip("$")


def _escaped(value: object) -> object:
    if isinstance(value, dict):
        items = cast("dict[object, object]", value).items()
        return {f"${key}" if isinstance(key, str) and _is_marker(key) else key: _escaped(item) for key, item in items}
    if isinstance(value, list | tuple):
        return [_escaped(item) for item in cast("list[object]", value)]
    return value


def _unescaped(value: object) -> object:
    if isinstance(value, list):
        return [_unescaped(item) for item in cast("list[object]", value)]
    if not isinstance(value, dict):
        return value
    items = cast("dict[str, object]", value)
    if _MARKER in items:
        return _bytes_of(items)
    return {(key[1:] if _is_marker(key) else key): _unescaped(item) for key, item in items.items()}


def _bytes_of(items: dict[str, object]) -> bytes:
    encoded = items[_MARKER]
    # `dump` writes nothing of the kind, so the body is malformed, whatever its checksum says.
    if len(items) != 1 or not isinstance(encoded, str):
        raise ValueError(f"malformed {_MARKER}")
    try:
        return from_base64(encoded)
    except ValueError as error:
        raise ValueError(f"malformed {_MARKER}") from error
