"""New files that are whole or not there, and locks that end with their process.

A file is written under a name of its own, synced, and only then given the name that readers look for. While it is
written it is locked, so a file that nobody has locked is what a killed process left behind.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager, suppress
from io import FileIO
from itertools import count

from repertory.backends.objects.file_folders import FILE
from repertory.core.ids import RESERVED
from repertory.errors import StoreFailed, StoreUnavailable

_NAMES_TRIED = 100
_numbers = count()


class Busy(StoreUnavailable):
    """Another writer is in the way for a moment: the store tries again before anyone hears of it."""


@contextmanager
def written(body: bytes, folder: int) -> Generator[str]:
    """The name of a new file in `folder` with this content, on stable storage.

    The block gives it another name; when it raises, the file is gone.
    """
    name, descriptor = _new_file(folder)
    try:
        rest = memoryview(body)
        while rest:
            rest = rest[os.write(descriptor, rest) :]
        os.fsync(descriptor)
        yield name
    except BaseException:
        with suppress(OSError):
            os.unlink(name, dir_fd=folder)
        raise
    finally:
        os.close(descriptor)


def read_all(descriptor: int) -> bytes:
    """The whole content, from the beginning."""
    os.lseek(descriptor, 0, os.SEEK_SET)
    return FileIO(descriptor, closefd=False).readall()


def lock_current(descriptor: int, name: str, folder: int) -> None:
    """Lock the file that has this name now, until the descriptor is closed; everybody who replaces it does so.

    The file is its own lock: the one that takes its place is another file. Raises `Busy` when somebody else has it
    locked, or has just replaced it.
    """
    if not _lock(descriptor):
        raise Busy("another writer holds the object", part=name)
    if not os.path.samestat(os.fstat(descriptor), os.stat(name, dir_fd=folder, follow_symlinks=False)):
        raise Busy("another writer was quicker", part=name)


def remove_abandoned(name: str, folder: int) -> None:
    """Remove a new file that was never given its name, unless its writer is alive."""
    with suppress(OSError):
        descriptor = os.open(name, os.O_RDWR | FILE, dir_fd=folder)
        try:
            if _lock(descriptor) and os.fstat(descriptor).st_nlink:
                os.unlink(name, dir_fd=folder)
        finally:
            os.close(descriptor)


def _new_file(folder: int) -> tuple[str, int]:
    """A new locked file with a name of its own. Somebody who tidies up may be quicker than the lock: then another."""
    for _ in range(_NAMES_TRIED):
        name = f"{RESERVED}{os.getpid()}-{next(_numbers)}"
        try:
            descriptor = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | FILE, 0o600, dir_fd=folder)
        except FileExistsError:
            continue
        try:
            if _lock(descriptor) and os.fstat(descriptor).st_nlink:
                return name, descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)
    raise Busy("no name was free for a new file")


def _lock(descriptor: int) -> bool:
    try:
        import fcntl
    except ImportError as error:
        raise StoreFailed("objects in files need POSIX file locks, which this system lacks") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
