"""Begins a turn, says so, and waits to be killed. Argument: the database."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from typing import Any

import anyio

from repertory import AgentSpec, Model, Runtime, Sessions, SQLiteSessions


class Silent(Model):
    """Says when it is asked and the prompt is stored, and never answers."""

    async def stream(self, *_: Any, **__: Any) -> AsyncIterator[Any]:
        sessions = Sessions(SQLiteSessions(sys.argv[1]))
        while not await sessions.owed():  # noqa: ASYNC110 - it is stored by another actor
            await anyio.sleep(0.01)
        print("asked", flush=True)
        await anyio.sleep_forever()
        yield {}


async def main() -> None:
    async with Runtime(sessions=SQLiteSessions(sys.argv[1])) as runtime:
        await runtime.agent(AgentSpec(name="clerk", model=Silent())).session("s").invoke("hello")


anyio.run(main)
