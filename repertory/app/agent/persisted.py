"""`Snapshot`: a snapshot that a program keeps, with calls that put it into a storage and get it back."""

from __future__ import annotations

import json
import secrets
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, cast, runtime_checkable

import anyio

from repertory.app.host.blocking import blocking_host
from repertory.app.sessions.storages import ContentStorage, ask_storage
from repertory.app.tracebacks import inside_event_loop
from repertory.backends.ports import Create, Overwrite
from repertory.backends.sessions.snapshots.port import SnapshotStorage
from repertory.core.ids import check_key
from repertory.core.snapshots.location import SnapshotLocation
from repertory.core.snapshots.packing import json_in, proved, with_proof
from repertory.core.snapshots.portable import AGENT, ORCHESTRATOR, PortableSnapshot
from repertory.errors import AlreadyExists, Invalid, NotFound, SnapshotException

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from repertory.app.sessions.storages import Storage
    from repertory.backends.ports import ObjectStore

_CLOSE_S = 5.0


@runtime_checkable
class WritableStorage(Protocol):
    """A storage as the SDK's newest release has it. Its methods may be coroutine functions."""

    def write(self, key: str, data: bytes) -> Awaitable[None] | None:
        """Store the data, replacing what is there."""
        ...

    def read(self, key: str) -> Awaitable[bytes | None] | bytes | None:
        """The data; None when there is none."""
        ...


KeepingStorage: TypeAlias = "Storage | ContentStorage | WritableStorage | SnapshotStorage"
"""A storage for snapshots: `FileStorage`, `S3Storage`, `InMemoryStorage`, or an object with `save` and `load`,
with `write` and `read`, or with the methods of `SnapshotStorage`.
"""


class SnapshotSerializer(Protocol):
    """Makes bytes of a snapshot and a snapshot of bytes, for example compressed or encrypted ones.

    Any object with these two functions, a module too. Its `name`, or else that of its class or module, is stored beside
    the bytes, so that another one is refused when they are read.
    """

    def dumps(self, snapshot: dict[str, Any], /) -> bytes | str:
        """The snapshot, JSON values throughout, as bytes (or a text).

        Args:
            snapshot: The snapshot, as JSON values.
        """
        ...

    def loads(self, data: bytes, /) -> Mapping[str, Any]:
        """A snapshot equal to the snapshot that `dumps` was given.

        Args:
            data: The bytes or text that `dumps` returned.
        """
        ...


def _name_of(serializer: SnapshotSerializer) -> str:
    named = getattr(serializer, "name", None) or getattr(serializer, "__name__", None)
    return str(named or type(serializer).__name__)


def _by(serializer: SnapshotSerializer, method: str, given: object) -> object:
    function = getattr(serializer, method, None)
    if not callable(function):
        raise Invalid("a serializer has dumps and loads", got=type(serializer).__name__)
    try:
        return function(given)
    except Exception as error:
        fields = {"of": _name_of(serializer), "cause": repr(error)}
        raise SnapshotException(f"the serializer's {method} failed", **fields) from error


