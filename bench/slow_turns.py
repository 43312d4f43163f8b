"""A process that takes turns of several sessions at the same time, in a runtime on SQLite, whose model takes its time.

Arguments: a folder, the number of sessions, the turns of each, and the milliseconds of the model.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio

from repertory import AgentSpec, Runtime, ScriptedModel, SQLiteSessions


class Slow(ScriptedModel):
    """Answers behind a pause."""

    def __init__(self, pause_s: float) -> None:
        super().__init__(["ok"], loop=True)
        self._pause_s = pause_s

    async def stream(self, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        await anyio.sleep(self._pause_s)
        async for event in super().stream(*args, **kwargs):
            yield event


async def main(folder: Path, sessions: int, turns: int, model_s: float) -> None:
    async with Runtime(sessions=SQLiteSessions(folder / "sessions.db")) as runtime:
        agent = runtime.agent(AgentSpec(model=Slow(model_s)))

        async def talk(name: str) -> None:
            for _ in range(turns):
                await agent.session(name).invoke("hello")

        async with anyio.create_task_group() as group:
            for number in range(sessions):
                group.start_soon(talk, f"s{number}")


if __name__ == "__main__":
    anyio.run(main, Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]) / 1000)
