"""Records, their bytes and their rows: what is written is read again, and damage is seen."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any, cast, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from repertory.core.deferral import DeferredTool
from repertory.core.deliveries import DELIVERY_TYPES, EventDelivery
from repertory.core.interrupts import Interrupt
from repertory.core.journal.codec import (
    at_of,
    decode,
    decode_all,
    decode_messages,
    dump,
    encode,
    load,
    load_all,
    with_view,
)
from repertory.core.journal.fold import Fold
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
    OwnerChanged,
    Record,
    Redacted,
    Resumed,
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
from repertory.core.journal.restore import Appender, decoded_messages
from repertory.core.journal.rows import VERSION, RecordKind, Row
from repertory.core.journal.view import visible_messages
from repertory.core.messages import Message, repair_message, repair_result
from repertory.core.steps import Lane
from repertory.core.timers import Timer
from repertory.errors import CorruptJournal, Invalid

text = st.text(max_size=8) | st.sampled_from(["$bytes", "$$bytes", "a$bytes", "ends in $bytes", '"'])
plain = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | text | st.binary()
)
values = st.recursive(plain, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3))
mappings = st.dictionaries(text, values, max_size=3)
ats = st.floats(min_value=0, max_value=1e11)
counts = st.integers(min_value=0, max_value=2**62)
messages = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant"]), "content": st.lists(mappings, max_size=3)},
    optional={"metadata": mappings, "tracking_id": text},
).map(lambda message: repair_message(cast("Message", message)))
by_seq = st.dictionaries(counts, messages, max_size=3)
views = st.builds(
    View,
    first_shown=counts,
    pinned=by_seq,
    replaced=by_seq,
    summary=st.none() | messages,
    hidden=st.lists(st.tuples(counts, counts), max_size=2).map(tuple),
    manager=text,
    manager_state=mappings,
)
asked = st.builds(Interrupt, id=text, name=text, reason=values, expires_at=st.none() | ats)
interrupts = st.lists(asked, max_size=2).map(tuple)
names = st.lists(text, max_size=3).map(tuple)
statuses = st.sampled_from(["started", "completed", "failed", "interrupted"])
results = st.fixed_dictionaries(
    {"toolUseId": text, "status": st.just("success"), "content": st.lists(mappings, max_size=2)}
).map(repair_result)
late_tools = st.builds(
    DeferredTool,
    id=text,
    tool=text,
    tool_use_id=text,
    since=ats,
    expires_at=st.none() | ats,
    on_expiry=st.sampled_from(("tell", "drop")),
    deliver_to=st.lists(text, max_size=2).map(tuple),
)
missed = st.sampled_from(("one", "all", "none"))
timers = st.builds(
    Timer,
    id=text,
    at=ats,
    prompt=text,
    every_s=st.none() | st.floats(min_value=1, max_value=1e9),
    missed=missed,
    deliver_to=st.lists(text, max_size=2).map(tuple),
) | st.builds(Timer, id=text, at=ats, prompt=text, cron=text, tz=text, missed=missed)
deliveries = st.builds(
    EventDelivery,
    id=text,
    to=text,
    event=st.sampled_from(DELIVERY_TYPES),
    at=ats,
    seq=counts,
    about=counts,
    turn=counts,
    facts=mappings,
    since=ats,
    tries=counts,
    next_at=ats,
    error=text,
    dead=st.booleans(),
)
RECORDS: Mapping[RecordKind, st.SearchStrategy[Record]] = {
    RecordKind.MESSAGE: st.builds(
        MessageAdded,
        at=ats,
        message=messages,
        turn=counts,
        index=counts,
        idempotency_token=st.none() | text,
        repaired=st.none() | text,
        joined=names,
        view=st.none() | views,
    ),
    RecordKind.TOOL_STARTED: st.builds(
        ToolStarted, at=ats, tool_use_id=text, name=text, idempotency_key=text, attempt=counts
    ),
    RecordKind.TOOL_FINISHED: st.builds(ToolFinished, at=ats, tool_use_id=text, result=results),
    RecordKind.VIEW: st.builds(ViewChanged, at=ats, view=views, patch=st.booleans(), reason=text),
    RecordKind.STATE: st.builds(StateChanged, at=ats, set=mappings, delete=names, full=st.none() | mappings),
    RecordKind.REDACTION: st.builds(
        Redacted,
        at=ats,
        target=counts,
        message=messages,
        turn=counts,
        index=counts,
        idempotency_token=st.none() | text,
        joined=names,
        view=st.none() | views,
    ),
    RecordKind.INTERRUPT: st.builds(Interrupted, at=ats, interrupts=interrupts, parked=names),
    RecordKind.RESUME: st.builds(Resumed, at=ats, responses=mappings, joined=names),
    RecordKind.NODE: st.builds(
        NodeChanged, at=ats, run=counts, node=text, status=statuses, frontier=names, result=values, data=mappings
    ),
    RecordKind.SNAPSHOT: st.builds(SnapshotTaken, at=ats, label=text, metadata=mappings, digest=text),
    RecordKind.BRANCH: st.builds(
        Branched,
        at=ats,
        position=counts,
        last=counts,
        message_count=counts,
        turns=counts,
        run=counts,
        view=views,
        state=mappings,
        name=text,
        source=st.none() | text,
    ),
    RecordKind.CURSOR: st.builds(
        CursorMoved,
        at=ats,
        positions=st.dictionaries(text, counts, max_size=3),
        kept=st.dictionaries(text, values, max_size=2),
    ),
    RecordKind.OWNER: st.builds(OwnerChanged, at=ats, owner=text, generation=counts),
    RecordKind.TIMERS: st.builds(TimersChanged, at=ats, timers=st.lists(timers, max_size=3).map(tuple)),
    RecordKind.DEFERRALS: st.builds(
        DeferralsChanged,
        at=ats,
        deferrals=st.lists(late_tools, max_size=3).map(tuple),
        settled=st.lists(text, max_size=3).map(tuple),
        told=st.lists(text, max_size=3).map(tuple),
    ),
    RecordKind.DEFERRED_RESULT: st.builds(
        DeferredResult,
        at=ats,
        id=text,
        name=text,
        result=results,
        starts=st.booleans(),
        expired=st.booleans(),
        deliver_to=names,
    ),
    RecordKind.DELIVERIES: st.builds(
        DeliveriesChanged,
        at=ats,
        deliveries=st.lists(deliveries, max_size=3).map(tuple),
        ended=names,
        to=names,
        whole=st.booleans(),
    ),
    RecordKind.ANSWERS: st.builds(
        AnswersStated,
        at=ats,
        answers=st.lists(st.builds(FinishedTurn, token=text, seq=counts, answer_seq=counts), max_size=3).map(tuple),
    ),
    RecordKind.STEP_STARTED: st.builds(
        StepStarted,
        at=ats,
        tool_use_id=text,
        step=text,
        attempt=counts,
        idempotent=st.booleans(),
        lane=st.sampled_from(get_args(Lane)),
        failure=text,
        tool=text,
        input=values,
    ),
    RecordKind.SPENDING: st.builds(
        SubagentSpending,
        at=ats,
        parent=text,
        parent_turn=text,
        who=text,
        model=text,
        calls=st.lists(st.builds(SpentCall, text, text, counts, counts, counts), max_size=3).map(tuple),
    ),
    RecordKind.STEP_FINISHED: st.builds(
        StepFinished, at=ats, tool_use_id=text, step=text, result=values, error=st.none() | text
    ),
}


def test_every_kind_of_record_is_tested_here() -> None:
    assert set(RECORDS) == set(RecordKind)


@pytest.mark.parametrize("kind", list(RecordKind))
@given(data=st.data())
def test_records_are_read_as_they_were_written(kind: RecordKind, data: st.DataObject) -> None:
    record = data.draw(RECORDS[kind])
    written, body = encode(record)
    assert written == kind
    assert decode(kind, VERSION, body) == record
    assert at_of(body) == record.at


def test_half_of_a_surrogate_pair_in_a_record_is_replaced_when_it_is_read_and_when_it_is_appended() -> None:
    use: Any = {"toolUse": {"toolUseId": "u\ud800", "name": "n\ud800", "input": {"k\udfff": ["\ud83d", b"\xff"]}}}
    said = MessageAdded(at=1.0, message={"role": "assistant", "content": [{"text": "\ud83d"}, use]}, turn=1, index=0)
    mended: Any = {"toolUse": {"toolUseId": "u\ufffd", "name": "n\ufffd", "input": {"k\ufffd": ["\ufffd", b"\xff"]}}}
    kind, body = encode(said)
    appender = Appender("agent", Fold(), None, lambda size: b"s" * size)
    old = appender.row(1, kind, body)
    for read in (decode(kind, VERSION, body), *(decode_all([old]) or [decode(kind, VERSION, old.body)])):
        assert cast("MessageAdded", read).message["content"] == [{"text": "\ufffd"}, mended]
    live = Appender("agent", Fold(), None, lambda size: b"s" * size)
    asked: Message = {"role": "user", "content": [{"text": "\ud83d?"}]}
    rows = live.append_all([MessageAdded(at=1.0, message=asked, turn=1, index=0), replace(said, index=1)])
    assert [shown["content"] for shown in visible_messages(live.fold.shown).values()] == [
        [{"text": "\ufffd?"}],
        [{"text": "\ufffd"}, mended],
    ]
    assert b"\\ud" not in b"".join(row.body for row in rows)


@pytest.mark.parametrize(
    "record",
    [
        StateChanged(at=1.0, set={"k\udfff": "\ud83d"}, delete=("\ud800",)),
        StateChanged(at=1.0, full={"k\udfff": ["\ud83d"]}),
        Branched(at=1.0, position=0, last=0, state={"k\udfff": {"\ud800": "\ud83d"}}),
        SnapshotTaken(at=1.0, label="here", metadata={"k\udfff": "\ud83d"}),
    ],
)
def test_half_of_a_surrogate_pair_in_what_is_never_sent_comes_back(record: Record) -> None:
    kind, body = encode(record)
    assert decode(kind, VERSION, body) == record
    appender = Appender("agent", Fold(), None, lambda size: b"s" * size)
    row = appender.append(record)
    assert row.body == body
    assert decode(row.kind, row.version, row.body) == record


def test_a_view_that_a_rewind_states_is_repaired_beside_its_state() -> None:
    summary: Message = {"role": "user", "content": [{"text": "\ud83d"}]}
    kind, body = encode(Branched(at=1.0, position=0, last=0, view=View(summary=summary), state={"k": "\ud83d"}))
    read = cast("Branched", decode(kind, VERSION, body))
    assert (read.view.summary, read.state) == ({"role": "user", "content": [{"text": "\ufffd"}]}, {"k": "\ud83d"})


@given(RECORDS[RecordKind.MESSAGE], views)
def test_a_view_that_comes_later_makes_the_same_body_as_one_that_was_there(message: MessageAdded, view: View) -> None:
    (_, without), (_, whole) = encode(replace(message, view=None)), encode(replace(message, view=view))
    later = with_view(without, view)
    assert load(later) == load(whole)
    assert later == whole


@given(st.lists(st.one_of(*RECORDS.values()), max_size=5))
def test_rows_read_at_once_are_read_as_one_by_one(records: list[Record]) -> None:
    appender = Appender("agent", Fold(), None, lambda size: b"s" * size)
    rows = [appender.row(n, *encode(record)) for n, record in enumerate(records, 1)]
    together = decode_all(rows)
    assert together is None or together == records


@given(st.lists(RECORDS[RecordKind.MESSAGE], min_size=1, max_size=4), messages)
def test_what_was_said_is_read_the_same_with_and_without_records(records: list[MessageAdded], other: Message) -> None:
    said = {n: record.message for n, record in enumerate(records, 1)}
    redacted = Redacted(at=1.0, target=1, message=other, turn=1, index=0)
    appender = Appender("agent", Fold(), None, lambda size: b"s" * size)
    rows = [appender.row(n, *encode(record)) for n, record in enumerate([*records, redacted], 1)]
    assert decode_messages(rows[:-1]) in (None, list(said.values()))
    assert decoded_messages(rows[:-1]) == (said, {})
    assert decoded_messages(rows) == ({**said, 1: other}, {1: other})


@pytest.mark.parametrize("body", [b'{"message":{}}', b'{"at":1,"message":{},"turn":1,"index":0,"more":1}', b"[]", b"{"])
def test_a_malformed_message_is_refused_however_it_is_read(body: bytes) -> None:
    row = Row("agent", 1, RecordKind.MESSAGE, VERSION, 1, b"l" * 16, b"s" * 16, body)
    with pytest.raises(CorruptJournal, match="malformed record kind='MessageAdded'"):
        decoded_messages([row])


@given(values)
def test_plain_json_keeps_bytes_apart_from_dictionaries_that_look_like_them(value: object) -> None:
    """The SDK that users come from takes a user's dictionary for its own marker."""
    body = dump(value)
    json.loads(body)
    assert load(body) == value


