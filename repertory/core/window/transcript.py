"""A part of a conversation as one text, for a model that summarises it or extracts facts.

One line per message, each a JSON object with role and content blocks. So no content can imitate another message,
another role or a tool's answer: `read_transcript` gives back exactly what was written. The reader needs no tools.
Blocks that are not text are only named; of a part that only its provider can read, the words for others stand there.
Long texts lose their middles.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import cast

from repertory.core.limits import clip
from repertory.core.messages import ContentBlock, Json, Message, ToolResult, text_of
from repertory.core.provider_content import text_for_others

_SUMMARY_OF = "summary_of"
_LINE_BREAKS = re.compile("[\u007f-\u009f\u2028\u2029]")
"""Characters beyond those that JSON escapes that a reader may take for line ends."""


def transcript(messages: Sequence[Message], chars_max: int) -> str:
    """One line per message, with each text clipped to about `chars_max` characters."""
    return "\n".join(line_of(message, chars_max) for message in messages)


def line_of(message: Message, chars_max: int, time: str | None = None) -> str:
    """The line of one message, with its time if given. A summary says how many messages it covers."""
    fields: dict[str, Json] = {"role": message["role"]}
    if time is not None:
        fields["time"] = time
    summary_of = message.get("metadata", {}).get("custom", {}).get(_SUMMARY_OF)
    if summary_of is not None:
        fields[_SUMMARY_OF] = cast("Json", summary_of)
    return _one_line({**fields, "content": list(_blocks(message, chars_max))})


def _one_line(value: Json) -> str:
    """JSON on one line that cannot contain the marks around the transcript."""
    # `\/` is an escape of JSON for `/` (RFC 8259, 7), so the reader gets the same text back.
    text = json.dumps(value, ensure_ascii=False).replace("</", "<\\/")
    return _LINE_BREAKS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _blocks(message: Message, chars_max: int) -> Iterator[Json]:
    for block in message["content"]:
        written = _block(block, chars_max)
        if written is not None:
            yield written


def _block(block: ContentBlock, chars_max: int) -> Json:
    if "toolUse" in block:
        use = block["toolUse"]
        call = {"toolUseId": use["toolUseId"], "name": use["name"], "input": _clipped(use["input"], chars_max)}
        return {"toolUse": cast("Json", call)}
    if "toolResult" in block:
        return {"toolResult": _result(block["toolResult"], chars_max)}
    if "reasoningContent" in block or "cachePoint" in block:
        return None
    if "providerContent" in block:
        return _provided(block["providerContent"]["content"], chars_max)
    return _other(cast("Mapping[str, object]", block), chars_max)


def _provided(content: Mapping[str, object], chars_max: int) -> Json:
    text = text_for_others(content)
    return None if text is None else {"text": clip(text, chars_max)}


def _result(result: ToolResult, chars_max: int) -> Json:
    parts = [_other(part, chars_max) for part in result["content"]]
    return {"toolUseId": result["toolUseId"], "status": result["status"], "content": parts}


def _other(part: Mapping[str, object], chars_max: int) -> Json:
    match part:
        case {"text": str(text)}:
            return {"text": clip(text, chars_max)}
        case {"json": value}:
            return {"json": _clipped(value, chars_max)}
        case {"guardContent": {"text": {"text": str(text)}}}:
            return {"guardContent": clip(text, chars_max)}
        case {"citationsContent": _}:
            content = [cast("ContentBlock", part)]
            return {"text": clip(text_of({"role": "assistant", "content": content}), chars_max)}
        case {"document": {"name": str(name)}}:
            return {"document": clip(name, chars_max)}
        case _:
            return dict.fromkeys(part, "left out")


def _clipped(value: object, chars_max: int) -> Json:
    """The value as JSON; when that is too long, the beginning and end of its text."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    clipped = clip(text, chars_max)
    # By identity: `clip` returns its argument where nothing was cut. A cut text is no JSON any more, and is shown as a
    # text.
    return cast("Json", json.loads(text)) if clipped is text else clipped
