"""Answers of Converse and ConverseStream as events of ours, which are nearly the same.

Two things differ. A tool that the service has run itself, its result, and blocks of kinds that only the service reads
are stored as they came, and are never run as the caller's. And reasoning says whose it is.

Source: Amazon Bedrock API reference, `ConverseStream` (`ToolUseBlockStart.type`, `ToolResultBlockStart`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, cast

from repertory.backends.models.answer_reader import block_delta, block_start
from repertory.backends.models.bedrock_families import PROVIDER
from repertory.backends.models.held_back import HeldBack
from repertory.core.answer import is_mapping, message_events
from repertory.errors import ModelFailed

if TYPE_CHECKING:
    from repertory.core.converse import MetadataEvent, StreamEvent
    from repertory.core.messages import ContentBlock

_SERVER_TOOL = "server_tool_use"
_UNKNOWN = "SDK_UNKNOWN_MEMBER"
"""Stands in the place of a block whose kind the installed botocore does not know."""
_OURS = frozenset(("text", "citationsContent"))


class ConverseReader:
    """Reads the events of one stream."""

    __slots__ = ("_held", "_parts", "_provider", "_thinking")

    def __init__(self, reasoning_provider: str = PROVIDER) -> None:
        """`reasoning_provider`: whose the model's reasoning is."""
        self._provider = reasoning_provider
        self._held = HeldBack()
        self._parts: dict[object, _Part] = {}
        self._thinking: set[object] = set()

    def feed(self, event: StreamEvent) -> Iterable[StreamEvent]:
        """Our events for one of the service's."""
        for name in ("contentBlockDelta", "contentBlockStart", "contentBlockStop"):
            body = cast("Mapping[str, Any]", event).get(name)
            if is_mapping(body):
                index = body.get("contentBlockIndex")
                match name:
                    case "contentBlockDelta":
                        return self._delta(event, index, body.get("delta"))
                    case "contentBlockStart":
                        return self._start(event, index, body.get("start"))
                    case _:
                        return self._stop(event, index)
        return (event,)

    def _start(self, event: StreamEvent, index: object, start: object) -> Iterable[StreamEvent]:
        if not is_mapping(start):
            return (event,)
        match start:
            case {"toolUse": use} if is_mapping(use) and use.get("type") == _SERVER_TOOL:
                self._parts[index] = _Part("toolUse", use, self._held)
            case {"toolResult": result} if is_mapping(result):
                self._parts[index] = _Part("toolResult", result, self._held)
            case _:
                return (event,)
        return (block_start(cast("int", index), {"providerContent": {"provider": PROVIDER}}),)

    def _delta(self, event: StreamEvent, index: object, delta: object) -> Iterable[StreamEvent]:
        part = self._parts.get(index)
        if part is not None and is_mapping(delta):
            part.add(delta)
            return ()
        if not is_mapping(delta):
            return (event,)
        if "reasoningContent" in delta and index not in self._thinking:
            self._thinking.add(index)
            return (block_start(cast("int", index), {"reasoningContent": {"provider": self._provider}}), event)
        if "image" in delta and not _has_bytes(delta["image"]):
            return ()
        return (event,)

    def _stop(self, event: StreamEvent, index: object) -> Iterable[StreamEvent]:
        part = self._parts.pop(index, None)
        if part is None:
            return (event,)
        content = part.content()
        if content is None:
            return (event,)
        return (block_delta(cast("int", index), {"providerContent": {"content": content}}), event)


class _Part:
    """A use of the service's own tool, or its result, while its pieces arrive."""

    __slots__ = ("_fields", "_held", "_input", "_kind", "_results")

    def __init__(self, kind: str, fields: Mapping[str, object], held: HeldBack) -> None:
        held.add(fields)
        self._held = held
        self._kind = kind
        self._fields = dict(fields)
        self._input: list[str] = []
        self._results: list[dict[str, object] | list[str]] = []
        """The parts of a result; a text as its pieces."""

    def add(self, delta: Mapping[str, object]) -> None:
        use, results = delta.get("toolUse"), delta.get("toolResult")
        if is_mapping(use) and isinstance(piece := use.get("input"), str):
            self._held.add_text(piece)
            self._input.append(piece)
        for each in cast("list[object]", results if isinstance(results, list) else ()):
            if not is_mapping(each):
                continue
            text, last = each.get("text"), self._results[-1] if self._results else None
            if not isinstance(text, str):
                self._held.add(each)
                self._results.append(dict(each))
                continue
            self._held.add_text(text)
            if isinstance(last, list):
                last.append(text)
            else:
                self._results.append([text])

    def content(self) -> dict[str, object] | None:
        """The whole block; None if its input was cut off."""
        if self._kind == "toolResult":
            content = [{"text": "".join(each)} if isinstance(each, list) else each for each in self._results]
            return {"toolResult": {**self._fields, "content": content}}
        try:
            value = json.loads("".join(self._input).strip() or "{}")
        except (ValueError, RecursionError):
            return None
        return {"toolUse": {**self._fields, "input": value}}


def events_of_whole(response: Mapping[str, Any], reasoning_provider: str = PROVIDER) -> Iterator[StreamEvent]:
    """The answer of Converse as the events that ConverseStream would have sent. Errors: `ModelFailed` for none."""
    message = response.get("output", {}).get("message")
    stop_reason = response.get("stopReason")
    if not message or not isinstance(stop_reason, str):
        raise ModelFailed("the model answered without a message", response=sorted(response))
    blocks = [made for block in message.get("content", ()) for made in _blocks(block, reasoning_provider)]
    yield from message_events(blocks, stop_reason=stop_reason)
    metadata = {key: response[key] for key in ("usage", "metrics", "trace") if key in response}
    yield {"metadata": cast("MetadataEvent", metadata)}


def _blocks(block: Mapping[str, Any], reasoning_provider: str) -> Iterator[ContentBlock]:
    match block:
        case {"toolUse": use} if use.get("type") != _SERVER_TOOL:
            yield cast("ContentBlock", {"toolUse": {key: use[key] for key in use if key != "type"}})
        case {"reasoningContent": reasoning} if _UNKNOWN not in reasoning:
            yield {"reasoningContent": {**reasoning, "provider": reasoning_provider}}
        case {"image": image} if _has_bytes(image):
            yield cast("ContentBlock", block)
        case _ if _UNKNOWN in block or "reasoningContent" in block:
            return
        case _ if _OURS.isdisjoint(block):
            yield {"providerContent": {"provider": PROVIDER, "content": block}}
        case _:
            yield cast("ContentBlock", block)


def _has_bytes(image: object) -> bool:
    source = image.get("source") if is_mapping(image) else None
    return is_mapping(source) and isinstance(source.get("bytes"), bytes)
