"""Pending work of a session: it must be done even if nobody calls, such as a turn whose process was killed.

The owner says with each commit when its session must be woken, and takes that back when the work is done. While it
lives it does the work itself; when it has died, or gave the session up before, a dispatcher claims what is due
(`docs/design/pending-work.md`). `turns/due_times.py` says what an agent owes by its journal.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from msgspec import Struct

Why = Literal["turn", "expiry", "timer", "result", "task", "memory", "summary", "delivery"]
"""`turn`: a turn was begun and has no answer, or a run and is not over. `expiry`: nobody answered a question in time.
`timer`: a timer is due. `result`: the result of a tool has come later, or none came in time. `task`: a tool
runs in the background. `memory`: memories are to be extracted or written. `summary`: one was begun ahead of need.
`delivery`: an event is to be delivered, or tried again.
"""

CLAIMS_MAX = 5
"""The owners that may die with the same work before it is parked: it then waits for a person."""
_HOLD_S, _HOLD_MAX_S = 10.0, 600.0


class DueTime(Struct, frozen=True, kw_only=True):
    """The time at which an agent of a session must be woken if nobody calls."""

    agent_id: str
    at: float | None = None
    """The time in epoch seconds; None: no work is pending."""
    why: Why = "turn"


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingWork:
    """The pending work of an agent of a session."""

    session_id: str
    agent_id: str
    at: float
    """The time at which it is due, in epoch seconds."""
    why: str
    """See `Why`; a newer release may have further reasons."""
    claims: int = 0
    """The number of claims since an owner last gave the session up in order."""

    @property
    def parked(self) -> bool:
        """True if it is claimed no more: each of its last owners has died with it."""
        return self.claims >= CLAIMS_MAX


def next_due(at: float, claims: int) -> float:
    """The time at which work that is claimed now is due again if its owner dies. `claims`: this one included."""
    return at + min(_HOLD_S * 2.0 ** (claims - 1), _HOLD_MAX_S)


def claims_after(why: str, claims: int) -> int:
    """The number of claims that count when an owner states this. A timer, a late result, or a delivery is stated
    between two turns only, so the owner has not died with what was claimed before.
    """
    return 0 if why in ("timer", "result", "delivery") else claims


StalledAgent: TypeAlias = tuple[str, str]
"""The id of a session and of an agent of it, which is active and has nothing under way."""


def may_claim(why: str, *, owned_here: bool) -> bool:
    """True if a dispatcher wakes a session for this, when no other process owns it. `owned_here`: it is active in the
    dispatcher's own process, where turns, tools, memories and summaries are under way, unless it rests.
    """
    return not owned_here or why not in ("turn", "task", "memory", "summary")
