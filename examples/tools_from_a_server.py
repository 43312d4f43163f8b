"""An agent uses the tools of an MCP server, which dies in a turn and is restarted. Needs no network and no account.

This file is both programs: `serve` as argument runs the server; without it, the agent runs and starts the server.
"""

from __future__ import annotations

import os
import sys

import anyio

from repertory import Agent, MCPClient, ScriptedModel


def serve() -> None:
    """Offer two tools over the pipes of this process."""
    from mcp.server.mcpserver import MCPServer
    from mcp_types import ToolAnnotations

    server = MCPServer("counter", log_level="CRITICAL")

    @server.tool(annotations=ToolAnnotations(read_only_hint=True))
    def count(text: str) -> int:
        """Count the words of a text."""
        return len(text.split())

    @server.tool()
    def explode() -> str:
        """End the server."""
        os._exit(1)

    server.run()


async def main() -> None:
    """Run one turn in which the server dies, and more until it is back."""
    counting = {"toolUse": {"name": "count", "input": {"text": "to be or not to be"}}}
    exploding = {"toolUse": {"name": "explode", "input": {}}}

    def answer(messages: list[dict[str, object]], *_: object) -> object:
        said = str(messages[-1]["content"])
        return f"The tool said: {said}" if "toolResult" in said else counting

    client = MCPClient.stdio(sys.executable, [__file__, "serve"], name="counter")
    model = ScriptedModel([exploding, answer, answer], loop=True)
    async with Agent(model=model, tools=[client]) as agent:
        print(await agent.invoke_async("Do something reckless."))
        for _ in range(100):
            said = str(await agent.invoke_async("Count!"))
            if "success" in said:
                break
            await anyio.sleep(0.1)
        print(said)


if __name__ == "__main__":
    if sys.argv[1:] == ["serve"]:
        serve()
    else:
        anyio.run(main)
