"""Requests to an object store, many of them side by side but never too many."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TypeVar

import anyio

from repertory.backends.ports import Condition, ObjectInfo, ObjectStore, StoredObject
from repertory.errors import NotFound, RepertoryError

SIDE_BY_SIDE = 32
"""Requests under way at once for one kind of work: commits, or reading, or tidying up."""

T = TypeVar("T")


async def side_by_side(calls: Sequence[Callable[[], Awaitable[T]]], at_once: int = SIDE_BY_SIDE) -> list[T]:
    """What each call gives, in order. When some fail, the others end all the same; then the first error is raised."""
    if len(calls) == 1:
        return [await calls[0]()]
    results: dict[int, T] = {}
    errors: dict[int, RepertoryError] = {}
    limiter = anyio.CapacityLimiter(at_once)

    async def run(number: int, call: Callable[[], Awaitable[T]]) -> None:
        async with limiter:
            try:
                results[number] = await call()
            except RepertoryError as error:
                errors[number] = error

    async with anyio.create_task_group() as tasks:
        for number, call in enumerate(calls):
            tasks.start_soon(run, number, call)
    if errors:
        raise errors[min(errors)]
    return [results[number] for number in range(len(calls))]


class Requests:
    """An object store. Errors of every call are the store's own."""

    def __init__(self, objects: ObjectStore) -> None:
        self._objects = objects

    async def find(self, key: str) -> StoredObject | None:
        """An object, or None when there is none."""
        try:
            return await self._objects.get(key)
        except NotFound:
            return None

    async def find_all(self, keys: Sequence[str], at_once: int = SIDE_BY_SIDE) -> list[StoredObject | None]:
        """Each object in order, or None where there is none."""
        return await side_by_side([partial(self.find, key) for key in keys], at_once)

    async def put(self, key: str, body: bytes, condition: Condition) -> str:
        """Write an object and give its version."""
        return await self._objects.put(key, body, condition)

    async def list(self, prefix: str, start_after: str | None = None) -> Sequence[ObjectInfo]:
        """What lies below a prefix, in order."""
        return await self._objects.list(prefix, start_after)

    async def delete_all(self, keys: Sequence[str], at_once: int = SIDE_BY_SIDE) -> None:
        """Remove objects."""
        await side_by_side([partial(self._objects.delete, key) for key in keys], at_once)
