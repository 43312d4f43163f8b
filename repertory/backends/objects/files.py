"""Objects as files below a folder: readable by hand, shared by any number of processes on one machine."""

from __future__ import annotations

import errno
import os
import stat
import unicodedata
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from hashlib import blake2b
from io import FileIO
from itertools import count
from pathlib import Path
from typing import Literal, NamedTuple, Self, TypeVar

import anyio

from repertory.backends.folders import OPEN_FOLDER, Put, RootFolder
from repertory.backends.line_files import read_rest
from repertory.backends.ports import (
    Condition,
    Create,
    NoObject,
    ObjectInfo,
    Overwrite,
    StoredObject,
    Update,
)
from repertory.backends.worker_threads import run_in_thread
from repertory.core.ids import RESERVED, check_key, check_prefix, is_key
from repertory.errors import (
    AlreadyExists,
    Invalid,
    NotFound,
    PreconditionFailed,
    RepertoryError,
    StoreFailed,
    StoreUnavailable,
    Unwritable,
)
from repertory.forking import unforked

LARGE_BYTES = 4 * 1024 * 1024
"""An object of at least this size is read in pieces, so that it blocks no thread for long and cancellation is quick."""
OBJECT_BYTES_MAX = 1024 * 1024 * 1024
"""The largest object. A sparse file of any size takes no room on the disk, and would take all memory to be read."""
_FIRST_WAIT_S = 0.001
_WAIT_MAX_S = 0.05

T = TypeVar("T")


class FileObjectStore:
    """An `ObjectStore` in a folder. May be used from several event loops and threads at once.

    Each call is one piece of work in a worker thread, which cancellation waits for; an object of `LARGE_BYTES` and more
    is read in pieces. Files are made with mode 0600 and folders with 0700; no link is followed below the root, nor may
    the root be one. Nothing is created before the first put. Every regular file below the root whose path is a key is
    an object, whichever program made it. Files being written are not; the next `list` over a folder removes those that
    killed processes left in it.

    On a network file system the conditions hold as far as its locks and hard links do.

    Errors of every call: `Unavailable` (disk full, another writer holds the object too long: try again), `Failed` (no
    permission), `Invalid` (a link, a name that the file system refuses, keys that differ in case alone on a file system
    that ignores case). A refused call leaves nothing half-written.
    """

    def __init__(self, root: str | os.PathLike[str], *, busy_timeout_s: float = 5.0) -> None:
        """A relative `root` is resolved against the current folder at once.

        `busy_timeout_s` is how long to wait for other writers of the same object.
        """
        self._root = Path(root).absolute()
        self._tree = FileTree(self._root)
        self._busy_timeout_s = busy_timeout_s
        self._closed = False

    @property
    def name(self) -> str:
        """Stores with equal names hold the same objects."""
        return f"files:{self._root}"

    async def get(self, key: str) -> StoredObject:
        """Read an object. Errors: `NotFound`, and see the class."""
        with ExitStack() as large:
            found = await self._run(partial(self._tree.get, check_key(key), large))
            if isinstance(found, StoredObject):
                return found
            with self._tree.mapped(key):
                # A gigabyte read in one call could not be cancelled, and would hold one of the threads all the while.
                body = await read_rest(found)
        return StoredObject(body=body, version=await run_in_thread(partial(_version, body)))

    async def put(self, key: str, body: bytes, condition: Condition) -> str:
        """Write an object; it is on stable storage on return. Errors: `AlreadyExists`, `PreconditionFailed`, and see
        the class.
        """
        return await self._run(partial(self._tree.put, check_key(key), body, condition))

    async def list(self, prefix: str, start_after: str | None = None) -> Sequence[ObjectInfo]:
        """All objects whose key begins with `prefix` and follows `start_after`, in the order of their keys. Reads only
        folders below `prefix` and no file, so versions are None.
        """
        after = "" if start_after is None else check_key(start_after)
        return await self._run(partial(self._tree.list, check_prefix(prefix), after))

    async def delete(self, key: str) -> None:
        """Remove an object, and its folders if they are empty then. A missing object is no error."""
        await self._run(partial(self._tree.delete, check_key(key)))

    async def aclose(self) -> None:
        """Close. No file and no thread is kept between calls, so there is nothing to wait for."""
        self._closed = True

    async def _run(self, work: Callable[[], T]) -> T:
        """Run `work`; while another writer holds the object, wait and run it again."""
        if self._closed:
            raise Invalid("this was closed before", name=self.name)
        # Waiting on the event loop, and not in the thread: other writers may need the same few threads to finish.
        deadline = anyio.current_time() + self._busy_timeout_s
        wait_s = _FIRST_WAIT_S
        while True:
            try:
                return await run_in_thread(partial(_unforked, work))
            except WriterBusy:
                if anyio.current_time() >= deadline:
                    raise
            await anyio.sleep(wait_s)
            wait_s = min(2 * wait_s, _WAIT_MAX_S)


