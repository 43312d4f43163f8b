"""One answer of Chat Completions as events of ours.

The service sends text, reasoning and tool calls side by side in the deltas of one message; here each becomes a block
with a beginning and an end. A whole answer is read as the one delta that would have brought it.

Servers that imitate the service leave much out: usage, ids and indexes of tool calls, the finish reason `tool_calls`.
None of that matters here. What does matter is a finish reason: without one the answer is broken.

Source: the OpenAI API, `chat.completion` and `chat.completion.chunk` objects; `reasoning_content` and `reasoning` as
compatible servers send them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, cast

from repertory.backends.models.openai_tool_calls import ToolCalls
from repertory.core.stream_event import filled, is_mapping, malformed, mapping
from repertory.errors import ModelFailed, ModelStreamBroken

if TYPE_CHECKING:
    from repertory.backends.ports import StreamEvent

STOP_REASONS = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "end_turn",
    "function_call": "end_turn",
    "content_filter": "content_filtered",
}
"""Finish reasons as Converse spells them, for an answer without tool calls; unknown ones are passed on."""
_FINAL = frozenset(("max_tokens", "content_filtered"))
"""Stop reasons that tool calls do not change."""
_SILENCE: Mapping[str, object] = {}
_REASONING = ("reasoning_content", "reasoning")

Voice = Literal["text", "reasoning"]


class CompletionReader:
    """Reads one answer. Errors: `ModelFailed` for nonsense, `ModelStreamBroken` when the end never came."""

    __slots__ = ("_blocks", "_calls", "_finish", "_refused", "_spoken", "_started", "_usage", "_voice")

    def __init__(self) -> None:
        self._started = False
        self._blocks = 0
        """How many blocks have begun."""
        self._voice: Voice | None = None
        """What is being spoken, None while nothing is."""
        self._spoken = 0
        """The index of the block that is being spoken."""
        self._calls = ToolCalls()
        self._finish: str | None = None
        self._refused = False
        self._usage = _SILENCE

    def feed(self, chunk: Mapping[str, object]) -> Iterator[StreamEvent]:
        """The events that the next chunk brings. Of several choices only the first is read."""
        if not self._started:
            self._started = True
            yield {"messageStart": {"role": "assistant"}}
        if is_mapping(usage := chunk.get("usage")):
            self._usage = usage
        for choice in _mappings(chunk, "choices"):
            if not choice.get("index"):
                yield from self._on_delta(mapping(choice.get("delta") or {}, "chunk", "delta"), str(chunk.get("id")))
                if choice.get("finish_reason"):
                    self._finish = filled(choice["finish_reason"], "chunk", "finish_reason")

    def whole(self, answer: Mapping[str, object]) -> Iterator[StreamEvent]:
        """The events of a completion that came at once."""
        choices = _mappings(answer, "choices")
        if not any(is_mapping(choice.get("message")) for choice in choices):
            raise ModelFailed("the model answered without a message", answer=sorted(answer))
        yield from self.feed({**answer, "choices": [{**choice, "delta": choice.get("message")} for choice in choices]})
        self._finish = self._finish or "stop"

    def finish(self) -> Iterator[StreamEvent]:
        """The ends of the blocks, the stop reason and the usage."""
        if self._finish is None:
            raise ModelStreamBroken("the service ended the stream in the middle of an answer")
        if self._finish != "length":
            self._calls.refuse_nameless()
        yield from self._fall_silent()
        for call in self._calls.begun():
            yield {"contentBlockStop": {"contentBlockIndex": call.block}}
        yield {"messageStop": {"stopReason": self._stop_reason(self._finish)}}
        if usage := _counted(self._usage):
            yield {"metadata": {"usage": usage}}

    def _on_delta(self, delta: Mapping[str, object], answer_id: str) -> Iterator[StreamEvent]:
        thought = next((said for name in _REASONING if isinstance(said := delta.get(name), str) and said), None)
        if thought:
            yield from self._speak("reasoning", {"reasoningContent": {"text": thought}})
        for name in ("content", "refusal"):
            if delta.get(name):
                self._refused = self._refused or name == "refusal"
                yield from self._speak("text", {"text": filled(delta[name], "chunk", name)})
        for part in _mappings(delta, "tool_calls"):
            yield from self._on_tool_call(part, answer_id)

    def _speak(self, voice: Voice, delta: Mapping[str, object]) -> Iterator[StreamEvent]:
        if self._voice != voice:
            yield from self._fall_silent()
            self._voice, self._spoken = voice, self._next_block()
            yield _start(self._spoken, {})
        yield _delta(self._spoken, delta)

    def _fall_silent(self) -> Iterator[StreamEvent]:
        if self._voice is not None:
            self._voice = None
            yield {"contentBlockStop": {"contentBlockIndex": self._spoken}}

    def _on_tool_call(self, part: Mapping[str, object], answer_id: str) -> Iterator[StreamEvent]:
        """Calls may come by turns, so each keeps its block open to the end."""
        call = self._calls.take(part)
        if call.block is None and call.name:
            yield from self._fall_silent()
            call.block = self._next_block()
            use = {"toolUseId": self._calls.use_id(call, answer_id), "name": call.name}
            yield _start(call.block, {"toolUse": use})
        if call.block is not None and call.pending:
            piece, call.pending = call.pending, ""
            yield _delta(call.block, {"toolUse": {"input": piece}})

    def _next_block(self) -> int:
        self._blocks += 1
        return self._blocks - 1

    def _stop_reason(self, finish: str) -> str:
        reason = "content_filtered" if self._refused else STOP_REASONS.get(finish, finish)
        return "tool_use" if self._calls.begun() and reason not in _FINAL else reason


def _start(index: int, start: Mapping[str, object]) -> StreamEvent:
    return {"contentBlockStart": {"contentBlockIndex": index, "start": start}}


def _delta(index: int, delta: Mapping[str, object]) -> StreamEvent:
    return {"contentBlockDelta": {"contentBlockIndex": index, "delta": delta}}


def _mappings(holder: Mapping[str, object], name: str) -> Sequence[Mapping[str, object]]:
    """The objects listed under a name; none when there is no list."""
    listed = holder.get(name) or ()
    if not isinstance(listed, list | tuple):
        malformed("chunk", f"a list under '{name}'", listed)
    return [mapping(item, "chunk", name) for item in cast("Sequence[object]", listed)]


def _counted(usage: Mapping[str, object]) -> dict[str, int]:
    """The usage as Converse counts it: cached tokens apart from `inputTokens`. Empty when the service did not say."""
    if "prompt_tokens" not in usage:
        return {}
    details = usage.get("prompt_tokens_details")
    cache = details if is_mapping(details) else _SILENCE
    read, written = _number(cache.get("cached_tokens")), _number(cache.get("cache_write_tokens"))
    asked, said = _number(usage["prompt_tokens"]), _number(usage.get("completion_tokens"))
    counted = {"inputTokens": max(0, asked - read - written), "outputTokens": said, "totalTokens": asked + said}
    cached = {"cacheReadInputTokens": read, "cacheWriteInputTokens": written}
    return counted | {name: number for name, number in cached.items() if number}


def _number(value: object) -> int:
    return value if isinstance(value, int) and value > 0 else 0
