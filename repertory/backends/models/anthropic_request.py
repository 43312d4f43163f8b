"""What is sent to the Messages API: settings and a conversation as arguments of the SDK's call.

Pure. What is ours (`metadata`, `tracking_id`) never leaves. What the service would refuse in an otherwise sound history
(blank text, reasoning without its signature, tool blocks without a tool list, tool results behind text) is spelled so
that it accepts it.

Source: the Messages API, `POST /v1/messages`.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict

from repertory.backends.models.call_options import CallOptions, SystemBlocks, system_blocks
from repertory.backends.models.content import (
    BLANK_TEXT,
    cannot_take,
    document_in,
    image_in,
    input_of,
    kind_of,
    text_in,
)
from repertory.backends.models.sdk_arguments import with_params

if TYPE_CHECKING:
    from repertory.core.messages import Message, ToolSpec

_SERVICE = "Anthropic"
_UNCACHEABLE = frozenset(("thinking", "redacted_thinking"))
_PLACEHOLDER_TOOL: dict[str, Any] = {
    "name": "noop",
    "description": "Does nothing. Never call it.",
    "input_schema": {"type": "object", "properties": {}},
}


class AnthropicConfig(TypedDict, total=False):
    """Settings of an `AnthropicModel`."""

    model_id: str
    max_tokens: int
    """The most tokens of one answer. The service wants to be told; 8192 unless set."""
    params: Mapping[str, Any] | None
    """Further fields of the request, such as `temperature` or `thinking`. They win over ours; None takes a field out.

    `extra_headers`, `extra_query` and `timeout` are the SDK's.
    """
    context_window_limit: int | None
    """The model's window in tokens, for models that the table does not know."""
    streaming: bool | None
    """Whether the answer comes piece by piece (the default) or at once."""
    use_native_token_count: bool | None
    """Whether `count_tokens` asks the service. Off by default: it is one more call over the network."""
    cache_prompt: str | None
    """Type of the cache point after the system prompt, such as `default`."""
    cache_tools: str | None
    """Type of the cache point after the tools."""


def messages_arguments(
    config: AnthropicConfig,
    messages: Sequence[Message],
    tool_specs: Sequence[ToolSpec] | None,
    system_prompt: str | None,
    options: CallOptions,
) -> dict[str, Any]:
    """The arguments of one call. Errors: `Invalid` for a block that the service cannot take."""
    arguments = _conversation(config, messages, tool_specs, system_prompt, options.system_prompt_content)
    arguments["max_tokens"] = config.get("max_tokens")
    if options.tool_choice and tool_specs:
        arguments["tool_choice"] = _tool_choice(options.tool_choice)
    if config.get("streaming") is not False:
        arguments["stream"] = True
    return with_params(arguments, config.get("params"))


def counting_arguments(
    config: AnthropicConfig,
    messages: Sequence[Message],
    tool_specs: Sequence[ToolSpec] | None,
    system_prompt: str | None,
    system_prompt_content: SystemBlocks | None,
) -> dict[str, Any]:
    """The arguments of a call that counts the tokens of such a request."""
    arguments = _conversation(config, messages, tool_specs, system_prompt, system_prompt_content)
    thinking = (config.get("params") or {}).get("thinking")
    return arguments | ({"thinking": thinking} if thinking else {})


def _conversation(
    config: AnthropicConfig,
    messages: Sequence[Message],
    tool_specs: Sequence[ToolSpec] | None,
    system_prompt: str | None,
    system_prompt_content: SystemBlocks | None,
) -> dict[str, Any]:
    sent: dict[str, Any] = {"model": config.get("model_id"), "messages": [_message(message) for message in messages]}
    if system := _system(config, system_prompt, system_prompt_content):
        sent["system"] = system
    if tools := _tools(config, messages, tool_specs):
        sent["tools"] = tools
    return sent


def _message(message: Message) -> dict[str, Any]:
    blocks = _marked(message["content"])
    results = [block for block in blocks if block["type"] == "tool_result"]
    others = [block for block in blocks if block["type"] != "tool_result"]
    return {"role": message["role"], "content": [*results, *others] or [{"type": "text", "text": BLANK_TEXT}]}


