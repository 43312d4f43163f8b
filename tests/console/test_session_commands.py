"""`repertory sessions ...`: every operation as a command, with exit codes and words that scripts and people can use."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest

from repertory import (
    AgentCoreMemorySessions,
    FileSessions,
    FileStorage,
    JournalSessions,
    S3Sessions,
    S3Storage,
    SQLiteSessions,
)
from repertory.app.sessions.sessions import SessionLocation
from repertory.console.main import main
from repertory.console.session_commands import location_named
from repertory.core.journal.log_frames import LogStop, frames_in
from repertory.errors import Invalid
from tests.operations.operated_places import fill, talk
from tests.source_tree import ROOT

pytestmark = pytest.mark.real_time

Run = Callable[..., tuple[int, str, str]]
ARN = "arn:aws:bedrock-agentcore:us-east-1:123456789012:memory/memory-0123456789"


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a command in an empty home: exit code, standard output, standard error."""
    monkeypatch.setenv("REPERTORY_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str, said: str = "") -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "stdin", io.StringIO(said))
        try:
            code = main(["sessions", *arguments])
        except SystemExit as error:
            code = int(str(error.code))
        out, err = capsys.readouterr()
        return code, out, err

    return call


@pytest.fixture
def stored(tmp_path: Path) -> str:
    """A place with two sessions, as `--at` names it."""
    place = JournalSessions(FileStorage(tmp_path / "journals"))
    anyio.run(fill, place, "one", talk("hello", "good day", state={"mood": "fair"}, label="greeted").rows)
    anyio.run(fill, place, "two", talk("hello", "good night", "bye").rows)
    return f"journal:{tmp_path / 'journals'}"


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("a.db", SQLiteSessions("a.db").key),
        ("./a:b.db", SQLiteSessions("./a:b.db").key),
        ("sqlite:a:b.db", SQLiteSessions("a:b.db").key),
        ("journal:a/b", JournalSessions(FileStorage("a/b")).key),
        ("journal:s3://bucket/a/b/", JournalSessions(S3Storage("bucket", "a/b")).key),
        ("files:a", FileSessions("a").key),
        ("s3://bucket", S3Sessions("bucket").key),
        ("agentcore:memory-0123456789/team:a/b", AgentCoreMemorySessions("memory-0123456789", "team:a/b").key),
        (f"agentcore:{ARN}/a", AgentCoreMemorySessions(ARN, "a").key),
    ],
)
def test_a_place_has_a_name(text: str, key: str) -> None:
    place: SessionLocation = location_named(text)
    assert place.key == key


@pytest.mark.parametrize("text", ["", "sqlite:", "postgres:a", "s3://", "journal:s3:///a", "http://a/b", "agentcore:a"])
def test_what_names_no_place_is_refused_with_the_forms(text: str, run: Run) -> None:
    with pytest.raises(Invalid):
        location_named(text)
    code, out, err = run("list", "--at", text)
    assert (code, out) == (2, "")
    assert "error: argument --at" in err.splitlines()[-1]


def test_looking_needs_no_place_to_be_there(run: Run, tmp_path: Path) -> None:
    assert run("list") == (0, "No sessions.\n", "")
    assert run("list", "--json") == (0, "[]\n", "")
    assert run("search", "hello")[:2] == (1, "No message has all of these words.\n")
    assert run("doctor")[:2] == (0, "0 of 0 sessions are sound.\n")
    assert list(tmp_path.iterdir()) == []


def test_sessions_are_found_shown_and_compared(run: Run, stored: str) -> None:
    code, out, _ = run("search", "HELLO", "--at", stored)
    assert (code, len(out.splitlines())) == (0, 2)
    assert out.splitlines()[0].startswith(("one agent #1 user", "two agent #1 user"))
    code, out, _ = run("show", "one", "--at", stored, "--json")
    assert json.loads(out)["agents"]["agent"]["state"] == {"mood": "fair"}
    code, out, _ = run("diff", "one", "two", "--at", stored)
    assert code == 0
    assert [line for line in out.splitlines() if line.startswith(("-     ", "+     "))] == [
        "-     good day",
        "+     good night",
        "+     bye",
    ]
    assert '- mood = "fair"' in out
    assert run("diff", "one", "one", "--at", stored, "--position", "greeted")[1].startswith("No difference: 2")


def test_a_session_goes_through_a_file_and_to_another_place(run: Run, stored: str, tmp_path: Path) -> None:
    assert run("export", "one", "one.jsonl", "--at", stored)[0] == 0
    code, out, err = run("export", "one", "one.jsonl", "--at", stored)
    assert (code, out) == (1, "")
    assert "a file has this name" in err
    assert run("export", "one", "one.jsonl", "--at", stored, "--force")[0] == 0
    code, out, _ = run("import", "one.jsonl", "--as", "three")
    assert (code, out) == (0, "three: 4 records imported, agent up to #4.\n")
    assert run("copy", "two", "--at", stored, "--to", "files:documents")[0] == 0
    assert (tmp_path / "documents/session_two/session.json").exists()
    assert "three" in run("list")[1]
    (tmp_path / "one.jsonl").write_text((tmp_path / "one.jsonl").read_text()[:-30])
    code, out, err = run("import", "one.jsonl", "--as", "four")
    assert (code, out) == (1, "")
    assert err.startswith("repertory: the line is no JSON")
    assert "line=6" in err
    assert len(err.splitlines()) == 1


