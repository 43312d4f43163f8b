"""Builds requests to Converse and ConverseStream: settings and a conversation as request parameters.

Pure. Our own fields (`metadata`, `tracking_id`, whose reasoning it is) are never sent. Parts of a sound history that
the service would refuse (blank text, tool blocks without a tool list, tool input that is no object, thinking that a
turn did not begin with) are changed so that it accepts them.

Source: Amazon Bedrock API reference, `Converse` and `ConverseStream`; extended thinking of Claude on Bedrock.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from repertory.backends.models.bedrock_families import Family, family_of, is_claude, rules_of
from repertory.backends.models.caching import with_cache_points
from repertory.backends.models.content import BLANK_TEXT, block_kind, cannot_take, input_of, mentions_tools, text_in
from repertory.backends.models.provider import ModelCall, fitted_call
from repertory.core.answer import is_mapping
from repertory.core.messages import is_one_text

if TYPE_CHECKING:
    from repertory.backends.models.fitting import ServiceRules
    from repertory.core.messages import Message

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


_MEDIA = ("audio", "document", "image", "video")
_THINKING = ("thinking", "reasoning_config")
"""The names under which Claude is asked to think."""


def bedrock_rules(config: Mapping[str, Any]) -> ServiceRules:
    """The rules of Converse for the model of these settings."""
    return rules_of(str(config.get("model_id") or ""))


def converse_request(call: ModelCall) -> dict[str, Any]:
    """The parameters of one call."""
    config: Mapping[str, Any] = call.config
    call = fitted_call(call, bedrock_rules(call.config))
    call = with_cache_points(call, claude=is_claude(config.get("model_id") or ""), converse=True)
    values: Mapping[str, Any] = config
    request: dict[str, Any] = {"modelId": config.get("model_id"), "messages": _messages(config, call.messages)}
    if system := call.system_blocks:
        request["system"] = list(system)
    inference: dict[str, Any] = {name: values[key] for key, name in _INFERENCE.items() if values.get(key) is not None}
    if inference:
        request["inferenceConfig"] = inference
    if tools := _tools(call):
        request["toolConfig"] = {
            "tools": tools,
            **({"toolChoice": _tool_choice(call)} if call.tool_choice else {}),
        }
    if guardrail := _guardrail(config):
        request["guardrailConfig"] = guardrail
    for key, name in _ADDITIONAL.items():
        if values.get(key) is not None:
            request[name] = values[key]
    if tier := config.get("service_tier"):
        request["serviceTier"] = {"type": tier}
    request |= config.get("additional_args") or {}
    if _thinks(config, "enabled") and _began_without_thinking(request["messages"]):
        fields: Mapping[str, Any] = request["additionalModelRequestFields"]
        request["additionalModelRequestFields"] = {name: fields[name] for name in fields if name not in _THINKING}
    return request


def _thinks(config: Mapping[str, Any], *kinds: str) -> bool:
    """True if Claude thinks before it answers, in one of these ways."""
    given: Mapping[str, object] = config.get("additional_args") or {}
    fields: object = given.get("additionalModelRequestFields", config.get("additional_request_fields"))
    if not is_mapping(fields):
        return False
    found = [each.get("type") for name in _THINKING if is_mapping(each := fields.get(name))]
    return any(kind in (kinds or ("enabled", "adaptive")) for kind in found)


def _tool_choice(call: ModelCall) -> dict[str, Any]:
    """The choice; the service refuses to force a tool while the model thinks."""
    choice = dict(call.tool_choice or {})
    return {"auto": {}} if "auto" not in choice and _thinks(call.config) else choice


def _began_without_thinking(messages: Sequence[Mapping[str, Any]]) -> bool:
    """True if a turn goes on whose first answer has no thinking in front, as the answer of another model. The service
    refuses such a turn while thinking is enabled.
    """
    began = len(messages)
    while began and (messages[began - 1]["role"] == "assistant" or _has_results_alone(messages[began - 1])):
        began -= 1
    return began < len(messages) and "reasoningContent" not in messages[began]["content"][0]


def _has_results_alone(message: Mapping[str, Any]) -> bool:
    return all("toolResult" in block or "cachePoint" in block for block in message["content"])


def counting_request(request: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of `CountTokens` for the same conversation."""
    counted = ("messages", "system", "toolConfig", "additionalModelRequestFields")
    conversation = {key: request[key] for key in counted if key in request}
    return {"modelId": request["modelId"], "input": {"converse": conversation}}


def _messages(config: Mapping[str, Any], messages: Sequence[Message]) -> list[dict[str, Any]]:
    model_id = config.get("model_id") or ""
    family, wanted = family_of(model_id), config.get("include_tool_result_status")
    with_status = family.status if wanted in (None, "auto") else bool(wanted)
    sent: list[dict[str, Any]] = []
    for message in messages:
        plain = message["content"][0].get("text", "") if is_one_text(message["content"]) else ""
        content = [{"text": plain}] if plain.strip() else _content(message, family, with_status=with_status)
        if sent and sent[-1]["role"] == message["role"]:
            sent[-1]["content"] += content  # The service wants roles to alternate; a summary stands before a prompt.
        else:
            sent.append({"role": message["role"], "content": content})
    if sent and sent[-1]["role"] == "assistant" and (text := sent[-1]["content"][-1].get("text")):
        sent[-1]["content"][-1] = {"text": text.rstrip()}  # Claude refuses to go on after white space.
    if config.get("guardrail_latest_message") and config.get("guardrail_id"):
        _guard_latest(sent)
    return sent


