"""`repertory chat` with an agent of a program, with the agents of a session, and with a session that others have."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest

from repertory import ScriptedModel, SQLiteSessions
from repertory.app.sessions.reading import opened
from repertory.console.chat import ChatSettings, talk
from repertory.console.main import main
from repertory.console.terminal import Terminal
from repertory.operations.reading import owned

PROGRAM = """
from repertory import Agent, AgentSpec, Runtime, ScriptedModel, SQLiteSessionManager, SQLiteSessions

def says(text):
    return ScriptedModel([text] * 3)

runtime = Runtime(sessions=SQLiteSessions("shop.db"))
clerk = runtime.agent(AgentSpec(name="clerk", model=says("Clerk.")))
runtime.agent(AgentSpec(name="baker", model=says("Baker.")))
spec = AgentSpec(name="spec", model=says("Spec."))
alone = Agent(says("Alone."), agent_id="alone", callback_handler=None)

def stored():
    return Agent(says("Stored."), session_manager=SQLiteSessionManager("mine", path="mine.db"), callback_handler=None)

def breaks():
    raise KeyError("x")
"""
Chat = Callable[..., tuple[int, str, str]]


@pytest.fixture
def chat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Chat:
    """One line said to a chat: its exit code, what it answers, and what it remarks."""
    monkeypatch.setenv("REPERTORY_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "bakery.py").write_text(PROGRAM)
    monkeypatch.delitem(sys.modules, "bakery", raising=False)

    def say(*options: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "stdin", io.StringIO("Hello\n"))
        code = main(["chat", *options])
        out, err = capsys.readouterr()
        return code, out, err

    return say


@pytest.mark.real_time
def test_an_agent_of_a_program_answers_and_goes_on_where_its_sessions_are(chat: Chat, tmp_path: Path) -> None:
    for target, answer in (
        ("bakery:spec", "Spec."),
        ("bakery:clerk", "Clerk."),
        ("bakery:alone", "Alone."),
        ("bakery:stored", "Stored."),
    ):
        code, out, err = chat(target)
        assert (code, out) == (0, f"{answer}\n"), err
        assert "0 messages" in err
    assert "not stored, alone, ScriptedModel" in chat("bakery:alone")[2]
    assert "session mine, default, ScriptedModel; 2 messages" in chat("bakery:stored")[2]
    assert "session chat, clerk, ScriptedModel; 2 messages" in chat("bakery:runtime", "--agent", "clerk")[2]
    assert "[offline]" in chat("bakery:clerk", "--offline")[1]
    assert {each.name for each in tmp_path.glob("*.db")} == {"shop.db", "mine.db"}
    assert chat("bakery:clerk", "--at", "other.db")[1] == "Clerk.\n"
    (tmp_path / "repertory.toml").write_text('[agents.support]\nmodel = "offline"\n')
    assert "session n, support, OfflineModel" in chat("--config", "repertory.toml", "--session", "n")[2]


@pytest.mark.real_time
def test_what_is_no_agent_of_a_program_is_told_with_the_next_step(chat: Chat) -> None:
    for options, says in (
        (("bakery:runtime",), "name an agent with --agent agents=['baker', 'clerk']"),
        (("bakery:runtime", "--agent", "clark"), "the program has no agent clark. Did you mean clerk?"),
        (("bakery:spec", "--agent", "clerk"), "leave --agent out"),
        (("bakery:stored", "--session", "other"), "leave --session out"),
        (("bakery:stored", "--at", "other.db"), "leave --at and --database out"),
        (("bakery:breaks",), "cannot be made: KeyError (at "),
        (("bakery:nothing",), "there is no `nothing` in `bakery`"),
        (("bakery:spec.name",), "is no Agent, AgentSpec or Runtime"),
        (("bakery:spec", "--config", "x.toml"), "not both"),
        (("groceries",), "a session is named with --session"),
    ):
        code, out, err = chat(*options)
        assert (code, out) == (2, "")
        assert says in err, err
        assert len(err.splitlines()) == 1


@pytest.mark.real_time
def test_a_session_of_other_agents_is_refused_and_gets_no_new_one(chat: Chat) -> None:
    assert chat("bakery:spec", "--session", "s")[0] == 0
    code, out, err = chat("--offline", "--session", "s")
    assert (code, out) == (1, "")
    assert "the session has no agent default: add --agent spec, or choose another --session" in err
    assert chat("--offline", "--session", "s", "--agent", "spec")[0] == 0


class Impatient(Terminal):
    """A person who presses Ctrl-C when told to wait."""

    def remark(self, text: str) -> None:
        super().remark(text)
        if text.startswith("Waiting"):
            raise KeyboardInterrupt


@pytest.mark.real_time
def test_a_chat_says_at_once_for_whom_it_waits(chat: Chat, tmp_path: Path) -> None:
    assert chat("--offline", "--session", "s")[0] == 0
    remarks, place = io.StringIO(), SQLiteSessions()

    def wait() -> None:
        terminal = Impatient(io.StringIO("Hello\n"), io.StringIO(), remarks)
        talk(ChatSettings(session_id="s"), ScriptedModel([]), terminal, label="script")

    async def meanwhile() -> None:
        async with opened(place) as store, owned(store, "s", takeover=False):
            await anyio.to_thread.run_sync(wait)

    with pytest.raises(KeyboardInterrupt):
        anyio.run(meanwhile)
    assert remarks.getvalue().startswith("Waiting for s, which process ")
    assert remarks.getvalue().endswith(" has. Ctrl-C leaves.\n")
