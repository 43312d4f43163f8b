"""Tools in the background of agents that are called outside of any block, whose session lives from call to call."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import anyio
import pytest

from repertory import Agent, BeforeToolCallEvent, ScriptedModel, SQLiteSessionManager, ToolContext, tool
from repertory.backends.tools.function_tool import schema_class
from repertory.core.messages import Message, text_of, tool_results
from repertory.core.turns.background_tasks import FLAG
from repertory.errors import AgentBusy
from tests.source_tree import ROOT

pytestmark = pytest.mark.anyio

schema_class()  # Loading it reads files, which must not be in an event loop.


def think(messages: Sequence[Message], *_: object) -> object:
    """A model that puts `slow` in the background when it is told to go, and says what it hears."""
    last = messages[-1]
    if any(tool_results(last)):
        return "It runs."
    text = text_of(last)
    if "background_tool_result" in text:
        return "It is done."
    return {"toolUse": {"name": "slow", "input": {FLAG: True}}} if text == "go" else f"You said {text}."


def asking_nobody(slow: Any, folder: Path | None = None, **options: Any) -> Agent:
    manager = None if folder is None else SQLiteSessionManager("s", path=str(folder / "sessions.db"))
    options = {"background_tasks": {"wait_for_completion": False}, "callback_handler": None, **options}
    return Agent(ScriptedModel([cast("Any", think)], loop=True), tools=[slow], session_manager=manager, **options)


@pytest.mark.parametrize("stored", [False, True], ids=["in memory", "stored"])
@pytest.mark.real_time  # A stored session uses a thread.
async def test_a_call_that_does_not_wait_returns_and_the_next_ones_meet_the_tool(tmp_path: Path, stored: bool) -> None:
    ends, runs = anyio.Event(), list[str]()

    @tool
    async def slow() -> str:
        """Take some time."""
        runs.append("began")
        await ends.wait()
        return "done"

    agent = asking_nobody(slow, tmp_path if stored else None)
    with anyio.fail_after(20):
        assert str(await agent.invoke_async("go")) == "It runs."
        assert str(await agent.invoke_async("Hello")) == "You said Hello."
        assert [str(event["result"]) async for event in agent.stream_async("Ho") if "result" in event] == [
            "You said Ho."
        ]
        ends.set()
        answer = ""
        while answer != "It is done.":
            answer = str(await agent.invoke_async("And now?"))
        assert runs == ["began"]


@pytest.mark.real_time
async def test_another_agent_of_the_session_waits_for_the_tool_or_is_refused(tmp_path: Path) -> None:
    ends = anyio.Event()

    @tool
    async def slow() -> str:
        """Take some time."""
        await ends.wait()
        return "done"

    first, second = asking_nobody(slow, tmp_path), asking_nobody(slow, tmp_path)
    with anyio.fail_after(20):
        assert str(await first.invoke_async("go")) == "It runs."
        with pytest.raises(AgentBusy):
            await second.invoke_async("Hello", busy="reject")
        with pytest.raises(AgentBusy):
            await second.invoke_async("Hello", timeout_s=0.2)
        ends.set()
        assert str(await second.invoke_async("Hello")) == "It is done."


@pytest.mark.real_time
async def test_the_session_is_given_up_soon_after_the_last_tool(tmp_path: Path) -> None:
    ends = anyio.Event()

    @tool
    async def slow() -> str:
        """Take some time."""
        await ends.wait()
        return "done"

    agent, another = (
        asking_nobody(slow, tmp_path),
        "from pathlib import Path; import sys, anyio\n"
        + (
            "from tests.app.agent.test_background_bare_calls import asking_nobody, tool\n"
            "@tool\ndef slow() -> str:\n    'Take some time.'\n    return ''\n"
            "print(asking_nobody(slow, Path(sys.argv[1]))('Hello', busy='reject'))"
        ),
    )
    with anyio.fail_after(60):
        assert str(await agent.invoke_async("go")) == "It runs."
        command = [sys.executable, "-c", another, str(tmp_path)]
        refused = await anyio.run_process(command, cwd=ROOT, check=False)
        assert b"SessionBusy" in refused.stderr
        ends.set()
        await anyio.sleep(0.2)
        answered = await anyio.run_process(command, cwd=ROOT)
        assert answered.stdout.strip() == b"It is done."


async def test_a_question_reaches_the_caller_while_another_tool_runs() -> None:
    @tool
    async def slow(tool_context: ToolContext) -> str:
        """Wait until it is cancelled."""
        await anyio.sleep_forever()
        return ""

    @tool
    async def approved(tool_context: ToolContext) -> str:
        """Ask a person."""
        return str(tool_context.interrupt("approve", reason="Now?"))

    both = [{"toolUse": {"name": name, "input": {FLAG: True}}} for name in ("slow", "approved")]
    agent = Agent(
        ScriptedModel([both, "They run.", "They go on."]),
        tools=[slow, approved],
        background_tasks=True,
        callback_handler=None,
    )
    with anyio.fail_after(600):
        result = await agent.invoke_async("go")
    assert result.stop_reason == "interrupt"
    assert [question.name for question in result.interrupts] == ["approve"]


def test_a_synchronous_call_that_does_not_wait_returns_too() -> None:
    ends = threading.Event()

    @tool
    def slow() -> str:
        """Take some time."""
        ends.wait(60)
        return "done"

    agent = asking_nobody(slow)
    assert str(agent("go")) == "It runs."
    assert str(agent("Hello")) == "You said Hello."
    ends.set()
    until = time.monotonic() + 20
    while str(agent("And now?")) != "It is done.":
        assert time.monotonic() < until


@pytest.mark.real_time
@pytest.mark.parametrize("ending", ["ends", "fails"])
def test_a_program_ends_although_a_tool_runs(ending: str, tmp_path: Path) -> None:
    """The tool looks at nothing but `cancel_signal`, and never waits."""
    program = f"""
