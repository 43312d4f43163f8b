"""Databases of SQLite whose locks this process has lost by opening and closing the file: what others deleted is noticed
before anything is acknowledged. See https://www.sqlite.org/howtocorrupt.html, section 2.2.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from repertory import Agent, ScriptedModel, SQLiteMemoryStore, SQLiteQueue, SQLiteSessionManager, TurnJob
from repertory.errors import Failed
from repertory.toolbox.file_editor import make_file_editor
from tests.source_tree import ROOT

pytestmark = [pytest.mark.anyio, pytest.mark.real_time]

LAST = "import sqlite3, sys; base = sqlite3.connect(sys.argv[1]); base.execute('SELECT 1 FROM sqlite_schema')"
COUNT = "import sqlite3, sys; print(sqlite3.connect(sys.argv[1]).execute(sys.argv[2]).fetchone()[0])"
Store = Callable[[str], Awaitable[object]]


@asynccontextmanager
async def sessions(path: Path) -> AsyncGenerator[Store]:
    manager = SQLiteSessionManager("marta", path)
    async with Agent(ScriptedModel(["yes"], loop=True), session_manager=manager, callback_handler=None) as agent:
        yield agent.invoke_async


@asynccontextmanager
async def queue(path: Path) -> AsyncGenerator[Store]:
    async with SQLiteQueue(path) as jobs:
        yield lambda text: jobs.send(TurnJob("a", "s", text, token=text))


@asynccontextmanager
async def memory(path: Path) -> AsyncGenerator[Store]:
    store = SQLiteMemoryStore(path)
    try:
        yield store.add
    finally:
        await store.aclose()


async def elsewhere(code: str, *arguments: str) -> str:
    """What another process prints."""
    done = await anyio.run_process([sys.executable, "-c", code, *arguments], cwd=ROOT, stderr=subprocess.STDOUT)
    return done.stdout.decode().strip()


@pytest.mark.parametrize(
    ("opened", "count", "each"),
    [
        (sessions, "SELECT count(*) FROM rows WHERE kind = 1", 2),
        (queue, "SELECT count(*) FROM jobs", 1),
        (memory, "SELECT count(*) FROM memory_entries", 1),
    ],
)
async def test_nothing_is_acknowledged_once_the_log_is_gone_and_what_was_before_it_stands(
    tmp_path: Path, opened: Callable[[Path], object], count: str, each: int
) -> None:
    path = tmp_path / "base.db"
    stored = 0
    with pytest.raises(Failed, match="start the process again"):
        async with opened(path) as store:  # type: ignore[attr-defined]
            await store("first")
            stored += each
            path.read_bytes()  # This ends the process's locks, whoever does it.
            await store("second")
            stored += each
            await elsewhere(LAST, str(path))
            await store("third")
    assert int(await elsewhere(COUNT, str(path), count)) == stored
    with pytest.raises(Failed, match="start the process again"):  # SQLite has no locks on it any more.
        async with opened(path) as store:  # type: ignore[attr-defined]
            await store("fourth")


async def test_tools_of_a_model_do_not_open_a_database_that_is_in_use(tmp_path: Path) -> None:
    path = tmp_path / "base.db"
    for editor in (make_file_editor(), make_file_editor(root=str(tmp_path))):
        uses = [{"toolUse": {"name": "file_editor", "input": {"command": "view", "path": str(path)}}}, "seen"]
        manager = SQLiteSessionManager("marta", path)
        async with Agent(
            ScriptedModel([*uses, "on"]), session_manager=manager, tools=[editor], callback_handler=None
        ) as agent:
            await agent.invoke_async("look at the file")
            assert "a database that this process uses" in str(agent.messages[-2])
            await elsewhere(LAST, str(path))
            await agent.invoke_async("and go on")
