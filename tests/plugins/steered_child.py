"""A process that is killed in a turn into which a call was steered, when the model has been shown what it said.

python -m tests.plugins.steered_child asyncio|trio DATABASE [token of the turn]
"""

from __future__ import annotations

import os
import signal
import sys
from functools import partial
from typing import Any

import anyio

from repertory import AgentSpec, Runtime, ScriptedModel, SQLiteSessions, tool


def session_in(runtime: Runtime, *replies: Any, entered: anyio.Event | None = None) -> Any:
    """The session, whose model says this."""

    @tool
    async def work() -> str:
        """Work for a moment."""
        if entered is not None:
            entered.set()
        await anyio.sleep(0.1)
        return "done"

    @tool(effects=True)
    async def die() -> str:
        """Have the process killed."""
        os.kill(os.getpid(), signal.SIGKILL)
        return "never"

    spec = AgentSpec(model=ScriptedModel([*replies]), tools=[work, die], unknown_tool_outcome="fail")
    return runtime.agent(spec).session("s")


def asks_for(name: str) -> dict[str, Any]:
    return {"toolUse": {"name": name, "input": {}}}


async def _main(path: str, token: str | None) -> None:
    entered = anyio.Event()
    async with Runtime(sessions=SQLiteSessions(path)) as runtime:
        session = session_in(runtime, asks_for("work"), asks_for("die"), entered=entered)
        async with anyio.create_task_group() as group:
            group.start_soon(partial(session.invoke, "A", idempotency_token=token))
            await entered.wait()
            group.start_soon(partial(session.invoke, "B", idempotency_token="B", busy="steer"))


if __name__ == "__main__":
    anyio.run(_main, sys.argv[2], sys.argv[3] if len(sys.argv) > 3 else None, backend=sys.argv[1])
