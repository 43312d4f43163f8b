"""Why an actor ended: a closed set. Supervision looks at nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Normal:
    """It said `stop()`: its work was done."""


@dataclass(frozen=True, slots=True)
class Shutdown:
    """It was asked to stop, and did so in order."""

    why: str = ""
    """As the one who asked put it; what stops an actor stops its children for the same."""


@dataclass(frozen=True, slots=True)
class Killed:
    """It was cut short: `on_stop` did not run, or did not end in time."""


@dataclass(frozen=True, slots=True)
class Failed:
    """A handler, a job or a start raised, or the handler said `fail(error)`."""

    error: Exception


@dataclass(frozen=True, slots=True)
class LimitReached:
    """A supervisor gave up on a child that failed more often than its settings allow."""

    error: Exception


ExitReason: TypeAlias = Normal | Shutdown | Killed | Failed | LimitReached
