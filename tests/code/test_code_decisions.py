"""The interface that code is given, values that cross, and the steps of tools within tools."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from repertory import CodeMode
from repertory.code.decisions import (
    CodeOutput,
    bound_arguments,
    code_name,
    functions_of,
    interface_text,
    notes_for,
    plain_code,
    type_text,
    value_in,
)
from repertory.code.interpreter import json_value
from repertory.core.interrupts import Interrupt, agent_prefix, held_up, hook_scope, question_id, tool_scope
from repertory.core.journal.records import StepFinished, StepStarted
from repertory.core.journal.steps import RecordedStep, StepBook, questions_about, step_words, steps_within
from repertory.core.messages import ToolResult, ToolSpec, ToolUse
from repertory.core.tools import tool_result
from repertory.errors import Invalid


def spec(name: str, properties: Any = None, required: Any = (), description: str = "Does it.") -> ToolSpec:
    schema = {"type": "object", "properties": properties or {}, "required": list(required)}
    return {"name": name, "description": description, "inputSchema": {"json": schema}}


@pytest.mark.parametrize(
    ("tool", "name"),
    [
        ("search", "search"),
        ("fetch-url", "fetch_url"),
        ("ns.fetch", "ns_fetch"),
        ("7up", "_7up"),
        ("print", "print_"),
        ("open", "open_"),
        ("class", "class_"),
        ("süß", "süß"),
        ("-", "_"),
    ],
)
def test_a_tool_has_a_name_in_code_that_hides_nothing(tool: str, name: str) -> None:
    assert code_name(tool) == name
    assert name.isidentifier()


def test_of_two_tools_with_one_name_in_code_the_first_one_is_there() -> None:
    functions = functions_of([spec("a-b"), spec("a_b"), spec("c")], {})
    assert {name: each.tool for name, each in functions.items()} == {"a_b": "a-b", "c": "c"}


def test_a_signature_has_what_must_be_given_first_and_says_types_in_words_of_python() -> None:
    properties = {
        "note": {"type": "string", "default": "x", "description": "Some\n  words."},
        "to": {"type": "array", "items": {"type": "string"}},
        "how": {"enum": ["fast", "slow"]},
        "at": {"anyOf": [{"type": "number"}, {"type": "null"}], "description": "Parameter at"},
        "place": {"$ref": "#/$defs/Place"},
        "loop": {"$ref": "#/$defs/Loop"},
    }
    place = {"type": "object", "properties": {"city": {"type": "string"}, "zip": {"type": "integer"}}}
    loop: Any = {"type": "object", "properties": {"more": {"$ref": "#/$defs/Loop"}}}
    made: Any = spec("send", properties, ["to", "place", "loop"])
    made["inputSchema"]["json"]["$defs"] = {"Place": place, "Loop": loop}
    text = interface_text(functions_of([made], {"send": "bool"}))
    assert text == (
        "async def send(to: list[str], place: {'city': str, 'zip': int}, loop: {'more': {'more': Any}},"
        " note: str = 'x', how: Literal['fast', 'slow'] = None, at: float | None = None) -> bool\n"
        "    # Does it.\n"
        "    # note: Some words."
    )


SCHEMA_WORDS = ["type", "anyOf", "enum", "items", "properties", "$ref", "const", "oneOf"]
SCHEMAS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.sampled_from(["object", "array", "#/$defs/x"]),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(SCHEMA_WORDS), inner),
    max_leaves=20,
)


@given(SCHEMAS)
def test_any_schema_has_a_type(schema: Any) -> None:
    assert type_text(schema if isinstance(schema, dict) else {"type": schema}, {"x": {"$ref": "#/$defs/x"}})


def test_a_schema_that_doubles_at_each_level_costs_little() -> None:
    defs: Any = {f"d{at}": {"anyOf": [{"$ref": f"#/$defs/d{at + 1}"}] * 1000} for at in range(100)}
    assert len(type_text({"$ref": "#/$defs/d0"}, defs)) < 1000


def test_values_without_a_name_are_bound_in_the_order_of_the_signature() -> None:
    function = functions_of([spec("f", {"b": {}, "a": {}}, ["a"])], {})["f"]
    assert bound_arguments(function, [1, 2], {}) == {"a": 1, "b": 2}
    assert bound_arguments(function, [1], {"b": 2, "more": 3}) == {"a": 1, "b": 2, "more": 3}
    with pytest.raises(Invalid, match="takes 2 positional arguments but 3 were given"):
        bound_arguments(function, [1, 2, 3], {})
    with pytest.raises(Invalid, match="multiple values for argument 'a'"):
        bound_arguments(function, [1], {"a": 2})


@pytest.mark.parametrize(
    ("returned", "returns", "value"),
    [
        (5, "int", 5),
        (5, "", "5"),
        (True, "bool", True),
        (None, "None", None),
        (1.5, "float", 1.5),
        ("007", "str", "007"),
        ("[1]", "str", "[1]"),
        ("[1]", "", [1]),
        ("[1", "", "[1"),
        ("no number", "int", "no number"),
        ([1, {"a": 2}], "list", [1, {"a": 2}]),
        ([1], "", [1]),
        ({"a": 1}, "", {"a": 1}),
        ({"a": 1}, "dict", {"a": 1}),
    ],
)
def test_a_result_arrives_as_the_value_that_its_tool_has_returned(returned: Any, returns: str, value: Any) -> None:
    found = value_in(tool_result("t", returned), returns)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("schema", "given", "bound"),
    [
        ({"a": {"type": "string"}, "b": {}}, {"a": "x"}, {"a": "x"}),
        ({"a": {"type": "string"}, "b": {}}, {"a": "x", "c": 1}, {"a": {"a": "x", "c": 1}}),
        ({"a": {"type": "object"}}, {"a": 1}, {"a": {"a": 1}}),
        ({"a": {}}, {"a": 1}, {"a": {"a": 1}}),
        ({"a": {"anyOf": [{"type": "string"}, {"type": "object"}]}}, {"a": 1}, {"a": {"a": 1}}),
        ({"a": {"type": "string"}}, {}, {"a": {}}),
    ],
    ids=["its fields", "another field", "an object", "anything", "perhaps an object", "an empty one"],
)
def test_one_object_is_the_whole_input_where_it_can_be_nothing_else(schema: Any, given: Any, bound: Any) -> None:
    assert bound_arguments(functions_of([spec("f", schema)], {})["f"], [given], {}) == bound


@pytest.mark.parametrize(
    "text",
    ["<coroutine external_future(0)>", "<coroutine object f>", "<list_iterator object>", "dict_items([(1, 2)])"],
)
def test_the_stand_in_of_a_value_is_not_given_to_a_tool(text: str) -> None:
    with pytest.raises(TypeError):
        json_value({"a": [text]})
    assert json_value(f"It said {text}.") == f"It said {text}."


@pytest.mark.parametrize(
    ("code", "plain"),
    [
        ("```python\nx = 1\n```", "x = 1"),
        ("\n```\nx = 1\ny = 2\n```\n", "x = 1\ny = 2"),
        ("x = 1", "x = 1"),
        ("x = '```'", "x = '```'"),
        ("```\na\n```\nwords\n```\nb\n```", "```\na\n```\nwords\n```\nb\n```"),
    ],
    ids=["with its language", "without", "plain", "in a text", "two"],
)
def test_a_fence_around_code_is_left_out(code: str, plain: str) -> None:
    assert plain_code(code) == plain


SOME = st.lists(st.text(max_size=9), max_size=40)


@given(st.text(), st.text(), SOME, SOME, SOME)
def test_notes_are_few_and_short_whatever_code_says(
    failure: str, output: str, unused: list[str], ended: list[str], names: list[str]
) -> None:
    notes = notes_for(failure, output, unused, ended, names)
    assert len(notes) <= 3
    assert all(len(each) < 1_000 for each in notes)


def test_what_code_cannot_see_is_named() -> None:
    picture: Any = {"image": {"format": "png", "source": {"bytes": b"x"}}}
    result: ToolResult = {"toolUseId": "t", "status": "success", "content": [{"text": "a"}, picture]}
    assert value_in(result, "") == "a\n[image: code cannot see it; call the tool directly]"


@given(st.lists(st.text()), st.integers(1, 50))
def test_output_is_bounded_in_bytes_and_what_is_over_is_counted(pieces: list[str], bytes_max: int) -> None:
    output = CodeOutput(bytes_max)
    for piece in pieces:
        output.add(piece)
    whole = "".join(piece.encode(errors="replace").decode() for piece in pieces)
    text = output.text()
    if len(whole.encode()) <= bytes_max:
        assert text == whole.rstrip("\n") or not whole.rstrip("\n")
    else:
        assert "more bytes were printed" in text
        assert len(text.partition("\n[")[0].encode()) <= bytes_max or "\n[" in whole


@pytest.mark.parametrize(
    "value",
    [float("nan"), float("inf"), 2**63, {1: 2}, b"x", object()],
    ids=["nan", "infinity", "too large", "a key", "bytes", "an object"],
)
def test_what_is_no_json_is_not_given_to_a_tool(value: Any) -> None:
    with pytest.raises(TypeError):
        json_value(value)


@pytest.mark.parametrize(
    "given_bound",
    [
        {"cpu_s": 0},
        {"timeout_s": -1},
        {"calls_max": 501},
        {"output_bytes": True},
        {"memory_bytes": "1"},
        {"direct": "no"},
    ],
)
def test_bounds_that_are_none_are_refused(given_bound: Any) -> None:
    with pytest.raises(Invalid):
        CodeMode(**given_bound)


def test_names_that_are_none_are_refused() -> None:
    wrong: Any = [1]
    for made in (lambda: CodeMode(wrong), lambda: CodeMode(exclude=wrong), lambda: CodeMode(provider=wrong)):
        with pytest.raises(Invalid):
            made()


# Steps of a tool within another one.


def step(key: str, *, done: bool = True, **more: Any) -> tuple[str, RecordedStep]:
    started = StepStarted(at=1.0, tool_use_id="t", step=key, **more)
    return key, RecordedStep(started, StepFinished(at=2.0, tool_use_id="t", step=key) if done else None)


def test_the_steps_of_a_called_tool_are_not_those_of_the_tool_that_calls() -> None:
    recorded = dict(
        [
            step("book~0123456789ab", lane="side", tool="book", input={"city": "Rome"}),
            step("book~0123456789ab>charge"),
            step("book~0123456789ab>~undo~refund", lane="undo", failure="no seat"),
            step("clock"),
        ]
    )
    assert list(steps_within(recorded)) == ["book~0123456789ab", "clock"]
    assert list(steps_within(recorded, "book~0123456789ab")) == ["charge", "~undo~refund"]
    assert StepBook(steps_within(recorded)).failure is None
    assert StepBook(steps_within(recorded, "book~0123456789ab")).failure == "no seat"
    assert [step_words(key) for key in recorded] == ["book", "book > charge", "book > refund", "clock"]


def test_a_question_about_a_call_names_the_tool_that_is_called() -> None:
    use: ToolUse = {"toolUseId": "t", "name": "run_code", "input": {"code": "..."}}
    recorded = dict(
        [
            step("pay~1", done=False, tool="pay", input={"amount": 5}),
            step("book~2", done=False, idempotent=True, tool="book", input={"city": "Rome"}),
            step("book~2>charge", done=False),
            step("own", done=False),
        ]
    )
    reasons: list[Any] = [reason for _, reason in questions_about(recorded, use)]
    assert [(each["tool"], each["step"], each["input"]) for each in reasons] == [
        ("pay", "pay~1", {"amount": 5}),
        ("book", "book~2>charge", {"city": "Rome"}),
        ("run_code", "own", {"code": "..."}),
    ]


def test_a_question_of_a_called_tool_holds_up_the_tool_that_calls() -> None:
    uses: list[ToolUse] = [
        {"toolUseId": "t", "name": "run_code", "input": {}},
        {"toolUseId": "t2", "name": "run_code", "input": {}},
    ]
    for made in (
        question_id(tool_scope("t/pay~1"), "sure"),
        question_id(hook_scope("t/pay~1"), "sure"),
        f"{agent_prefix('t/ask~1')}x",
    ):
        assert held_up(Interrupt(made, "sure"), uses) == ("t",)
