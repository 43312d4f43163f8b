"""A finished answer as the stream of events that would have carried it.

For answers that are known whole: replies of a script, rules, and providers without streaming.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from repertory.backends.ports import StreamEvent

Split = Callable[[str], Iterable[str]]
"""Cuts a text into pieces, one per delta. Joined, the pieces are the text again."""


def whole(text: str) -> Iterable[str]:
    return (text,)


def message_events(
    blocks: Sequence[Mapping[str, Any]], *, stop_reason: str | None = None, split: Split = whole
) -> Iterator[StreamEvent]:
    """The events from `messageStart` to `messageStop`.

    Without a `stop_reason` it is `tool_use` when a block is a tool use, else `end_turn`. Block kinds that no delta can
    carry are left out.
    """
    yield {"messageStart": {"role": "assistant"}}
    asks = False
    for index, block in enumerate(blocks):
        if "toolUse" in block:
            asks = True
            use = block["toolUse"]
            start = {"toolUse": {"toolUseId": use["toolUseId"], "name": use["name"]}}
            yield {"contentBlockStart": {"contentBlockIndex": index, "start": start}}
        for delta in _deltas(block, split):
            yield {"contentBlockDelta": {"contentBlockIndex": index, "delta": delta}}
        yield {"contentBlockStop": {"contentBlockIndex": index}}
    yield {"messageStop": {"stopReason": stop_reason or ("tool_use" if asks else "end_turn")}}


def _deltas(block: Mapping[str, Any], split: Split) -> Iterator[dict[str, Any]]:
    if "text" in block:
        for piece in split(block["text"]):
            yield {"text": piece}
    elif "toolUse" in block:
        for piece in split(json.dumps(block["toolUse"]["input"])):
            yield {"toolUse": {"input": piece}}
    elif "reasoningContent" in block:
        yield from _reasoning_deltas(block["reasoningContent"], split)
    elif "citationsContent" in block:
        for part in block["citationsContent"].get("content", ()):
            yield {"text": part.get("text", "")}
        for citation in block["citationsContent"].get("citations", ()):
            yield {"citation": citation}


def _reasoning_deltas(reasoning: Mapping[str, Any], split: Split) -> Iterator[dict[str, Any]]:
    if "redactedContent" in reasoning:
        yield {"reasoningContent": {"redactedContent": reasoning["redactedContent"]}}
    spoken = reasoning.get("reasoningText", {})
    for piece in split(spoken.get("text", "")):
        yield {"reasoningContent": {"text": piece}}
    if "signature" in spoken:
        yield {"reasoningContent": {"signature": spoken["signature"]}}
