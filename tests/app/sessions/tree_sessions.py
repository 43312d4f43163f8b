"""Sessions in the documented layout over any objects, for tests that count requests or look at the documents."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from repertory.backends.objects.in_memory import MemoryObjectStore, ObjectShelf
from repertory.backends.ports import Condition, ObjectInfo, ObjectStore, SessionStore, StoredObject
from repertory.backends.sessions.liveness import TimeToLive
from repertory.errors import RepertoryError
from tests.backends.sessions.bucket_places import bucket_store

_numbers = itertools.count()


class Died(RepertoryError):
    """The process is no more: nothing is tried again."""


@dataclass
class CountingObjects:
    """Objects that write down what is asked of them: `put <key>`, `get <key>` and so on."""

    objects: ObjectStore
    requests: list[str]
    dies_at: int | None = None
    """The request that is not answered any more, nor any after it."""

    @property
    def name(self) -> str:
        return self.objects.name

    def _note(self, request: str) -> None:
        self.requests.append(request)
        if self.dies_at is not None and len(self.requests) > self.dies_at:
            raise Died("the process has died", request=request)

    async def get(self, key: str) -> StoredObject:
        self._note(f"get {key}")
        return await self.objects.get(key)

    async def put(self, key: str, body: bytes, condition: Condition) -> str:
        self._note(f"put {key}")
        return await self.objects.put(key, body, condition)

    async def list(self, prefix: str, start_after: str | None = None) -> Sequence[ObjectInfo]:
        self._note(f"list {prefix}")
        return await self.objects.list(prefix, start_after)

    async def delete(self, key: str) -> None:
        self._note(f"delete {key}")
        await self.objects.delete(key)

    async def aclose(self) -> None:
        await self.objects.aclose()


@dataclass
class TreeSessions:
    """A place as `Agent` is given it, and a session in it: both what `sessions` and `session_manager` ask for."""

    session_id: str = "s"
    shelf: ObjectShelf = field(default_factory=lambda: ObjectShelf(time.time))
    takeover: bool = False
    requests: list[str] = field(default_factory=list)
    dies_at: int | None = None
    """The request, counted from 0, from which on the next store that is opened answers no more."""

    def after_death(self) -> TreeSessions:
        """The same place for the next process, which need not wait for the lease."""
        return replace(self, takeover=True, requests=[])

    @property
    def sessions(self) -> TreeSessions:
        return self

    @property
    def key(self) -> str:
        return f"tree:{id(self.shelf)}"

    def open_store(self) -> SessionStore:
        objects = CountingObjects(MemoryObjectStore(self.shelf), self.requests, self.dies_at)
        return bucket_store(objects, f"owner-{next(_numbers)}", life=TimeToLive(time.time, 30.0))

    def take_requests(self) -> list[str]:
        """What was asked since the last look, without the folders in front."""
        taken = [request.split(" ")[0] + " " + request.rsplit("/", 1)[-1] for request in self.requests]
        self.requests.clear()
        return taken
