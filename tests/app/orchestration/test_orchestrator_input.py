"""What makes no sense is refused when a graph or a swarm is built or called, in words that name it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, cast

import pytest

from repertory import Agent, Graph, GraphBuilder, InMemoryStorage, JournalSessionManager, ScriptedModel, Swarm
from repertory.app.orchestration.graph import GraphEdge, GraphNode
from repertory.errors import Invalid
from tests.app.orchestration.interrupted_agents import answering

pytestmark = pytest.mark.anyio


def agent(name: str = "a") -> Agent:
    return Agent(ScriptedModel(["fine"], loop=True), name=name, callback_handler=None)


def node(name: str = "a") -> GraphNode:
    return GraphNode(node_id=name, executor=agent())


def graph(**options: Any) -> Graph:
    return Graph({"a": agent()}, **options)


def swarm(**options: Any) -> Swarm:
    return Swarm([agent()], **options)


def added(*arguments: Any, **options: Any) -> GraphBuilder:
    builder = GraphBuilder()
    builder.add_node(agent(), *arguments, **options)
    return builder


KEPT = JournalSessionManager("s", storage=InMemoryStorage())
REFUSED: dict[str, tuple[Callable[..., Any], str]] = {
    "retries as text": (lambda: added(retries="a"), "retries"),
    "no retries at all": (lambda: added(retries=None), "retries"),
    "half a retry": (lambda: added(retries=1.5), "retries"),
    "retries below none": (lambda: added(retries=-1), "retries"),
    "a timeout of nothing": (lambda: added(timeout_s=math.nan), "timeout_s"),
    "an id that is a list": (lambda: added(["a"]), "node id"),
    "a list of agents": (lambda: Graph(cast("Any", [agent()])), "agents is a dictionary"),
    "agents as text": (lambda: Graph(cast("Any", "ab")), "agents is a dictionary"),
    "nodes that are agents": (lambda: Graph(nodes=cast("Any", {"a": agent()})), "nodes is a dictionary of GraphNode"),
    "a node under another id": (lambda: Graph(nodes={"b": node("a")}), "under its own id"),
    "edges of names": (lambda: Graph(nodes={"a": node()}, edges=cast("Any", [("a", "a")])), "edges is a list of"),
    "entry points of names": (lambda: Graph(nodes={"a": node()}, entry_points=cast("Any", ["a"])), "entry_points"),
    "an edge that has no condition": (
        lambda: GraphEdge(from_node=node(), to_node=node(), condition=cast("Any", "yes")),
        "a condition is",
    ),
    "a switch that is a word": (lambda: graph(reset_on_revisit="no"), "reset_on_revisit"),
    "a limit that is a fraction": (lambda: graph(max_node_executions=2.5), "max_node_executions"),
    "hooks that are a number": (lambda: graph(hooks=5), "hooks is a list"),
    "a hook that says nothing of its event": (lambda: graph(hooks=[lambda event: None]), "cannot infer event type"),
    "a hook that is text": (lambda: graph(hooks=["audit"]), "Invalid hook"),
    "plugins that are a number": (lambda: graph(plugins=5), "plugins is a list"),
    "a session manager that is text": (lambda: graph(session_manager="x"), "session_manager"),
    "a session manager that is a class": (lambda: graph(session_manager=JournalSessionManager), "session_manager"),
    "a node that no store can name": (
        lambda: Graph({"x" * 500: agent()}, session_manager=KEPT),
        "node id",
    ),
    "a swarm that is a number": (lambda: Swarm(cast("Any", 5)), "agents is a list"),
    "a window below nothing": (lambda: swarm(repetitive_handoff_detection_window=-1), "detection_window"),
    "a window that is text": (lambda: swarm(repetitive_handoff_detection_window="3"), "detection_window"),
    "a window that is no number": (lambda: swarm(repetitive_handoff_detection_window=math.nan), "detection_window"),
    "agents counted in words": (lambda: swarm(repetitive_handoff_min_unique_agents="3"), "min_unique_agents"),
    "handoffs without end": (lambda: swarm(max_handoffs=math.inf), "max_handoffs"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_makes_no_sense_is_refused_when_it_is_built(what: str) -> None:
    make, words = REFUSED[what]
    with pytest.raises(Invalid, match=words):
        make()


@pytest.mark.parametrize("timeout_s", [[1], "1", True, 0, -1, math.nan, math.inf])
async def test_a_time_that_is_none_is_refused_when_it_is_called(timeout_s: Any) -> None:
    for called in (graph(), agent()):
        with pytest.raises(Invalid, match="timeout_s"):
            await called.invoke_async("Go", timeout_s=timeout_s)


async def test_one_question_has_one_answer() -> None:
    twice: Any = [*cast("list[Any]", answering({"q": "yes"})), *cast("list[Any]", answering({"q": "no"}))]
    for called in (graph(), agent()):
        with pytest.raises(Invalid, match="one answer"):
            await called.invoke_async(twice)
