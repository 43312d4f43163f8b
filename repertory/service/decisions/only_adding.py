"""A narration for clients from whom no word can be taken back: `chat/completions`, and the items of `responses`.

The model may break off and be asked again, a guardrail or a hook may replace a whole message, a cancelled turn may end
inside of one. Then the client has words that do not count. Its message stays open: if the next one says the same words
again, only what follows them is new. If it differs, the narration ends with `TakenBack`, so that the protocol tells an
error, and nothing that a client has put together is taken for the answer. Words are never held back before that.

Reasoning is no part of the answer. A void message of which nothing but reasoning was sent ends as `MessageVoid`, and
the next one begins anew.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct

from repertory.service.decisions.narration import (
    MessageBegun,
    MessageClosed,
    MessageVoid,
    Narrated,
    ReasoningPiece,
    TextPiece,
    ToolBegan,
    TurnDone,
)
from repertory.service.decisions.openai_fields import is_filtered

TakenBackReason = Literal["again", "replaced", "filtered", "cancelled"]

REASON_TEXTS: dict[TakenBackReason, str] = {
    "again": "the model was asked again, and its new answer does not begin with the words that were sent",
    "replaced": "the answer was replaced after it was sent",
    "filtered": "a filter took the answer back after it was sent",
    "cancelled": "the turn was cancelled before its answer was whole",
}
REASON_CODES: dict[TakenBackReason, str] = {
    "again": "answer_begun_again",
    "replaced": "answer_replaced",
    "filtered": "content_filter",
    "cancelled": "cancelled",
}


class TakenBack(Struct, frozen=True):
    """The client has words that do not count. Nothing follows."""

    reason: TakenBackReason
    ended: TurnDone | None = None
    """The end of the turn; None while the turn goes on."""


Added: TypeAlias = Narrated | TakenBack


class _Part(Struct):
    """Words of one kind that follow each other."""

    reasoning: bool
    pieces: list[str]

    @property
    def words(self) -> tuple[bool, str]:
        return self.reasoning, "".join(self.pieces)


class OnlyAdding:
    """A fold of a narration into one that only adds. `reasoning`: the client is sent reasoning as well."""

    def __init__(self, *, reasoning: bool) -> None:
        self._reasoning = reasoning
        self._open = False
        """True while the client has a message that has no end yet."""
        self._sent: list[_Part] = []
        """The words that the client has of that message."""
        self._text: list[str] | None = None
        """The pieces of its last part, while nothing stands in the way of more text."""
        self._unsaid: list[tuple[bool, str]] = []
        """The words, by kind, that the client has, that are void, and that the new message has not said again."""
        self._at = 0
        """The number of characters of the first of those that the new message has said again."""
        self._again = self._lost = self._over = False

    def tell(self, event: Narrated) -> Added | None:
        """The event that the client is told of now; None for none, as after the end."""
        if self._text is not None and type(event) is TextPiece:
            self._text.append(event.text)
            return event
        self._text = None
        return None if self._over else self._tell(event)

    def _tell(self, event: Narrated) -> Added | None:
        match event:
            case TextPiece(number, text):
                rest = self._rest(text, reasoning=False)
                return TextPiece(number, rest) if rest else self._broken()
            case ReasoningPiece(number, text) if self._reasoning:
                rest = self._rest(text, reasoning=True)
                return ReasoningPiece(number, rest) if rest else self._broken()
            case MessageBegun():
                return self._begin(event)
            case MessageClosed():
                return self._close(event)
            case MessageVoid(_, again):
                return self._void(event, again=again)
            case ToolBegan() if self._lost:
                return self._end(None)
            case TurnDone():
                self._over = True
                return self._end(event) if self._lost or self._unsaid else event
            case _:
                return event

    def _begin(self, event: MessageBegun) -> Added | None:
        if self._lost:
            return self._end(None)
        begun, self._open = self._open, True
        return None if begun else event

    def _close(self, event: MessageClosed) -> Added | None:
        self._lost = self._lost or bool(self._unsaid)
        if self._lost:
            return self._broken()
        self._open, self._sent = False, []
        return event

    def _void(self, event: MessageVoid, *, again: bool) -> Added | None:
        if self._lost:
            return None
        if all(part.reasoning for part in self._sent):
            self._open, self._sent = False, []
            return event
        self._again, self._unsaid, self._at = again, [part.words for part in self._sent], 0
        return None

    def _rest(self, text: str, *, reasoning: bool) -> str:
        """The words that the client does not have yet; empty if it has all, and if they differ."""
        if self._lost:
            return ""
        while self._unsaid and text:
            kind, words = self._unsaid[0]
            same = min(len(text), len(words) - self._at)
            if kind is not reasoning or not words.startswith(text[:same], self._at):
                self._lost = True
                return ""
            text, self._at = text[same:], self._at + same
            if self._at == len(words):
                del self._unsaid[0]
                self._at = 0
        if text:
            if not self._sent or self._sent[-1].reasoning is not reasoning:
                self._sent.append(_Part(reasoning, []))
            self._sent[-1].pieces.append(text)
            self._text = None if reasoning else self._sent[-1].pieces
        return text

    def _broken(self) -> Added | None:
        """The break, if the model is asked again: the client learns it at the first word that differs. After a message
        that was replaced, the end of the turn says more.
        """
        return self._end(None) if self._lost and self._again else None

    def _end(self, ended: TurnDone | None) -> Added:
        self._over = True
        stop_reason = "" if ended is None else ended.result.stop_reason
        reason: TakenBackReason = "again" if self._again else "replaced"
        reason = "filtered" if is_filtered(stop_reason) else "cancelled" if stop_reason == "cancelled" else reason
        return TakenBack(reason, ended)
