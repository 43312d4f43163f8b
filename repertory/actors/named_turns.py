"""The turns that callers have named with idempotency tokens: what was answered, and which one is still open.

Not an actor: it belongs to the agent actor. The journal remembers the same, so a restart changes nothing.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from repertory.core.journal.turn_tokens import FINISHED_TURNS_MAX, is_answer
from repertory.core.messages import text_of
from repertory.core.prompt import Answers, Said
from repertory.core.result import AgentResult
from repertory.core.turn import is_whole
from repertory.errors import Invalid

if TYPE_CHECKING:
    from repertory.actors.call import Invocation
    from repertory.core.journal.image import Image
    from repertory.core.messages import Message


class NamedTurns:
    """The latest ones of one agent."""

    def __init__(self, image: Image) -> None:
        """As the journal says at rest."""
        self._open = image.token[0] if image.token is not None and not _is_answered(image.last_message) else None
        """The token of the turn that the journal ends in the middle of."""
        self._results = {
            token: AgentResult(stop_reason="end_turn", message=turn.answer)
            for token, turn in image.finished_turns.items()
            if is_whole(turn.answer) and token != self._open
        }
        """By token, the latest last."""

    def answered_before(self, invocation: Invocation) -> AgentResult | None:
        """The result of the turn that had the same token, if it is known."""
        token = invocation.idempotency_token
        if token is None:
            return None
        result = self._results.get(token)
        if result is None:
            return None
        if result.structured_output is None and invocation.form is not None and result.message is not None:
            with suppress(Invalid):  # It was answered before a restart, or when nobody wanted a form filled in.
                filled, _ = invocation.form.read(text_of(result.message))
                result = replace(result, structured_output=filled)
        return replace(result, replayed=True)

    def token_of(self, token: str | None, prompt: Said | Answers) -> str | None:
        """The name of the turn that a call goes on with: answers, and calls that say nothing, belong to the turn that
        stands open.
        """
        goes_on = isinstance(prompt, Answers) or not prompt.messages
        return self._open if token is None and goes_on else token

    def going_on(self, token: str | None, prompt: Said | Answers, last: Message | None) -> Said | Answers:
        """What a call says: nothing, when a crash cut its turn short, since its prompt is stored already. `last` is the
        last message of the conversation.
        """
        if self._open is None or token != self._open or last is None or is_answer(last) or isinstance(prompt, Answers):
            return prompt
        return Said(messages=())

    def note_end(self, token: str | None, last: Message | None) -> None:
        """A turn is over. One that ended without its answer is still open, as the journal sees it; one that has it is
        answered, even if the caller was told of an error, such as that it could not be stored in time.
        """
        self._open = None if _is_answered(last) else token
        if token is not None:
            self._results.pop(token, None)
            if last is not None:
                self.remember(token, AgentResult(stop_reason="end_turn", message=last), last)

    def remember(self, token: str | None, result: AgentResult, last: Message | None) -> None:
        """Keep what was answered under a token, as the journal does: the latest ones."""
        if token is None or token == self._open or not _is_answered(last):
            return
        self._results[token] = result
        if len(self._results) > FINISHED_TURNS_MAX:
            del self._results[next(iter(self._results))]


def _is_answered(last: Message | None) -> bool:
    """Whether the turn that this message ended has its answer."""
    return last is not None and is_answer(last) and is_whole(last)
