"""Shortening long tool results, keeping their beginning and their end.

Source: the documented behaviour of the SDK whose users we serve (tool result truncation): the first and the last 200
characters stay; an image becomes its description; the status stays; what was shortened once is left alone. JSON and
documents, which are left whole there, are shortened here too: they may be all that there is to shorten.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import cast

from repertory.core.messages import ContentBlock, Message, ToolResult
from repertory.core.tokens import estimate_tokens

KEPT_CHARS = 200
_MARK = "... [truncated: "


def shorten_oldest(shown: Sequence[Message], least: int = 0) -> dict[int, Message]:
    """The first messages with long tool results, shortened, by position: as many as take off `least` tokens, one at
    least. Empty when there are none.
    """
    found: dict[int, Message] = {}
    for position, message in enumerate(shown):
        shortened = shorten_results(message)
        if shortened is not message:
            found[position] = shortened
            least -= estimate_tokens([message]) - estimate_tokens([shortened])
            if least <= 0:
                break
    return found


def shorten_largest(shown: Sequence[Message], least: int = 0) -> dict[int, Message]:
    """The same with those first that lose most."""
    found: dict[int, Message] = {}
    shorter = {at: shortened for at, one in enumerate(shown) if (shortened := shorten_results(one)) is not one}
    gains = {at: estimate_tokens([shown[at]]) - estimate_tokens([shorter[at]]) for at in shorter}
    for at in sorted(gains, key=gains.__getitem__, reverse=True):
        found[at] = shorter[at]
        least -= gains[at]
        if least <= 0:
            break
    return found


def shorten_results(message: Message) -> Message:
    """The message with long tool results shortened; the same object when there is nothing to shorten."""
    blocks = [_shorten_block(block) for block in message["content"]]
    if all(new is old for new, old in zip(blocks, message["content"], strict=True)):
        return message
    return {**message, "content": blocks}


def _shorten_block(block: ContentBlock) -> ContentBlock:
    if "toolResult" not in block:
        return block
    result = block["toolResult"]
    parts = [_shorten_part(part) for part in result["content"]]
    if all(new is old for new, old in zip(parts, result["content"], strict=True)):
        return block
    shortened: ToolResult = {**result, "content": parts}
    return {"toolResult": shortened}


def _shorten_part(part: dict[str, object]) -> dict[str, object]:
    match part:
        case {"text": str(text)}:
            shorter = shorten_text(text)
            return part if shorter is text else {"text": shorter}
        case {"image": {"format": str(kind), "source": {"bytes": bytes(data)}}}:
            return {"text": f"[image: {kind}, {len(data)} bytes]"}
        case {"image": _}:
            return {"text": f"[image: {_image_format(part)}]"}
        case {"json": value}:
            text = json.dumps(value, ensure_ascii=False, default=str)
            shorter = shorten_text(text)
            return part if shorter is text else {"text": shorter}
        case {"document": {"name": str(name), "source": {"bytes": bytes(data)}}} if len(data) > 2 * KEPT_CHARS:
            return {"text": f"[document: {name}, {len(data)} bytes]"}
        case _:
            return part


def _image_format(part: Mapping[str, object]) -> str:
    image = part.get("image")
    return (
        str(cast("Mapping[str, object]", image).get("format", "unknown")) if isinstance(image, Mapping) else "unknown"
    )


def shorten_text(text: str) -> str:
    """The text with its middle taken out; the same object when it is short enough or was shortened before."""
    removed = len(text) - 2 * KEPT_CHARS
    if _MARK in text or removed <= len(_MARK) + 40:
        return text
    return f"{text[:KEPT_CHARS]}...\n\n{_MARK}{removed} chars removed] ...\n\n...{text[-KEPT_CHARS:]}"
