"""What is sent to Converse: settings and a conversation as request parameters."""

from __future__ import annotations

from typing import Any

import pytest

from repertory.backends.models.bedrock import BedrockConfig, converse_request, counting_request
from repertory.backends.models.content import BLANK_TEXT
from repertory.backends.models.provider import model_call
from repertory.core.messages import Message, ToolSpec
from repertory.errors import Invalid

HELLO: list[Message] = [{"role": "user", "content": [{"text": "Hello"}]}]
ADD: list[ToolSpec] = [{"name": "add", "description": "", "inputSchema": {"json": {"type": "object"}}}]
MARK = {"cachePoint": {"type": "default"}}
TOOL_TALK: list[Message] = [
    *HELLO,
    {"role": "assistant", "content": [{"toolUse": {"toolUseId": "t1", "name": "add", "input": {"a": 1}}}]},
    {"role": "user", "content": [{"toolResult": {"toolUseId": "t1", "status": "error", "content": [{"text": "no"}]}}]},
]


def request(
    config: BedrockConfig | None = None,
    messages: list[Message] = HELLO,
    tool_specs: list[ToolSpec] | None = None,
    system_prompt: str | None = None,
    **options: Any,
) -> dict[str, Any]:
    settings: BedrockConfig = {"model_id": "m", **(config or {})}
    return converse_request(model_call(settings, messages, tool_specs, system_prompt, options))


def test_nothing_is_sent_that_was_not_set() -> None:
    assert request() == {"modelId": "m", "messages": [{"role": "user", "content": [{"text": "Hello"}]}]}


def test_what_is_ours_never_leaves() -> None:
    message: Message = {
        "role": "user",
        "content": [{"text": "a"}],
        "metadata": {"custom": {"k": 1}},
        "tracking_id": "x",
    }
    assert request(messages=[message])["messages"] == [{"role": "user", "content": [{"text": "a"}]}]
    assert message["tracking_id"] == "x"


def test_inference_settings_are_spelled_as_the_service_does() -> None:
    config: BedrockConfig = {"temperature": 0.0, "max_tokens": 5, "top_p": 0.5, "stop_sequences": ["x"]}
    expected = {"temperature": 0.0, "maxTokens": 5, "topP": 0.5, "stopSequences": ["x"]}
    assert request(config)["inferenceConfig"] == expected


def test_cache_points_follow_the_system_prompt_and_the_tools() -> None:
    sent = request({"cache_prompt": "default", "cache_tools": "default"}, tool_specs=ADD, system_prompt="Be brief.")
    assert sent["system"] == [{"text": "Be brief."}, {"cachePoint": {"type": "default"}}]
    assert sent["toolConfig"]["tools"][-1] == {"cachePoint": {"type": "default"}}


def test_a_tool_without_description_is_described_by_its_name() -> None:
    """The service refuses empty descriptions."""
    (tool,) = request(tool_specs=ADD, tool_choice={"any": {}})["toolConfig"]["tools"]
    assert tool["toolSpec"] == {"name": "add", "description": "add", "inputSchema": {"json": {"type": "object"}}}
    assert request(tool_specs=ADD, tool_choice={"any": {}})["toolConfig"]["toolChoice"] == {"any": {}}


def test_a_history_with_tool_blocks_always_has_a_tool_list() -> None:
    """The service refuses tool blocks without one; a summary is asked for without tools."""
    assert request(messages=TOOL_TALK)["toolConfig"]["tools"][0]["toolSpec"]["name"] == "noop"
    assert "toolConfig" not in request()


@pytest.mark.parametrize(
    ("config", "sent"),
    [
        ({"model_id": "eu.anthropic.claude-sonnet-4-6"}, True),
        ({"model_id": "amazon.nova-pro-v1:0"}, True),
        ({"model_id": "meta.llama4-maverick-17b-instruct-v1:0"}, False),
        ({"model_id": "meta.llama4-maverick-17b-instruct-v1:0", "include_tool_result_status": True}, True),
        ({"model_id": "anthropic.claude-x", "include_tool_result_status": False}, False),
    ],
)
def test_the_status_of_a_tool_result_goes_to_models_that_know_it(config: BedrockConfig, sent: bool) -> None:
    result = request(config, TOOL_TALK)["messages"][-1]["content"][0]["toolResult"]
    assert ("status" in result) is sent
    assert result["content"] == [{"text": "no"}]


def test_blank_text_is_dropped_beside_other_blocks_and_named_when_alone() -> None:
    """The service refuses blank text."""
    use = {"toolUse": {"toolUseId": "t1", "name": "add", "input": {}}}
    messages: list[Message] = [
        {"role": "assistant", "content": [{"text": " \n"}, use]},  # type: ignore[list-item]
        {"role": "user", "content": [{"text": ""}]},
    ]
    _, first, second = request(messages=[*HELLO, *messages])["messages"]
    assert first["content"] == [use]
    assert second["content"] == [{"text": BLANK_TEXT}]


