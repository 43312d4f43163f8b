"""What a flush has done, by store."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple


class StoreFlush(NamedTuple):
    """What became of what one store had not taken in."""

    landed: int = 0
    """Messages that were extracted or handed over, and memories that were written, in this flush."""
    parked: int = 0
    """Messages and memories that the store does not have: they wait for the next attempt, or are dead letters."""
    error: str | None = None
    """Why, when something is parked."""

    def and_also(self, other: StoreFlush) -> StoreFlush:
        """Both together, as of two conversations."""
        return StoreFlush(self.landed + other.landed, self.parked + other.parked, self.error or other.error)


@dataclass(frozen=True, slots=True, kw_only=True)
class FlushReport:
    """What a flush has done."""

    stores: Mapping[str, StoreFlush]
    """By the name of the store: `(landed, parked, error)`."""

    @property
    def ok(self) -> bool:
        """Whether the stores have everything that was said until the flush began."""
        return not any(store.parked or store.error for store in self.stores.values())


def together(names: Iterable[str], flushed: Iterable[Mapping[str, StoreFlush]]) -> FlushReport:
    """The report on several conversations."""
    stores = dict.fromkeys(names, StoreFlush())
    for each in flushed:
        for name, store in each.items():
            stores[name] = stores.get(name, StoreFlush()).and_also(store)
    return FlushReport(stores=stores)
