"""An agent with tools of every form."""

from collections.abc import AsyncIterator
from pathlib import Path

from repertory import Agent, MCPClient, ScriptedModel, Tool, ToolContext, ToolResult, ToolSpec, ToolUse, tool


@tool
def add(a: int, b: int = 0) -> int:
    """Add two numbers."""
    return a + b


@tool(effects=False, timeout_s=2.0)
async def count(to: int) -> AsyncIterator[int]:
    """Count."""
    for number in range(to):
        yield number


class Shop:
    def __init__(self, prices: dict[str, float]) -> None:
        self.prices = prices

    @tool(effects=False)
    def price(self, item: str) -> float:
        """Look up a price."""
        return self.prices[item]


class Clock(Tool):
    @property
    def name(self) -> str:
        return "clock"

    @property
    def spec(self) -> ToolSpec:
        return {"name": "clock", "description": "The time.", "inputSchema": {"json": {"type": "object"}}}

    async def run(self, tool_use: ToolUse, context: ToolContext) -> ToolResult:
        return {"toolUseId": tool_use["toolUseId"], "status": "success", "content": [{"text": "noon"}]}


def build(servers: list[MCPClient], files: list[Path]) -> Agent:
    helper = Agent(ScriptedModel(["I helped."]), name="helper")
    basic = [add, count]
    tools = [*basic, Shop({"loaf": 4.2}).price, helper, helper.as_tool(name="aid"), *servers]
    return Agent(ScriptedModel(["Ready."]), tools=[*tools, *files, Clock()])


def main() -> None:
    agent = build([], [])
    print(agent.tool_names, agent.tool.add(a=1, b=2)["status"], add(1, b=2) + 1)
    print(Agent(ScriptedModel(["Bye."]), tools=(add, [count]))("Bye."))


if __name__ == "__main__":
    main()
