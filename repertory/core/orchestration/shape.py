"""The shape of a graph: its nodes, its edges, where it begins, and which edges lead back.

An edge leads back when it closes a loop: when it is followed, what it leads to runs again. All the others together have
no loop, so they say what comes before what; a node waits for what comes before it, and for nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from repertory.core.ids import check_id
from repertory.errors import Invalid


class Edge(NamedTuple):
    """One edge, by the names of its ends."""

    source: str
    target: str


@dataclass(frozen=True, slots=True)
class GraphShape:
    """A graph that can be run. Made by `shape_of`."""

    nodes: tuple[str, ...]
    """In the order in which they were added."""
    edges: tuple[Edge, ...]
    """In the order in which they were added. Two may have the same ends."""
    entries: tuple[str, ...]
    """Where a run begins."""
    outgoing: Mapping[str, tuple[int, ...]]
    """The places in `edges` of those that leave a node; every node has an entry."""
    incoming: Mapping[str, tuple[int, ...]]
    """The same for those that lead to it."""
    onward: Mapping[str, tuple[str, ...]]
    """Where the edges of a node lead that do not lead back."""
    loops: bool
    """Whether any node may run more than once."""


def shape_of(nodes: Iterable[str], edges: Iterable[Edge], entries: Iterable[str] = ()) -> GraphShape:
    """The graph of these. Without entries, it begins where no edge leads.

    Errors: `Invalid` for no node, a name twice or one that cannot be one, an edge or an entry without its node, and a
    graph that has no place to begin at.
    """
    named = tuple(check_id(node, "node id") for node in nodes)
    known = frozenset(named)
    if not named:
        raise Invalid("a graph has at least one node")
    if len(known) < len(named):
        raise Invalid("two nodes have the same id", nodes=sorted(node for node in known if named.count(node) > 1))
    joined = tuple(edges)
    for edge in joined:
        for end in edge:
            if end not in known:
                raise Invalid("an edge joins two nodes of the graph", source=edge.source, target=edge.target)
    begins = tuple(dict.fromkeys(entries))
    for entry in begins:
        if entry not in known:
            raise Invalid("an entry point is a node of the graph", entry=entry)
    if not begins:
        reached = {edge.target for edge in joined}
        begins = tuple(node for node in named if node not in reached)
    if not begins:
        raise Invalid("no entry point: every node has an edge that leads to it; name one")
    outgoing = _places(named, [edge.source for edge in joined])
    onward = _onward(named, joined, outgoing, begins)
    return GraphShape(
        nodes=named,
        edges=joined,
        entries=begins,
        outgoing=outgoing,
        incoming=_places(named, [edge.target for edge in joined]),
        onward=onward,
        loops=sum(len(targets) for targets in onward.values()) < len(joined),
    )


def in_a_row(nodes: Sequence[str]) -> GraphShape:
    """The graph in which each node follows the one before it."""
    return shape_of(nodes, [Edge(*pair) for pair in pairwise(nodes)], nodes[:1])


def _places(nodes: Sequence[str], ends: Sequence[str]) -> dict[str, tuple[int, ...]]:
    found: dict[str, list[int]] = {node: [] for node in nodes}
    for place, end in enumerate(ends):
        found[end].append(place)
    return {node: tuple(places) for node, places in found.items()}


def _onward(
    nodes: Sequence[str], edges: Sequence[Edge], outgoing: Mapping[str, tuple[int, ...]], entries: Sequence[str]
) -> dict[str, tuple[str, ...]]:
    """Go through the graph depth first, from where it begins: an edge to a node on the way there leads back."""
    found: dict[str, list[str]] = {node: [] for node in nodes}
    seen: set[str] = set()
    for start in (*entries, *nodes):
        if start in seen:
            continue
        seen.add(start)
        on_the_way = {start}
        path = [(start, iter(outgoing[start]))]
        while path:
            node, places = path[-1]
            place = next(places, None)
            if place is None:
                path.pop()
                on_the_way.discard(node)
                continue
            target = edges[place].target
            if target in on_the_way:
                continue
            found[node].append(target)
            if target not in seen:
                seen.add(target)
                on_the_way.add(target)
                path.append((target, iter(outgoing[target])))
    return {node: tuple(targets) for node, targets in found.items()}
