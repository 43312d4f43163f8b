"""The narration of a turn, in an order that the event streams of protocols need: a message begins, its text comes in
pieces, it ends; and the turn ends once, whatever its events were.

The events of a turn come as models, retries and replays make them: a message may come whole, what was streamed may turn
out void, and a turn that was answered before has nothing but its result.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias, cast

from msgspec import Struct

from repertory.core.messages import Usage, texts_in
from repertory.core.result import AgentResult, no_usage

if TYPE_CHECKING:
    from repertory.core.messages import Message, ToolResult, ToolUse
    from repertory.core.result import TurnEvent


class MessageBegun(Struct, frozen=True):
    """A message of the agent begins. Messages do not overlap; `number` counts them, from 1, void ones included."""

    number: int


class TextPiece(Struct, frozen=True):
    """A piece of the message's text, never empty."""

    number: int
    text: str


class ReasoningPiece(Struct, frozen=True):
    """A piece of the model's reasoning before or in the message, never empty."""

    number: int
    text: str


class MessageClosed(Struct, frozen=True):
    """The message is whole: `text` is that of its pieces together. `calls`: whether it asks for tools."""

    number: int
    text: str
    reasoning: str
    calls: bool = False


class MessageVoid(Struct, frozen=True):
    """The message does not count as it was narrated: the model is asked again, or the message was changed."""

    number: int
    again: bool = False
    """True if the model is asked again, so that its next try follows."""


class ToolBegan(Struct, frozen=True):
    """A tool runs."""

    use: ToolUse


class ToolDone(Struct, frozen=True):
    """A tool has ended."""

    result: ToolResult


class TurnDone(Struct, frozen=True):
    """The turn is over. Nothing follows."""

    result: AgentResult
    usage: Usage


Narrated: TypeAlias = (
    MessageBegun | TextPiece | ReasoningPiece | MessageClosed | MessageVoid | ToolBegan | ToolDone | TurnDone
)


class EventNarration:
    """A fold over the events of one turn. `tell` returns what an event adds; `cut` what is due when it ends without a
    result.
    """

    def __init__(self) -> None:
        self._number = 0
        self._open = False
        self._text: list[str] = []
        self._half = ""
        """The first half of a surrogate pair whose other half comes with the next piece."""
        self._reasoning: list[str] = []
        self._whole: str | None = None
        """The text of the last whole message; None before the first one."""
        self._tools: set[str] = set()
        """The ids of the tool uses that run."""
        self._over = False

    def tell(self, event: TurnEvent) -> list[Narrated]:
        """The parts that the event adds to the narration; none after the end, and none for events without any."""
        if self._over:
            return []
        match event:
            case {"data": str(text)}:
                return self._speak(text)
            case {"reasoningText": str(text)}:
                return self._think(text)
            case {"message": {"role": "assistant"} as message}:
                return self._close(cast("Message", message))
            case {"model_retry": _}:
                return self._drop(again=True)
            case {"tool_started": {"toolUseId": str(use_id), "name": str()} as use} if use_id not in self._tools:
                self._tools.add(use_id)
                return [*self._drop(), ToolBegan(cast("ToolUse", use))]
            case {"tool_finished": {"toolUseId": str(use_id)} as result} if use_id in self._tools:
                self._tools.discard(use_id)
                return [ToolDone(cast("ToolResult", result))]
            case {"result": AgentResult()}:
                return self._end(cast("AgentResult", event["result"]))
            case _:
                return []

    def cut(self) -> list[Narrated]:
        """The last parts of a turn that ends with an error: a message that has begun is void. Nothing follows."""
        due = [] if self._over else self._drop()
        self._over = True
        return due

    def _begin(self) -> list[Narrated]:
        if self._open:
            return []
        self._open, self._number = True, self._number + 1
        return [MessageBegun(self._number)]

    def _speak(self, text: str) -> list[Narrated]:
        # Most pieces are ASCII, and need no look at their characters.
        if self._half or not text.isascii():
            text, self._half = _whole_characters(f"{self._half}{text}")
        if not text:
            return []
        self._text.append(text)
        return [*self._begin(), TextPiece(self._number, text)]

    def _think(self, text: str) -> list[Narrated]:
        if not text:
            return []
        self._reasoning.append(text)
        return [*self._begin(), ReasoningPiece(self._number, text)]

    def _drop(self, *, again: bool = False) -> list[Narrated]:
        if not self._open:
            return []
        self._clear()
        return [MessageVoid(self._number, again)]

    def _clear(self) -> None:
        self._open, self._text, self._reasoning, self._half = False, [], [], ""

    def _close(self, message: Message) -> list[Narrated]:
        """End the message; one with neither text nor reasoning is left out of the narration."""
        self._half = ""  # The message has it, or what stands for it.
        self._whole = text = spoken(message)
        calls = any("toolUse" in block for block in message["content"])
        streamed, due = "".join(self._text), list[Narrated]()
        # A hook or a guardrail has changed the message: what was told does not count.
        if not text.startswith(streamed):
            due, streamed = self._drop(), ""
        if not self._reasoning:
            due += self._think(reasoned(message))
        due += self._speak(text[len(streamed) :])
        if self._open:
            due.append(MessageClosed(self._number, text, "".join(self._reasoning), calls))
        self._clear()
        return due

    def _end(self, result: AgentResult) -> list[Narrated]:
        due: list[Narrated] = []
        if result.message is not None and result.stop_reason != "interrupt" and spoken(result.message) != self._whole:
            due = self._close(result.message)
        due += self._drop()
        self._over = True
        return [*due, TurnDone(result, usage_of(result))]


def _whole_characters(text: str) -> tuple[str, str]:
    """The text as messages have it, with surrogate pairs joined; and a first half at its end, which waits."""
    half = text[-1] if text and "\ud800" <= text[-1] <= "\udbff" else ""
    whole = text.removesuffix(half)
    # By UTF-16, in which the two halves are one character.
    return whole.encode("utf-16", "surrogatepass").decode("utf-16", "replace"), half


def spoken(message: Message) -> str:
    """The text of a message, as its pieces come in a stream."""
    return "".join(texts_in(message))


def reasoned(message: Message) -> str:
    """The readable reasoning in a message."""
    found: list[str] = []
    for block in message["content"]:
        match block.get("reasoningContent"):
            case {"reasoningText": {"text": str(text)}}:
                found.append(text)
            case _:
                pass
    return "".join(found)


def answer_text(result: AgentResult) -> str:
    """The text of the answer; empty when there is none, also while a person is asked."""
    return "" if result.message is None or result.stop_reason == "interrupt" else spoken(result.message)


def usage_of(result: AgentResult) -> Usage:
    """The tokens of the turn. Of a turn that was answered before, those of its answer alone."""
    if result.metrics.steps:
        return result.metrics.usage
    usage = None if result.message is None else result.message.get("metadata", {}).get("usage")
    return usage or no_usage()
