"""A storage in memory for sessions with snapshots, for tests that look at the documents, or whose processes die."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from typing import Any

from repertory import SessionManager
from repertory.backends.objects.in_memory import MemoryObjectStore, ObjectShelf
from repertory.backends.ports import ObjectStore, Overwrite
from repertory.backends.sessions.liveness import Liveness, TimeToLive
from tests.app.sessions.tree_sessions import CountingObjects


@dataclass
class SnapshotShelf:
    """What `SessionManager(storage=...)` takes."""

    shelf: ObjectShelf = field(default_factory=lambda: ObjectShelf(time.time))
    requests: list[str] = field(default_factory=list)
    dies_at: int | None = None
    """The request, counted from 0, from which on stores that are opened answer no more."""

    @property
    def key(self) -> str:
        return f"shelf:{id(self.shelf)}"

    def open_objects(self, writer: str) -> ObjectStore:
        del writer
        return CountingObjects(MemoryObjectStore(self.shelf), self.requests, self.dies_at)

    def owners(self, owner: str, lease_s: float) -> Liveness:
        del owner
        return TimeToLive(time.time, lease_s)

    def after_death(self) -> SnapshotShelf:
        """The same for the next process."""
        return SnapshotShelf(self.shelf)

    def manager(self, **options: Any) -> SessionManager:
        """Of the one session, which need not wait for a lease."""
        return SessionManager("s", storage=self, takeover=True, **options)

    def objects(self) -> MemoryObjectStore:
        """What lies there, for whoever is none of its processes."""
        return MemoryObjectStore(self.shelf)

    async def keys(self) -> list[str]:
        """What lies in the tree, below the session."""
        infos = await self.objects().list("s/scopes/")
        return [info.key.removeprefix("s/scopes/") for info in infos]

    async def document(self, key: str) -> dict[str, Any]:
        """What lies there, as it lies there."""
        return json.loads((await self.objects().get(f"s/scopes/{key}")).body)

    async def write(self, key: str, body: Any) -> None:
        """As somebody who knows nothing of ours: a document loses what others leave out."""
        if isinstance(body, dict):
            known = ("scope", "schema_version", "created_at", "data", "app_data")
            body = json.dumps({name: body[name] for name in known if name in body}).encode()
        await self.objects().put(f"s/scopes/{key}", body, Overwrite())
