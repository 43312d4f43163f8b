"""Assembling a stream of events into one message: what is built, what is forgiven, what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from repertory.core.answer import TOOL_USES_MAX, Answer, Assembler
from repertory.core.messages import tool_uses
from repertory.errors import ModelFailed, ModelStreamBroken, TooLarge
from tests.read_streams import text_delta

START = {"messageStart": {"role": "assistant"}}
TOOL_START = {"contentBlockStart": {"start": {"toolUse": {"toolUseId": "t1", "name": "add"}}}}
END_BLOCK = {"contentBlockStop": {}}


def stop(reason: str = "end_turn") -> dict[str, Any]:
    return {"messageStop": {"stopReason": reason}}


def delta(**delta: object) -> dict[str, Any]:
    return {"contentBlockDelta": {"delta": delta}}


def text(piece: str) -> dict[str, Any]:
    return delta(text=piece)


def tool_input(piece: str) -> dict[str, Any]:
    return delta(toolUse={"input": piece})


def assembled(*events: object) -> Answer:
    assembler = Assembler()
    for event in events:
        assembler.feed(event)
    return assembler.finish()


def at(index: int, event: dict[str, Any]) -> dict[str, Any]:
    """The same event, saying which block it speaks of."""
    ((name, body),) = event.items()
    return {name: {**body, "contentBlockIndex": index}}


def test_pieces_of_text_become_one_block() -> None:
    answer = assembled(START, at(0, text("Hel")), at(0, text("lo")), at(0, END_BLOCK), stop())
    assert answer.message == {"role": "assistant", "content": [{"text": "Hello"}]}
    assert answer.stop_reason == "end_turn"
    assert not answer.truncated


def test_ceremony_may_be_left_out() -> None:
    """Models brought by users leave out what a text answer does not need."""
    assert assembled(text("Hi"), stop()).message["content"] == [{"text": "Hi"}]


def test_an_announced_text_block_is_the_same_as_an_unannounced_one() -> None:
    announced = {"contentBlockStart": {"contentBlockIndex": 0, "start": {}}}
    assert assembled(START, announced, at(0, text("Hi")), at(0, END_BLOCK), stop()).message["content"] == [
        {"text": "Hi"}
    ]


def test_blocks_that_interleave_are_told_apart_by_their_index() -> None:
    answer = assembled(START, at(0, text("a")), at(1, text("x")), at(0, text("b")), at(1, text("y")), stop())
    assert answer.message["content"] == [{"text": "ab"}, {"text": "xy"}]


def test_tool_input_is_parsed_when_all_of_it_has_come() -> None:
    answer = assembled(START, TOOL_START, tool_input('{"a": '), tool_input("1}"), END_BLOCK, stop("tool_use"))
    assert answer.message["content"] == [{"toolUse": {"toolUseId": "t1", "name": "add", "input": {"a": 1}}}]
    assert answer.stop_reason == "tool_use"
    assert answer.invalid_inputs == {}


@pytest.mark.parametrize("pieces", [[], [""], ["  "]])
def test_no_tool_input_means_an_empty_object(pieces: list[str]) -> None:
    answer = assembled(START, TOOL_START, *map(tool_input, pieces), END_BLOCK, stop("tool_use"))
    assert answer.message["content"] == [{"toolUse": {"toolUseId": "t1", "name": "add", "input": {}}}]


@pytest.mark.parametrize(
    "raw",
    ['{"a": 1', "no json", '{"a": NaN}', '{"a": "\\ud800"}', "[" * 50_000, '{"a": ' + "9" * 5_000 + "}"],
    ids=["cut", "prose", "nan", "half a surrogate pair", "too deep", "too long a number"],
)
def test_tool_input_that_is_not_json_leaves_the_raw_text_beside_the_message(raw: str) -> None:
    """A turn survives a model's bad JSON: the agent answers that tool use with an error."""
    answer = assembled(START, TOOL_START, tool_input(raw), END_BLOCK, stop("tool_use"))
    assert answer.message["content"] == [{"toolUse": {"toolUseId": "t1", "name": "add", "input": {}}}]
    assert answer.invalid_inputs == {"t1": raw}
    assert not answer.truncated


@pytest.mark.parametrize("reason", ["max_tokens", "model_context_window_exceeded"])
@pytest.mark.parametrize("pieces", [['{"a": 1'], []], ids=["half", "not begun"])
def test_a_tool_use_cut_off_by_a_token_limit_is_dropped(pieces: list[str], reason: str) -> None:
    answer = assembled(
        START, text("I will"), at(0, END_BLOCK), at(1, TOOL_START), *map(tool_input, pieces), stop(reason)
    )
    assert answer.message["content"] == [{"text": "I will"}]
    assert answer.truncated
    assert answer.invalid_inputs == {}


