"""An `ObjectStore` whose connection is lost with a chosen request."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from repertory.backends.ports import ObjectStore
from repertory.errors import StoreUnavailable
from repertory.testing.cuts import Cuts
from repertory.testing.wrapped_stores import WrappedObjectStore

T = TypeVar("T")


class CuttingObjectStore(WrappedObjectStore):
    """Wraps any store. A request that `cuts` loses raises `Unavailable`: an object may then have been put,
    or deleted. `aclose` never fails.

    Args:
        store: The store that is wrapped.
        cuts: Says which requests are lost.
    """

    def __init__(self, store: ObjectStore, cuts: Cuts) -> None:
        super().__init__(store)
        self._cuts = cuts

    async def _call(self, name: str, key: str, call: Callable[[], Awaitable[T]]) -> T:
        del name, key
        cut = self._cuts.next()
        if cut == "before":
            raise StoreUnavailable("injected fault: the connection was lost before the request")
        result = await call()
        if cut == "after":
            raise StoreUnavailable("injected fault: the connection was lost before the answer")
        return result
