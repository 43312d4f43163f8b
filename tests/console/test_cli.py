"""The command line in processes of its own, as people and scripts use it."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest

from repertory.console.main import main
from repertory.core.messages import STOPPED_TEXT
from tests.source_tree import ROOT

pytestmark = pytest.mark.real_time

COMMAND = [sys.executable, "-m", "repertory.console.main"]
SLOW = """
import sys
from repertory import ScriptedModel
from repertory.console.chat import ChatSettings, talk
from repertory.console.chat import Terminal

replies = ["word " * 2000, "short"]
sys.exit(talk(ChatSettings(), ScriptedModel(replies, delay_s=0.01, chunk=5), Terminal(), label="script"))
"""
IMPATIENT = """
import sys
import repertory.core.retry as retry

retry.DEFAULT_PATIENCE = retry.StorePatience(busy_s=1.0)  # Before anybody else imports it.
from repertory.console.main import main

sys.exit(main(["chat", "--offline"]))
"""
KILLED_IN_A_TOOL = """
import os, signal
from repertory import Agent, ScriptedModel, SQLiteSessionManager, tool

@tool
def append_file(path: str, text: str) -> str:
    os.kill(os.getpid(), signal.SIGKILL)

use = {"toolUse": {"name": "append_file", "input": {"path": "a.txt", "text": "line"}}}
Agent(ScriptedModel([use]), tools=[append_file], session_manager=SQLiteSessionManager("chat"))("append to a: line")
"""


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """The environment of somebody who has nothing."""
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "REPERTORY_HOME": str(tmp_path / "home"),
        "PYTHONPATH": str(ROOT),
        "PYTHONUNBUFFERED": "1",
    }


def run(environ: dict[str, str], *command: str, said: str = "") -> subprocess.CompletedProcess[str]:
    """Run a command to its end, with these lines as its input."""
    return subprocess.run(
        command, env=environ, input=said, capture_output=True, text=True, check=False, timeout=40, cwd=environ["HOME"]
    )


def chat(environ: dict[str, str], said: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Chat offline over a pipe."""
    return run(environ, *COMMAND, "chat", "--offline", *options, said=said)


@contextmanager
def slow_chat(environ: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    """A chat whose first answer takes half a minute, with the first line said and the answer on its way."""
    process = subprocess.Popen(
        [sys.executable, "-c", SLOW],
        env=environ,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=environ["HOME"],
    )
    try:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("go\n")
        process.stdin.flush()
        read_until(process.stdout, "word")
        yield process
    finally:
        process.kill()
        process.communicate()


def read_until(stream: IO[str], wanted: str) -> str:
    """Read until the text has come; the timeout of the test bounds it."""
    read = ""
    while wanted not in read:
        byte = os.read(stream.fileno(), 1)
        assert byte, f"ended after {read!r}"
        read += byte.decode()
    return read


def test_chat_over_a_pipe_answers_each_line_shows_tools_and_ends_with_the_input(environ: dict[str, str]) -> None:
    done = chat(environ, "My dog is called Rex.\n\nWhat is 6 * 7?\nwhat is my dog?")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "[offline] Noted: your dog is Rex.",
        '-> calculator(expression="6 * 7")',
        "<- calculator: 42",
        "[offline] The result is 42.",
        "[offline] Your dog is Rex.",
    ]


def test_chat_goes_on_in_the_next_process_and_says_where_it_stands(environ: dict[str, str]) -> None:
    assert "0 messages" in chat(environ, "My dog is called Rex.\n").stderr
    done = chat(environ, "what is my dog?\n")
    assert "2 messages" in done.stderr
    assert done.stdout == "[offline] Your dog is Rex.\n"
    other = chat(environ, "what is my dog?\n", "--session", "other")
    assert "Rex" not in other.stdout


def test_chat_works_on_the_files_and_the_database_that_it_is_given(environ: dict[str, str], tmp_path: Path) -> None:
    options = ("--files", str(tmp_path / "notes"), "--database", str(tmp_path / "some.db"))
    done = chat(environ, "write a note called a: bread\n", *options)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "notes/a.txt").read_text() == "bread"
    assert (tmp_path / "some.db").exists()
    assert not (tmp_path / "home").exists()


def test_chat_without_a_model_says_so_in_one_sentence_and_exits_with_2(environ: dict[str, str]) -> None:
    done = run(environ, *COMMAND, "chat")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("No model is configured")
    assert len(done.stderr.splitlines()) == 1
    assert not Path(environ["REPERTORY_HOME"]).exists()


