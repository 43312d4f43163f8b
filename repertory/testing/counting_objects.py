"""An `ObjectStore` that counts its requests, and can delay them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import anyio

from repertory.backends.ports import Condition, ObjectInfo, ObjectStore
from repertory.testing.wrapped_stores import WrappedObjectStore

T = TypeVar("T")


class CountingObjectStore(WrappedObjectStore):
    """Wraps any store. A request counts when it is made, even if it fails.

    Args:
        store: The store that is wrapped.
        latency_s: Seconds before each request.
    """

    def __init__(self, store: ObjectStore, *, latency_s: float = 0.0) -> None:
        """Each request is delayed by `latency_s`."""
        super().__init__(store)
        self.latency_s = latency_s
        self.requests: Counter[str] = Counter()
        """The number of `get`, `put`, `list` and `delete` requests."""
        self.puts: list[tuple[str, int]] = []
        """The key and the bytes of each put."""
        self.listed = 0
        """The number of objects that lists gave."""

    def take(self) -> dict[str, int]:
        """The counts since the last call."""
        counted, self.requests, self.puts = dict(self.requests), Counter(), []
        return counted

    @property
    def bytes_put(self) -> int:
        """The bytes of all puts since the last `take`."""
        return sum(size_bytes for _, size_bytes in self.puts)

    async def put(self, key: str, body: bytes, condition: Condition) -> str:
        self.puts.append((key, len(body)))
        return await super().put(key, body, condition)

    async def list(self, prefix: str, start_after: str | None = None) -> Sequence[ObjectInfo]:
        found = await super().list(prefix, start_after)
        self.listed += len(found)
        return found

    async def _call(self, name: str, key: str, call: Callable[[], Awaitable[T]]) -> T:
        del key
        self.requests[name] += 1
        if self.latency_s:
            await anyio.sleep(self.latency_s)
        return await call()
