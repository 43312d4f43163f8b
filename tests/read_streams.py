"""Streams and transcripts as tests read them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import cast

from repertory.core.answer import is_mapping
from repertory.core.messages import Json
from repertory.core.result import TurnEvent
from repertory.service.decisions.narration import EventNarration, Narrated


def text_delta(event: Mapping[str, object]) -> str | None:
    """The text that this event adds to the visible answer, or None. Never raises."""
    body = event.get("contentBlockDelta")
    if not is_mapping(body) or not is_mapping(delta := body.get("delta")):
        return None
    text = delta.get("text")
    return text if isinstance(text, str) else None


def narrated(events: Iterable[TurnEvent]) -> list[Narrated]:
    """The whole narration of these events."""
    narration = EventNarration()
    return [each for event in events for each in narration.tell(event)]


def read_transcript(text: str) -> list[Mapping[str, Json]]:
    """The messages of a transcript."""
    return [cast("Mapping[str, Json]", json.loads(line)) for line in text.split("\n") if line]
