"""Referee of Google's Gemini API: the requests that `models.generateContent` accepts.

The service takes neighbouring contents of one role together. A model's version is read from its name; one whose name
says none (`gemini-flash-latest`) has no rules of a version.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from repertory.backends.wire_json import RoleTurn, elements, mapping, objects, turns
from repertory.testing.referees.rules import ServiceRefusal, ServiceRule, WireRequest

_API = "https://ai.google.dev/api/generate-content"
_ALL = "Gemini"
_NEW, _OLD = "Gemini 3 and newer", "Gemini before 3"


def _rule(name: str, words: str, source: str, applies_to: str = _ALL) -> ServiceRule:
    return ServiceRule(id=f"gemini-{name}", applies_to=applies_to, words=words, source=source)


_TABLE = (
    _rule("contents", "A request has at least one content.", "https://github.com/vercel/ai/issues/3775"),
    _rule("role", "A content's role is `user` or `model`.", _API),
    _rule("parts", "A content has parts.", "https://github.com/langchain-ai/langchain-google/issues/691"),
    _rule("part", "A part has data.", "https://github.com/router-for-me/CLIProxyAPI/issues/1292"),
    _rule("field", "A part has no fields that the service does not know.", _API),
    _rule(
        "call-first",
        "A content with function calls stands behind a user's, or behind function responses.",
        "https://github.com/lobehub/lobehub/issues/10049",
    ),
    _rule(
        "response-first",
        "Function responses stand directly behind the content with the calls.",
        "https://github.com/GoogleCloudPlatform/generative-ai/pull/368",
    ),
    _rule(
        "response-count",
        "There are as many function responses as function calls.",
        "https://github.com/google-gemini/gemini-cli/issues/16906",
    ),
    _rule("call-args", "The arguments of a function call, and a response, are objects.", _API),
    _rule(
        "tool-name",
        "A function's name is a letter or `_`, then letters, digits, `_`, `.`, `:` and `-`; at most 128 characters.",
        "https://github.com/kaitranntt/ccs/issues/25",
    ),
    _rule("call-name", "A function call and a response have a name.", _API),
    _rule(
        "signature-base64",
        "A thought's signature is base64.",
        "https://github.com/MayDay-wpf/snow-cli/issues/84",
    ),
    _rule(
        "signature",
        "The first function call of each step of the running turn has the signature of its thought.",
        "https://ai.google.dev/gemini-api/docs/thought-signatures",
        _NEW,
    ),
    _rule(
        "response-parts",
        "A function response has no parts.",
        "https://ai.google.dev/gemini-api/docs/function-calling#multimodal",
        _OLD,
    ),
    _rule(
        "tool-parts",
        "A content has no parts of tools that the service runs itself, other than code execution.",
        "https://ai.google.dev/gemini-api/docs/tool-combination",
        _OLD,
    ),
    _rule(
        "choice-without-tools",
        "A request without tools has no choice of one.",
        "https://ai.google.dev/gemini-api/docs/function-calling",
    ),
)
RULES: Mapping[str, ServiceRule] = {rule.id: rule for rule in _TABLE}
"""The rules by their ids."""

_DATA = {
    "text",
    "inlineData",
    "fileData",
    "functionCall",
    "functionResponse",
    "executableCode",
    "codeExecutionResult",
    "toolCall",
    "toolResponse",
}
_BESIDE = {"thought", "thoughtSignature", "videoMetadata", "partMetadata", "mediaResolution", "audioTranscription"}
_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_.:-]{0,127}")
_BASE64 = re.compile(r"[A-Za-z0-9+/_-]*={0,2}")
_VERSION = re.compile(r"gemini-(\d+)")
_UNDERSCORE = re.compile(r"_([a-z])")
_FREE = frozenset(("args", "response", "parameters", "parametersJsonSchema", "parameters_json_schema"))
"""Fields whose values are the caller's own, so that their names are left alone."""


def gemini_refusal(request: WireRequest) -> ServiceRefusal | None:
    """The refusal of Google's service; None if it accepts the request.

    Args:
        request: The JSON of `models.generateContent`, with the name of the model under `model`, or the arguments of
            `google.genai`'s `generate_content`, whose names have underscores, and whose bytes are bytes.

    Examples:
        >>> gemini_refusal({"model": "gemini-3-flash", "contents": [{"role": "user", "parts": [{"text": "Hi"}]}]})
        >>> gemini_refusal({"model": "gemini-3-flash", "contents": [{"role": "user", "parts": []}]}).rule
        'gemini-parts'
    """
    return next(_refusals(_as_sent(request)), None)


def _as_sent(request: WireRequest) -> dict[str, Any]:
    """The request as JSON of the service: the SDK's arguments with its spelling of names, `config` in its places."""
    sent = cast("dict[str, Any]", _spelled(request))
    contents = sent.get("contents")
    if isinstance(contents, str):
        sent["contents"] = [{"role": "user", "parts": [{"text": contents}]}]
    elif isinstance(contents, Mapping):
        sent["contents"] = [contents]
    return {**mapping(sent.pop("config", None)), **sent}


def _spelled(value: object) -> object:
    if isinstance(value, Mapping):
        fields = cast("Mapping[str, object]", value)
        return {
            _UNDERSCORE.sub(lambda found: found[1].upper(), str(name)): each if name in _FREE else _spelled(each)
            for name, each in fields.items()
        }
    if isinstance(value, list | tuple):
        return [_spelled(each) for each in cast("Sequence[object]", value)]
    return value


def _no(name: str, path: str, message: str) -> ServiceRefusal:
    return ServiceRefusal(rule=RULES[f"gemini-{name}"].id, path=path, message=message, code="INVALID_ARGUMENT")


