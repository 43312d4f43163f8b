"""Stores of sessions over each kind of object store, for tests."""

from __future__ import annotations

import time
from pathlib import Path

import anyio

from repertory.backends.aws_clients import AwsSettings
from repertory.backends.objects.files import FileObjectStore
from repertory.backends.objects.in_memory import MemoryObjectStore, ObjectShelf
from repertory.backends.objects.s3 import S3ObjectStore
from repertory.backends.ports import ObjectStore
from repertory.backends.sessions.journal.store import ObjectSessionStore
from repertory.backends.sessions.liveness import LockedFile, TimeToLive


def virtual_shelf() -> ObjectShelf:
    """Objects in memory whose times are those of the running loop."""
    return ObjectShelf(anyio.current_time)


def on_objects(objects: ObjectStore, owner: str) -> ObjectSessionStore:
    """Leases of ten seconds, by the loop's clock."""
    return ObjectSessionStore(objects, owner=owner, life=TimeToLive(anyio.current_time))


def on_shelf(shelf: ObjectShelf, owner: str) -> ObjectSessionStore:
    return on_objects(MemoryObjectStore(shelf), owner)


def on_files(folder: Path, owner: str) -> ObjectSessionStore:
    life = LockedFile(folder / ".repertory-owners", owner)
    return ObjectSessionStore(FileObjectStore(folder), owner=owner, life=life)


def on_s3(
    url: str, prefix: str, owner: str, *, lease_s: float = 10.0, kms_key_id: str | None = None
) -> ObjectSessionStore:
    aws = AwsSettings(endpoint_url=url)
    objects = S3ObjectStore("bucket", prefix, writer=owner, aws=aws, kms_key_id=kms_key_id)
    return ObjectSessionStore(objects, owner=owner, life=TimeToLive(time.time, lease_s))