def test_a_whole_tool_use_before_the_token_limit_stays() -> None:
    answer = assembled(START, TOOL_START, tool_input('{"a": 1}'), END_BLOCK, stop("max_tokens"))
    assert answer.message["content"] == [{"toolUse": {"toolUseId": "t1", "name": "add", "input": {"a": 1}}}]
    assert not answer.truncated


def test_reasoning_keeps_its_signature() -> None:
    answer = assembled(
        START,
        at(0, delta(reasoningContent={"text": "Let me "})),
        at(0, delta(reasoningContent={"text": "think"})),
        at(0, delta(reasoningContent={"signature": "abc"})),
        at(0, END_BLOCK),
        at(1, text("42")),
        stop(),
    )
    reasoning = {"reasoningText": {"text": "Let me think", "signature": "abc"}}
    assert answer.message["content"] == [{"reasoningContent": reasoning}, {"text": "42"}]


def test_redacted_reasoning_is_kept_as_bytes() -> None:
    answer = assembled(START, delta(reasoningContent={"redactedContent": b"\x00\x01"}), stop())
    assert answer.message["content"] == [{"reasoningContent": {"redactedContent": b"\x00\x01"}}]


def test_citations_stand_beside_their_text() -> None:
    citation = {"title": "A page", "location": {"web": {"url": "https://example.org"}}}
    answer = assembled(START, at(0, text("So it is")), at(0, delta(citation=citation)), stop())
    content = {"content": [{"text": "So it is"}], "citations": [citation]}
    assert answer.message["content"] == [{"citationsContent": content}]


def test_an_answer_that_says_nothing_has_one_empty_text() -> None:
    """A stored message has at least one block."""
    assert assembled(START, stop()).message["content"] == [{"text": ""}]


def test_empty_text_beside_other_blocks_is_left_out() -> None:
    """Providers refuse empty text when the message is sent back to them."""
    answer = assembled(START, at(0, text("")), at(0, END_BLOCK), at(1, TOOL_START), at(1, END_BLOCK), stop("tool_use"))
    assert answer.message["content"] == [{"toolUse": {"toolUseId": "t1", "name": "add", "input": {}}}]


def test_metadata_gives_usage_and_latency() -> None:
    usage = {"inputTokens": 10, "outputTokens": 5, "totalTokens": 15, "cacheReadInputTokens": 3}
    answer = assembled(START, text("a"), stop(), {"metadata": {"usage": usage, "metrics": {"latencyMs": 12}}})
    assert answer.usage == usage
    assert answer.latency_ms == 12.0


def test_usage_is_zero_and_latency_unknown_when_nobody_says() -> None:
    answer = assembled(START, text("a"), stop())
    assert answer.usage == {"inputTokens": 0, "outputTokens": 0, "totalTokens": 0}
    assert answer.latency_ms is None


def test_the_total_is_summed_when_it_is_left_out() -> None:
    answer = assembled(text("a"), stop(), {"metadata": {"usage": {"inputTokens": 10, "outputTokens": 5}}})
    assert answer.usage["totalTokens"] == 15


def test_a_guardrail_may_replace_what_both_sides_said() -> None:
    redact = {"redactUserContentMessage": "[hidden]", "redactAssistantContentMessage": "[refused]"}
    answer = assembled(START, text("secret"), stop("guardrail_intervened"), {"redactContent": redact})
    assert answer.redact_user == "[hidden]"
    assert answer.message["content"] == [{"text": "[refused]"}]


def test_unknown_events_deltas_and_stop_reasons_are_no_errors() -> None:
    """Providers add events."""
    answer = assembled(START, {"novelty": 1}, delta(hologram={}), text("a"), delta(hologram={}), stop("new_reason"))
    assert answer.message["content"] == [{"text": "a"}]
    assert answer.stop_reason == "new_reason"


