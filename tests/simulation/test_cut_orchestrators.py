"""Snapshots of a run at whatever moment they are taken: each is one moment of all nodes, so going on from it leads to
the same answer by the same conversations.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import anyio
import anyio.lowlevel
import pytest

from repertory import Agent, GraphBuilder, GraphState, MultiAgentResult, RunUnfinished, ScriptedModel, Snapshot, Status
from repertory.app.orchestration.orchestrator import Orchestrator
from repertory.app.sessions.sessions import PlacedSession
from repertory.backends.tools.function_tool import schema_class
from repertory.core.messages import Message
from tests.simulation.killed_worlds import World
from tests.simulation.test_killed_orchestrators import TASK, graph, nested, said, swarm

pytestmark = pytest.mark.anyio
schema_class()  # Loading it takes a thread, and time on these clocks stands still or jumps.


def looping(world: World) -> Orchestrator:
    """Two nodes that work in turns, three times each, beside one that works once."""

    def counting(name: str) -> Agent:
        def reply(messages: Sequence[Message], *_: object) -> str:
            return f"{name} {sum(message['role'] == 'user' for message in messages)}"

        return Agent(ScriptedModel([reply], loop=True), callback_handler=None)

    def go_on(state: GraphState) -> bool:
        return sum(node.node_id == "critic" for node in state.execution_order) < 3

    builder = GraphBuilder().set_session_manager(PlacedSession("s", world, takeover=True))
    for name in ("root", "writer", "critic", "other"):
        builder.add_node(counting(name), name)
    builder.add_edge("root", "writer")
    builder.add_edge("root", "other")
    builder.add_edge("writer", "critic")
    builder.add_edge("critic", "writer", go_on)
    return builder.set_entry_point("root").set_max_node_executions(20).build()


MAKERS: list[Callable[[World], Orchestrator]] = [graph, swarm, nested, looping]


def plain(message: Mapping[str, Any]) -> tuple[str, list[object]]:
    """What it says, without the ids of tool uses: a model of another process counts them anew."""
    said = [{**each, "toolUseId": ""} for block in message["content"] for each in block.values() if "text" not in block]
    return message["role"], [*(block["text"] for block in message["content"] if "text" in block), *said]


def conversations(state: Mapping[str, Any]) -> dict[str, object]:
    """What every node has said and heard, by name."""
    nodes = cast("dict[str, Any]", state["nodes"])
    return {
        name: [plain(message) for message in node["messages"]] if node["type"] == "agent" else conversations(node)
        for name, node in sorted(nodes.items())
    }


async def cut_while_it_runs(made: Orchestrator, rng: random.Random) -> tuple[MultiAgentResult, list[Snapshot]]:
    """The result of a run, and snapshots that were begun at many moments of it, several at a time."""
    taken: list[Snapshot] = []
    results: list[MultiAgentResult] = []

    async def run() -> None:
        results.append(await made.invoke_async(TASK, idempotency_token="the run"))

    async def take() -> None:
        taken.append(await made.save_snapshot_async())

    async with anyio.create_task_group() as group:
        group.start_soon(run)
        while not results:
            for _ in range(rng.randint(1, 40)):
                await anyio.lowlevel.checkpoint()
            if not results:
                group.start_soon(take)
    return results[0], taken


def has_begun(snapshot: Snapshot) -> bool:
    """Whether there was a run when it was taken."""
    return bool(snapshot.data["run"])


@pytest.mark.parametrize("make", MAKERS, ids=["graph", "swarm", "nested", "looping"])
async def test_every_moment_of_a_run_goes_on_to_the_same_answer_by_the_same_conversations(
    make: Callable[[World], Orchestrator], rng: random.Random
) -> None:
    unfinished = 0
    while not unfinished:
        first = make(World())
        expected, taken = await cut_while_it_runs(first, rng)
        there = conversations((await first.save_snapshot_async()).data)
        for place, snapshot in enumerate(filter(has_begun, taken)):
            again = make(World())
            await again.load_snapshot_async(json.loads(json.dumps(snapshot)))
            result = await again.invoke_async(TASK, idempotency_token="the run")
            unfinished += result.resumed
            assert (result.status, said(result)) == (Status.COMPLETED, said(expected)), place
            assert conversations((await again.save_snapshot_async()).data) == there, place


@pytest.mark.parametrize("make", MAKERS, ids=["graph", "swarm", "nested", "looping"])
async def test_loading_may_be_killed_at_every_record(make: Callable[[World], Orchestrator], rng: random.Random) -> None:
    """Whoever comes next is told, and loads it again, or begins another run."""
    begun: list[Snapshot] = []
    while not begun:
        expected, taken = await cut_while_it_runs(make(World()), rng)
        begun += filter(has_begun, taken)
    snapshot = rng.choice(begun)
    world = World()
    there = make(world)
    await there.invoke_async("something else")
    before = len(world.left)
    await there.load_snapshot_async(snapshot)
    torn = 0
    for left in world.left[before:]:
        again = make(left)
        try:
            result = await again.invoke_async(TASK, idempotency_token="the run", resume=True)
        except RunUnfinished:
            torn += 1
            await again.load_snapshot_async(snapshot)
            result = await again.invoke_async(TASK, idempotency_token="the run", resume=True)
        assert (result.status, said(result)) == (Status.COMPLETED, said(expected))
    assert torn
