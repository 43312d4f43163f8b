"""Sessions as a bucket keeps them, whose objects are files in a folder, so that tests can look at the documents."""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace

from repertory.backends.objects.files import FileObjectStore
from repertory.backends.ports import ObjectInfo, SessionStore
from repertory.backends.sessions.liveness import LockedFile
from repertory.errors import Invalid, NotFound
from tests.backends.sessions.bucket_places import bucket_store

_numbers = itertools.count()


class ListedWithVersions(FileObjectStore):
    """Files whose lists tell their versions, as those of a bucket do."""

    async def list(self, prefix: str, start_after: str | None = None) -> Sequence[ObjectInfo]:
        found: list[ObjectInfo] = []
        for info in await super().list(prefix, start_after):
            try:
                found.append(replace(info, version=(await self.get(info.key)).version))
            except (NotFound, Invalid):
                found.append(info)
        return found


@dataclass(frozen=True)
class BucketInFolder:
    """All sessions below one folder."""

    path: Path

    @property
    def key(self) -> str:
        return f"bucket in a folder:{self.path}"

    def open_store(self) -> SessionStore:
        owner = f"owner-{os.getpid()}-{next(_numbers)}"
        life = LockedFile(self.path / "repertory-owners", owner)
        return bucket_store(ListedWithVersions(self.path), owner, life=life)


@dataclass(frozen=True)
class SessionInFolder:
    """One session, as `Agent(session_manager=...)` takes it."""

    session_id: str
    path: Path
    takeover: bool = False

    @property
    def sessions(self) -> BucketInFolder:
        return BucketInFolder(Path(self.path))
