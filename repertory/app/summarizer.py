"""Writing the summaries that a conversation manager wants: by a model, or by an agent of the user's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from repertory.actors.model_call import Request, call_until_answered
from repertory.core.answer import LIMITED
from repertory.core.messages import text_of
from repertory.core.window.summary import BLOCK_CHARS_MAX
from repertory.errors import ContextWindowOverflowException, ModelFailed

if TYPE_CHECKING:
    from repertory.actors.agent_parts import AgentParts
    from repertory.core.messages import Message
    from repertory.core.window.summary import SummaryRequest


class Summarizer:
    """Writes the summaries of one agent's conversation, with its `aux_model` or else its model.

    They count towards the budgets that count where they are asked for, as used by `agent_id/summary`.
    """

    def __init__(self, parts: AgentParts, agent_id: str) -> None:
        self._parts = parts
        self._who = f"{agent_id}/summary"

    async def write(self, request: SummaryRequest) -> str:
        """The summary. What is too long for the model's window is shortened and tried again.

        Errors: what the model or the agent raises; `ContextWindowOverflowException` when even the shortest is too long;
        `LimitReached` when a budget is used up.
        """
        *longer, shortest = BLOCK_CHARS_MAX
        for chars_max in longer:
            try:
                return await self._ask(request, chars_max)
            except ContextWindowOverflowException:
                continue
        return await self._ask(request, shortest)

    async def _ask(self, request: SummaryRequest, chars_max: int) -> str:
        prompt = request.prompt(chars_max)
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
