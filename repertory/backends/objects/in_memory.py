"""Objects in memory: for tests, and for objects that need not outlive the process.

As strict as the strictest other store, so that code that works here works on them: a version names a content, and a key
is never the folder of another one.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from hashlib import blake2b
from itertools import count
from typing import NamedTuple

from anyio.lowlevel import checkpoint

from repertory.backends.ports import Condition, Create, ObjectInfo, Overwrite, StoredObject, Update
from repertory.core.ids import check_key, check_prefix
from repertory.errors import AlreadyExists, Invalid, NotFound, PreconditionFailed
from repertory.forking import forget_in_children


class _Object(NamedTuple):
    body: bytes
    version: str
    modified_at: float


class ObjectShelf:
    """The objects that several `MemoryObjectStore`s share, as several processes share a bucket. For any number of
    threads.
    """

    def __init__(self, clock: Callable[[], float] | None = None) -> None:
        """`clock` returns epoch seconds. Without one, each put is one second after the one before."""
        self.clock = clock or map(float, count()).__next__
        self.lock = threading.Lock()
        """The lock of the objects, held for moments, never across a wait."""
        self.objects: dict[str, _Object] = {}
        self.folders: Counter[str] = Counter()
        """The number of objects below each folder."""
        forget_in_children(self)

    def clear(self, prefix: str = "") -> None:
        """Remove every object whose key begins with `prefix`."""
        with self.lock:
            self.objects = {key: stored for key, stored in self.objects.items() if not key.startswith(prefix)}
            self.folders = Counter(folder for key in self.objects for folder in _folders(key))

    def forget_parent(self) -> None:
        """Use a new lock, in a forked child. The objects are a copy from here on."""
        self.lock = threading.Lock()


class MemoryObjectStore:
    """Keeps objects on a shelf. Each call is one checkpoint before it has any effect, and then runs without waiting."""

    def __init__(self, shelf: ObjectShelf | None = None) -> None:
        self._shelf = shelf if shelf is not None else ObjectShelf()
        self._closed = False

    @property
    def name(self) -> str:
        """Stores with equal names hold the same objects."""
        return f"memory:{id(self._shelf):x}"

    async def get(self, key: str) -> StoredObject:
        """Read an object. Errors: `NotFound`."""
        check_key(key)
        await self._enter()
        stored = self._shelf.objects.get(key)
        if stored is None:
            raise NotFound("no such object", key=key)
        return StoredObject(body=stored.body, version=stored.version)

    async def put(self, key: str, body: bytes, condition: Condition) -> str:
        """Store an object. Errors: `AlreadyExists`, `PreconditionFailed`; `Invalid` when its key is another key's
        folder.
        """
        check_key(key)
        await self._enter()
        version = blake2b(body, digest_size=16).hexdigest()
        with self._shelf.lock:
            self._check(key, condition)
            if key not in self._shelf.objects:
                self._shelf.folders.update(_folders(key))
            self._shelf.objects[key] = _Object(bytes(body), version, self._shelf.clock())
        return version

    async def list(self, prefix: str, start_after: str | None = None) -> Sequence[ObjectInfo]:
        """All objects whose key begins with `prefix` and follows `start_after`, in the order of their keys."""
        check_prefix(prefix)
        after = "" if start_after is None else check_key(start_after)
        await self._enter()
        with self._shelf.lock:
            found = sorted(item for item in self._shelf.objects.items() if item[0].startswith(prefix))
        return [
            ObjectInfo(key=key, size_bytes=len(stored.body), version=stored.version, modified_at=stored.modified_at)
            for key, stored in found
            if key > after
        ]

    async def delete(self, key: str) -> None:
        check_key(key)
        await self._enter()
        with self._shelf.lock:
            if self._shelf.objects.pop(key, None) is not None:
                self._shelf.folders -= Counter(_folders(key))

    async def aclose(self) -> None:
        """Close. The shelf keeps its objects."""
        await checkpoint()
        self._closed = True

    async def _enter(self) -> None:
        if self._closed:
            raise Invalid("this was closed before", name=self.name)
        await checkpoint()

    def _check(self, key: str, condition: Condition) -> None:
        stored = self._shelf.objects.get(key)
        match condition:
            case Create() if stored is not None:
                raise AlreadyExists("the object is there already", key=key)
            case Update(version=version) if stored is None or stored.version != version:
                found = stored.version if stored is not None else None
                raise PreconditionFailed("the object is not the one to update", key=key, wanted=version, found=found)
            case Create() | Update() | Overwrite():
                pass
        if key in self._shelf.folders or not self._shelf.objects.keys().isdisjoint(_folders(key)):
            raise Invalid("a key is never the folder of another one", key=key)


def _folders(key: str) -> Iterator[str]:
    """Every folder of the key, from the top."""
    return (key[:end] for end, character in enumerate(key) if character == "/")
