"""What a drain did, and what it could not finish."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseReport:
    """One phase of a drain."""

    name: str
    duration_s: float
    completed: bool
    """Whether it ended by itself, without an error, before its deadline."""
    errors: tuple[str, ...] = ()
    unfinished: tuple[str, ...] = ()
    """What the deadline cut: hooks by name, actors by path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainReport:
    """A whole drain."""

    reason: str
    phases: tuple[PhaseReport, ...]
    duration_s: float
    cut_short: bool
    dead_letters: Mapping[str, int]
    """Reason to count, during the drain alone."""
    fatal: str | None = None
    """What the actors were lost to, when they were: nothing of theirs could be finished."""

    @property
    def ok(self) -> bool:
        """Whether every phase completed, and no actor was lost for good."""
        return self.fatal is None and all(phase.completed for phase in self.phases)

    @property
    def unfinished(self) -> tuple[str, ...]:
        """What any phase had to cut."""
        return tuple(name for phase in self.phases for name in phase.unfinished)
