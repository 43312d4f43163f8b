"""The answers of turns with idempotency tokens, for callers who ask again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import anyio

from repertory.core.journal.fold import FINISHED_TURNS_MAX, is_answer
from repertory.core.messages import text_of
from repertory.core.result import AgentResult
from repertory.core.turn import is_whole
from repertory.errors import Invalid, RepertoryError, Unavailable

if TYPE_CHECKING:
    from repertory.actors.call import Invocation, ReplyChannel, StreamChannel
    from repertory.actors.journal import ActorJournal
    from repertory.core.journal.image import Image
    from repertory.core.messages import Message


class NamedTurns:
    """The answers of the latest turns of one agent by idempotency token."""

    __slots__ = ("_results",)

    def __init__(self, image: Image) -> None:
        open_tokens = () if is_answered(image.last_message) else image.tokens
        self._results = {
            token: turn.answer_seq if turn.answer_seq != image.last_message_seq else _answered_with(image.last_message)
            for token, turn in image.finished_turns.items()
            if token not in open_tokens
        }
        """By token, the newest last. A number is the message of an answer that has not been read yet."""

    @property
    def known(self) -> bool:
        """Whether the result of any turn is known by its token."""
        return bool(self._results)

    def has(self, token: str | None) -> bool:
        """True if the turn with this token has its answer."""
        return token in self._results

    def unread(self, token: str) -> int | None:
        """The message of this token's answer, if it must be read first (`note_read`)."""
        result = self._results.get(token)
        return result if isinstance(result, int) else None

    def note_read(self, token: str, answer: Message) -> None:
        self._results[token] = _answered_with(answer)

    def answered_before(self, invocation: Invocation) -> AgentResult | None:
        """The result of the turn with the same token, if it is known and read."""
        token = invocation.idempotency_token
        if token is None:
            return None
        result = self._results.get(token)
        if result is None or isinstance(result, int):
            return None
        if result.structured_output is None and invocation.output_schema is not None and result.message is not None:
            with suppress(Invalid):  # The turn ended before a restart, or its caller gave no output schema.
                filled, _ = invocation.output_schema.read(text_of(result.message))
                result = replace(result, structured_output=filled)
        return replace(result, replayed=True)

    async def answered(self, invocation: Invocation, journal: ActorJournal) -> AgentResult | None:
        """The result of the turn with the same token, if it has its answer, which is read if need be. Errors: those of
        `ActorJournal.answer_at`.
        """
        token = invocation.idempotency_token
        unread = None if token is None else self.unread(token)
        if token is not None and unread is not None:
            self.note_read(token, await journal.answer_at(unread))
        return self.answered_before(invocation)

    async def answer_of(self, invocation: Invocation, *, journal: ActorJournal) -> AgentResult:
        """The same of a turn that has its answer."""
        known = await self.answered(invocation, journal)
        if known is None:
            raise Unavailable("the conversation has gone on elsewhere: call again")
        return known

    def note_end(self, tokens: Collection[str], last: Message | None) -> None:
        """Note that the turn of these tokens has ended. With its answer in the journal it is answered, even if its
        caller got an error, for example because the answer could not be stored in time.
        """
        for token in tokens:
            self._results.pop(token, None)
            if last is not None:
                self.remember(token, _answered_with(last), last)

    def remember(self, token: str | None, result: AgentResult, last: Message | None) -> None:
        """Keep a token's result. As in the journal, only the latest `FINISHED_TURNS_MAX` are kept."""
        if token is None or not is_answered(last):
            return
        self._results[token] = result
        if len(self._results) > FINISHED_TURNS_MAX:
            del self._results[next(iter(self._results))]


async def answer_again(
    channel: ReplyChannel | StreamChannel,
    answer: Callable[[Invocation], Awaitable[AgentResult]],
    invocation: Invocation,
    time_up: RepertoryError,
) -> None:
    """Read an answer and give it to its caller, who gets `time_up` when its deadline passes before that."""
    failed, result = time_up, None
    with anyio.CancelScope(deadline=invocation.deadline):
        try:
            result = await answer(invocation)
        except RepertoryError as error:
            failed = error
    if result is None:
        channel.fail(failed)
    else:
        await channel.succeed(result)


def _answered_with(answer: Message | None) -> AgentResult:
    return AgentResult(stop_reason="end_turn", message=answer)


def is_answered(last: Message | None) -> bool:
    """Whether the last message of a conversation is the whole answer of a turn."""
    return last is not None and is_answer(last) and is_whole(last)