@pytest.mark.parametrize(
    "value",
    [{"$bytes": "aGk="}, {"$bytes": b"hi"}, {"$$bytes": {"$bytes": [b""]}}, [b"\x00\xff"], {"$bytes": 1, "other": 2}],
)
def test_look_alikes_of_the_marker_come_back_unchanged(value: object) -> None:
    assert load(dump(value)) == value


def test_bodies_are_compact_and_readable() -> None:
    message = {"role": "user", "content": [{"text": "Grüße"}, {"image": {"format": "png", "source": {"bytes": b"hi"}}}]}
    record = MessageAdded(at=1.5, message=message, turn=1, index=0)  # type: ignore[arg-type]
    assert encode(record)[1].decode() == (
        '{"at":1.5,"message":{"role":"user","content":[{"text":"Grüße"},{"image":{"format":"png",'
        '"source":{"bytes":{"$bytes":"aGk="}}}}]},"turn":1,"index":0}'
    )


@pytest.mark.parametrize("value", [float("nan"), float("inf"), {1, 2}, object(), {"deep": 1j}])
def test_what_json_cannot_say_is_refused(value: object) -> None:
    with pytest.raises(Invalid, match="JSON values and bytes"):
        encode(StateChanged(at=1.0, full={"key": value}))  # type: ignore[dict-item]


