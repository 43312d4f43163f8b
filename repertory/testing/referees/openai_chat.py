"""Referee of Chat Completions, of OpenAI and others: the requests that `POST /v1/chat/completions` accepts.

A service other than OpenAI itself has the rules about pairs of calls and results, and its own about the reasoning of
earlier answers. Mistral has a referee of its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from repertory.backends.wire_json import body, elements, mapping, objects
from repertory.testing.referees.rules import ServiceRefusal, ServiceRule, WireRequest

_SPEC = "https://github.com/openai/openai-openapi"
_OPENAI = "OpenAI Chat Completions"
_EVERY = "Chat Completions of every service"


def _rule(name: str, words: str, source: str, applies_to: str = _OPENAI, *, refused: bool = True) -> ServiceRule:
    return ServiceRule(id=f"openai-chat-{name}", applies_to=applies_to, words=words, source=source, refused=refused)


_TABLE = (
    _rule("messages", "A request has at least one message.", _SPEC, _EVERY),
    _rule("role", "A message's role is one of the protocol.", _SPEC, _EVERY),
    _rule(
        "unanswered-call",
        "The results of all tool calls stand directly behind the message that has the calls.",
        "https://github.com/aliasrobotics/cai/issues/111",
        _EVERY,
    ),
    _rule(
        "result-without-call",
        "A tool's message answers a call of the assistant's message before it.",
        "https://github.com/miurla/morphic/issues/136",
        _EVERY,
    ),
    _rule(
        "call-id",
        "The id of a tool call has at most 40 characters.",
        "https://github.com/camel-ai/camel/issues/2215",
    ),
    _rule("tool-name", "A tool's name has letters, digits, `_` and `-`, at most 64, also in earlier calls.", _SPEC),
    _rule("arguments", "The arguments of a tool call are a string.", _SPEC, _EVERY),
    _rule(
        "no-calls",
        "A list of tool calls is not empty.",
        "https://github.com/openai/openai-node/pull/1341",
    ),
    _rule("no-tools", "A list of tools is not empty, and has at most 128 tools.", _SPEC),
    _rule("choice-without-tools", "A request without tools has no choice of one.", _SPEC),
    _rule("content", "A message has content; an assistant's may have tool calls in its place.", _SPEC),
    _rule(
        "part",
        "A part of a message is of a kind that the message's role may have.",
        "https://github.com/openai/openai-node/issues/1030",
    ),
    _rule(
        "tool-image",
        "A tool's message has no picture; newer models accept one and do not see it.",
        "https://github.com/openai/openai-openapi/issues/523",
        refused=False,
    ),
    _rule(
        "audio",
        "Sound goes to a model for sound.",
        "https://github.com/pydantic/pydantic-ai/tree/main/tests/models/cassettes/test_multimodal_tool_returns",
    ),
    _rule(
        "image-format",
        "A picture is a PNG, JPEG, GIF or WebP.",
        "https://platform.openai.com/docs/guides/images-vision",
    ),
    _rule(
        "unknown-reasoning",
        "An assistant's message has no `reasoning_content`.",
        "https://github.com/tashfeenahmed/freellmapi/issues/1070",
        "Groq",
    ),
    _rule(
        "deepseek-reasoning",
        "With thinking, an assistant's message with tool calls has its `reasoning_content`, until the turn is over.",
        "https://api-docs.deepseek.com/guides/thinking_mode",
        "DeepSeek",
    ),
    _rule(
        "moonshot-reasoning",
        "With thinking, an assistant's message with tool calls has its `reasoning_content`.",
        "https://github.com/mastra-ai/mastra/issues/12592",
        "Moonshot",
    ),
)
RULES: Mapping[str, ServiceRule] = {rule.id: rule for rule in _TABLE}
"""The rules by their ids."""

_ROLES = ("system", "developer", "user", "assistant", "tool", "function")
_PARTS: Mapping[str, tuple[str, ...]] = {
    "user": ("text", "image_url", "input_audio", "file"),
    "assistant": ("text", "refusal"),
    "tool": ("text", "image_url"),
    "system": ("text",),
    "developer": ("text",),
}
_INSTEAD = ("tool_calls", "function_call", "refusal", "audio")
"""The fields that an assistant's message may have in place of content."""
_IMAGES = ("image/png", "image/jpeg", "image/gif", "image/webp")
_NAME = re.compile(r"[a-zA-Z0-9_-]+")
_NAME_CHARACTERS_MAX = 64
_ID_CHARACTERS_MAX = 40
_TOOLS_MAX = 128
_STRICT = ("openai", "azure")
"""The services whose answers these limits were seen in; compatible ones have others."""