def test_chat_with_an_id_that_cannot_be_a_name_is_one_sentence_and_exits_with_2(environ: dict[str, str]) -> None:
    done = chat(environ, "Hello\n", "--session", "../x")
    assert done.returncode == 2
    assert done.stderr.startswith("repertory: ")
    assert len(done.stderr.splitlines()) == 1


def test_ctrl_c_during_a_turn_cuts_it_short_and_the_chat_goes_on(environ: dict[str, str]) -> None:
    with slow_chat(environ) as process:
        process.send_signal(signal.SIGINT)
        out, err = process.communicate("and now\n", timeout=30)
        assert process.returncode == 0, err
    assert "Stopped." in err
    assert out.endswith("short\n")
    shown = run(environ, *COMMAND, "sessions", "show", "chat").stdout
    assert [line.split()[1] for line in shown.splitlines() if line.startswith("#")] == ["user,", "assistant,"] * 2
    assert "(stopped)" in shown
    assert STOPPED_TEXT in shown


def test_ctrl_c_while_nothing_runs_ends_the_chat(environ: dict[str, str]) -> None:
    with slow_chat(environ) as process:
        assert process.stderr is not None
        process.send_signal(signal.SIGINT)
        read_until(process.stderr, "Stopped.")
        process.send_signal(signal.SIGINT)
        process.wait(30)
        assert process.returncode == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_during_a_turn_ends_the_chat_in_order_and_the_turn_can_go_on(
    environ: dict[str, str], number: signal.Signals
) -> None:
    with slow_chat(environ) as process:
        process.send_signal(number)
        _, err = process.communicate(timeout=30)
        assert process.returncode == 128 + number, err
        assert "Traceback" not in err
    done = chat(environ, "\n")
    assert "cut short" in done.stderr
    assert done.stdout.startswith('[offline] I understood: "go"')
    assert "-" in run(environ, *COMMAND, "sessions", "list").stdout.splitlines()[1].split()[-1]


@pytest.mark.parametrize(
    ("answers", "told"),
    [
        ("retry\n", "Appended."),
        ("fail\n", "failed: Outcome unknown"),
        ("\nit was written\n", "Appended. it was written"),
    ],
)
def test_a_tool_of_unknown_outcome_is_asked_about(environ: dict[str, str], answers: str, told: str) -> None:
    assert run(environ, sys.executable, "-c", KILLED_IN_A_TOOL).returncode == -signal.SIGKILL
    done = chat(environ, f"\n{answers}")
    assert done.returncode == 0, done.stderr
    assert 'append_file(path="a.txt", text="line")' in done.stderr
    assert told.split(":")[0] in done.stdout
    assert (Path(environ["REPERTORY_HOME"]) / "files/a.txt").exists() == answers.startswith("retry")


def test_a_question_that_nobody_answers_is_asked_again_the_next_time(environ: dict[str, str]) -> None:
    run(environ, sys.executable, "-c", KILLED_IN_A_TOOL)
    assert chat(environ, "\n").returncode == 0
    assert "waits for a person" in run(environ, *COMMAND, "sessions", "show", "chat").stdout
    assert "Appended." in chat(environ, "\nretry\n").stdout


def test_a_terminal_gets_a_prompt_and_ctrl_d_ends_the_chat(environ: dict[str, str]) -> None:
    parent, child = pty.openpty()
    process = subprocess.Popen([*COMMAND, "chat", "--offline"], env=environ, stdin=child, stdout=child, stderr=child)
    os.close(child)
    try:
        read = _read_terminal(parent, b"you> ")
        os.write(parent, b"My dog is called Rex.\n")
        read += _read_terminal(parent, b"is Rex.\r\n") + _read_terminal(parent, b"you> ")
        os.write(parent, b"\x04")
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()
        os.close(parent)
    assert b"0 messages" in read
    assert b"[offline] Noted" in read


def _read_terminal(terminal: int, wanted: bytes) -> bytes:
    read = b""
    while wanted not in read:
        read += os.read(terminal, 1)
    return read


def test_sessions_list_has_one_line_per_session(environ: dict[str, str]) -> None:
    assert run(environ, *COMMAND, "sessions", "list").stdout == "No sessions.\n"
    assert not Path(environ["REPERTORY_HOME"]).exists()
    chat(environ, "Hello\n", "--session", "one")
    chat(environ, "Hello\n", "--session", "two")
    header, first, second = run(environ, *COMMAND, "sessions", "list").stdout.splitlines()
    assert header.split() == ["SESSION", "AGENTS", "RECORDS", "UPDATED", "OWNER"]
    assert first.split()[:3] == ["two", "default", "2"]
    assert second.split()[0] == "one"
    assert second.split()[-1] == "-"


