"""Estimating the tokens of a request without asking the provider, and the windows of known models.

Characters / 4 for text and / 2 for JSON, rounded up: the documented heuristic. Where it says nothing or is far off,
ours: characters beyond ASCII count by their bytes, since Chinese takes about a token per character; an image counts as
the largest that providers do not scale down; a document counts by its text or its pages, a sound by its bytes. A part
that only its provider can read counts as text, since most of it is a page or encrypted. Deterministic and cheap, not
exact.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from repertory.core.messages import ContentBlock, Message, ToolSpec, Usage

IMAGE_TOKENS = 1_600
"""The tokens of an image of 1,568 by 784 pixels, at 750 pixels per token; larger images are scaled down."""
PAGE_TOKENS = 2_000
PAGE_BYTES = 25_000
"""The tokens of a document's page, shown as text and image, and its size in the file."""
AUDIO_BYTES = 500
"""The bytes of a compressed sound per token: 16,000 bytes and 32 tokens a second."""
INJECTED_TOKENS = "injected_tokens"
"""A key in an answer's custom metadata: tokens injected for its call only, absent from the next request."""
TEXT_FORMATS = frozenset(("txt", "md", "csv", "html"))


def estimate_tokens(
    messages: Sequence[Message],
    tool_specs: Sequence[ToolSpec] | None = None,
    system_prompt: str | None = None,
) -> int:
    """The estimated tokens of a whole request: messages, tool specs and system prompt."""
    total = _text_tokens(system_prompt or "")
    for spec in tool_specs or ():
        if not spec.get("deferLoading"):
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
    """The estimated tokens of the next request: the usage reported with the last answer, plus what came since.

    Without reported usage, everything is estimated. Source: the documented formula.
    """
    known, since = known_tokens(messages)
    return known + estimate_tokens(since) if known else estimate_tokens(messages, tool_specs, system_prompt)


def known_tokens(messages: Sequence[Message]) -> tuple[int, Sequence[Message]]:
    """The tokens of a request up to the last answer, by the usage reported with it, and the messages since; 0 and all
    of them when none was reported.
    """
    for position in range(len(messages) - 1, -1, -1):
        message = messages[position]
        usage = message.get("metadata", {}).get("usage")
        if message["role"] == "assistant" and usage and usage["totalTokens"]:
            known = prompt_tokens(usage) + usage["outputTokens"]
            return known - injected_tokens(message), messages[position + 1 :]
    return 0, messages


def prompt_tokens(usage: Usage) -> int:
    """The tokens that the model read, cached ones included: `inputTokens` has them already when the total says so."""
    if usage["inputTokens"] + usage["outputTokens"] == usage["totalTokens"]:
        return usage["inputTokens"]
    cached = usage.get("cacheReadInputTokens", 0) + usage.get("cacheWriteInputTokens", 0)
    return usage["inputTokens"] + cached


def injected_tokens(answer: Message) -> int:
    """The estimated tokens that were injected into the call of this answer only."""
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
    if "providerContent" in block:
        return _text_tokens(json.dumps(block["providerContent"]["content"], default=str))
    return _part_tokens(cast("Mapping[str, object]", block))


def _part_tokens(part: Mapping[str, object]) -> int:
    match part:
        case {"text": str(text)}:
            return _text_tokens(text)
        case {"json": value}:
            return _json_tokens(value)
        case {"image": _}:
            return IMAGE_TOKENS
        case {"audio": {"source": {"bytes": bytes(data)}}}:
            return math.ceil(len(data) / AUDIO_BYTES)
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
    reasoning = content.get("reasoningText")
    text = cast("Mapping[str, object]", reasoning).get("text") if isinstance(reasoning, Mapping) else None
    return _text_tokens(text) if isinstance(text, str) else 0


def _text_tokens(text: str) -> int:
    size = len(text) if text.isascii() else len(text.encode(errors="replace"))
    return math.ceil(size / 4)


