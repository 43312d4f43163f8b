"""The choice of the request that loses its connection."""

from __future__ import annotations

from typing import Literal

LostWhen = Literal["before", "after"]
"""The loss comes before the request reaches the other side; or after that has done it, and before the caller knows."""


class Cuts:
    """Counts requests, and says which are lost: one, or all from one on. A `Wire` for things that make requests."""

    def __init__(self) -> None:
        self._remaining = 0
        self._cut: LostWhen = "before"
        self._stays = False
        self._down = False

    def plan(self, cut: LostWhen, number: int, *, stays: bool = False) -> None:
        """Lose the next request but so many.

        Args:
            cut: The loss of the request `before` it arrives, or `after` it was done.
            number: The number of the request that is lost, from 1 for the next one.
            stays: True also loses all requests that follow, until `mend`.
        """
        self._cut, self._remaining, self._stays = cut, number, stays

    def mend(self) -> bool:
        """Let everything pass again. True if the cut was made."""
        made = not self._remaining
        self._remaining, self._down = 0, False
        return made

    def next(self) -> LostWhen | None:
        """Count a request that is made now, and return the cut that it suffers; None: it passes."""
        if self._down:
            return "before"
        if not self._remaining:
            return None
        self._remaining -= 1
        if self._remaining:
            return None
        self._down = self._stays
        return self._cut
