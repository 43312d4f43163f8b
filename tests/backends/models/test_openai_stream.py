"""Chunks of Chat Completions as events of ours: as the service sends them, and as servers do that imitate it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from repertory.backends.models.openai import CompletionReader
from repertory.core.answer import Answer, Assembler
from repertory.errors import ModelFailed, ModelStreamBroken


def said(finish_reason: str | None = None, **delta: Any) -> dict[str, Any]:
    return {"id": "chatcmpl-1", "choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}]}


def called(*calls: dict[str, Any], finish_reason: str | None = None) -> dict[str, Any]:
    return said(finish_reason, tool_calls=list(calls))


def call(index: int | None = None, use_id: str | None = None, **function: Any) -> dict[str, Any]:
    fields = {"index": index, "id": use_id, "function": function}
    return {key: value for key, value in fields.items() if value is not None}


def events_of(*chunks: dict[str, Any]) -> list[dict[str, Any]]:
    reader = CompletionReader()
    return [*(event for chunk in chunks for event in reader.feed(chunk)), *reader.finish()]


def assembled(events: list[dict[str, Any]]) -> Answer:
    assembler = Assembler()
    for event in events:
        assembler.feed(event)
    return assembler.finish()


def read(*chunks: dict[str, Any]) -> Answer:
    return assembled(events_of(*chunks))


def whole(message: dict[str, Any] | None, **fields: Any) -> Answer:
    reader = CompletionReader()
    choices = [{"index": 0, "message": message, "finish_reason": fields.pop("finish_reason", "stop")}]
    return assembled([*reader.whole({"id": "c", "choices": choices, **fields}), *reader.finish()])


def uses(answer: Answer) -> list[tuple[str, Any]]:
    return [(block["toolUse"]["name"], block["toolUse"]["input"]) for block in answer.message["content"]]


def ids(answer: Answer) -> list[str]:
    return [block["toolUse"]["toolUseId"] for block in answer.message["content"]]


def test_text_is_one_block_with_a_beginning_and_an_end() -> None:
    events = events_of(said(role="assistant", content=""), said(content="Hel"), said(content="lo"), said("stop"))
    assert events == [
        {"messageStart": {"role": "assistant"}},
        {"contentBlockStart": {"contentBlockIndex": 0, "start": {}}},
        {"contentBlockDelta": {"contentBlockIndex": 0, "delta": {"text": "Hel"}}},
        {"contentBlockDelta": {"contentBlockIndex": 0, "delta": {"text": "lo"}}},
        {"contentBlockStop": {"contentBlockIndex": 0}},
        {"messageStop": {"stopReason": "end_turn"}},
    ]


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_reasoning_and_text_are_blocks_one_after_the_other(field: str) -> None:
    chunks = [said(**{field: "Hm"}), said(**{field: "!"}), said(content="42"), said(**{field: "?"}), said("stop")]
    answer = read(*chunks)
    assert answer.message["content"] == [
        {"reasoningContent": {"reasoningText": {"text": "Hm!"}, "provider": "openai-chat"}},
        {"text": "42"},
        {"reasoningContent": {"reasoningText": {"text": "?"}, "provider": "openai-chat"}},
    ]
    names = [(name, event[name].get("contentBlockIndex")) for event in events_of(*chunks) for name in event]
    opened = [index for name, index in names if name == "contentBlockStart"]
    assert opened == [index for name, index in names if name == "contentBlockStop"] == [0, 1, 2]


def test_one_chunk_may_hold_everything() -> None:
    chunk = called(call(0, "t1", name="add", arguments="{}"), finish_reason="tool_calls")
    chunk["choices"][0]["delta"] |= {"reasoning_content": "Hm", "content": "Wait."}
    first, second, third = read(chunk).message["content"]
    assert (first["reasoningContent"]["reasoningText"]["text"], second["text"]) == ("Hm", "Wait.")
    assert third["toolUse"]["toolUseId"] == "t1"


def test_parallel_calls_that_come_by_turns_do_not_mix() -> None:
    answer = read(
        said(content="Let me see."),
        called(call(0, "a", name="add", arguments="")),
        called(call(1, "b", name="sub", arguments='{"x"')),
        called(call(0, arguments='{"y": '), call(1, arguments=": 1}")),
        called(call(0, arguments="2}")),
        said("tool_calls"),
    )
    text, *calls = answer.message["content"]
    assert text == {"text": "Let me see."}
    assert [block["toolUse"] for block in calls] == [
        {"toolUseId": "a", "name": "add", "input": {"y": 2}},
        {"toolUseId": "b", "name": "sub", "input": {"x": 1}},
    ]
    assert answer.stop_reason == "tool_use"


WHOLE_F = {"name": "f", "arguments": '{"x": 1}'}
FIRST_F, LAST_F = {"name": "f", "arguments": '{"x"'}, {"name": "f", "arguments": ": 1}"}
REST_OF_F = {"arguments": ": 1}"}
ODD_CALLS: dict[str, list[dict[str, Any]]] = {
    "one piece": [called(call(0, "a", **WHOLE_F), call(1, "b", name="g", arguments="{}"))],
    "no ids": [called(call(0, **FIRST_F)), called(call(0, **REST_OF_F)), called(call(1, name="g"))],
    "empty ids": [called(call(0, "", **WHOLE_F), call(1, "", name="g", arguments=""))],
    "no indexes": [called(call(None, "a", **WHOLE_F)), called(call(None, "b", name="g"))],
    "neither": [called(call(**FIRST_F), call(**REST_OF_F)), called(call(name="g"))],
    "one index": [called(call(0, "a", **WHOLE_F)), called(call(0, "b", name="g"))],
    "one id": [called(call(0, "a", **WHOLE_F)), called(call(1, "a", name="g"))],
    "id repeated": [called(call(None, "a", **FIRST_F), call(None, "a", **LAST_F), call(None, "b", name="g"))],
    "name repeated": [called(call(0, "a", **FIRST_F)), called(call(0, "a", **LAST_F)), called(call(1, "b", name="g"))],
    "name last": [called(call(0, "a", arguments='{"x": 1}')), called(call(0, name="f"), call(1, "b", name="g"))],
    "an object": [called(call(0, "a", name="f", arguments={"x": 1}), call(1, "b", name="g", arguments=None))],
    "no function": [called(call(0, "a", **WHOLE_F)), called({"index": 0, "function": None}, call(1, "b", name="g"))],
}


@pytest.mark.parametrize("finish_reason", ["tool_calls", "stop", "function_call", "eos"])
@pytest.mark.parametrize("chunks", ODD_CALLS.values(), ids=ODD_CALLS)
def test_calls_are_understood_as_servers_send_them(chunks: list[dict[str, Any]], finish_reason: str) -> None:
    answer = read(*chunks, said(finish_reason))
    assert uses(answer) == [("f", {"x": 1}), ("g", {})]
    assert len(set(ids(answer))) == 2
    assert all(ids(answer))
    assert answer.stop_reason == "tool_use"


def test_made_up_ids_differ_from_answer_to_answer() -> None:
    def answered(answer_id: str) -> list[str]:
        return ids(read({**called(call(0, name="f")), "id": answer_id}, said("stop")))

    assert answered("one") == answered("one") != answered("two")


def test_arguments_that_are_not_json_do_not_spoil_the_answer() -> None:
    answer = read(called(call(0, "a", name="f", arguments='{"x": ')), said("tool_calls"))
    assert uses(answer) == [("f", {})]
    assert answer.invalid_inputs == {"a": '{"x":'}


def test_a_call_that_the_limit_cut_off_is_dropped() -> None:
    answer = read(said(content="Wait"), called(call(0, "a", name="f", arguments='{"x": ')), said("length"))
    assert answer.message["content"] == [{"text": "Wait"}]
    assert (answer.truncated, answer.stop_reason) == (True, "max_tokens")
    assert read(called(call(0, "a")), said("length")).stop_reason == "max_tokens"


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("stop", "end_turn"),
        ("length", "max_tokens"),
        ("tool_calls", "end_turn"),
        ("content_filter", "content_filtered"),
        ("something_new", "something_new"),
    ],
)
def test_finish_reasons(theirs: str, ours: str) -> None:
    assert read(said(content="a"), said(theirs)).stop_reason == ours
    assert whole({"content": "a"}, finish_reason=theirs).stop_reason == ours


def test_a_refusal_is_said_and_counts_as_filtered() -> None:
    answer = read(said(refusal="I cannot"), said(refusal=" help."), said("stop"))
    assert answer.message["content"] == [{"text": "I cannot help."}]
    assert answer.stop_reason == "content_filtered"


@pytest.mark.parametrize(
    ("usage", "counted"),
    [
        (None, {"inputTokens": 0, "outputTokens": 0, "totalTokens": 0}),
        ({}, {"inputTokens": 0, "outputTokens": 0, "totalTokens": 0}),
        ({"prompt_tokens": 9, "completion_tokens": 2}, {"inputTokens": 9, "outputTokens": 2, "totalTokens": 11}),
        ({"prompt_tokens": 9, "completion_tokens": None}, {"inputTokens": 9, "outputTokens": 0, "totalTokens": 9}),
        (
            {"prompt_tokens": 9, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 4}},
            {"inputTokens": 5, "outputTokens": 2, "totalTokens": 11, "cacheReadInputTokens": 4},
        ),
        (
            {"prompt_tokens": 9, "completion_tokens": 2, "prompt_tokens_details": {"cache_write_tokens": 3}},
            {"inputTokens": 6, "outputTokens": 2, "totalTokens": 11, "cacheWriteInputTokens": 3},
        ),
        ({"prompt_tokens": "x", "prompt_tokens_details": "y"}, {"inputTokens": 0, "outputTokens": 0, "totalTokens": 0}),
    ],
)
def test_usage_counts_cached_tokens_apart(usage: Any, counted: dict[str, int]) -> None:
    """Wherever the server puts it: in a chunk of its own, as the service does, or in the last one, or in each."""
    assert read(said(content="a"), said("stop"), {"id": "c", "choices": [], "usage": usage}).usage == counted
    assert read(said(content="a"), {**said("stop"), "usage": usage}).usage == counted
    assert whole({"content": "a"}, usage=usage).usage == counted


def test_a_whole_answer_says_the_same() -> None:
    function = {"name": "add", "arguments": json.dumps({"a": 1})}
    message = {"role": "assistant", "content": "Wait.", "reasoning_content": "Hm", "refusal": None}
    answer = whole({**message, "tool_calls": [{"id": "t1", "type": "function", "function": function}]})
    assert answer.message["content"] == [
        {"reasoningContent": {"reasoningText": {"text": "Hm"}, "provider": "openai-chat"}},
        {"text": "Wait."},
        {"toolUse": {"toolUseId": "t1", "name": "add", "input": {"a": 1}}},
    ]
    assert answer.stop_reason == "tool_use"
    assert whole({"content": "a"}, finish_reason=None).stop_reason == "end_turn"


def test_of_several_choices_the_first_is_read() -> None:
    other = {"index": 1, "delta": {"content": "other"}, "finish_reason": "length"}
    first = said(content="a")
    first["choices"].append(other)
    answer = read(first, said("stop"))
    assert (answer.message["content"], answer.stop_reason) == ([{"text": "a"}], "end_turn")


@pytest.mark.parametrize(
    "chunk",
    [
        {"choices": 3},
        {"choices": [3]},
        {"choices": [{"delta": 3}]},
        said(content=["a"]),
        said(tool_calls={"index": 0}),
        said(tool_calls=[3]),
        called(call(0, "a", name=3)),
        called(call(0, "a", name="f", arguments=3)),
        called(call(0, "a", arguments="{}")),
        {"choices": [{"delta": {}, "finish_reason": 3}]},
    ],
)
def test_a_malformed_chunk_fails(chunk: dict[str, Any]) -> None:
    with pytest.raises(ModelFailed, match="malformed model event"):
        read(chunk, said("stop"))


def test_an_answer_without_a_finish_reason_is_broken_and_one_without_a_message_is_nonsense() -> None:
    with pytest.raises(ModelStreamBroken):
        read(said(content="a"))
    for message in (None, "text"):
        with pytest.raises(ModelFailed):
            whole(message)  # type: ignore[arg-type]


def test_an_answer_has_the_names_that_its_server_gave_it() -> None:
    usage = {"prompt_tokens": 1, "completion_tokens": 1}
    answer = read({**said(content="Hi"), "model": "gpt-5.4-2026-01"}, {**said("stop"), "usage": usage})
    assert (answer.response_id, answer.response_model) == ("chatcmpl-1", "gpt-5.4-2026-01")
    answer = whole({"content": "Hi"}, model="local", usage=usage)
    assert (answer.response_id, answer.response_model) == ("c", "local")
    nonsense = whole({"content": "Hi"}, model=["x"], usage=usage, id={"no": 1})
    assert (nonsense.response_id, nonsense.response_model) == (None, None)
