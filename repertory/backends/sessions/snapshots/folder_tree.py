"""The documented tree of snapshots in a folder.

The latest snapshot is written without a sync: after a crash of the machine it is made again from the journal. Its
version is that of the file, and not of the bytes in it: no bytes are read to tell whether another program has replaced
the file.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from repertory.backends.folders import make_folders, sync_folder
from repertory.backends.sessions.snapshots.tree import SnapshotTree, keys_of
from repertory.backends.worker_threads import run_in_thread
from repertory.core.ids import RESERVED
from repertory.errors import AlreadyExists, Invalid, PreconditionFailed, StoreFailed, StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable

    from repertory.backends.ports import ObjectStore
    from repertory.backends.sessions.snapshots.makers import FoundSnapshot, S
    from repertory.core.snapshots.location import Numbering, SnapshotLocation

_TRIES = 100
_KNOWN_MAX = 4096
_numbers = count()
_NO_RIGHTS = (errno.EACCES, errno.EPERM, errno.EROFS)


class FolderSnapshotTree(SnapshotTree):
    """A `SnapshotTree` in a folder, whose objects are those of `objects`."""

    def __init__(self, objects: ObjectStore, root: Path) -> None:
        super().__init__(objects)
        self._root = root
        self._folders: dict[str, tuple[int, int]] = {}
        """Device and inode of folders to which no link leads, by path."""
        self._manifests_seen: dict[str, str | None] = {}
        """The versions of the files of manifests, as last read or written, by key."""

    async def changed(self, location: SnapshotLocation, version: str | None) -> bool:
        return await run_in_thread(partial(self._version, keys_of(location).latest)) != version

    def is_unchanged(self, location: SnapshotLocation, version: str | None) -> bool:
        """True if nobody else has written the latest snapshot, of this version, or the manifest. It looks at two names,
        which waits for nothing.
        """
        keys = keys_of(location)
        with suppress(OSError):
            seen = self._manifests_seen.get(keys.manifest)
            return self._version(keys.latest) == version and self._version(keys.manifest) == seen
        return False

    async def put_latest(self, location: SnapshotLocation, body: bytes, version: str | None) -> str:
        # What is put so may take the place of erased contents, which a crash must not bring back.
        return await run_in_thread(partial(self.put_latest_now, location, body, version, lasting=True))

    def put_latest_now(
        self, location: SnapshotLocation, body: bytes, version: str | None, *, lasting: bool = False
    ) -> str:
        """`put_latest`, blocking. `lasting`: synced."""
        key = keys_of(location).latest
        try:
            self._see_folder(key)
            replaced = _replace(f"{self._root}/{key}", key, body, version, lasting=lasting)
            if lasting:
                sync_folder(self._root / key.rpartition("/")[0])
            return replaced
        except OSError as error:
            where = {"key": key, "root": str(self._root), "cause": error.strerror or str(error)}
            if error.errno in _NO_RIGHTS:
                text = "no right to do this: check owner and mode of the files below the root"
                raise StoreFailed(text, **where) from error
            raise StoreUnavailable("the files cannot be used now", **where) from error

    async def numbering(self, location: SnapshotLocation) -> Numbering:
        key = keys_of(location).manifest
        if len(self._manifests_seen) >= _KNOWN_MAX:  # Sessions whose manifest is not known are opened anew.
            self._manifests_seen.clear()
        self._manifests_seen[key] = await run_in_thread(partial(self._version, key))
        return await super().numbering(location)

    async def _put(self, key: str, body: bytes, version: str | None = None) -> str:
        stored = await super()._put(key, body, version)
        if key in self._manifests_seen:
            self._manifests_seen[key] = await run_in_thread(partial(self._version, key))
        return stored

    async def _found_latest(self, key: str, read: Callable[[object, str], FoundSnapshot[S]]) -> FoundSnapshot[S] | None:
        # Version and content are read by different calls, so the version is read before and after.
        for _ in range(_TRIES):
            before = await run_in_thread(partial(self._version, key))
            found = await super()._found_latest(key, read)
            if before == await run_in_thread(partial(self._version, key)):
                return None if found is None or before is None else found._replace(version=before)
        raise StoreUnavailable("somebody else writes it again and again", key=key)

    def _version(self, key: str) -> str | None:
        try:
            return _version_of(os.stat(f"{self._root}/{key}", follow_symlinks=False))
        except (FileNotFoundError, NotADirectoryError):
            return None

    def _see_folder(self, key: str) -> None:
        """Make the folder of a file if need be. Errors: `Invalid` for a link on the way there."""
        folder = f"{self._root}/{key.rpartition('/')[0]}"
        try:
            status = os.stat(folder, follow_symlinks=False)
        except FileNotFoundError:
            self._refuse_links(Path(folder))
            make_folders(Path(folder))
            status = os.stat(folder, follow_symlinks=False)
        seen = (status.st_dev, status.st_ino)
        # Looking for links on the way costs a call for each folder, so a folder that is the same by inode is not looked
        # at again.
        if self._folders.get(folder) != seen:
            self._refuse_links(Path(folder))
            if len(self._folders) >= _KNOWN_MAX:
                self._folders.clear()
            self._folders[folder] = seen

    def _refuse_links(self, folder: Path) -> None:
        for each in (folder, *folder.parents):
            with suppress(FileNotFoundError):
                if not stat.S_ISDIR(os.stat(each, follow_symlinks=False).st_mode):
                    raise Invalid("the key leads over a link or something that is no folder", part=each.name)
            if each == self._root:
                return


def _version_of(status: os.stat_result) -> str:
    """A name that another file in the same place does not have. Whoever replaces the file gives another inode. Two who
    do so within one tick of the clock may give the same one, but then the size shows what they have added.
    """
    return f"{status.st_ino}-{status.st_size}-{status.st_mtime_ns}-{status.st_ctime_ns}"


def _replace(path: str, key: str, body: bytes, version: str | None, *, lasting: bool) -> str:
    """Put a file in the place of the one of that version, or of none. Returns the new version."""
    new, file = _new_file(path.rpartition("/")[0])
    try:
        rest = memoryview(body)
        while rest:
            rest = rest[os.write(file, rest) :]
        if lasting:
            os.fsync(file)
        if version is None:
            try:
                # A link fails where something is; a rename would replace what another program has just put.
                os.link(new, path, follow_symlinks=False)
            except FileExistsError as error:
                raise AlreadyExists("the snapshot is there already", key=key) from error
            os.unlink(new)
        else:
            found: str | None = None
            with suppress(FileNotFoundError):
                found = _version_of(os.stat(path, follow_symlinks=False))
            # Between this look and the rename another program may still write. Files have no conditional rename.
            if found != version:
                raise PreconditionFailed("the snapshot is not the one to replace", key=key, wanted=version, found=found)
            os.rename(new, path)
        return _version_of(os.fstat(file))
    except BaseException:
        with suppress(OSError):
            os.unlink(new)
        raise
    finally:
        os.close(file)


def _new_file(folder: str) -> tuple[str, int]:
    """A new file. After a kill, `FileObjectStore.list` removes it, as every file of such a name that nobody has locked;
    if it does so before the file is renamed, the snapshot is put again.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    for _ in range(_TRIES):
        path = f"{folder}/{RESERVED}{os.getpid()}-s{next(_numbers)}"
        with suppress(FileExistsError):
            return path, os.open(path, flags, 0o600)
    raise StoreUnavailable("no name was free for a new snapshot")
