"""Objects as files below a folder: readable by hand, shared by any number of processes of one machine."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

import anyio

from repertory.backends.objects.file_tree import FileTree
from repertory.backends.objects.file_writing import Busy
from repertory.backends.ports import Condition, ObjectInfo, StoredObject
from repertory.backends.worker_threads import run_in_thread
from repertory.core.ids import check_key, check_prefix
from repertory.errors import Invalid
from repertory.forking import unforked

_FIRST_WAIT_S = 0.001
_WAIT_MAX_S = 0.05

T = TypeVar("T")


class FileObjectStore:
    """An `ObjectStore` in a folder. May be used from several event loops and threads at once.

    Each call is one piece of work in a worker thread, which cancellation waits for. Files are made with mode 0600 and
    folders with 0700; no link is followed below the root, nor is the root one. Nothing is created before the first put.
    Every regular file below the root whose path is a key is an object, whoever made it; files that are being written
    are not, and what killed processes left of those is removed by the next `list` over their folder.

    On a network file system the conditions hold as far as its locks and hard links do.

    Errors of every call: `Unavailable` (disk full, a writer in the way for too long: try again), `Failed` (no rights),
    `Invalid` (a link, a name that the file system does not take, keys that differ in case alone on a file system that
    does not tell them apart). What was refused has left nothing half-written.
    """

    def __init__(self, root: str | os.PathLike[str], *, busy_timeout_s: float = 5.0) -> None:
        """A relative `root` is taken from the folder that is current when the store is first used.

        `busy_timeout_s` is how long to wait for others who write the same object.
        """
        self._root = Path(root)
        self._tree = FileTree(self._root)
        self._busy_timeout_s = busy_timeout_s
        self._closed = False

    @property
    def name(self) -> str:
        """Two stores with the same name hold the same objects."""
        return f"files:{self._root}"

    async def get(self, key: str) -> StoredObject:
        """Read an object. Errors: `NotFound`, and see the class."""
        return await self._run(partial(self._tree.get, check_key(key)))

    async def put(self, key: str, body: bytes, condition: Condition) -> str:
        """Write an object; it is on stable storage on return. Errors: `AlreadyExists`, `PreconditionFailed`, and see
        the class.
        """
        return await self._run(partial(self._tree.put, check_key(key), body, condition))

    async def list(self, prefix: str, start_after: str | None = None) -> Sequence[ObjectInfo]:
        """All objects whose key begins with `prefix` and follows `start_after`, in the order of their keys. Reads
        the folders that `prefix` leads into, and no file: there are no versions in it.
        """
        after = "" if start_after is None else check_key(start_after)
        return await self._run(partial(self._tree.list, check_prefix(prefix), after))

    async def delete(self, key: str) -> None:
        """Remove an object, and the folders that are empty without it. One that is not there is no error."""
        await self._run(partial(self._tree.delete, check_key(key)))

    async def aclose(self) -> None:
        """Close. No file and no thread is kept between calls, so there is nothing to wait for."""
        self._closed = True

    async def _run(self, work: Callable[[], T]) -> T:
        """Do it; while another writer is in the way, wait for a moment and do it again."""
        if self._closed:
            raise Invalid("this was closed before", name=self.name)
        deadline = anyio.current_time() + self._busy_timeout_s
        wait_s = _FIRST_WAIT_S
        while True:
            try:
                return await run_in_thread(partial(_unforked, work))
            except Busy:
                if anyio.current_time() >= deadline:
                    raise
            await anyio.sleep(wait_s)
            wait_s = min(2 * wait_s, _WAIT_MAX_S)


def _unforked(work: Callable[[], T]) -> T:
    """A child never inherits the lock on a file that is being replaced: it would keep others from it."""
    with unforked:
        return work()
