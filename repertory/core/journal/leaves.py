"""The texts and numbers in a message or in any JSON value, however deep they stand."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

from repertory.core.messages import Message


def leaves_of(value: object) -> Iterator[str]:
    """Strings as they are, numbers as text; keys, constants and bytes are left out."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for item in cast("dict[object, object]", value).values():
            yield from leaves_of(item)
    elif isinstance(value, list | tuple):
        for item in cast("list[object]", value):
            yield from leaves_of(item)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield str(value)


def texts_of(message: Message) -> Iterator[str]:
    """Everything in a message that reads as text: what was said, what tools were asked and what they answered."""
    for block in message["content"]:
        if "toolUse" in block:
            yield block["toolUse"]["name"]
            yield from leaves_of(block["toolUse"]["input"])
        elif "toolResult" in block:
            yield from leaves_of(block["toolResult"]["content"])
        else:
            yield from leaves_of(block)
