"""Where a `ContextOffloader` keeps contents when it is given a place for them."""

from __future__ import annotations

import inspect
import secrets
from collections.abc import AsyncGenerator, Awaitable
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, cast, runtime_checkable

import anyio

from repertory.backends.ports import Overwrite
from repertory.backends.worker_threads import run_in_thread
from repertory.errors import Invalid, NotFound

if TYPE_CHECKING:
    from repertory.app.storages import Storage
    from repertory.backends.ports import ObjectStore

_CLOSE_S = 5.0


@runtime_checkable
class ContentStorage(Protocol):
    """Anybody's storage. Coroutine functions, or functions, which run in a worker thread. What they raise reaches the
    log, or the model as an error.

    It may also have `delete(key)`; without it nothing is ever removed from it.
    """

    def save(self, key: str, data: bytes) -> Awaitable[None] | None:
        """Keep the data, in the place of what is there."""
        ...

    def load(self, key: str) -> Awaitable[bytes | None] | bytes | None:
        """The data; None when there is none."""
        ...


class ContentPlace(Protocol):
    """Contents under keys."""

    async def save(self, key: str, data: bytes) -> None: ...
    async def load(self, key: str) -> bytes | None: ...
    async def delete(self, key: str) -> None: ...
    async def erase(self, folder: str) -> int: ...


AnyStorage: TypeAlias = "Storage | ContentStorage"


def content_place(storage: object) -> ContentPlace:
    """Errors: `Invalid` for what is no storage."""
    if hasattr(storage, "open_objects"):
        return _ObjectPlace(cast("Storage", storage))
    if isinstance(storage, ContentStorage):
        return _OwnPlace(storage)
    raise Invalid("a storage is FileStorage, S3Storage, InMemoryStorage, or has save and load", got=repr(storage))


class _ObjectPlace:
    """Files, a bucket or memory, opened for each use: whose event loop that is may change from call to call."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    async def save(self, key: str, data: bytes) -> None:
        async with self._open() as objects:
            await objects.put(key, data, Overwrite())

    async def load(self, key: str) -> bytes | None:
        try:
            async with self._open() as objects:
                return (await objects.get(key)).body
        except NotFound:
            return None

    async def delete(self, key: str) -> None:
        async with self._open() as objects:
            await objects.delete(key)

    async def erase(self, folder: str) -> int:
        """How many there were."""
        async with self._open() as objects:
            found = await objects.list(folder)
            for info in found:
                await objects.delete(info.key)
        return len(found)

    @asynccontextmanager
    async def _open(self) -> AsyncGenerator[ObjectStore]:
        objects = self._storage.open_objects(secrets.token_hex(8))
        try:
            yield objects
        finally:
            with anyio.move_on_after(_CLOSE_S, shield=True):
                await objects.aclose()


class _OwnPlace:
    """A storage of the user's own."""

    def __init__(self, storage: ContentStorage) -> None:
        self._storage: Any = storage

    async def save(self, key: str, data: bytes) -> None:
        await _ask(partial(self._storage.save, key, data))

    async def load(self, key: str) -> bytes | None:
        data = await _ask(partial(self._storage.load, key))
        if data is not None and not isinstance(data, bytes):
            raise Invalid("a storage loads bytes, or None", got=type(data).__name__)
        return data

    async def delete(self, key: str) -> None:
        if hasattr(self._storage, "delete"):
            await _ask(partial(self._storage.delete, key))

    async def erase(self, folder: str) -> int:
        del folder
        raise Invalid("only FileStorage, S3Storage and InMemoryStorage know what they hold; erase it there yourself")


async def _ask(method: partial[Any]) -> object:
    if inspect.iscoroutinefunction(method.func):
        return await method()
    answer = await run_in_thread(method)
    return await answer if inspect.isawaitable(answer) else answer
