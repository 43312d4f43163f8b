"""One answer of the Messages API as events of ours.

A whole answer is read as the stream that would have brought it. Kinds of blocks that we do not know (tools that the
service runs itself) are passed over.

Source: the Messages API, streaming and stop reasons.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, cast

from repertory.core.stream_event import count, filled, is_mapping, malformed, mapping
from repertory.errors import ModelStreamBroken

if TYPE_CHECKING:
    from collections.abc import Sequence

    from repertory.backends.ports import StreamEvent

STOP_REASONS = {"refusal": "content_filtered"}
"""Stop reasons that Converse spells otherwise; the rest are the same, or passed on."""
_COUNTS = {
    "input_tokens": "inputTokens",
    "output_tokens": "outputTokens",
    "cache_read_input_tokens": "cacheReadInputTokens",
    "cache_creation_input_tokens": "cacheWriteInputTokens",
}
_LOCATIONS = {
    "char_location": ("documentChar", "start_char_index", "end_char_index"),
    "page_location": ("documentPage", "start_page_number", "end_page_number"),
    "content_block_location": ("documentChunk", "start_block_index", "end_block_index"),
}


class MessagesReader:
    """Reads one answer. Errors: `ModelFailed` for nonsense, `ModelStreamBroken` when the end never came."""

    __slots__ = ("_ended", "_inputs", "_open", "_stop_reason", "_usage")

    def __init__(self) -> None:
        self._ended = False
        self._stop_reason: str | None = None
        self._open: set[int] = set()
        self._inputs: dict[int, object] = {}
        """Inputs of tool uses that came with their beginning. The service streams them; imitations may not."""
        self._usage: dict[str, int] = {}

    def feed(self, event: Mapping[str, object]) -> Iterator[StreamEvent]:
        """The events that the next event of the service amounts to."""
        match event.get("type"):
            case "message_start":
                self._count(mapping(event.get("message"), "message_start", "message").get("usage"))
                yield {"messageStart": {"role": "assistant"}}
            case "content_block_start":
                yield from self._block_start(event)
            case "content_block_delta":
                yield from self._block_delta(event)
            case "content_block_stop":
                yield from self._block_stop(_index(event))
            case "message_delta":
                self._count(event.get("usage"))
                reason = mapping(event.get("delta"), "message_delta", "delta").get("stop_reason")
                self._stop_reason = (
                    self._stop_reason if reason is None else filled(reason, "message_delta", "stop_reason")
                )
            case "message_stop":
                self._ended = True
            case _:
                pass

    def whole(self, answer: Mapping[str, object]) -> Iterator[StreamEvent]:
        """The events of a message that came at once."""
        content = answer.get("content")
        if not isinstance(content, list):
            malformed("message", "a list under 'content'", answer)
        yield from self.feed({"type": "message_start", "message": answer})
        for index, block in enumerate(cast("Sequence[object]", content)):
            yield from self.feed({"type": "content_block_start", "index": index, "content_block": block})
            yield from self.feed({"type": "content_block_stop", "index": index})
        yield from self.feed({"type": "message_delta", "delta": answer, "usage": answer.get("usage")})
        yield from self.feed({"type": "message_stop"})

    def finish(self) -> Iterator[StreamEvent]:
        """The stop reason and the usage. Cached tokens are counted apart from `inputTokens`, and in the total."""
        if not self._ended:
            raise ModelStreamBroken("Anthropic ended the stream in the middle of an answer")
        reason = filled(self._stop_reason, "message_delta", "stop_reason")
        yield {"messageStop": {"stopReason": STOP_REASONS.get(reason, reason)}}
        if self._usage:
            yield {"metadata": {"usage": {**self._usage, "totalTokens": sum(self._usage.values())}}}

    def _block_start(self, event: Mapping[str, object]) -> Iterator[StreamEvent]:
        index, name = _index(event), "content_block_start"
        block = mapping(event.get("content_block"), name, "content_block")
        match block.get("type"):
            case "tool_use":
                use = {
                    "toolUseId": filled(block.get("id"), name, "id"),
                    "name": filled(block.get("name"), name, "name"),
                }
                self._inputs[index] = block.get("input")
                yield self._started(index, {"toolUse": use})
            case "text" | "thinking":
                yield self._started(index, {})
                yield from _spoken(index, block)
            case "redacted_thinking":
                yield self._started(index, {})
                data = filled(block.get("data"), name, "data")
                yield _delta(index, {"reasoningContent": {"redactedContent": data.encode()}})
            case _:
                pass

    def _started(self, index: int, start: Mapping[str, object]) -> StreamEvent:
        self._open.add(index)
        return {"contentBlockStart": {"contentBlockIndex": index, "start": start}}

    def _block_delta(self, event: Mapping[str, object]) -> Iterator[StreamEvent]:
        index, name = _index(event), "content_block_delta"
        if index not in self._open:
            return
        delta = mapping(event.get("delta"), name, "delta")
        match delta.get("type"):
            case "input_json_delta":
                piece = delta.get("partial_json")
                if piece:
                    self._inputs.pop(index, None)
                yield _delta(index, {"toolUse": {"input": piece or ""}})
            case "citations_delta":
                yield _delta(index, {"citation": _citation(mapping(delta.get("citation"), name, "citation"))})
            case "text_delta" | "thinking_delta" | "signature_delta":
                yield from _spoken(index, delta)
            case _:
                pass

    def _block_stop(self, index: int) -> Iterator[StreamEvent]:
        if index not in self._open:
            return
        self._open.discard(index)
        if whole_input := self._inputs.pop(index, None):
            yield _delta(index, {"toolUse": {"input": json.dumps(whole_input)}})
        yield {"contentBlockStop": {"contentBlockIndex": index}}

    def _count(self, usage: object) -> None:
        """Take counts over; later ones replace earlier ones, since the service counts up."""
        if is_mapping(usage):
            for key, name in _COUNTS.items():
                if usage.get(key) is not None:
                    self._usage[name] = count(usage[key], "usage", key)


def _index(event: Mapping[str, object]) -> int:
    return count(event.get("index"), str(event.get("type")), "index")


def _spoken(index: int, piece: Mapping[str, object]) -> Iterator[StreamEvent]:
    """What a block or a delta says in text, thinking, signature and citations."""
    if piece.get("text"):
        yield _delta(index, {"text": piece["text"]})
    if piece.get("thinking"):
        yield _delta(index, {"reasoningContent": {"text": piece["thinking"]}})
    if piece.get("signature"):
        yield _delta(index, {"reasoningContent": {"signature": piece["signature"]}})
    for citation in cast("Sequence[object]", piece.get("citations") or ()):
        yield _delta(index, {"citation": _citation(mapping(citation, "content_block_start", "citations"))})


def _delta(index: int, delta: Mapping[str, object]) -> StreamEvent:
    return {"contentBlockDelta": {"contentBlockIndex": index, "delta": delta}}


def _citation(citation: Mapping[str, object]) -> dict[str, object]:
    cited: dict[str, object] = {"sourceContent": [{"text": citation.get("cited_text") or ""}]}
    if title := citation.get("document_title") or citation.get("title"):
        cited["title"] = title
    kind = citation.get("type")
    if isinstance(kind, str) and kind in _LOCATIONS:
        name, start, end = _LOCATIONS[kind]
        cited["location"] = {
            name: {
                "documentIndex": citation.get("document_index"),
                "start": citation.get(start),
                "end": citation.get(end),
            }
        }
    return cited
