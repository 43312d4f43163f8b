"""Work that waits for itself, found in a graph of what waits for what."""

from __future__ import annotations

from collections.abc import Container, Mapping

from msgspec import Struct


class Waiting(Struct, frozen=True, kw_only=True):
    """A node of the graph. Nodes are known by the `id()` of an object, which they hold as `of`."""

    of: object
    on: tuple[int, ...] = ()
    """The nodes that it waits for."""
    first: bool = False
    """True if the end of one of them is enough; otherwise it needs them all."""


def path_to_any(graph: Mapping[int, Waiting], start: int, ends: Container[int]) -> list[int] | None:
    """The path from `start` to an end that keeps it from ever going on while the ends wait; None if it may go on.

    A node that waits for the first of several is kept only if all of them are.
    """
    onward: dict[int, int | None] = {node: None for node in graph if node in ends}
    grown = True
    while grown and start not in onward:
        grown = False
        for node in reversed(tuple(graph)):  # Whoever is waited for stands behind: one pass is enough for most graphs.
            on = graph[node].on
            hit = [other for other in on if other in onward]
            if node not in onward and hit and (not graph[node].first or len(hit) == len(on)):
                onward[node], grown = hit[0], True
    if start not in onward:
        return None
    path, following = [start], onward[start]
    while following is not None:
        path.append(following)
        following = onward[following]
    return path
