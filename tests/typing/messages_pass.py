"""Messages, prompts and models of a program, as type checkers see them: `mypy --strict` accepts this file."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any, assert_type

from repertory import (
    Agent,
    AgentInput,
    ContentBlock,
    EdgeCondition,
    GraphState,
    InterruptResponseContent,
    Message,
    Messages,
    Model,
    StreamEvent,
    SystemContentBlock,
    ToolResult,
    ToolSpec,
    ToolUse,
    Usage,
)


class Echo(Model):
    async def stream(
        self,
        messages: Sequence[Message],
        tool_specs: Sequence[ToolSpec] | None = None,
        system_prompt: str | None = None,
        **options: Any,
    ) -> AsyncIterator[StreamEvent]:
        usage: Usage = {"inputTokens": 1, "outputTokens": 1, "totalTokens": 2}
        yield {"messageStart": {"role": "assistant"}}
        yield {"contentBlockDelta": {"contentBlockIndex": 0, "delta": {"text": str(messages[-1]["content"])}}}
        yield {"contentBlockStop": {"contentBlockIndex": 0}}
        yield {"messageStop": {"stopReason": "end_turn"}}
        yield {"metadata": {"usage": usage, "metrics": {"latencyMs": 3}}}


async def prompts(agent: Agent) -> None:
    block: ContentBlock = {"text": "hi"}
    answer: InterruptResponseContent = {"interruptResponse": {"interruptId": "i", "response": True}}
    conversation: Messages = [{"role": "user", "content": [block]}]
    every: list[AgentInput] = ["hi", [block], conversation, [answer], None]
    for prompt in every:
        await agent.invoke_async(prompt)
    assert_type(agent.messages, list[Message])


def tools(use: ToolUse) -> ToolResult:
    return {"toolUseId": use["toolUseId"], "status": "success", "content": [{"text": "done"}]}


def for_guests(state: GraphState, *, invocation_state: dict[str, Any]) -> bool:
    return bool(invocation_state["guest"])


said: list[SystemContentBlock] = [{"text": "Be brief."}, {"cachePoint": {"type": "default"}}]
condition: EdgeCondition = for_guests
agent = Agent(Echo(), system_prompt=said)
