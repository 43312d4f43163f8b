"""Events of the Messages API as events of ours, judged by the answer that they assemble to."""

from __future__ import annotations

from typing import Any

import pytest

from repertory.backends.models.anthropic import MessagesReader
from repertory.core.answer import Answer, Assembler
from repertory.errors import ModelFailed, ModelStreamBroken


def start(index: int, **block: Any) -> dict[str, Any]:
    return {"type": "content_block_start", "index": index, "content_block": block}


def delta(index: int, kind: str, **piece: Any) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": index, "delta": {"type": kind, **piece}}


def stop(index: int) -> dict[str, Any]:
    return {"type": "content_block_stop", "index": index}


def end(stop_reason: str = "end_turn", **usage: int) -> list[dict[str, Any]]:
    return [{"type": "message_delta", "delta": {"stop_reason": stop_reason}, "usage": usage}, {"type": "message_stop"}]


BEGIN = {"type": "message_start", "message": {"usage": {"input_tokens": 10, "output_tokens": 1}}}


def read(*events: dict[str, Any]) -> Answer:
    reader, assembler = MessagesReader(), Assembler()
    for event in events:
        for ours in reader.feed(event):
            assembler.feed(ours)
    for ours in reader.finish():
        assembler.feed(ours)
    return assembler.finish()


def whole(*blocks: dict[str, Any], stop_reason: str = "end_turn") -> Answer:
    reader, assembler = MessagesReader(), Assembler()
    usage = {"input_tokens": 1, "output_tokens": 2}
    for ours in reader.whole({"content": list(blocks), "stop_reason": stop_reason, "usage": usage}):
        assembler.feed(ours)
    for ours in reader.finish():
        assembler.feed(ours)
    return assembler.finish()


OWN = {"provider": "anthropic"}
THINKING = {"reasoningContent": {"reasoningText": {"text": "Let me see", "signature": "sig"}, **OWN}}
REDACTED = {"reasoningContent": {"redactedContent": b"opaque==", **OWN}}
USE = {"toolUse": {"toolUseId": "t1", "name": "add", "input": {"a": 1}}}


def test_thinking_keeps_its_signature_and_redacted_thinking_its_data() -> None:
    answer = read(
        BEGIN,
        start(0, type="thinking", thinking="", signature=""),
        delta(0, "thinking_delta", thinking="Let me"),
        delta(0, "thinking_delta", thinking=" see"),
        delta(0, "signature_delta", signature="sig"),
        stop(0),
        start(1, type="redacted_thinking", data="opaque=="),
        stop(1),
        start(2, type="text", text=""),
        delta(2, "text_delta", text="42"),
        stop(2),
        *end(),
    )
    assert answer.message["content"] == [THINKING, REDACTED, {"text": "42"}]


def test_thinking_that_is_not_shown_keeps_its_signature() -> None:
    signed = delta(0, "signature_delta", signature="sig")
    answer = read(BEGIN, start(0, type="thinking", thinking=""), signed, stop(0), *end())
    signature = {"text": "", "signature": "sig"}
    assert answer.message["content"] == [{"reasoningContent": {"reasoningText": signature, **OWN}}]


def test_a_tool_use_arrives_in_pieces() -> None:
    pieces = [delta(0, "input_json_delta", partial_json=piece) for piece in ("", '{"a":', " 1}")]
    begin = start(0, type="tool_use", id="t1", name="add", input={})
    answer = read(BEGIN, begin, *pieces, stop(0), *end("tool_use"))
    assert answer.message["content"] == [USE]
    assert answer.stop_reason == "tool_use"


def test_a_tool_use_may_arrive_in_one_piece_with_its_beginning() -> None:
    """The service does not do that, but imitations of it do."""
    answer = read(BEGIN, start(0, type="tool_use", id="t1", name="add", input={"a": 1}), stop(0), *end("tool_use"))
    assert answer.message["content"] == [USE]


def test_a_tool_input_that_is_not_json_does_not_spoil_the_answer() -> None:
    piece = delta(0, "input_json_delta", partial_json='{"a": ')
    answer = read(BEGIN, start(0, type="tool_use", id="t1", name="add", input={}), piece, stop(0), *end("tool_use"))
    assert answer.invalid_inputs == {"t1": '{"a":'}


