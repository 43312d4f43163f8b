"""Merging the results of several stores: by rank, without duplicates, and without what the model sees anyway."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import NamedTuple

from repertory.core.memory.options import MemoryEntry
from repertory.core.messages import Message, text_of
from repertory.core.tokens import estimate_tokens


def merged(found: Sequence[Sequence[MemoryEntry]]) -> list[MemoryEntry]:
    """The first entry of each store, then the second of each, and so on. Of equal texts the first one stays.
    Scores are not compared: each store has its own scale.
    """
    in_turn = (entry for rank in zip_longest(*found) for entry in rank if entry is not None)
    first: dict[str, MemoryEntry] = {}
    for entry in in_turn:
        first.setdefault(normalized_text(entry.content), entry)
    first.pop("", None)
    return list(first.values())


def unsaid(entries: Iterable[MemoryEntry], visible: Sequence[Message]) -> list[MemoryEntry]:
    """The entries that are not shown to the model already, as whole words within a message."""
    visible_words = "\n".join(normalized_text(text) for message in visible for text in _texts(message))
    return [entry for entry in entries if not _stands_in(normalized_text(entry.content), visible_words)]


class FittingEntries(NamedTuple):
    """The entries that are shown, and those that are not for want of tokens, both in order."""

    entries: list[MemoryEntry]
    too_long: list[MemoryEntry]


def within_budget(entries: Iterable[MemoryEntry], entries_max: int, tokens_max: int) -> FittingEntries:
    """The best entries that fit. One that is too long is skipped; shorter ones after it still count."""
    chosen = FittingEntries([], [])
    remaining = tokens_max
    for entry in entries:
        if len(chosen.entries) >= entries_max:
            break
        tokens = estimate_tokens((), system_prompt=entry.content)
        if tokens <= remaining:
            chosen.entries.append(entry)
            remaining -= tokens
        else:
            chosen.too_long.append(entry)
    return chosen


def normalized_text(text: str) -> str:
    """The text in lower case with single spaces, for comparison."""
    return " ".join(text.split()).casefold()


def _stands_in(words: str, visible_words: str) -> bool:
    """True if the words occur as whole words, not within other words ("tea" in "steak")."""
    return words in visible_words and re.search(rf"(?<!\w){re.escape(words)}(?!\w)", visible_words) is not None


def _texts(message: Message) -> Iterable[str]:
    for block in message["content"]:
        if "text" in block:
            yield block["text"]
        elif "citationsContent" in block:
            yield text_of({"role": message["role"], "content": [block]})
        elif "toolResult" in block:
            for part in block["toolResult"]["content"]:
                text = part.get("text")
                if isinstance(text, str):
                    yield text
