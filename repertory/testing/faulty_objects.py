"""An `ObjectStore` with realistic faults: refused, throttled and slow calls, lost responses, incomplete listings."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import anyio

from repertory.backends.ports import ObjectInfo, ObjectStore
from repertory.errors import StoreThrottled, StoreUnavailable
from repertory.runtime.testing.faults import Chance
from repertory.testing.wrapped_stores import WrappedObjectStore

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectFaults:
    """Fault rates per call, between 0 and 1.

    Args:
        slow_s: The most seconds of a delay.
    """

    error_rate: float = 0.0
    """The share of calls that raise `Unavailable`; nothing was done."""
    throttle_rate: float = 0.0
    """The share of calls that raise `Throttled`; nothing was done."""
    lost_rate: float = 0.0
    """The share of calls that raise `Unavailable` although they were done: the response was lost."""
    slow_rate: float = 0.0
    """The share of calls that are delayed by up to `slow_s` before they have any effect."""
    slow_s: float = 1.0
    torn_rate: float = 0.0
    """Leave objects out of a listing, each with probability one half. A store under the contract never does this; use
    it to test code for services that do.
    """


class FaultyObjectStore(WrappedObjectStore):
    """Wraps any store. The same seed and the same calls give the same faults; `faults` lists them in order.

    `settings` may be replaced at any time, for example to let a store recover. `aclose` never fails.
    After `Unavailable`, an object may have been put, or deleted.

    Args:
        store: The store that is wrapped.
        chance: The random source, such as `random.Random(seed)`.
        settings: The fault rates.

    Attributes:
        faults: The faults that happened, in order.
    """

    def __init__(self, store: ObjectStore, chance: Chance, settings: ObjectFaults) -> None:
        super().__init__(store)
        self._chance = chance
        self.settings = settings
        self.faults: list[str] = []

    async def list(self, prefix: str, start_after: str | None = None) -> Sequence[ObjectInfo]:
        torn = self._chance.random() < self.settings.torn_rate
        found = await super().list(prefix, start_after)
        if torn:
            self.faults.append("list: torn")
            return [info for info in found if self._chance.random() < 0.5]
        return found

    async def _call(self, name: str, key: str, call: Callable[[], Awaitable[T]]) -> T:
        del key
        # Always four draws per call: changing one rate leaves the other faults where they were.
        slow, refused, throttled, lost = (self._chance.random() for _ in range(4))
        settings = self.settings
        if slow < settings.slow_rate:
            self.faults.append(f"{name}: slow")
            await anyio.sleep(settings.slow_s * slow / settings.slow_rate)
        if refused < settings.error_rate:
            self.faults.append(f"{name}: refused")
            raise StoreUnavailable("injected fault: the call was refused", call=name)
        if throttled < settings.throttle_rate:
            self.faults.append(f"{name}: throttled")
            raise StoreThrottled("injected fault: the call was throttled", call=name)
        result = await call()
        if lost < settings.lost_rate:
            self.faults.append(f"{name}: lost")
            raise StoreUnavailable("injected fault: the answer was lost", call=name)
        return result
