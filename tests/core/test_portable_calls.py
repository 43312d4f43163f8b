"""The one form of a call on its way to another process: what is read is what was written."""

from __future__ import annotations

import json
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from repertory.core.callers import CallerRules
from repertory.core.turns.portable_call import PortableCall, call_fields, read_portable
from repertory.errors import Invalid

TEXTS = st.text(max_size=8)
LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS
OBJECTS = st.fixed_dictionaries({"__bytes_encoded__": st.sampled_from([True, 1, 1.0]), "data": TEXTS | st.just("YQ==")})
VALUES = st.recursive(
    LEAVES | st.binary(max_size=8) | OBJECTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=12,
)
SCHEMAS = st.fixed_dictionaries(
    {"name": TEXTS, "description": TEXTS, "inputSchema": st.just({"json": {"type": "object"}})}
)
CALLS = st.builds(
    PortableCall,
    prompt=st.none() | TEXTS | st.lists(VALUES, max_size=3),
    question=st.none() | VALUES,
    busy=st.none() | st.sampled_from(["queue", "reject", "interrupt", "steer"]),
    limits=st.dictionaries(TEXTS, st.integers(), max_size=2),
    caller=st.none() | st.builds(CallerRules, history=st.booleans(), sources=st.just(("s3://a/",))),
    drop_interrupts=st.booleans(),
    resume=st.none() | st.booleans(),
    output=st.none() | SCHEMAS,
    output_prompt=st.none() | TEXTS,
    invocation_state=st.dictionaries(TEXTS, VALUES, max_size=3),
    trace=st.dictionaries(TEXTS, TEXTS, max_size=2),
    inside=st.lists(TEXTS, max_size=3).map(tuple),
)
NAMES = (*PortableCall.__struct_fields__, "unknown")


@given(CALLS)
def test_a_call_reads_as_it_was_written_after_its_way_as_text(call: PortableCall) -> None:
    assert read_portable(json.loads(json.dumps(call_fields(call)))) == call


def test_a_plain_call_has_no_field_but_its_prompt() -> None:
    assert call_fields(PortableCall(prompt="Hello!")) == {"prompt": "Hello!"}


@given(st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=5))
def test_whatever_somebody_writes_is_a_call_or_a_typed_error(fields: dict[str, Any]) -> None:
    try:
        call = read_portable(fields)
    except Invalid:
        return
    assert read_portable(call_fields(call)) == call


def _deep(levels: int) -> Any:
    value: Any = []
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize("name", NAMES[:-1])
def test_a_value_that_is_nested_too_deeply_is_refused(name: str) -> None:
    with pytest.raises(Invalid):
        read_portable({name: _deep(100_000)})


@pytest.mark.parametrize("value", [float("nan"), float("inf"), {1, 2}, object(), _deep(100_000)])
@pytest.mark.parametrize("name", ["prompt", "question", "invocation_state"])
def test_what_json_cannot_hold_leaves_no_process(name: str, value: object) -> None:
    call = PortableCall(**cast("Any", {name: {"key": value}}))
    with pytest.raises(Invalid, match=f"{name} goes to other processes"):
        call_fields(call)
