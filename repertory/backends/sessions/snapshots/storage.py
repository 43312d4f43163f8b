"""Anyone's `SnapshotStorage` as a place for snapshots: functions in worker threads, its errors as ours."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import anyio

from repertory.backends.sessions.snapshots.makers import found_in
from repertory.backends.sessions.snapshots.shelf import Found
from repertory.backends.worker_threads import run_in_thread
from repertory.core.snapshots.location import (
    LATEST_ID,
    Numbering,
    SnapshotLocation,
    in_order,
    manifest_of,
    number_of,
    read_manifest,
)
from repertory.errors import RepertoryError, SnapshotException, StoreFailed

if TYPE_CHECKING:
    from repertory.backends.sessions.snapshots.port import SnapshotStorage
    from repertory.core.snapshots.document import ReadSnapshot


class StorageShelf:
    """A storage. Its functions run one at a time, its coroutine functions side by side.

    Errors of every call: `StoreFailed` (a `SessionException`) for whatever the storage raises.
    """

    def __init__(self, storage: SnapshotStorage) -> None:
        self._storage = storage
        self._turn = anyio.Lock()

    @property
    def name(self) -> str:
        """Two shelves with the same name are the same storage."""
        return f"{id(self._storage):x}"

    async def latest(self, location: SnapshotLocation) -> object:
        """The latest snapshot as the storage has it; None when it has none."""
        return await self._ask(partial(self._storage.load_snapshot, location=location))

    async def put_latest(self, location: SnapshotLocation, document: Mapping[str, object]) -> None:
        """Save the latest snapshot."""
        await self._save(location, LATEST_ID, document)

    async def history(self, location: SnapshotLocation, snapshot_id: str) -> Found[ReadSnapshot] | None:
        """The snapshot of that id."""
        found = await self._ask(partial(self._storage.load_snapshot, location=location, snapshot_id=snapshot_id))
        return None if found is None else found_in(found, f"{place_of(location)}/{snapshot_id}")

    async def put_history(
        self, location: SnapshotLocation, snapshot_id: str, document: Mapping[str, object], size_bytes: int
    ) -> None:
        """Save a snapshot, in the place of one of the same id."""
        del size_bytes
        await self._save(location, snapshot_id, document)

    async def ids(self, location: SnapshotLocation) -> list[str]:
        """The ids there are, numbers first."""
        found = await self._ask(partial(self._storage.list_snapshot_ids, location=location))
        ids = [str(each) for each in cast("Sequence[object]", found or ())]
        numbers = {each: number_of(each) for each in ids}
        return in_order(each if number is None else str(number) for each, number in numbers.items() if number != 0)

    async def numbering(self, location: SnapshotLocation) -> Numbering:
        """What the manifest says. Errors: `SnapshotException` for one that says nothing."""
        found = await self._ask(partial(self._storage.load_manifest, location=location))
        try:
            return read_manifest(found)
        except ValueError as error:
            raise SnapshotException("a manifest cannot be read", place=place_of(location), cause=str(error)) from error

    async def keep_manifest(self, location: SnapshotLocation) -> None:
        """A storage has no room for that."""

    async def put_numbering(self, location: SnapshotLocation, numbering: Numbering, at: float) -> None:
        """Save a manifest."""
        manifest = manifest_of(numbering, at)
        await self._ask(partial(self._storage.save_manifest, location=location, manifest=manifest))

    async def _save(self, location: SnapshotLocation, snapshot_id: str, document: Mapping[str, object]) -> None:
        latest = snapshot_id == LATEST_ID
        save = partial(self._storage.save_snapshot, location=location, snapshot_id=snapshot_id, is_latest=latest)
        await self._ask(partial(save, snapshot=dict(document)))

    async def _ask(self, method: partial[Any]) -> object:
        """What the storage answers, whichever way its method works."""
        try:
            if inspect.iscoroutinefunction(method):
                return await method()
            async with self._turn:
                answer = await run_in_thread(method)
            return await answer if inspect.isawaitable(answer) else answer
        except RepertoryError:
            raise
        except Exception as error:
            name = getattr(method.func, "__name__", "a method")
            msg = f"the snapshot storage failed in {name}: {type(error).__name__}: {error}"
            raise StoreFailed(msg) from error


def place_of(location: SnapshotLocation) -> str:
    """What to call a location in messages."""
    return f"{location.session_id}/{location.scope_id}"
