"""How memories are asked for, and how the model is shown them."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from repertory.core.memory.entry import MemoryEntry
from repertory.core.messages import Message, text_of


def memory_block(entries: Sequence[MemoryEntry]) -> str:
    """The entries in one block, escaped, so that nothing in them can end it. Empty when there are none."""
    if not entries:
        return ""
    lines = [f"<entry{_source(entry)}>{escape(entry.content, quote=False)}</entry>" for entry in entries]
    return "\n".join(["<memory>", *lines, "</memory>"])


def default_query(messages: Sequence[Message]) -> str | None:
    """What to search for: what the user has just said; between the tools of a turn what the assistant said last. None
    when there are no words.
    """
    for message in reversed(messages):
        text = text_of(message).strip()
        if text:
            return text
        if message["role"] == "user" and not any("toolResult" in block for block in message["content"]):
            return None
    return None


def _source(entry: MemoryEntry) -> str:
    return "" if entry.store_name is None else f' source="{escape(entry.store_name)}"'
