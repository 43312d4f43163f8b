"""One answer of the Messages API as events of ours.

A whole answer is read like the stream that would have carried it. A block that is no text, no thinking and no use of
the caller's tools is stored as it came: it goes back to the service unchanged.

Source: the Messages API: streaming, stop reasons, server tools, compaction, and the container of code execution.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, cast

from repertory.backends.models.answer_reader import AnswerReader, block_delta, block_start, block_stop, metadata_event
from repertory.backends.models.anthropic_citations import stored_citation
from repertory.backends.models.held_back import HeldBack
from repertory.core.answer import count_field, is_mapping, malformed, mapping_field, required_text
from repertory.errors import ModelStreamBroken

if TYPE_CHECKING:
    from repertory.core.converse import MessageStopEvent, StreamEvent
    from repertory.core.messages import Json

PROVIDER = "anthropic"
"""Marks parts of answers and reasoning as this service's."""
STOP_REASONS = {"refusal": "content_filtered"}
"""Stop reasons that Converse spells differently; the rest are the same, or passed on."""
_COUNTS = {
    "input_tokens": "inputTokens",
    "output_tokens": "outputTokens",
    "cache_read_input_tokens": "cacheReadInputTokens",
    "cache_creation_input_tokens": "cacheWriteInputTokens",
}
_CONVERSATION = frozenset(("message", "fallback_message"))
"""The iterations that read the conversation as it is; compaction and advisors make another request of it."""


