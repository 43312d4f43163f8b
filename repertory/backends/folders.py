"""Folders that only their user can access."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from repertory.errors import Invalid

NO_LINK = "the root of a file store is a folder, and no symbolic link"


def refuse_link(folder: Path) -> None:
    """Raise `Invalid` when the folder is a symbolic link; called before anything is created in it by path."""
    if folder.is_symlink():
        raise Invalid(NO_LINK, path=str(folder))


def make_folders(root: Path) -> None:
    """Create a folder and its missing parents, each with mode 0700 and durable. Existing folders keep their
    permissions.
    """
    missing = [folder for folder in (root, *root.parents) if not folder.exists()]
    for folder in reversed(missing):
        with suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        with suppress(PermissionError):  # A parent that may be written but not read cannot be synced.
            parent = os.open(folder.parent, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(parent)
            finally:
                os.close(parent)
