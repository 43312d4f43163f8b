"""Killed at every record: a graph and a swarm still give one answer, and each node's effects are done once."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from repertory import (
    Agent,
    BeforeNodeCallEvent,
    Graph,
    GraphBuilder,
    GraphState,
    MultiAgentResult,
    ScriptedModel,
    Status,
    Swarm,
    ToolContext,
    tool,
)
from repertory.app.orchestration.orchestrator import Orchestrator
from repertory.app.sessions.sessions import PlacedSession
from repertory.backends.tools.function_tool import schema_class
from repertory.core.messages import Message
from tests.simulation.killed_worlds import World

pytestmark = pytest.mark.anyio
schema_class()  # Loading it takes a thread, and time on these clocks stands still or jumps.

TASK = "Build the shed"


def worker(world: World, name: str, *, handing: str | None = None, asks: bool = False) -> Agent:
    """Does one thing outside, if a person agrees when it asks, then says so; may hand over in between."""

    @tool(name="work")
    async def work(tool_context: ToolContext) -> str:
        """Do it."""
        if asks:
            assert tool_context.interrupt("may I?", reason=name) == "yes"
        world.effect(f"{name} {tool_context.idempotency_key}")
        return "done"

    def reply(messages: Sequence[Message], *_: object) -> Any:
        results = [block["toolResult"] for message in messages for block in message["content"] if "toolResult" in block]
        steps = sum(result["status"] == "success" for result in results)  # What was cut short is asked for again.
        if steps == 0:
            return {"toolUse": {"name": "work", "input": {}}}
        if steps == 1 and handing is not None:
            told = {"agent_name": handing, "message": f"{name} is done", "context": {"from": name}}
            return {"toolUse": {"name": "handoff_to_agent", "input": told}}
        return f"{name} has worked"

    model = ScriptedModel([reply], loop=True)
    return Agent(model, tools=[work], name=name, callback_handler=None, unknown_tool_outcome="retry")


def graph(world: World) -> Graph:
    """A diamond with a short cut, a condition, and a node after it."""
    builder = GraphBuilder().set_session_manager(PlacedSession("s", world, takeover=True))
    for name in ("root", "left", "right", "join", "end"):
        builder.add_node(worker(world, name), name)

    def both(state: GraphState) -> bool:
        return {"left", "right"} <= state.results.keys()

    for source, target in (("root", "left"), ("root", "right"), ("left", "join"), ("right", "join")):
        builder.add_edge(source, target)
    builder.add_edge("join", "end", both)
    return builder.build()


def swarm(world: World) -> Swarm:
    """Three agents, one after the other."""
    agents = [worker(world, "a", handing="b"), worker(world, "b", handing="c"), worker(world, "c")]
    return Swarm(agents, session_manager=PlacedSession("s", world, takeover=True))


def nested(world: World) -> Graph:
    """A swarm and a graph as nodes of a graph."""
    inner = Graph({"one": worker(world, "one"), "two": worker(world, "two")}, id="inner")
    team = Swarm([worker(world, "a", handing="b"), worker(world, "b")], id="team")
    last = worker(world, "last")
    nodes = {"inner": inner, "team": team, "last": last}
    return Graph(nodes, session_manager=PlacedSession("s", world, takeover=True))


MAKERS: list[tuple[Callable[[World], Orchestrator], int]] = [(graph, 5), (swarm, 3), (nested, 5)]


def said(result: MultiAgentResult) -> list[str]:
    """What the nodes said. Those that run at the same time end in any order."""
    return sorted(str(result).splitlines())


@pytest.mark.parametrize(("make", "workers"), MAKERS, ids=["graph", "swarm", "nested"])
async def test_a_run_that_is_killed_at_every_record_gives_one_answer_and_does_everything_once(
    make: Callable[[World], Orchestrator], workers: int
) -> None:
    whole = World()
    expected = await make(whole).invoke_async(TASK, idempotency_token="the run")
    assert expected.status is Status.COMPLETED
    assert sorted(whole.effects.values()) == [1] * workers
    assert len(whole.left) > 2 * workers
    for place, left in enumerate(whole.left):
        result = await make(left).invoke_async(TASK, idempotency_token="the run")
        assert (result.status, said(result), result.run) == (Status.COMPLETED, said(expected), 1), place
        assert len(left.effects) == workers, (place, left.effects)
    assert result.replayed


@pytest.mark.parametrize(("make", "workers"), MAKERS, ids=["graph", "swarm", "nested"])
async def test_a_run_may_be_killed_again_and_again(
    make: Callable[[World], Orchestrator], workers: int, rng: random.Random
) -> None:
    world = World()
    expected = await make(world).invoke_async(TASK, idempotency_token="the run")
    for _ in range(12):
        world = rng.choice(world.left) if world.left else World()
        result = await make(world).invoke_async(TASK, idempotency_token="the run")
        assert (result.status, said(result), result.run) == (Status.COMPLETED, said(expected), 1)
        assert len(world.effects) == workers


def asking(world: World) -> Graph:
    """Two nodes that ask at the same time, one of them in a swarm, and a hook that asks before the last one."""
    builder = GraphBuilder().set_session_manager(PlacedSession("s", world, takeover=True))
    builder.add_node(worker(world, "one", asks=True), "one")
    builder.add_node(Swarm([worker(world, "a", handing="b"), worker(world, "b", asks=True)], id="team"), "team")
    builder.add_node(worker(world, "last"), "last")
    builder.add_edge("one", "last")
    builder.add_edge("team", "last")
    made = builder.build()

    def approve(event: BeforeNodeCallEvent) -> None:
        if event.node_id == "last":
            assert event.interrupt("last?") == "yes"

    made.add_hook(approve)
    return made


async def finish(world: World) -> MultiAgentResult:
    """Go on with the run, and agree to everything, each time in a new process."""
    result = await asking(world).invoke_async(TASK, idempotency_token="the run")
    while result.status is Status.INTERRUPTED:
        ids = [interrupt.id for interrupt in result.interrupts]
        answers: Any = [{"interruptResponse": {"interruptId": each, "response": "yes"}} for each in ids]
        result = await asking(world).invoke_async(answers)
    return result


async def test_a_run_that_waits_for_people_may_be_killed_at_every_record() -> None:
    whole = World()
    expected = await finish(whole)
    assert sorted(whole.effects.values()) == [1] * 4
    for place, left in enumerate(whole.left):
        result = await finish(left)
        assert (result.status, said(result), result.run) == (Status.COMPLETED, said(expected), 1), place
        assert len(left.effects) == 4, (place, left.effects)


async def test_a_caller_who_goes_on_with_other_values_for_conditions_has_nothing_done_twice() -> None:
    def with_condition(world: World) -> Graph:
        builder = GraphBuilder().set_session_manager(PlacedSession("s", world, takeover=True))
        for name in ("root", "a", "b", "join"):
            builder.add_node(worker(world, name), name)
        for source, target in (("root", "a"), ("root", "b"), ("a", "join")):
            builder.add_edge(source, target)

        def wanted(state: GraphState, *, invocation_state: dict[str, Any]) -> bool:
            return "b" in state.results and invocation_state["b"]

        builder.add_edge("b", "join", wanted)
        return builder.build()

    whole = World()
    await with_condition(whole).invoke_async(TASK, invocation_state={"b": True}, idempotency_token="the run")
    for place, left in enumerate(whole.left):
        result = await with_condition(left).invoke_async(
            TASK, invocation_state={"b": False}, idempotency_token="the run"
        )
        assert (result.status, result.run, len(left.effects)) == (Status.COMPLETED, 1, 4), (place, left.effects)


async def test_a_run_that_is_over_is_not_run_again_under_its_token() -> None:
    world = World()
    first = await graph(world).invoke_async(TASK, idempotency_token="t")
    again = await graph(world).invoke_async(TASK, idempotency_token="t")
    assert (again.replayed, said(again), again.run) == (True, said(first), 1)
    assert sorted(world.effects.values()) == [1] * 5
