"""Tools that wait, end the turn, ask the user, and keep notes."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import anyio
import pytest

from repertory import Agent, ScriptedModel, SQLiteSessionManager
from repertory.backends.tools.function_tool import schema_class
from repertory.core.messages import tool_results
from repertory.errors import Invalid
from repertory.toolbox.notebook import make_notebook, notebook
from repertory.toolbox.turn_control import (
    HANDOFF_INTERRUPT_NAME,
    handoff_to_user,
    make_handoff_to_user,
    make_sleep,
    make_stop,
    sleep,
    stop,
)
from tests.app.orchestration.recorder import add, use

pytestmark = pytest.mark.anyio

schema_class()  # Loading it uses a thread, which a clock that jumps would pass.


def agent_with(*replies: Any, **options: Any) -> Agent:
    tools = [sleep, stop, handoff_to_user, notebook, add]
    return Agent(ScriptedModel(list(replies)), **{"tools": tools, "callback_handler": None, **options})


def results_of(agent: Agent) -> list[tuple[str, str]]:
    found = [result for message in agent.messages for result in tool_results(message)]
    return [(result["status"], str(result["content"][0].get("text"))) for result in found]


async def test_sleep_waits_that_long() -> None:
    began = anyio.current_time()
    agent = agent_with(use("sleep", duration=30), "ok")
    await agent.invoke_async("wait")
    assert anyio.current_time() - began >= 30
    assert results_of(agent) == [("success", "Slept for 30.0 seconds")]


@pytest.mark.parametrize("duration", [61, -1, math.nan, math.inf, True, "1"])
async def test_sleep_refuses_what_is_no_time_that_it_may_wait(duration: Any) -> None:
    with pytest.raises(Invalid):
        await sleep(duration=duration)


@pytest.mark.parametrize("most", [0, -1, math.inf, math.nan, True, "60"])
def test_a_bound_of_sleep_is_a_positive_number(most: Any) -> None:
    with pytest.raises(Invalid, match="max_duration"):
        make_sleep(max_duration=most)


async def test_stop_ends_the_turn_after_the_tools_of_the_step_with_the_message_as_its_answer() -> None:
    agent = agent_with([use("stop", message="All done."), use("add", a=1, b=2)], "never")
    result = await agent.invoke_async("go")
    assert (result.stop_reason, str(result).strip()) == ("cancelled", "All done.")
    assert results_of(agent) == [("success", "All done."), ("success", "3")]


async def test_a_message_of_stop_has_a_bound_and_may_be_left_out() -> None:
    agent = agent_with(use("stop"), "never")
    assert str(await agent.invoke_async("go")).strip() == "Agent loop stopped."
    brief = agent_with(use("stop", message="too long"), "ok", tools=[make_stop(max_message_length=3)])
    assert (await brief.invoke_async("go")).stop_reason == "end_turn"
    for wrong in (0, -1, True, 1.5):
        with pytest.raises(Invalid):
            make_stop(max_message_length=wrong)  # type: ignore[arg-type]


@pytest.mark.real_time
async def test_the_user_is_asked_across_a_restart_and_the_answer_is_the_result(tmp_path: Path) -> None:
    def agent(*replies: Any) -> Agent:
        manager = SQLiteSessionManager("s", path=tmp_path / "a.db")
        return agent_with(*replies, session_manager=manager, tools=[make_handoff_to_user(name="ask")])

    await agent(use("ask", message="Which colour?")).invoke_async("paint")
    later = agent("fine")
    await later.ready()
    (asked,) = later.interrupts
    assert (asked.name, asked.reason) == (HANDOFF_INTERRUPT_NAME, "Which colour?")
    prompt: Any = [{"interruptResponse": {"interruptId": asked.id, "response": "red"}}]
    await later.invoke_async(prompt)
    assert results_of(later) == [("success", "red")]


@pytest.mark.parametrize("message", ["", "  "])
async def test_nobody_is_asked_nothing(message: str) -> None:
    agent = agent_with(use("handoff_to_user", message=message), "ok")
    assert (await agent.invoke_async("go")).stop_reason == "end_turn"
    assert results_of(agent)[0][0] == "error"


# Notebooks.


async def noted(*uses: dict[str, Any]) -> tuple[Agent, list[tuple[str, str]]]:
    agent = agent_with(*[use("notebook", **each) for each in uses], "ok")
    await agent.invoke_async("note")
    return agent, results_of(agent)


async def test_notes_are_written_and_read() -> None:
    agent, results = await noted(
        {"mode": "create", "name": "plan", "new_str": "one\nthree"},
        {"mode": "write", "name": "plan", "insert_line": 1, "new_str": "two"},
        {"mode": "write", "name": "plan", "insert_line": "three", "new_str": "four"},
        {"mode": "write", "name": "plan", "old_str": "one", "new_str": "1"},
        {"mode": "write", "name": "plan", "new_str": "end"},
        {"mode": "read", "name": "plan"},
        {"mode": "read", "name": "plan", "read_range": [-2, -1]},
        {"mode": "list"},
    )
    assert [status for status, _ in results] == ["success"] * 8
    assert [text for _, text in results[5:]] == [
        "1\ntwo\nthree\nfour\nend",
        "4: four\n5: end",
        "Available notebooks:\n- default: Empty\n- plan: 5 lines",
    ]
    assert agent.state.get("notebooks") == {"default": "", "plan": "1\ntwo\nthree\nfour\nend"}


@pytest.mark.parametrize(
    "wrong",
    [
        {"mode": "read", "name": "none"},
        {"mode": "write", "name": "none", "new_str": "x"},
        {"mode": "write"},
        {"mode": "write", "old_str": "x", "new_str": "y"},
        {"mode": "write", "old_str": "x", "insert_line": 1, "new_str": "y"},
        {"mode": "write", "insert_line": 9, "new_str": "y"},
        {"mode": "write", "insert_line": "none", "new_str": "y"},
        {"mode": "read", "read_range": [1]},
    ],
)
async def test_a_wrong_use_is_an_error_and_changes_no_notes(wrong: dict[str, Any]) -> None:
    agent, results = await noted({"mode": "create", "new_str": "a"}, wrong)
    assert [status for status, _ in results] == ["success", "error"]
    assert agent.state.get("notebooks") == {"default": "a"}


async def test_reading_changes_no_state() -> None:
    agent, _ = await noted({"mode": "read"}, {"mode": "list"})
    assert agent.state.get("notebooks") is None


async def test_notes_have_a_bound_of_bytes() -> None:
    agent = agent_with(
        use("notebook", mode="create", new_str="äää"), "ok", tools=[make_notebook(max_notebook_size_bytes=5)]
    )
    await agent.invoke_async("note")
    assert results_of(agent)[0][0] == "error"
    assert agent.state.get("notebooks") is None


@pytest.mark.real_time
async def test_notes_outlive_a_restart(tmp_path: Path) -> None:
    def agent(*replies: Any) -> Agent:
        return agent_with(*replies, session_manager=SQLiteSessionManager("s", path=tmp_path / "a.db"))

    await agent(use("notebook", mode="create", new_str="kept"), "ok").invoke_async("note")
    later = agent(use("notebook", mode="read"), "ok")
    await later.invoke_async("read")
    assert results_of(later)[-1] == ("success", "kept")


async def test_state_that_something_else_has_written_is_refused() -> None:
    agent = agent_with(use("notebook", mode="list"), "ok", state={"notebooks": {"a": 1}})
    await agent.invoke_async("?")
    assert results_of(agent)[0][0] == "error"
