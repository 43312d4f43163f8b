"""Estimating how many tokens a request takes, without asking anybody.

Characters / 4 for text and / 2 for JSON, rounded up: the documented heuristic. Where it says nothing, or is far off,
ours: characters beyond ASCII weigh as many as their bytes, since Chinese takes about a token per character; an image is
as large as the largest that providers do not scale down; a document is its text, or its pages. Deterministic and cheap,
not exact.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from repertory.core.messages import ContentBlock, Message, ToolSpec

IMAGE_TOKENS = 1_600
"""An image of 1,568 by 784 pixels, at 750 pixels per token; larger ones are scaled down."""
PAGE_TOKENS = 2_000
PAGE_BYTES = 25_000
"""What a page of a document takes, shown as text and as an image, and how large its file is for each of them."""
INJECTED_TOKENS = "injected_tokens"
"""In the custom metadata of an answer: what was said in its call only, and is not there in the next request."""
TEXT_FORMATS = frozenset(("txt", "md", "csv", "html"))


def estimate_tokens(
    messages: Sequence[Message],
    tool_specs: Sequence[ToolSpec] | None = None,
    system_prompt: str | None = None,
) -> int:
    """Tokens of a whole request: messages, tool specs and system prompt."""
    total = _text_tokens(system_prompt or "")
    for spec in tool_specs or ():
        total += _json_tokens(spec)
    for message in messages:
        for block in message["content"]:
            total += _block_tokens(block)
    return total


def projected_tokens(
    messages: Sequence[Message],
    tool_specs: Sequence[ToolSpec] | None = None,
    system_prompt: str | None = None,
) -> int:
    """Tokens that the next request will take: what the model said that the last one took, with what came since.

    Without an answer that carries its usage, an estimate of everything. Source: the documented formula.
    """
    for position in range(len(messages) - 1, -1, -1):
        message = messages[position]
        usage = message.get("metadata", {}).get("usage")
        if message["role"] == "assistant" and usage and usage["totalTokens"]:
            cached = usage.get("cacheReadInputTokens", 0) + usage.get("cacheWriteInputTokens", 0)
            known = usage["inputTokens"] + cached + usage["outputTokens"]
            return known - injected_tokens(message) + estimate_tokens(messages[position + 1 :])
    return estimate_tokens(messages, tool_specs, system_prompt)


def injected_tokens(answer: Message) -> int:
    """An estimate of what was said to the model in the call of this answer only; 0 when nothing was."""
    tokens = answer.get("metadata", {}).get("custom", {}).get(INJECTED_TOKENS, 0)
    return tokens if isinstance(tokens, int) else 0


def _block_tokens(block: ContentBlock) -> int:
    if "text" in block:
        return _text_tokens(block["text"])
    if "toolUse" in block:
        return _text_tokens(block["toolUse"]["name"]) + _json_tokens(block["toolUse"]["input"])
    if "toolResult" in block:
        return sum(_part_tokens(part) for part in block["toolResult"]["content"])
    if "reasoningContent" in block:
        return _reasoning_tokens(block["reasoningContent"])
    return _part_tokens(cast("Mapping[str, object]", block))


def _part_tokens(part: Mapping[str, object]) -> int:
    match part:
        case {"text": str(text)}:
            return _text_tokens(text)
        case {"json": value}:
            return _json_tokens(value)
        case {"image": _}:
            return IMAGE_TOKENS
        case {"document": document}:
            return _document_tokens(cast("Mapping[str, object]", document))
        case {"guardContent": {"text": {"text": str(text)}}}:
            return _text_tokens(text)
        case {"citationsContent": value}:
            return _json_tokens(value)
        case _:
            return 0


def _document_tokens(document: Mapping[str, object]) -> int:
    match document.get("source"):
        case {"bytes": bytes(data)} if document.get("format") in TEXT_FORMATS:
            return math.ceil(len(data) / 4)
        case {"bytes": bytes(data)}:
            return PAGE_TOKENS * max(1, math.ceil(len(data) / PAGE_BYTES))
        case {"text": str(text)}:
            return _text_tokens(text)
        case _:
            return PAGE_TOKENS


def _reasoning_tokens(content: Mapping[str, object]) -> int:
    shown = content.get("reasoningText")
    text = cast("Mapping[str, object]", shown).get("text") if isinstance(shown, Mapping) else None
    return _text_tokens(text) if isinstance(text, str) else 0


def _text_tokens(text: str) -> int:
    size = len(text) if text.isascii() else len(text.encode(errors="replace"))
    return math.ceil(size / 4)


def _json_tokens(value: object) -> int:
    return math.ceil(len(json.dumps(value, default=str)) / 2)
