"""A `SessionStore` with realistic faults: refused calls, slow calls, and commits whose acknowledgement is lost."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import ParamSpec, TypeVar

import anyio

from repertory.backends.ports import (
    Batch,
    IdPage,
    Lease,
    OwnedRows,
    Position,
    SessionInfo,
    SessionStore,
    StoreCapabilities,
    Waking,
)
from repertory.core.journal.rows import Row
from repertory.errors import RepertoryError, StoreUnavailable
from repertory.runtime.testing.faults import Chance

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultSettings:
    """Fault rates per call, between 0 and 1.

    Args:
        slow_s: The most seconds of a delay.
    """

    error_rate: float = 0.0
    """Raise `Unavailable`; nothing was done."""
    lost_rate: float = 0.0
    """Raise `Unavailable` although the call was done: its response was lost."""
    slow_rate: float = 0.0
    """Delay the call by up to `slow_s` before it has any effect."""
    slow_s: float = 1.0


class FaultySessionStore(SessionStore):
    """Wraps any store. The same seed and the same calls give the same faults; `faults` lists them in order.

    `settings` may be replaced at any time, for example to let a store recover. `aclose` never fails.

    Args:
        store: The store that is wrapped.
        chance: The random source, such as `random.Random(seed)`.
        settings: The fault rates.

    Attributes:
        faults: The faults that happened, in order.
    """

    def __init__(self, store: SessionStore, chance: Chance, settings: FaultSettings) -> None:
        self._store = store
        self._chance = chance
        self.settings = settings
        self.faults: list[str] = []

    @property
    def name(self) -> str:
        return self._store.name

    @property
    def capabilities(self) -> StoreCapabilities:
        """`acquires_again` of the wrapped store and its part `waking`, with faults."""
        waking = self._store.capabilities.waking
        if waking is not None:
            claim_due, owed = self._faulty("claim_due", waking.claim_due), self._faulty("owed", waking.owed)
            waking = Waking(claim_due=claim_due, owed=owed)
        return StoreCapabilities(waking=waking, acquires_again=self._store.capabilities.acquires_again)

    def _faulty(self, name: str, call: Callable[P, Awaitable[T]]) -> Callable[P, Awaitable[T]]:
        """The call; afterwards its work may be done although `Unavailable` was raised."""
        return lambda *args, **options: self._call(name, lambda: call(*args, **options))

    async def acquire(
        self, session_id: str, *, takeover: bool = False, load: str | None = None, again: Lease | None = None
    ) -> OwnedRows:
        return await self._call(
            "acquire", lambda: self._store.acquire(session_id, takeover=takeover, load=load, again=again)
        )

    async def release(self, leases: Sequence[Lease]) -> Sequence[RepertoryError | None]:
        return await self._call("release", lambda: self._store.release(leases))

    async def append(self, batches: Sequence[Batch]) -> Sequence[Position | RepertoryError]:
        """As the wrapped store, or `Unavailable`; the group may then be stored."""
        return await self._call("append", lambda: self._store.append(batches))

    async def load(self, session_id: str, agent_id: str, *, whole: bool = False) -> Sequence[Row]:
        return await self._call("load", lambda: self._store.load(session_id, agent_id, whole=whole))

    async def sessions(self, session_id: str | None = None, *, page: IdPage | None = None) -> Sequence[SessionInfo]:
        return await self._call("sessions", lambda: self._store.sessions(session_id, page=page))

    async def delete(self, session_id: str) -> None:
        """As the wrapped store, or `Unavailable`; the session may then be gone."""
        await self._call("delete", lambda: self._store.delete(session_id))

    async def aclose(self) -> None:
        await self._store.aclose()

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