def test_messages_of_one_role_are_sent_as_one() -> None:
    """The service wants roles to alternate, and a summary stands in front of a prompt."""
    texts = ("summary", "prompt", "answer", "more", "and more")
    roles = ("user", "user", "assistant", "user", "user")
    said: list[Message] = [{"role": role, "content": [{"text": text}]} for role, text in zip(roles, texts, strict=True)]  # type: ignore[typeddict-item]
    sent = request(messages=said)["messages"]
    assert [(message["role"], len(message["content"])) for message in sent] == [
        ("user", 2),
        ("assistant", 1),
        ("user", 2),
    ]
    assert len(said[0]["content"]) == 1


def test_tool_input_that_is_no_object_is_wrapped_in_one() -> None:
    """The service refuses it, and a model may have produced it."""
    messages: list[Message] = [
        {"role": "assistant", "content": [{"toolUse": {"toolUseId": "t1", "name": "add", "input": [1]}}]}
    ]
    sent = request(messages=[*HELLO, *messages])["messages"][1]["content"]
    assert sent[0]["toolUse"]["input"] == {"input": [1]}


def test_a_guardrail_needs_id_and_version() -> None:
    config: BedrockConfig = {"guardrail_id": "g", "guardrail_version": "1", "guardrail_stream_processing_mode": "async"}
    expected = {"guardrailIdentifier": "g", "guardrailVersion": "1", "trace": "enabled"}
    assert request(config)["guardrailConfig"] == expected | {"streamProcessingMode": "async"}
    assert request({**config, "streaming": False})["guardrailConfig"] == expected
    assert "guardrailConfig" not in request({"guardrail_id": "g"})


def test_the_guardrail_may_look_at_the_latest_user_text_only() -> None:
    config: BedrockConfig = {"guardrail_id": "g", "guardrail_version": "1", "guardrail_latest_message": True}
    sent = request(config, [*HELLO, {"role": "assistant", "content": [{"text": "Hi"}]}, *HELLO])["messages"]
    assert [message["content"] for message in sent] == [
        [{"text": "Hello"}],
        [{"text": "Hi"}],
        [{"guardContent": {"text": {"text": "Hello"}}}],
    ]


def test_additional_parameters_are_passed_on() -> None:
    config: BedrockConfig = {
        "additional_request_fields": {"thinking": {"type": "enabled"}},
        "additional_response_field_paths": ["/x"],
        "service_tier": "flex",
        "additional_args": {"requestMetadata": {"team": "a"}},
    }
    sent = request(config)
    assert sent["additionalModelRequestFields"] == {"thinking": {"type": "enabled"}}
    assert sent["additionalModelResponseFieldPaths"] == ["/x"]
    assert sent["serviceTier"] == {"type": "flex"}
    assert sent["requestMetadata"] == {"team": "a"}


@pytest.mark.parametrize(
    ("config", "prompt", "content", "sent"),
    [
        ({}, "Be brief.", None, [{"text": "Be brief."}]),
        ({}, " ", None, None),
        ({}, "no", [{"text": "a"}, MARK, {"text": "b"}], [{"text": "a"}, MARK, {"text": "b"}]),
        ({"cache_prompt": "default"}, "no", [{"text": "a"}], [{"text": "a"}, MARK]),
        ({"cache_prompt": "default"}, "no", [], None),
    ],
)
def test_the_system_prompt_is_text_or_blocks_which_win(
    config: BedrockConfig, prompt: str, content: Any, sent: Any
) -> None:
    assert request(config, system_prompt=prompt, system_prompt_content=content).get("system") == sent


def test_a_cache_point_may_stand_among_the_tools() -> None:
    marked: Any = [*ADD, MARK]
    assert request(tool_specs=marked)["toolConfig"]["tools"][-1] == MARK


def test_the_invocation_state_is_not_sent_and_a_tool_choice_is_checked() -> None:
    assert request(invocation_state={"user": "marta"}) == request()
    with pytest.raises(Invalid, match="tool_choice"):
        request(tool_specs=ADD, tool_choice={"sometimes": {}})


def test_counting_sends_the_conversation_and_nothing_else() -> None:
    config: BedrockConfig = {"max_tokens": 5, "guardrail_id": "g", "guardrail_version": "1"}
    sent = counting_request(request(config, TOOL_TALK, ADD, "Be brief."))
    assert sent["modelId"] == "m"
    assert sent["input"]["converse"].keys() == {"messages", "system", "toolConfig"}
