"""A stretch of a conversation as one text, for a model that is to say what was said in it.

Tool uses and their results become lines, so that no tool needs to be offered to whoever reads it. What is not text is
named. Long texts lose their middles.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import cast

from repertory.core.messages import ContentBlock, Message, ToolResult

_MARK = " ... [{} characters left out] ... "


def transcript(messages: Sequence[Message], chars_max: int) -> str:
    """One paragraph per message, each block of it at most about `chars_max` characters long."""
    return "\n\n".join(f"{message['role']}: {said(message, chars_max)}" for message in messages)


def said(message: Message, chars_max: int) -> str:
    """What one message says: a line per block, each at most about `chars_max` characters long."""
    return "\n".join(_lines(message, chars_max))


def _lines(message: Message, chars_max: int) -> Iterator[str]:
    for block in message["content"]:
        line = _line(block, chars_max)
        if line:
            yield line


def _line(block: ContentBlock, chars_max: int) -> str:
    if "text" in block:
        return _clip(block["text"], chars_max)
    if "toolUse" in block:
        use = block["toolUse"]
        return f"[uses the tool {use['name']}: {_clip(_json(use['input']), chars_max)}]"
    if "toolResult" in block:
        return f"[the tool's result, {_result(block['toolResult'], chars_max)}]"
    if "reasoningContent" in block or "cachePoint" in block:
        return ""
    return _other(cast("Mapping[str, object]", block), chars_max)


def _result(result: ToolResult, chars_max: int) -> str:
    parts = [_other(part, chars_max) for part in result["content"]]
    return f"{result['status']}: " + "\n".join(parts)


def _other(part: Mapping[str, object], chars_max: int) -> str:
    match part:
        case {"text": str(text)}:
            return _clip(text, chars_max)
        case {"json": value}:
            return _clip(_json(value), chars_max)
        case {"guardContent": {"text": {"text": str(text)}}}:
            return _clip(text, chars_max)
        case {"document": {"name": str(name)}}:
            return f"[a document: {name}]"
        case _:
            return f"[{', '.join(part)}]"


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def _clip(text: str, chars_max: int) -> str:
    left_out = len(text) - chars_max
    if left_out <= len(_MARK):
        return text
    half = chars_max // 2
    return f"{text[:half]}{_MARK.format(len(text) - 2 * half)}{text[-half:]}"
