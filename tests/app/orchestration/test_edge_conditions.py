"""Conditions of edges: plain functions that look at the run, and are refused when they are anything else."""

from __future__ import annotations

from collections.abc import Awaitable
from functools import partial
from typing import Any

import anyio
import pytest

from repertory import Agent, Graph, GraphBuilder, GraphState, NodeFailed, ScriptedModel, Status
from repertory.core.orchestration.run import Run
from repertory.errors import HookFailed, Invalid

pytestmark = pytest.mark.anyio


def agent(*replies: Any) -> Agent:
    return Agent(ScriptedModel(replies or ("fine",), loop=True), callback_handler=None, retry_strategy=None)


async def later(state: GraphState, more: object = None) -> bool:
    return False


class Asked:
    async def __call__(self, state: GraphState) -> bool:
        return False


class Heir(Asked):
    async def method(self, state: GraphState) -> bool:
        return False


REFUSED: list[Any] = [later, partial(later, more=1), Asked(), Heir(), partial(Asked()), Heir().method, True, "yes"]


@pytest.mark.parametrize("condition", REFUSED, ids=range(len(REFUSED)))
def test_a_condition_that_is_async_or_no_function_is_refused_when_the_edge_is_added(condition: Any) -> None:
    builder = GraphBuilder()
    builder.add_node(agent(), "a")
    builder.add_node(agent(), "b")
    with pytest.raises(Invalid, match="plain function"):
        builder.add_edge("a", "b", condition)
    assert not builder.edges


def joined(condition: Any) -> Graph:
    builder = GraphBuilder()
    builder.add_node(agent(), "a")
    builder.add_node(agent(), "b")
    builder.add_edge("a", "b", condition)
    return builder.build()


@pytest.mark.filterwarnings("error")
async def test_a_condition_that_gives_something_to_await_fails_the_run_and_is_not_taken_for_true() -> None:
    given: list[Awaitable[bool]] = []

    def condition(state: GraphState) -> Any:
        given.append(later(state))
        return given[-1]

    with pytest.raises(NodeFailed) as caught:
        await joined(condition).invoke_async("Go")
    assert isinstance(caught.value.__cause__, Invalid)
    assert caught.value.__cause__.fields["edge"] == "a -> b"
    assert [getattr(each, "cr_frame", ...) for each in given] == [None], "it is closed, so nobody warns of it"


async def test_an_edge_says_whether_it_is_followed_as_the_run_would() -> None:
    seen: list[Any] = []

    def condition(state: GraphState, *, invocation_state: dict[str, Any]) -> bool:
        seen.append(invocation_state.get("wanted"))
        return bool(invocation_state.get("wanted"))

    graph = joined(condition)
    await graph.invoke_async("Go", {"wanted": 1})
    (edge,) = graph.edges
    assert edge.should_traverse(graph.state, invocation_state={"wanted": True})
    assert not edge.should_traverse(graph.state, invocation_state={})
    assert seen == [1, 1, True, None], "asked when a node ended, and when the next one was told"

    def broken(state: GraphState) -> bool:
        raise ZeroDivisionError

    with pytest.raises(HookFailed, match="a condition failed"):
        joined(broken).edges[0].should_traverse(graph.state, invocation_state={})


def test_a_condition_that_looks_at_nothing_has_nothing_added_up() -> None:
    class Untouched(dict[str, Any]):
        def __iter__(self) -> Any:
            raise AssertionError("somebody looks at the nodes")

        values = items = keys = __iter__

    run = Run()
    run.notes = Untouched()
    graph = joined(lambda state: state.total_nodes == 2)
    assert graph.edges[0].should_traverse(GraphState(run, graph), invocation_state={})


async def test_what_a_node_began_may_call_the_graph_when_the_run_is_over() -> None:
    over, ends = anyio.Event(), list[Any]()

    class Beginner:
        async def invoke_async(self, prompt: Any, *, invocation_state: dict[str, Any]) -> str:
            if not over.is_set():
                group.start_soon(call)
            return "begun"

    async def call() -> None:
        await over.wait()
        ends.append(await graph.invoke_async("Again"))

    builder = GraphBuilder()
    builder.add_node(Beginner(), "a")
    graph = builder.build()
    async with anyio.create_task_group() as group:
        first = await graph.invoke_async("Go")
        over.set()
    assert (first.run, ends[0].run, ends[0].status) == (1, 2, Status.COMPLETED)
