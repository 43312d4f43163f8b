"""A program whose disk is full for a while: run by `test_full_disk.py` with a kind of sessions and a folder.

A limit on the size of files stands in for the disk, which needs no rights. It prints what its calls met, as JSON.
"""

from __future__ import annotations

import json
import resource
import sys
from pathlib import Path

import anyio

from repertory import (
    AgentSpec,
    FileSessions,
    FileStorage,
    JournalSessions,
    Runtime,
    ScriptedModel,
    SQLiteSessions,
    StorePatience,
)
from repertory.app.sessions.sessions import SessionLocation
from repertory.errors import RepertoryError


def place(kind: str, folder: Path) -> SessionLocation:
    """Sessions of that kind in a folder."""
    match kind:
        case "sqlite":
            return SQLiteSessions(folder / "sessions.db")
        case "sqlite with memory":
            return SQLiteSessions(folder / "sessions.db", remember=True)
        case "journals":
            return JournalSessions(FileStorage(folder))
        case _:
            return FileSessions(folder)


def disk_is_full(full: bool) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0 if full else hard, hard))


async def main(kind: str, folder: Path) -> None:
    met: list[str] = []
    async with Runtime(sessions=place(kind, folder), patience=StorePatience(wait_s=0.3), drain_timeout_s=4) as runtime:
        agent = runtime.agent(AgentSpec(model=ScriptedModel(["ok"], loop=True)))
        relaxed = runtime.agent(AgentSpec(model=ScriptedModel(["ok"], loop=True), durability="relaxed"))

        async def say(session: object, text: str) -> None:
            try:
                await session.invoke(text)  # type: ignore[attr-defined] - a session of either agent
                met.append("ok")
            except RepertoryError as error:
                met.append(type(error).__name__)

        patient, hasty = agent.session("patient"), relaxed.session("hasty")
        await say(patient, "first")
        await say(hasty, "first")
        await anyio.sleep(0.2)
        disk_is_full(True)
        await say(patient, "second")
        await say(patient, "never said")
        await say(hasty, "second")
        await say(hasty, "never said")
        disk_is_full(False)
        await say(patient, "third")
        await say(hasty, "third")
        await anyio.sleep(0.2)
        disk_is_full(True)
        await say(hasty, "lost")
        report = await runtime.drain()
        disk_is_full(False)
    told = [[told.session_id, list(told.turns), told.answered] for told in report.not_stored]
    print(json.dumps({"met": met, "ok": report.ok, "not_stored": told}))


if __name__ == "__main__":
    anyio.run(main, sys.argv[1], Path(sys.argv[2]))
