"""An `ObjectStore` that fails as the world does: refused, throttled and slow calls, lost answers, torn listings."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import anyio

from repertory.backends.ports import Condition, ObjectInfo, ObjectStore, StoredObject
from repertory.errors import StoreThrottled, StoreUnavailable
from repertory.runtime.testing.faults import Chance

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectFaults:
    """How often what goes wrong, per call. Rates are between 0 and 1."""

    error_rate: float = 0.0
    """`Unavailable`, and nothing was done."""
    throttle_rate: float = 0.0
    """`Throttled`, and nothing was done."""
    lost_rate: float = 0.0
    """`Unavailable` although it was done: the answer got lost."""
    slow_rate: float = 0.0
    """The call takes up to `slow_s` longer before it does anything."""
    slow_s: float = 1.0
    torn_rate: float = 0.0
    """A listing lacks objects, each with the chance of one half. No store of the contract does so; what must live with
    services that do is tested with it."""


class FaultyObjectStore:
    """Wraps any store. The same seed and the same calls give the same faults; `faults` lists them as they happened.

    `settings` may be exchanged at any time, for example to let a store recover. `aclose` never fails.
    """

    def __init__(self, store: ObjectStore, chance: Chance, settings: ObjectFaults) -> None:
        self._store = store
        self._chance = chance
        self.settings = settings
        self.faults: list[str] = []

    @property
    def name(self) -> str:
        """The wrapped store's."""
        return self._store.name

    async def get(self, key: str) -> StoredObject:
        """As the wrapped store, or a fault."""
        return await self._call("get", lambda: self._store.get(key))

    async def put(self, key: str, body: bytes, condition: Condition) -> str:
        """As the wrapped store, or a fault: with `Unavailable`, it may be done all the same."""
        return await self._call("put", lambda: self._store.put(key, body, condition))

    async def list(self, prefix: str, start_after: str | None = None) -> Sequence[ObjectInfo]:
        """As the wrapped store, or a fault."""
        torn = self._chance.random() < self.settings.torn_rate
        found = await self._call("list", lambda: self._store.list(prefix, start_after))
        if torn:
            self.faults.append("list: torn")
            return [info for info in found if self._chance.random() < 0.5]
        return found

    async def delete(self, key: str) -> None:
        """As the wrapped store, or a fault: with `Unavailable`, it may be done all the same."""
        await self._call("delete", lambda: self._store.delete(key))

    async def aclose(self) -> None:
        """Close the wrapped store."""
        await self._store.aclose()

    async def _call(self, name: str, call: Callable[[], Awaitable[T]]) -> T:
        # Four draws per call, whatever comes of them: a change of one rate leaves the other faults where they were.
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
