"""Writing the summaries that a conversation manager wants: by a model, or by an agent of the user's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from repertory.actors.model_call import Request, call_until_answered
from repertory.core.answer import LIMITED
from repertory.core.messages import text_of
from repertory.core.window.summary import BLOCK_CHARS_MAX, REQUESTS_MAX, halves, is_summary, summarised
from repertory.errors import ContextWindowOverflowException, ModelFailed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from repertory.actors.agent_parts import AgentParts
    from repertory.core.messages import Message
    from repertory.core.window.summary import SummaryRequest


@dataclass(slots=True)
class _Asked:
    """How often a model was asked for one summary."""

    often: int = 0


class Summarizer:
    """Writes the summaries of one agent's conversation, with its `aux_model` or else its model.

    They count towards the budgets that count where they are asked for, as used by `agent_id/summary`.
    """

    def __init__(self, parts: AgentParts, agent_id: str) -> None:
        self._parts = parts
        self._who = f"{agent_id}/summary"

    async def write(self, request: SummaryRequest) -> str:
        """The summary. What is too long for the model's window is shortened and tried again; what is too long even so
        is summarised in halves, and these in halves, and the summaries are summarised. At most `REQUESTS_MAX` requests.

        Errors: what the model or the agent raises; `ContextWindowOverflowException` when even the smallest pieces are
        too long, or there are too many; `LimitReached` when a budget is used up.
        """
        return await self._write(request, request.said, BLOCK_CHARS_MAX, _Asked())

    async def _write(
        self, request: SummaryRequest, said: Sequence[Message], lengths: Sequence[int], asked: _Asked
    ) -> str:
        """The summary of these, their blocks cut to each of the lengths in turn until that fits."""
        refused: ContextWindowOverflowException | None = None
        for chars_max in lengths:
            if asked.often >= REQUESTS_MAX:
                raise ContextWindowOverflowException("too long to be summarised", messages=len(request.messages))
            asked.often += 1
            try:
                return await self._ask(request, said, chars_max)
            except ContextWindowOverflowException as error:
                refused = error
        first, second = halves(said)
        if refused is not None and (not first or not second or all(map(is_summary, said))):
            raise refused
        parts = [summarised(await self._write(request, part, lengths[-1:], asked), part) for part in (first, second)]
        return await self._write(request, parts, BLOCK_CHARS_MAX, asked)

    async def _ask(self, request: SummaryRequest, said: Sequence[Message], chars_max: int) -> str:
        prompt = request.prompt(chars_max, said)
        if request.agent is not None:
            return await _ask_agent(request.agent, prompt)
        return await self._ask_model(prompt, request.system_prompt)

    async def _ask_model(self, prompt: str, system_prompt: str) -> str:
        messages: list[Message] = [{"role": "user", "content": [{"text": prompt}]}]
        question = Request(messages=messages, tool_specs=(), system_prompt=system_prompt)
        model = self._parts.aux_model or self._parts.model
        answer = await call_until_answered(model, question, self._parts.retry, self._who)
        if answer.stop_reason in LIMITED:
            raise ModelFailed("the summary was cut off by a token limit", stop_reason=answer.stop_reason)
        return text_of(answer.message)


async def _ask_agent(agent: Any, prompt: str) -> str:
    """A copy is asked, so that summaries are no part of its own conversation, and nothing is printed."""
    if hasattr(agent, "fresh_copy"):
        agent = agent.fresh_copy()
        agent.callback_handler = None
    return str(await agent.invoke_async(prompt))