def _content(message: Message, family: Family, *, with_status: bool) -> list[dict[str, Any]]:
    sent: list[dict[str, Any]] = []
    answer = message["role"] == "assistant"
    for block in message["content"]:
        made = _block(block, family, with_status=with_status)
        if "text" in made and not made["text"].strip():
            if answer and sent and (before := _with_space(sent[-1], made["text"])) is not None:
                sent[-1] = before  # Blank text may stand between two texts with sources.
            continue
        sent.append(made)
    return sent or [{"text": BLANK_TEXT}]


def _with_space(block: Mapping[str, Any], space: str) -> dict[str, Any] | None:
    """The text with white space behind it; None for a block that is no text."""
    if "text" in block:
        return {"text": block["text"] + space}
    if "citationsContent" not in block:
        return None
    cited = block["citationsContent"]
    return {"citationsContent": {**cited, "content": [*cited["content"], {"text": space}]}}


def _block(block: Mapping[str, Any], family: Family, *, with_status: bool) -> dict[str, Any]:
    if "text" in block:
        return {"text": block["text"]}
    if "toolUse" in block:
        use = block["toolUse"]
        return {"toolUse": {"toolUseId": use["toolUseId"], "name": use["name"], "input": input_of(use)}}
    if "toolResult" in block:
        result = block["toolResult"]
        sent = {"toolUseId": result["toolUseId"], "content": [_part(each) for each in result["content"]]}
        return {"toolResult": sent | ({"status": result["status"]} if with_status and "status" in result else {})}
    if "reasoningContent" in block:
        return {"reasoningContent": _reasoning(block["reasoningContent"])}
    if "citationsContent" in block:
        return _cited(block["citationsContent"], family)
    if "providerContent" in block:
        return dict(block["providerContent"]["content"])
    return _medium(block)


def _part(part: Mapping[str, Any]) -> dict[str, Any]:
    return dict(part["providerContent"]["content"]) if "providerContent" in part else _medium(part)


def _reasoning(reasoning: Mapping[str, Any]) -> dict[str, Any]:
    if "reasoningText" not in reasoning:
        return {"redactedContent": reasoning["redactedContent"]}
    spoken = reasoning["reasoningText"]
    signature = {"signature": spoken["signature"]} if spoken.get("signature") else {}
    return {"reasoningText": {"text": spoken.get("text", ""), **signature}}


def _cited(cited: Mapping[str, Any], family: Family) -> dict[str, Any]:
    """A text with the sources that the model itself has named; other ones are refused, so the text goes alone."""
    citations = [sent for each in cited.get("citations", ()) for sent in _citation(each, family)]
    if not citations:
        return {"text": text_in({"citationsContent": cited}) or ""}
    content = [{"text": part["text"]} for part in cited.get("content", ()) if part.get("text")]
    return {"citationsContent": {"content": content, "citations": citations}}


def _citation(citation: Mapping[str, Any], family: Family) -> Iterator[dict[str, Any]]:
    location: Mapping[str, Any] = citation.get("location") or {}
    if "encryptedIndex" not in citation and len(location) == 1 and not family.citations.isdisjoint(location):
        known = ("title", "source", "sourceContent", "location")
        yield {name: citation[name] for name in known if citation.get(name) is not None}


def _medium(block: Mapping[str, Any]) -> dict[str, Any]:
    """A block whose medium, if it is one, is where the service looks for it. Errors: `Invalid` for other places."""
    kind = block_kind(block)
    if kind not in _MEDIA:
        return dict(block)
    body: Mapping[str, Any] = block[kind]
    if body.get("format") == "jpg":
        body = {**body, "format": "jpeg"}
    location = body.get("source", {}).get("location")
    if location is None:
        return {**block, kind: body}
    if location.get("type") != "s3" or "uri" not in location:
        raise cannot_take(kind, "Bedrock", "its location is none in S3", location)
    source = {key: location[key] for key in ("uri", "bucketOwner") if key in location}
    return {kind: {**body, "source": {"s3Location": source}}}


def _guard_latest(sent: list[dict[str, Any]]) -> None:
    """Mark the text of the latest user message for the guardrail."""
    for message in reversed(sent):
        if message["role"] == "user" and any("text" in block for block in message["content"]):
            message["content"] = [
                {"guardContent": {"text": {"text": block["text"]}}} if "text" in block else block
                for block in message["content"]
            ]
            return


def _tools(call: ModelCall) -> list[dict[str, Any]]:
    strict = bool(call.config.get("strict_tools"))
    tools: list[dict[str, Any]] = [_tool(spec, strict=strict) for spec in call.tool_specs]
    return tools or ([_PLACEHOLDER_TOOL] if mentions_tools(_own_parts(call.messages)) else [])


def _own_parts(messages: Sequence[Message]) -> Iterator[Mapping[str, Any]]:
    """The messages with the parts that the service has made itself, in its form."""
    for message in messages:
        yield {
            "content": [
                each["providerContent"]["content"] if "providerContent" in each else each for each in message["content"]
            ]
        }


def _tool(spec: Mapping[str, Any], *, strict: bool) -> dict[str, Any]:
    if "cachePoint" in spec:
        return dict(spec)
    described = {"name": spec["name"], "description": spec["description"] or spec["name"]}
    if strict:
        schema = {"json": _closed(spec["inputSchema"]["json"])}
        return {"toolSpec": {**described, "inputSchema": schema, "strict": True}}
    return {"toolSpec": {**described, "inputSchema": spec["inputSchema"]}}


def _closed(schema: Any) -> Any:
    """The schema, whose objects have no fields but their properties unless it says so."""
    if isinstance(schema, list):
        return [_closed(part) for part in cast("list[Any]", schema)]
    if not isinstance(schema, dict):
        return schema
    closed = {name: _closed(part) for name, part in cast("dict[str, Any]", schema).items()}
    return {"additionalProperties": False, **closed} if closed.get("type") == "object" else closed


def _guardrail(config: Mapping[str, Any]) -> dict[str, Any]:
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
