"""What is to run in a graph: which nodes owe work, which of them may start, and what follows when one has ended.

A node that several edges lead to runs once when all of them that can still be followed have been: it waits as long as
anything that owes work comes before it (`shape.py` says what comes before what). So the frontier alone, which every
record of a run carries, is enough to go on from, with no count of what has arrived.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from repertory.core.orchestration.shape import GraphShape


class Frontier(NamedTuple):
    """The nodes that owe work."""

    nodes: tuple[str, ...] = ()
    """Those that run and those that wait, in the order in which they came to it."""
    running: frozenset[str] = frozenset()
    again: tuple[str, ...] = ()
    """Those of them that run and are to run once more."""

    def started(self, node: str) -> Frontier:
        """The node runs."""
        return self._replace(running=self.running | {node})

    def stopped(self, node: str) -> Frontier:
        """The node does not run any more, and still owes its work."""
        return self._replace(running=self.running - {node})

    def ended(self, node: str, targets: Iterable[str]) -> Frontier:
        """The node has done its work, and these come next."""
        nodes = dict.fromkeys(each for each in self.nodes if each != node)
        running = self.running - {node}
        again = dict.fromkeys(each for each in self.again if each != node)
        for target in (*([node] if node in self.again else []), *targets):
            (again if target in running else nodes).setdefault(target)
        return Frontier(tuple(nodes), running, tuple(again))

    @property
    def at_rest(self) -> tuple[str, ...]:
        """The nodes that owe work when nothing runs: what a record keeps."""
        return (*self.nodes, *self.again)


def frontier_of(at_rest: Iterable[str]) -> Frontier:
    """The frontier of a run that nobody drives. A node that ran, and was to run once more, does both from here on."""
    nodes: dict[str, None] = {}
    again: dict[str, None] = {}
    for node in at_rest:
        (again if node in nodes else nodes).setdefault(node)
    return Frontier(tuple(nodes), frozenset(), tuple(again))


def startable(shape: GraphShape, frontier: Frontier) -> tuple[str, ...]:
    """The nodes that may start now, in order. One at least, unless something runs or nothing owes work."""
    waiting = [node for node in frontier.nodes if node not in frontier.running]
    if not waiting or len(frontier.nodes) == 1:
        return tuple(waiting)
    behind: set[str] = set()
    to_look_at = list(frontier.nodes)
    while to_look_at:
        for target in shape.onward[to_look_at.pop()]:
            if target not in behind:
                behind.add(target)
                to_look_at.append(target)
    return tuple(node for node in waiting if node not in behind)
