"""Text files for the model, below one folder and nowhere else."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from secrets import token_hex
from typing import Any, NamedTuple

from repertory.backends.sandbox_ports import FILE_BYTES_MAX, FileInfo
from repertory.backends.sqlite_files import refuse_open_database
from repertory.backends.tools.decorator import tool
from repertory.backends.tools.function_tool import FunctionTool
from repertory.backends.worker_threads import run_in_thread
from repertory.errors import Invalid, LimitReached, NotFound


def file_tools(root: str | os.PathLike[str]) -> tuple[FunctionTool[Any], ...]:
    """The tools `list_files`, `read_file`, `write_file` and `append_file` on one existing folder.

    All but `append_file` are marked idempotent. Errors: `Invalid` when `root` is no folder.
    """
    folder = Folder(root)

    @tool(effects=False, idempotent=True)
    def list_files() -> dict[str, object]:
        """List the files that can be read."""
        listing = folder.files()
        return {"files": listing.paths, "more": listing.more}

    @tool(effects=False, idempotent=True)
    def read_file(path: str) -> str:
        """Read a text file.

        Args:
            path: Relative, such as "notes/today.md".
        """
        return folder.read(path)

    @tool(idempotent=True)
    def write_file(path: str, text: str) -> str:
        """Make a text file, or replace all that stands in it. Missing folders are made.

        Args:
            path: Relative, such as "notes/today.md".
            text: The whole new content.
        """
        return f"wrote {folder.write(path, text)} bytes to {path}"

    @tool
    def append_file(path: str, text: str) -> str:
        """Add text to the end of a file, which is made when it is not there.

        Args:
            path: Relative, such as "notes/today.md".
            text: What to add; end it with a line break.
        """
        return f"{path} now has {folder.append(path, text)} bytes"

    return list_files, read_file, write_file, append_file


# Files that cannot lie outside the root: every path is walked from the root's descriptor, one component at a time.
#
# A symbolic link is never followed, not even one that appears while a path is being walked, because each component is
# opened with `O_NOFOLLOW` relative to the one before it. POSIX only.
#
# Source: openat(2); the attack that it stops is CWE-367 on top of CWE-59.

LISTED_MAX = 1_000
"""The most files that a listing names."""
DEPTH_MAX = 16
"""The most folders in a path."""

_NAME_BYTES_MAX = 255
_TEMPORARY = ".repertory-"
_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE_FLAGS = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Listing(NamedTuple):
    """Paths below a root. `more`: there are others than these `LISTED_MAX`."""

    paths: list[str]
    more: bool


class Folder:
    """Text files below one root. Paths are relative and use slashes. New files are 0600, new folders 0700.

    Errors: `Invalid` for a bad path or one that leads over a link, `NotFound`, `LimitReached` for a file that is too
    large. The operating system's own errors (a full disk, missing rights) are raised unchanged.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        """Errors: `Invalid` when `root` is no folder. The root itself may be reached over links."""
        self._root = Path(root).resolve()
        if not self._root.is_dir():
            raise Invalid("the root of the file tools is an existing folder", root=str(root))

    def files(self) -> Listing:
        """Every file below the root, in the order of the folders. Links and special files are left out."""
        found: list[str] = []
        for parent, folders, names, descriptor in os.fwalk(self._root, follow_symlinks=False):
            below = Path(parent).relative_to(self._root)
            folders[:] = sorted(folders) if len(below.parts) < DEPTH_MAX else []
            regular = (name for name in sorted(names) if _is_listed(name, descriptor))
            found.extend((below / name).as_posix() for name in regular)
            if len(found) > LISTED_MAX:
                break
        return Listing(paths=found[:LISTED_MAX], more=len(found) > LISTED_MAX)

    def read(self, path: str) -> str:
        """A whole file. Errors: also `Invalid` when it is not UTF-8."""
        with self._file(path, os.O_RDONLY) as descriptor:
            data = _read_all(descriptor, path)
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError as error:
            raise Invalid("the file is not UTF-8 text", path=path) from error

    def write(self, path: str, text: str) -> int:
        """Create or replace a file, and the folders above it; returns its size in bytes.

        A reader, also after a crash, finds the old file or the new one, never a part.
        """
        data = _encoded(text, path, already_bytes=0)
        *_, name = _components(path)
        with self._parent(path, create=True) as parent:
            mode = _mode_of(name, parent, path)
            temporary = f"{_TEMPORARY}{token_hex(8)}"
            try:
                with _opened(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _FILE_FLAGS, parent) as descriptor:
                    _write_all(descriptor, data)
                    os.fchmod(descriptor, mode)
                os.rename(temporary, name, src_dir_fd=parent, dst_dir_fd=parent)
            finally:
                with suppress(FileNotFoundError):
                    os.unlink(temporary, dir_fd=parent)
            os.fsync(parent)
        return len(data)

    def entries(self, path: str) -> list[FileInfo]:
        """The entries of a folder, by name; `.` is the root. A link is no folder."""
        inside = path if path == "." else f"{path}/."
        with self._parent(inside, create=False) as folder, os.scandir(folder) as entries:
            found = [FileInfo(each.name, each.is_dir(follow_symlinks=False)) for each in entries]
        return sorted((each for each in found if not each.name.startswith(_TEMPORARY)), key=lambda each: each.name)

    def append(self, path: str, text: str) -> int:
        """Add to the end of a file, which is created when missing; returns its new size in bytes."""
        with self._file(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND) as descriptor:
            size_bytes = os.fstat(descriptor).st_size
            data = _encoded(text, path, already_bytes=size_bytes)
            _write_all(descriptor, data)
        return size_bytes + len(data)

    @contextmanager
    def _file(self, path: str, flags: int) -> Generator[int]:
        *_, name = _components(path)
        create = bool(flags & os.O_CREAT)
        with (
            self._parent(path, create=create) as parent,
            _named_errors(path),
            _opened(name, flags | _FILE_FLAGS, parent) as descriptor,
        ):
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise Invalid("not a file", path=path)
            yield descriptor

    @contextmanager
    def _parent(self, path: str, *, create: bool) -> Generator[int]:
        """The descriptor of the folder that holds the path's last component; with `/.` at its end, of that itself."""
        folders = [] if path == "." else _components(path.removesuffix("/."))
        folders = folders if path.endswith("/.") else folders[:-1]
        descriptor = os.open(self._root, _FOLDER_FLAGS)
        try:
            for folder in folders:
                with _named_errors(path):
                    if create:
                        with suppress(FileExistsError):
                            os.mkdir(folder, 0o700, dir_fd=descriptor)
                    following = os.open(folder, _FOLDER_FLAGS, dir_fd=descriptor)
                os.close(descriptor)
                descriptor = following
            yield descriptor
        finally:
            os.close(descriptor)


