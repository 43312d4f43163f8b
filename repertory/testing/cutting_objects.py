"""An `ObjectStore` whose connection is lost with a chosen request."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from repertory.backends.ports import Condition, ObjectInfo, ObjectStore, StoredObject
from repertory.errors import StoreUnavailable
from repertory.testing.cuts import Cuts

T = TypeVar("T")


class CuttingObjectStore:
    """Wraps any store. A request that `cuts` loses raises `Unavailable`. `aclose` never fails.

    Args:
        store: The store that is wrapped.
        cuts: Says which requests are lost.
    """

    def __init__(self, store: ObjectStore, cuts: Cuts) -> None:
        self._store = store
        self._cuts = cuts

    @property
    def name(self) -> str:
        return self._store.name

    async def get(self, key: str) -> StoredObject:
        return await self._call(lambda: self._store.get(key))

    async def put(self, key: str, body: bytes, condition: Condition) -> str:
        """As the wrapped store, or `Unavailable`; the put may then have been done."""
        return await self._call(lambda: self._store.put(key, body, condition))

    async def list(self, prefix: str, start_after: str | None = None) -> Sequence[ObjectInfo]:
        return await self._call(lambda: self._store.list(prefix, start_after))

    async def delete(self, key: str) -> None:
        """As the wrapped store, or `Unavailable`; the object may then be gone."""
        await self._call(lambda: self._store.delete(key))

    async def aclose(self) -> None:
        await self._store.aclose()

    async def _call(self, call: Callable[[], Awaitable[T]]) -> T:
        cut = self._cuts.next()
        if cut == "before":
            raise StoreUnavailable("injected fault: the connection was lost before the request")
        result = await call()
        if cut == "after":
            raise StoreUnavailable("injected fault: the connection was lost before the answer")
        return result