def _unforked(work: Callable[[], T]) -> T:
    """A child must not inherit the lock on a file that is being replaced: it would keep other writers out."""
    with unforked:
        return work()


# What is done to objects in files, each operation as one blocking function.
#
# A key is a path below the root. Nothing is ever edited: an object is created by `link(2)`, which no two can win, and
# replaced by `rename(2)` while the file that is replaced is locked, so a check and the write behind it belong
# together. A reader has the old file or the new one.
#
# The version is a digest of the content, as on S3. Times and inode numbers would be cheaper for `Update`, but both
# come again: a new file is often given the inode number of the one just replaced, within one tick of the file system's
# clock.

_NO_SUCH_NAME = {errno.ENAMETOOLONG, errno.ENOTDIR, errno.ENXIO, errno.EILSEQ}
_NO_RIGHTS = {errno.EACCES, errno.EPERM, errno.EROFS}
_NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS}


class _FileName(NamedTuple):
    key: str
    name: str
    folder: int


class FileTree:
    """The objects below one root. Keys were checked before. For any number of threads and processes at once."""

    def __init__(self, root: Path) -> None:
        self._root = RootFolder(root)

    def get(self, key: str, large: ExitStack) -> StoredObject | int:
        """Read an object: no writes, no locks. For a large one, a descriptor that `large` closes: it always reads one
        object, since files are replaced and never edited.
        """
        with self.mapped(key), _Folders(self._root) as folders:
            file = folders.located(key)
            with opened_file(file.name, file.folder, os.O_RDONLY) as descriptor:
                if _size(descriptor) >= LARGE_BYTES:
                    # The original is closed with its folders. A copy shares the file, which stays the same one even if
                    # it is replaced.
                    copy = os.dup(descriptor)
                    large.callback(os.close, copy)
                    return copy
                body = read_all(descriptor)
            return StoredObject(body=body, version=_version(body))

    def content(self, key: str) -> bytes:
        """The bytes of an object of any size."""
        with ExitStack() as large:
            found = self.get(key, large)
            return found.body if isinstance(found, StoredObject) else read_all(found)
        raise AssertionError

    def put(self, key: str, body: bytes, condition: Condition) -> str:
        """Write an object. Two fsyncs, of the file and of its folder, and one more for each folder that is made."""
        with _Folders(self._root) as folders:
            self._put(folders, Put(key, body, condition))
        return _version(body)

    def carry_out(self, puts: Sequence[Put], done: list[Put]) -> None:
        """Put these objects, and add each to `done`. Each folder is opened once."""
        with _Folders(self._root) as folders:
            for put in puts:
                check_key(put.key)
                self._put(folders, put)
                done.append(put)

    def _put(self, folders: _Folders, put: Put) -> None:
        if len(put.body) > OBJECT_BYTES_MAX:
            raise Unwritable("the object is too large", key=put.key, bytes=len(put.body), bytes_max=OBJECT_BYTES_MAX)
        try:
            with self.mapped(put.key):
                match put.condition:
                    case Create():
                        self._create(folders, put)
                    case Update(version=version):
                        self._update(folders, put, version)
                    case Overwrite():
                        self._overwrite(folders, put)
        except NotFound as error:
            # Deleting the last object of a folder removes the folder, perhaps between our opening it and putting into
            # it.
            raise WriterBusy("the folder was removed meanwhile", key=put.key) from error

    def list(self, prefix: str, start_after: str) -> Sequence[ObjectInfo]:
        """Every object whose key begins so. Also removes what killed processes left in the folders that it reads."""
        *names, beginning = prefix.split("/")
        found: dict[str, ObjectInfo] = {}
        with suppress(NotFound), self.mapped(prefix), opened_folders(self._root, names) as chain:
            above = f"{'/'.join(names)}/" if names else ""
            self._collect(chain[-1], above, beginning, start_after, found)
        return [found[key] for key in sorted(found)]

    def remove_abandoned(self, folder: str) -> None:
        """Remove what killed processes left in a folder of the root, and in those below it."""
        with suppress(NotFound), self.mapped(folder), opened_folders(self._root, [folder]) as chain:
            _remove_abandoned_below(chain[-1])

    def delete(self, key: str) -> None:
        """Remove an object, and its folders if they are empty then. One fsync."""
        *names, name = key.split("/")
        with suppress(NotFound), self.mapped(key), opened_folders(self._root, names) as chain:
            with opened_file(name, chain[-1], os.O_RDWR) as descriptor:
                # Otherwise a conditional update that has just checked the version would bring the deleted object back.
                lock_current(descriptor, name, chain[-1])
                os.unlink(name, dir_fd=chain[-1])
            # An unlink is a change of the folder. Without this, a power cut could bring an erased object back.
            os.fsync(chain[-1])
            remove_empty_folders(chain, names)

    def _create(self, folders: _Folders, put: Put) -> None:
        file = folders.located(put.key, create=True, lasting=put.lasting)
        if put.lasting:  # A new file that would be refused is not synced before that is known.
            _refuse_what_is_there(file)
        with write_new_file(put.body, file.folder, lasting=put.lasting) as new:
            try:
                # `link` fails where something is; `rename` would replace it, and two creators would both believe to
                # have won.
                os.link(new, file.name, src_dir_fd=file.folder, dst_dir_fd=file.folder, follow_symlinks=False)
            except FileExistsError:
                _refuse_what_is_there(file)
                raise WriterBusy("another writer is creating the object", key=put.key) from None
            except OSError as error:
                if error.errno in _NO_LINKS:
                    msg = "this file system has no hard links, which creating an object takes"
                    raise StoreFailed(msg, path=str(self._root.path)) from error
                raise
            # The file has two names until here. A process that is killed in between leaves the first, which the next
            # `list` removes.
            os.unlink(new, dir_fd=file.folder)
        if put.lasting:
            os.fsync(file.folder)

    def _update(self, folders: _Folders, put: Put, version: str) -> None:
        try:
            _replace(folders.located(put.key), put, version)
        except FileNotFoundError as error:
            msg = "the object is not the one to update"
            raise PreconditionFailed(msg, key=put.key, wanted=version, found=None) from error

    def _overwrite(self, folders: _Folders, put: Put) -> None:
        try:
            _replace(folders.located(put.key), put, None)
        except FileNotFoundError:
            try:
                self._create(folders, put)
            except AlreadyExists as error:
                raise WriterBusy("another writer was quicker", key=put.key) from error

    def _collect(self, folder: int, above: str, beginning: str, after: str, found: dict[str, ObjectInfo]) -> None:
        """Add the objects in a folder and below. `above` is the prefix of their keys."""
        with os.scandir(folder) as entries:
            for entry in entries:
                key = above + entry.name
                if entry.name.startswith(RESERVED):
                    remove_abandoned(entry.name, folder)
                elif not entry.name.startswith(beginning):
                    continue
                elif entry.is_dir(follow_symlinks=False):
                    below = f"{key}/"
                    # Folders that end before `after` are not opened: a listing of the new segments of a long session
                    # reads few names.
                    if (below > after or after.startswith(below)) and is_key(key):
                        with suppress(FileNotFoundError), _opened_below(entry.name, folder) as inner:
                            self._collect(inner, below, "", after, found)
                elif key > after and is_key(key):
                    with suppress(FileNotFoundError):
                        status = entry.stat(follow_symlinks=False)
                        if stat.S_ISREG(status.st_mode):
                            found[key] = _info(key, status)

    @contextmanager
    def mapped(self, key: str) -> Generator[None]:
        """Map errors of the operating system to ours."""
        try:
            yield
        except OSError as error:
            raise self._mapped_error(error, key) from error

    def _mapped_error(self, error: OSError, key: str) -> RepertoryError:
        where = {"key": key, "root": str(self._root.path), "cause": error.strerror or str(error)}
        if isinstance(error, FileNotFoundError):
            return NotFound("no such object", key=key)
        if error.errno == errno.ELOOP:
            return NoObject("a link has the object's key", **where)
        if error.errno in _NO_SUCH_NAME:
            return Invalid("the file system cannot keep an object under this key", **where)
        if error.errno in _NO_RIGHTS:
            return StoreFailed("no right to do this: check owner and mode of the files below the root", **where)
        return StoreUnavailable("the files cannot be used now", **where)


