"""The facade from sync code: documented samples, restoring at construction, use beside an event loop."""

from __future__ import annotations

import threading
from pathlib import Path

import anyio
import pytest

from repertory import Agent, ScriptedModel, SQLiteSessionManager, SQLiteSessions, StorePatience, tool
from repertory.core.messages import text_of
from repertory.errors import Invalid, SessionBusy


def test_a_sync_call_answers() -> None:
    agent = Agent(ScriptedModel(["Hello!"]), callback_handler=None)
    assert str(agent("Hi")) == "Hello!"
    assert [text_of(message) for message in agent.messages] == ["Hi", "Hello!"]


def test_a_new_agent_outside_a_loop_has_its_messages_at_once(tmp_path: Path) -> None:
    manager = SQLiteSessionManager("s1", path=tmp_path / "a.db")
    Agent(ScriptedModel(["Hello!"]), session_manager=manager, callback_handler=None)("Hi")
    again = Agent(ScriptedModel(["x"]), session_manager=manager, callback_handler=None)
    assert [text_of(message) for message in again.messages] == ["Hi", "Hello!"]


def test_with_keeps_the_session_open_between_calls(tmp_path: Path) -> None:
    manager = SQLiteSessionManager("s1", path=tmp_path / "a.db")
    with Agent(ScriptedModel(["a", "b"]), session_manager=manager, callback_handler=None) as agent:
        agent("1")
        agent("2")
    assert len(Agent(ScriptedModel(["x"]), session_manager=manager, callback_handler=None).messages) == 4


def test_a_sync_tool_runs_and_may_call_another_agent() -> None:
    helper = Agent(ScriptedModel(["42"]), callback_handler=None)

    @tool(effects=False)
    def ask_helper(question: str) -> str:
        """Ask somebody else."""
        return str(helper(question))

    use = {"toolUse": {"name": "ask_helper", "input": {"question": "?"}}}
    agent = Agent(ScriptedModel([use, "they say 42"]), tools=[ask_helper], callback_handler=None)
    assert str(agent("go")) == "they say 42"


def test_two_threads_may_call_one_agent() -> None:
    agent = Agent(ScriptedModel([f"a{n}" for n in range(8)]), callback_handler=None)
    threads = [threading.Thread(target=agent, args=(f"q{n}",)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(agent.messages) == 16


def test_an_agent_may_be_called_from_sync_code_and_then_from_a_loop(tmp_path: Path) -> None:
    agent = Agent(
        ScriptedModel(["a", "b", "c"]),
        session_manager=SQLiteSessionManager("s1", path=tmp_path / "a.db"),
        callback_handler=None,
    )
    agent("1")

    async def call() -> str:
        return str(await agent.invoke_async("2"))

    assert anyio.run(call) == "b"
    assert anyio.run(call, backend="trio") == "c"
    assert len(agent.messages) == 6


def test_an_agent_that_is_open_elsewhere_says_so() -> None:
    agent = Agent(ScriptedModel(["a", "b"]), callback_handler=None)

    async def call() -> None:
        await agent.invoke_async("1")

    with agent, pytest.raises(Invalid, match="another event loop"):
        anyio.run(call)
    assert str(agent("2")) == "a"


def test_an_agent_whose_opening_failed_can_be_opened_again(tmp_path: Path) -> None:
    sessions = SQLiteSessions(tmp_path / "a.db")

    async def with_another_owner() -> None:
        other = sessions.open_store()
        await other.acquire("s1")
        try:
            with pytest.raises(SessionBusy):
                await agent.__aenter__()
        finally:
            await other.aclose()
        async with agent:
            assert str(await agent.invoke_async("hi")) == "a"

    agent = Agent(
        ScriptedModel(["a"]),
        session_manager=SQLiteSessionManager("s1", path=sessions.path),
        callback_handler=None,
        patience=StorePatience(busy_s=0),
    )
    anyio.run(with_another_owner)
