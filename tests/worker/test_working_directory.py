"""A relative path is bound to the folder in which its object was made: a program may go to another one later."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from repertory import (
    Agent,
    FileSessionManager,
    FileStorage,
    JournalSessionManager,
    MemoryManager,
    ScriptedModel,
    SQLiteMemoryStore,
    SQLiteSessionManager,
    TurnJob,
)
from repertory.worker.queues.sqlite import SQLiteQueue

pytestmark = pytest.mark.real_time

MANAGERS: dict[str, Callable[[], Any]] = {
    "sqlite": lambda: SQLiteSessionManager("s", path="sessions.db"),
    "files": lambda: FileSessionManager("s", storage_dir="sessions"),
    "journal": lambda: JournalSessionManager("s", FileStorage("sessions")),
}


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Another folder than the current one, which is empty."""
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    other = tmp_path / "elsewhere"
    other.mkdir()
    return other


@pytest.mark.parametrize("kind", MANAGERS)
def test_turns_go_to_the_place_that_was_named_wherever_the_program_is(kind: str, elsewhere: Path) -> None:
    manager = MANAGERS[kind]()
    agent = Agent(ScriptedModel(["a", "b"]), session_manager=manager, callback_handler=None)
    agent("one")
    os.chdir(elsewhere)
    agent("two")
    again = Agent(ScriptedModel([]), session_manager=manager, callback_handler=None)
    assert len(again.messages) == 4
    assert os.listdir(elsewhere) == []


def test_a_manager_that_was_made_before_has_its_place(elsewhere: Path) -> None:
    manager = SQLiteSessionManager("s", path="sessions.db")
    os.chdir(elsewhere)
    Agent(ScriptedModel(["a"]), session_manager=manager, callback_handler=None)("one")
    assert os.listdir(elsewhere) == []


@pytest.mark.anyio
async def test_jobs_go_to_the_queue_that_was_named(elsewhere: Path) -> None:
    queue = SQLiteQueue("jobs.db")
    os.chdir(elsewhere)
    async with queue:
        await queue.send(TurnJob("shop", "s", "one", token="t"))
    assert os.listdir(elsewhere) == []


@pytest.mark.anyio
async def test_what_is_remembered_goes_to_the_file_that_was_named(elsewhere: Path) -> None:
    store = SQLiteMemoryStore("memory.db", name="notes", writable=True)
    memory = MemoryManager(stores=[store])
    os.chdir(elsewhere)
    async with aclosing(store):
        await memory.add("tea")
        assert [found.content for found in await memory.search("tea")] == ["tea"]
    assert os.listdir(elsewhere) == []
