"""The calling actor of the running code: what an ask inherits from the turn or job that sends it.

There is one record per incarnation and per job, in a context variable that is set once for the task. A turn changes the
record's fields, which is cheaper than setting a variable for every message.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar


class CallContext:
    """The actor that the running code belongs to.

    `waits` is that actor if its turn waits for the answers of asks made here; `owner` is set in its jobs too.
    """

    __slots__ = ("deadline", "owner", "trace", "waits")

    def __init__(self, owner: Waits | None, waits: Waits | None, trace: object = None) -> None:
        self.owner = owner
        self.waits = waits
        self.deadline = math.inf
        self.trace = trace


OUTSIDE = CallContext(None, None)

ORIGIN: ContextVar[CallContext] = ContextVar("repertory_origin", default=OUTSIDE)


def current_trace() -> object:
    """The trace token of messages sent from here; None without one."""
    return ORIGIN.get().trace


@contextmanager
def traced(token: object) -> Generator[None]:
    """Messages sent inside the block carry `token`, and so do the messages that they cause. The runtime never reads
    it.
    """
    outer = ORIGIN.get()
    inner = CallContext(outer.owner, outer.waits, token)
    inner.deadline = outer.deadline
    reset = ORIGIN.set(inner)
    try:
        yield
    finally:
        ORIGIN.reset(reset)


# The wait-for graph, in which a deadlock of asks is found before it happens.
#
# A chain of calls is not enough: two independent chains can block each other. Each node knows the actors that its turn
# waits for; an ask that would close a circle raises instead of waiting. Asks from jobs have no edge, since the actor's
# mailbox goes on meanwhile.


class Waits:
    """One actor in the graph."""

    __slots__ = ("path", "waiting_on")

    def __init__(self, path: str) -> None:
        self.path = path
        self.waiting_on: list[Waits] = []
        """The actors whose answers its running turn awaits; more than one if a handler asks from several tasks."""


def find_circle(asker: Waits, target: Waits) -> list[Waits] | None:
    """The path from `target` back to `asker` along the edges, both included; None if there is none."""
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
