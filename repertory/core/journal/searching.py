"""Finding words in messages."""

from __future__ import annotations

from collections.abc import Sequence

from repertory.core.journal.leaves import texts_of
from repertory.core.messages import Message
from repertory.errors import Invalid

EXCERPT_CHARACTERS = 120


def words_of(text: str) -> list[str]:
    """The words to look for. Errors: `Invalid` when there are none."""
    words = text.casefold().split()
    if not words:
        raise Invalid("say which words to look for", got=text)
    return words


def found_in(message: Message, words: Sequence[str]) -> str | None:
    """Part of what the message says, around the first word; None unless it has all of them, as parts of words or as
    whole ones, in any order, whatever their case.
    """
    text = " ".join(" ".join(texts_of(message)).split())
    folded = text.casefold()
    places = [folded.find(word) for word in words]
    return None if min(places) < 0 else _excerpt(text, min(places))


def _excerpt(text: str, place: int) -> str:
    """About a line around a place. Folding case may have moved it by a few characters."""
    start = max(0, min(place - EXCERPT_CHARACTERS // 3, len(text) - EXCERPT_CHARACTERS))
    end = min(len(text), start + EXCERPT_CHARACTERS)
    return f"{'...' if start else ''}{text[start:end]}{'...' if end < len(text) else ''}"
