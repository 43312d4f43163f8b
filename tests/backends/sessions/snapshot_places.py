"""Stores of sessions with snapshots, over each kind of place, for tests."""

from __future__ import annotations

import itertools
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio

from repertory import SnapshotLocation, SnapshotManifest
from repertory.backends.aws_clients import AwsSettings
from repertory.backends.objects.files import FileObjectStore
from repertory.backends.objects.in_memory import MemoryObjectStore, ObjectShelf
from repertory.backends.objects.s3 import S3ObjectStore
from repertory.backends.ports import ObjectStore
from repertory.backends.sessions.journal.format import BESIDE_SNAPSHOTS
from repertory.backends.sessions.journal.store import ObjectSessionStore
from repertory.backends.sessions.liveness import Liveness, LockedFile, TimeToLive
from repertory.backends.sessions.log.store import LogSessionStore
from repertory.backends.sessions.snapshots.port import LoadOnce, SnapshotChoices
from repertory.backends.sessions.snapshots.storage_store import StorageSessionStore
from repertory.backends.sessions.snapshots.store import SnapshotSessionStore
from repertory.core.snapshots.trigger import SaveLatestOn

TREE = "s/scopes/agent/default/snapshots/"


_ticks = map(float, itertools.count(1)).__next__


def choices(save_latest_on: SaveLatestOn = "message", load: str | None = None) -> SnapshotChoices:
    return SnapshotChoices(save_latest_on=save_latest_on, load=None if load is None else LoadOnce(load))


def snapshots_on(
    objects: ObjectStore,
    owner: str,
    chosen: SnapshotChoices | None = None,
    *,
    life: Liveness | None = None,
    wall: Callable[[], float] | None = None,
) -> SnapshotSessionStore:
    """Leases of ten seconds, by the loop's clock."""
    clock = wall or anyio.current_time
    journal = ObjectSessionStore(objects, owner=owner, life=life or TimeToLive(clock), layout=BESIDE_SNAPSHOTS)
    return SnapshotSessionStore(journal, objects, wall=clock, entropy=os.urandom, choices=chosen or choices())


def snapshots_on_shelf(shelf: ObjectShelf, owner: str, chosen: SnapshotChoices | None = None) -> SnapshotSessionStore:
    return snapshots_on(MemoryObjectStore(shelf), owner, chosen)


def snapshots_on_files(folder: Path, owner: str) -> SnapshotSessionStore:
    life, objects = LockedFile(folder / ".repertory-owners", owner), FileObjectStore(folder)
    journal = LogSessionStore(folder, objects, owner=owner, life=life, wall=time.time, layout=BESIDE_SNAPSHOTS)
    return SnapshotSessionStore(journal, objects, wall=time.time, entropy=os.urandom, choices=choices())


def snapshots_on_s3(url: str, prefix: str, owner: str) -> SnapshotSessionStore:
    objects = S3ObjectStore("bucket", prefix, writer=owner, aws=AwsSettings(endpoint_url=url))
    return snapshots_on(objects, owner, life=TimeToLive(time.time), wall=time.time)


def snapshots_in_storage(storage: Any, owner: str, chosen: SnapshotChoices | None = None) -> StorageSessionStore:
    return StorageSessionStore(storage, owner=owner, wall=_ticks, entropy=os.urandom, choices=chosen or choices())


class AsyncStorage:
    """What the documents show for Redis, with a dictionary in its place: whatever it keeps it keeps as text."""

    def __init__(self) -> None:
        self.kept: dict[str, str] = {}

    def _key(self, location: SnapshotLocation, name: str) -> str:
        return f"{location.session_id}:{location.scope}:{location.scope_id}:{name}"

    async def save_snapshot(
        self, *, location: SnapshotLocation, snapshot_id: str, is_latest: bool, snapshot: dict[str, Any]
    ) -> None:
        await anyio.lowlevel.checkpoint()
        self.kept[self._key(location, "latest" if is_latest else f"history:{snapshot_id}")] = json.dumps(snapshot)

    async def load_snapshot(
        self, *, location: SnapshotLocation, snapshot_id: str | None = None
    ) -> dict[str, Any] | None:
        await anyio.lowlevel.checkpoint()
        found = self.kept.get(self._key(location, "latest" if snapshot_id is None else f"history:{snapshot_id}"))
        return None if found is None else json.loads(found)

    async def list_snapshot_ids(self, *, location: SnapshotLocation) -> list[str]:
        await anyio.lowlevel.checkpoint()
        prefix = self._key(location, "history:")
        return [key.removeprefix(prefix) for key in self.kept if key.startswith(prefix)]

    async def load_manifest(self, *, location: SnapshotLocation) -> SnapshotManifest:
        await anyio.lowlevel.checkpoint()
        found = self.kept.get(self._key(location, "manifest"))
        return SnapshotManifest() if found is None else SnapshotManifest(**json.loads(found))

    async def save_manifest(self, *, location: SnapshotLocation, manifest: SnapshotManifest) -> None:
        await anyio.lowlevel.checkpoint()
        self.kept[self._key(location, "manifest")] = json.dumps(
            {
                "schema_version": manifest.schema_version,
                "next_snapshot_id": manifest.next_snapshot_id,
                "updated_at": manifest.updated_at,
            }
        )


class SyncStorage:
    """The same without waiting."""

    def __init__(self) -> None:
        self.snapshots: dict[tuple[SnapshotLocation, str], str] = {}
        self.manifests: dict[SnapshotLocation, SnapshotManifest] = {}

    def save_snapshot(
        self, *, location: SnapshotLocation, snapshot_id: str, is_latest: bool, snapshot: dict[str, Any]
    ) -> None:
        assert is_latest == (snapshot_id == "0")
        self.snapshots[location, snapshot_id] = json.dumps(snapshot)

    def load_snapshot(self, *, location: SnapshotLocation, snapshot_id: str | None = None) -> dict[str, Any] | None:
        found = self.snapshots.get((location, snapshot_id or "0"))
        return None if found is None else json.loads(found)

    def list_snapshot_ids(self, *, location: SnapshotLocation) -> list[str]:
        return [name for place, name in self.snapshots if place == location]

    def load_manifest(self, *, location: SnapshotLocation) -> SnapshotManifest | None:
        return self.manifests.get(location)

    def save_manifest(self, *, location: SnapshotLocation, manifest: SnapshotManifest) -> None:
        self.manifests[location] = manifest
