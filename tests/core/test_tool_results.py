"""What a tool's answer becomes for the model."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import json
import math
import pathlib
import signal
import types
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from repertory.core.tools import ERROR_TEXT_MAX, exception_text, timeout_text, tool_result
from repertory.errors import Failed, TooLarge

PNG = {"image": {"format": "png", "source": {"bytes": b"\x89PNG"}}}


def content(value: object) -> list[dict[str, Any]]:
    result = tool_result("use-1", value)
    assert (result["toolUseId"], result["status"]) == ("use-1", "success")
    return result["content"]


@pytest.mark.parametrize(
    ("value", "text"),
    [("hi", "hi"), (3, "3"), (1.5, "1.5"), (True, "True"), (None, "None"), ("", "")],
)
def test_plain_values_become_text(value: object, text: str):
    """Strands behaviour: what is no result becomes its text."""
    assert content(value) == [{"text": text}]


def test_a_dictionary_becomes_json_and_a_list_json_text():
    """Bedrock refuses a `json` block that is no object."""
    assert content({"a": (1, None)}) == [{"json": {"a": [1, None]}}]
    assert content([1, "ä"]) == [{"text": '[1, "ä"]'}]


@dataclasses.dataclass
class Answer:
    number: int
    made: object


class Model:
    """What a pydantic model can do."""

    def model_dump(self, *, mode: str) -> dict[str, object]:
        return {"mode": mode, "when": NOON}


class Numbers:
    """What an array can do."""

    def tolist(self) -> list[float]:
        return [1.5, 2.0]


class Colour(enum.Enum):
    RED = "red"


NOON = datetime.datetime(2026, 1, 2, 12, tzinfo=datetime.UTC)


@pytest.mark.parametrize(
    ("value", "block"),
    [
        (NOON, {"text": "2026-01-02T12:00:00+00:00"}),
        (datetime.timedelta(minutes=1), {"text": "60.0"}),
        (decimal.Decimal("1.10"), {"text": "1.10"}),
        (UUID(int=5), {"text": "00000000-0000-0000-0000-000000000005"}),
        (pathlib.PurePosixPath("/a/b"), {"text": "/a/b"}),
        (Colour.RED, {"text": "red"}),
        (signal.SIGTERM, {"text": "15"}),
        ({3}, {"text": "[3]"}),
        (range(3), {"text": "[0, 1, 2]"}),
        (types.MappingProxyType({"a": NOON.date()}), {"json": {"a": "2026-01-02"}}),
        (Answer(1, [Answer(2, Colour.RED)]), {"json": {"number": 1, "made": [{"number": 2, "made": "red"}]}}),
        (Model(), {"json": {"mode": "json", "when": "2026-01-02T12:00:00+00:00"}}),
        (Numbers(), {"text": "[1.5, 2.0]"}),
        ([Model(), None], {"text": '[{"mode": "json", "when": "2026-01-02T12:00:00+00:00"}, null]'}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_has_one_spelling_in_json_is_spelled_so(value: object, block: dict[str, object]):
    assert content(value) == [block]


def test_an_exception_that_is_returned_is_a_failure():
    assert tool_result("use-1", ValueError("no")) == {
        "toolUseId": "use-1",
        "status": "error",
        "content": [{"text": "Error: ValueError - no"}],
    }


def test_a_result_is_taken_as_it_is_but_for_its_id():
    made = {"status": "error", "content": [{"text": "no"}, {"json": {"a": 1}}, PNG], "toolUseId": "forged"}
    assert tool_result("use-1", made) == {
        "toolUseId": "use-1",
        "status": "error",
        "content": [{"text": "no"}, {"json": {"a": 1}}, PNG],
    }


@pytest.mark.parametrize("value", [{"status": "ok", "content": "page"}, {"status": "error"}, {"content": []}])
def test_data_that_only_looks_like_a_result_is_data(value: dict[str, Any]):
    assert content(value) == [{"json": value}]


@pytest.mark.parametrize("kind", ["image", "document"])
def test_an_image_or_document_stands_for_itself(kind: str):
    block = {kind: {"format": "x", "name": "n", "source": {"bytes": bytearray(b"1")}}}
    assert content(block) == [{kind: {"format": "x", "name": "n", "source": {"bytes": b"1"}}}]


@pytest.mark.parametrize(
    "block", [{"text": 3}, {"video": {}}, {"text": "a", "json": {}}, {}, "text", {"image": "png"}, {3: "x"}]
)
def test_a_block_that_no_provider_takes_is_refused(block: object):
    with pytest.raises(Failed):
        tool_result("use-1", {"status": "success", "content": [block]})


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (b"raw", "place='result' got='bytes'"),
        (b"raw", "bytes travel in an image or document block"),
        ({"a": [1, {"what": int}]}, "place=\"result['a'][1]['what']\" got='type'"),
        (object(), "got='object'"),
        (Answer(1, b"raw"), "place=\"result['made']\" got='bytes'"),
        ({"a": {(1, 2): 3}}, "place=\"a key of result['a']\" got='tuple'"),
        (iter([1]), "got='list_iterator'"),
    ],
)
def test_what_json_cannot_say_is_refused_by_place_and_type(value: object, told: str):
    with pytest.raises(Failed) as caught:
        tool_result("use-1", value)
    assert told in str(caught.value)


@pytest.mark.parametrize("value", [math.nan, math.inf, {"x": [math.nan]}, [-math.inf]])
def test_nan_and_infinities_are_refused(value: object):
    with pytest.raises(Failed, match="NaN and infinities"):
        tool_result("use-1", value)


def test_circles_and_great_depth_are_refused():
    circle: list[object] = []
    circle.append(circle)
    deep: object = 1
    for _ in range(100_000):
        deep = [deep]
    for value in (circle, deep):
        with pytest.raises(Failed):
            tool_result("use-1", value)
    with pytest.raises(Failed, match="nested"):
        tool_result("use-1", {"image": {"source": circle}})


def test_characters_that_utf_8_cannot_say_are_replaced():
    assert content("a\udcffb") == [{"text": "a?b"}]
    assert content({"a": "\ud800"}) == [{"json": {"a": "?"}}]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@given(value=st.dictionaries(st.text(), JSON))
def test_any_json_object_arrives_unchanged_and_as_a_copy(value: dict[str, Any]):
    result = tool_result("use-1", {"data": value})
    assert result["content"] == [{"json": {"data": value}}]
    assert json.dumps(result, allow_nan=False).encode()
    inner: Any = result["content"][0]["json"]
    assert inner["data"] is not value


def test_an_exception_is_told_by_type_and_message():
    assert exception_text(ZeroDivisionError("division by zero")) == "Error: ZeroDivisionError - division by zero"
    assert exception_text(ValueError()) == "Error: ValueError"


def test_a_long_message_is_cut_and_says_so():
    text = exception_text(ValueError("x" * 10 * ERROR_TEXT_MAX))
    assert len(text) < ERROR_TEXT_MAX + 100
    assert "characters left out" in text


def test_a_group_is_told_by_its_members():
    group = ExceptionGroup("g", [ValueError("a"), ExceptionGroup("h", [KeyError("b")])])
    assert exception_text(group) == "Error: ValueError - a; KeyError - 'b'"


def test_a_timeout_says_that_an_effect_may_still_come():
    told = "Error: TimeoutError - pay did not finish within 2.5 s"
    assert timeout_text("pay", 2.5, effects=False) == told
    assert timeout_text("pay", 2.5, effects=True) == f"{told}; it may or may not take effect"


class Endless(Sequence[int]):
    """A sequence without an end that says that it is short, and counts what was taken of it."""

    taken = 0

    def __len__(self) -> int:
        return 1

    def __getitem__(self, at: Any) -> Any:
        self.taken += 1
        return at


class Array:
    """As of a numerical library: it knows its size, and takes much more memory as a list."""

    size = 10**9

    def tolist(self) -> list[int]:
        raise AssertionError("it was made a list before it was weighed")


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_collection_is_weighed_before_it_is_made_a_list(wrapped: bool) -> None:
    endless = Endless()
    for value in (endless, range(2**80), {"a": range(10**12)}, Array()):
        with pytest.raises(TooLarge, match="too large to be shown"):
            tool_result("u", {"a": value} if wrapped else value, 25_600)
    assert 0 < endless.taken <= 102
    with pytest.raises(Failed, match="got='object'"):
        tool_result("u", [range(10), object()])
    assert content(range(3)) == [{"text": "[0, 1, 2]"}]
