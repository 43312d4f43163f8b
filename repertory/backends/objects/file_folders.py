"""Folders and files below a root, reached without following a link: each is opened relative to the folder above it.

A link is not followed even when it appears on the way, because every step is `openat(2)` with `O_NOFOLLOW`. The root
must not be a link either; the folders above it are the choice of the store's owner. POSIX only.

Source: openat(2); the attack that it stops is CWE-367 on top of CWE-59.
"""

from __future__ import annotations

import os
import stat
import unicodedata
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Literal

from repertory.backends.folders import NO_LINK, make_folders
from repertory.errors import Invalid

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
FILE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
"""Flags for every opened file. A pipe or a device in its place does not block."""
_FORMS: tuple[Literal["NFC"], Literal["NFD"]] = ("NFC", "NFD")
"""How an accented letter may be written: as one character, or as a letter and an accent."""


@contextmanager
def opened_folders(root: Path, names: Sequence[str], *, create: bool = False) -> Generator[list[int]]:
    """Descriptors of the root and of each folder below it in turn.

    With `create`, missing folders are made (mode 0700, durable before the block begins). Otherwise a missing folder, or
    a file in its place, is `FileNotFoundError`.
    """
    with ExitStack() as stack:
        chain = [_open_root(root, create=create)]
        stack.callback(os.close, chain[0])
        for name in names:
            chain.append(_open_folder(name, chain[-1], create=create))
            stack.callback(os.close, chain[-1])
        yield chain


def remove_empty_folders(chain: Sequence[int], names: Sequence[str]) -> None:
    """Remove the lowest folder and its parents while they are empty. `chain` has the descriptors of these names."""
    with suppress(OSError):  # not empty, or not ours to remove
        for parent, name in zip(reversed(chain[:-1]), reversed(names), strict=True):
            os.rmdir(name, dir_fd=parent)


@contextmanager
def opened_file(name: str, folder: int, flags: int) -> Generator[int]:
    """The descriptor of an existing file; `FileNotFoundError` when there is none, or only a folder."""
    try:
        descriptor = os.open(name, flags | FILE, dir_fd=folder)
    except IsADirectoryError as error:
        raise FileNotFoundError(name) from error
    try:
        status = os.fstat(descriptor)
        if stat.S_ISDIR(status.st_mode):
            raise FileNotFoundError(name)
        if not stat.S_ISREG(status.st_mode):
            raise Invalid("something that is no file has an object's key", part=name)
        check_spelling(name, folder, status)
        yield descriptor
    finally:
        os.close(descriptor)


def check_spelling(name: str, folder: int, status: os.stat_result) -> None:
    """Raise `Invalid` when a file system that ignores case, or Unicode normalization, has found a file with another
    spelling.

    Where another spelling leads to the same file, the folder is read to find the stored name.
    """
    others = {name.swapcase(), *(unicodedata.normalize(form, name) for form in _FORMS)} - {name}
    for other in others:
        with suppress(OSError):
            twin = os.stat(other, dir_fd=folder, follow_symlinks=False)
            if os.path.samestat(twin, status) and name not in os.listdir(folder):
                msg = "this file system does not tell apart keys that differ in upper and lower case alone"
                if other != name.swapcase():
                    msg = "this file system does not tell apart keys that differ in how accents are written alone"
                raise Invalid(msg, part=name)


def _open_root(root: Path, *, create: bool) -> int:
    try:
        return os.open(root, _FOLDER)
    except FileNotFoundError:
        if not create:
            raise
        make_folders(root)
        return os.open(root, _FOLDER)
    except NotADirectoryError as error:
        raise Invalid(NO_LINK, path=str(root)) from error


def _open_folder(name: str, parent: int, *, create: bool) -> int:
    try:
        descriptor = os.open(name, _FOLDER, dir_fd=parent)
    except FileNotFoundError:
        if not create:
            raise
        with suppress(FileExistsError):
            os.mkdir(name, 0o700, dir_fd=parent)
        os.fsync(parent)
        descriptor = os.open(name, _FOLDER, dir_fd=parent)
    except NotADirectoryError as error:
        if stat.S_ISREG(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
            if create:
                raise Invalid("a key is never the folder of another one", part=name) from error
            raise FileNotFoundError(name) from error
        raise Invalid("the key leads over a link or something that is no folder", part=name) from error
    try:
        check_spelling(name, parent, os.fstat(descriptor))
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor
