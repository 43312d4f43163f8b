"""Builds requests to Gemini's `generateContent`. Pure.

Each signature of a thought goes back on the part that it came with: on a tool use (`reasoningSignature`), on the text
or the medium before a block of reasoning that holds nothing else, or on reasoning. Parts in the service's own form go
back unchanged.

Source: the Gemini API, its guides to thought signatures, function calling and code execution.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from msgspec import Struct

from repertory.backends.models.content import (
    BLANK_TEXT,
    block_kind,
    bytes_in,
    cannot_take,
    described,
    input_of,
    text_in,
)
from repertory.backends.models.fitting import ServiceRules
from repertory.backends.models.provider import ModelCall, fitted_call
from repertory.core import media
from repertory.core.json_bytes import any_base64
from repertory.core.provider_content import text_for_others
from repertory.errors import Invalid

if TYPE_CHECKING:
    from repertory.core.messages import Message

SERVICE = "Gemini"
PROVIDER = "gemini"
"""The name of the service's reasoning and parts in stored messages."""

GEMINI_RULES = ServiceRules(
    service=SERVICE,
    provider=PROVIDER,
    tool_name_first="a-zA-Z_",
    reasoning="any",
    images=frozenset(("png", "jpeg", "jpg", "webp", "heic", "heif")),
    documents=frozenset(("pdf", "txt", "md", "csv", "html", "xls", "xlsx")),
    videos=frozenset("*"),
    audios=frozenset("*"),
    media_in_answers=True,
    reads_text=False,
)

MEDIA_TYPES = {**media.MEDIA_TYPES, "jpg": "image/jpeg", "wmv": "video/wmv", "mp3": "audio/mpeg"}
"""Media types of formats; that of any other format is the block's kind and the format."""

_RESULT_TYPES = frozenset(("image/png", "image/jpeg", "image/webp", "application/pdf", "text/plain"))
"""The media types that a function response may hold, from Gemini 3 on."""
STAND_IN_SIGNATURE = b"skip_thought_signature_validator"
"""Stands for the signature of a function call that Gemini did not make. Source: the guide to thought signatures."""
_VERSION = re.compile(r"gemini-(\d+)")


class _Target(Struct, frozen=True, kw_only=True):
    """The model and the service that a request is for."""

    version: int | None
    """The model's generation; None if its name does not say it."""
    wants_signatures: bool
    """True if the model refuses function calls without a signature."""
    vertexai: bool

    @property
    def new(self) -> bool:
        """True from Gemini 3 on: media in function responses, and parts of tools that the service runs."""
        return self.version is not None and self.version >= 3


def _target(model_id: str, *, vertexai: bool) -> _Target:
    return _Target(version=_version(model_id), wants_signatures=wants_signatures(model_id), vertexai=vertexai)


def _version(model_id: str) -> int | None:
    found = _VERSION.search(model_id)
    return int(found[1]) if found else None


def wants_signatures(model_id: str) -> bool:
    """True if the model refuses function calls without a signature."""
    version = _version(model_id)
    # A name such as `gemini-flash-latest` is of the newest generation. Older ones take the stand-in as well.
    latest = version is None and "gemini" in model_id and "latest" in model_id
    return latest or (version or 0) >= 3


def content_request(call: ModelCall, *, vertexai: bool = False) -> dict[str, Any]:
    """The arguments of one call. Errors: `Invalid` for a block that the service cannot take."""
    call = fitted_call(call, GEMINI_RULES)
    config: Mapping[str, Any] = call.config
    if not config.get("model_id"):
        raise Invalid("GeminiModel needs a model_id, such as 'gemini-2.5-flash'")
    settings: dict[str, Any] = dict(config.get("params") or {})
    if system := call.system_text:
        settings.setdefault("system_instruction", system)
    functions = [_function(spec) for spec in call.tools]
    own = list(config.get("gemini_tools") or ())
    if functions or own:
        settings["tools"] = [*([{"function_declarations": functions}] if functions else []), *own]
    if functions and call.tool_choice:
        settings.setdefault("tool_config", {"function_calling_config": _choice(call.tool_choice)})
    if functions and own and not vertexai:
        chosen: Any = settings.get("tool_config") or {}
        as_given: dict[str, Any] = chosen.model_dump(exclude_none=True) if hasattr(chosen, "model_dump") else chosen
        settings["tool_config"] = {"include_server_side_tool_invocations": True, **as_given}
    return {"model": config["model_id"], "contents": contents(call, vertexai=vertexai), "config": settings}


