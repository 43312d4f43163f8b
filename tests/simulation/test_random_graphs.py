"""Graphs of any shape, killed at any moment: what was said, by whom and in which conversations, and what was done, is
what it is when nobody is killed.
"""

from __future__ import annotations

import random
from collections.abc import Mapping

import pytest

from repertory import MultiAgentResult, Status
from repertory.backends.tools.function_tool import schema_class
from tests.app.orchestration.interrupted_agents import answering
from tests.simulation.killed_worlds import World
from tests.simulation.random_graphs import RandomGraph
from tests.simulation.test_cut_orchestrators import conversations
from tests.simulation.test_killed_orchestrators import said

pytestmark = pytest.mark.anyio
schema_class()  # Loading it takes a thread, and time on these clocks stands still or jumps.

_GRAPHS, _KILLS = 4, 6


async def finished(graph: RandomGraph, world: World) -> tuple[MultiAgentResult, Mapping[str, object]]:
    """The end of the run, gone on with by another process after each answer, and all conversations."""
    made = graph.build(world)
    result = await made.invoke_async("Build", idempotency_token="the run")
    while result.interrupts:
        made = graph.build(world)
        result = await made.invoke_async(answering(result.interrupts[:1]))
    return result, conversations((await made.save_snapshot_async()).data)


def rounds(result: MultiAgentResult) -> list[str]:
    """How often each node has worked. Those that work at the same time end in any order."""
    return sorted(each.node_id for each in result.execution_order)  # type: ignore[attr-defined]


def done(world: World) -> list[str]:
    """Who has done something, once for each thing: models of another process number their calls anew."""
    return sorted(key.split()[0] for key in world.effects)


async def test_a_graph_of_any_shape_may_be_killed_at_any_moment(rng: random.Random) -> None:
    for _ in range(_GRAPHS):
        graph, whole = RandomGraph(rng.getrandbits(32)), World()
        expected, talks = await finished(graph, whole)
        assert expected.status is Status.COMPLETED, graph
        assert set(whole.effects.values()) == {1}, graph
        for left in rng.sample(whole.left, min(_KILLS, len(whole.left))):
            result, again = await finished(graph, left)
            assert (result.run, said(result), rounds(result)) == (1, said(expected), rounds(expected)), graph
            assert (done(left), again) == (done(whole), talks), graph
