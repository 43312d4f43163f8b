"""What LiteLLM has of Anthropic in fields of its own: signed thinking, sources and server-side tools, and back.

The tests with the library run where it is installed, as those of `test_litellm_model.py`.
"""

from __future__ import annotations

from typing import Any

import pytest

from repertory import LiteLLMModel
from repertory.backends.models.litellm import LiteLLMReader, chat_behind
from repertory.backends.models.openai import completion_arguments
from repertory.backends.models.provider import model_call
from repertory.core.answer import Answer, Assembler
from tests.backends.models.sdk_services import (
    ANTHROPIC,
    HELLO,
    ask,
    block,
    chunk,
    message_end,
    message_start,
    needs_litellm,
)
from tests.backends.models.test_more_providers import TOOLS
from tests.backends.models.wire_server import SERVER_SENT_EVENTS, Exchange, wire_server

CLAUDE = {"model_id": "anthropic/claude-sonnet-4-6"}
QUESTION: Any = {"role": "user", "content": [{"text": "And?"}]}
SIGNED = {"reasoningContent": {"reasoningText": {"text": "Hm.", "signature": "c2ln"}, "provider": "anthropic"}}
REDACTED = {"reasoningContent": {"redactedContent": b"ZW5j", "provider": "anthropic"}}
BLOCKS = [
    {"type": "thinking", "thinking": "Hm.", "signature": "c2ln"},
    {"type": "redacted_thinking", "data": "ZW5j"},
]
CITED = {
    "type": "web_search_result_location",
    "url": "https://a.test",
    "title": "A",
    "cited_text": "words",
    "encrypted_index": "ZW5j",
}


def read(*deltas: dict[str, Any], config: dict[str, Any] = CLAUDE, finish: str = "stop") -> Answer:
    reader, assembler = LiteLLMReader(chat_behind(config)), Assembler()
    events = [each for piece in (*(chunk(delta) for delta in deltas), chunk({}, finish)) for each in reader.feed(piece)]
    for each in [*events, *reader.finish()]:
        assembler.feed(each)
    return assembler.finish()


def whole(message: dict[str, Any]) -> Answer:
    reader, assembler = LiteLLMReader(chat_behind(CLAUDE)), Assembler()
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    for each in [*reader.whole({"id": "c", "choices": [choice]}), *reader.finish()]:
        assembler.feed(each)
    return assembler.finish()


def sent(config: dict[str, Any], *blocks: Any) -> dict[str, Any]:
    messages: Any = [*HELLO, {"role": "assistant", "content": list(blocks)}, QUESTION]
    call = model_call(config, messages, None, None, {})
    return completion_arguments(call, "LiteLLM", chat=chat_behind(config))["messages"][1]


def test_signed_and_redacted_thinking_is_read_whole() -> None:
    answer = whole({"content": "4", "reasoning_content": "Hm.", "thinking_blocks": BLOCKS})
    assert answer.message["content"] == [SIGNED, REDACTED, {"text": "4"}]


def test_signed_and_redacted_thinking_is_read_from_pieces() -> None:
    pieces = [
        {"reasoning_content": "H", "thinking_blocks": [{"type": "thinking", "thinking": "H", "index": 0}]},
        {"reasoning_content": "m.", "thinking_blocks": [{"type": "thinking", "thinking": "m.", "index": 0}]},
        {"reasoning_content": "", "thinking_blocks": [{"type": "thinking", "thinking": "", "signature": "c2ln"}]},
        {"thinking_blocks": [BLOCKS[1]]},
        {"reasoning_content": "So", "thinking_blocks": [{"type": "thinking", "thinking": "So", "index": 2}]},
        {"thinking_blocks": [{"type": "thinking", "thinking": "", "signature": "bW9yZQ=="}]},
        {"content": "4"},
    ]
    third = {"reasoningContent": {"reasoningText": {"text": "So", "signature": "bW9yZQ=="}, "provider": "anthropic"}}
    assert read(*pieces).message["content"] == [SIGNED, REDACTED, third, {"text": "4"}]


def test_thinking_goes_back_to_claude_alone_and_only_when_it_is_signed() -> None:
    assert sent(CLAUDE, SIGNED, REDACTED, {"text": "4"})["thinking_blocks"] == BLOCKS
    unsigned = {"reasoningContent": {"reasoningText": {"text": "Hm."}, "provider": "anthropic"}}
    foreign = {"reasoningContent": {"reasoningText": {"text": "Hm.", "signature": "x"}, "provider": "gemini"}}
    assert sent(CLAUDE, unsigned, foreign, {"text": "4"}) == {"role": "assistant", "content": "4"}
    assert sent({"model_id": "openai/gpt-5.4"}, SIGNED, {"text": "4"}) == {"role": "assistant", "content": "4"}


