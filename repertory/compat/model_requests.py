"""The SDK's builders of requests, which programs call, or override for a service that wants another form."""

from __future__ import annotations

import dataclasses
import json
import logging
import mimetypes
import warnings
from collections.abc import Iterator, Mapping, Sequence
from secrets import token_hex
from typing import Any, cast

from msgspec import structs

from repertory.backends.models.caching import CacheConfig
from repertory.backends.models.ollama import OllamaModel, chat_request
from repertory.backends.models.openai import OpenAIModel
from repertory.backends.models.provider import ModelCall, model_call
from repertory.core.converse import StreamEvent
from repertory.core.json_bytes import to_base64
from repertory.core.messages import Message, ToolSpec
from repertory.errors import Invalid

_log = logging.getLogger("repertory.models")
_IMAGE_FOLLOWS = "Tool successfully returned an image. The image is being provided in the following user message."
_Part = dict[str, Any]


def _sendable(content: Sequence[Mapping[str, Any]], service: str) -> Iterator[Mapping[str, Any]]:
    """The blocks without those whose data lies elsewhere, which are logged."""
    for block in content:
        held = [cast("_Part", each) for each in block.values() if isinstance(each, dict)]
        if any("location" in (each.get("source") or ()) for each in held):
            _log.warning("Location sources are not supported by %s | skipping content block", service)
        else:
            yield block


def _data_url(medium: Mapping[str, Any]) -> tuple[str, str]:
    kind = mimetypes.types_map.get(f".{medium['format']}", "application/octet-stream")
    return kind, f"data:{kind};base64,{to_base64(medium['source']['bytes'])}"


def _unsupported(block: Mapping[str, Any]) -> TypeError:
    return TypeError(f"content_type=<{next(iter(block))}> | unsupported type")


class SdkOpenAIModel(OpenAIModel):
    """`OpenAIModel` for programs of the SDK. If a subclass overrides one of these builders, its requests are sent."""

    @classmethod
    def format_request_message_content(cls, content: Mapping[str, Any], **kwargs: Any) -> _Part:
        """A text, an image or a document as a part of a message. Errors: `TypeError` for other blocks."""
        if "document" in content:
            url = _data_url(content["document"])[1]
            return {"file": {"file_data": url, "filename": content["document"]["name"]}, "type": "file"}
        if "image" in content:
            kind, url = _data_url(content["image"])
            return {"image_url": {"detail": "auto", "format": kind, "url": url}, "type": "image_url"}
        if "text" in content:
            return {"text": content["text"], "type": "text"}
        raise _unsupported(content)

    @classmethod
    def format_request_message_tool_call(cls, tool_use: Mapping[str, Any], **kwargs: Any) -> _Part:
        """A tool use as the service has it."""
        function = {"arguments": json.dumps(tool_use["input"], ensure_ascii=False), "name": tool_use["name"]}
        return {"function": function, "id": tool_use["toolUseId"], "type": "function"}

    @classmethod
    def format_request_tool_message(cls, tool_result: Mapping[str, Any], **kwargs: Any) -> _Part:
        """A tool's result as a message: one text, or a list of parts if some are images or documents."""
        parts: list[_Part] = []
        for block in tool_result["content"]:
            text = json.dumps(block["json"], ensure_ascii=False) if "json" in block else block.get("text")
            if text is None:
                parts.append(cls.format_request_message_content(block))
            elif parts and parts[-1]["type"] == "text":
                parts[-1]["text"] += f"\n{text}"
            else:
                parts.append({"type": "text", "text": text})
        only_text = all(part["type"] == "text" for part in parts)
        content = (parts[0]["text"] if parts else "") if only_text else parts
        return {"role": "tool", "tool_call_id": tool_result["toolUseId"], "content": content}

    @classmethod
    def format_request_messages(
        cls,
        messages: Sequence[Message],
        system_prompt: str | None = None,
        *,
        system_prompt_content: Sequence[Mapping[str, Any]] | None = None,
        **kwargs: Any,
    ) -> list[_Part]:
        """A conversation as messages of the service."""
        if system_prompt and system_prompt_content is None:
            system_prompt_content = [{"text": system_prompt}]
        sent: list[_Part] = [
            {"role": "system", "content": each["text"]} for each in system_prompt_content or () if "text" in each
        ]
        for message in messages:
            results, images, calls, parts = list[_Part](), list[_Part](), list[_Part](), list[_Part]()
            for block in _sendable(cast("Sequence[Mapping[str, Any]]", message["content"]), "OpenAI"):
                if "toolResult" in block:
                    result, pictures = _without_images(cls.format_request_tool_message(block["toolResult"]))
                    results.append(result)
                    images += [{"role": "user", "content": pictures}] if pictures else []
                elif "toolUse" in block:
                    calls.append(cls.format_request_message_tool_call(block["toolUse"]))
                elif "reasoningContent" in block or "cachePoint" in block:
                    _log.warning("%s is not supported by OpenAI | skipping", next(iter(block)))
                else:
                    parts.append(cls.format_request_message_content(block))
            sent += [*results, *images]
            if parts or calls:
                fields = {"content": parts, "tool_calls": calls}
                sent.append({"role": message["role"], **{name: each for name, each in fields.items() if each}})
        return sent

    def format_request(
        self,
        messages: Sequence[Message],
        tool_specs: Sequence[ToolSpec] | None = None,
        system_prompt: str | None = None,
        tool_choice: Mapping[str, Any] | None = None,
        *,
        system_prompt_content: Sequence[Mapping[str, Any]] | None = None,
        **kwargs: Any,
    ) -> _Part:
        """The arguments of one call."""
        call = model_call(self._config, [], tool_specs, system_prompt, {"tool_choice": tool_choice})
        sent = self.format_request_messages(messages, system_prompt, system_prompt_content=system_prompt_content)
        request: _Part = {"tools": [], **super()._request(call), "messages": sent}
        return request | cast("_Part", request.pop("extra_body", {}))

    def _request(self, call: ModelCall) -> dict[str, Any]:
        ours = super()._request(call)
        if not any(_is_overridden(type(self), name) for name in vars(SdkOpenAIModel) if name.startswith("format_")):
            return ours
        prompt = {"system_prompt_content": call.system_prompt_content}
        built = self.format_request(call.messages, call.tool_specs, call.system_prompt, call.tool_choice, **prompt)
        extra = {name: built.pop(name) for name in ours.get("extra_body", ()) if name in built}
        return {**built, "extra_body": extra} if extra else built