def openai_chat_refusal(request: WireRequest, service: str = "openai") -> ServiceRefusal | None:
    """The refusal of a service with this protocol; None if it accepts the request.

    Args:
        request: The JSON of `POST /v1/chat/completions`, or the arguments of OpenAI's SDK.
        service: `openai`, `azure`, `deepseek`, `groq`, `moonshot`, or another service.

    Examples:
        >>> openai_chat_refusal({"model": "gpt-5.4", "messages": [{"role": "user", "content": "Hi"}]})
        >>> orphan = [{"role": "tool", "tool_call_id": "call_1", "content": "8"}]
        >>> openai_chat_refusal({"model": "gpt-5.4", "messages": orphan}).rule
        'openai-chat-result-without-call'
    """
    return next(_refusals(body(request), service), None)


def _no(name: str, path: str, message: str, code: str = "invalid_request_error") -> ServiceRefusal:
    return ServiceRefusal(rule=RULES[f"openai-chat-{name}"].id, path=path, message=message, code=code)


def _refusals(request: WireRequest, service: str) -> Iterator[ServiceRefusal]:
    messages = [message for _, message in objects(request.get("messages"))]
    if not messages:
        yield _no("messages", "messages", "Invalid 'messages': empty array. Expected at least 1.", "empty_array")
    for index, message in enumerate(messages):
        role = message.get("role")
        if role not in _ROLES:
            known = ", ".join(f"'{name}'" for name in _ROLES)
            words = f"Invalid value: '{role}'. Supported values are: {known}."
            yield _no("role", f"messages.{index}.role", words, "invalid_value")
        for number, call in objects(message.get("tool_calls")):
            function = mapping(call.get("function"))
            if call.get("type") in (None, "function") and not isinstance(function.get("arguments"), str):
                field = f"messages[{index}].tool_calls[{number}].function.arguments"
                words = f"Invalid type for '{field}': expected a string, but got something else instead."
                yield _no("arguments", f"messages.{index}.tool_calls.{number}", words, "invalid_type")
    yield from _about_pairs(messages)
    if service in _STRICT:
        for index, message in enumerate(messages):
            yield from _about_calls(index, message)
            yield from _about_content(index, message)
            yield from _about_sound(index, message, str(request.get("model")))
        yield from _about_tools(request)
    yield from _about_reasoning(request, messages, service)


def _about_pairs(messages: Sequence[Mapping[str, Any]]) -> Iterator[ServiceRefusal]:
    waiting: list[str] = []
    asked: list[str] = []
    for index, message in enumerate(messages):
        if message.get("role") == "tool":
            call_id = str(message.get("tool_call_id"))
            if call_id not in asked:
                words = "messages with role 'tool' must be a response to a preceeding message with 'tool_calls'."
                yield _no("result-without-call", f"messages.{index}", f"Invalid parameter: {words}")
            waiting = [each for each in waiting if each != call_id]
            continue
        if waiting:
            yield _unanswered(index, waiting)
        asked = waiting = [str(call.get("id")) for _, call in objects(message.get("tool_calls"))]
    if waiting:
        yield _unanswered(len(messages), waiting)


def _unanswered(index: int, call_ids: list[str]) -> ServiceRefusal:
    words = (
        "An assistant message with 'tool_calls' must be followed by tool messages responding to each 'tool_call_id'. "
        f"The following tool_call_ids did not have response messages: {', '.join(call_ids)}"
    )
    return _no("unanswered-call", f"messages.{index}", words)


def _about_calls(index: int, message: Mapping[str, Any]) -> Iterator[ServiceRefusal]:
    if "tool_calls" in message and message["tool_calls"] is not None and not elements(message["tool_calls"]):
        words = f"Invalid 'messages[{index}].tool_calls': empty array. Expected an array with minimum length 1."
        yield _no("no-calls", f"messages.{index}.tool_calls", words, "empty_array")
    ids = [("tool_call_id", message.get("tool_call_id"))] if message.get("role") == "tool" else []
    for number, call in objects(message.get("tool_calls")):
        ids.append((f"tool_calls[{number}].id", call.get("id")))
        name = mapping(call.get("function")).get("name")
        if call.get("type") in (None, "function"):
            yield from _about_name(f"messages[{index}].tool_calls[{number}].function.name", name)
    for field, call_id in ids:
        if len(str(call_id)) > _ID_CHARACTERS_MAX:
            words = f"Invalid 'messages[{index}].{field}': string too long. Expected a string with maximum length 40"
            rest = f"but got a string with length {len(str(call_id))} instead."
            yield _no("call-id", f"messages.{index}", f"{words}, {rest}", "string_above_max_length")