def _json_tokens(value: object) -> int:
    return math.ceil(len(json.dumps(value, default=str)) / 2)


# The windows of known models, in tokens.
#
# A model is found by its own name, without regions, vendors and account paths before it (`us.anthropic.`,
# `openrouter/`, `arn:...:inference-profile/`), and dates and versions after it (`-20250929`, `-v1:0`, `-latest`). A
# name that is not in the table is not guessed from its relatives.
#
# Source: the providers' model pages, November 2026.

_WINDOWS: dict[int, str] = {
    1_050_000: "gpt-6-astra gpt-6.1-sol gpt-6-sol gpt-6-luna gpt-5.6 gpt-5.6-sol gpt-5.6-terra gpt-5.6-luna gpt-5.5"
    " gpt-5.5-pro gpt-5.4 gpt-5.4-pro",
    1_048_576: "gemini-2.0-flash gemini-2.0-flash-lite gemini-2.5-flash gemini-2.5-flash-lite gemini-2.5-pro"
    " gemini-3-flash-preview gemini-3-pro-preview gemini-3.1-flash-lite gemini-3.1-flash-lite-preview"
    " gemini-3.1-pro-preview gemini-3.5-flash gemini-3.5-flash-lite gemini-3.6-flash",
    1_047_576: "gpt-4.1 gpt-4.1-mini gpt-4.1-nano",
    1_000_000: "claude-sonnet-4 claude-sonnet-4-6 claude-sonnet-5 claude-sonnet-5-5 claude-opus-4-6 claude-opus-4-7"
    " claude-opus-4-8 claude-opus-5 claude-opus-5-5 claude-fable-5 claude-fable-5-1 claude-haiku-5-5"
    " claude-mythos-preview nova-premier nova-2-lite nova-2-pro-preview glm-5.3",
    300_000: "nova-pro nova-lite",
    272_000: "gpt-5.4-mini gpt-5.4-nano gpt-5.2 gpt-5.2-pro gpt-5.1 gpt-5 gpt-5-mini gpt-5-nano",
    262_144: "mistral-large mistral-large-3",
    203_000: "glm-4.7 glm-4.7-flash",
    200_000: "claude-sonnet-4-5 claude-opus-4-5 claude-opus-4 claude-opus-4-1 claude-haiku-4-5 claude-3-7-sonnet"
    " claude-3-5-sonnet claude-3-5-haiku claude-3-opus claude-3-sonnet claude-3-haiku o1 o3 o3-mini o3-pro o4-mini"
    " glm-5",
    131_072: "mistral-medium mistral-small mistral-small-3-2",
    128_000: "gpt-5-pro gpt-4o gpt-4o-mini gpt-4-turbo nova-micro",
}
_BY_NAME = {name: tokens for tokens, names in _WINDOWS.items() for name in names.split()}
_BEFORE = re.compile(r"[a-z][a-z-]*\.")
"""A region or a vendor. A dot in a model's own name follows a digit."""
_BEHIND = re.compile(r"(?:-v\d+)?(?::\d+)?(?::\w+)?$|[-@]\d{8}$|-\d{4}-\d{2}-\d{2}$|-\d{4}$|-latest$")


@lru_cache(maxsize=256)
def window_of(model_id: str) -> int | None:
    """The tokens that this model's window holds; None for unknown models."""
    return next((_BY_NAME[name] for name in _names(model_id) if name in _BY_NAME), None)


def _names(model_id: str) -> Iterator[str]:
    """The id, then shorter and shorter forms of it without prefixes and suffixes."""
    name = model_id.lower().rpartition("/")[2]
    while True:
        yield from chain([name], _shorter(name))
        found = _BEFORE.match(name)
        if found is None:
            return
        name = name[found.end() :]


def _shorter(name: str) -> Iterator[str]:
    while True:
        shorter = _BEHIND.sub("", name, count=1)
        if shorter == name:
            return
        yield shorter
        name = shorter