def test_a_value_that_holds_itself_is_refused() -> None:
    loop: list[object] = []
    loop.append(loop)
    with pytest.raises(Invalid):
        dump(loop)


@pytest.mark.parametrize("version", [0, 2, 255])
def test_unknown_versions_are_refused_by_name(version: int) -> None:
    with pytest.raises(CorruptJournal, match=f"unknown version of the journal format version={version}"):
        decode(RecordKind.OWNER, version, b"{}")


@pytest.mark.parametrize("kind", [0, 22, 255])
def test_unknown_kinds_are_refused_by_name(kind: int) -> None:
    with pytest.raises(CorruptJournal, match=f"unknown kind of record kind={kind}"):
        decode(kind, VERSION, b"{}")


GOOD = b'{"at":1,"owner":"me","generation":1}'


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"null",
        b"{",
        b"\xff",
        b"{}",
        GOOD + b" ",
        GOOD + GOOD,
        GOOD.replace(b"owner", b"other"),
        GOOD.replace(b'"me"', b"1"),
        GOOD.replace(b'"me"', b"null"),
        GOOD.replace(b"1,", b"NaN,"),
        GOOD[:-1] + b',"more":1}',
        b'{"at":' + b"[" * 100_000 + b"}",
    ],
)
def test_malformed_bodies_are_refused(body: bytes) -> None:
    with pytest.raises(CorruptJournal, match="malformed record kind='OwnerChanged'"):
        decode(RecordKind.OWNER, VERSION, body)