def _marked(content: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The blocks as the service spells them. A cache point becomes a mark on what stands before it."""
    sent: list[dict[str, Any]] = []
    for block in content:
        if "cachePoint" in block:
            markable = [position for position, made in enumerate(sent) if made["type"] not in _UNCACHEABLE]
            if markable:
                sent[markable[-1]] |= _cache_control(block["cachePoint"])
        else:
            sent += _block(block)
    return sent


def _block(block: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The block as the service spells it; none for what it would refuse and nobody misses."""
    if "toolUse" in block:
        use = block["toolUse"]
        return [{"type": "tool_use", "id": use["toolUseId"], "name": use["name"], "input": input_of(use)}]
    if "toolResult" in block:
        return [_tool_result(block["toolResult"])]
    if "reasoningContent" in block:
        return _thinking(block["reasoningContent"])
    return _shown(block)


def _shown(block: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Text, an image or a document: what may stand in messages and in tool results."""
    text = text_in(block)
    if text is not None:
        return [{"type": "text", "text": text}] if text.strip() else []
    if "image" in block:
        image = image_in(block, _SERVICE)
        return [{"type": "image", "source": {"type": "base64", "media_type": image.media_type, "data": image.data}}]
    if "document" in block:
        return [_document(block)]
    raise cannot_take(kind_of(block), _SERVICE, "it has no such blocks", sorted(block))


def _document(block: Mapping[str, Any]) -> dict[str, Any]:
    document = document_in(block, _SERVICE)
    if document.pdf is not None:
        source: dict[str, Any] = {"type": "base64", "media_type": "application/pdf", "data": document.pdf}
    elif len(document.texts) == 1:
        source = {"type": "text", "media_type": "text/plain", "data": document.texts[0]}
    else:
        source = {"type": "content", "content": [{"type": "text", "text": text} for text in document.texts]}
    said = {key: block["document"][key] for key in ("context", "citations") if block["document"].get(key)}
    return {"type": "document", "title": document.name, "source": source, **said}


def _tool_result(result: Mapping[str, Any]) -> dict[str, Any]:
    content = [made for part in result["content"] if "cachePoint" not in part for made in _shown(part)]
    sent: dict[str, Any] = {"type": "tool_result", "tool_use_id": result["toolUseId"]}
    failed = result.get("status") == "error"
    return sent | ({"content": content} if content else {}) | ({"is_error": True} if failed else {})


def _thinking(reasoning: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Reasoning goes back exactly as it came. What another service thought has no signature that this one accepts."""
    if "redactedContent" in reasoning:
        return [{"type": "redacted_thinking", "data": redacted_text(reasoning["redactedContent"])}]
    spoken = reasoning.get("reasoningText", {})
    if not spoken.get("signature"):
        return []
    return [{"type": "thinking", "thinking": spoken.get("text", ""), "signature": spoken["signature"]}]


def redacted_text(data: bytes) -> str:
    """Redacted reasoning as this service's text: what it sent itself, or the bytes of another in base64."""
    return data.decode() if data.isascii() else base64.b64encode(data).decode()


def _system(
    config: AnthropicConfig, system_prompt: str | None, content: SystemBlocks | None
) -> str | list[dict[str, Any]] | None:
    marks = _point(config.get("cache_prompt"))
    if content is None and not marks:
        return system_prompt if system_prompt and system_prompt.strip() else None
    return _marked([*system_blocks(system_prompt, content), *marks]) or None


def _tools(
    config: AnthropicConfig, messages: Sequence[Message], tool_specs: Sequence[ToolSpec] | None
) -> list[dict[str, Any]]:
    tools: list[dict[str, Any]] = []
    for spec in (*(tool_specs or ()), *_point(config.get("cache_tools"))):
        if "cachePoint" not in spec:
            tools.append(_tool(spec))
        elif tools:
            tools[-1] |= _cache_control(spec["cachePoint"])
    if tools:
        return tools
    mentioned = any("toolUse" in block or "toolResult" in block for message in messages for block in message["content"])
    return [_PLACEHOLDER_TOOL] if mentioned else []


def _tool(spec: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "name": spec["name"],
        "description": spec["description"] or spec["name"],
        "input_schema": spec["inputSchema"]["json"],
    }


def _tool_choice(choice: Mapping[str, Any]) -> dict[str, Any]:
    if "tool" in choice:
        return {"type": "tool", "name": choice["tool"]["name"]}
    return {"type": "any" if "any" in choice else "auto"}


def _point(kind: str | None) -> list[dict[str, Any]]:
    return [{"cachePoint": {"type": kind}}] if kind else []


def _cache_control(point: Mapping[str, Any]) -> dict[str, Any]:
    lifetime = {"ttl": point["ttl"]} if point.get("ttl") else {}
    return {"cache_control": {"type": "ephemeral", **lifetime}}
