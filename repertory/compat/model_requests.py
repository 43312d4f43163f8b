"""The SDK's builder of requests to Ollama, which programs call, or override for a server that wants another form."""

from __future__ import annotations

import dataclasses
import json
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from secrets import token_hex
from typing import Any, cast

from msgspec import structs

from repertory.backends.models.caching import CacheConfig
from repertory.backends.models.ollama import OllamaModel, chat_request
from repertory.backends.models.provider import ModelCall, model_call
from repertory.core.converse import StreamEvent
from repertory.core.messages import Message, ToolSpec
from repertory.errors import Invalid

_log = logging.getLogger("repertory.models")
_Part = dict[str, Any]


def _sendable(content: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """The blocks without those whose data lies elsewhere, which are logged."""
    for block in content:
        held = [cast("_Part", each) for each in block.values() if isinstance(each, dict)]
        if any("location" in (each.get("source") or ()) for each in held):
            _log.warning("Location sources are not supported by Ollama | skipping content block")
        else:
            yield block


def _is_overridden(kind: type, name: str) -> bool:
    return not getattr(kind, name).__qualname__.startswith("Sdk")


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
            for block in _sendable(cast("Sequence[Mapping[str, Any]]", message["content"]))
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
        raise TypeError(f"content_type=<{next(iter(block))}> | unsupported type")


SdkOllamaModel.__name__ = OllamaModel.__name__
