"""The pairing rule: every tool use has its result in the very next message."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from repertory.core.messages import INTERRUPTED_TEXT, ContentBlock, Message, check_message, check_next, repair
from repertory.errors import Invalid, UnpairedTools


def said(text: str) -> Message:
    return {"role": "user", "content": [{"text": text}]}


def answered(text: str) -> Message:
    return {"role": "assistant", "content": [{"text": text}]}


def asks(*ids: str) -> Message:
    return {
        "role": "assistant",
        "content": [{"toolUse": {"toolUseId": use_id, "name": "add", "input": {}}} for use_id in ids],
    }


def results(*ids: str, text: str | None = None) -> Message:
    blocks: list[ContentBlock] = [
        {"toolResult": {"toolUseId": use_id, "status": "success", "content": [{"text": "3"}]}} for use_id in ids
    ]
    return {"role": "user", "content": [*blocks, *([{"text": text}] if text else [])]}  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("previous", "message"),
    [
        (None, said("hi")),
        (said("hi"), answered("hello")),
        (said("hi"), asks("a", "b")),
        (asks("a", "b"), results("a", "b")),
        (asks("a", "b"), results("b", "a")),
        (asks("a"), results("a", text="and also this")),
    ],
)
def test_what_pairs_up_is_accepted(previous: Message | None, message: Message) -> None:
    check_next(previous, message)


@pytest.mark.parametrize(
    ("previous", "message"),
    [
        (None, results("a")),
        (said("hi"), results("a")),
        (asks("a"), said("never mind")),
        (asks("a"), answered("done")),
        (asks("a", "b"), results("a")),
        (asks("a"), results("a", "b")),
        (asks("a"), results("a", "a")),
        (said("hi"), asks("a", "a")),
        (None, {"role": "user", "content": asks("a")["content"]}),
        (asks("a"), {"role": "assistant", "content": results("a")["content"]}),
    ],
)
def test_what_does_not_pair_up_is_refused(previous: Message | None, message: Message) -> None:
    with pytest.raises(UnpairedTools):
        check_next(previous, message)


@pytest.mark.parametrize(
    "broken", [None, "text", {}, {"role": "system", "content": []}, {"role": "user", "content": "x"}]
)
def test_a_value_that_is_no_message_is_refused_by_name(broken: object) -> None:
    with pytest.raises(Invalid):
        check_message(broken)


def test_repair_answers_a_tool_use_that_was_left_open() -> None:
    """Documented behaviour: a missing result becomes an error that says that the tool was interrupted."""
    mended = repair([said("go"), asks("a", "b"), results("a"), answered("ok")])
    blocks = mended[2]["content"]
    assert [block["toolResult"]["toolUseId"] for block in blocks if "toolResult" in block] == ["a", "b"]
    assert blocks[1].get("toolResult") == {
        "toolUseId": "b",
        "status": "error",
        "content": [{"text": INTERRUPTED_TEXT}],
    }


def test_repair_drops_results_that_nobody_asked_for() -> None:
    assert repair([said("go"), results("zz"), answered("ok")]) == [said("go"), answered("ok")]


def test_repair_leaves_a_history_that_keeps_the_rule_alone() -> None:
    history = [said("go"), asks("a"), results("a"), answered("ok"), said("more"), asks("b")]
    assert repair(history) == history


messages = st.one_of(
    st.sampled_from([said("x"), answered("y")]),
    st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, max_size=3, unique=True).map(lambda ids: asks(*ids)),
    st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, max_size=3).map(lambda ids: results(*ids)),
)


@given(st.lists(messages, max_size=8))
def test_any_history_keeps_the_rule_after_repair_and_repairing_again_changes_nothing(history: list[Message]) -> None:
    mended = repair(history)
    previous = None
    for message in mended:
        check_next(previous, message)
        previous = message
    assert repair(mended) == mended