def test_no_part_of_an_answer_holds_half_of_a_surrogate_pair() -> None:
    lone = "x\ud800"
    answer = assembled(
        {"contentBlockStart": {"contentBlockIndex": 0, "start": {"toolUse": {"toolUseId": lone, "name": lone}}}},
        {"contentBlockStart": {"contentBlockIndex": 1, "start": {"toolUse": {"toolUseId": "x\udfff", "name": "n"}}}},
        {"contentBlockStart": {"contentBlockIndex": 2, "start": {"reasoningContent": {"provider": lone}}}},
        {"contentBlockDelta": {"contentBlockIndex": 2, "delta": {"reasoningContent": {"signature": lone}}}},
        {"contentBlockStart": {"contentBlockIndex": 3, "start": {"providerContent": {"provider": "p"}}}},
        {"contentBlockDelta": {"contentBlockIndex": 3, "delta": {"providerContent": {"content": {lone: [lone]}}}}},
        {"contentBlockDelta": {"contentBlockIndex": 4, "delta": {"text": "a"}}},
        {"contentBlockDelta": {"contentBlockIndex": 4, "delta": {"citation": {"title": lone}}}},
        {"redactContent": {"redactUserContentMessage": lone}},
        stop(lone),
    )
    json.dumps([answer.message, answer.stop_reason, answer.redact_user], ensure_ascii=False).encode()
    first, second = list(tool_uses(answer.message))
    assert (first["toolUseId"], second["toolUseId"]) == ("x\ufffd", "x\ufffd-2"), "two ids stay two"


def test_split_surrogate_pairs_are_joined_and_halves_replaced() -> None:
    """What cannot be written as UTF-8 must not reach a journal."""
    assert assembled(text("\ud83d"), text("\ude00"), stop()).message["content"] == [{"text": "\U0001f600"}]
    assert assembled(text("a\ud83d"), stop()).message["content"] == [{"text": "a\ufffd"}]


def test_a_stream_without_its_end_is_broken() -> None:
    with pytest.raises(ModelStreamBroken):
        assembled(START, text("half an ans"))


MALFORMED: list[tuple[str, list[object]]] = [
    ("(unnamed)", ["text"]),
    ("(unnamed)", [None]),
    ("messageStart", [{"messageStart": "assistant"}]),
    ("messageStart", [{"messageStart": {"role": "user"}}]),
    ("messageStart", [START, START]),
    ("messageStart", [text("a"), START]),
    ("contentBlockStart", [{"contentBlockStart": {"start": {"toolUse": "t1"}}}]),
    ("contentBlockStart", [{"contentBlockStart": {"start": {"toolUse": {"toolUseId": "t1"}}}}]),
    ("contentBlockStart", [{"contentBlockStart": {"start": {"toolUse": {"toolUseId": "", "name": "add"}}}}]),
    ("contentBlockStart", [{"contentBlockStart": {"start": {}, "contentBlockIndex": "0"}}]),
    ("contentBlockStart", [TOOL_START, TOOL_START]),
    ("contentBlockStart", [stop(), TOOL_START]),
    ("contentBlockDelta", [{"contentBlockDelta": None}]),
    ("contentBlockDelta", [{"contentBlockDelta": {}}]),
    ("contentBlockDelta", [{"contentBlockDelta": {"delta": "a"}}]),
    ("contentBlockDelta", [{"contentBlockDelta": {"delta": {"text": "a"}, "contentBlockIndex": []}}]),
    ("contentBlockDelta", [text(1)]),  # type: ignore[arg-type]
    ("contentBlockDelta", [tool_input("{}")]),
    ("contentBlockDelta", [TOOL_START, text("a")]),
    ("contentBlockDelta", [TOOL_START, tool_input(3)]),  # type: ignore[arg-type]
    ("contentBlockDelta", [TOOL_START, delta(toolUse="x")]),
    ("contentBlockDelta", [text("a"), tool_input("{}")]),
    ("contentBlockDelta", [delta(reasoningContent={"text": 1})]),
    ("contentBlockDelta", [delta(reasoningContent="x")]),
    ("contentBlockDelta", [delta(reasoningContent={"text": "a"}), text("b")]),
    ("contentBlockDelta", [delta(citation="x")]),
    ("contentBlockDelta", [stop(), text("a")]),
    ("contentBlockStop", [{"contentBlockStop": 0}]),
    ("messageStop", [{"messageStop": {}}]),
    ("messageStop", [{"messageStop": {"stopReason": 1}}]),
    ("messageStop", [stop(), stop()]),
    ("metadata", [{"metadata": []}]),
    ("metadata", [{"metadata": {"usage": 1}}]),
    ("metadata", [{"metadata": {"usage": {"inputTokens": "1"}}}]),
    ("metadata", [{"metadata": {"usage": {"inputTokens": -1}}}]),
    ("redactContent", [{"redactContent": {"redactUserContentMessage": 1}}]),
]


@pytest.mark.parametrize(("name", "events"), MALFORMED, ids=[f"{name}-{n}" for n, (name, _) in enumerate(MALFORMED)])
def test_a_malformed_event_is_refused_by_name(name: str, events: list[object]) -> None:
    with pytest.raises(ModelFailed) as caught:
        assembled(*events)
    assert caught.value.fields["event"] == name


