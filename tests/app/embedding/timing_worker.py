"""Sets a timer, says so, and waits to be killed. Arguments: the database, and when the timer is due."""

from __future__ import annotations

import sys

import anyio

from repertory import AgentSpec, Runtime, ScriptedModel, SQLiteSessions


async def main() -> None:
    async with Runtime(sessions=SQLiteSessions(sys.argv[1])) as runtime:
        session = runtime.agent(AgentSpec(name="clerk", model=ScriptedModel([]))).session("s")
        await runtime.schedule(session, "timed", at=float(sys.argv[2]), id="t")
        print("set", flush=True)
        await anyio.sleep_forever()


anyio.run(main)
