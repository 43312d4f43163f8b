"""A process with a runtime that does as it is told, line by line: run by `test_yielding_processes.py`. With `bare` as
its last argument it has no runtime: each turn is a call outside any block.

`say SESSION TEXT`: a turn, answered by a line `NAME: TEXT` or the class of the error; `slow SESSION SECONDS`: the same
with a model that takes so many seconds, which says `begun` when it is asked; `drain`: ends.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread

from repertory import (
    Agent,
    AgentSpec,
    FileSessions,
    FileStorage,
    JournalSessions,
    Runtime,
    S3Sessions,
    S3Storage,
    ScriptedModel,
    SQLiteSessions,
    StorePatience,
)
from repertory.app.sessions.sessions import PlacedSession, SessionLocation
from repertory.core.messages import text_of
from repertory.errors import RepertoryError


def place(kind: str, where: str) -> SessionLocation:
    """Sessions of that kind: `where` is a folder, or the URL of a bucket's service, `#` and a prefix."""
    url, _, prefix = where.partition("#")
    match kind:
        case "sqlite":
            return SQLiteSessions(Path(where) / "sessions.db")
        case "journals":
            return JournalSessions(FileStorage(where))
        case "documents":
            return FileSessions(where)
        case "journals in a bucket":
            return JournalSessions(S3Storage("bucket", prefix, endpoint_url=url), lease_s=4.0)
        case _:
            return S3Sessions("bucket", prefix, endpoint_url=url)


class Echo(ScriptedModel):
    """Says what was said; a number takes it so many seconds."""

    async def stream(
        self, messages: Any, tool_specs: Any = None, system_prompt: Any = None, **options: Any
    ) -> AsyncIterator[dict[str, Any]]:
        said = text_of(messages[-1])
        if said.isdecimal():
            print("begun", flush=True)
            await anyio.sleep(int(said))
        async for event in super().stream(messages, tool_specs, system_prompt, **options):
            yield event


async def main(name: str, kind: str, where: str, way: str = "") -> None:
    sessions, patience = place(kind, where), StorePatience(busy_s=4.5 if "#" in where else 1.0)
    model = Echo([lambda messages, *rest: f"{name}: {text_of(messages[-1])}"], loop=True)
    agents: dict[str, Agent] = {}
    async with AsyncExitStack() as stack:
        runtime = None
        if way != "bare":
            runtime = await stack.enter_async_context(Runtime(sessions=sessions, patience=patience))
        group = await stack.enter_async_context(anyio.create_task_group())

        def bare(session_id: str) -> Agent:
            manager = PlacedSession(session_id, sessions)
            return Agent(model, session_manager=manager, callback_handler=None, patience=patience)

        async def say(session_id: str, text: str) -> None:
            try:
                if runtime is not None:
                    print(await runtime.agent(AgentSpec(model=model)).session(session_id).invoke(text), flush=True)
                else:
                    agent = agents.setdefault(session_id, bare(session_id))
                    print(await agent.invoke_async(text), flush=True)
            except RepertoryError as error:
                print(type(error).__name__, flush=True)

        print("ready", flush=True)
        while line := await anyio.to_thread.run_sync(sys.stdin.readline):
            command, *words = line.split()
            match command, words:
                case "say", [session_id, text]:
                    await say(session_id, text)
                case "slow", [session_id, seconds]:
                    group.start_soon(say, session_id, seconds)
                case _:
                    break
        for agent in agents.values():
            await agent.shutdown_async()
        print("drained" if runtime is None or (await runtime.drain()).ok else "not drained", flush=True)


if __name__ == "__main__":
    anyio.run(main, *sys.argv[1:4], *sys.argv[5:], backend=sys.argv[4])
