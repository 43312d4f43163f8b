"""What is sent to Converse and ConverseStream: settings and a conversation as request parameters.

Pure. What is ours (`metadata`, `tracking_id`) never leaves, and what the service would refuse in an otherwise sound
history (blank text, tool blocks without a tool list, tool input that is no object) is spelled so that it accepts it.

Source: Amazon Bedrock API reference, `Converse` and `ConverseStream`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from repertory.backends.models.call_options import CallOptions, SystemBlocks, system_blocks
from repertory.backends.models.content import BLANK_TEXT, input_of

if TYPE_CHECKING:
    from repertory.core.messages import Message, ToolSpec

_INFERENCE = {
    "temperature": "temperature",
    "max_tokens": "maxTokens",
    "top_p": "topP",
    "stop_sequences": "stopSequences",
}
_ADDITIONAL = {
    "additional_request_fields": "additionalModelRequestFields",
    "additional_response_field_paths": "additionalModelResponseFieldPaths",
}
_PLACEHOLDER_TOOL: dict[str, Any] = {
    "toolSpec": {
        "name": "noop",
        "description": "Does nothing. Never call it.",
        "inputSchema": {"json": {"type": "object", "properties": {}}},
    }
}


class BedrockConfig(TypedDict, total=False):
    """Settings of a `BedrockModel`. What is left out, or None, is left to the service."""

    model_id: str
    """A model id, an inference profile, or an ARN."""
    context_window_limit: int | None
    """The model's window in tokens, for models that the table does not know."""
    streaming: bool | None
    """Whether to use ConverseStream (the default) or Converse."""
    use_native_token_count: bool | None
    """Whether `count_tokens` asks the service. Off by default: it is one more call over the network."""
    temperature: float | None
    max_tokens: int | None
    top_p: float | None
    stop_sequences: list[str] | None
    cache_prompt: str | None
    """Type of the cache point after the system prompt, such as `default`."""
    cache_tools: str | None
    """Type of the cache point after the tools."""
    guardrail_id: str | None
    guardrail_version: str | None
    guardrail_trace: Literal["enabled", "disabled", "enabled_full"] | None
    """Defaults to `enabled`, which tells whether the input or the output was blocked."""
    guardrail_stream_processing_mode: Literal["sync", "async"] | None
    guardrail_latest_message: bool | None
    """Whether the guardrail sees the latest user message only."""
    guardrail_redact_input: bool | None
    """Whether blocked input is replaced in the conversation (the default)."""
    guardrail_redact_input_message: str | None
    guardrail_redact_output: bool | None
    """Whether blocked output is replaced by our text instead of the guardrail's. Off by default."""
    guardrail_redact_output_message: str | None
    include_tool_result_status: Literal["auto"] | bool | None
    """Whether tool results carry their status; `auto` (the default) sends it to the models that know it."""
    service_tier: str | None
    additional_request_fields: dict[str, Any] | None
    additional_response_field_paths: list[str] | None
    additional_args: dict[str, Any] | None
    """Request parameters to be added as they are."""


def converse_request(
    config: BedrockConfig,
    messages: Sequence[Message],
    tool_specs: Sequence[ToolSpec] | None,
    system_prompt: str | None,
    options: CallOptions,
) -> dict[str, Any]:
    """The parameters of one call."""
    values: Mapping[str, Any] = config
    request: dict[str, Any] = {"modelId": config.get("model_id"), "messages": _messages(config, messages)}
    if system := _system(config, system_prompt, options.system_prompt_content):
        request["system"] = system
    inference: dict[str, Any] = {name: values[key] for key, name in _INFERENCE.items() if values.get(key) is not None}
    if inference:
        request["inferenceConfig"] = inference
    if tools := _tools(config, messages, tool_specs):
        request["toolConfig"] = {
            "tools": tools,
            **({"toolChoice": dict(options.tool_choice)} if options.tool_choice else {}),
        }
    if guardrail := _guardrail(config):
        request["guardrailConfig"] = guardrail
    for key, name in _ADDITIONAL.items():
        if values.get(key) is not None:
            request[name] = values[key]
    if tier := config.get("service_tier"):
        request["serviceTier"] = {"type": tier}
    return request | (config.get("additional_args") or {})


