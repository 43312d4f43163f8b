"""The runtime's clock and random source, so that tests can replace them."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Protocol, TypeAlias

Clock: TypeAlias = Callable[[], float]
"""Seconds; only differences mean anything."""


class Rng(Protocol):
    """A random source, such as `random.Random`."""

    def uniform(self, a: float, b: float, /) -> float: ...


def unseeded() -> Rng:
    """A random source without a seed."""
    return random.SystemRandom()
