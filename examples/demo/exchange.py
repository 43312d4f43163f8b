"""Turns as both ends of a conversation see them: prompts and answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from repertory.core.messages import Message, text_of, tool_results, tool_uses
from repertory.errors import Corrupt


@dataclass(frozen=True, slots=True)
class Exchange:
    """A prompt and its answer; None while there is no answer."""

    prompt: str
    answer: str | None


def exchanges(messages: Sequence[Message]) -> list[Exchange]:
    """The turns of a conversation, in order, without the messages between prompt and answer."""
    found: list[Exchange] = []
    for message in messages:
        if message["role"] == "user" and not any(tool_results(message)):
            found.append(Exchange(text_of(message), None))
        elif message["role"] == "assistant" and found and not any(tool_uses(message)):
            found[-1] = Exchange(found[-1].prompt, text_of(message))
    return found


class Fate(StrEnum):
    """The state of a prompt whose answer never arrived."""

    UNHEARD = "it had not been stored: said again"
    UNANSWERED = "it was stored without an answer: went on"
    ANSWERED = "its answer was stored: taken from there"


def fate(messages: Sequence[Message], acknowledged: int, prompt: str) -> Fate:
    """The state of the prompt after `acknowledged` turns. Errors: `Corrupt` when the history cannot be explained."""
    stored = exchanges(messages)
    if len(stored) == acknowledged:
        return Fate.UNHEARD
    if len(stored) != acknowledged + 1 or stored[-1].prompt != prompt:
        raise Corrupt("the history does not fit what was acknowledged", stored=len(stored), acknowledged=acknowledged)
    return Fate.UNANSWERED if stored[-1].answer is None else Fate.ANSWERED