def contents(call: ModelCall, *, vertexai: bool = False) -> list[dict[str, Any]]:
    """The messages of a call in the service's form. Errors: as `content_request`."""
    call = fitted_call(call, GEMINI_RULES)
    target = _target(str(call.config.get("model_id") or ""), vertexai=vertexai)
    names: dict[str, str] = {}
    return [_content(message, names, target) for message in call.messages]


def _content(message: Message, names: dict[str, str], target: _Target) -> dict[str, Any]:
    """The service's content for one message. `names`: the tool of each use, which results must name."""
    if message["role"] == "user":
        return {"role": "user", "parts": _user_parts(message, names, target) or [{"text": BLANK_TEXT}]}
    return {"role": "model", "parts": _model_parts(message, names, target) or [{"text": BLANK_TEXT}]}


def _user_parts(message: Message, names: Mapping[str, str], target: _Target) -> list[dict[str, Any]]:
    """The results of tools come first, since their number is that of the calls; then media that they cannot hold."""
    results: list[dict[str, Any]] = []
    media: list[dict[str, Any]] = []
    others: list[dict[str, Any]] = []
    for block in message["content"]:
        if "toolResult" in block:
            results.append(_result(block["toolResult"], names, target, media))
        else:
            others += _part(block)
    return [*results, *media, *others]


def _result(
    result: Mapping[str, Any], names: Mapping[str, str], target: _Target, media: list[dict[str, Any]]
) -> dict[str, Any]:
    """A function response. Media that it cannot hold are added to `media`."""
    output: list[dict[str, Any]] = []
    parts: list[dict[str, Any]] = []
    for part in result["content"]:
        if "json" in part:
            output.append({"json": part["json"]})
        elif (text := text_in(part)) is not None or (text := _text_of_document(part)) is not None:
            output.append({"text": text})
        else:
            for made in _medium(part):
                held = target.new and made["inline_data"]["mime_type"] in _RESULT_TYPES
                (parts if held else media).append(made)
                output.append({"text": f"(The {block_kind(part)} is attached.)"})
    key = "error" if result.get("status") == "error" else "output"
    response: dict[str, Any] = {
        "id": result["toolUseId"],
        "name": names.get(result["toolUseId"], result["toolUseId"]),
        "response": {key: output},
    }
    return {"function_response": {**response, "parts": parts} if parts else response}


def _text_of_document(part: Mapping[str, Any]) -> str | None:
    """The text of a document of a tool; None for any other part. A function response holds text, not its bytes."""
    document = part.get("document")
    if not isinstance(document, Mapping):
        return None
    body = cast("Mapping[str, Any]", document)
    source: Mapping[str, Any] = body.get("source", {})
    if "text" in source:
        return str(source["text"])
    if "content" in source:
        return "\n".join(text_in(each) or "" for each in source["content"])
    if body.get("format") not in ("txt", "md", "csv", "html"):
        return None
    try:
        return bytes_in("document", body, SERVICE).decode()
    except UnicodeDecodeError:
        return None


def _model_parts(message: Message, names: dict[str, str], target: _Target) -> list[dict[str, Any]]:
    parts: list[dict[str, Any]] = []
    before: Mapping[str, Any] = {}
    called = False
    for block in message["content"]:
        if "toolUse" in block:
            use: Mapping[str, Any] = block["toolUse"]
            names[use["toolUseId"]] = use["name"]
            signed = _signed(use.get("reasoningSignature"))
            if not called and not signed and target.wants_signatures:
                signed = {"thought_signature": STAND_IN_SIGNATURE}
            called = True
            made = {"id": use["toolUseId"], "name": use["name"], "args": input_of(use)}
            parts.append({"function_call": made, **signed})
        elif "reasoningContent" in block:
            _reason(block["reasoningContent"], before, parts)
        elif "providerContent" in block:
            parts += _own_part(block["providerContent"]["content"], target)
        else:
            parts += _part(block)
        before = cast("Mapping[str, Any]", block)
    return parts


