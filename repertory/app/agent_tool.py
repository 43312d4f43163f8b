"""An agent as a tool of another agent."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from typing import TYPE_CHECKING, Protocol, cast

from repertory.core.messages import ToolResult, ToolSpec, ToolUse, error_result
from repertory.errors import Invalid, RepertoryError

if TYPE_CHECKING:
    from repertory.backends.ports import ToolContext
    from repertory.core.events import TurnEvent

_UNFIT = re.compile(r"[^a-zA-Z0-9_-]+")


class Answering(Protocol):
    """What an `Agent` has that makes it a tool."""

    name: str
    description: str | None

    def fresh_copy(self) -> Answering:
        """One like it as it was built."""
        ...

    def stream_async(self, prompt: str) -> AsyncGenerator[TurnEvent]:
        """Run a turn."""
        ...


class AgentTool:
    """Asks an agent what the model says in `input`, and gives its answer as the result.

    Without `preserve_context` each call begins with the messages and the state that the agent was built with, and
    leaves no trace in it. With it the agent remembers, in its own session if it has one.
    """

    effects = True
    idempotent = False
    timeout_s = None

    def __init__(self, agent: Answering, *, name: str | None, description: str | None, preserve_context: bool) -> None:
        self._agent = agent
        self._preserve_context = preserve_context
        self.name = _UNFIT.sub("_", name or agent.name).strip("_")[:64]
        if not self.name:
            raise Invalid("an agent that is a tool needs a name", got=name or agent.name)
        about = description or agent.description or f"Asks the agent {agent.name}."
        self.spec: ToolSpec = {
            "name": self.name,
            "description": about,
            "inputSchema": {
                "json": {
                    "type": "object",
                    "properties": {"input": {"type": "string", "description": "What to ask the agent."}},
                    "required": ["input"],
                }
            },
        }

    async def run(self, tool_use: ToolUse, context: ToolContext) -> ToolResult:
        """Run a turn of the agent. Its failures are results with status `error`; cancellation cancels its turn."""
        use_id, given = tool_use["toolUseId"], tool_use["input"]
        prompt = cast("dict[str, object]", given).get("input") if isinstance(given, dict) else None
        if not isinstance(prompt, str) or not prompt.strip():
            return error_result(use_id, 'The input must be an object like {"input": "what to ask"}.')
        agent = self._agent if self._preserve_context else self._agent.fresh_copy()
        try:
            async with aclosing(agent.stream_async(prompt)) as events:
                async for event in events:
                    if context.on_partial is not None:
                        await context.on_partial(event)
                    if "result" in event:
                        text = str(event["result"])
                        return {"toolUseId": use_id, "status": "success", "content": [{"text": text}]}
        except RepertoryError as error:
            if context.on_exception is not None:
                context.on_exception(error)
            return error_result(use_id, f"Error: {type(error).__name__} - {error}")
        return error_result(use_id, "The agent gave no answer.")


def as_tools(tools: Iterable[object]) -> list[object]:
    """The tools, lists among them opened, agents among them made tools."""
    found: list[object] = []
    for one in tools:
        if isinstance(one, list | tuple):
            found.extend(as_tools(cast("Iterable[object]", one)))
        else:
            as_tool = getattr(one, "as_tool", None)
            found.append(as_tool() if callable(as_tool) else one)
    return found