def test_text_delta_is_what_the_user_sees() -> None:
    assert text_delta(text("a")) == "a"
    others: list[dict[str, Any]] = [START, tool_input("{}"), delta(reasoningContent={"text": "a"}), {}]
    assert [text_delta(event) for event in [*others, {"contentBlockDelta": 1}, text(1)]] == [None] * 6  # type: ignore[arg-type]


def test_a_part_that_only_its_provider_can_read_is_kept_as_it_came_and_in_its_place() -> None:
    search = {"type": "server_tool_use", "id": "srv1", "name": "web_search", "input": {"query": "rain"}}
    start = {"contentBlockStart": {"start": {"providerContent": {"provider": "anthropic"}}}}
    answer = assembled(
        START,
        at(0, text("Let me look.")),
        at(1, start),
        at(2, text("It rains.")),
        at(1, delta(providerContent={"content": search})),
        at(1, END_BLOCK),
        stop(),
    )
    assert answer.message["content"] == [
        {"text": "Let me look."},
        {"providerContent": {"provider": "anthropic", "content": search}},
        {"text": "It rains."},
    ]


def test_a_part_that_was_begun_and_never_came_is_none() -> None:
    start = {"contentBlockStart": {"start": {"providerContent": {"provider": "openai"}}}}
    assert assembled(at(0, start), at(0, END_BLOCK), at(1, text("Hi")), stop()).message["content"] == [{"text": "Hi"}]


def test_reasoning_says_whose_it_is() -> None:
    start = {"contentBlockStart": {"start": {"reasoningContent": {"provider": "gemini"}}}}
    pieces = [delta(reasoningContent={"text": "Hm."}), delta(reasoningContent={"signature": "c2ln"})]
    (block,) = assembled(start, *pieces, END_BLOCK, stop()).message["content"]
    assert block == {"reasoningContent": {"reasoningText": {"text": "Hm.", "signature": "c2ln"}, "provider": "gemini"}}


@pytest.mark.parametrize("kind", ["image", "audio", "video"])
def test_the_bytes_of_a_medium_arrive_in_pieces(kind: str) -> None:
    start = {"contentBlockStart": {"start": {kind: {"format": "x"}}}}
    pieces = [delta(**{kind: {"source": {"bytes": piece}}}) for piece in (b"ab", b"c")]
    (block,) = assembled(start, *pieces, END_BLOCK, stop()).message["content"]
    assert block == {kind: {"format": "x", "source": {"bytes": b"abc"}}}


def test_a_tool_use_id_that_an_answer_repeats_becomes_another_one() -> None:
    """Results name ids, so two uses need two of them."""
    answer = assembled(TOOL_START, END_BLOCK, TOOL_START, END_BLOCK, TOOL_START, END_BLOCK, stop("tool_use"))
    assert [use["toolUseId"] for use in tool_uses(answer.message)] == ["t1", "t1-2", "t1-3"]


def test_tokens_of_other_calls_are_told_beside_the_usage() -> None:
    usage = {"inputTokens": 100, "outputTokens": 20, "totalTokens": 120}
    answer = assembled(text("Hi"), stop(), {"metadata": {"usage": usage, "otherCallsTokens": 90}})
    assert answer.usage["totalTokens"] == 120
    assert answer.other_calls_tokens == 90


def test_no_tool_use_has_the_id_of_an_earlier_one() -> None:
    assembler = Assembler(used_ids=["t1", "t1-2"])
    for event in (TOOL_START, END_BLOCK, TOOL_START, END_BLOCK, stop("tool_use")):
        assembler.feed(event)
    assert [use["toolUseId"] for use in tool_uses(assembler.finish().message)] == ["t1-3", "t1-4"]


def test_an_answer_without_tool_uses_looks_through_no_earlier_ones() -> None:
    """A long conversation has many, and each of its model calls is an answer."""
    earlier = iter(["t1"])
    assembler = Assembler(used_ids=earlier)
    for event in (text("Hi"), stop()):
        assembler.feed(event)
    assembler.finish()
    assert next(earlier) == "t1"


def test_the_tool_uses_of_an_answer_are_bounded() -> None:
    uses = [TOOL_START, END_BLOCK] * TOOL_USES_MAX
    assert len(list(tool_uses(assembled(*uses, stop("tool_use")).message))) == TOOL_USES_MAX
    with pytest.raises(TooLarge, match="tool uses"):
        assembled(*uses, TOOL_START)
