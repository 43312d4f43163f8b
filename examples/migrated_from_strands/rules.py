"""Rules in the place of a model, so that both programs run without an account. Knows neither library.

`reply(messages)` gives the content blocks of the next answer, `events(blocks)` the stream in which models give them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

DAYS = "monday|tuesday|wednesday|thursday|friday|saturday|sunday"


def reply(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The next answer: the results of tools as a sentence, a tool that the text asks for, or a remark."""
    content = messages[-1]["content"]
    if results := [block["toolResult"] for block in content if "toolResult" in block]:
        return [{"text": " ".join(part["text"] for result in results for part in result["content"])}]
    text = " ".join(block["text"] for block in content if "text" in block).lower()
    number = f"use-{len(messages)}"
    if found := re.search(rf"\b(?:on|for) ({DAYS})\b", text):
        return [_use(number, "book_repair", {"bike": _bike(messages), "day": found[1]})]
    if found := re.search(r"\bhave (?:an? |any )?([a-z ]+?)s?\?", text):
        return [_use(number, "parts_in_stock", {"part": found[1]})]
    return [{"text": f"You have the {_bike(messages)}. Which part do you need, or which day suits you?"}]


def _bike(messages: Sequence[Mapping[str, Any]]) -> str:
    """The bike that was mentioned last, in any turn of the conversation."""
    said = " ".join(block.get("text", "") for message in messages for block in message["content"])
    return (re.findall(r"\b(?:my|the) ([a-z]+ (?:bike|tandem))\b", said.lower()) or ["unknown bike"])[-1]


def _use(number: str, name: str, arguments: Mapping[str, str]) -> dict[str, Any]:
    return {"toolUse": {"toolUseId": number, "name": name, "input": dict(arguments)}}


def events(blocks: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Content blocks as a stream in the format of Bedrock's Converse API."""
    yield {"messageStart": {"role": "assistant"}}
    for block in blocks:
        if use := block.get("toolUse"):
            yield {"contentBlockStart": {"start": {"toolUse": {"toolUseId": use["toolUseId"], "name": use["name"]}}}}
            yield {"contentBlockDelta": {"delta": {"toolUse": {"input": json.dumps(use["input"])}}}}
        else:
            yield {"contentBlockStart": {"start": {}}}
            yield {"contentBlockDelta": {"delta": {"text": block["text"]}}}
        yield {"contentBlockStop": {}}
    asks = any("toolUse" in block for block in blocks)
    yield {"messageStop": {"stopReason": "tool_use" if asks else "end_turn"}}
    usage = {"inputTokens": 10, "outputTokens": 5, "totalTokens": 15}
    yield {"metadata": {"usage": usage, "metrics": {"latencyMs": 1}}}
