"""A `SessionStore` with realistic faults: refused calls, slow calls, and commits whose acknowledgement is lost."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

import anyio

from repertory.backends.ports import SessionStore
from repertory.errors import StoreUnavailable
from repertory.runtime.testing.faults import Chance
from repertory.testing.wrapped_stores import WrappedSessionStore

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultSettings:
    """Fault rates per call, between 0 and 1.

    Args:
        slow_s: The most seconds of a delay.
    """

    error_rate: float = 0.0
    """The share of calls that raise `Unavailable`; nothing was done."""
    lost_rate: float = 0.0
    """The share of calls that raise `Unavailable` although they were done: the response was lost."""
    slow_rate: float = 0.0
    """The share of calls that are delayed by up to `slow_s` before they have any effect."""
    slow_s: float = 1.0


class FaultySessionStore(WrappedSessionStore):
    """Wraps any store. The same seed and the same calls give the same faults; `faults` lists them in order.

    `settings` may be replaced at any time, for example to let a store recover. `aclose` never fails. After
    `Unavailable`, rows may be stored, or a session may be gone. A refused step of a lease returns False.

    Args:
        store: The store that is wrapped.
        chance: The random source, such as `random.Random(seed)`.
        settings: The fault rates.

    Attributes:
        faults: The faults that happened, in order.
    """

    def __init__(self, store: SessionStore, chance: Chance, settings: FaultSettings) -> None:
        super().__init__(store)
        self._chance = chance
        self.settings = settings
        self.faults: list[str] = []

    async def _call(self, name: str, call: Callable[[], Awaitable[T]]) -> T:
        # Always three draws per call: changing one rate leaves the other faults where they were.
        slow, refused, lost = (self._chance.random() for _ in range(3))
        settings = self.settings
        if slow < settings.slow_rate:
            self.faults.append(f"{name}: slow")
            await anyio.sleep(settings.slow_s * slow / settings.slow_rate)
        if refused < settings.error_rate:
            self.faults.append(f"{name}: refused")
            raise StoreUnavailable("injected fault: the call was refused", call=name)
        result = await call()
        if lost < settings.lost_rate:
            self.faults.append(f"{name}: lost")
            raise StoreUnavailable("injected fault: the answer was lost", call=name)
        return result

    def _step(self, name: str, step: Callable[[], bool]) -> bool:
        if self._chance.random() < self.settings.error_rate:
            self.faults.append(f"{name}: refused")
            return False
        return step()
