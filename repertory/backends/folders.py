"""Folders that only their user can access."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

from msgspec import Struct

from repertory.errors import Invalid, StoreUnavailable

if TYPE_CHECKING:
    from repertory.backends.ports import Condition

NO_LINK = "the root of a file store is a folder, and no symbolic link"
_NO_FILE = "something else has the place of a file"
_AS_FOLDER = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_CLOEXEC", 0)  # which Windows lacks
OPEN_FOLDER = _AS_FOLDER | getattr(os, "O_NOFOLLOW", 0)
_KNOWN_MAX = 4096


class _Identity(NamedTuple):
    device: int
    inode: int


_known: dict[Path, _Identity] = {}
"""The roots that this process has seen, the oldest first."""


class Put(Struct, frozen=True):
    """A put of an object, one of several.

    Attributes:
        key: The object's key.
        body: The object's bytes.
        condition: `Create()`, `Update(version)` or `Overwrite()`.
    """

    key: str
    body: bytes
    condition: Condition
    lasting: bool = True
    """False if the object may be lost by a crash of the machine, or be cut off. Killed processes lose nothing."""


class FolderObjects(Protocol):
    """Objects as files below a folder, for work in a worker thread. Every method blocks. Errors: as `ObjectStore`."""

    def content(self, key: str) -> bytes:
        """The bytes of an object. Errors: `NotFound`, `NoObject`."""
        ...

    def carry_out(self, puts: Sequence[Put], done: list[Put]) -> None:
        """Put these objects in order, and add each to `done`. What one has put survives a crash of the machine
        before the next begins, unless it need not. Errors: that of the put that failed, behind which none is done.
        """
        ...

    def mapped(self, key: str) -> AbstractContextManager[None]:
        """Raises errors of the operating system as ours, with this key."""
        ...

    def remove_abandoned(self, folder: str) -> None:
        """Remove what killed processes left in a folder of the root, and in those below it."""
        ...


class RootFolder:
    """The root of a store. A process makes it at its first write, and never again.

    A root that is missing later, or another and empty folder, was on a volume that is not mounted now. Whatever would
    be written in its place is hidden once the volume is back, so nothing is.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._seen: _Identity | None = None

    def open(self, *, create: bool) -> int:
        """A descriptor of the folder, for its caller to close. With `create`, a folder that never was there is made.

        Errors: `FileNotFoundError` when it never was there; `Invalid` when something else is; `StoreUnavailable` when
        it was there before: mount its volume, and try again.
        """
        try:
            descriptor = self._open(create=create)
        except NotADirectoryError as error:
            raise Invalid(NO_LINK, path=str(self.path)) from error
        try:
            self._seen = _recognize(self.path, descriptor, self._seen)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def _open(self, *, create: bool) -> int:
        try:
            return os.open(self.path, OPEN_FOLDER)
        except FileNotFoundError:
            if self._seen is None and not create and self.path not in _known:
                raise
        make_root(self.path)
        return os.open(self.path, OPEN_FOLDER)


def open_file(path: Path, flags: int) -> int:
    """A descriptor of a regular file, for its caller to close; made with mode 0600 if the flags say so.

    Opening never waits: somebody may have planted a pipe to which nobody writes. Errors: `OSError`; `Invalid` where a
    link, a pipe, a device or a folder has the place of the file.
    """
    try:
        # Opening a pipe that somebody has planted there would wait for its other end, for ever.
        file = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO, errno.EISDIR):
            raise Invalid(_NO_FILE, path=str(path)) from error
        raise
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise Invalid(_NO_FILE, path=str(path))
    return file


def close_locked(file: int) -> None:
    """Let go of the lock on an open file (`flock`), and close the file.

    The lock belongs to the open file, of which every child has a copy: one that was forked just now and has not run
    yet, or one that has not executed its program yet. Closing alone would leave the file locked until that child has
    closed it as well.
    """
    with suppress(ImportError, OSError):  # Closing lets go of it, if later.
        import fcntl

        fcntl.flock(file, fcntl.LOCK_UN)
    os.close(file)


def refuse_link(folder: Path) -> None:
    """Raise `Invalid` when the folder is a symbolic link; called before anything is created in it by path."""
    if folder.is_symlink():
        raise Invalid(NO_LINK, path=str(folder))


def make_root(root: Path) -> None:
    """`make_folders` for the root of a store, which is remembered. Errors: as `make_folders`."""
    make_folders(root)
    with suppress(NotADirectoryError, PermissionError):  # Whoever writes there says what is wrong with it.
        descriptor = os.open(root, _AS_FOLDER)
        try:
            _recognize(root, descriptor, None)
        finally:
            os.close(descriptor)


def make_folders(path: Path) -> None:
    """Create a folder and its missing parents, each with mode 0700 and durable. Existing folders keep their
    permissions.

    Errors: `StoreUnavailable` when one of them is a root that this process has seen, and it is gone; or when the volume
    that they would be made on is not mounted, as other roots show.
    """
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    if missing:
        above = missing[-1].parent
        gone = any(folder in _known and not folder.exists() for folder in missing)  # Others may just have made it.
        if gone or _is_unmounted(above, above.stat().st_dev):
            raise _gone(path)
    # Parents before their children, each synced into its own parent: the name of a folder lies in the one above it.
    for folder in reversed(missing):
        with suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        with suppress(PermissionError):  # A parent that may be written but not read cannot be synced.
            sync_folder(folder.parent)


def sync_folder(folder: Path) -> None:
    """Bring the names in a folder to the disk. Errors: `OSError`."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _is_unmounted(folder: Path, device: int) -> bool:
    """True if a volume with other roots was mounted at this folder: they are gone, and were on another device.
    A root that was removed from a volume that is still mounted is no sign.
    """
    return any(
        known.device != device
        and folder in root.parents
        and next(each for each in (root, *root.parents) if each.exists()) == folder
        for root, known in _known.copy().items()  # To which other threads may add; to copy it is one step.
    )


def _recognize(root: Path, descriptor: int, seen: _Identity | None) -> _Identity:
    """The identity of the opened root, which is remembered. `seen`: the one that the caller knows.

    Another folder at the same path is the volume that was mounted again, unless it is empty: a file system that is
    mounted again may have another device number. Without a caller that knows the root, an empty folder on the same
    device is new: the old one was removed.
    """
    status = os.fstat(descriptor)
    identity = _Identity(status.st_dev, status.st_ino)
    known = _known.get(root)
    if identity == seen == known:
        return identity
    is_other = seen not in (None, identity)
    is_other = is_other or (_is_unmounted(root, status.st_dev) if known is None else known.device != status.st_dev)
    # An empty folder in the place of one that was used is a mount point without its volume. With files in it, it is the
    # volume, mounted again.
    if is_other and not os.listdir(descriptor):
        raise _gone(root)
    _known[root] = identity
    if len(_known) > _KNOWN_MAX:
        _known.pop(next(iter(_known.copy())), None)  # Another thread may have dropped it.
    return identity


def _gone(root: Path) -> StoreUnavailable:
    text = (
        "the folder of the store is gone; mount its volume, or make an empty folder there to begin anew, and try again"
    )
    return StoreUnavailable(text, path=str(root))
