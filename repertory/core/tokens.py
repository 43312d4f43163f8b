"""Estimating how many tokens a request takes, without asking anybody.

Characters / 4 for text and / 2 for JSON, rounded up: the documented heuristic. It is deterministic and cheap, not
exact.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from repertory.core.messages import ContentBlock, Message, ToolSpec


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
            return known + estimate_tokens(messages[position + 1 :])
    return estimate_tokens(messages, tool_specs, system_prompt)


def _block_tokens(block: ContentBlock) -> int:
    if "text" in block:
        return _text_tokens(block["text"])
    if "toolUse" in block:
        return _text_tokens(block["toolUse"]["name"]) + _json_tokens(block["toolUse"]["input"])
    if "toolResult" in block:
        return sum(_part_tokens(part) for part in block["toolResult"]["content"])
    if "reasoningContent" in block:
        return _reasoning_tokens(block["reasoningContent"])
    return 0


def _part_tokens(part: Mapping[str, object]) -> int:
    text = part.get("text")
    if isinstance(text, str):
        return _text_tokens(text)
    return _json_tokens(part["json"]) if "json" in part else 0


def _reasoning_tokens(content: Mapping[str, object]) -> int:
    shown = content.get("reasoningText")
    text = cast("Mapping[str, object]", shown).get("text") if isinstance(shown, Mapping) else None
    return _text_tokens(text) if isinstance(text, str) else 0


def _text_tokens(text: str) -> int:
    return -(-len(text) // 4)


def _json_tokens(value: object) -> int:
    return -(-len(json.dumps(value, default=str)) // 2)
