"""`repertory sessions questions` and `repertory sessions answer`: what waits for a person, and the answer."""

from __future__ import annotations

import json
from pathlib import Path

import anyio
import pytest

from repertory import AgentSpec, Runtime, ScriptedModel, Sessions, SQLiteSessions, ToolContext, tool
from repertory.console.main import main

PROGRAM = '''
from repertory import AgentSpec, Runtime, ScriptedModel, SQLiteSessions, ToolContext, tool


@tool
def pay(amount: int, tool_context: ToolContext) -> str:
    """Pay an amount."""
    return f"paid: {tool_context.interrupt('approve', may_answer=['finance'])}"


runtime = Runtime(sessions=SQLiteSessions("agents.db"))
runtime.agent(AgentSpec(name="clerk", model=ScriptedModel(["Paid."]), tools=[pay]))
'''


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a place in which the session `ann` asks, and a program."""
    monkeypatch.chdir(tmp_path)

    @tool
    def pay(amount: int, tool_context: ToolContext) -> str:
        """Pay an amount."""
        return f"paid: {tool_context.interrupt('approve', may_answer=['finance'])}"

    async def ask() -> None:
        async with Runtime(sessions=SQLiteSessions("agents.db")) as runtime:
            use = {"toolUse": {"name": "pay", "input": {"amount": 5}}}
            spec = AgentSpec(name="clerk", model=ScriptedModel([use, "Paid."]), tools=[pay])
            await runtime.agent(spec).session("ann").invoke("Pay.")

    anyio.run(ask)
    (tmp_path / "answering_office.py").write_text(PROGRAM)
    return tmp_path


@pytest.mark.real_time
def test_open_questions_are_printed_with_those_who_may_answer(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sessions", "questions", "--at", "agents.db"]) == 0
    head, line = capsys.readouterr().out.splitlines()
    assert head.split() == ["SESSION", "AGENT", "ASKED", "FOR", "QUESTION"]
    assert [*line.split()[:2], *line.split()[3:]] == ["ann", "clerk", "finance", "approve"]
    assert main(["sessions", "questions", "--at", "agents.db", "--json", "--newer-than", "1h"]) == 0
    (asked,) = json.loads(capsys.readouterr().out)["questions"]
    assert (asked["interrupt"]["tool"], asked["interrupt"]["may_answer"]) == ("pay", ["finance"])
    assert main(["sessions", "questions", "--at", "agents.db", "--older-than", "1h"]) == 0
    assert capsys.readouterr().out == "No questions.\n"


@pytest.mark.real_time
def test_an_answer_is_stored_for_the_next_process_that_has_the_agent(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sessions", "answer", "ann", '{"seat": "12A"}', "--at", "agents.db"]) == 0
    assert "a process that has clerk goes on with turn" in capsys.readouterr().out
    report = anyio.run(Sessions(SQLiteSessions("agents.db")).cluster)
    assert [call.session_id for call in report.calls] == ["ann"]


@pytest.mark.real_time
def test_an_answer_goes_on_with_the_turn_in_the_runtime_of_a_program(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sessions", "answer", "ann", "yes", "--with", "answering_office:runtime"]) == 0
    assert capsys.readouterr().out.strip() == "Paid."
    assert main(["sessions", "answer", "ann", "yes", "--at", "agents.db"]) == 1
    assert "nobody asks that in this session" in capsys.readouterr().err