def _is_overridden(kind: type, name: str) -> bool:
    return not getattr(kind, name).__qualname__.startswith("Sdk")


def _without_images(message: _Part) -> tuple[_Part, list[_Part]]:
    """A tool's message and its images, which only a user's message may hold."""
    parts: str | list[_Part] = message["content"]
    if isinstance(parts, str) or not (images := [part for part in parts if part["type"] == "image_url"]):
        return message, []
    texts = [part for part in parts if part["type"] != "image_url"]
    return {**message, "content": [*texts, {"type": "text", "text": _IMAGE_FOLLOWS}]}, images


class SdkOllamaModel(OllamaModel):
    """`OllamaModel` for programs of the SDK. If a subclass overrides `format_request`, its requests are sent."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if _is_overridden(cls, "format_chunk"):
            warnings.warn(f"{cls.__name__}.format_chunk is not called: answers are read here", stacklevel=2)

    def format_request(
        self,
        messages: Sequence[Message],
        tool_specs: Sequence[ToolSpec] | None = None,
        system_prompt: str | None = None,
    ) -> _Part:
        """The arguments of one call, with a message for each block.

        Errors: `TypeError` for a block that is not text, image, tool use or tool result.
        """
        call = model_call(self._config, [], tool_specs, system_prompt, {})
        cache: CacheConfig = self._config.get("cache_config") or CacheConfig()
        given = [each.name for each in dataclasses.fields(cache) if getattr(cache, each.name) != each.default]
        if given:
            warnings.warn(f"CacheConfig fields {given} have no effect on Ollama", UserWarning, stacklevel=2)
        request = chat_request(structs.replace(call, fitted=True))
        sent = [
            each
            for message in messages
            for block in _sendable(cast("Sequence[Mapping[str, Any]]", message["content"]), "Ollama")
            for each in _ollama_messages(message["role"], block)
        ]
        return {"tools": [], **request, "messages": [*request["messages"], *sent]}

    def _request(self, call: ModelCall) -> dict[str, Any]:
        if not _is_overridden(type(self), "format_request"):
            return super()._request(call)
        return self.format_request(call.messages, call.tool_specs, call.system_text)

    def format_chunk(self, event: Mapping[str, Any]) -> StreamEvent:
        """A piece of an answer as a stream event, for programs that read answers themselves.

        Errors: `Invalid` for an unknown `chunk_type`.
        """
        data: Any = event.get("data")
        made: dict[str, Any]
        match event["chunk_type"], event.get("data_type"):
            case "message_start", _:
                made = {"messageStart": {"role": "assistant"}}
            case "content_start", "tool":
                use = {"name": data.function.name, "toolUseId": f"tooluse_{token_hex(12)}"}
                made = {"contentBlockStart": {"start": {"toolUse": use}}}
            case "content_start", _:
                made = {"contentBlockStart": {"start": {}}}
            case "content_delta", "tool":
                made = {"contentBlockDelta": {"delta": {"toolUse": {"input": json.dumps(data.function.arguments)}}}}
            case "content_delta", _:
                made = {"contentBlockDelta": {"delta": {"text": data}}}
            case "content_stop", _:
                made = {"contentBlockStop": {}}
            case "message_stop", _:
                reasons = {"tool_use": "tool_use", "length": "max_tokens"}
                made = {"messageStop": {"stopReason": reasons.get(data, "end_turn")}}
            case "metadata", _:
                counts = {"inputTokens": data.prompt_eval_count, "outputTokens": data.eval_count}
                usage = {**counts, "totalTokens": sum(counts.values())}
                made = {"metadata": {"usage": usage, "metrics": {"latencyMs": int(data.total_duration / 1e6)}}}
            case kind, _:
                raise Invalid(f"chunk_type=<{kind}> | unknown type")
        return cast("StreamEvent", made)


def _ollama_messages(role: str, block: Mapping[str, Any]) -> Iterator[_Part]:
    if "text" in block:
        yield {"role": role, "content": block["text"]}
    elif "image" in block:
        yield {"role": role, "images": [block["image"]["source"]["bytes"]]}
    elif "toolUse" in block:
        function = {"name": block["toolUse"]["name"], "arguments": block["toolUse"]["input"]}
        yield {"role": role, "tool_calls": [{"function": function}]}
    elif "toolResult" in block:
        for part in block["toolResult"]["content"]:
            text = {"text": json.dumps(part["json"], ensure_ascii=False)} if "json" in part else part
            yield from _ollama_messages("tool", text)
    else:
        raise _unsupported(block)


SdkOpenAIModel.__name__ = OpenAIModel.__name__
SdkOllamaModel.__name__ = OllamaModel.__name__
