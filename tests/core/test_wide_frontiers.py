"""What is to run in a very wide graph is found in steps that grow with its width, not with its square."""

from __future__ import annotations

from repertory.core.orchestration.plan import Frontier, frontier_of

WIDE = 400


class Name(str):
    """A name that counts how often it is compared."""

    __slots__ = ()
    compared = 0

    def __eq__(self, other: object) -> bool:
        Name.compared += 1
        return str.__eq__(self, other)

    __hash__ = str.__hash__


def test_a_wide_frontier_is_read_and_gone_on_from_with_few_comparisons() -> None:
    Name.compared = 0
    targets = [Name(f"n{number}") for number in range(WIDE)]
    frontier = frontier_of(["root"]).started("root").ended("root", targets)
    assert frontier.nodes == tuple(map(str, targets))
    again = frontier_of([Name(target) for target in (*frontier.nodes, *frontier.nodes)])
    assert (len(again.nodes), len(again.again)) == (WIDE, WIDE)
    assert Name.compared <= 10 * WIDE


def test_a_node_that_runs_is_to_run_once_more_however_often_it_comes_next() -> None:
    frontier = Frontier(("a", "b"), frozenset(("a", "b")))
    frontier = frontier.ended("a", ["b", "c", "b"])
    assert (frontier.nodes, frontier.again, frontier.at_rest) == (("b", "c"), ("b",), ("b", "c", "b"))
    frontier = frontier.ended("b", ["c", "d"])
    assert (frontier.nodes, frontier.again, frontier.running) == (("c", "b", "d"), (), frozenset())
