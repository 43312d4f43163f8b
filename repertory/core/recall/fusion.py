"""Joining what two ways of looking found, by their scores: each is brought to the range from 0 to 1 first.

By scores and not by ranks: a rank forgets that the first is far ahead of the second, and that is what one way of
looking has to say to the other.
"""

from __future__ import annotations

from collections.abc import Mapping


def fused(first: Mapping[int, float], second: Mapping[int, float], share: float) -> dict[int, float]:
    """The sum of both, `second` counting for `share` of it. What one of them has not found is its worst."""
    left, right = _ranged(first), _ranged(second)
    return {key: (1 - share) * left.get(key, 0.0) + share * right.get(key, 0.0) for key in left.keys() | right.keys()}


def _ranged(scores: Mapping[int, float]) -> dict[int, float]:
    if not scores:
        return {}
    low, high = min(scores.values()), max(scores.values())
    width = high - low
    return {key: (score - low) / width if width else 1.0 for key, score in scores.items()}
