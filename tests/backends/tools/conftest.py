"""Running a tool as an agent would, without an agent."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from repertory.backends.ports import Tool, ToolContext
from repertory.backends.tools.function_tool import schema_class
from repertory.core.messages import Json, ToolResult, ToolUse
from repertory.core.state import AgentState

schema_class()  # loaded here, since loading takes a thread, which tests on virtual time cannot wait for

RunTool = Callable[[Tool, Json], Awaitable[ToolResult]]


@pytest.fixture
def tool_context() -> ToolContext:
    use: ToolUse = {"toolUseId": "use-1", "name": "any", "input": {}}
    state = AgentState({"colour": "green"})
    return ToolContext(tool_use=use, agent_id="a", state=state, idempotency_key="key-1", agent="the agent")


@pytest.fixture
def run_tool(tool_context: ToolContext) -> RunTool:
    async def run(tool: Tool, value: Json) -> ToolResult:
        return await tool.run({"toolUseId": "use-1", "name": tool.name, "input": value}, tool_context)

    return run