def _replace(file: _FileName, put: Put, expected: str | None) -> None:
    """Replace an existing file with a new one. Raises `FileNotFoundError` when there is none."""
    with opened_file(file.name, file.folder, os.O_RDWR) as descriptor:
        lock_current(descriptor, file.name, file.folder)
        # Read under the lock, so nobody can replace the file between this look and the rename.
        found = _version(read_all(descriptor)) if expected is not None else None
        if found != expected:
            msg = "the object is not the one to update"
            raise PreconditionFailed(msg, key=file.key, wanted=expected, found=found)
        with write_new_file(put.body, file.folder, lasting=put.lasting) as new:
            os.rename(new, file.name, src_dir_fd=file.folder, dst_dir_fd=file.folder)
    if put.lasting:
        os.fsync(file.folder)


def _refuse_what_is_there(file: _FileName) -> None:
    with suppress(FileNotFoundError):
        status = os.stat(file.name, dir_fd=file.folder, follow_symlinks=False)
        check_spelling(file.name, file.folder, status)
        if stat.S_ISREG(status.st_mode):
            raise AlreadyExists("the object is there already", key=file.key)
        if stat.S_ISDIR(status.st_mode):
            raise Invalid("a key is never the folder of another one", key=file.key)
        raise Invalid("a link or something that is no file has the object's key", key=file.key)


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


