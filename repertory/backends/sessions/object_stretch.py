"""Finding a few rows of a long journal: which of its objects hold them, without reading the others.

The objects of a session that rows stand in, in the order of the commits in them, are its parts: chunks with what was
kept beside them, and single segments. Sequence numbers rise with the commits, so a part is found by guessing.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Awaitable, Callable, Sequence

from repertory.core.journal.rows import Row

ReadPart = Callable[[int], Awaitable[Sequence[Row]]]
"""Gives an agent's rows in the part of that number, in order."""


class Parts:
    """The parts of a session that hold the rows of one agent, read when they are needed and once."""

    def __init__(self, commits: Sequence[int], last: tuple[int, int], read: ReadPart) -> None:
        """`commits`: the first commit in each part. `last`: about the last commit and the agent's last row in it."""
        self._commits = commits
        self._last = last
        self._read = read
        self._rows: dict[int, Sequence[Row]] = {}

    async def rows(self, first: int | None, last: int) -> list[Row]:
        """The rows from sequence number `first` (None: from the `low` of the last one) to `last`; those that there are,
        when some are missing.
        """
        number = await self._find(last)
        if number is None:
            return []
        found = [row for row in await self._part(number) if row.seq <= last]
        low = first if first is not None else found[-1].low
        while number and found[0].seq > low:
            number -= 1
            found = [*await self._part(number), *found]
        return [row for row in found if row.seq >= low]

    async def _part(self, number: int) -> Sequence[Row]:
        if number not in self._rows:
            self._rows[number] = await self._read(number)
        return self._rows[number]

    async def _find(self, seq: int) -> int | None:
        """The part that holds a row; None when none does."""
        low, high = 0, len(self._commits) - 1
        before, behind = (0, 0), self._last
        halve = False
        while low <= high:
            number = (low + high) // 2 if halve else self._guessed(seq, before, behind)
            number = min(max(number, low), high)
            while number > low and not await self._part(number):
                number -= 1
            rows = await self._part(number)
            if not rows:  # This agent said nothing in all of these.
                low = max(low, number) + 1
                continue
            if rows[0].seq <= seq <= rows[-1].seq:
                return number
            if rows[-1].seq < seq:
                low, before = number + 1, (self._commits[number], rows[-1].seq)
            else:
                high, behind = number - 1, (self._commits[number], rows[0].seq)
            halve = not halve
        return None

    def _guessed(self, seq: int, before: tuple[int, int], behind: tuple[int, int]) -> int:
        """The part where a row should lie if rows were spread evenly over the commits."""
        share = (seq - before[1]) / max(1, behind[1] - before[1])
        commit = before[0] + int(share * (behind[0] - before[0]))
        return bisect_right(self._commits, commit) - 1
