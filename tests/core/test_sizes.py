"""How large values are, and what is done about those that are too large."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from repertory.core.answer import EVENT_BYTES, Assembler
from repertory.core.limits import (
    ANSWER_BYTES,
    PROMPT_BYTES,
    RESULT_BYTES,
    VALUE_BYTES,
    JsonScale,
    Scale,
    Sizes,
    check_size,
    read_limits,
)
from repertory.core.state import AgentState
from repertory.core.tools import check_result_size, tool_result
from repertory.core.turns.turn_start import read_prompt
from repertory.errors import LimitReached, TooLarge

HUGE = 1 << 60

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=30,
)


def counted(value: object) -> tuple[int, int]:
    """Bytes and values, counted the slow way."""
    if isinstance(value, str):
        return len(value.encode(errors="replace")), 1
    if isinstance(value, bytes):
        return len(value), 1
    if isinstance(value, dict):
        inner = [counted(item) for item in value.values()]
        keys = sum(counted(key)[0] for key in value)
        return keys + sum(size for size, _ in inner), 1 + sum(count for _, count in inner)
    if isinstance(value, list):
        inner = [counted(item) for item in value]
        return sum(size for size, _ in inner), 1 + sum(count for _, count in inner)
    return 0, 1


@given(values)
def test_a_value_weighs_its_bytes_and_each_value_in_it(value: object) -> None:
    scale = Scale(HUGE)
    assert scale.put(value)
    assert (scale.bytes, scale.values) == counted(value)
    assert scale.weight == scale.bytes + VALUE_BYTES * scale.values


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.text(alphabet='\\"[,{:'),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(alphabet='\\",'), inner),
    max_leaves=30,
)


def empty_ones(value: object) -> int:
    """Lists and objects without anything in them."""
    if isinstance(value, list | dict):
        inner = list(value.values()) if isinstance(value, dict) else value
        return (not inner) + sum(map(empty_ones, inner))
    return 0


@given(json_values, st.booleans(), st.integers(1, 50))
def test_a_json_text_weighs_the_same_as_it_arrives_however_it_is_cut(value: object, as_ascii: bool, cut: int) -> None:
    """But for the value that everything is in, and one more for each that is empty."""
    said = json.dumps(value, ensure_ascii=as_ascii).encode(errors="replace")
    scale = JsonScale()
    for start in range(0, len(said), cut):
        scale.put(said[start : start + cut])
    assert (scale.bytes, scale.values) == (len(said), counted(value)[1] - 1 + empty_ones(value))
    assert scale.weight == scale.bytes + VALUE_BYTES * scale.values


@given(values)
def test_the_bound_is_the_weight(value: object) -> None:
    scale = Scale(HUGE)
    scale.put(value)
    check_size(value, scale.weight, "too large", "the bound")
    with pytest.raises(TooLarge):
        check_size(value, scale.weight - 1, "too large", "the bound")


def test_weighing_ends_at_the_bound() -> None:
    class Counting(list[object]):
        looked_at = 0

        def __iter__(self) -> Any:
            type(self).looked_at += 1
            return super().__iter__()

    scale = Scale(1_000_000)
    assert not scale.put([Counting([0] * 5_000)])
    assert Counting.looked_at == 0
    assert not scale.whole


def test_what_holds_itself_is_too_large_or_ends() -> None:
    circle: list[object] = []
    circle.append(circle)
    assert Scale(HUGE).put(circle)
    wide: list[object] = []
    wide += [wide] * 10
    assert not Scale(RESULT_BYTES).put(wide)


def test_the_refusal_says_how_large_it_is_and_what_the_bound_is() -> None:
    with pytest.raises(LimitReached, match=r"it takes at least 256,000,256 bytes, .* 1,000,001 values, and the bound"):
        check_size([None] * 1_000_000, RESULT_BYTES, "too large", "the bound")
    with pytest.raises(TooLarge, match=r"it takes 20,000,256 bytes, .*, and the bound is 10,485,760"):
        check_size("x" * 20_000_000, RESULT_BYTES, "too large", "the bound")


# --------------------------------------------------------------------------------------------------------- tool results


@dataclass
class Rows:
    rows: list[int] = field(default_factory=list)


class Model:
    def model_dump(self, mode: str) -> object:
        return {"rows": [1] * 2_000, "mode": mode}


@pytest.mark.parametrize(
    "value",
    [
        "x" * 200_000,
        {"rows": [1] * 2_000},
        {str(number): number for number in range(2_000)},
        {"a": Rows([1] * 1_000), "b": Rows([1] * 1_000)},
        {"model": Model()},
        {"status": "success", "content": [{"text": "x" * 100_000}, {"text": "x" * 100_000}]},
        {"image": {"format": "png", "source": {"bytes": b"x" * 200_000}}},
    ],
    ids=["text", "list", "keys", "dataclasses", "model", "blocks", "image"],
)
def test_a_result_that_is_too_large_is_refused(value: object) -> None:
    with pytest.raises(TooLarge, match=r"the tool ran, but its result is too large .* limits\['result_bytes'\]"):
        tool_result("use-1", value, 100_000)
    whole = tool_result("use-1", value, 2_000_000)
    assert check_result_size(whole, 2_000_000) is whole
    with pytest.raises(TooLarge):
        check_result_size(whole, 100_000)


def test_a_result_is_refused_before_it_is_turned_into_json() -> None:
    class Unsayable:
        pass

    with pytest.raises(TooLarge):
        tool_result("use-1", [Unsayable()] * 1_000_000)


# -------------------------------------------------------------------------------------------------------------- answers


def delta(**piece: object) -> dict[str, object]:
    return {"contentBlockDelta": {"delta": piece}}


FLOODS: dict[str, dict[str, object]] = {
    "text": delta(text="x" * 10_000),
    "characters": delta(text="x"),
    "emoji": delta(text="\N{GRINNING FACE}" * 1_000),
    "nothing": delta(text=""),
    "thoughts": delta(reasoningContent={"text": "x" * 10_000}),
    "sealed thoughts": delta(reasoningContent={"redactedContent": b"x" * 10_000}),
    "citations": delta(citation={"sources": [{"text": "x"}] * 100}),
    "unknown pieces": delta(new="x"),
    "unknown events": {"ping": {}},
    "metadata": {"metadata": {}},
}


@pytest.mark.parametrize("event", FLOODS.values(), ids=FLOODS)
def test_every_endless_stream_ends(event: dict[str, object]) -> None:
    assembler = Assembler(100_000)
    with pytest.raises(TooLarge, match=r"the model's answer is too large: .* limits\['answer_bytes'\] is 100,000"):
        for _ in range(100_000 // EVENT_BYTES + 1):
            assembler.feed(event)


@pytest.mark.parametrize("piece", ["[", "1,", '{"a":', "x" * 1_000])
def test_an_endless_input_of_a_tool_ends(piece: str) -> None:
    assembler = Assembler(100_000)
    assembler.feed({"contentBlockStart": {"start": {"toolUse": {"toolUseId": "use-1", "name": "tool"}}}})
    with pytest.raises(TooLarge):
        for _ in range(100_000 // EVENT_BYTES + 1):
            assembler.feed(delta(toolUse={"input": piece}))


def test_endless_blocks_end() -> None:
    assembler = Assembler(100_000)
    with pytest.raises(TooLarge):
        for number in range(100_000 // EVENT_BYTES + 1):
            start = {"toolUse": {"toolUseId": f"use-{number}", "name": "tool"}}
            assembler.feed({"contentBlockStart": {"contentBlockIndex": number, "start": start}})


# ------------------------------------------------------------------------------------------- prompts, state, the limits


@pytest.mark.parametrize(
    "prompt",
    [
        "x" * 100_000,
        [{"text": "x" * 100_000}],
        [{"role": "user", "content": [{"text": "x" * 100_000}]}],
        [{"interruptResponse": {"interruptId": "i", "response": [0] * 1_000}}],
    ],
    ids=["text", "blocks", "messages", "answers"],
)
def test_a_prompt_that_is_too_large_is_refused(prompt: object) -> None:
    with pytest.raises(TooLarge, match=r"the prompt is too large.* limits\['prompt_bytes'\] is 50,000"):
        read_prompt(prompt, 50_000)
    read_prompt(prompt, 500_000)


def test_a_value_that_is_too_large_for_the_state_changes_nothing() -> None:
    state = AgentState({"a": 1})
    with pytest.raises(TooLarge):
        state.set("a", "x" * 20_000_000)
    assert state.get() == {"a": 1}
    assert not state.changed
    roomy = AgentState(value_bytes=40_000_000)
    roomy.set("a", "x" * 20_000_000)
    assert roomy.changed


def test_a_state_that_is_stored_is_taken_however_large_it_is() -> None:
    state = AgentState()
    state.restore({"a": "x" * 20_000_000})
    assert len(str(state.get("a"))) == 20_000_000


def test_sizes_are_bounded_without_being_set_and_a_call_goes_before_its_agent() -> None:
    assert read_limits(None).sizes == Sizes(RESULT_BYTES, ANSWER_BYTES, PROMPT_BYTES)
    agent = read_limits({"turns": 7, "result_bytes": 100, "answer_bytes": 200})
    call = read_limits({"turns": 3, "answer_bytes": 300, "prompt_bytes": None})
    assert call.over(agent) == read_limits({"turns": 3, "result_bytes": 100, "answer_bytes": 300})
    assert call.over(agent).sizes == Sizes(100, 300, PROMPT_BYTES)
