"""What is private stays private without anybody doing anything: folders, links, secrets in logs, text on a terminal."""

from __future__ import annotations

import io
import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from repertory import (
    Agent,
    AgentSpec,
    FileSessionManager,
    FileStorage,
    JournalSessionManager,
    MCPClient,
    ScriptedModel,
    SessionManager,
    SQLiteMemoryStore,
    SQLiteSessionManager,
    SQLiteSessions,
    ToolContext,
)
from repertory.backends.this_machine import ThisMachine
from repertory.compat.storages import Bm25SearchStrategy, LocalFileStorage
from repertory.console.chat import ChatSettings, Terminal, talk
from repertory.console.main import main
from repertory.errors import Invalid
from repertory.mcp.source import HTTPServer, StdioServer
from repertory.service.process.terminal_text import harmless, harmless_json
from repertory.toolbox.file_editor import make_file_editor


def agent(session_manager: Any, reply: Any = "ok") -> Agent:
    return Agent(ScriptedModel([reply], loop=True), callback_handler=None, session_manager=session_manager)


def say(session_manager: Any) -> None:
    """One turn, with nothing left behind."""
    talker = agent(session_manager)
    try:
        talker("hi")
    finally:
        talker.shutdown()


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of which nothing is there yet, in a process that is generous with rights."""
    monkeypatch.delenv("REPERTORY_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    before = os.umask(0o022)
    try:
        yield tmp_path / ".repertory"  # type: ignore[misc]
    finally:
        os.umask(before)


def test_whoever_makes_the_home_makes_it_private(home: Path) -> None:
    terminal = Terminal(io.StringIO("hello\n"), io.StringIO(), io.StringIO())
    talk(ChatSettings(session_id="s"), ScriptedModel(["hi"]), terminal, label="scripted")
    for folder in (home, *(path for path in home.rglob("*") if path.is_dir())):
        assert mode(folder) == 0o700, folder
    for file in (path for path in home.rglob("*") if path.is_file()):
        assert mode(file) == 0o600, file


@pytest.mark.anyio
@pytest.mark.real_time
async def test_what_is_written_beside_sessions_is_private(home: Path) -> None:
    searched = Bm25SearchStrategy()
    await searched.index(LocalFileStorage(str(home / "notes")), "a.txt", b"words")
    await searched.close()
    await ThisMachine(home).write_file("made/a.txt", b"words")
    editor = make_file_editor(root=str(home))
    tool = ToolContext(tool_use={"toolUseId": "t", "name": "t", "input": {}})
    await editor(command="create", path=str(home / "made/b.txt"), file_text="words", tool_context=tool)
    await SQLiteMemoryStore(home / "m.db").add("words")
    assert modes_below(home) == {0o600}


def modes_below(folder: Path) -> set[int]:
    return {mode(path) for path in folder.rglob("*") if path.is_file()}


def test_folders_on_the_way_to_a_database_are_private_too(home: Path) -> None:
    say(SQLiteSessionManager("s", path=home / "a" / "b" / "s.db"))
    assert [mode(folder) for folder in (home, home / "a", home / "a" / "b")] == [0o700] * 3


def test_a_home_that_is_there_keeps_its_rights_and_what_is_in_it_is_private(home: Path) -> None:
    home.mkdir(mode=0o755)
    say(FileSessionManager("s"))
    assert mode(home) == 0o755
    assert mode(home / "sessions") == 0o700


@pytest.mark.parametrize(
    "manager",
    [
        lambda path: FileSessionManager("s", storage_dir=str(path)),
        lambda path: JournalSessionManager("s", storage=FileStorage(path)),
        lambda path: SessionManager("s", storage=FileStorage(path)),
    ],
    ids=["documents", "journal", "snapshots"],
)
def test_a_root_that_is_a_link_is_refused_and_nothing_is_written_through_it(manager: Any, tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    target.mkdir()
    link.symlink_to(target)
    with pytest.raises(Invalid, match="no symbolic link"):
        say(manager(link))
    assert list(target.iterdir()) == []


def test_an_owners_folder_that_is_a_link_is_refused(tmp_path: Path) -> None:
    target, root = tmp_path / "target", tmp_path / "root"
    target.mkdir()
    root.mkdir()
    (root / "repertory-owners").symlink_to(target)
    with pytest.raises(Invalid, match="no symbolic link"):
        say(FileSessionManager("s", storage_dir=str(root)))
    assert list(target.iterdir()) == []


@pytest.mark.parametrize("name", ["", "a/b", "..", "a\n", None, 5], ids=repr)
def test_a_spec_needs_a_name_that_is_an_id(name: Any) -> None:
    with pytest.raises(Invalid, match="name"):
        AgentSpec(name=name, model=ScriptedModel(["ok"]))


@pytest.mark.anyio
@pytest.mark.real_time
@pytest.mark.parametrize(
    "what",
    [{"memory_id": 1}, {"session_id": 1}, {"session_id": "s", "agent_id": b"a"}, {"session_id": "s", "seq": "1"}],
    ids=str,
)
async def test_what_names_no_memory_is_refused(what: dict[str, Any], tmp_path: Path) -> None:
    store = SQLiteMemoryStore(tmp_path / "memory.db")
    with pytest.raises(Invalid, match=r"is a string|is the number"):
        await store.forget(**what)


def test_no_secret_of_a_tool_server_is_shown() -> None:
    servers = (
        MCPClient.http("https://user:secret@host/mcp?token=secret", headers={"Authorization": "secret"}),
        MCPClient.stdio("python", ["server.py", "secret"], env={"TOKEN": "secret"}),
        MCPClient.stdio("weather", ["--api-key", "secret"]),
        HTTPServer(url="https://user:secret@host/mcp?token=secret", headers={"Authorization": "secret"}),
        StdioServer(command="python", args=("server.py", "secret"), env={"TOKEN": "secret"}),
    )
    for server in servers:
        assert "secret" not in repr(server)
        assert "secret" not in f"{vars(server) if hasattr(server, '__dict__') else server}"


HIDDEN = "\u202e\u2066\u2069\u200f\u061c\u2028\u200b\ufeff\U000e0041\x9b\x1b\x07"


def test_what_hides_or_turns_text_is_spelled_out_and_the_rest_is_left() -> None:
    text = "pay \u202eevil\u2069 naïve 👩\u200d🔬 नमस्ते\n\tend"
    assert harmless(text) == "pay \\u202eevil\\u2069 naïve 👩\u200d🔬 नमस्ते\n\tend"
    assert harmless(HIDDEN).isprintable()
    said = json.dumps({"text": HIDDEN}, ensure_ascii=False)
    assert harmless_json(said).isprintable()
    assert json.loads(harmless_json(said)) == {"text": HIDDEN}


@pytest.mark.parametrize(
    "command",
    [
        ["show", "s"],
        ["show", "s", "--json"],
        ["history", "s"],
        ["search", "hello"],
        ["search", "hello", "--json"],
        ["list"],
        ["doctor"],
        ["show", "nobody\u202e"],
    ],
    ids=" ".join,
)
def test_no_command_prints_what_hides_or_turns_text(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = SQLiteSessions(tmp_path / "s.db")
    talker = agent(SQLiteSessionManager("s", path=place.path), [{"text": f"hello {HIDDEN}"}])
    talker.state.set(f"key {HIDDEN}", HIDDEN)
    talker(f"hello {HIDDEN}")
    talker.shutdown()
    capsys.readouterr()
    main(["sessions", *command[:1], "--database", str(place.path), *command[1:]])
    shown = capsys.readouterr()
    assert shown.out or shown.err
    assert not set(HIDDEN) & set(shown.out + shown.err)


def test_a_chat_prints_nothing_that_hides_or_turns_text(tmp_path: Path) -> None:
    out, err = io.StringIO(), io.StringIO()
    settings = ChatSettings(session_id="s", folder=tmp_path / "files", place=SQLiteSessions(tmp_path / "s.db"))
    terminal = Terminal(io.StringIO("hello\n"), out, err)
    talk(settings, ScriptedModel([f"hi {HIDDEN}"]), terminal, label=f"model {HIDDEN}")
    assert "hi \\u202e" in out.getvalue()
    assert not set(HIDDEN) & set(out.getvalue() + err.getvalue())
