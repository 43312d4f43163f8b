"""Work that waits for itself: the search agrees with the meaning of a graph, whatever the graph."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from repertory.core.waits import Waiting, path_to_any

NODES = 8
node = st.integers(0, NODES - 1)
waiting = st.builds(
    lambda on, first: Waiting(of=None, on=tuple(on), first=first), st.lists(node, max_size=3), st.booleans()
)
graphs = st.dictionaries(node, waiting)


def may_end(graph: dict[int, Waiting], ends: set[int]) -> set[int]:
    """The nodes that end when all do what they can, but the ends do not, and no other circle does not end either."""
    kept = set(ends & graph.keys())
    for _ in graph:
        for key, each in graph.items():
            held = [other in kept for other in each.on]
            if key not in kept and held and (all(held) if each.first else any(held)):
                kept.add(key)
    return set(graph) - kept


@given(graphs, node, st.sets(node, max_size=3))
def test_a_path_is_found_exactly_if_the_start_cannot_end_before_an_end(
    graph: dict[int, Waiting], start: int, ends: set[int]
) -> None:
    path = path_to_any(graph, start, ends)
    assert (path is None) == (start not in graph or start in may_end(graph, ends))
    if path is not None:
        assert path[0] == start
        assert path[-1] in ends
        assert all(following in graph[each].on for each, following in pairwise(path))


def test_whoever_waits_for_the_first_of_two_goes_on_if_one_may_end() -> None:
    graph = {1: Waiting(of="turn", on=(2, 3), first=True), 2: Waiting(of="call"), 3: Waiting(of="other")}
    assert path_to_any(graph, 1, {2}) is None
    assert path_to_any(graph, 1, {2, 3}) is not None
