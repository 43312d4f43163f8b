"""Nodes that come round again, killed at every record: what they did in each round they have done once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from repertory import Agent, Graph, GraphBuilder, GraphState, ScriptedModel, Status, Swarm, ToolContext, tool
from repertory.app.orchestration.orchestrator import Orchestrator
from repertory.app.sessions.sessions import PlacedSession
from repertory.backends.tools.function_tool import schema_class
from repertory.core.messages import Message
from tests.simulation.killed_worlds import World
from tests.simulation.test_killed_orchestrators import TASK, said

pytestmark = pytest.mark.anyio
schema_class()  # Loading it takes a thread, and time on these clocks stands still or jumps.


def worker(world: World, name: str, *, handing: str | None = None) -> Agent:
    """Does one thing outside each time that it is told something, and then hands over, unless others have worked."""

    @tool(name="work")
    async def work(tool_context: ToolContext) -> str:
        """Do it."""
        world.effect(f"{name} {tool_context.idempotency_key}")
        return "done"

    def reply(messages: Sequence[Message], *_: object) -> Any:
        told = [place for place, each in enumerate(messages) if each["role"] == "user" and "text" in each["content"][0]]
        turn = [block for each in messages[told[-1] :] for block in each["content"]]
        steps = sum("toolResult" in block and block["toolResult"]["status"] == "success" for block in turn)
        if steps == 0:
            return {"toolUse": {"name": "work", "input": {}}}
        to = None if name == "a" and any("from b" in block.get("text", "") for block in turn) else handing
        if steps == 1 and to is not None:
            given = {"agent_name": to, "message": f"from {name}"}
            return {"toolUse": {"name": "handoff_to_agent", "input": given}}
        return f"{name} has worked"

    model = ScriptedModel([reply], loop=True)
    return Agent(model, tools=[work], name=name, callback_handler=None, unknown_tool_outcome="retry")


def looping(world: World, node: object, *, reset: bool = False) -> Graph:
    """One node, three times."""
    builder = GraphBuilder().set_session_manager(PlacedSession("s", world, takeover=True))
    builder.add_node(node, "again")

    def wanted(state: GraphState) -> bool:
        return len(state.execution_order) < 3

    builder.add_edge("again", "again", wanted)
    return builder.set_entry_point("again").set_max_node_executions(9).reset_on_revisit(reset).build()


def with_memory(world: World) -> Graph:
    return looping(world, worker(world, "it"))


def without_memory(world: World) -> Graph:
    return looping(world, worker(world, "it"), reset=True)


def nested(world: World) -> Graph:
    return looping(world, Graph({"one": worker(world, "one")}, id="inner"))


def nested_without_memory(world: World) -> Graph:
    return looping(world, Graph({"one": worker(world, "one")}, id="inner"), reset=True)


def swarm(world: World) -> Swarm:
    agents = [worker(world, "a", handing="b"), worker(world, "b", handing="a")]
    return Swarm(agents, session_manager=PlacedSession("s", world, takeover=True))


@pytest.mark.parametrize("make", [with_memory, without_memory, nested, nested_without_memory, swarm])
async def test_every_round_is_done_once_though_the_process_is_killed_at_every_record(
    make: Callable[[World], Orchestrator[Any]],
) -> None:
    whole = World()
    expected = await make(whole).invoke_async(TASK, idempotency_token="the run")
    assert expected.status is Status.COMPLETED
    assert sorted(whole.effects.values()) == [1, 1, 1]
    for place, left in enumerate(whole.left):
        result = await make(left).invoke_async(TASK, idempotency_token="the run")
        assert (result.status, said(result), result.run) == (Status.COMPLETED, said(expected), 1), place
        assert len(left.effects) == 3, (place, left.effects)