class Snapshot(PortableSnapshot):
    """An agent, or an orchestrator with its nodes, at one point in time: a dictionary that `json.dump` accepts.

    `type` is "agent" or "multiAgent"; `state` is opaque: do not modify it; `metadata` is yours; `created_at` is the
    time in UTC; `schema_version` is the format's version; `sha256` proves that nothing but the metadata changed. The
    attributes `scope`, `data` and `app_data` are `type`, `state` and `metadata`.
    """

    def __repr__(self) -> str:
        """The snapshot's type and size on one line; `dict(snapshot)` shows its contents."""
        from repertory.core.notebook import short_repr  # loaded when used

        return short_repr(self, self._summary())

    def __rich_repr__(self) -> Iterator[tuple[str, object]]:
        """The type and size for `rich`, which otherwise shows every dictionary whole."""
        yield from self._summary().items()

    def _repr_markdown_(self) -> str:
        """The type and size as a table, for notebooks."""
        from repertory.core.notebook import cell, table  # loaded when used

        return table(("snapshot", ""), [(cell(name), cell(value)) for name, value in self._summary().items()])

    def _summary(self) -> dict[str, object]:
        state, metadata = self.get("state"), self.get("metadata")
        messages = state.get("messages") if isinstance(state, dict) else None
        fields: dict[str, object] = {
            "type": self.get("type"),
            "created_at": self.get("created_at"),
            "schema_version": self.get("schema_version"),
            "messages": len(messages) if isinstance(messages, list) else None,
            "fields": sorted(state) if isinstance(state, dict) else None,
            "metadata": sorted(metadata) if isinstance(metadata, dict) else None,
        }
        return {name: value for name, value in fields.items() if value is not None}

    def to_bytes(self, serializer: SnapshotSerializer | None = None) -> bytes:
        """The bytes that `persist` stores: a line that proves the rest, and the snapshot as `serializer` writes it
        (JSON without one).

        Args:
            serializer: Writes and reads the bytes; None for JSON.

        Raises:
            SnapshotException: If the serializer raises. Mend the serializer.
        """
        if serializer is None:
            return with_proof(json.dumps(self).encode(), None)
        body = _by(serializer, "dumps", dict(self))
        if isinstance(body, str):
            body = body.encode()
        if not isinstance(body, bytes):
            raise SnapshotException("a serializer gives bytes or a text", got=type(body).__name__)
        return with_proof(body, _name_of(serializer))

    @classmethod
    def from_bytes(cls, data: bytes, serializer: SnapshotSerializer | None = None) -> Snapshot:
        """The snapshot in what `to_bytes` made, or, without a serializer, in plain JSON.

        Args:
            data: The data that the opposite method returned.
            serializer: Writes and reads the bytes; None for JSON.

        Raises:
            SnapshotException: For bytes that were changed or truncated, or made by another serializer. Use an intact
                snapshot.
        """
        body = proved(data, None if serializer is None else _name_of(serializer))
        found = json_in(body) if serializer is None else _by(serializer, "loads", body)
        if not isinstance(found, Mapping):
            raise SnapshotException("a serializer loads a dictionary", got=type(found).__name__)
        return cls.from_dict(cast("Mapping[str, object]", found))

    def persist(
        self,
        storage: KeepingStorage,
        key: str,
        *,
        serializer: SnapshotSerializer | None = None,
        overwrite: bool = False,
    ) -> None:
        """`persist_async` for sync code. Errors: also `Invalid` inside an event loop.

        Args:
            storage: The storage of the data.
            key: The name under which it is kept.
            serializer: Writes and reads the bytes; None for JSON.
            overwrite: True replaces what is there. False refuses.
        """
        _check_sync("persist")
        blocking_host().run(partial(self.persist_async, storage, key, serializer=serializer, overwrite=overwrite))

    async def persist_async(
        self,
        storage: KeepingStorage,
        key: str,
        *,
        serializer: SnapshotSerializer | None = None,
        overwrite: bool = False,
    ) -> None:
        """Store it under `key`, which may have slashes. It is durable in the storage on return.

        `serializer` makes the bytes that are stored. Errors: those of the storage. Only `FileStorage`, `S3Storage` and
        `InMemoryStorage` keep two writers of one key apart.

        Args:
            storage: The storage of the data.
            key: The name under which it is kept.
            serializer: Writes and reads the bytes; None for JSON.
            overwrite: True replaces what is there. False refuses.

        Raises:
            AlreadyExists: For a key that is taken. Choose another key, or pass `overwrite=True`.
            Invalid: For a bad key or storage. Correct the argument.
            SnapshotException: If the serializer raises. Mend the serializer.
        """
        check_key(key)
        target: object = storage
        if isinstance(target, SnapshotStorage):
            await self._save_whole(target, key, serializer, overwrite=overwrite)
            return
        data = self.to_bytes(serializer)
        if hasattr(target, "open_objects"):
            async with _opened(cast("Storage", target)) as objects:
                try:
                    await objects.put(key, data, Overwrite() if overwrite else Create())
                except AlreadyExists as error:
                    raise _taken(key) from error
            return
        if not overwrite and await _load(target, key) is not None:
            raise _taken(key)
        await _save(target, key, data)

    @classmethod
    def fetch(cls, storage: KeepingStorage, key: str, *, serializer: SnapshotSerializer | None = None) -> Snapshot:
        """`fetch_async` for sync code. Errors: also `Invalid` inside an event loop.

        Args:
            storage: The storage of the data.
            key: The name under which it is kept.
            serializer: Writes and reads the bytes; None for JSON.
        """
        _check_sync("fetch")
        return blocking_host().run(partial(cls.fetch_async, storage, key, serializer=serializer))

    @classmethod
    async def fetch_async(
        cls, storage: KeepingStorage, key: str, *, serializer: SnapshotSerializer | None = None
    ) -> Snapshot:
        """The snapshot that was stored under `key`, verified: pass it to `load_snapshot` or `Agent(snapshot=...)`.

        Without a serializer, JSON that a program wrote there by itself is read too. Errors: those of the storage.

        Args:
            storage: The storage of the data.
            key: The name under which it is kept.
            serializer: Writes and reads the bytes; None for JSON.

        Raises:
            NotFound: If nothing is stored under the key. Check the key.
            SnapshotException: As from `from_bytes`. Use an intact snapshot.
            Invalid: For a bad key or storage. Correct the argument.
        """
        check_key(key)
        source: object = storage
        if isinstance(source, SnapshotStorage):
            found = await _load_whole(source, key, serializer)
            if found is None:
                raise NotFound("there is no such snapshot", key=key)
            return cls.from_dict(found)
        if hasattr(source, "open_objects"):
            async with _opened(cast("Storage", source)) as objects:
                return cls.from_bytes((await objects.get(key)).body, serializer)
        data = await _load(source, key)
        if data is None:
            raise NotFound("there is no such snapshot", key=key)
        if not isinstance(data, bytes):
            raise Invalid("a storage loads bytes, or None", got=type(data).__name__)
        return cls.from_bytes(data, serializer)

    async def _save_whole(
        self, storage: SnapshotStorage, key: str, serializer: SnapshotSerializer | None, *, overwrite: bool
    ) -> None:
        if not overwrite and await _load_whole(storage, key, serializer) is not None:
            raise _taken(key)
        _check_whole(serializer)
        location = SnapshotLocation(key, str(self["type"]), key)
        save = partial(storage.save_snapshot, location=location, snapshot_id=key, is_latest=False, snapshot=dict(self))
        await ask_storage(save)