def test_reasoning_goes_back_to_deepseek() -> None:
    config = {"model_id": "deepseek/deepseek-reasoner"}
    answer = read({"reasoning_content": "Hm."}, {"content": "4"}, config=config)
    assert answer.message["content"][0]["reasoningContent"]["provider"] == "deepseek"
    assert sent(config, *answer.message["content"])["reasoning_content"] == "Hm."
    assert "reasoning_content" not in sent({"model_id": "moonshot/kimi-k2"}, *answer.message["content"])


def test_what_the_provider_has_done_is_kept_and_goes_back() -> None:
    ran = {"id": "srvtoolu_1", "type": "function", "function": {"name": "web_search", "arguments": "{}"}}
    own = {"id": "t", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    fields = {"web_search_results": [{"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1"}]}
    answer = whole(
        {"content": "4", "tool_calls": [ran, own], "provider_specific_fields": {**fields, "citations": None}}
    )
    kept = {"provider_specific_fields": {**fields, "server_tool_calls": [ran]}}
    assert answer.message["content"] == [
        {"text": "4"},
        {"toolUse": {"toolUseId": "t", "name": "f", "input": {}}},
        {"providerContent": {"provider": "litellm", "content": kept}},
    ]
    message = sent(CLAUDE, *answer.message["content"])
    assert message["provider_specific_fields"] == kept["provider_specific_fields"]
    assert [call["id"] for call in message["tool_calls"]] == ["t"]


def test_a_compaction_goes_back() -> None:
    fields = {"compaction_blocks": [{"type": "compaction", "content": "Summary."}]}
    pieces = [{"provider_specific_fields": {**fields, "compaction_start": {"type": "compaction"}}}, {"content": "4"}]
    content = read(*pieces).message["content"]
    assert sent(CLAUDE, *content)["provider_specific_fields"] == fields


def test_sources_stand_with_the_text() -> None:
    pieces = [{"content": "It is so."}, {"content": "", "provider_specific_fields": {"citation": CITED}}]
    for answer in (
        read(*pieces),
        whole(
            {"content": "It is so.", "provider_specific_fields": {"citations": [[{**CITED, "supported_text": "x"}]]}}
        ),
    ):
        (found,) = answer.message["content"]
        cited = found["citationsContent"]
        assert cited["content"] == [{"text": "It is so."}]
        assert cited["citations"][0]["location"] == {"web": {"url": "https://a.test"}}
        assert cited["citations"][0]["encryptedIndex"] == "ZW5j"


def test_a_signature_of_gemini_goes_back_with_its_call() -> None:
    config = {"model_id": "gemini/gemini-3-pro"}
    call = {
        "index": 0,
        "id": "t",
        "function": {"name": "f", "arguments": "{}"},
        "provider_specific_fields": {"thought_signature": "c2ln"},
    }
    (use,) = read({"tool_calls": [call]}, config=config, finish="tool_calls").message["content"]
    assert use["toolUse"]["reasoningSignature"] == "c2ln"
    (made,) = sent(config, use)["tool_calls"]
    assert made["provider_specific_fields"] == {"thought_signature": "c2ln"}


@pytest.mark.anyio
@pytest.mark.real_time
@needs_litellm
@pytest.mark.parametrize("anyio_backend", ["asyncio"], indirect=True)
@pytest.mark.parametrize("streaming", [True, False])
async def test_thinking_between_two_calls_returns_to_claude(streaming: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    think = {"type": "thinking", "thinking": "Hm.", "signature": "c2ln"}
    hidden = {"type": "redacted_thinking", "data": "ZW5j"}
    use = {"type": "tool_use", "id": "toolu_1", "name": "add", "input": {"a": 2}}
    thought = ({"type": "thinking_delta", "thinking": "Hm."}, {"type": "signature_delta", "signature": "c2ln"})
    events = [
        message_start(),
        *block(0, {"type": "thinking", "thinking": "", "signature": ""}, *thought),
        *block(1, hidden),
        *block(2, {**use, "input": {}}, {"type": "input_json_delta", "partial_json": '{"a": 2}'}),
        *message_end("tool_use"),
    ]

    async def handle(exchange: Exchange) -> None:
        if streaming:
            await exchange.stream(*events, media=SERVER_SENT_EVENTS)
        else:
            await exchange.answer(200, {**ANTHROPIC.whole, "content": [think, hidden, use], "stop_reason": "tool_use"})

    async with wire_server(handle) as server:
        model = LiteLLMModel({"api_key": "key", "api_base": server.url}, **CLAUDE, streaming=streaming)
        answer = await ask(model, tool_specs=TOOLS)
        result: Any = {"toolResult": {"toolUseId": "toolu_1", "status": "success", "content": [{"text": "4"}]}}
        await ask(model, [*HELLO, answer.message, {"role": "user", "content": [result]}], tool_specs=TOOLS)
        await model.aclose()
        sent_on = server.requests[1].body["messages"][1]["content"]
    assert answer.message["content"] == [
        SIGNED,
        REDACTED,
        {"toolUse": {"toolUseId": "toolu_1", "name": "add", "input": {"a": 2}}},
    ]
    assert sent_on[:2] == [think, hidden]
    assert sent_on[2]["type"] == "tool_use"
