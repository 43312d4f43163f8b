"""An answer of one provider, with everything that it may hold, is stored whole and goes on with every other one."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import pytest

from repertory.backends.models.anthropic_answers import MessagesReader
from repertory.backends.models.bedrock_answers import events_of_whole
from repertory.backends.models.chat_services import chat_service
from repertory.backends.models.completions import CompletionReader
from repertory.backends.models.gemini_answer import ContentReader
from repertory.backends.models.response_reader import ResponseReader
from repertory.backends.models.responses import RESPONSES
from repertory.core.answer import Assembler
from repertory.core.messages import Message
from tests.backends.models.any_history import CODE_RESULT, CODE_USE, PNG, SEARCH_RESULT, SEARCH_USE, SIGNATURE
from tests.backends.models.test_any_provider import MODELS, TOOLS, accepted

USAGE = {"input_tokens": 3, "output_tokens": 5}
ANTHROPIC: dict[str, Any] = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "claude",
    "content": [
        {"type": "thinking", "thinking": "Hm.", "signature": SIGNATURE},
        {"type": "redacted_thinking", "data": "cmVkYWN0ZWQ="},
        {"type": "text", "text": "I look."},
        SEARCH_USE,
        SEARCH_RESULT,
        {
            "type": "text",
            "text": "It rains.",
            "citations": [
                {
                    "type": "web_search_result_location",
                    "url": "https://r",
                    "title": "Rain",
                    "encrypted_index": "abc",
                    "cited_text": "rain",
                }
            ],
        },
        CODE_USE,
        CODE_RESULT,
        {"type": "tool_use", "id": "toolu_1", "name": "fetch", "input": {"a": 1}},
    ],
    "stop_reason": "tool_use",
    "usage": USAGE,
}
CHAT: dict[str, Any] = {
    "id": "gen-1",
    "model": "m",
    "choices": [
        {
            "index": 0,
            "finish_reason": "tool_calls",
            "message": {
                "role": "assistant",
                "content": "It rains.",
                "reasoning": "Hm.",
                "reasoning_details": [{"type": "reasoning.text", "text": "Hm.", "signature": SIGNATURE, "index": 0}],
                "annotations": [
                    {
                        "type": "url_citation",
                        "url_citation": {"url": "https://r", "title": "Rain", "start_index": 0, "end_index": 9},
                    }
                ],
                "tool_calls": [
                    {"id": "functions.fetch:0", "type": "function", "function": {"name": "fetch", "arguments": "{}"}}
                ],
            },
        }
    ],
}
RESPONSE: dict[str, Any] = {
    "id": "resp_1",
    "model": "gpt",
    "status": "completed",
    "output": [
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "abc"},
        {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "rain"}},
        {
            "type": "message",
            "id": "msg_1",
            "role": "assistant",
            "status": "completed",
            "phase": "commentary",
            "content": [{"type": "output_text", "text": "It rains.", "annotations": []}],
        },
        {
            "type": "image_generation_call",
            "id": "ig_1",
            "status": "completed",
            "output_format": "png",
            "result": base64.b64encode(PNG).decode(),
        },
        {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "fetch", "arguments": "{}"},
    ],
    "usage": USAGE,
}
GEMINI: dict[str, Any] = {
    "candidates": [
        {
            "content": {
                "role": "model",
                "parts": [
                    {"text": "Hm.", "thought": True},
                    {
                        "executable_code": {"language": "PYTHON", "code": "print(2)"},
                        "thought_signature": base64.b64decode(SIGNATURE),
                    },
                    {"code_execution_result": {"outcome": "OUTCOME_OK", "output": "2"}},
                    {"text": "Two.", "thought_signature": base64.b64decode(SIGNATURE)},
                    {"inline_data": {"mime_type": "image/png", "data": PNG}},
                    {
                        "function_call": {"id": "f1", "name": "fetch", "args": {}},
                        "thought_signature": base64.b64decode(SIGNATURE),
                    },
                ],
            },
            "finish_reason": "STOP",
        }
    ],
    "usage_metadata": {"prompt_token_count": 3, "total_token_count": 8},
}
BEDROCK: dict[str, Any] = {
    "output": {
        "message": {
            "role": "assistant",
            "content": [
                {"reasoningContent": {"reasoningText": {"text": "Hm."}}},
                {"toolUse": {"toolUseId": "s1", "name": "nova_grounding", "input": {}, "type": "server_tool_use"}},
                {"toolResult": {"toolUseId": "s1", "type": "nova_grounding_result", "content": [{"text": "rain"}]}},
                {"text": "It rains."},
                {"toolUse": {"toolUseId": "tooluse_1", "name": "fetch", "input": {}}},
            ],
        }
    },
    "stopReason": "tool_use",
    "usage": {"inputTokens": 3, "outputTokens": 5, "totalTokens": 8},
}


def assembled(events: Iterator[Any]) -> Message:
    assembler = Assembler()
    for event in events:
        assembler.feed(event)
    return assembler.finish().message


def whole(reader: Any, answer: dict[str, Any]) -> Message:
    def events() -> Iterator[Any]:
        yield from reader.whole(answer) if hasattr(reader, "whole") else reader.feed(answer)
        yield from reader.finish()

    return assembled(events())


ANSWERS: dict[str, Message] = {
    "anthropic": whole(MessagesReader(), ANTHROPIC),
    "chat": whole(CompletionReader(chat_service("https://openrouter.ai/api/v1")), CHAT),
    "responses": whole(ResponseReader(RESPONSES), RESPONSE),
    "gemini": whole(ContentReader("seed"), GEMINI),
    "bedrock": assembled(events_of_whole(BEDROCK)),
}


def results(message: Message) -> Message:
    uses = [block["toolUse"]["toolUseId"] for block in message["content"] if "toolUse" in block]
    return {
        "role": "user",
        "content": [
            {"toolResult": {"toolUseId": use_id, "status": "error", "content": [{"text": ""}]}} for use_id in uses
        ],
    }


@pytest.mark.parametrize("provider", ANSWERS)
@pytest.mark.parametrize(("service", "model_id"), MODELS, ids=[f"{service} {model}" for service, model in MODELS])
def test_the_conversation_goes_on_inside_the_turn_and_after_it(provider: str, service: str, model_id: str) -> None:
    answer = ANSWERS[provider]
    begun: list[Message] = [{"role": "user", "content": [{"text": "Does it rain?"}]}, answer, results(answer)]
    accepted(service, model_id, begun, TOOLS)
    later: list[Message] = [
        *begun,
        {"role": "assistant", "content": [{"text": "It does."}]},
        {"role": "user", "content": [{"text": "And now?"}]},
    ]
    accepted(service, model_id, later, TOOLS)
    accepted(service, model_id, later[1:], [])  # As a window shows it that has no room for the prompt.


@pytest.mark.parametrize(
    ("provider", "kinds"),
    [
        (
            "anthropic",
            "reasoningContent reasoningContent text providerContent providerContent citationsContent providerContent "
            "providerContent toolUse",
        ),
        ("gemini", "reasoningContent providerContent providerContent text reasoningContent image toolUse"),
        ("bedrock", "reasoningContent providerContent providerContent text toolUse"),
    ],
)
def test_every_part_of_an_answer_is_a_block_in_its_place(provider: str, kinds: str) -> None:
    assert [next(iter(block)) for block in ANSWERS[provider]["content"]] == kinds.split()
