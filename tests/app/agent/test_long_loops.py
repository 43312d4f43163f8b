"""Runs that go round very often: limits hold, nothing is forgotten, and nobody is asked for the same work twice."""

from __future__ import annotations

import gc
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from repertory import (
    Agent,
    AgentSpec,
    FileSessionManager,
    GraphBuilder,
    GraphResult,
    NodeFailed,
    Runtime,
    ScriptedModel,
    SQLiteSessions,
    Status,
    Swarm,
    SwarmResult,
    tool,
)
from repertory.actors.call import Invocation
from repertory.actors.turn import TurnDriver
from repertory.backends.tools.function_tool import schema_class
from repertory.core.messages import Message

pytestmark = pytest.mark.anyio
schema_class()  # Loading it uses a thread, which a clock that jumps would pass.


async def test_a_swarm_that_hands_over_for_ever_is_stopped_by_its_limit_however_high() -> None:
    def handing(to: str) -> Agent:
        use = {"name": "handoff_to_agent", "input": {"agent_name": to, "message": "you"}}

        def reply(messages: Sequence[Message], *_: object) -> Any:
            return "ok" if "toolResult" in messages[-1]["content"][0] else {"toolUse": use}

        return Agent(ScriptedModel([reply], loop=True), name="b" if to == "a" else "a", callback_handler=None)

    swarm = Swarm([handing("b"), handing("a")], max_handoffs=150, max_iterations=150)
    result = await swarm.invoke_async("Go")
    assert isinstance(result, SwarmResult)
    assert (result.status, result.reason) == (Status.FAILED, "Max handoffs reached: 150")
    assert [str(each) for each in result.node_history] == ["a", "b"] * 75


@pytest.mark.real_time
@pytest.mark.parametrize("kept", [False, True], ids=["memory", "sqlite"])
async def test_turns_that_are_over_are_freed_without_the_garbage_collector(kept: bool, tmp_path: Path) -> None:
    @tool(effects=False)
    def add(a: int, b: int) -> int:
        """Add."""
        return a + b

    replies: list[Any] = [{"toolUse": {"name": "add", "input": {"a": 1, "b": 2}}}, "3"]
    spec = AgentSpec(model=ScriptedModel(replies, loop=True), tools=[add])
    async with Runtime(sessions=SQLiteSessions(tmp_path / "sessions.db") if kept else None) as runtime:
        session = runtime.agent(spec).session("s")
        await session.invoke("warm up")
        gc.collect()
        gc.disable()
        try:
            before = turns_in_memory()
            for _ in range(10):
                await session.invoke("go on")
            left = turns_in_memory() - before
        finally:
            gc.enable()
    assert left <= 1, "at most the call that was answered just now"


def turns_in_memory() -> int:
    return sum(isinstance(each, TurnDriver | Invocation) for each in gc.get_objects())


def written_anew(folder: Path) -> dict[str, Any]:
    """What the document of the only run there says; its time is another one now."""
    (document,) = folder.rglob("multi_agent.json")
    said = json.loads(document.read_bytes())
    document.write_text(json.dumps({**said, "execution_time": said["execution_time"] + 1}))
    return said


@pytest.mark.real_time
async def test_a_long_loop_goes_on_where_it_was_though_others_have_written_its_document_anew(tmp_path: Path) -> None:
    asked: list[str] = []

    def loop(failing: int) -> Any:
        def reply(*_: object) -> str:
            if len(asked) == failing:
                raise ConnectionError("down")
            asked.append(f"answer {len(asked) + 1}")
            return asked[-1]

        builder = GraphBuilder().set_session_manager(FileSessionManager("s", tmp_path))
        builder.add_node(Agent(ScriptedModel([reply], loop=True), callback_handler=None, retry_strategy=None), "w")
        builder.add_edge("w", "w", lambda state: len(state.execution_order) < 90)
        return builder.set_entry_point("w").set_max_node_executions(200).build()

    with pytest.raises(NodeFailed):
        await loop(80).invoke_async("Go")
    assert len(written_anew(tmp_path)["execution_order"]) == 80
    result = await loop(200).invoke_async()
    assert isinstance(result, GraphResult)
    assert (result.status, len(result.execution_order)) == (Status.COMPLETED, 90)
    assert (len(asked), str(result)) == (90, "w: answer 90")
