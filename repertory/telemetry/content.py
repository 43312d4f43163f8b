"""The content of messages, tools and errors that spans may show: none, unless the program turns capture on.

With capture on, a value passes the user's scrubber and is written as the JSON of OpenTelemetry's conventions: messages
are roles with parts, a tool use is a part `tool_call`, its result a part `tool_call_response`.
Source: https://opentelemetry.io/docs/specs/semconv/gen-ai/gen-ai-spans/, and the JSON schemas beside that page.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar, cast

from msgspec import Struct

from repertory.core.messages import Message, Prompt, SystemPrompt, ToolResult, ToolSpec
from repertory.logs import without_texts

CAPTURE_VARIABLE = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
"""The conventions' environment variable. `true`, `span_only` and `span_and_event` show content on spans."""
_ON = frozenset(("true", "1", "span_only", "span_and_event"))

Scrub: TypeAlias = "Callable[[Any], Any]"
"""A user's function: it gets what would be shown, as JSON values or text, and returns what may be; None for nothing."""

_log = logging.getLogger("repertory.telemetry")
T = TypeVar("T")


class CapturePolicy(Struct, frozen=True, kw_only=True):
    """The policy of content on spans: none without `capture`, else each value as `scrub` returns it."""

    capture: bool = False
    scrub: Scrub | None = None

    def shown(self, make: Callable[[], object]) -> str | None:
        """The JSON of what `make` gives; a text stays as it is. None if nothing is shown: also when the scrubber fails.

        Raises nothing.
        """
        if not self.capture:
            return None
        return safely(lambda: self._scrubbed(make()), None, "content is left out of a span", traced=False)

    def _scrubbed(self, value: object) -> str | None:
        if self.scrub is not None:
            value = self.scrub(value)
        if value is None or isinstance(value, str):
            return value
        return json.dumps(value, ensure_ascii=False, default=_described)


def safely(work: Callable[[], T], instead: T, said: str = "a span is lost", *, traced: bool = True) -> T:
    """The result of `work`; `instead` if it fails. The failure is logged, without a traceback unless `traced`: texts of
    errors may hold what was to be scrubbed.
    """
    with _Guard(said, traced=traced):
        return work()
    return instead


class _Guard:
    """A block that lets no error out: exporters, span processors and scrubbers may be anybody's code."""

    def __init__(self, said: str, *, traced: bool) -> None:
        self._log_text = said
        self._traced = traced

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> bool:
        if not isinstance(error, Exception):
            return False
        trace = without_texts(error) if self._traced else None
        _log.error("%s cause=%s", self._log_text, type(error).__name__, exc_info=trace)
        return True


def captures(environment: Mapping[str, str] = os.environ) -> bool:
    """True if the conventions' variable turns capture on."""
    return environment.get(CAPTURE_VARIABLE, "").strip().lower() in _ON


def messages_json(messages: Sequence[Message]) -> list[dict[str, object]]:
    """`gen_ai.input.messages`."""
    return [_message(message) for message in messages]


def output_json(message: Message, finish_reason: str) -> list[dict[str, object]]:
    """`gen_ai.output.messages`."""
    return [{**_message(message), "finish_reason": _FINISHES.get(finish_reason, finish_reason)}]


def prompt_json(prompt: Prompt) -> list[dict[str, object]]:
    """`gen_ai.input.messages` of a call."""
    if prompt is None:
        return []
    if isinstance(prompt, str):
        return [{"role": "user", "parts": [{"type": "text", "content": prompt}]}]
    many = cast("Sequence[Any]", prompt)
    if any("role" in each for each in many):
        return messages_json(cast("Sequence[Message]", many))
    return [{"role": "user", "parts": [_part(block) for block in many]}]


def instructions_json(prompt: SystemPrompt) -> list[dict[str, object]] | None:
    """`gen_ai.system_instructions`."""
    if not prompt:
        return None
    if isinstance(prompt, str):
        return [{"type": "text", "content": prompt}]
    return [_part(cast("Mapping[str, Any]", block)) for block in prompt if "cachePoint" not in block]


def tools_json(specs: Sequence[ToolSpec]) -> list[dict[str, object]]:
    """`gen_ai.tool.definitions`."""
    return [
        {
            "type": "function",
            "name": spec["name"],
            "description": spec["description"],
            "parameters": spec["inputSchema"].get("json", {}),
        }
        for spec in specs
    ]


def result_json(result: ToolResult) -> list[object]:
    """`gen_ai.tool.call.result`: the blocks of a tool result, as they are; bytes by their size."""
    return [cast("object", block) for block in result["content"]]


_FINISHES = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "tool_use": "tool_call",
    "max_tokens": "length",
    "content_filtered": "content_filter",
    "guardrail_intervened": "content_filter",
}
"""Converse's stop reasons in the conventions' words, which messages have. The spans' own attribute has the model's."""
_MEDIA = {"image": "image", "video": "video", "audio": "audio"}


def _message(message: Message) -> dict[str, object]:
    parts = [_part(cast("Mapping[str, Any]", block)) for block in message["content"]]
    role = "tool" if parts and all(part["type"] == "tool_call_response" for part in parts) else message["role"]
    return {"role": role, "parts": parts}


def _part(block: Mapping[str, Any]) -> dict[str, object]:
    match block:
        case {"text": text}:
            return {"type": "text", "content": text}
        case {"toolUse": use}:
            return {"type": "tool_call", "id": use["toolUseId"], "name": use["name"], "arguments": use["input"]}
        case {"toolResult": result}:
            return {"type": "tool_call_response", "id": result["toolUseId"], "response": result_json(result)}
        case {"reasoningContent": {"reasoningText": {"text": text}}}:
            return {"type": "reasoning", "content": text}
        case _:
            kind = next(iter(block), "unknown")
            held = block.get(kind)
            if kind in _MEDIA and isinstance(held, Mapping):
                form = cast("Mapping[str, object]", held).get("format", "*")
                return {"type": "blob", "modality": _MEDIA[kind], "mime_type": f"{_MEDIA[kind]}/{form}"}
            return {"type": kind, "content": held}


def _described(value: object) -> object:
    """The stand-in for a value that JSON cannot hold: bytes by size, others by type, since texts may say anything."""
    if isinstance(value, bytes | bytearray):
        return {"size_bytes": len(value)}
    return f"<{type(value).__name__}>"
