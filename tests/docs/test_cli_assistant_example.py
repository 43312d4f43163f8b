"""The command line assistant of the examples asks about a tool of its server that a kill has cut off."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from examples.cli_assistant_mcp.assistant import Conversation, Settings, build_agent
from repertory import Agent, ScriptedModel, SQLiteSessionManager
from tests.docs.running import environment
from tests.source_tree import ROOT

pytestmark = [pytest.mark.real_time, pytest.mark.skipif(sys.platform == "win32", reason="named pipes of POSIX")]

COMMAND = [sys.executable, "-m", "examples.cli_assistant_mcp"]


def test_a_person_decides_about_a_line_of_which_nobody_knows_whether_it_was_added(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    variables = {**environment(tmp_path), "ASSISTANT_DATA": str(tmp_path / "data")}
    note = tmp_path / "data/notes/shopping.txt"
    note.parent.mkdir(parents=True)
    os.mkfifo(note)  # so that the tool has written its line, and does not return

    first = subprocess.Popen(
        [*COMMAND, "Append to shopping: honey"], env=variables, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    assert note.read_text() == "honey\n"
    first.kill()
    first.wait(20)
    with suppress(OSError):  # the server has ended already
        os.close(os.open(note, os.O_WRONLY | os.O_NONBLOCK))
    note.unlink()

    piped = subprocess.run(COMMAND, env=variables, input="\n", capture_output=True, text=True, check=False, timeout=40)
    assert piped.returncode == 1
    assert "start the program in a terminal to decide" in piped.stderr
    assert not note.exists()

    typed = iter(("what?", "retry"))
    monkeypatch.setattr("builtins.input", lambda prompt: next(typed))
    with build_agent(Settings.read(variables), "main") as agent:
        conversation = Conversation(agent, interactive=True)
        assert conversation.unanswered
        assert conversation.say(None)
        assert not conversation.unanswered
    assert "shopping.txt has 1 lines" in capsys.readouterr().out
    assert note.read_text() == "honey\n"


def test_ctrl_c_stops_an_answer_and_an_empty_line_continues_it_in_the_next_process(tmp_path: Path) -> None:
    def agent(model: ScriptedModel) -> Agent:
        return Agent(model, session_manager=SQLiteSessionManager("main", tmp_path / "s.db"), callback_handler=None)

    def typed_ctrl_c(*_: object) -> str:
        os.kill(os.getpid(), signal.SIGINT)
        return "An answer that nobody waits for."

    with agent(ScriptedModel([typed_ctrl_c], delay_s=20)) as stopped:
        conversation = Conversation(stopped, interactive=True)
        assert not conversation.say("Hello")
        assert conversation.unanswered

    model = ScriptedModel(["Hello again."])
    with agent(model) as continued:
        conversation = Conversation(continued, interactive=True)
        assert conversation.unanswered
        assert conversation.say(None)
        assert not conversation.unanswered
    assert [message["role"] for message in model.calls[0].messages] == ["user"]


def test_a_question_whose_model_fails_gives_the_exit_code_1(tmp_path: Path) -> None:
    variables = {**environment(tmp_path), "REPERTORY_MODEL": "openai", "ASSISTANT_DATA": str(tmp_path / "data")}
    done = subprocess.run([*COMMAND, "Hello"], env=variables, capture_output=True, text=True, check=False, timeout=40)
    assert done.returncode == 1
    assert "OPENAI_API_KEY" in done.stderr
    assert ROOT.as_posix() not in done.stderr
