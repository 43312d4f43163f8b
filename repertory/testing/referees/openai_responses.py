"""Referee of OpenAI's Responses API: the requests that `POST /v1/responses` accepts."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from repertory.backends.wire_json import body, elements, mapping, objects
from repertory.testing.referees.rules import ServiceRefusal, ServiceRule, WireRequest

_SPEC = "https://platform.openai.com/docs/api-reference/responses/create"


def _rule(name: str, words: str, source: str) -> ServiceRule:
    return ServiceRule(id=f"openai-responses-{name}", applies_to="OpenAI Responses", words=words, source=source)


_TABLE = (
    _rule("item", "An item of the input is of a type that the service knows.", _SPEC),
    _rule("role", "A message's role is `user`, `assistant`, `system` or `developer`.", _SPEC),
    _rule(
        "part",
        "An assistant's message has output texts and refusals; others have input texts, images and files.",
        "https://github.com/jeremychone/rust-genai/pull/119",
    ),
    _rule(
        "unanswered-call",
        "Each function call has its output.",
        "https://github.com/bytedance/trae-agent/issues/245",
    ),
    _rule(
        "output-without-call",
        "A function call's output stands behind its call.",
        "https://github.com/continuedev/continue/pull/11785",
    ),
    _rule("call-id", "The id of a call has at most 64 characters.", "https://github.com/openclaw/openclaw/pull/875"),
    _rule("tool-name", "A tool's name has letters, digits, `_` and `-`, at most 64, also in earlier calls.", _SPEC),
    _rule("arguments", "The arguments of a function call are a string.", _SPEC),
    _rule(
        "item-id",
        "An item's id begins as those of its type do.",
        "https://github.com/continuedev/continue/issues/11689",
    ),
    _rule("item-twice", "Two items have different ids.", "https://github.com/vercel/ai/issues/7883"),
    _rule(
        "reasoning-alone",
        "A reasoning item is followed by the item that came behind it.",
        "https://github.com/continuedev/continue/pull/11785",
    ),
    _rule("reasoning-summary", "A reasoning item has a `summary`.", _SPEC),
    _rule(
        "unstored-reasoning",
        "If nothing is stored, a reasoning item has its `encrypted_content`.",
        "https://github.com/vercel/ai/issues/7543",
    ),
    _rule(
        "image-format",
        "A picture is a PNG, JPEG, GIF or WebP.",
        "https://platform.openai.com/docs/guides/images-vision",
    ),
    _rule(
        "file-format",
        "A file is a document, not sound or a video.",
        "https://github.com/pydantic/pydantic-ai/tree/main/tests/models/cassettes/test_multimodal_tool_returns",
    ),
    _rule("choice-without-tools", "A request without tools has no choice of one.", _SPEC),
)
RULES: Mapping[str, ServiceRule] = {rule.id: rule for rule in _TABLE}
"""The rules by their ids."""

_ITEMS = {
    "additional_tools",
    "apply_patch_call",
    "apply_patch_call_output",
    "code_interpreter_call",
    "compaction",
    "compaction_trigger",
    "computer_call",
    "computer_call_output",
    "configuration_update",
    "custom_tool_call",
    "custom_tool_call_output",
    "file_search_call",
    "function_call",
    "function_call_output",
    "image_generation_call",
    "item_reference",
    "local_shell_call",
    "local_shell_call_output",
    "mcp_approval_request",
    "mcp_approval_response",
    "mcp_call",
    "mcp_list_tools",
    "message",
    "program",
    "program_output",
    "reasoning",
    "shell_call",
    "shell_call_output",
    "tool_search_call",
    "tool_search_output",
    "web_search_call",
}
_CALLERS = {"message", "function_call_output", "custom_tool_call_output", "computer_call_output", "shell_call_output"}
"""The kinds of items that the caller puts behind an answer; any other behind reasoning is of the answer itself."""
_PREFIXES = {
    "function_call": "fc",
    "reasoning": "rs",
    "message": "msg",
    "web_search_call": "ws",
    "custom_tool_call": "ctc",
}
_INPUTS = ("input_text", "input_image", "input_file", "input_audio")
_OUTPUTS = ("output_text", "refusal")
_IMAGES = ("image/png", "image/jpeg", "image/gif", "image/webp")
_NAME = re.compile(r"[a-zA-Z0-9_-]+")
_NAME_CHARACTERS_MAX = 64
_ID_CHARACTERS_MAX = 64


def openai_responses_refusal(request: WireRequest) -> ServiceRefusal | None:
    """The refusal of OpenAI's service; None if it accepts the request.

    Args:
        request: The JSON of `POST /v1/responses`.

    Examples:
        >>> openai_responses_refusal({"model": "gpt-5.4", "input": [{"role": "user", "content": "Hi"}]})
        >>> answer = {"role": "assistant", "content": [{"type": "input_text", "text": "Hi"}]}
        >>> openai_responses_refusal({"model": "gpt-5.4", "input": [answer]}).message
        "Invalid value: 'input_text'. Supported values are: 'output_text' and 'refusal'."
    """
    return next(_refusals(body(request)), None)


def _no(
    name: str, path: str, message: str, code: str = "invalid_request_error", *, status: int = 400
) -> ServiceRefusal:
    return ServiceRefusal(
        rule=RULES[f"openai-responses-{name}"].id, path=path, message=message, code=code, status=status
    )


def _refusals(request: WireRequest) -> Iterator[ServiceRefusal]:
    items = [item for _, item in objects(request.get("input"))]
    seen: set[str] = set()
    for index, item in enumerate(items):
        path, kind = f"input.{index}", _kind(item)
        if kind not in _ITEMS:
            known = ", ".join(f"'{name}'" for name in sorted(_ITEMS))
            yield _no("item", path, f"Invalid value: '{kind}'. Supported values are: {known}.", "invalid_value")
        if kind == "message":
            yield from _about_message(index, item)
        if kind == "function_call":
            yield from _about_call(index, item)
        if kind == "reasoning":
            yield from _about_reasoning(request, index, items)
        item_id = item.get("id")
        if isinstance(item_id, str) and kind != "item_reference":
            prefix = _PREFIXES.get(kind, "")
            if kind in ("function_call", "message", "custom_tool_call") and not item_id.startswith(prefix):
                words = f"Invalid 'input[{index}].id': '{item_id}'. Expected an ID that begins with '{prefix}'."
                yield _no("item-id", path, words, "invalid_value")
            if item_id in seen:
                words = f"Duplicate item found with id {item_id}. Remove duplicate items from your input and try again."
                yield _no("item-twice", path, words)
            seen.add(item_id)
        if len(str(item.get("call_id") or "")) > _ID_CHARACTERS_MAX:
            words = f"Invalid 'input[{index}].call_id': string too long. Expected a string with maximum length 64."
            yield _no("call-id", path, words, "string_above_max_length")
    yield from _about_pairs(request, items)
    yield from _about_tools(request)


def _kind(item: Mapping[str, Any]) -> str:
    return str(item.get("type") or ("message" if "role" in item else ""))


def _about_message(index: int, item: Mapping[str, Any]) -> Iterator[ServiceRefusal]:
    path, role = f"input.{index}", item.get("role")
    if role not in ("user", "assistant", "system", "developer"):
        words = f"Invalid value: '{role}'. Supported values are: 'assistant', 'system', 'developer', and 'user'."
        yield _no("role", f"{path}.role", words, "invalid_value")
    allowed = _OUTPUTS if role == "assistant" else _INPUTS
    for number, part in objects(item.get("content")):
        where = f"{path}.content.{number}"
        if part.get("type") not in allowed:
            known = " and ".join(f"'{name}'" for name in allowed)
            words = f"Invalid value: '{part.get('type')}'. Supported values are: {known}."
            yield _no("part", where, words, "invalid_value")
        yield from _about_image(where, part)
        yield from _about_file(where, part)


def _about_image(path: str, part: Mapping[str, Any]) -> Iterator[ServiceRefusal]:
    url = part.get("image_url")
    if isinstance(url, str) and url.startswith("data:") and not url.removeprefix("data:").startswith(_IMAGES):
        words = "You uploaded an unsupported image. Please make sure your image has of one the following formats:"
        yield _no("image-format", path, f"{words} ['png', 'jpeg', 'gif', 'webp'].", "invalid_image_format")


def _about_file(path: str, part: Mapping[str, Any]) -> Iterator[ServiceRefusal]:
    data = part.get("file_data")
    if isinstance(data, str) and data.startswith(("data:audio/", "data:video/")):
        kind = data.removeprefix("data:").partition(";")[0]
        words = f"Invalid file data: '{path}.file_data'. Expected a base64-encoded data URL with a valid file MIME type"
        yield _no("file-format", path, f"{words}, but got unsupported MIME type '{kind}'.")


def _about_call(index: int, item: Mapping[str, Any]) -> Iterator[ServiceRefusal]:
    path = f"input.{index}"
    yield from _about_name(f"input[{index}].name", item.get("name"))
    if not isinstance(item.get("arguments"), str):
        words = f"Invalid type for 'input[{index}].arguments': expected a string, but got something else instead."
        yield _no("arguments", path, words, "invalid_type")


def _about_name(field: str, name: object) -> Iterator[ServiceRefusal]:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        words = f"Invalid '{field}': string does not match pattern. Expected a string that matches the pattern"
        yield _no("tool-name", field, f"{words} '^[a-zA-Z0-9_-]+$'.", "invalid_value")
    elif len(name) > _NAME_CHARACTERS_MAX:
        words = f"Invalid '{field}': string too long. Expected a string with maximum length 64."
        yield _no("tool-name", field, words, "string_above_max_length")


def _about_reasoning(request: WireRequest, index: int, items: Sequence[Mapping[str, Any]]) -> Iterator[ServiceRefusal]:
    path, item = f"input.{index}", items[index]
    behind: Mapping[str, Any] = items[index + 1] if index + 1 < len(items) else {}
    if "summary" not in item:
        words = f"Missing required parameter: 'input[{index}].summary'."
        yield _no("reasoning-summary", path, words, "missing_required_parameter")
    spoken = _kind(behind) == "message" and behind.get("role") == "assistant"
    changed = spoken and item.get("id") and not behind.get("id") and request.get("store") is not False
    if not behind or changed or (_kind(behind) in _CALLERS and not spoken):
        words = f"Item '{item.get('id')}' of type 'reasoning' was provided without its required following item."
        yield _no("reasoning-alone", path, words)
    if request.get("store") is False and not item.get("encrypted_content"):
        words = (
            f"Item with id '{item.get('id')}' not found. Items are not persisted when `store` is set to false. Try "
            "again with `store` set to true, or remove this item from your input."
        )
        yield _no("unstored-reasoning", path, words, status=404)


def _about_pairs(request: WireRequest, items: Sequence[Mapping[str, Any]]) -> Iterator[ServiceRefusal]:
    """Calls and outputs. A conversation that the service has stored may hold the other half."""
    elsewhere = request.get("previous_response_id") or request.get("conversation")
    calls: set[str] = set()
    outputs = {str(item.get("call_id")) for item in items if _kind(item) == "function_call_output"}
    for index, item in enumerate(items):
        call_id = str(item.get("call_id"))
        if _kind(item).endswith("_call"):
            calls.add(call_id)
        if _kind(item) == "function_call" and call_id not in outputs:
            yield _no("unanswered-call", f"input.{index}", f"No tool output found for function call {call_id}.")
        if _kind(item) == "function_call_output":
            for _, part in objects(item.get("output")):
                yield from _about_image(f"input.{index}.output", part)
                yield from _about_file(f"input.{index}.output", part)
            if not elsewhere and call_id not in calls:
                words = f"No tool call found for function call output with call_id {call_id}."
                yield _no("output-without-call", f"input.{index}", words)


def _about_tools(request: WireRequest) -> Iterator[ServiceRefusal]:
    for index, tool in objects(request.get("tools")):
        if tool.get("type") == "function":
            yield from _about_name(f"tools[{index}].name", tool.get("name"))
    choice = request.get("tool_choice")
    if not elements(request.get("tools")) and (choice == "required" or mapping(choice).get("type") == "function"):
        words = "Tool choice must be specified while providing tools."
        yield _no("choice-without-tools", "tool_choice", words)