async def _load_whole(
    storage: SnapshotStorage, key: str, serializer: SnapshotSerializer | None
) -> Mapping[str, Any] | None:
    """The dictionary that a `SnapshotStorage` has under the key, which stands for all of its ids; None for none."""
    _check_whole(serializer)
    for scope in (AGENT, ORCHESTRATOR):
        location = SnapshotLocation(key, scope, key)
        found = await ask_storage(partial(storage.load_snapshot, location=location, snapshot_id=key))
        if found is not None:
            if not isinstance(found, Mapping):
                raise SnapshotException("a storage of snapshots loads a dictionary", got=type(found).__name__)
            return cast("Mapping[str, Any]", found)
    return None


def _check_whole(serializer: SnapshotSerializer | None) -> None:
    if serializer is not None:
        raise Invalid("a storage with save_snapshot keeps dictionaries, so it takes no serializer")


def _check_sync(name: str) -> None:
    if inside_event_loop():
        raise Invalid(f"inside an event loop, write `await ...{name}_async(...)`")


def _taken(key: str) -> AlreadyExists:
    return AlreadyExists("a snapshot is there already: choose another key, or overwrite=True", key=key)


async def _save(storage: object, key: str, data: bytes) -> None:
    if isinstance(storage, ContentStorage):
        await ask_storage(partial(storage.save, key, data))
    else:
        await ask_storage(partial(cast("WritableStorage", storage).write, key, data))


async def _load(storage: object, key: str) -> object:
    """Errors: `Invalid` for anything but a storage."""
    if isinstance(storage, ContentStorage):
        return await ask_storage(partial(storage.load, key))
    if isinstance(storage, WritableStorage):
        return await ask_storage(partial(storage.read, key))
    msg = "a storage is FileStorage, S3Storage, InMemoryStorage, or has save and load, or write and read"
    raise Invalid(msg, got=repr(storage))


@asynccontextmanager
async def _opened(storage: Storage) -> AsyncGenerator[ObjectStore]:
    objects = storage.open_objects(secrets.token_hex(8))
    try:
        yield objects
    finally:
        with anyio.move_on_after(_CLOSE_S, shield=True):
            await objects.aclose()