# New files that are whole or absent, and locks that end with their process.
#
# A file is written under a name of its own, synced, and only then given the name that readers look for. While it is
# written it is locked, so a file that nobody has locked is what a killed process left behind.

_NAMES_TRIED = 100
_numbers = count()


class WriterBusy(StoreUnavailable):
    """Another writer holds the object for a moment: the store retries before its caller sees this."""


@contextmanager
def write_new_file(body: bytes, folder: int, *, lasting: bool = True) -> Generator[str]:
    """The name of a new file in `folder` with this content, on stable storage if it is `lasting`.

    The block renames it; when the block raises, the file is removed.
    """
    name, descriptor = _new_file(folder)
    try:
        rest = memoryview(body)
        while rest:
            # `write` may take less than it was given, for example on a disk that is nearly full.
            rest = rest[os.write(descriptor, rest) :]
        if lasting:
            os.fsync(descriptor)
        # Still locked: whoever cleans up meanwhile must not take it for abandoned.
        yield name
    except BaseException:
        with suppress(OSError):
            os.unlink(name, dir_fd=folder)
        raise
    finally:
        os.close(descriptor)


def _size(descriptor: int) -> int:
    """The size in bytes. Errors: `NoObject` for what no put has made."""
    size = os.fstat(descriptor).st_size
    if size > OBJECT_BYTES_MAX:
        raise NoObject("a file is too large to be an object", bytes=size, bytes_max=OBJECT_BYTES_MAX)
    return size


def read_all(descriptor: int) -> bytes:
    """The whole content, from the beginning. Errors: `NoObject` for what no put has made."""
    _size(descriptor)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return FileIO(descriptor, closefd=False).readall()


def lock_current(descriptor: int, name: str, folder: int) -> None:
    """Lock the file that has this name now, until the descriptor is closed; every writer that replaces it does so.

    The file is its own lock: its replacement is another file. Raises `WriterBusy` when another writer has it locked, or
    has just replaced it.
    """
    if not _lock(descriptor):
        raise WriterBusy("another writer holds the object", part=name)
    # The lock is on the file that was opened. If it has lost its name to another one, locking it protects nothing.
    if not os.path.samestat(os.fstat(descriptor), os.stat(name, dir_fd=folder, follow_symlinks=False)):
        raise WriterBusy("another writer was quicker", part=name)


def remove_abandoned(name: str, folder: int) -> None:
    """Remove a new file that was never renamed, unless its writer is alive."""
    with suppress(OSError):
        descriptor = os.open(name, os.O_RDWR | FILE, dir_fd=folder)
        try:
            # Without a name left it was just renamed or removed, and the name may be another file's by now.
            if _lock(descriptor) and os.fstat(descriptor).st_nlink:
                os.unlink(name, dir_fd=folder)
        finally:
            os.close(descriptor)


def _remove_abandoned_below(folder: int) -> None:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith(RESERVED):
                remove_abandoned(entry.name, folder)
            elif entry.is_dir(follow_symlinks=False):
                with suppress(FileNotFoundError), _opened_below(entry.name, folder) as inner:
                    _remove_abandoned_below(inner)