def test_a_whole_answer_says_the_same() -> None:
    answer = whole(
        {"type": "thinking", "thinking": "Let me see", "signature": "sig"},
        {"type": "redacted_thinking", "data": "opaque=="},
        {"type": "text", "text": "42"},
        {"type": "tool_use", "id": "t1", "name": "add", "input": {"a": 1}},
        stop_reason="tool_use",
    )
    assert answer.message["content"] == [THINKING, REDACTED, {"text": "42"}, USE]
    assert answer.usage == {"inputTokens": 1, "outputTokens": 2, "totalTokens": 3}


def test_events_and_pieces_that_we_do_not_know_are_passed_over() -> None:
    answer = read(
        BEGIN,
        {"type": "ping"},
        start(0, type="text", text="4"),
        delta(0, "text_delta", text="2"),
        delta(0, "new_delta", new=1),
        stop(0),
        {"type": "something_new"},
        *end(),
    )
    assert answer.message["content"] == [{"text": "42"}]


def test_citations_are_kept_with_their_places() -> None:
    cited = {"cited_text": "six", "document_index": 0, "document_title": "Sums"}
    by_char = {"type": "char_location", "start_char_index": 1, "end_char_index": 4, **cited}
    by_web = {"type": "web_search_result_location", "cited_text": "six", "url": "https://example.com", "title": "Web"}
    answer = read(
        BEGIN,
        start(0, type="text", text=""),
        delta(0, "text_delta", text="It is six."),
        delta(0, "citations_delta", citation=by_char),
        delta(0, "citations_delta", citation=by_web),
        stop(0),
        *end(),
    )
    location = {"documentChar": {"documentIndex": 0, "start": 1, "end": 4}}
    (block,) = answer.message["content"]
    assert block["citationsContent"] == {
        "content": [{"text": "It is six."}],
        "citations": [
            {"title": "Sums", "sourceContent": [{"text": "six"}], "location": location},
            {
                "title": "Web",
                "sourceContent": [{"text": "six"}],
                "location": {"web": {"url": "https://example.com"}},
            },
        ],
    }


def test_cached_tokens_are_counted_apart_and_in_the_total() -> None:
    cached = {"input_tokens": 10, "output_tokens": 1, "cache_read_input_tokens": 100, "cache_creation_input_tokens": 20}
    answer = read({"type": "message_start", "message": {"usage": cached}}, *end(output_tokens=5))
    assert answer.usage == {
        "inputTokens": 10,
        "outputTokens": 5,
        "cacheReadInputTokens": 100,
        "cacheWriteInputTokens": 20,
        "totalTokens": 135,
    }


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("end_turn", "end_turn"),
        ("max_tokens", "max_tokens"),
        ("stop_sequence", "stop_sequence"),
        ("refusal", "content_filtered"),
        ("pause_turn", "pause_turn"),
        ("model_context_window_exceeded", "model_context_window_exceeded"),
        ("something_new", "something_new"),
    ],
)
def test_stop_reasons(theirs: str, ours: str) -> None:
    assert read(BEGIN, *end(theirs)).stop_reason == ours
    assert whole(stop_reason=theirs).stop_reason == ours


@pytest.mark.parametrize(
    "event",
    [
        {"type": "message_start"},
        {"type": "content_block_start", "index": 0},
        {"type": "content_block_start", "content_block": {"type": "text"}},
        start(1, type="tool_use", id="", name="add"),
        start(1, type="tool_use", id="t1"),
        start(1, type="redacted_thinking"),
        {"type": "content_block_delta", "index": 0, "delta": 3},
        delta(0, "text_delta", text=3),
        delta(0, "thinking_delta", thinking=["x"]),
        {"type": "content_block_stop", "index": -1},
        {"type": "message_delta", "delta": {"stop_reason": 3}},
        {"type": "message_delta", "delta": {}, "usage": {"output_tokens": "many"}},
    ],
)
def test_a_malformed_event_fails_by_name(event: dict[str, Any]) -> None:
    with pytest.raises(ModelFailed, match="malformed model event"):
        read(BEGIN, start(0, type="text", text=""), event, *end())


def test_an_answer_without_its_end_is_broken_and_one_without_a_reason_is_nonsense() -> None:
    with pytest.raises(ModelStreamBroken):
        read(BEGIN, end()[0])
    with pytest.raises(ModelFailed):
        read(BEGIN, end()[1])


def test_an_answer_has_the_names_that_the_service_gave_it() -> None:
    begin = {"type": "message_start", "message": {**BEGIN["message"], "id": "msg_1", "model": "claude-4"}}
    answer = read(begin, start(0, type="text", text="Hi"), stop(0), *end())
    assert (answer.response_id, answer.response_model) == ("msg_1", "claude-4")
