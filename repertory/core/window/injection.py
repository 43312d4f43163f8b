"""Content injected into one model call only: when, and where. It never becomes part of the conversation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, cast

from repertory.core.journal.codec import dump
from repertory.core.messages import ContentBlock, Message, check_message, copy_message
from repertory.errors import Invalid

Occasion = Literal["userTurn", "everyTurn"]
"""`userTurn`: when the user has just sent a message; `everyTurn`: in every call, also between the tools of a turn."""
OCCASIONS: tuple[Occasion, ...] = ("userTurn", "everyTurn")


def is_occasion(occasion: Occasion, messages: Sequence[Message]) -> bool:
    """True if content is injected before these messages are sent."""
    return occasion == "everyTurn" or _is_fresh(messages)


def _is_fresh(messages: Sequence[Message]) -> bool:
    """True if the last message is the user's and holds more than tool results."""
    last = messages[-1] if messages else None
    return last is not None and last["role"] == "user" and any("toolResult" not in block for block in last["content"])


def blocks_of(rendered: object) -> list[ContentBlock]:
    """A renderer's output as content blocks, copied; none for None and blank text.

    Errors: `Invalid` for anything but text or a list of content blocks, for tool blocks, and for what is not JSON.
    """
    if rendered is None or (isinstance(rendered, str) and not rendered.strip()):
        return []
    if isinstance(rendered, str):
        return [{"text": rendered}]
    if not isinstance(rendered, list | tuple):
        raise Invalid("injected content is a text, a list of content blocks or None", got=type(rendered).__name__)
    blocks = list(cast("Sequence[ContentBlock]", rendered))
    if not blocks:
        return []
    message = check_message({"role": "user", "content": blocks})
    if any("toolUse" in block or "toolResult" in block for block in message["content"]):
        raise Invalid("neither tool uses nor tool results can be injected")
    dump(message)
    return copy_message(message)["content"]


def with_injected(messages: Sequence[Message], blocks: Sequence[ContentBlock]) -> Sequence[Message]:
    """The messages with these blocks at the end of the user's last message. The input is not changed.

    They come after every cache point, so the cached prefix stays valid.
    """
    for position in range(len(messages) - 1, -1, -1):
        message = messages[position]
        if message["role"] == "user":
            extended: Message = {**message, "content": [*message["content"], *blocks]}
            return [*messages[:position], extended, *messages[position + 1 :]]
    return messages


def added_blocks(before: Sequence[Message], after: Sequence[Message]) -> int:
    """The number of blocks that `with_injected` has added."""
    return sum(len(new["content"]) - len(old["content"]) for old, new in zip(before, after, strict=True))