def _new_file(folder: int) -> tuple[str, int]:
    """A new locked file with a unique name. If a cleanup removes it before it is locked, another is made."""
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
    raise WriterBusy("no name was free for a new file")


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


# Folders and files below a root, reached without following a link: each is opened relative to the folder above it.

FILE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
"""Flags for every opened file. A pipe or a device in its place does not block."""
_FORMS: tuple[Literal["NFC"], Literal["NFD"]] = ("NFC", "NFD")
"""The Unicode forms of an accented letter: as one character, or as a letter and an accent."""
_SPELLED_MAX = 4096
_spelled: set[tuple[str, int, int]] = set()
"""Folders that were found under their own names: name, device and number."""


@contextmanager
def opened_folders(root: RootFolder, names: Sequence[str]) -> Generator[list[int]]:
    """Descriptors of the root and of each folder below it in turn. A missing folder, or a file in its place, is
    `FileNotFoundError`.
    """
    with ExitStack() as stack:
        chain = [root.open(create=False)]
        stack.callback(os.close, chain[0])
        for name in names:
            chain.append(_open_folder(name, chain[-1], create=False))
            stack.callback(os.close, chain[-1])
        yield chain


class _Folders:
    """Folders below a root, each opened once, on the way to the first object in it or below it."""

    def __init__(self, root: RootFolder) -> None:
        self._root = root
        self._opened: dict[Sequence[str], int] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        while self._opened:
            os.close(self._opened.popitem()[1])

    def located(self, key: str, *, create: bool = False, lasting: bool = True) -> _FileName:
        """The folder and name of an object. With `create`, missing folders are made (mode 0700), and durable if they
        are to be `lasting`. Otherwise a missing folder, or a file in its place, is `FileNotFoundError`.
        """
        *names, name = key.split("/")
        folder = self._opened.get(above := tuple(names))
        if folder is None:
            for depth in range(len(names) + 1):
                folder = self._folder(above[:depth], folder, create=create, lasting=lasting)
        assert folder is not None
        return _FileName(key, name, folder)

    def _folder(self, path: Sequence[str], above: int | None, *, create: bool, lasting: bool) -> int:
        found = self._opened.get(path)
        if found is None and above is None:
            found = self._opened[path] = self._root.open(create=create)
        elif found is None and above is not None:
            found = self._opened[path] = _open_folder(path[-1], above, create=create, lasting=lasting)
        assert found is not None
        return found


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
            raise NoObject("something that is no file has an object's key", part=name)
        check_spelling(name, folder, status)
        yield descriptor
    finally:
        os.close(descriptor)


def check_spelling(name: str, folder: int, status: os.stat_result) -> None:
    """Raise `Invalid` when a file system that ignores case, or Unicode normalization, has found a file with another
    spelling.

    Where another spelling leads to the same file, the folder is read to find the stored name.
    """
    # Three looks for each opened file. Reading the folder would be exact, and far slower: it is done only if a look
    # hits.
    others = {name.swapcase(), *(unicodedata.normalize(form, name) for form in _FORMS)} - {name}
    for other in others:
        with suppress(OSError):
            twin = os.stat(other, dir_fd=folder, follow_symlinks=False)
            if os.path.samestat(twin, status) and name not in os.listdir(folder):
                msg = "this file system does not tell apart keys that differ in upper and lower case alone"
                if other != name.swapcase():
                    msg = "this file system does not tell apart keys that differ in how accents are written alone"
                raise Invalid(msg, part=name)


def _open_folder(name: str, parent: int, *, create: bool, lasting: bool = True) -> int:
    try:
        descriptor = os.open(name, OPEN_FOLDER, dir_fd=parent)
    except FileNotFoundError:
        if not create:
            raise
        with suppress(FileExistsError):
            os.mkdir(name, 0o700, dir_fd=parent)
        if lasting:
            os.fsync(parent)
        descriptor = os.open(name, OPEN_FOLDER, dir_fd=parent)
    except NotADirectoryError as error:
        if stat.S_ISREG(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
            if create:
                raise Invalid("a key is never the folder of another one", part=name) from error
            raise FileNotFoundError(name) from error
        raise Invalid("the key leads over a link or something that is no folder", part=name) from error
    try:
        status = os.fstat(descriptor)
        # Folders are opened again and again; their spelling cannot change without another inode or name.
        if (known := (name, status.st_dev, status.st_ino)) not in _spelled:
            check_spelling(name, parent, status)
            if len(_spelled) >= _SPELLED_MAX:
                _spelled.clear()
            _spelled.add(known)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor
