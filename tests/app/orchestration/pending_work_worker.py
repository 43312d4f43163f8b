"""Begins a turn, or a run, says so, and waits to be killed. Arguments: the place, and `team` for a run."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from typing import Any

import anyio

from repertory import Agent, AgentSpec, Graph, Model, Runtime, Sessions
from repertory.console.session_commands import location_named


class Silent(Model):
    """Says when it is asked and the prompt is stored, and never answers."""

    async def stream(self, *_: Any, **__: Any) -> AsyncIterator[Any]:
        sessions = Sessions(location_named(sys.argv[1]))
        # In folders and buckets pending work is stored before the records.
        while not (await sessions.pending_work() and await sessions.list()):  # noqa: ASYNC110 - by another actor
            await anyio.sleep(0.01)
        print("asked", flush=True)
        await anyio.sleep_forever()
        yield {}


async def main() -> None:
    async with Runtime(sessions=location_named(sys.argv[1])) as runtime:
        if sys.argv[2:] == ["team"]:
            team = runtime.orchestrator("team", lambda _: Graph({"clerk": Agent(Silent(), name="clerk")}, id="team"))
            await team.session("s").invoke("hello")
        await runtime.agent(AgentSpec(name="clerk", model=Silent())).session("s").invoke("hello")


anyio.run(main)
