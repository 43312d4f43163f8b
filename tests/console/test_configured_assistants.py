"""Assistants of `repertory.toml`, without a line of Python: served, worked and talked to, and killed on the way."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.service.embedding_process import started
from tests.service.serving_process import TURNS, serving
from tests.source_tree import ROOT

pytestmark = pytest.mark.real_time
CONFIGURATION = """
[agents.clerk]
model = { python = "tests.service.served_clerk:Clerk" }

[agents.clerk.assistant]
instructions = "You keep the lists of a bakery."
folder = "lists"
ask = ["write_file"]

[sessions]
kind = "sqlite"
path = "agents.db"

[queue]
url = "sqlite:jobs.db"

[service]
port = 0
"""
COMMAND = ("-m", "repertory.console.main")
LOOPS = pytest.mark.parametrize("loop", [[], ["--trio"]], ids=["asyncio", "trio"])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "repertory.toml").write_text(CONFIGURATION)
    (tmp_path / "lists").mkdir()
    return tmp_path


def said(folder: Path, *arguments: str, code: int = 0) -> str:
    """What a command prints."""
    with started(*COMMAND, *arguments, folder=folder) as program:
        assert program.exit_code() == code, program.output
        return "\n".join(program.output)


@LOOPS
def test_a_served_assistant_is_killed_with_its_question_and_after_it_and_goes_on(folder: Path, loop: list[str]) -> None:
    with serving(folder, *loop) as served:
        assert served.say("ann", "Note rye.", token="one").body["result"]["stop_reason"] == "interrupt"
        served.program.kill()
    assert not (folder / "lists/list.txt").exists()
    interrupts = TURNS.format("ann").replace("turns", "interrupts")
    with serving(folder, *loop, STOPS_AT="1") as served, ThreadPoolExecutor() as pool:
        (question,) = served.ask("GET", interrupts).body["interrupts"]
        assert question["tool"] == "write_file"
        answers = {"answers": [{"id": question["id"], "response": "yes"}]}
        answered = pool.submit(served.ask, "POST", interrupts, answers)
        served.program.wait_for("step 1")
        served.program.kill()
        assert answered.result().status == 0
    assert (folder / "lists/list.txt").read_text() == "rye\n"
    with serving(folder, *loop) as served:
        answer = served.say("ann", "Note rye.", token="one").body
        assert (answer["text"], answer["result"]["stop_reason"]) == ("Written.", "end_turn")
        messages = served.ask("GET", TURNS.format("ann").replace("turns", "messages")).body["messages"]
        assert [sum("toolResult" in block for block in each["message"]["content"]) for each in messages] == [0, 0, 1, 0]


@LOOPS
def test_a_worker_with_an_assistant_is_killed_and_the_next_one_goes_on(folder: Path, loop: list[str]) -> None:
    said(folder, "send", "sqlite:jobs.db", "--agent", "clerk", "--session", "ann", "Note rye.")
    assert "1 job finished" in said(folder, "work", "--until-empty", *loop)
    assert 'Approve "write_file"?' in said(folder, "sessions", "questions", "--at", "agents.db")
    assert not (folder / "lists/list.txt").exists()
    said(folder, "sessions", "answer", "ann", "yes", "--at", "agents.db")
    with started(*COMMAND, "work", *loop, folder=folder, STOPS_AT="1") as program:
        program.wait_for("step 1")
        program.kill()
    assert (folder / "lists/list.txt").read_text() == "rye\n"
    with started(*COMMAND, "work", *loop, folder=folder) as program:
        program.wait_for("step 1")
        program.signal(signal.SIGTERM)
        assert program.exit_code() == 0
    assert "Written." in said(folder, "sessions", "show", "ann", "--at", "agents.db")


def test_an_assistant_of_a_file_is_talked_to_and_asks_in_the_terminal(folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, *COMMAND, "chat", "--config", "repertory.toml"],
        cwd=folder,
        env={**os.environ, "HOME": str(folder), "REPERTORY_HOME": str(folder), "PYTHONPATH": str(ROOT)},
        input="Note rye.\nyes\n",
        capture_output=True,
        text=True,
        timeout=50,
        check=True,
    )
    assert "write_file" in done.stdout + done.stderr
    assert "Written." in done.stdout
    assert (folder / "lists/list.txt").read_text() == "rye\n"