def _reason(reasoning: Mapping[str, Any], before: Mapping[str, Any], parts: list[dict[str, Any]]) -> None:
    """Add reasoning to the parts. `before`: the block in front of it, which a signature alone belongs to.

    A signature without a mark may be another service's, which Gemini refuses, so it stays behind.
    """
    spoken: Mapping[str, Any] = reasoning.get("reasoningText", {})
    text = str(spoken.get("text") or "")
    signed = _signed(spoken.get("signature")) if reasoning.get("provider") == PROVIDER else {}
    if text:
        parts.append({"text": text, "thought": True, **signed})
    elif signed:
        of_text = text_in(before)
        if of_text is not None and not of_text.strip():
            parts.append({"text": of_text, **signed})
        elif parts and (of_text is not None or block_kind(before) in ("image", "audio", "video")):
            parts[-1] = {**parts[-1], **signed}
        else:
            parts.append({"text": "", **signed})


def _own_part(content: Mapping[str, object], target: _Target) -> list[dict[str, Any]]:
    """A part that the service made, as it came. What this model or service does not know is replaced by its text."""
    if "groundingMetadata" in content:
        return []  # It stands beside the parts of an answer, and is never sent.
    if not {"toolCall", "toolResponse"}.isdisjoint(content) and (
        target.vertexai or (target.version is not None and not target.new)
    ):
        words = text_for_others(content)
        return [] if words is None else [{"text": words}]
    part: dict[str, Any] = dict(content)
    if target.vertexai:
        part.pop("partMetadata", None)
    if "thoughtSignature" in part:
        signature = any_base64(part.pop("thoughtSignature"))
        part |= {} if signature is None else {"thoughtSignature": signature}
    inline = part.get("inlineData")
    if isinstance(inline, Mapping):
        fields = cast("Mapping[str, Any]", inline)
        part["inlineData"] = {**fields, "data": any_base64(fields.get("data")) or b""}
    return [part] if part.get("text") or part.keys() - {"text", "thought"} else []


def _part(block: Mapping[str, Any]) -> list[dict[str, Any]]:
    text = text_in(block)
    if text is not None:
        return [{"text": text}] if text.strip() else []
    return _medium(block)


def _medium(block: Mapping[str, Any]) -> list[dict[str, Any]]:
    kind = block_kind(block)
    if kind == "cachePoint":
        return []
    if kind not in ("image", "document", "video", "audio"):
        raise cannot_take(kind, SERVICE, "it has no such blocks", sorted(block))
    body: Mapping[str, Any] = block[kind]
    source: Mapping[str, Any] = body.get("source", {})
    if kind == "document" and "text" in source:
        return [{"text": str(source["text"])}]
    if kind == "document" and "content" in source:
        return [{"text": "\n".join(text_in(part) or "" for part in source["content"])}]
    form = str(body.get("format", ""))
    media_type = MEDIA_TYPES.get(form, "application/octet-stream" if kind == "document" else f"{kind}/{form}")
    return [{"inline_data": {"data": bytes_in(kind, body, SERVICE), "mime_type": media_type}}]


def _signed(signature: object) -> dict[str, bytes]:
    """The signature of a thought; one that is not in base64 is another service's, and is left out."""
    data = any_base64(signature)
    return {"thought_signature": data} if data else {}


def _function(spec: Mapping[str, Any]) -> dict[str, Any]:
    return {**described(spec), "parameters_json_schema": spec["inputSchema"]["json"]}


def _choice(choice: Mapping[str, Any]) -> dict[str, Any]:
    if "tool" in choice:
        return {"mode": "ANY", "allowed_function_names": [choice["tool"]["name"]]}
    return {"mode": "ANY" if "any" in choice else "AUTO"}