class MessagesReader(AnswerReader):
    """Reads one answer. Errors: `ModelFailed` for nonsense, `ModelStreamBroken` when the end never came."""

    __slots__ = (
        "_container",
        "_early",
        "_ended",
        "_held",
        "_inputs",
        "_iterations",
        "_more",
        "_names",
        "_next",
        "_open",
        "_parts",
        "_stop_reason",
        "_usage",
    )

    def __init__(self) -> None:
        super().__init__(PROVIDER)
        self._ended = False
        self._stop_reason: str | None = None
        self._open: set[int] = set()
        self._next = 0
        """The first index that no block has had."""
        self._held = HeldBack()
        self._parts: dict[int, _Part] = {}
        self._early: Sequence[object] = ()
        """Content that came with the start of the message; it counts if no blocks follow."""
        self._inputs: dict[int, object] = {}
        """Inputs of tool uses that came whole with the block's start. The service streams inputs; compatible servers
        may not.
        """
        self._usage: dict[str, int] = {}
        self._iterations: Sequence[Mapping[str, object]] = ()
        self._names: tuple[object, object] = (None, None)
        self._container: Mapping[str, object] | None = None
        self._more: dict[str, object] = {}

    def feed(self, event: Mapping[str, object]) -> Iterator[StreamEvent]:
        match event.get("type"):
            case "message_start":
                message = mapping_field(event.get("message"), "message_start", "message")
                if self._next:
                    raise ModelStreamBroken("Anthropic began its answer anew in the middle of it")
                yield from self._message_start(message)
                content = message.get("content")
                self._early = cast("Sequence[object]", content) if isinstance(content, list) else ()
            case "content_block_start":
                self._early = ()
                yield from self._block_start(event)
            case "content_block_delta":
                yield from self._block_delta(event)
            case "content_block_stop":
                yield from self._block_stop(_index(event))
            case "message_delta":
                self._count(event.get("usage"))
                delta = mapping_field(event.get("delta"), "message_delta", "delta")
                self._remark(delta)
                self._remark(event)
                if delta.get("stop_reason") is not None:
                    self._stop_reason = required_text(delta["stop_reason"], "message_delta", "stop_reason")
            case "message_stop":
                yield from self._read_blocks(self._early)
                self._early = ()
                self._ended = True
            case _:
                pass

    def whole(self, answer: Mapping[str, object]) -> Iterator[StreamEvent]:
        content = answer.get("content")
        if not isinstance(content, list):
            malformed("message", "a list under 'content'", answer)
        yield from self._message_start(answer)
        yield from self._read_blocks(cast("Sequence[object]", content))
        self._ended = True

    def finish(self) -> Iterator[StreamEvent]:
        """The stop reason and the usage. `inputTokens` excludes cached tokens; the total includes them."""
        if not self._ended:
            raise ModelStreamBroken("Anthropic ended the stream in the middle of an answer")
        reason = required_text(self._stop_reason, "message_delta", "stop_reason")
        if self._container is not None:
            index, content = self._next, {"type": "container", **self._container}
            yield self._begun(index, {"providerContent": {"provider": PROVIDER}})
            yield block_delta(index, {"providerContent": {"content": content}})
            yield block_stop(index)
        stop: MessageStopEvent = {"stopReason": STOP_REASONS.get(reason, reason)}
        if self._more:
            stop["additionalModelResponseFields"] = cast("Json", self._more)
        yield {"messageStop": stop}
        if self._usage:
            yield self._metadata()

    def _message_start(self, message: Mapping[str, object]) -> Iterator[StreamEvent]:
        self._names = message.get("id"), message.get("model")
        self._count(message.get("usage"))
        self._remark(message)
        reason = message.get("stop_reason")
        self._stop_reason = reason if isinstance(reason, str) and reason else None
        yield from self._begin_message()

    def _remark(self, fields: Mapping[str, object]) -> None:
        """Take over what the service says beside the content: the container, edits of the context, why it refused."""
        container = fields.get("container")
        if is_mapping(container) and isinstance(container.get("id"), str):
            self._container = container
        for name in ("context_management", "stop_details"):
            if is_mapping(found := fields.get(name)) and any(found.values()):
                self._more[name] = found

    def _read_blocks(self, content: Sequence[object]) -> Iterator[StreamEvent]:
        for index, block in enumerate(content):
            yield from self._block_start({"type": "content_block_start", "index": index, "content_block": block})
            yield from self._block_stop(index)

    def _block_start(self, event: Mapping[str, object]) -> Iterator[StreamEvent]:
        index, name = _index(event), "content_block_start"
        block = mapping_field(event.get("content_block"), name, "content_block")
        match block.get("type"):
            case "tool_use":
                use: dict[str, object] = {
                    "toolUseId": required_text(block.get("id"), name, "id"),
                    "name": required_text(block.get("name"), name, "name"),
                }
                caller = block.get("caller")
                if is_mapping(caller) and caller.get("type") != "direct":
                    use["caller"] = caller
                self._held.add(whole_input := block.get("input"))
                self._inputs[index] = whole_input
                yield self._begun(index, {"toolUse": use})
            case "text":
                yield self._begun(index, {})
                yield from _spoken(index, block)
            case "thinking":
                yield self._begun(index, {"reasoningContent": {"provider": PROVIDER}})
                yield from _spoken(index, block)
            case "redacted_thinking":
                yield self._begun(index, {"reasoningContent": {"provider": PROVIDER}})
                data = required_text(block.get("data"), name, "data")
                yield block_delta(index, {"reasoningContent": {"redactedContent": data.encode()}})
            case str(kind) if kind:
                self._parts[index] = _Part(block, self._held)
                yield self._begun(index, {"providerContent": {"provider": PROVIDER}})
            case _:
                pass

    def _begun(self, index: int, start: Mapping[str, object]) -> StreamEvent:
        self._open.add(index)
        self._next = max(self._next, index + 1)
        return block_start(index, start)

    def _block_delta(self, event: Mapping[str, object]) -> Iterator[StreamEvent]:
        index, name = _index(event), "content_block_delta"
        if index not in self._open:
            return
        delta = mapping_field(event.get("delta"), name, "delta")
        match delta.get("type"):
            case "text_delta" | "thinking_delta" | "signature_delta" if index not in self._parts:
                yield from _spoken(index, delta)
            case _ if index in self._parts:
                self._parts[index].add(delta)
            case "input_json_delta":
                piece = delta.get("partial_json")
                if piece:
                    self._inputs.pop(index, None)
                yield block_delta(index, {"toolUse": {"input": piece or ""}})
            case "citations_delta":
                citation = mapping_field(delta.get("citation"), name, "citation")
                yield block_delta(index, {"citation": stored_citation(citation)})
            case _:
                pass

    def _block_stop(self, index: int) -> Iterator[StreamEvent]:
        if index not in self._open:
            return
        self._open.discard(index)
        if whole_input := self._inputs.pop(index, None):
            yield block_delta(index, {"toolUse": {"input": json.dumps(whole_input)}})
        part = self._parts.pop(index, None)
        if part is not None and (content := part.content()) is not None:
            yield block_delta(index, {"providerContent": {"content": content}})
        yield block_stop(index)

    def _count(self, usage: object) -> None:
        """Take counts over; later ones replace earlier ones, since the service counts up."""
        if is_mapping(usage):
            self._usage |= _counts(usage)
            iterations = usage.get("iterations")
            if isinstance(iterations, list):
                self._iterations = [each for each in cast("list[object]", iterations) if is_mapping(each)]

    def _metadata(self) -> StreamEvent:
        """The billed tokens of all iterations: the totals lack compaction, advisors and models that gave up."""
        counted = dict(self._usage)
        each = [_counts(iteration) for iteration in self._iterations]
        for name in _COUNTS.values():
            billed = sum(counts.get(name, 0) for counts in each)
            if billed > counted.get(name, 0):
                counted[name] = billed
        total = sum(counted.values())
        metadata = metadata_event({**counted, "totalTokens": total}, *self._names)
        if each and (other := total - self._last_call()) > 0:
            metadata["otherCallsTokens"] = other
        return {"metadata": metadata}

    def _last_call(self) -> int:
        """The tokens of the last call that read the conversation: the next request begins with about as many."""
        last = self._iterations[-1]
        if last.get("type") == "compaction":
            return _counts(last).get("outputTokens", 0)
        for iteration in reversed(self._iterations):
            if iteration.get("type") in _CONVERSATION:
                return sum(_counts(iteration).values())
        return sum(self._usage.values())


