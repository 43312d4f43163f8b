"""What is sent to Chat Completions: settings and a conversation as arguments of the SDK's call.

Pure. What is ours (`metadata`, `tracking_id`) never leaves. Text alone goes as one string, which every server
understands. Tool results are messages of their own and can hold only text, so their images and documents follow in a
user message. Cache points are dropped: these services cache by themselves.

Source: the OpenAI API, `POST /v1/chat/completions`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict

from repertory.backends.models.call_options import CallOptions, system_text
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

ATTACHED = "[The attachments of this result follow in the next message.]"
"""Stands in a tool result for what only a user message can hold."""
_SERVICE = "OpenAI"


class OpenAIConfig(TypedDict, total=False):
    """Settings of an `OpenAIModel`."""

    model_id: str
    params: Mapping[str, Any] | None
    """Further fields of the request, such as `temperature` or `max_completion_tokens`. They win over ours; None takes a
    field out.

    `extra_headers`, `extra_query` and `timeout` are the SDK's.
    """
    context_window_limit: int | None
    """The model's window in tokens, for models that the table does not know."""
    streaming: bool | None
    """Whether the answer comes piece by piece (the default) or at once."""
    reasoning_field: str | None
    """The field of an assistant message in which earlier reasoning goes back, for servers that ask for it, such as
    `reasoning_content`. Left out, it stays here."""


def completion_arguments(
    config: OpenAIConfig,
    messages: Sequence[Message],
    tool_specs: Sequence[ToolSpec] | None,
    system_prompt: str | None,
    options: CallOptions,
) -> dict[str, Any]:
    """The arguments of one call. Errors: `Invalid` for a block that the service cannot take."""
    system = system_text(system_prompt, options.system_prompt_content)
    sent: list[dict[str, Any]] = [{"role": "system", "content": system}] if system else []
    for message in messages:
        sent += _user(message) if message["role"] == "user" else [_assistant(message, config.get("reasoning_field"))]
    arguments: dict[str, Any] = {"model": config.get("model_id"), "messages": sent}
    if tools := [_tool(spec) for spec in tool_specs or () if "cachePoint" not in spec]:
        arguments["tools"] = tools
        if options.tool_choice:
            arguments["tool_choice"] = _tool_choice(options.tool_choice)
    if config.get("streaming") is not False:
        arguments |= {"stream": True, "stream_options": {"include_usage": True}}
    return with_params(arguments, config.get("params"))


def _user(message: Message) -> list[dict[str, Any]]:
    """Tool messages first, which must directly follow the assistant's; then everything else as one user message."""
    tools: list[dict[str, Any]] = []
    parts: list[dict[str, Any]] = []
    for block in message["content"]:
        if "toolResult" in block:
            text, attached = _tool_content(block["toolResult"]["content"])
            tools.append({"role": "tool", "tool_call_id": block["toolResult"]["toolUseId"], "content": text})
            parts += attached
        else:
            parts += _parts(block)
    if parts or not tools:
        return [*tools, {"role": "user", "content": _together(parts)}]
    return tools


def _tool_content(content: Sequence[Mapping[str, Any]]) -> tuple[str, list[dict[str, Any]]]:
    """What a tool message says, and what it cannot hold."""
    parts = [part for block in content for part in _parts(block)]
    attached = [part for part in parts if part["type"] != "text"]
    texts = [part["text"] for part in parts if part["type"] == "text"]
    return "\n".join([*texts, ATTACHED] if attached else texts), attached


def _assistant(message: Message, reasoning_field: str | None) -> dict[str, Any]:
    calls: list[dict[str, Any]] = []
    texts: list[str] = []
    thoughts: list[str] = []
    for block in message["content"]:
        text = text_in(block)
        if "toolUse" in block:
            calls.append(_tool_call(block["toolUse"]))
        elif "reasoningContent" in block:
            thoughts.append(_thought(block["reasoningContent"]))
        elif text is not None:
            texts.append(text)
        elif "cachePoint" not in block:
            raise cannot_take(kind_of(block), _SERVICE, "an assistant message holds only text there", sorted(block))
    said = "\n".join(text for text in texts if text.strip())
    sent: dict[str, Any] = {"role": "assistant", "content": said or (None if calls else BLANK_TEXT)}
    if calls:
        sent["tool_calls"] = calls
    if reasoning_field and any(thoughts):
        sent[reasoning_field] = "\n".join(thoughts)
    return sent


def _thought(reasoning: Mapping[str, Any]) -> str:
    return str(reasoning.get("reasoningText", {}).get("text", ""))


def _tool_call(use: Mapping[str, Any]) -> dict[str, Any]:
    function = {"name": use["name"], "arguments": json.dumps(input_of(use), ensure_ascii=False)}
    return {"id": use["toolUseId"], "type": "function", "function": function}


def _together(parts: Sequence[Mapping[str, Any]]) -> str | list[Mapping[str, Any]]:
    """Text alone as one string, anything else as a list."""
    if any(part["type"] != "text" for part in parts):
        return list(parts)
    return "\n".join(part["text"] for part in parts) or BLANK_TEXT


def _parts(block: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The block as parts of a message; none for blank text and marks."""
    text = text_in(block)
    if text is not None:
        return [{"type": "text", "text": text}] if text.strip() else []
    if "image" in block:
        image = image_in(block, _SERVICE)
        return [{"type": "image_url", "image_url": {"url": f"data:{image.media_type};base64,{image.data}"}}]
    if "document" in block:
        return [_document(block)]
    if "cachePoint" in block:
        return []
    raise cannot_take(kind_of(block), _SERVICE, "it has no such blocks", sorted(block))


def _document(block: Mapping[str, Any]) -> dict[str, Any]:
    """A PDF as a file; text as text, since the service takes no other files."""
    document = document_in(block, _SERVICE)
    if document.pdf is None:
        return {"type": "text", "text": "\n".join([f"Document {document.name!r}:", *document.texts])}
    name = document.name if document.name.endswith(".pdf") else f"{document.name}.pdf"
    return {"type": "file", "file": {"filename": name, "file_data": f"data:application/pdf;base64,{document.pdf}"}}


def _tool(spec: ToolSpec) -> dict[str, Any]:
    described = {"name": spec["name"], "description": spec["description"] or spec["name"]}
    return {"type": "function", "function": {**described, "parameters": spec["inputSchema"]["json"]}}


def _tool_choice(choice: Mapping[str, Any]) -> str | dict[str, Any]:
    if "tool" in choice:
        return {"type": "function", "function": {"name": choice["tool"]["name"]}}
    return "required" if "any" in choice else "auto"
