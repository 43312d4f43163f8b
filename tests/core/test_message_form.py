"""What a message may hold: everything else is refused with its place, and mended where it is stored already."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from repertory.core.journal.codec import dump
from repertory.core.messages import (
    Message,
    check_message,
    check_messages,
    check_result,
    repair_message,
    tool_results,
    tool_uses,
)
from repertory.core.turns.turn_start import read_prompt
from repertory.errors import Invalid

IMAGE = {"format": "png", "source": {"bytes": b"\x89PNG"}}
RESULT = {"toolUseId": "a", "status": "success", "content": [{"text": "3"}, {"json": {"n": [1]}}, {"image": IMAGE}]}
BLOCKS: Mapping[str, Any] = {
    "text": "hello",
    "image": IMAGE,
    "video": {"format": "mp4", "source": {"s3Location": {"uri": "s3://b/k"}}},
    "document": {
        "format": "txt",
        "name": "d",
        "source": {"content": [{"text": "page"}]},
        "citations": {"enabled": True},
    },
    "toolUse": {"toolUseId": "a", "name": "add", "input": {"x": [1, None, 2.5]}},
    "toolResult": RESULT,
    "reasoningContent": {"reasoningText": {"text": "hm", "signature": "s"}},
    "cachePoint": {"type": "default", "ttl": "1h"},
    "guardContent": {"text": {"text": "t", "qualifiers": ["query"]}},
    "citationsContent": {
        "content": [{"text": "t"}],
        "citations": [
            {"title": "T", "source": "s", "sourceContent": [{"text": "x"}], "location": {"web": {"url": "u"}}}
        ],
    },
    "audience": {"of": ["tomorrow"]},
}
"""One sound block of each kind, and one that nobody knows yet."""


def said(*blocks: Any, **more: Any) -> Any:
    return {"role": "user", "content": list(blocks), **more}


@pytest.mark.parametrize("kind", BLOCKS)
def test_a_sound_block_is_taken_as_it_is(kind: str) -> None:
    message = said({kind: BLOCKS[kind]}, metadata={"custom": {"k": 1}}, tracking_id="t")
    assert check_message(message) is message
    assert repair_message(message) is message


def wrong(value: Any) -> Any:
    """A value of another type than this one."""
    return {"of": "another type"} if isinstance(value, str | bytes | bool | list) else 5


def places(value: Any, place: str, name: str) -> list[tuple[str, Callable[[Any], Any]]]:
    """Every named field below a value, with what puts something wrong there."""
    if name in ("json", "input", "url", "web"):
        return []  # Whatever JSON can say.
    found: list[tuple[str, Callable[[Any], Any]]] = [(place, wrong)]
    if isinstance(value, dict):
        for key, item in value.items():
            for inner, change in places(item, f"{place}.{key}", key):
                found.append((inner, lambda whole, key=key, change=change: {**whole, key: change(whole[key])}))
    if isinstance(value, list):
        for at, item in enumerate(value):
            for inner, change in places(item, f"{place}[{at}]", ""):
                found.append((inner, lambda whole, at=at, change=change: [*whole[:at], change(whole[at])]))
    return found


WRONG = {
    place: {kind: change(BLOCKS[kind])}
    for kind in BLOCKS
    if kind != "audience"
    for place, change in places(BLOCKS[kind], kind, kind)
}
"""The place in a block, and a block with something wrong there."""


def test_the_table_of_wrong_fields_is_as_long_as_it_looks() -> None:
    assert len(WRONG) > 50


@pytest.mark.parametrize("place", WRONG)
def test_a_wrong_type_anywhere_is_refused_by_its_place_and_mended_when_it_is_stored(place: str) -> None:
    message = said({"text": "first"}, WRONG[place])
    with pytest.raises(Invalid) as error:
        check_messages([said({"text": "sound"}), message])
    assert str(error.value).startswith(f"messages[1].content[1].{place}: "), error.value
    with pytest.raises(Invalid):
        read_prompt([message])
    after = repair_message(message)
    assert check_message(after) is after
    assert after["content"][0] == {"text": "first"}


def test_a_refusal_says_what_fits_and_what_was_given() -> None:
    with pytest.raises(Invalid) as error:
        read_prompt([{"text": "a"}, {"text": 5}])
    assert str(error.value) == "prompt.content[1].text: a string, not int"
    with pytest.raises(Invalid) as error:
        check_messages([said({"toolUse": {"toolUseId": "a", "input": {}}})])
    assert str(error.value) == "messages[0].content[0].toolUse: has no 'name'"


@pytest.mark.parametrize(
    "value",
    [object(), float("nan"), float("inf"), 10**5000, {1: 2}, {"a": [object()]}, {("a",): 1}],
    ids=["object", "nan", "infinity", "long number", "key", "inner object", "tuple key"],
)
def test_what_json_cannot_say_is_refused_wherever_it_stands(value: Any) -> None:
    for message in (
        said({"toolUse": {"toolUseId": "a", "name": "n", "input": value}}),
        said({"nobody knows": value}),
        said({"text": "a"}, more=value),
        said({"text": "a"}, metadata={"custom": {"k": value}}),
    ):
        with pytest.raises(Invalid):
            check_message(message)
    with pytest.raises(Invalid):
        check_result({"status": "success", "content": [{"json": value}]})


@pytest.mark.parametrize(
    "metadata",
    [5, {"usage": 5}, {"usage": {"inputTokens": "many", "outputTokens": 1, "totalTokens": 1}}, {"custom": []}],
    ids=str,
)
def test_metadata_of_wrong_types_is_refused_and_left_out_of_what_is_stored(metadata: Any) -> None:
    message = said({"text": "a"}, metadata=metadata)
    with pytest.raises(Invalid, match=r"^message\.metadata"):
        check_message(message)
    assert repair_message(message)["content"] == [{"text": "a"}]
    check_message(repair_message(message))


def test_what_a_mended_block_said_stays_as_text() -> None:
    assert repair_message(said({"text": 5}))["content"] == [{"text": "5"}]
    assert repair_message(said({"image": {"format": "png"}}))["content"] == [{"text": '{"image": {"format": "png"}}'}]
    assert repair_message(said("bare"))["content"] == [{"text": "bare"}]


def test_mended_tools_still_answer_each_other() -> None:
    ids: list[Any] = [5, "5", None, ["a"]]
    asks = repair_message(
        {"role": "assistant", "content": [{"toolUse": {"toolUseId": each, "name": each}} for each in ids]}  # type: ignore[typeddict-item]
    )
    given = repair_message(said(*({"toolResult": {"toolUseId": each, "content": each}} for each in ids)))
    asked = [use["toolUseId"] for use in tool_uses(asks)]
    assert asked == [result["toolUseId"] for result in tool_results(given)]
    assert len(set(asked)) == len(ids)
    check_messages([asks, given])


plain = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=4)
)
names = st.sampled_from(
    [*BLOCKS, "source", "bytes", "format", "content", "toolUseId", "status", "name", "input", "type"]
)
values = st.recursive(
    plain | st.binary(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=12,
)
anything = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant"]), "content": st.lists(values, min_size=1, max_size=3)},
    optional={"metadata": values, "tracking_id": values},
)


@given(anything)
def test_whatever_is_stored_can_be_mended_and_mending_again_changes_nothing(message: Any) -> None:
    once = repair_message(cast("Message", message))
    assert repair_message(once) is once
    dump(once)
    text = json.dumps(once, default=repr)
    for block in message["content"]:
        if isinstance(block, str):
            assert json.dumps(block)[1:-1] in text
