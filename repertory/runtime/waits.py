"""Who waits for whom: the wait-for graph on which ask deadlocks are found before they happen.

A chain of calls is not enough: two independent chains can block each other. Each node knows whom its turn waits for; an
ask that would close a circle raises instead of waiting. Asks from jobs have no edge, since the actor's mailbox goes on
meanwhile.
"""

from __future__ import annotations


class Waits:
    """One actor in the graph."""

    __slots__ = ("path", "waiting_on")

    def __init__(self, path: str) -> None:
        self.path = path
        self.waiting_on: list[Waits] = []
        """Whose answers its running turn awaits; more than one when a handler asks from several tasks."""


def find_circle(asker: Waits, target: Waits) -> list[Waits] | None:
    """The way from `target` back to `asker` along the edges, both included; None when there is none."""
    if asker is target:
        return [target]
    trail: list[Waits] = [target]
    return trail if target.waiting_on and _leads_to(asker, trail, {target}) else None


def _leads_to(asker: Waits, trail: list[Waits], seen: set[Waits]) -> bool:
    for following in trail[-1].waiting_on:
        if following in seen:
            continue
        seen.add(following)
        trail.append(following)
        if following is asker or _leads_to(asker, trail, seen):
            return True
        trail.pop()
    return False
