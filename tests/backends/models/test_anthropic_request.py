"""What is sent to the Messages API: settings and a conversation as arguments of the SDK's call."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from repertory.backends.models.anthropic import AnthropicConfig, counting_arguments, messages_arguments
from repertory.backends.models.content import BLANK_TEXT
from repertory.backends.models.fitting import NO_OUTPUT_TEXT
from repertory.backends.models.provider import model_call
from repertory.core.messages import Message, ToolSpec
from repertory.errors import Invalid


def text(said: str) -> dict[str, Any]:
    return {"type": "text", "text": said}


HELLO: list[Message] = [{"role": "user", "content": [{"text": "Hello"}]}]
ADD: list[ToolSpec] = [{"name": "add", "description": "", "inputSchema": {"json": {"type": "object"}}}]
ADDING = {"name": "add", "description": "add", "input_schema": {"type": "object"}}
MARK: Any = {"cachePoint": {"type": "default"}}
MARKED = {"cache_control": {"type": "ephemeral"}}
PIXEL = b"\x89PNG"
PIXEL_TEXT = base64.b64encode(PIXEL).decode()


def arguments(
    config: AnthropicConfig | None = None,
    messages: list[Message] = HELLO,
    tool_specs: list[ToolSpec] | None = None,
    system_prompt: str | None = None,
    **options: Any,
) -> dict[str, Any]:
    settings: AnthropicConfig = {"model_id": "m", "max_tokens": 9, **(config or {})}
    return messages_arguments(model_call(settings, messages, tool_specs, system_prompt, options))


def content(*blocks: Any, role: Any = "user") -> Any:
    """The blocks of one message as they are sent."""
    before = HELLO if role == "assistant" else []
    return arguments(messages=[*before, {"role": role, "content": list(blocks)}])["messages"][-1]["content"]


def test_nothing_is_sent_that_was_not_set() -> None:
    sent = {"model": "m", "max_tokens": 9, "stream": True}
    assert arguments() == {**sent, "messages": [{"role": "user", "content": [text("Hello")]}]}
    assert "stream" not in arguments({"streaming": False})


def test_what_is_ours_never_leaves() -> None:
    message: Message = {"role": "user", "content": [{"text": "a"}], "metadata": {"custom": {}}, "tracking_id": "x"}
    assert arguments(messages=[message])["messages"] == [{"role": "user", "content": [text("a")]}]
    assert message["tracking_id"] == "x"


THINKING = {"reasoningContent": {"reasoningText": {"text": "Hm", "signature": "sig"}}}
CITED = {"citationsContent": {"content": [{"text": "It "}, {"text": "is."}], "citations": []}}


@pytest.mark.parametrize(
    ("block", "sent"),
    [
        ({"text": "a"}, text("a")),
        ({"guardContent": {"text": {"text": "a"}}}, text("a")),
        (CITED, text("It is.")),
        (THINKING, {"type": "thinking", "thinking": "Hm", "signature": "sig"}),
        (
            {"reasoningContent": {"reasoningText": {"text": "", "signature": "sig"}}},
            {"type": "thinking", "thinking": "", "signature": "sig"},
        ),
        ({"reasoningContent": {"redactedContent": b"abc=="}}, {"type": "redacted_thinking", "data": "abc=="}),
        ({"reasoningContent": {"redactedContent": b"\xff"}}, {"type": "redacted_thinking", "data": "/w=="}),
        (
            {"toolUse": {"toolUseId": "t1", "name": "add", "input": {"a": 1}}},
            {"type": "tool_use", "id": "t1", "name": "add", "input": {"a": 1}},
        ),
        (
            {"toolUse": {"toolUseId": "t1", "name": "add", "input": [1]}},
            {"type": "tool_use", "id": "t1", "name": "add", "input": {"input": [1]}},
        ),
        (
            {"image": {"format": "jpg", "source": {"bytes": PIXEL}}},
            {"type": "image", "source": {"type": "base64", "media_type": "image/jpeg", "data": PIXEL_TEXT}},
        ),
        (
            {"document": {"format": "pdf", "name": "bill", "source": {"bytes": PIXEL}, "context": "of May"}},
            {
                "type": "document",
                "title": "bill",
                "context": "of May",
                "source": {"type": "base64", "media_type": "application/pdf", "data": PIXEL_TEXT},
            },
        ),
        (
            {"document": {"format": "md", "name": "a", "source": {"bytes": "é".encode()}}},
            {"type": "document", "title": "a", "source": {"type": "text", "media_type": "text/plain", "data": "é"}},
        ),
        (
            {"document": {"name": "a", "source": {"text": "b"}, "citations": {"enabled": True}}},
            {
                "type": "document",
                "title": "a",
                "source": {"type": "text", "media_type": "text/plain", "data": "b"},
                "citations": {"enabled": True},
            },
        ),
        (
            {"document": {"name": "a", "source": {"content": [{"text": "b"}, {"text": "c"}]}}},
            {
                "type": "document",
                "title": "a",
                "source": {
                    "type": "content",
                    "content": [text("b"), text("c")],
                },
            },
        ),
    ],
)
def test_a_block_is_spelled_as_the_service_does(block: Any, sent: Any) -> None:
    role = "assistant" if {"reasoningContent", "toolUse"} & block.keys() else "user"
    assert content(block, role=role) == [sent]


@pytest.mark.parametrize(
    ("result", "sent"),
    [
        (
            {"content": [{"text": "no"}], "status": "error"},
            {"content": [text("no")], "is_error": True},
        ),
        (
            {"content": [{"json": {"a": "é"}}], "status": "success"},
            {"content": [text('{"a": "é"}')]},
        ),
        ({"content": [], "status": "success"}, {"content": [text(NO_OUTPUT_TEXT)]}),
        ({"content": [{"text": " "}, MARK]}, {"content": [text(NO_OUTPUT_TEXT)]}),
        ({"content": [], "status": "error"}, {"content": [text(NO_OUTPUT_TEXT)], "is_error": True}),
        (
            {"content": [{"image": {"format": "png", "source": {"bytes": PIXEL}}}]},
            {
                "content": [
                    {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PIXEL_TEXT}}
                ]
            },
        ),
    ],
)
def test_a_tool_result_holds_text_images_and_documents(result: Any, sent: Any) -> None:
    assert content({"toolResult": {"toolUseId": "t1", **result}}) == [
        {"type": "tool_result", "tool_use_id": "t1", **sent}
    ]


@pytest.mark.parametrize(
    ("block", "words"),
    [
        ({"video": {"format": "mp4", "source": {"bytes": b""}}}, "video"),
        ({"image": {"format": "tiff", "source": {"bytes": b""}}}, "image.*png"),
        ({"image": {"format": "png", "source": {"location": {"type": "s3"}}}}, "image.*bytes"),
        ({"document": {"format": "docx", "name": "a", "source": {"bytes": b""}}}, "document.*docx"),
        ({"document": {"format": "txt", "name": "a", "source": {"bytes": b"\xff"}}}, "document.*UTF-8"),
        ({"document": {"format": "pdf", "name": "a", "source": {"s3Location": {}}}}, "document.*bytes"),
        ({}, "empty"),
    ],
)
def test_what_the_service_cannot_take_is_refused_by_name(block: Any, words: str) -> None:
    with pytest.raises(Invalid, match=f"Anthropic cannot take this {words}"):
        content(block)


def test_a_tool_result_stands_before_text() -> None:
    """The service wants it there."""
    result = {"toolResult": {"toolUseId": "t1", "status": "success", "content": []}}
    assert [block["type"] for block in content({"text": "And then?"}, result)] == ["tool_result", "text"]


def test_blank_text_is_dropped_beside_other_blocks_and_named_when_alone() -> None:
    """The service refuses blank text."""
    assert content({"text": " \n"}, {"text": "a"}) == [text("a")]
    assert content({"text": ""}) == [text(BLANK_TEXT)]


def test_reasoning_of_another_service_is_left_out() -> None:
    """It has no signature, without which the service refuses it."""
    unsigned = {"reasoningContent": {"reasoningText": {"text": "Hm"}}}
    assert content(unsigned, {"text": "a"}, role="assistant") == [text("a")]
    assert content(unsigned, role="assistant") == [text(BLANK_TEXT)]


def test_a_cache_point_marks_what_stands_before_it() -> None:
    assert content({"text": "a"}, MARK, {"text": "b"}) == [
        text("a") | MARKED,
        text("b"),
    ]
    assert content(MARK, {"text": "a"}) == [text("a")]
    hour = {"cachePoint": {"type": "default", "ttl": "1h"}}
    assert content({"text": "a"}, hour)[0]["cache_control"] == {"type": "ephemeral", "ttl": "1h"}


def test_reasoning_cannot_be_marked_so_the_block_before_it_is() -> None:
    marked, thinking = content({"text": "a"}, THINKING, MARK, role="assistant")
    assert marked == text("a") | MARKED
    assert "cache_control" not in thinking


@pytest.mark.parametrize(
    ("config", "prompt", "blocks", "sent"),
    [
        ({}, "Be brief.", None, "Be brief."),
        ({}, " ", None, None),
        ({}, None, None, None),
        ({"cache_prompt": "default"}, "Be brief.", None, [text("Be brief.") | MARKED]),
        ({"cache_prompt": "default"}, None, None, None),
        (
            {},
            "no",
            [{"text": "a"}, MARK, {"text": "b"}],
            [text("a") | MARKED, text("b")],
        ),
        ({}, "no", [], None),
    ],
)
def test_the_system_prompt_is_text_or_blocks_which_win(
    config: AnthropicConfig, prompt: str | None, blocks: Any, sent: Any
) -> None:
    assert arguments(config, system_prompt=prompt, system_prompt_content=blocks).get("system") == sent


def test_tools_and_their_cache_point() -> None:
    assert arguments(tool_specs=ADD)["tools"] == [ADDING]
    assert arguments({"cache_tools": "default"}, tool_specs=ADD)["tools"] == [ADDING | MARKED]
    assert arguments(tool_specs=[*ADD, MARK, *ADD])["tools"] == [ADDING | MARKED, ADDING]
    assert "tools" not in arguments()


def test_a_history_with_tool_blocks_always_has_a_tool_list() -> None:
    use: Message = {"role": "assistant", "content": [{"toolUse": {"toolUseId": "t1", "name": "add", "input": {}}}]}
    assert arguments(messages=[*HELLO, use])["tools"][0]["name"] == "noop"


@pytest.mark.parametrize(
    ("choice", "sent"),
    [
        ({"auto": {}}, {"type": "auto"}),
        ({"any": {}}, {"type": "any"}),
        ({"tool": {"name": "add"}}, {"type": "tool", "name": "add"}),
        (None, None),
    ],
)
def test_a_tool_choice_is_spelled_as_the_service_does(choice: Any, sent: Any) -> None:
    assert arguments(tool_specs=ADD, tool_choice=choice).get("tool_choice") == sent
    assert "tool_choice" not in arguments(tool_choice=choice)


@pytest.mark.parametrize("choice", [{"sometimes": {}}, {"tool": "add"}, "auto", {}])
def test_a_tool_choice_that_is_none_of_the_three_is_refused(choice: Any) -> None:
    with pytest.raises(Invalid, match="tool_choice"):
        arguments(tool_specs=ADD, tool_choice=choice)


def test_params_win_and_unknown_fields_go_past_the_sdk() -> None:
    params = {"max_tokens": 5, "temperature": 0.1, "stream": None, "top_k": None, "extra_headers": {"a": "b"}}
    sent = arguments({"params": {**params, "extra_body": {"new": 1}}})
    assert (sent["max_tokens"], sent["extra_headers"]) == (5, {"a": "b"})
    assert sent["extra_body"] == {"new": 1, "temperature": 0.1}
    assert "stream" not in sent


THOUGHT = {"type": "enabled", "budget_tokens": 1024}


def test_counting_sends_the_conversation_and_nothing_else() -> None:
    config: AnthropicConfig = {
        "model_id": "m",
        "max_tokens": 9,
        "params": {"thinking": THOUGHT, "top_k": 1},
    }
    sent = counting_arguments(model_call(config, HELLO, ADD, "Be brief.", {}))
    assert sent.keys() == {"model", "messages", "tools", "system", "thinking"}
    assert sent["thinking"] == THOUGHT
