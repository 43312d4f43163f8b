"""On whose behalf code runs: what an ask inherits from the turn or the job that it is made in.

One record per incarnation and per job, held by a context variable that is set once for the task; a turn changes the
record's fields, which is cheaper than setting a variable for every message.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar

from repertory.runtime.waits import Waits


class Origin:
    """Who speaks.

    `waits` is the actor whose turn waits for the answer, if one does; `owner` is set for its jobs too.
    """

    __slots__ = ("deadline", "owner", "trace", "waits")

    def __init__(self, owner: Waits | None, waits: Waits | None, trace: object = None) -> None:
        self.owner = owner
        self.waits = waits
        self.deadline = math.inf
        self.trace = trace


OUTSIDE = Origin(None, None)

ORIGIN: ContextVar[Origin] = ContextVar("repertory_origin", default=OUTSIDE)


def current_trace() -> object:
    """The trace token that messages sent from here carry; None without one."""
    return ORIGIN.get().trace


@contextmanager
def traced(token: object) -> Generator[None]:
    """Messages sent inside the block carry `token`, and so does everything that they cause.

    The runtime never looks at it.
    """
    outer = ORIGIN.get()
    inner = Origin(outer.owner, outer.waits, token)
    inner.deadline = outer.deadline
    reset = ORIGIN.set(inner)
    try:
        yield
    finally:
        ORIGIN.reset(reset)
