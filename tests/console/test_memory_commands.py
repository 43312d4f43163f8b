"""`repertory memory`: search, add, forget, stores, dead letters and their replay."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest

from repertory import (
    Agent,
    ExtractionConfig,
    InvocationTrigger,
    MemoryManager,
    ScriptedModel,
    Sessions,
    SQLiteSessionManager,
    SQLiteSessions,
)
from repertory.console.main import main
from tests.app.memory.test_memory_extraction import Echo
from tests.app.memory.toy_memories import Facts

pytestmark = pytest.mark.real_time

MODULE = """
from repertory import MemoryManager
from tests.app.memory.toy_memories import Facts

memory = MemoryManager(stores=[Facts("one"), Facts("two", writable=False)])
memory.stores[0].entries.append("tea from a module")
other = 3
"""


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    code = main(["memory", *arguments])
    said = capsys.readouterr()
    return code, said.out + said.err


def test_what_is_added_is_found_and_forgotten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = ("--memory", str(tmp_path / "m.db"))
    assert "look at the name" in run(capsys, "search", "tea", *where)[1]
    assert run(capsys, "add", "The user likes green tea", *where) == (0, "Remembered.\n")
    code, text = run(capsys, "search", "what", "tea", "--json", *where)
    (found,) = json.loads(text)
    assert (code, found["content"]) == (0, "The user likes green tea")
    assert run(capsys, "search", "tea", "--scope", "other", *where) == (1, "No memory was found.\n")
    assert "SQLiteMemoryStore" in run(capsys, "stores", *where)[1]
    assert run(capsys, "forget", found["metadata"]["id"], *where) == (0, "Memories erased: 1.\n")
    assert run(capsys, "forget", found["metadata"]["id"], *where) == (1, "No memory has this id.\n")


def test_a_manager_of_ones_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_memory.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    manager = ("--manager", "own_memory:memory")
    assert run(capsys, "search", "tea", *manager) == (0, "[one] tea from a module\n")
    _, text = run(capsys, "stores", *manager)
    assert text == "one (Facts): searched, written. User preferences.\ntwo (Facts): searched. User preferences.\n"
    assert run(capsys, "add", "x", "--store", "two", *manager)[0] == 2
    assert "can erase" in run(capsys, "forget", "1", *manager)[1]
    for wrong in ("own_memory:other", "own_memory:none", "no_such_module:x", "own_memory"):
        code, text = run(capsys, "stores", "--manager", wrong)
        assert (code, text[:10]) == (2, "repertory:")


def test_dead_letters_are_listed_replayed_and_then_tried_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    database = tmp_path / "a.db"
    extractor = Echo(*[ValueError("cannot read that")] * 3)
    store = Facts(extraction=ExtractionConfig(trigger=InvocationTrigger(), extractor=extractor))

    async def say(text: str) -> None:
        await Agent(
            ScriptedModel(["ok"]),
            callback_handler=None,
            memory_manager=MemoryManager(stores=[store]),
            session_manager=SQLiteSessionManager("s", database),
        ).invoke_async(text)

    anyio.run(say, "q1")
    where = ("--database", str(database))
    code, text = run(capsys, "dead-letters", *where)
    assert code == 0
    assert text.startswith("s/default -> facts: messages 1-2 (")
    assert "cannot read that" in text
    (letter,) = json.loads(run(capsys, "dead-letters", "s", "--json", *where)[1])
    assert letter["dead_letter"]["seq_range"] == [1, 2]
    assert run(capsys, "replay", "s", "--store", "none", *where) == (1, "There are no dead letters.\n")
    assert run(capsys, "replay", "s", *where)[1].startswith("Dead letters to be tried again")
    assert run(capsys, "dead-letters", *where) == (0, "No dead letters.\n")
    anyio.run(say, "q2")
    assert store.entries == ["fact q1", "fact q2"]


async def _letters(database: Path) -> Any:
    return await Sessions(SQLiteSessions(database)).dead_letters()


def test_a_place_without_sessions_has_no_letters(tmp_path: Path) -> None:
    assert anyio.run(_letters, tmp_path / "none.db") == []
    assert not (tmp_path / "none.db").exists()
