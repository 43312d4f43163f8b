"""Stores around others, all of whose calls go through one or two methods: for faults, crash points and counts."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from typing import ParamSpec, TypeVar

from msgspec.structs import replace

from repertory.backends.ports import (
    Batch,
    Condition,
    IdPage,
    Lease,
    ObjectInfo,
    ObjectStore,
    OwnedRows,
    Position,
    SessionInfo,
    SessionStore,
    StoreCapabilities,
    StoredObject,
    Waking,
)
from repertory.core.journal.rows import Row
from repertory.errors import RepertoryError

P = ParamSpec("P")
T = TypeVar("T")


class _WrappedLease(Lease, frozen=True, kw_only=True, eq=False):
    """A lease of the wrapped store, whose steps go through the wrapper."""

    inner: Lease
    step: Callable[[str, Callable[[], bool]], bool]

    def release_now(self) -> bool:
        return self.step("release_now", self.inner.release_now)

    def acquire_now(self) -> bool:
        return self.step("acquire_now", self.inner.acquire_now)


def _inner(lease: Lease) -> Lease:
    """The wrapped store's own lease: it may know one from another that is equal."""
    return lease.inner if isinstance(lease, _WrappedLease) else lease


class WrappedSessionStore(SessionStore):
    """Wraps any store, for the wrappers of this kit. It has `acquires_again` of that one and its part `waking`.

    Args:
        store: The store that is wrapped.
    """

    def __init__(self, store: SessionStore) -> None:
        self._store = store

    @abstractmethod
    async def _call(self, name: str, call: Callable[[], Awaitable[T]]) -> T:
        """Carry out a call of this name."""

    @abstractmethod
    def _step(self, name: str, step: Callable[[], bool]) -> bool:
        """Carry out `Lease.release_now` or `Lease.acquire_now`."""

    @property
    def name(self) -> str:
        return self._store.name

    @property
    def capabilities(self) -> StoreCapabilities:
        waking = self._store.capabilities.waking
        if waking is not None:
            claim_due, pending_work = (
                self._through("claim_due", waking.claim_due),
                self._through("pending_work", waking.pending_work),
            )
            waking = Waking(claim_due=claim_due, pending_work=pending_work)
        return StoreCapabilities(waking=waking, acquires_again=self._store.capabilities.acquires_again)

    def _through(self, name: str, call: Callable[P, Awaitable[T]]) -> Callable[P, Awaitable[T]]:
        return lambda *args, **options: self._call(name, lambda: call(*args, **options))

    async def acquire(
        self, session_id: str, *, takeover: bool = False, load: str | None = None, again: Lease | None = None
    ) -> OwnedRows:
        mine = None if again is None else _inner(again)
        found, rows = await self._through("acquire", self._store.acquire)(
            session_id, takeover=takeover, load=load, again=mine
        )
        title = {name: getattr(found, name) for name in Lease.__struct_fields__}
        return OwnedRows(_WrappedLease(inner=found, step=self._step, **title), rows)

    async def release(self, leases: Sequence[Lease]) -> Sequence[RepertoryError | None]:
        return await self._through("release", self._store.release)([_inner(lease) for lease in leases])

    async def append(self, batches: Sequence[Batch]) -> Sequence[Position | RepertoryError]:
        mine = [replace(batch, lease=_inner(batch.lease)) for batch in batches]
        return await self._through("append", self._store.append)(mine)

    async def load(self, session_id: str, agent_id: str, *, whole: bool = False) -> Sequence[Row]:
        return await self._through("load", self._store.load)(session_id, agent_id, whole=whole)

    async def sessions(self, session_id: str | None = None, *, page: IdPage | None = None) -> Sequence[SessionInfo]:
        return await self._through("sessions", self._store.sessions)(session_id, page=page)

    async def delete(self, session_id: str) -> None:
        await self._through("delete", self._store.delete)(session_id)

    async def aclose(self) -> None:
        await self._store.aclose()


class WrappedObjectStore(ObjectStore):
    """Wraps any object store, for the wrappers of this kit.

    Args:
        store: The store that is wrapped.
    """

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    @abstractmethod
    async def _call(self, name: str, key: str, call: Callable[[], Awaitable[T]]) -> T:
        """Carry out a call of this name, for this key or prefix."""

    @property
    def name(self) -> str:
        return self._store.name

    async def get(self, key: str) -> StoredObject:
        return await self._call("get", key, lambda: self._store.get(key))

    async def put(self, key: str, body: bytes, condition: Condition) -> str:
        return await self._call("put", key, lambda: self._store.put(key, body, condition))

    async def list(self, prefix: str, start_after: str | None = None) -> Sequence[ObjectInfo]:
        return await self._call("list", prefix, lambda: self._store.list(prefix, start_after))

    async def delete(self, key: str) -> None:
        await self._call("delete", key, lambda: self._store.delete(key))

    async def aclose(self) -> None:
        await self._store.aclose()
