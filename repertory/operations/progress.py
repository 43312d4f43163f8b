"""The progress of a long operation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

ProgressUnit: TypeAlias = Literal["sessions", "records", "lines"]


@dataclass(frozen=True, slots=True)
class OperationProgress:
    """The progress of an operation. `done` never falls, and is `total` at the end of an operation that succeeded.

    Args:
        done: The number of units that are done.
        unit: The things that are counted.
    """

    done: int
    total: int | None
    """The number of units at the end; None while it is unknown, as with the lines of a file."""
    unit: ProgressUnit


OnProgress: TypeAlias = "Callable[[OperationProgress], None] | None"
"""A function called in the event loop with each step, so it must be quick and must not block; what it raises ends the
operation, which is then undone or complete as if it had been cancelled. None: nobody is told.
"""