def test_sessions_can_be_listed_and_shown_while_another_process_owns_them(environ: dict[str, str]) -> None:
    with slow_chat(environ):
        listed = run(environ, *COMMAND, "sessions", "list").stdout.splitlines()[1].split()
        assert listed[-1] != "-"
        shown = run(environ, *COMMAND, "sessions", "show", "chat")
        assert shown.returncode == 0, shown.stderr
        assert "    go" in shown.stdout
        assert "(The last turn has no answer.)" in shown.stdout
        busy = run(environ, sys.executable, "-c", IMPATIENT, said="Hello\n")
        assert busy.returncode == 1
        assert "another live owner" in busy.stderr.splitlines()[-1]
        assert all(line.startswith(("session ", "Waiting ", "repertory: ")) for line in busy.stderr.splitlines())


@pytest.mark.parametrize("command", [("show", "none"), ("show", "chat", "--agent", "none"), ("show", "..")])
def test_showing_what_is_not_there_is_one_sentence_and_exits_with_1(
    environ: dict[str, str], command: tuple[str, ...]
) -> None:
    chat(environ, "Hello\n")
    done = run(environ, *COMMAND, "sessions", *command)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("repertory: no such ")
    assert len(done.stderr.splitlines()) == 1


def test_a_database_that_is_none_is_one_sentence_and_exits_with_1(environ: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "text").write_text("this is no database, whatever its name may say\n" * 100)
    done = run(environ, *COMMAND, "sessions", "list", "--database", str(tmp_path / "text"))
    assert done.returncode == 1
    assert done.stderr.startswith("repertory: ")
    assert len(done.stderr.splitlines()) == 1


def test_what_was_said_cannot_command_the_terminal(environ: dict[str, str]) -> None:
    chat(environ, "My dog is called \x1b[31mRex\x07.\n")
    shown = run(environ, *COMMAND, "sessions", "show", "chat").stdout
    assert "\\x1b[31mRex\\x07" in shown
    assert not {"\x1b", "\x07"} & set(shown)


def test_bytes_that_are_no_text_are_taken_as_far_as_they_are(environ: dict[str, str]) -> None:
    command = f"printf 'My dog is called \\377Rex.\\n' | {sys.executable} -m repertory.console.main chat --offline"
    done = run({**environ, "PYTHONUTF8": "1"}, "sh", "-c", command)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[offline] Noted: your dog is \ufffdRex.\n"


def test_a_reader_that_leaves_early_is_no_error(environ: dict[str, str]) -> None:
    chat(environ, "Hello\n" * 50)
    command = f"{sys.executable} -m repertory.console.main sessions show chat | head -n 1"
    done = run(environ, "sh", "-c", command)
    assert done.stdout.startswith("#1 user")
    assert done.stderr == ""


@pytest.mark.parametrize("place", ["no.db", "sqlite:no.db", "journal:no", "files:no", "snapshots:no"])
@pytest.mark.parametrize("command", [("sessions", "list"), ("inspect", "--listen", "127.0.0.1:0"), ("top", "--once")])
def test_a_place_that_was_named_and_is_not_there_is_an_error_and_is_not_made(
    command: tuple[str, ...],
    place: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([*command, "--at", place]) == 1
    assert capsys.readouterr().err.startswith("repertory: there are no sessions")
    assert os.listdir(tmp_path) == []


def test_sessions_are_those_of_the_environment_or_of_the_configuration_of_the_folder(
    environ: dict[str, str], tmp_path: Path
) -> None:
    for name in ("one", "two"):
        assert chat(environ, "Hi\n", "--session", name, "--at", f"{name}.db").returncode == 0
    (tmp_path / "repertory.toml").write_text(
        '[sessions]\nkind = "sqlite"\npath = "one.db"\n[agents.a]\nmodel = "offline"\n'
    )
    listed = run(environ, *COMMAND, "sessions", "list").stdout
    assert listed.splitlines()[1].startswith("one ")
    listed = run({**environ, "REPERTORY_AT": "two.db"}, *COMMAND, "sessions", "list").stdout
    assert listed.splitlines()[1].startswith("two ")
    assert run(environ, *COMMAND, "post", "--agent", "a", "--session", "posted", "Hi").returncode == 0
    assert "posted" in run(environ, *COMMAND, "cluster", "--at", "one.db").stdout