def _refusals(request: WireRequest) -> Iterator[ServiceRefusal]:
    version = next((int(found) for found in _VERSION.findall(str(request.get("model", "")))), None)
    if not elements(request.get("contents")):
        yield _no("contents", "contents", "* GenerateContentRequest.contents: contents is not specified")
    for index, content in objects(request.get("contents")):
        if content.get("role") not in ("user", "model", "function", None):
            yield _no("role", f"contents.{index}.role", "Please use a valid role: user, model.")
        if not elements(content.get("parts")):
            where = f"GenerateContentRequest.contents[{index}].parts"
            yield _no("parts", f"contents.{index}", f"* {where}: contents.parts must not be empty.")
        for number, part in objects(content.get("parts")):
            yield from _about_part(index, number, part, version)
    found = turns(request.get("contents"), "parts", "contents")
    yield from _about_order(found)
    if version is not None and version >= 3:
        yield from _about_signatures(request)
    yield from _about_tools(request)


def _about_part(index: int, number: int, part: Mapping[str, Any], version: int | None) -> Iterator[ServiceRefusal]:
    path, where = f"contents.{index}.parts.{number}", f"contents[{index}].parts[{number}]"
    for name in sorted(part.keys() - _DATA - _BESIDE):
        words = f"Invalid JSON payload received. Unknown name \"{name}\" at '{where}': Cannot find field."
        yield _no("field", path, words)
    if not part.keys() - {"thought"}:
        words = f"* GenerateContentRequest.{where}.data: required oneof field 'data' must have one initialized field"
        yield _no("part", path, words)
    for kind, field, snake in (
        ("functionCall", "args", "function_call"),
        ("functionResponse", "response", "function_response"),
    ):
        if kind in part:
            body = mapping(part[kind])
            if not body.get("name"):
                words = f"* GenerateContentRequest.{where}.{snake}.name: Name cannot be empty."
                yield _no("call-name", path, words)
            if not isinstance(body.get(field, {}), Mapping):
                words = f"Invalid value at '{where}.{snake}.{field}' (type.googleapis.com/google.protobuf.Struct)"
                yield _no("call-args", path, words)
    signature = part.get("thoughtSignature")
    if isinstance(signature, str) and (not _BASE64.fullmatch(signature) or len(signature.rstrip("=")) % 4 == 1):
        words = f"Invalid value at '{where}.thought_signature' (TYPE_BYTES), Base64 decoding failed for \"{signature}\""
        yield _no("signature-base64", path, words)
    if version is not None and version < 3:
        if mapping(part.get("functionResponse")).get("parts"):
            words = f"Multimodal function responses are not supported by this model: {where}.function_response.parts"
            yield _no("response-parts", path, words)
        if "toolCall" in part or "toolResponse" in part:
            yield _no("tool-parts", path, "Tool call context circulation is not enabled for this model.")


def _about_order(found: Sequence[RoleTurn]) -> Iterator[ServiceRefusal]:
    calls = 0
    for number, turn in enumerate(found):
        path = f"contents.{turn.first}"
        answers = sum(1 for _, part in turn.blocks if "functionResponse" in part)
        if turn.role != "model" and answers and not calls:
            words = "Please ensure that function response turn comes immediately after a function call turn."
            yield _no("response-first", path, words)
        if number and calls and answers != calls:
            words = "Please ensure that the number of function response parts is equal to the number of function call"
            yield _no("response-count", path, f"{words} parts of the function call turn.")
        calls = sum(1 for _, part in turn.blocks if "functionCall" in part) if turn.role == "model" else 0
        if calls and not number:
            words = "Please ensure that function call turn comes immediately after a user turn or after a function"
            yield _no("call-first", path, f"{words} response turn.")


def _about_signatures(request: WireRequest) -> Iterator[ServiceRefusal]:
    """Signatures are checked from the last content of the user that holds no function response."""
    contents = [content for _, content in objects(request.get("contents"))]
    prompts = [
        index
        for index, content in enumerate(contents)
        if content.get("role") != "model"
        and not any("functionResponse" in part for _, part in objects(content.get("parts")))
    ]
    start = prompts[-1] if prompts else 0
    before = ""
    for index, content in enumerate(contents):
        role = str(content.get("role"))
        calls = [part for _, part in objects(content.get("parts")) if "functionCall" in part]
        if index > start and role == "model" and before != "model" and calls and not calls[0].get("thoughtSignature"):
            name = mapping(calls[0]["functionCall"]).get("name")
            words = (
                "Function call is missing a thought_signature in functionCall parts. This is required for tools to "
                "work correctly, and missing thought_signature may lead to degraded model performance. Additional "
                f"data, function call `default_api:{name}` , position {index + 1}."
            )
            yield _no("signature", f"contents.{index}", words)
        before = role


def _about_tools(request: WireRequest) -> Iterator[ServiceRefusal]:
    functions = [
        (index, number, function)
        for index, tool in objects(request.get("tools"))
        for number, function in objects(tool.get("functionDeclarations"))
    ]
    for index, number, function in functions:
        if not _NAME.fullmatch(str(function.get("name"))):
            where = f"GenerateContentRequest.tools[{index}].function_declarations[{number}].name"
            words = (
                "Invalid function name. Must start with a letter or an underscore. Must be alphameric (a-z, A-Z, 0-9), "
                "underscores (_), dots (.), colons (:), or dashes (-), with a maximum length of 128."
            )
            yield _no("tool-name", f"tools.{index}.functionDeclarations.{number}", f"* {where}: {words}")
    if mapping(mapping(request.get("toolConfig")).get("functionCallingConfig")) and not elements(request.get("tools")):
        words = "Function calling config is set without function_declarations."
        yield _no("choice-without-tools", "toolConfig", words)