class FilesBelow:
    """The text files below one existing folder, by their absolute paths, for tools that take a sandbox. As `Folder`.

    `root`: looked up at each call, so it may be made later.
    """

    def __init__(self, root: str) -> None:
        self._root = PurePosixPath(root)

    async def read_text(self, path: str) -> str:
        """A text file."""
        return await run_in_thread(lambda: Folder(self._root).read(self._below(path)))

    async def write_text(self, path: str, content: str) -> None:
        """Create or replace a text file."""
        await run_in_thread(lambda: Folder(self._root).write(self._below(path), content))

    async def list_files(self, path: str) -> list[FileInfo]:
        """The entries of a folder, by name. Of the folder above the root it has the root alone."""
        if PurePosixPath(path) == self._root.parent != self._root:
            return [FileInfo(self._root.name, is_dir=True)]
        return await run_in_thread(lambda: Folder(self._root).entries(self._below(path)))

    def _below(self, path: str) -> str:
        return str(PurePosixPath(path).relative_to(self._root))


def _components(path: str) -> list[str]:
    """The names in a path. Errors: `Invalid`, saying what is wrong with it."""
    names = [name for name in path.split("/") if name not in ("", ".")]
    if path.startswith("/") or not names or path.endswith("/"):
        raise Invalid("a path names a file, relative to the root", path=path)
    if len(names) > DEPTH_MAX:
        raise Invalid("a path has too many folders", path=path, depth_max=DEPTH_MAX)
    for name in names:
        if name == ".." or "\\" in name or not name.isprintable() or name.startswith(_TEMPORARY):
            raise Invalid("a path has no '..', backslashes or control characters", path=path, part=name)
        if len(name.encode("utf-8", "replace")) > _NAME_BYTES_MAX:
            raise Invalid("a name in the path is too long", part=name, bytes_max=_NAME_BYTES_MAX)
    return names


@contextmanager
def _named_errors(path: str) -> Generator[None]:
    """Map the operating system's refusals to our errors, with the caller's path."""
    try:
        yield
    except FileNotFoundError as error:
        raise NotFound("no such file", path=path) from error
    except IsADirectoryError as error:
        raise Invalid("a folder, not a file", path=path) from error
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR, errno.ENXIO):
            raise Invalid("the path leads over a link or something that is no folder", path=path) from error
        raise


@contextmanager
def _opened(name: str, flags: int, parent: int) -> Generator[int]:
    refuse_open_database(name, parent)
    descriptor = os.open(name, flags, 0o600, dir_fd=parent)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _is_listed(name: str, parent: int) -> bool:
    try:
        status = os.stat(name, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return stat.S_ISREG(status.st_mode) and not name.startswith(_TEMPORARY)


def _mode_of(name: str, parent: int, path: str) -> int:
    """The rights of a file that is replaced, or those of a new one. A folder, link or device may not be replaced."""
    try:
        mode = os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return 0o600
    if not stat.S_ISREG(mode):
        raise Invalid("something that is no file has this path", path=path)
    return mode & 0o777


def _encoded(text: str, path: str, *, already_bytes: int) -> bytes:
    try:
        data = text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise Invalid("the text is not valid Unicode", path=path) from error
    if already_bytes + len(data) > FILE_BYTES_MAX:
        raise LimitReached("the file would be too large", path=path, bytes_max=FILE_BYTES_MAX)
    return data


def _read_all(descriptor: int, path: str) -> bytes:
    with os.fdopen(descriptor, "rb", closefd=False) as file:
        data = file.read(FILE_BYTES_MAX + 1)
    if len(data) > FILE_BYTES_MAX:
        raise LimitReached("the file is too large to read", path=path, bytes_max=FILE_BYTES_MAX)
    return data


def _write_all(descriptor: int, data: bytes) -> None:
    """Write, and wait until the data is on stable storage."""
    with os.fdopen(descriptor, "wb", closefd=False) as file:
        file.write(data)
    os.fsync(descriptor)