@pytest.mark.parametrize("encoded", ['{"$bytes":1}', '{"$bytes":"?"}', '{"$bytes":"aGk=","more":1}'])
def test_a_malformed_marker_is_refused(encoded: str) -> None:
    with pytest.raises(ValueError, match=r"malformed \$bytes"):
        load(encoded.encode())


def test_bodies_that_only_fit_together_are_not_read_at_once() -> None:
    assert load_all([b'{"a":[1', b"2]}"]) is None
    assert load_all([b'"', b'"']) is None
    assert load_all([b"1", b"2"]) == [1, 2]


def test_the_marker_is_ordinary_base64() -> None:
    assert json.loads(dump(b"\x00\xff")) == {"$bytes": base64.b64encode(b"\x00\xff").decode()}


@pytest.mark.parametrize("lengths", [[600_000] * 5, [3_000_000], [1] * 10 + [1_048_576, 5, 2_000_000], []])
def test_many_bytes_are_read_in_parts_and_are_the_same(lengths: list[int]) -> None:
    values = ["x" * length for length in lengths]
    assert load_all([dump(value) for value in values]) == values
    assert load_all([*(dump(value) for value in values), b'{"a":[1', b"2]}"]) is None


_ODD = ["1e400", "-1e400", "1E5", "-0", "-0.0", '"\\ud800"', '{"a":1,"a":2}', "1e-400", "5e-324"]
_PLAIN = st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(10**40), 10**40) | st.text(st.characters())


@given(st.lists(_PLAIN.map(dump) | st.sampled_from([body.encode() for body in _ODD])))
def test_many_bodies_are_loaded_as_each_alone_to_the_last_digit(bodies: list[bytes]) -> None:
    together = load_all(bodies)
    assert together is None or repr(together) == repr([load(body) for body in bodies])
