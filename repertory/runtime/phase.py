"""How a drain shares its time among its phases: pure arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """One step of a drain."""

    name: str
    timeout_s: float
    """How long it may take at most."""
    reserve_s: float = 0.0
    """What earlier phases must leave to it, and all that it gets when the drain is cut short; 0 means skipped then."""
    stops_actors: bool = False
    """All actors are stopped in this phase, in reverse order, after its hooks.

    One phase does so; the last one if none says.
    """


def phase_deadline(phases: Sequence[Phase], index: int, now: float, end: float, *, cut_short: bool) -> float:
    """When the phase at `index` must be over, in the seconds of `now`; `end` is when the drain should be.

    A phase never eats what is reserved for those after it, and never gets less than its own reserve.
    """
    phase = phases[index]
    if cut_short:
        return now + phase.reserve_s
    reserved_s = sum(later.reserve_s for later in phases[index + 1 :])
    return max(now + phase.reserve_s, min(now + phase.timeout_s, end - reserved_s))
