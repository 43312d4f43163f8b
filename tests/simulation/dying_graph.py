"""A process that runs a graph, kills itself at an event, and writes down what its tools did."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

import anyio

from repertory import Agent, Graph, GraphBuilder, ScriptedModel, SQLiteSessionManager, Swarm, ToolContext, tool


def worker(folder: Path, name: str, handing: str | None = None) -> Agent:
    """Does one thing that can be seen from outside, and says so."""

    @tool(name="work")
    async def work(tool_context: ToolContext) -> str:
        """Do it."""
        with (folder / "effects").open("a") as file:
            file.write(f"{name} {tool_context.idempotency_key}\n")
            file.flush()
            os.fsync(file.fileno())
        return "done"

    def reply(messages: Sequence[Any], *_: object) -> Any:
        steps = sum(any("toolUse" in block for block in message["content"]) for message in messages)
        if steps == 0:
            return {"toolUse": {"name": "work", "input": {}}}
        if steps == 1 and handing is not None:
            return {"toolUse": {"name": "handoff_to_agent", "input": {"agent_name": handing, "message": "yours"}}}
        return f"{name} has worked"

    model = ScriptedModel([reply], loop=True)
    return Agent(model, tools=[work], name=name, callback_handler=None, unknown_tool_outcome="retry")


def graph(folder: Path) -> Graph:
    """Two ways, one of them a swarm, that meet."""
    builder = GraphBuilder().set_session_manager(SQLiteSessionManager("s", folder / "sessions.db"))
    for name in ("root", "left", "end"):
        builder.add_node(worker(folder, name), name)
    builder.add_node(Swarm([worker(folder, "a", "b"), worker(folder, "b")], id="team"), "team")
    for source, target in (("root", "left"), ("root", "team"), ("left", "end"), ("team", "end")):
        builder.add_edge(source, target)
    return builder.build()


async def main(folder: Path, dies_at: int) -> None:
    async with aclosing(graph(folder).stream_async("Build the shed", idempotency_token="shed")) as events:
        count = 0
        async for event in events:
            count += 1
            if count == dies_at:
                os.kill(os.getpid(), signal.SIGKILL)
            if "result" in event:
                result: Any = event["result"]
                print(result.status.value, result.run, sorted(str(result).splitlines()))


if __name__ == "__main__":
    anyio.run(main, Path(sys.argv[1]), int(sys.argv[2]), backend=sys.argv[3])
