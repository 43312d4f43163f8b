"""Where time and chance enter the runtime, as things that can be replaced."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Protocol, TypeAlias

Clock: TypeAlias = Callable[[], float]
"""Seconds; only differences mean anything."""


class Rng(Protocol):
    """The source of chance: a `random.Random` is one."""

    def uniform(self, a: float, b: float, /) -> float: ...


def unseeded() -> Rng:
    """A source of chance that no seed repeats."""
    return random.SystemRandom()