class _Part:
    """A block that only the service can read, while its pieces arrive."""

    __slots__ = ("_block", "_citations", "_held", "_texts")

    def __init__(self, block: Mapping[str, object], held: HeldBack) -> None:
        held.add(block)
        self._held = held
        self._block = dict(block)
        self._texts: dict[str, list[str]] = {"partial_json": []}
        self._citations: list[object] = []

    def add(self, delta: Mapping[str, object]) -> None:
        for name, value in delta.items():
            if name == "type" or value is None:
                continue
            if isinstance(value, str):
                self._held.add_text(value)
            else:
                self._held.add(name, value)
            if name == "citation":
                self._citations.append(value)
            elif not isinstance(value, str):
                self._texts.pop(name, None)
                self._block[name] = value
            elif name in self._texts:
                self._texts[name].append(value)
            else:
                before = self._block.get(name)
                self._texts[name] = [before, value] if isinstance(before, str) else [value]

    def content(self) -> Mapping[str, object] | None:
        """The whole block; None if its input was cut off."""
        text = "".join(self._texts.pop("partial_json", ()))
        if text.strip():
            try:
                self._block["input"] = json.loads(text)
            except (ValueError, RecursionError):
                return None
        if self._citations:
            before = self._block.get("citations")
            self._block["citations"] = [
                *cast("list[object]", before if isinstance(before, list) else ()),
                *self._citations,
            ]
        return self._block | {name: "".join(pieces) for name, pieces in self._texts.items()}


def _counts(usage: Mapping[str, object]) -> dict[str, int]:
    return {name: count_field(usage[key], "usage", key) for key, name in _COUNTS.items() if usage.get(key) is not None}


def _index(event: Mapping[str, object]) -> int:
    return count_field(event.get("index"), str(event.get("type")), "index")


def _spoken(index: int, piece: Mapping[str, object]) -> Iterator[StreamEvent]:
    """The text, thinking, signature and citations of a block or a delta."""
    if piece.get("text"):
        yield block_delta(index, {"text": piece["text"]})
    if piece.get("thinking"):
        yield block_delta(index, {"reasoningContent": {"text": piece["thinking"]}})
    if piece.get("signature"):
        yield block_delta(index, {"reasoningContent": {"signature": piece["signature"]}})
    for citation in cast("Sequence[object]", piece.get("citations") or ()):
        cited = mapping_field(citation, "content_block_start", "citations")
        yield block_delta(index, {"citation": stored_citation(cited)})
