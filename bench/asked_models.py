"""A process that is killed while the models of many sessions have been asked and none has answered.

Arguments: `sqlite`, `log` or `files`; a folder; the number of sessions; `runtime` or `bare`; and the milliseconds
between the moment in which the last model is asked and the kill.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio

from repertory import (
    Agent,
    AgentSpec,
    FileSessionManager,
    FileSessions,
    FileStorage,
    JournalSessionManager,
    JournalSessions,
    Model,
    Runtime,
    SQLiteSessionManager,
    SQLiteSessions,
)


class NeverAnswers(Model):
    """Has been asked; the last one that is asked has the process killed."""

    asked = 0

    def __init__(self, of: int, then_s: float) -> None:
        self._of = of
        self._then_s = then_s

    async def stream(self, messages: Any, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        NeverAnswers.asked += 1
        if NeverAnswers.asked == self._of:
            await anyio.sleep(self._then_s)
            os.kill(os.getpid(), signal.SIGKILL)
        await anyio.sleep_forever()
        yield {}


def manager(kind: str, folder: Path, session_id: str) -> Any:
    """The session manager of one session."""
    if kind == "sqlite":
        return SQLiteSessionManager(session_id, folder / "sessions.db")
    if kind == "log":
        return JournalSessionManager(session_id, storage=FileStorage(folder))
    return FileSessionManager(session_id=session_id, storage_dir=folder)


def place(kind: str, folder: Path) -> Any:
    """All sessions."""
    if kind == "sqlite":
        return SQLiteSessions(folder / "sessions.db")
    return JournalSessions(FileStorage(folder)) if kind == "log" else FileSessions(folder)


async def main(kind: str, folder: Path, sessions: int, how: str, then_s: float) -> None:
    model = NeverAnswers(sessions, then_s)
    names = [f"s{number}" for number in range(sessions)]
    async with anyio.create_task_group() as group:
        if how == "bare":
            for name in names:
                agent = Agent(model, session_manager=manager(kind, folder, name), callback_handler=None)
                group.start_soon(agent.invoke_async, f"the prompt of {name}")
            await anyio.sleep_forever()
        async with Runtime(sessions=place(kind, folder)) as runtime:
            for name in names:
                session = runtime.agent(AgentSpec(model=model)).session(name)
                group.start_soon(session.invoke, f"the prompt of {name}")
            await anyio.sleep_forever()


if __name__ == "__main__":
    anyio.run(main, sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4], float(sys.argv[5]) / 1000)
