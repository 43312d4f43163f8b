"""A graph within a graph that runs again: with `reset_on_revisit` its agents begin with what they were built with."""

from __future__ import annotations

import random
from typing import Any

import pytest

from repertory import Agent, Graph, GraphBuilder, NodeFailed, ScriptedModel, Status
from repertory.app.sessions.sessions import PlacedSession
from tests.app.orchestration.session_shelf import Shelf

pytestmark = pytest.mark.anyio


class Shown:
    """An agent that keeps how many messages it is shown."""

    def __init__(self, *, fails_on: int = 0, delay_s: float = 0.0) -> None:
        self.counts: list[int] = []
        self.fails_on = fails_on
        self.delay_s = delay_s

    def agent(self) -> Agent:
        def reply(messages: Any, *_: Any) -> str:
            self.counts.append(len(messages))
            if len(self.counts) == self.fails_on:
                raise ConnectionError("down")
            return "said"

        model = ScriptedModel([reply], loop=True, delay_s=self.delay_s)
        return Agent(model, callback_handler=None, retry_strategy=None)


def visited(first: Shown, second: Shown, *, reset: bool, depth: int = 1, shelf: Shelf | None = None) -> Graph:
    """A graph whose nested one, of two agents, runs three times."""
    inner: object = Graph({"x": first.agent(), "y": second.agent()}, id="inner")
    for level in range(1, depth):
        inner = Graph({"in": inner}, id=f"inner{level}")
    builder = GraphBuilder()
    builder.add_node(inner, "in")
    builder.add_node(Shown().agent(), "again")
    builder.add_edge("in", "again")
    builder.add_edge("again", "in", lambda state: len(state.execution_order) < 5)
    builder.set_entry_point("in").set_max_node_executions(9).reset_on_revisit(reset)
    if shelf is not None:
        builder.set_session_manager(PlacedSession("s", shelf))
    return builder.build()


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("kept", [False, True])
async def test_its_agents_begin_anew_each_time(kept: bool, depth: int) -> None:
    first, second = Shown(), Shown()
    graph = visited(first, second, reset=True, depth=depth, shelf=Shelf() if kept else None)
    result = await graph.invoke_async("Go")
    assert (result.status, len(result.execution_order)) == (Status.COMPLETED, 6)
    assert (first.counts, second.counts) == ([1, 1, 1], [1, 1, 1])


async def test_without_it_their_conversations_go_on() -> None:
    first, second = Shown(), Shown()
    await visited(first, second, reset=False).invoke_async("Go")
    assert (first.counts, second.counts) == ([1, 3, 5], [1, 3, 5])


async def test_a_visit_that_was_cut_short_goes_on_where_it_was_after_a_restart() -> None:
    first, second, shelf = Shown(), Shown(fails_on=2), Shelf()
    with pytest.raises(NodeFailed):
        await visited(first, second, reset=True, shelf=shelf).invoke_async("Go")
    assert (first.counts, second.counts) == ([1, 1], [1, 1])
    result = await visited(first, second, reset=True, shelf=shelf).invoke_async()
    assert (result.status, result.resumed) == (Status.COMPLETED, True)
    assert (first.counts, second.counts) == ([1, 1, 1], [1, 1, 1, 1]), "the first one is not asked again"


async def test_wherever_it_is_cut_short_each_visit_begins_anew_once(rng: random.Random) -> None:
    first, second, shelf = Shown(delay_s=0.1), Shown(delay_s=0.1), Shelf()
    calls = 1
    graph = visited(first, second, reset=True, shelf=shelf)
    result = await graph.invoke_async("Go", timeout_s=rng.uniform(0.05, 1.5))
    while result.status is not Status.COMPLETED:
        calls += 1
        result = await visited(first, second, reset=True, shelf=shelf).invoke_async(timeout_s=rng.uniform(0.6, 1.5))
    assert (result.run, len(result.execution_order)) == (1, 6)
    assert set(first.counts) == set(second.counts) == {1}
    assert 3 <= len(first.counts) <= 2 + calls