def test_an_export_to_standard_output_can_be_piped_into_an_import(stored: str, tmp_path: Path) -> None:
    environ = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "REPERTORY_HOME": str(tmp_path / "home")}
    command = f"{sys.executable} -m repertory.console.main sessions"
    script = f"{command} export one - --at {stored} > x.jsonl && {command} import x.jsonl && {command} list"
    done = subprocess.run(["sh", "-c", script], env=environ, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "one" in done.stdout
    early = f"{command} export one - --at {stored} | head -c 10"
    done = subprocess.run(["sh", "-c", early], env=environ, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ('{"repertor', "")


def test_a_session_is_forked_and_goes_back_and_forth(run: Run, stored: str) -> None:
    code, out, _ = run("fork", "two", "copy", "--position", "2", "--at", stored)
    assert (code, out) == (0, "copy: forked from two, agent at #2; 2 messages.\n")
    code, out, _ = run("rewind", "one", "greeted", "--at", stored)
    assert (code, out.splitlines()[0]) == (0, "one: back at #3.")
    assert out.endswith("`repertory sessions rewind one 4` undoes this.\n")
    assert run("rewind", "two", "1", "--at", stored)[0] == 0
    assert "#3 user" in run("show", "two", "--at", stored)[1]
    assert "(left behind)" in run("show", "two", "--at", stored)[1]
    assert run("rewind", "two", "3", "--at", stored)[0] == 0
    assert run("rewind", "two", "99", "--at", stored)[0] == 2


def test_what_destroys_asks_first(run: Run, stored: str) -> None:
    for command in (("delete", "one"), ("redact", "one", "1"), ("expire", "0")):
        for said in ("", "n\n", "perhaps\n"):
            code, out, err = run(*command, "--at", stored, said=said)
            assert (code, out) == (1, "")
            assert err.endswith("[y/N] Nothing was changed.\n")
    code, out, err = run("redact", "one", "1", "[gone]", "--at", stored, said="y\n")
    assert (code, out.splitlines()[0]) == (0, "Message #1 was replaced; records erased: 1.")
    assert "    [gone]" in run("show", "one", "--at", stored)[1]
    code, out, err = run("delete", "one", "--at", stored, "--yes")
    assert (code, err) == (0, "")
    assert out.startswith("one: deleted, ")
    code, out, err = run("delete", "one", "--at", stored, "--yes")
    assert (code, out) == (1, "")
    assert err.startswith("repertory: no such session")


def test_expired_sessions_are_told_and_deleted(run: Run, stored: str) -> None:
    assert run("expire", "99999999w", "--at", stored)[1] == "No session has expired.\n"
    code, out, _ = run("expire", "1d", "--dry-run", "--at", stored)
    assert (code, sorted(out.splitlines())) == (0, ["one: would be deleted", "two: would be deleted"])
    code, out, _ = run("expire", "1d", "--yes", "--json", "--at", stored)
    assert code == 0
    assert sorted(json.loads(out)["expired"]) == ["one", "two"]
    assert run("list", "--at", stored)[1] == "No sessions.\n"
    assert run("expire", "tomorrow")[0] == 2


def test_the_doctor_fails_while_something_is_damaged(run: Run, stored: str, tmp_path: Path) -> None:
    assert run("doctor", "--at", stored) == (0, "2 of 2 sessions are sound.\n", "")
    log = tmp_path / "journals/journals/one/journal.log"
    body = bytearray(log.read_bytes())
    *_, stop = frames_in(memoryview(body))
    assert isinstance(stop, LogStop)
    body[stop.offset : stop.offset + 100] = b"x" * 100
    log.write_bytes(body)
    code, out, _ = run("doctor", "--at", stored)
    assert code == 1
    assert out.splitlines()[-2] == "1 of 2 sessions are sound."
    assert "--repair" in out.splitlines()[-1]
    assert "damaged" in run("list", "--at", stored)[1]
    code, out, _ = run("doctor", "--repair", "--at", stored)
    assert code == 0
    assert "    moved to quarantine/journals/one/0001; records kept: agent up to #4" in out.splitlines()
    assert run("doctor", "--at", stored)[0] == 0


@pytest.mark.parametrize(
    "arguments",
    [
        ("frobnicate",),
        ("show",),
        ("redact", "one", "first"),
        ("copy", "one"),
        ("list", "--at", "a.db", "--database", "b.db"),
    ],
)
def test_a_command_that_is_used_wrongly_exits_with_2(run: Run, arguments: tuple[str, ...]) -> None:
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert err


def test_a_chat_takes_place_wherever_it_is_told(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    environ = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "REPERTORY_HOME": str(tmp_path / "home")}
    command = [sys.executable, "-m", "repertory.console.main", "chat", "--offline", "--at", "files:documents"]
    said = "My dog is called Rex.\n"
    subprocess.run(command, env=environ, cwd=tmp_path, input=said, capture_output=True, text=True, check=True)
    assert "Rex" in run("show", "chat", "--at", "files:documents")[1]
