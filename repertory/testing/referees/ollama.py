"""Referee of Ollama's own protocol: the requests that `POST /api/chat` accepts. It checks little but types."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Mapping

from repertory.backends.wire_json import elements, mapping, objects
from repertory.testing.referees.rules import ServiceRefusal, ServiceRule, WireRequest

_API = "https://docs.ollama.com/api/chat"


def _rule(name: str, words: str, source: str) -> ServiceRule:
    return ServiceRule(id=f"ollama-{name}", applies_to="Ollama", words=words, source=source)


_TABLE = (
    _rule("model", "A request names a model.", _API),
    _rule("content", "A message's content is a string.", "https://github.com/ollama/ollama/issues/6451"),
    _rule("arguments", "The arguments of a tool call are an object.", "https://github.com/aliasrobotics/cai/issues/76"),
    _rule("image", "An image is in base64, without a prefix.", _API),
)
RULES: Mapping[str, ServiceRule] = {rule.id: rule for rule in _TABLE}
"""The rules by their ids."""


def ollama_refusal(request: WireRequest) -> ServiceRefusal | None:
    """The refusal of an Ollama server; None if it accepts the request.

    Args:
        request: The JSON of `POST /api/chat`.

    Examples:
        >>> ollama_refusal({"model": "llama3.2", "messages": [{"role": "user", "content": "Hi"}]})
        >>> ollama_refusal({"model": "", "messages": []}).message
        'model is required'
    """
    return next(_refusals(request), None)


def _no(name: str, path: str, message: str) -> ServiceRefusal:
    return ServiceRefusal(rule=RULES[f"ollama-{name}"].id, path=path, message=message, code="bad_request")


def _refusals(request: WireRequest) -> Iterator[ServiceRefusal]:
    if not request.get("model"):
        yield _no("model", "model", "model is required")
    for index, message in objects(request.get("messages")):
        path, content = f"messages.{index}", message.get("content")
        if content is not None and not isinstance(content, str):
            words = "json: cannot unmarshal array into Go struct field ChatRequest.messages.content of type string"
            yield _no("content", path, words)
        for _, call in objects(message.get("tool_calls")):
            if not isinstance(mapping(call.get("function")).get("arguments"), Mapping):
                field = "ChatRequest.messages.tool_calls.function.arguments"
                words = f"json: cannot unmarshal string into Go struct field {field}"
                yield _no("arguments", path, f"{words} of type api.ToolCallFunctionArguments")
        for image in elements(message.get("images")):
            if not isinstance(image, str) or not _is_base64(image):
                yield _no("image", path, "illegal base64 data at input byte 0")


def _is_base64(text: str) -> bool:
    try:
        base64.b64decode(text, validate=True)
    except binascii.Error:
        return False
    return True
