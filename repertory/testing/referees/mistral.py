"""Referee of Mistral: the requests that `POST https://api.mistral.ai/v1/chat/completions` accepts.

A user's message behind a tool's is accepted by the service's newer models, as recorded answers of July 2026 show, and
refused by older ones; so there is no rule about it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from repertory.backends.wire_json import body, mapping, objects
from repertory.testing.referees.rules import ServiceRefusal, ServiceRule, WireRequest

_VALIDATOR = (
    "https://github.com/mistralai/mistral-common/blob/039465d/src/mistral_common/protocol/instruct/validator.py"
)


def _rule(name: str, words: str, source: str = _VALIDATOR) -> ServiceRule:
    return ServiceRule(id=f"mistral-{name}", applies_to="Mistral", words=words, source=source)


_TABLE = (
    _rule("messages", "A request has at least one message."),
    _rule("role", "A message's role is `system`, `user`, `assistant` or `tool`."),
    _rule(
        "role-order",
        "A tool's message does not stand behind a user's or a system message.",
        "https://github.com/charmbracelet/crush/issues/279",
    ),
    _rule("last-role", "The last message is a user's or a tool's, unless it is marked as a prefix."),
    _rule("answer-count", "There are as many tool results as tool calls."),
    _rule("empty-answer", "An assistant's message has content or tool calls."),
    _rule("call-id", "The id of a tool call has exactly nine letters and digits."),
    _rule("tool-name", "A tool's name has letters, digits, `_` and `-`, at most 64, also in earlier calls."),
    _rule(
        "extra-field",
        "A message or a request has no fields that the service does not know.",
        "https://docs.mistral.ai/api/endpoint/chat",
    ),
)
RULES: Mapping[str, ServiceRule] = {rule.id: rule for rule in _TABLE}
"""The rules by their ids."""

_ROLES = ("system", "user", "assistant", "tool")
_MESSAGE_FIELDS = {"role", "content", "tool_calls", "tool_call_id", "name", "prefix"}
_UNKNOWN = ("stream_options", "reasoning_content", "max_completion_tokens")
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_ID = re.compile(r"[a-zA-Z0-9]{9}")


def mistral_refusal(request: WireRequest) -> ServiceRefusal | None:
    """The refusal of Mistral's service; None if it accepts the request.

    Args:
        request: The JSON of `POST /v1/chat/completions`.

    Examples:
        >>> mistral_refusal({"model": "mistral-large-latest", "messages": [{"role": "user", "content": "Hi"}]})
        >>> mistral_refusal({"model": "mistral-large-latest", "messages": []}).rule
        'mistral-messages'
    """
    return next(_refusals(body(request)), None)


def _no(
    name: str, path: str, message: str, code: str = "invalid_request_message_order", *, status: int = 400
) -> ServiceRefusal:
    return ServiceRefusal(rule=RULES[f"mistral-{name}"].id, path=path, message=message, code=code, status=status)


def _refusals(request: WireRequest) -> Iterator[ServiceRefusal]:
    messages = [message for _, message in objects(request.get("messages"))]
    if not messages:
        yield _no("messages", "messages", "Conversation must have at least one message")
    for name in _UNKNOWN:
        if name in request:
            yield _extra(name, name)
    for index, message in enumerate(messages):
        yield from _about_message(index, message)
    yield from _about_order(messages)
    for index, tool in objects(request.get("tools")):
        yield from _about_name(f"tools.{index}", mapping(tool.get("function")).get("name"))


def _extra(path: str, name: str) -> ServiceRefusal:
    words = f"Extra inputs are not permitted: {name}"
    return _no("extra-field", path, words, "extra_forbidden", status=422)


def _about_message(index: int, message: Mapping[str, Any]) -> Iterator[ServiceRefusal]:
    path, role = f"messages.{index}", message.get("role")
    if role not in _ROLES:
        yield _no("role", path, f"Input tag '{role}' found using 'role' does not match any of the expected tags")
    for name in sorted(message.keys() - _MESSAGE_FIELDS):
        yield _extra(path, name)
    if role == "assistant" and not message.get("content") and not message.get("tool_calls"):
        words = "Assistant message must have either content or tool_calls, but not none."
        yield _no("empty-answer", path, words, "invalid_assistant_message")
    ids = [message.get("tool_call_id")] if role == "tool" else []
    for number, call in objects(message.get("tool_calls")):
        ids.append(call.get("id"))
        yield from _about_name(f"{path}.tool_calls.{number}", mapping(call.get("function")).get("name"))
    for call_id in ids:
        if not _ID.fullmatch(str(call_id)):
            words = f"Tool call id was {call_id} but must be a-z, A-Z, 0-9, with a length of 9."
            yield _no("call-id", path, words, "invalid_function_call")


def _about_name(path: str, name: object) -> Iterator[ServiceRefusal]:
    if not _NAME.fullmatch(str(name)):
        words = f"Function name was {name} but must be a-z, A-Z, 0-9, or contain underscores and dashes, with a maximum"
        yield _no("tool-name", path, f"{words} length of 64.", "invalid_function_call")


def _about_order(messages: Sequence[Mapping[str, Any]]) -> Iterator[ServiceRefusal]:
    waiting = 0
    before = ""
    for index, message in enumerate(messages):
        path, role = f"messages.{index}", str(message.get("role"))
        if role == "tool":
            waiting -= 1
            if before in ("user", "system", ""):
                yield _no("role-order", path, f"Unexpected role 'tool' after role '{before}'")
        elif role == "assistant":
            if waiting:
                yield _no("answer-count", path, "Not the same number of function calls and responses")
            waiting = sum(1 for _ in objects(message.get("tool_calls")))
        before = role
    if waiting:
        yield _no("answer-count", "messages", "Not the same number of function calls and responses")
    if before == "assistant" and not messages[-1].get("prefix"):
        words = "Expected last role User or Tool (or Assistant with prefix True) for serving but got assistant"
        yield _no("last-role", f"messages.{len(messages) - 1}", words)