def _about_name(field: str, name: object) -> Iterator[ServiceRefusal]:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        words = f"Invalid '{field}': string does not match pattern. Expected a string that matches the pattern"
        yield _no("tool-name", field, f"{words} '^[a-zA-Z0-9_-]+$'.", "invalid_value")
    elif len(name) > _NAME_CHARACTERS_MAX:
        words = f"Invalid '{field}': string too long. Expected a string with maximum length 64, but got a string with"
        yield _no("tool-name", field, f"{words} length {len(name)} instead.", "string_above_max_length")


def _about_content(index: int, message: Mapping[str, Any]) -> Iterator[ServiceRefusal]:
    role, content = str(message.get("role")), message.get("content")
    path = f"messages.{index}"
    if content is None:
        if role != "assistant" or not any(message.get(name) for name in _INSTEAD):
            words = f"Invalid value for 'content': expected a string, got null. (messages[{index}].content)"
            yield _no("content", path, words)
    elif not isinstance(content, str) and not elements(content):
        words = f"Invalid 'messages[{index}].content': empty array. Expected an array with minimum length 1."
        yield _no("content", path, words, "empty_array")
    for number, part in objects(content):
        kind = part.get("type")
        where = f"{path}.content.{number}"
        if kind == "image_url" and role != "user":
            words = "Image URLs are only allowed for messages with role 'user', but this message with role"
            rule = "tool-image" if role == "tool" else "part"
            yield _no(rule, where, f"Invalid 'messages[{index}]'. {words} '{role}' contains an image URL.")
        elif kind not in _PARTS.get(role, ()):
            known = " or ".join(_PARTS.get(role, ("text",)))
            words = f"Invalid 'messages[{index}]'. Content blocks are expected to be either {known} type."
            yield _no("part", where, words, "invalid_value")
        url = mapping(part.get("image_url")).get("url")
        if isinstance(url, str) and url.startswith("data:") and not url.removeprefix("data:").startswith(_IMAGES):
            words = "You uploaded an unsupported image. Please make sure your image has of one the following formats:"
            yield _no("image-format", where, f"{words} ['png', 'jpeg', 'gif', 'webp'].", "invalid_image_format")


def _about_sound(index: int, message: Mapping[str, Any], model_id: str) -> Iterator[ServiceRefusal]:
    if "audio" not in model_id and any(
        part.get("type") == "input_audio" for _, part in objects(message.get("content"))
    ):
        words = "Content blocks are expected to be either text or image_url type."
        yield _no("audio", f"messages.{index}", f"Invalid 'messages[{index}]'. {words}")


def _about_tools(request: WireRequest) -> Iterator[ServiceRefusal]:
    tools = request.get("tools")
    if tools is not None and not 1 <= len(elements(tools)) <= _TOOLS_MAX:
        words = f"Invalid 'tools': an array of length {len(elements(tools))}. Expected 1 to {_TOOLS_MAX} tools."
        yield _no("no-tools", "tools", words, "empty_array" if not tools else "array_above_max_length")
    if tools is None and request.get("tool_choice") not in (None, "none"):
        words = "Invalid value for 'tool_choice': 'tool_choice' is only allowed when 'tools' are specified."
        yield _no("choice-without-tools", "tool_choice", words)
    for index, tool in objects(tools):
        if tool.get("type") == "function":
            yield from _about_name(f"tools[{index}].function.name", mapping(tool.get("function")).get("name"))


def _about_reasoning(
    request: WireRequest, messages: Sequence[Mapping[str, Any]], service: str
) -> Iterator[ServiceRefusal]:
    """The refusals for reasoning of earlier answers that the service misses, or does not accept."""
    if service == "groq":
        for index, message in enumerate(messages):
            if "reasoning_content" in message:
                words = f"'messages.{index}' : for 'role:assistant' the following must be satisfied[('messages.{index}'"
                yield _no(
                    "unknown-reasoning", f"messages.{index}", f"{words} : property 'reasoning_content' is unsupported)]"
                )
    thinking = mapping(request.get("thinking")).get("type")
    model_id = str(request.get("model"))
    users = [index for index, message in enumerate(messages) if message.get("role") == "user"]
    calls = [index for index, message in enumerate(messages) if message.get("tool_calls")]
    bare = [index for index in calls if messages[index].get("reasoning_content") is None]
    if service == "deepseek" and (thinking == "enabled" or model_id == "deepseek-reasoner"):
        for index in bare:
            if not users or index > users[-1]:
                words = "The `reasoning_content` in the thinking mode must be passed back to the API."
                yield _no("deepseek-reasoning", f"messages.{index}", words)
    if service == "moonshot" and (thinking == "enabled" or (thinking is None and "thinking" in model_id)):
        for index in bare:
            words = "thinking is enabled but reasoning_content is missing in assistant tool call message at index"
            yield _no("moonshot-reasoning", f"messages.{index}", f"{words} {index}")
