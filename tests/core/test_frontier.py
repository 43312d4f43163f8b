"""What runs in a graph, and when: every shape, every order of ends."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from repertory.core.orchestration.plan import Edge, Frontier, GraphPlan, GraphShape, frontier_of, in_a_row, shape_of
from repertory.errors import Invalid


def shape(text: str, *entries: str) -> GraphShape:
    """`"a>b b>c"`, or a node alone."""
    edges = [Edge(*part.split(">")) for part in text.split() if ">" in part]
    nodes = dict.fromkeys(node for part in text.split() for node in part.split(">"))
    return shape_of(nodes, edges, entries)


def run_through(graph: GraphShape, order: random.Random, *, times: int = 1000, crash: float = 0.0) -> list[str]:
    """Every edge is followed; nodes that run end in a random order. Gives who ended, in order."""
    plan, frontier, ended = GraphPlan.of(graph), frontier_of(graph.entries), list[str]()
    while frontier.nodes and len(ended) < times:
        for node in plan.startable(frontier):
            frontier = frontier.started(node)
        assert frontier.running, "something can always run"
        if order.random() < crash:
            frontier = frontier_of(frontier.at_rest)
            continue
        node = order.choice(sorted(frontier.running))
        frontier = frontier.ended(node, [graph.edges[place].target for place in graph.outgoing[node]])
        ended.append(node)
    return ended


def test_nodes_in_a_row_run_one_after_the_other() -> None:
    assert run_through(in_a_row(["a", "b", "c"]), random.Random(1)) == ["a", "b", "c"]


def test_nodes_that_do_not_wait_for_each_other_run_at_the_same_time() -> None:
    graph = shape("a>b a>c")
    assert GraphPlan.of(graph).startable(frontier_of(["a"]).started("a").ended("a", ["b", "c"])) == ("b", "c")


@pytest.mark.parametrize(
    "text",
    ["r>a r>b a>j b>j", "r>a a>b r>j b>j", "r>a a>b b>c r>d c>j d>j r>j", "a>j b>j", "r>a r>b a>x b>x x>y r>y"],
    ids=["diamond", "short cut", "uneven", "two entries", "two joins"],
)
def test_a_node_that_several_edges_lead_to_runs_once_when_all_have_been_followed(text: str, seed: int) -> None:
    graph, order = shape(text), random.Random(seed)
    for crash in (0.0, 0.5):
        ended = run_through(graph, order, crash=crash)
        assert Counter(ended) == dict.fromkeys(graph.nodes, 1), (seed, ended)
        for edge in graph.edges:
            assert ended.index(edge.source) < ended.index(edge.target), (seed, ended)


def test_graphs_without_loops_run_every_node_once_whatever_the_shape(seed: int) -> None:
    order = random.Random(seed)
    for _ in range(200):
        names = [f"n{number}" for number in range(order.randint(1, 9))]
        edges = [
            Edge(names[first], names[second])
            for second in range(len(names))
            for first in range(second)
            if order.random() < 0.4
        ]
        order.shuffle(edges)
        graph = shape_of(order.sample(names, len(names)), edges)
        assert not graph.loops, (seed, edges)
        ended = run_through(graph, order, crash=order.choice((0.0, 0.3)))
        assert Counter(ended) == dict.fromkeys(names, 1), (seed, edges, ended)
        for edge in edges:
            assert ended.index(edge.source) < ended.index(edge.target), (seed, edges, ended)


def test_any_graph_goes_on_as_long_as_edges_are_followed(seed: int) -> None:
    """Loops included: nothing ever waits for itself."""
    order = random.Random(seed)
    for _ in range(200):
        names = [f"n{number}" for number in range(order.randint(1, 7))]
        edges = [Edge(order.choice(names), order.choice(names)) for _ in range(order.randint(0, 14))]
        graph = shape_of(names, edges, order.sample(names, order.randint(1, len(names))))
        ended = run_through(graph, order, times=60, crash=order.choice((0.0, 0.3)))
        assert set(graph.entries) <= set(ended) or len(ended) == 60, (seed, edges)


def test_a_loop_with_branches_joins_once_in_each_round() -> None:
    graph = shape("plan>x plan>y x>x2 x2>merge y>merge merge>plan", "plan")
    ended = run_through(graph, random.Random(7), times=50)
    assert ended.count("merge") == ended.count("plan") == 10
    assert graph.loops


def test_a_node_that_is_needed_again_while_it_runs_runs_once_more() -> None:
    frontier = Frontier(("a",), frozenset(("a",))).ended("a", ["a"])
    assert frontier == Frontier(("a",))
    busy = Frontier(("a", "b"), frozenset("ab")).ended("b", ["a"])
    assert busy.again == ("a",)
    assert frontier_of(busy.at_rest).again == ("a",)
    assert busy.ended("a", []).nodes == ("a",)


@pytest.mark.parametrize(
    ("nodes", "edges", "entries", "what"),
    [
        ([], [], [], "at least one node"),
        (["a", "a"], [], [], "same id"),
        (["a/b"], [], [], "node id"),
        (["a"], [("a", "b")], [], "joins two nodes"),
        (["a"], [], ["b"], "entry point is a node"),
        (["a", "b"], [("a", "b"), ("b", "a")], [], "No entry points found"),
    ],
    ids=["nothing", "twice", "a path", "an edge to nowhere", "an entry to nowhere", "a ring"],
)
def test_what_is_no_graph_is_refused(
    nodes: list[str], edges: list[tuple[str, str]], entries: list[str], what: str
) -> None:
    with pytest.raises(Invalid, match=what):
        shape_of(nodes, [Edge(*edge) for edge in edges], entries)
