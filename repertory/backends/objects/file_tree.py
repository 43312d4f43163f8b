"""What is done to objects in files, each operation as one blocking function.

A key is a path below the root. Nothing is ever edited: an object is created by `link(2)`, which no two can win, and
replaced by `rename(2)` while the file that is replaced is locked, so a check and the write behind it belong together.
A reader has the old file or the new one.

The version is a digest of the content, as on S3. Times and inode numbers would be cheaper for `Update`, but both come
again: a new file is often given the inode number of the one just replaced, within one tick of the file system's clock.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

from repertory.backends.objects.file_folders import check_spelling, opened_file, opened_folders, remove_empty_folders
from repertory.backends.objects.file_writing import Busy, lock_current, read_all, remove_abandoned, written
from repertory.backends.ports import Condition, Create, ObjectInfo, Overwrite, StoredObject, Update
from repertory.core.ids import RESERVED, is_key
from repertory.errors import (
    AlreadyExists,
    Invalid,
    NotFound,
    PreconditionFailed,
    RepertoryError,
    StoreFailed,
    StoreUnavailable,
)

_NO_SUCH_NAME = {errno.ENAMETOOLONG, errno.ELOOP, errno.ENOTDIR, errno.ENXIO, errno.EILSEQ}
_NO_RIGHTS = {errno.EACCES, errno.EPERM, errno.EROFS}
_NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS}


class _Place(NamedTuple):
    key: str
    name: str
    folder: int


class FileTree:
    """The objects below one root. Keys were checked before. For any number of threads and processes at once."""

    def __init__(self, root: Path) -> None:
        self._given_root = root

    @cached_property
    def _root(self) -> Path:
        """Found out once, at the first use, in the thread that may ask for the current folder."""
        return self._given_root.absolute()

    def get(self, key: str) -> StoredObject:
        """Read an object: no writes, no locks."""
        with self._mapped(key), self._place(key) as place:
            with opened_file(place.name, place.folder, os.O_RDONLY) as descriptor:
                body = read_all(descriptor)
            return StoredObject(body=body, version=_version(body))

    def put(self, key: str, body: bytes, condition: Condition) -> str:
        """Write an object. Two fsyncs, of the file and of its folder, and one more for each folder that is made."""
        try:
            with self._mapped(key):
                match condition:
                    case Create():
                        self._create(key, body)
                    case Update(version=version):
                        self._update(key, body, version)
                    case Overwrite():
                        self._overwrite(key, body)
        except NotFound as error:
            raise Busy("somebody removed the folder meanwhile", key=key) from error
        return _version(body)

    def list(self, prefix: str, start_after: str) -> Sequence[ObjectInfo]:
        """Every object whose key begins so. Also removes what killed processes left in the folders that it reads."""
        *names, beginning = prefix.split("/")
        found: dict[str, ObjectInfo] = {}
        with suppress(NotFound), self._mapped(prefix), opened_folders(self._root, names) as chain:
            above = f"{'/'.join(names)}/" if names else ""
            self._collect(chain[-1], above, beginning, start_after, found)
        return [found[key] for key in sorted(found)]

    def delete(self, key: str) -> None:
        """Remove an object, and the folders above it that are empty then. One fsync."""
        *names, name = key.split("/")
        with suppress(NotFound), self._mapped(key), opened_folders(self._root, names) as chain:
            with opened_file(name, chain[-1], os.O_RDWR) as descriptor:
                lock_current(descriptor, name, chain[-1])
                os.unlink(name, dir_fd=chain[-1])
            os.fsync(chain[-1])
            remove_empty_folders(chain, names)

    def _create(self, key: str, body: bytes) -> None:
        with self._place(key, create=True) as place:
            _refuse_what_is_there(place)
            with written(body, place.folder) as new:
                try:
                    os.link(new, place.name, src_dir_fd=place.folder, dst_dir_fd=place.folder, follow_symlinks=False)
                except FileExistsError:
                    _refuse_what_is_there(place)
                    raise Busy("another writer is creating the object", key=key) from None
                except OSError as error:
                    if error.errno in _NO_LINKS:
                        msg = "this file system has no hard links, which creating an object takes"
                        raise StoreFailed(msg, path=str(self._root)) from error
                    raise
                os.unlink(new, dir_fd=place.folder)
            os.fsync(place.folder)

    def _update(self, key: str, body: bytes, version: str) -> None:
        try:
            with self._place(key) as place:
                _replace(place, body, version)
        except FileNotFoundError as error:
            msg = "the object is not the one to update"
            raise PreconditionFailed(msg, key=key, wanted=version, found=None) from error

    def _overwrite(self, key: str, body: bytes) -> None:
        try:
            with self._place(key) as place:
                _replace(place, body, None)
        except FileNotFoundError:
            try:
                self._create(key, body)
            except AlreadyExists as error:
                raise Busy("another writer was quicker", key=key) from error

    def _collect(self, folder: int, above: str, beginning: str, after: str, found: dict[str, ObjectInfo]) -> None:
        """Add what lies in a folder and below. `above` is what the keys of its files begin with."""
        with os.scandir(folder) as entries:
            for entry in entries:
                key = above + entry.name
                if entry.name.startswith(RESERVED):
                    remove_abandoned(entry.name, folder)
                elif not entry.name.startswith(beginning):
                    continue
                elif entry.is_dir(follow_symlinks=False):
                    below = f"{key}/"
                    if (below > after or after.startswith(below)) and is_key(key):
                        with suppress(FileNotFoundError), _opened_below(entry.name, folder) as inner:
                            self._collect(inner, below, "", after, found)
                elif key > after and is_key(key):
                    with suppress(FileNotFoundError):
                        status = entry.stat(follow_symlinks=False)
                        if stat.S_ISREG(status.st_mode):
                            found[key] = _info(key, status)

    @contextmanager
    def _place(self, key: str, *, create: bool = False) -> Generator[_Place]:
        *names, name = key.split("/")
        with opened_folders(self._root, names, create=create) as chain:
            yield _Place(key, name, chain[-1])

    @contextmanager
    def _mapped(self, key: str) -> Generator[None]:
        """Turn what the operating system says into errors of ours."""
        try:
            yield
        except OSError as error:
            raise self._mapped_error(error, key) from error

    def _mapped_error(self, error: OSError, key: str) -> RepertoryError:
        where = {"key": key, "root": str(self._root), "cause": error.strerror or str(error)}
        if isinstance(error, FileNotFoundError):
            return NotFound("no such object", key=key)
        if error.errno in _NO_SUCH_NAME:
            return Invalid("the file system cannot keep an object under this key", **where)
        if error.errno in _NO_RIGHTS:
            return StoreFailed("no right to do this: check owner and mode of the files below the root", **where)
        return StoreUnavailable("the files cannot be used now", **where)


def _replace(place: _Place, body: bytes, expected: str | None) -> None:
    """Put a new file in the place of the one that is there. Raises `FileNotFoundError` when none is."""
    with opened_file(place.name, place.folder, os.O_RDWR) as descriptor:
        lock_current(descriptor, place.name, place.folder)
        found = _version(read_all(descriptor)) if expected is not None else None
        if found != expected:
            msg = "the object is not the one to update"
            raise PreconditionFailed(msg, key=place.key, wanted=expected, found=found)
        with written(body, place.folder) as new:
            os.rename(new, place.name, src_dir_fd=place.folder, dst_dir_fd=place.folder)
    os.fsync(place.folder)


def _refuse_what_is_there(place: _Place) -> None:
    with suppress(FileNotFoundError):
        status = os.stat(place.name, dir_fd=place.folder, follow_symlinks=False)
        check_spelling(place.name, place.folder, status)
        if stat.S_ISREG(status.st_mode):
            raise AlreadyExists("the object is there already", key=place.key)
        if stat.S_ISDIR(status.st_mode):
            raise Invalid("a key is never the folder of another one", key=place.key)
        raise Invalid("a link or something that is no file has the object's key", key=place.key)


@contextmanager
def _opened_below(name: str, folder: int) -> Generator[int]:
    descriptor = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _info(key: str, status: os.stat_result) -> ObjectInfo:
    return ObjectInfo(key=key, size_bytes=status.st_size, version=None, modified_at=status.st_mtime)


def _version(body: bytes) -> str:
    return blake2b(body, digest_size=16).hexdigest()