import asyncio
from pathlib import Path
from repertory import ToolContext, tool
from tests.app.agent.test_background_bare_calls import asking_nobody

@tool
async def slow(tool_context: ToolContext) -> str:
    "Take some time."
    while not tool_context.cancel_signal.is_set():
        await asyncio.sleep(0)
    return "cancelled"

async def main() -> None:
    print(await asking_nobody(slow, Path({str(tmp_path)!r})).invoke_async("go"), flush=True)
    {"return" if ending == "ends" else "raise KeyError"}

asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, timeout=60, capture_output=True, check=False)
    assert done.stdout.strip() == b"It runs."
    assert (done.returncode == 0) == (ending == "ends"), done.stderr.decode()


async def test_pieces_of_a_tool_in_the_background_reach_the_caller_that_waits() -> None:
    @tool
    async def counting():
        """Count."""
        yield "half way"
        yield "done"

    heard: list[object] = []

    def hear(**event: Any) -> None:
        if "tool_stream_event" in event:
            heard.append(event["tool_stream_event"]["data"])

    replies = [{"toolUse": {"name": "counting", "input": {FLAG: True}}}, "It runs.", "It is done."]
    agent = Agent(ScriptedModel(replies), tools=[counting], background_tasks=True, callback_handler=hear)
    assert str(await agent.invoke_async("go")) == "It is done."
    assert heard[0] == "half way"


async def test_a_hook_that_names_another_tool_has_that_one_run() -> None:
    ran: list[str] = []

    @tool
    def one() -> str:
        """Run."""
        ran.append("one")
        return "one"

    @tool
    def other() -> str:
        """Run."""
        ran.append("other")
        return "other"

    def rename(event: BeforeToolCallEvent) -> None:
        event.tool_use["name"] = next(names)

    names = iter(["other", "nothing"])
    uses = [{"toolUse": {"name": "one", "input": {}}}] * 2
    agent = Agent(ScriptedModel([*uses, "Fine."]), tools=[one, other], callback_handler=None)
    agent.add_hook(rename, BeforeToolCallEvent)
    await agent.invoke_async("go")
    assert ran == ["other"]
    assert "Unknown tool: nothing" in str(agent.messages[4])
