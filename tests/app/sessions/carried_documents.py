"""Sessions in the layout whose documents carry the journal, in a folder, so that tests can look at the documents.

Buckets and repositories of users keep sessions so.
"""

from __future__ import annotations

import itertools
import os
import time
from dataclasses import dataclass
from pathlib import Path

from repertory.backends.objects.files import FileObjectStore
from repertory.backends.ports import SessionStore
from repertory.backends.sessions.documents.journal import TreeSettings
from repertory.backends.sessions.documents.store import MessageTreeStore
from repertory.backends.sessions.liveness import LockedFile

_numbers = itertools.count()


@dataclass(frozen=True)
class CarriedSessions:
    """All sessions below one folder."""

    path: Path

    @property
    def key(self) -> str:
        return f"carried:{self.path}"

    def open_store(self) -> SessionStore:
        owner = f"owner-{os.getpid()}-{next(_numbers)}"
        return MessageTreeStore(
            FileObjectStore(self.path),
            owner=owner,
            life=LockedFile(self.path / "repertory-owners", owner),
            wall=time.time,
            entropy=os.urandom,
            settings=TreeSettings(),
        )


@dataclass(frozen=True)
class CarriedSession:
    """One session, as `Agent(session_manager=...)` takes it."""

    session_id: str
    path: Path
    takeover: bool = False

    @property
    def sessions(self) -> CarriedSessions:
        return CarriedSessions(Path(self.path))
