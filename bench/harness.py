"""Measuring one thing against its limit: interleaved rounds, medians, and one table at the end.

A figure is a value beside the bare limit that was measured in the same rounds: the ratio of the two survives a noisy
machine, the value alone does not. Every benchmark prints its figures through `report`.
"""

from __future__ import annotations

import gc
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

Better = Literal["lower", "higher"]


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured value. `bar` bounds the ratio `value / limit`: from above, or from below when higher is better."""

    name: str
    value: float
    limit: float
    """The bare limit in the same unit; 1.0 when the bar is about the value itself."""
    bar: float | None
    """None: reported, not judged."""
    unit: str
    better: Better = "lower"

    @property
    def ratio(self) -> float:
        return self.value / self.limit

    @property
    def ok(self) -> bool:
        if self.bar is None:
            return True
        return self.ratio <= self.bar if self.better == "lower" else self.ratio >= self.bar


def report(figures: Sequence[Figure]) -> int:
    """Print the table. Returns 0 when every bar was met, else 1: `main` returns it as its exit code."""
    width = max((len(figure.name) for figure in figures), default=4)
    print(f"{'name':<{width}}  {'measured':>12}  {'limit':>12}  {'ratio':>8}  {'bar':>8}  ok")
    for figure in figures:
        sign = "<=" if figure.better == "lower" else ">="
        bar = "-" if figure.bar is None else f"{sign}{figure.bar:g}"
        measured = f"{_number(figure.value)} {figure.unit}"
        limit = f"{_number(figure.limit)} {figure.unit}"
        ok = "yes" if figure.ok else "NO"
        print(f"{figure.name:<{width}}  {measured:>12}  {limit:>12}  {figure.ratio:>8.2f}  {bar:>8}  {ok}")
    return 0 if all(figure.ok for figure in figures) else 1


def interleaved(measures: Mapping[str, Callable[[], float]], rounds: int = 7) -> dict[str, float]:
    """The median of each measure over `rounds`; every round runs all of them in turn, so that noise hits all alike."""
    taken: dict[str, list[float]] = {name: [] for name in measures}
    for _ in range(rounds):
        for name, measure in measures.items():
            gc.collect()
            taken[name].append(measure())
    return {name: statistics.median(values) for name, values in taken.items()}


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
