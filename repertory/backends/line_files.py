"""Large files, streamed: a new file is whole under its name or absent, and an existing one is read in pieces.

On asyncio the bytes go through aiofiles when it is installed, elsewhere through anyio. A cancelled write of aiofiles
goes on in its thread; closing the file waits for it, so no write reaches a file after its block has ended.
"""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Protocol, cast

import anyio
from anyio.lowlevel import current_token

from repertory.backends.worker_threads import run_in_thread
from repertory.errors import AlreadyExists, CorruptJournal, Failed, Invalid, NotFound, RepertoryError, Unavailable

READ_BYTES = 256 * 1024
LINE_BYTES_MAX = 256 * 1024 * 1024
"""The longest line that is read: longer than any record, and small enough for any machine."""

_NO_SUCH_NAME = {errno.ENAMETOOLONG, errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.EINVAL}
_NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS}
_NO_RIGHTS = {errno.EACCES, errno.EPERM, errno.EROFS}

WriteChunk = Callable[[bytes], Awaitable[object]]


class _File(Protocol):
    """A file of either library. Each method runs once in a thread."""

    async def read(self, size: int, /) -> bytes: ...

    async def write(self, data: bytes, /) -> int: ...

    async def flush(self) -> None: ...

    def fileno(self) -> int: ...

    def close(self) -> object: ...


@asynccontextmanager
async def new_file(path: Path, *, overwrite: bool = False) -> AsyncGenerator[WriteChunk]:
    """Write a file with mode 0600. When the block ends without an error, the file has its name and is on stable
    storage.

    Otherwise nothing is left of it. Errors: `AlreadyExists` unless `overwrite`; `NotFound` for a missing folder;
    `Failed` (no permission), `Invalid` (impossible name), `Unavailable` (disk full), all with the path.
    """
    work = _NewFile(path, overwrite)
    with _Mapped(path):
        try:
            await run_in_thread(work.make)
            async with _opened(work.name, "wb") as file:
                yield file.write
                await file.flush()
                await run_in_thread(partial(os.fsync, file.fileno()))
            await run_in_thread(work.give_name)
        except BaseException:
            with anyio.CancelScope(shield=True):
                await run_in_thread(work.forget)
            raise


async def read_lines(path: Path) -> AsyncGenerator[bytes]:
    """The lines of a file in order, without their line ends. Close it when you stop early.

    Errors: `NotFound`, `Failed` (no permission), `Invalid` (not a file), `Unavailable`, all with the path;
    `CorruptJournal` for a line longer than `LINE_BYTES_MAX`.
    """
    with _Mapped(path):
        async with _opened(str(path), "rb") as file:
            number, begun, begun_bytes = 1, [b""], 0
            while piece := await file.read(READ_BYTES):
                first, *others = piece.split(b"\n")
                begun.append(first)
                begun_bytes += len(first)
                for line in others:
                    yield b"".join(begun)
                    number, begun, begun_bytes = number + 1, [line], len(line)
                # After each piece: a file without any line end is refused after 256 MB, and not when the memory is
                # full.
                if begun_bytes > LINE_BYTES_MAX:
                    raise CorruptJournal("a line is too long to be a row", file=str(path), line=number)
            if begun_bytes:
                yield b"".join(begun)


async def read_rest(descriptor: int) -> bytes:
    """The rest of an open file, which stays open. Errors: `OSError`."""
    pieces: list[bytes] = []
    async with _opened(descriptor, "rb") as file:
        while piece := await file.read(READ_BYTES):
            pieces.append(piece)
    return await run_in_thread(partial(b"".join, pieces))


class _Mapped:
    """Maps errors of the file system to ours."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None:
        if "\0" in str(self._path):
            raise Invalid("no file can have this name", path=str(self._path))

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError):
            raise _mapped(error, self._path) from error


class _NewFile:
    """A file that is written under another name in the same folder. Blocking."""

    def __init__(self, path: Path, overwrite: bool) -> None:
        self._path = path
        self._overwrite = overwrite
        self.name = ""

    def make(self) -> None:
        if self._path.is_dir():
            raise Invalid("a folder has this name", path=str(self._path))
        if not self._overwrite and os.path.lexists(self._path):
            raise AlreadyExists("a file has this name", path=str(self._path))
        folder = self._path.absolute().parent
        # In the same folder: a link or rename cannot cross file systems. `mkstemp` makes it with mode 0600.
        descriptor, self.name = tempfile.mkstemp(prefix=".repertory-", suffix=".part", dir=folder)
        os.close(descriptor)

    def give_name(self) -> None:
        if self._overwrite:
            os.replace(self.name, self._path)
        else:
            self._link()
        self.name = ""
        folder = os.open(self._path.absolute().parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def forget(self) -> None:
        if self.name:
            with suppress(OSError):
                os.unlink(self.name)

    def _link(self) -> None:
        """Unlike a rename, a link never replaces a file that appeared meanwhile."""
        try:
            os.link(self.name, self._path)
        except FileExistsError as error:
            raise AlreadyExists("a file has this name", path=str(self._path)) from error
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            os.replace(self.name, self._path)
        else:
            os.unlink(self.name)


@asynccontextmanager
async def _opened(name: str | int, mode: str) -> AsyncGenerator[_File]:
    opened = await _library()(name, mode, closefd=isinstance(name, str))
    try:
        yield opened
    finally:
        # anyio's files close with `aclose`; their `close` is the blocking one.
        close = cast("Callable[[], Awaitable[object]]", getattr(opened, "aclose", None) or opened.close)
        with anyio.CancelScope(shield=True):
            await close()


def _library() -> Callable[..., Awaitable[_File]]:
    if hasattr(current_token().native_token, "create_future"):
        with suppress(ImportError):
            import aiofiles  # loaded when used

            return cast("Callable[..., Awaitable[_File]]", aiofiles.open)
    return cast("Callable[..., Awaitable[_File]]", anyio.open_file)


def _mapped(error: OSError, path: Path) -> RepertoryError:
    where = {"path": str(path), "cause": error.strerror or str(error)}
    if isinstance(error, FileNotFoundError):
        return NotFound("no such file or folder", path=str(path))
    if error.errno in _NO_SUCH_NAME:
        return Invalid("no file can have this name", **where)
    if error.errno in _NO_RIGHTS:
        return Failed("no right to do this", **where)
    return Unavailable("the file cannot be used now", **where)