def counting_request(request: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of `CountTokens` for the same conversation."""
    counted = ("messages", "system", "toolConfig", "additionalModelRequestFields")
    conversation = {key: request[key] for key in counted if key in request}
    return {"modelId": request["modelId"], "input": {"converse": conversation}}


def _system(config: BedrockConfig, system_prompt: str | None, content: SystemBlocks | None) -> list[Mapping[str, Any]]:
    blocks = system_blocks(system_prompt, content)
    return [*blocks, *_cache_point(config.get("cache_prompt"))] if blocks else []


def _messages(config: BedrockConfig, messages: Sequence[Message]) -> list[dict[str, Any]]:
    with_status = _sends_status(config)
    sent: list[dict[str, Any]] = []
    for message in messages:
        content = _content(message, with_status=with_status)
        if sent and sent[-1]["role"] == message["role"]:
            sent[-1]["content"] += content  # The service wants roles to alternate; a summary stands before a prompt.
        else:
            sent.append({"role": message["role"], "content": content})
    if config.get("guardrail_latest_message") and config.get("guardrail_id"):
        _guard_latest(sent)
    return sent


def _content(message: Message, *, with_status: bool) -> list[dict[str, Any]]:
    blocks = [_block(block, with_status=with_status) for block in message["content"]]
    return [block for block in blocks if "text" not in block or block["text"].strip()] or [{"text": BLANK_TEXT}]


def _block(block: Mapping[str, Any], *, with_status: bool) -> dict[str, Any]:
    if "toolUse" in block:
        use = block["toolUse"]
        return {"toolUse": {"toolUseId": use["toolUseId"], "name": use["name"], "input": input_of(use)}}
    if "toolResult" in block:
        result = block["toolResult"]
        sent = {"toolUseId": result["toolUseId"], "content": result["content"]}
        return {"toolResult": sent | ({"status": result["status"]} if with_status and "status" in result else {})}
    return dict(block)


def _sends_status(config: BedrockConfig) -> bool:
    wanted = config.get("include_tool_result_status")
    return "anthropic.claude" in config.get("model_id", "") if wanted in (None, "auto") else bool(wanted)


def _guard_latest(sent: list[dict[str, Any]]) -> None:
    """Mark the latest user message's text as what the guardrail shall look at."""
    for message in reversed(sent):
        if message["role"] == "user" and any("text" in block for block in message["content"]):
            message["content"] = [
                {"guardContent": {"text": {"text": block["text"]}}} if "text" in block else block
                for block in message["content"]
            ]
            return


def _tools(
    config: BedrockConfig, messages: Sequence[Message], tool_specs: Sequence[ToolSpec] | None
) -> list[dict[str, Any]]:
    tools: list[dict[str, Any]] = [_tool(spec) for spec in tool_specs or ()]
    if tools:
        return [*tools, *_cache_point(config.get("cache_tools"))]
    mentioned = any("toolUse" in block or "toolResult" in block for message in messages for block in message["content"])
    return [_PLACEHOLDER_TOOL] if mentioned else []


def _tool(spec: Mapping[str, Any]) -> dict[str, Any]:
    if "cachePoint" in spec:
        return dict(spec)
    described = {"name": spec["name"], "description": spec["description"] or spec["name"]}
    return {"toolSpec": {**described, "inputSchema": spec["inputSchema"]}}


def _guardrail(config: BedrockConfig) -> dict[str, Any]:
    identifier, version = config.get("guardrail_id"), config.get("guardrail_version")
    if not identifier or not version:
        return {}
    guardrail = {
        "guardrailIdentifier": identifier,
        "guardrailVersion": version,
        "trace": config.get("guardrail_trace") or "enabled",
    }
    mode = config.get("guardrail_stream_processing_mode")
    if mode and config.get("streaming") is not False:
        guardrail["streamProcessingMode"] = mode
    return guardrail


def _cache_point(kind: str | None) -> list[dict[str, Any]]:
    return [{"cachePoint": {"type": kind}}] if kind else []
