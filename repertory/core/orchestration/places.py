"""Where in the order of a run's work the executions of one node stand, as stretches: a loop of any length is a few.

In records: numbers, and [first, step, how many] for stretches of three and more.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, cast

if TYPE_CHECKING:
    from repertory.core.messages import Json

STRETCHES_MAX = 256
"""Of a node that runs very often at irregular times, this many are kept, the latest."""
TIMES_MAX = 1_000_000
"""What a stretch may say that it stands for. A few numbers in a record must not take all memory when they are read."""
_SHORTEST = 3


class _Stretch(NamedTuple):
    first: int
    step: int
    times: int

    @property
    def last(self) -> int:
        return self.first + self.step * (self.times - 1)


@dataclass(frozen=True, slots=True)
class Places:
    """Numbers from 1 that rise."""

    _stretches: tuple[_Stretch, ...] = ()

    def __iter__(self) -> Iterator[int]:
        for first, step, times in self._stretches:
            for number in range(times):
                yield first + step * number

    def __len__(self) -> int:
        return sum(stretch.times for stretch in self._stretches)

    @property
    def last(self) -> int:
        """The highest; 0 when there is none."""
        return self._stretches[-1].last if self._stretches else 0

    def and_then(self, place: int) -> Places:
        """These, and one behind them."""
        kept, last = self._stretches[:-1], self._stretches[-1] if self._stretches else None
        if last is not None and last.times == 1:
            return Places((*kept, _Stretch(last.first, place - last.first, 2)))
        if last is not None and place == last.last + last.step:
            return Places((*kept, last._replace(times=last.times + 1)))
        return Places((*self._stretches, _Stretch(place, 1, 1))[-STRETCHES_MAX:])

    def said(self) -> list[Json]:
        """As a record has them."""
        said: list[Json] = []
        for stretch in self._stretches:
            if stretch.times >= _SHORTEST:
                said.append(list(stretch))
            else:
                said.extend(Places((stretch,)))
        return said

    @classmethod
    def of(cls, places: Iterable[int]) -> Places:
        """These numbers."""
        found = cls()
        for place in places:
            found = found.and_then(place)
        return found

    @classmethod
    def read(cls, said: object) -> Places:
        """What `said` gave. Errors: `TypeError`, `ValueError`."""
        if not isinstance(said, list):
            raise TypeError(said)
        found = _NOWHERE
        for each in cast("list[object]", said):
            if isinstance(each, list):
                first, step, times = map(_whole, cast("list[object]", each))
                if min(first, step, times) < 1 or times > TIMES_MAX:
                    raise ValueError((first, step, times))
                found = cls((*found._stretches, _Stretch(first, step, times)))
            else:
                found = found.and_then(_whole(each))
        return found


_NOWHERE = Places()


def _whole(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(value)
    return value
