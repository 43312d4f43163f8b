"""What is sent to Chat Completions: settings and a conversation as arguments of the SDK's call."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from repertory.backends.models.content import BLANK_TEXT
from repertory.backends.models.fitting import NO_OUTPUT_TEXT
from repertory.backends.models.openai import ATTACHED, OpenAIConfig, completion_arguments
from repertory.backends.models.provider import model_call
from repertory.core.messages import Message, ToolSpec
from repertory.errors import Invalid

HELLO: list[Message] = [{"role": "user", "content": [{"text": "Hello"}]}]
ADD: list[ToolSpec] = [{"name": "add", "description": "", "inputSchema": {"json": {"type": "object"}}}]
MARK: Any = {"cachePoint": {"type": "default"}}
PIXEL = b"\x89PNG"
PIXEL_TEXT = base64.b64encode(PIXEL).decode()
PICTURE = {"image": {"format": "png", "source": {"bytes": PIXEL}}}
PICTURE_PART = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL_TEXT}"}}
THINKING = {"reasoningContent": {"reasoningText": {"text": "Hm"}}}


def arguments(
    config: OpenAIConfig | None = None,
    messages: list[Message] = HELLO,
    tool_specs: list[ToolSpec] | None = None,
    system_prompt: str | None = None,
    **options: Any,
) -> dict[str, Any]:
    settings: OpenAIConfig = {"model_id": "m", **(config or {})}
    return completion_arguments(model_call(settings, messages, tool_specs, system_prompt, options))


def sent(*blocks: Any, role: Any = "user", config: OpenAIConfig | None = None) -> Any:
    """The messages that one message becomes; an answer has a prompt before it."""
    before: list[Message] = [{"role": "user", "content": [{"text": "Hello"}]}] if role == "assistant" else []
    return arguments(config, [*before, {"role": role, "content": list(blocks)}])["messages"][len(before) :]


def tool_call(written: str) -> dict[str, Any]:
    return {"id": "t1", "type": "function", "function": {"name": "add", "arguments": written}}


def test_nothing_is_sent_that_was_not_set() -> None:
    streaming = {"stream": True, "stream_options": {"include_usage": True}}
    assert arguments() == {"model": "m", "messages": [{"role": "user", "content": "Hello"}], **streaming}
    assert arguments({"streaming": False}) == {"model": "m", "messages": [{"role": "user", "content": "Hello"}]}


def test_what_is_ours_never_leaves() -> None:
    message: Message = {"role": "user", "content": [{"text": "a"}], "metadata": {"custom": {}}, "tracking_id": "x"}
    assert arguments(messages=[message])["messages"] == [{"role": "user", "content": "a"}]
    assert message["tracking_id"] == "x"


@pytest.mark.parametrize(
    ("blocks", "content"),
    [
        ([{"text": "a"}, {"text": "b"}], "a\nb"),
        ([{"text": "a"}, MARK, {"text": " "}], "a"),
        ([{"text": ""}], BLANK_TEXT),
        ([{"guardContent": {"text": {"text": "a"}}}], "a"),
        ([{"text": "a"}, PICTURE], [{"type": "text", "text": "a"}, PICTURE_PART]),
        (
            [{"document": {"format": "pdf", "name": "bill", "source": {"bytes": PIXEL}}}],
            [
                {
                    "type": "file",
                    "file": {"filename": "bill.pdf", "file_data": f"data:application/pdf;base64,{PIXEL_TEXT}"},
                }
            ],
        ),
        ([{"document": {"format": "csv", "name": "a", "source": {"bytes": b"1,2"}}}], "Document 'a':\n1,2"),
    ],
)
def test_what_a_user_says_is_one_string_or_parts(blocks: Any, content: Any) -> None:
    assert sent(*blocks) == [{"role": "user", "content": content}]


def test_tool_results_are_messages_of_their_own_and_come_first() -> None:
    """They must directly follow the calls that they answer."""
    results = [
        {"toolResult": {"toolUseId": "t1", "status": "success", "content": [{"text": "a"}, {"json": [1]}]}},
        {"text": "And then?"},
        {"toolResult": {"toolUseId": "t2", "status": "error", "content": []}},
    ]
    assert sent(*results) == [
        {"role": "tool", "tool_call_id": "t1", "content": "a\n[1]"},
        {"role": "tool", "tool_call_id": "t2", "content": NO_OUTPUT_TEXT},
        {"role": "user", "content": "And then?"},
    ]


def test_pictures_in_tool_results_follow_in_a_user_message() -> None:
    """A tool message can hold only text."""
    first = {"toolResult": {"toolUseId": "t1", "status": "success", "content": [{"text": "Here."}, PICTURE]}}
    second = {"toolResult": {"toolUseId": "t2", "status": "success", "content": [{"text": "Done."}]}}
    assert sent(first, second) == [
        {"role": "tool", "tool_call_id": "t1", "content": f"Here.\n{ATTACHED}"},
        {"role": "tool", "tool_call_id": "t2", "content": "Done."},
        {"role": "user", "content": [PICTURE_PART]},
    ]


@pytest.mark.parametrize(
    ("blocks", "message"),
    [
        ([{"text": "a"}, {"text": "b"}], {"content": "a\nb"}),
        ([{"text": ""}], {"content": BLANK_TEXT}),
        ([THINKING, {"text": "a"}, MARK], {"content": "a"}),
        ([{"citationsContent": {"content": [{"text": "It is."}], "citations": []}}], {"content": "It is."}),
        (
            [{"toolUse": {"toolUseId": "t1", "name": "add", "input": {"a": "é"}}}],
            {
                "content": None,
                "tool_calls": [
                    {"id": "t1", "type": "function", "function": {"name": "add", "arguments": '{"a": "é"}'}}
                ],
            },
        ),
        (
            [{"text": "a"}, {"toolUse": {"toolUseId": "t1", "name": "add", "input": 1}}],
            {
                "content": "a",
                "tool_calls": [
                    {"id": "t1", "type": "function", "function": {"name": "add", "arguments": '{"input": 1}'}}
                ],
            },
        ),
    ],
)
def test_what_the_assistant_said(blocks: Any, message: Any) -> None:
    assert sent(*blocks, role="assistant") == [{"role": "assistant", **message}]


def test_reasoning_goes_back_only_to_servers_that_ask_for_it() -> None:
    (message,) = sent(THINKING, {"text": "a"}, role="assistant", config={"reasoning_field": "reasoning_content"})
    assert message == {"role": "assistant", "content": "a", "reasoning_content": "Hm"}
    (message,) = sent({"text": "a"}, role="assistant", config={"reasoning_field": "reasoning_content"})
    assert message == {"role": "assistant", "content": "a"}


@pytest.mark.parametrize(
    ("block", "role", "words"),
    [
        ({"video": {"format": "mp4", "source": {"bytes": b""}}}, "user", "video"),
        ({"image": {"format": "tiff", "source": {"bytes": b""}}}, "user", "image.*png"),
        ({"image": {"format": "png", "source": {"s3Location": {}}}}, "user", "image.*bytes"),
        ({"document": {"format": "docx", "name": "a", "source": {"bytes": b""}}}, "user", "document.*docx"),
        ({}, "user", "empty"),
    ],
)
def test_what_the_service_cannot_take_is_refused_by_name(block: Any, role: str, words: str) -> None:
    with pytest.raises(Invalid, match=f"OpenAI cannot take this {words}"):
        sent(block, role=role)


@pytest.mark.parametrize(
    ("prompt", "blocks", "content"),
    [
        ("Be brief.", None, "Be brief."),
        (" ", None, None),
        ("no", [{"text": "a"}, MARK, {"text": "b"}], "a\nb"),
        ("no", [], None),
    ],
)
def test_the_system_prompt_is_text_or_blocks_which_win(prompt: str | None, blocks: Any, content: str | None) -> None:
    first, *_ = arguments(system_prompt=prompt, system_prompt_content=blocks)["messages"]
    assert first == ({"role": "system", "content": content} if content else {"role": "user", "content": "Hello"})


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ({"auto": {}}, "auto"),
        ({"any": {}}, "required"),
        ({"tool": {"name": "add"}}, {"type": "function", "function": {"name": "add"}}),
        (None, None),
    ],
)
def test_tools_and_which_of_them_to_choose(choice: Any, expected: Any) -> None:
    function = {"name": "add", "description": "add", "parameters": {"type": "object"}}
    made = arguments(tool_specs=[*ADD, MARK], tool_choice=choice)
    assert made["tools"] == [{"type": "function", "function": function}]
    assert made.get("tool_choice") == expected
    assert "tool_choice" not in arguments(tool_choice=choice)


def test_params_win_and_none_takes_a_field_out() -> None:
    """Some servers refuse `stream_options`."""
    made = arguments({"params": {"stream_options": None, "temperature": 0.1, "model": "other"}})
    assert "stream_options" not in made
    assert (made["model"], made["extra_body"]) == ("other", {"temperature": 0.1})
