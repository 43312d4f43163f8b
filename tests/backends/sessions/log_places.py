"""Stores of sessions as logs in a folder, for tests, and processes that die in any of their system calls."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from repertory.backends.objects.files import FileObjectStore, FileTree
from repertory.backends.sessions.documents.folder_store import FolderSessionStore
from repertory.backends.sessions.documents.reading import BESIDE_TREE
from repertory.backends.sessions.liveness import LockedFile
from repertory.backends.sessions.log import log_file
from repertory.backends.sessions.log.store import LogSessionStore
from repertory.core.journal.restore import Entropy
from repertory.testing.crash_points import CrashPoints

_CALLS = ("fsync", "unlink", "rename", "ftruncate", "posix_fallocate", "mkdir", "rmdir")


def log_store(folder: Path, owner: str) -> LogSessionStore:
    objects, life = FileObjectStore(folder), LockedFile(folder / ".repertory-owners", owner)
    return LogSessionStore(folder, objects, owner=owner, life=life, wall=time.time)


def folder_store(root: Path, owner: str, entropy: Entropy = os.urandom) -> FolderSessionStore:
    objects, life = FileObjectStore(root), LockedFile(root / "repertory-owners", owner)
    logs = LogSessionStore(
        root,
        objects,
        owner=owner,
        life=life,
        wall=time.time,
        layout=BESIDE_TREE,
    )
    return FolderSessionStore(logs, objects, FileTree(root), wall=time.time, entropy=entropy)


def log_of(root: Path, session_id: str) -> Path:
    """The latest log of a session."""
    return sorted((root / "journals" / session_id).glob("journal*.log"))[-1]


def crash_in_system_calls(points: CrashPoints) -> Callable[[], None]:
    """Crash before, after and in the middle of any call that changes a file, until the returned function is called."""

    def pwrite(file: int, data: Any, offset: int) -> int:
        points.reach("before a write")
        half = min(len(data), -offset % 512 + len(data) // 1024 * 512)  # A disk writes sectors.
        written = real["pwrite"](file, data[:half], offset)
        points.reach("in the middle of a write")
        written += real["pwrite"](file, data[half:], offset + half)
        points.reach("after a write")
        return written

    def around(name: str) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            points.reach(f"before {name}")
            result = real[name](*arguments, **options)
            points.reach(f"after {name}")
            return result

        return call

    real = {name: getattr(os, name) for name in ("pwrite", "fdatasync", *_CALLS)}
    os.pwrite = pwrite
    for name in _CALLS:
        setattr(os, name, around(name))
    log_file._sync_data = around("fdatasync")

    def restore() -> None:
        for name, function in real.items():
            setattr(os, name, function)
        log_file._sync_data = real["fdatasync"]

    return restore
