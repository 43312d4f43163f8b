"""Properties of assembling: how an answer was cut does not matter, and no part of it passes for the whole."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from repertory.core.answer import Answer, Assembler
from repertory.core.messages import texts_in
from repertory.errors import ModelFailed, ModelStreamBroken
from tests.read_streams import text_delta

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
texts = st.text(min_size=1, max_size=60)


@st.composite
def messages(draw: st.DrawFn) -> list[dict[str, Any]]:
    """The content of an answer: any blocks in any order."""
    kinds = draw(st.lists(st.sampled_from(["text", "tool", "reasoning"]), min_size=1, max_size=4))
    content: list[dict[str, Any]] = []
    for number, kind in enumerate(kinds):
        if kind == "text":
            content.append({"text": draw(texts)})
        elif kind == "tool":
            use = {
                "toolUseId": f"t{number}",
                "name": "tool",
                "input": draw(st.dictionaries(st.text(), json_values, max_size=3)),
            }
            content.append({"toolUse": use})
        else:
            content.append({"reasoningContent": {"reasoningText": {"text": draw(texts), "signature": draw(texts)}}})
    return content


@st.composite
def cut(draw: st.DrawFn, text: str) -> list[str]:
    """The text in pieces, some of them empty."""
    marks = sorted(draw(st.lists(st.integers(0, len(text)), max_size=6)))
    return [text[start:end] for start, end in zip([0, *marks], [*marks, len(text)], strict=True)]


@st.composite
def streams(draw: st.DrawFn) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """An answer's content, and events that bring it."""
    content = draw(messages())
    events: list[dict[str, Any]] = [{"messageStart": {"role": "assistant"}}]
    for index, block in enumerate(content):
        if "toolUse" in block:
            use = block["toolUse"]
            start = {"toolUse": {"toolUseId": use["toolUseId"], "name": use["name"]}}
            events.append({"contentBlockStart": {"contentBlockIndex": index, "start": start}})
            deltas = [{"toolUse": {"input": piece}} for piece in draw(cut(json.dumps(use["input"])))]
        elif "text" in block:
            deltas = [{"text": piece} for piece in draw(cut(block["text"]))]
        else:
            spoken = block["reasoningContent"]["reasoningText"]
            deltas = [{"reasoningContent": {"text": piece}} for piece in draw(cut(spoken["text"]))]
            deltas += [{"reasoningContent": {"signature": piece}} for piece in draw(cut(spoken["signature"]))]
        events += [{"contentBlockDelta": {"contentBlockIndex": index, "delta": delta}} for delta in deltas]
        events.append({"contentBlockStop": {"contentBlockIndex": index}})
    events.append({"messageStop": {"stopReason": "end_turn"}})
    return content, events


def assembled(events: list[dict[str, Any]]) -> Answer:
    assembler = Assembler()
    for event in events:
        assembler.feed(event)
    return assembler.finish()


@given(streams())
def test_any_cutting_of_an_answer_assembles_to_it(stream: tuple[list[dict[str, Any]], list[dict[str, Any]]]) -> None:
    content, events = stream
    answer = assembled(events)
    assert answer.message["content"] == content
    assert answer.invalid_inputs == {}


@given(streams(), st.data())
def test_any_beginning_of_an_answer_is_broken(
    stream: tuple[list[dict[str, Any]], list[dict[str, Any]]], data: st.DataObject
) -> None:
    _, events = stream
    kept = data.draw(st.integers(0, len(events) - 1))
    with pytest.raises(ModelStreamBroken):
        assembled(events[:kept])


@given(streams(), st.data())
def test_the_part_of_a_stopped_answer_is_the_text_that_was_streamed(
    stream: tuple[list[dict[str, Any]], list[dict[str, Any]]], data: st.DataObject
) -> None:
    _, events = stream
    kept = events[: data.draw(st.integers(0, len(events)))]
    streamed = "".join(text_delta(event) or "" for event in kept)
    assembler = Assembler()
    for event in kept:
        assembler.feed(event)
    part = assembler.partial()
    if not streamed.strip():
        assert part is None
        return
    assert part is not None
    assert "".join(texts_in(part.message)) == streamed
    assert all(block.keys() == {"text"} for block in part.message["content"])
    assert all(texts_in(part.message))


def test_the_part_of_a_stopped_answer_has_no_half_of_a_character_and_nothing_that_a_guardrail_took_back() -> None:
    assembler = Assembler()
    for piece in ("sun ", "\ud83c"):
        assembler.feed({"contentBlockDelta": {"contentBlockIndex": 0, "delta": {"text": piece}}})
    part = assembler.partial()
    assert part is not None
    assert part.message["content"] == [{"text": "sun "}]
    assembler.feed({"redactContent": {"redactAssistantContentMessage": "No.", "redactUserContentMessage": "***"}})
    part = assembler.partial()
    assert part is not None
    assert (part.message["content"], part.redact_user) == ([{"text": "No."}], "***")


@given(streams(), st.data())
def test_a_token_limit_at_any_event_keeps_only_whole_tool_uses(
    stream: tuple[list[dict[str, Any]], list[dict[str, Any]]], data: st.DataObject
) -> None:
    content, events = stream
    kept = data.draw(st.integers(0, len(events) - 1))
    answer = assembled([*events[:kept], {"messageStop": {"stopReason": "max_tokens"}}])
    asked = [block for block in content if "toolUse" in block]
    got = [block for block in answer.message["content"] if "toolUse" in block]
    assert got == asked[: len(got)]
    assert answer.invalid_inputs == {}


names = st.sampled_from(
    [
        "messageStart",
        "contentBlockStart",
        "contentBlockDelta",
        "contentBlockStop",
        "messageStop",
        "metadata",
        "redactContent",
    ]
)
keys = st.sampled_from(
    ["delta", "start", "toolUse", "text", "input", "contentBlockIndex", "stopReason", "usage", "role", "x"]
)
junk = st.recursive(json_values, lambda inner: st.dictionaries(keys, inner, max_size=4), max_leaves=6)


@given(st.lists(st.dictionaries(names | st.text(), junk, max_size=2) | junk, max_size=8))
def test_nonsense_never_raises_anything_but_typed_errors(events: list[Any]) -> None:
    try:
        answer = assembled(events)
    except (ModelFailed, ModelStreamBroken):
        return
    assert answer.message["content"]
