"""The turns that callers have named with idempotency tokens, as a journal knows them: the running one, those that were
answered, and those without an answer behind which another one began.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from repertory.core.journal.image import FinishedTurn, Image, UnansweredTurn, UnsettledTool
from repertory.core.messages import Message, is_filler, tool_uses
from repertory.core.turn import is_whole

if TYPE_CHECKING:
    from repertory.core.journal.records import MessageAdded, ToolStarted

FINISHED_TURNS_MAX = 64
"""How many answered idempotency tokens are remembered, at most; and as many that have no answer."""
UNANSWERED_ROWS = 256
"""For how many records a named turn without an answer is surely remembered, behind which another one began."""


class TurnTokens:
    """Changed record by record, by the fold alone."""

    def __init__(self, image: Image) -> None:
        """As of an image."""
        self.current = image.token
        """The token of the running turn, or of the last one, and the sequence number of the message that carried it."""
        self.finished = dict(image.finished_turns)
        self.unanswered = dict(image.unanswered)

    def left_behind(self, token: str, last: Message | None) -> UnansweredTurn | None:
        """The turn of that name, when it has no answer and nothing goes on with it by itself. `last`: the last message
        of the conversation.
        """
        if self.current is not None and self.current[0] == token and last is not None and is_answer(last):
            return None if is_whole(last) else UnansweredTurn(token=token, seq=self.current[1])
        return self.unanswered.get(token)

    def needed(self, last_seq: int, first: int, *, running: bool) -> int:
        """The first record that folding needs, which is `first` for everything else. Whoever goes on with an unanswered
        turn must know under which name; a running one may have an answer within, behind which a form is asked for.
        """
        if self.current is not None and self.current[1] < first:
            token, seq = self.current
            answered = self.finished.get(token)
            if running or answered is None or answered.seq != seq:
                first = seq
        for turn in self.unanswered.values():
            if last_seq - UNANSWERED_ROWS <= turn.seq < first:
                first = turn.seq
        return first

    def begin(
        self, seq: int, record: MessageAdded, last: Message | None, open_tools: Mapping[str, ToolStarted]
    ) -> None:
        """A turn begins behind `last`. One that has no answer goes on in it, or is left behind."""
        token, current = record.idempotency_token, None if self.current is None else self.current[0]
        goes_on = _goes_on(last, record.message)
        if token != current if token is not None else not goes_on:
            self.leave(last, {} if goes_on else open_tools)
            self.current = None
        if token is not None:
            self.current = token, seq
            self.unanswered.pop(token, None)

    def leave(self, last: Message | None, open_tools: Mapping[str, ToolStarted]) -> None:
        """Remember the turn that `last` ended, unless it has its answer. `open_tools`: those that started, and of which
        nobody knows how they ended.
        """
        if self.current is None or last is None or (is_answer(last) and is_whole(last)):
            return
        (token, seq), self.current = self.current, None
        uses = {use["toolUseId"]: use for use in tool_uses(last)}
        started = [(uses[use_id], start) for use_id, start in open_tools.items() if use_id in uses]
        self.finished.pop(token, None)
        self._remember(UnansweredTurn(token=token, seq=seq, unknown=tuple(UnsettledTool(*each) for each in started)))

    def answer(self, seq: int, message: Message, turn: int) -> None:
        """The running turn has this answer. A filler is none, nor is what was cut off or refused."""
        if self.current is None or not is_whole(message):
            return
        token, token_seq = self.current
        self.finished.pop(token, None)
        self.finished[token] = FinishedTurn(token=token, turn=turn, seq=token_seq, answer_seq=seq, answer=message)
        if len(self.finished) > FINISHED_TURNS_MAX:
            del self.finished[next(iter(self.finished))]

    def redact(self, target: int, message: Message) -> None:
        """The message at `target` is this one, and has always been. An answer that was lost is none."""
        for token, turn in list(self.finished.items()):
            if turn.answer_seq != target:
                continue
            if is_whole(message):
                self.finished[token] = replace(turn, answer=message)
                continue
            del self.finished[token]
            if self.current is None or self.current[0] != token:
                self._remember(UnansweredTurn(token=token, seq=turn.seq))

    def _remember(self, turn: UnansweredTurn) -> None:
        self.unanswered.pop(turn.token, None)
        self.unanswered[turn.token] = turn
        if len(self.unanswered) > FINISHED_TURNS_MAX:
            del self.unanswered[next(iter(self.unanswered))]


def is_answer(message: Message) -> bool:
    """Whether a message ends a turn: an assistant message that asks for no tool."""
    return message["role"] == "assistant" and not any(tool_uses(message))


def _goes_on(last: Message | None, message: Message) -> bool:
    """Whether the first message of a turn goes on with the one before: it is an answer, or brings results alone."""
    if last is None or is_answer(last) or is_filler(message):
        return False
    return message["role"] == "assistant" or all("toolResult" in block for block in message["content"])
