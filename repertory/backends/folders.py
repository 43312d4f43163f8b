"""Folders that are made for their user alone."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from repertory.errors import Invalid

NO_LINK = "the root of a file store is a folder, and no symbolic link"


def refuse_link(folder: Path) -> None:
    """Raise `Invalid` when the folder is a symbolic link: before anything is made in it by its path."""
    if folder.is_symlink():
        raise Invalid(NO_LINK, path=str(folder))


def make_folders(root: Path) -> None:
    """Make a folder and those above it that are missing, each with mode 0700 and durable. What is there stays as it is,
    its rights included.
    """
    missing = [folder for folder in (root, *root.parents) if not folder.exists()]
    for folder in reversed(missing):
        with suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        with suppress(PermissionError):  # A parent that may be written and not read cannot be synced by us.
            parent = os.open(folder.parent, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(parent)
            finally:
                os.close(parent)
