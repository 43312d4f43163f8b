"""Storages that the SDK's programs name: a folder of the program's own, and a search that keeps an index."""

from __future__ import annotations

import builtins
import os
import sqlite3
import threading
import warnings
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

from repertory.app.sessions.storages import FileStorage
from repertory.app.sessions.stored_bytes import (
    STOP_WORDS,
    SearchStrategy,
    StorageSearchResult,
    below,
    plain_key,
    plain_prefix,
    scoped,
    tokenize,
)
from repertory.backends.worker_threads import run_in_thread
from repertory.errors import Invalid, StoreFailed

if TYPE_CHECKING:
    from repertory.backends.ports import ObjectStore

T = TypeVar("T")
_NEEDS_FILES = "the search strategy requires host filesystem access, which a sandbox has not"


@dataclass(frozen=True, init=False)
class LocalFileStorage(FileStorage):
    """A folder of bytes, and of snapshots below its folder `session`, unless it is a `namespace` itself.

    `sandbox`: an object whose files are used instead, by its coroutine functions `write_file`, `read_file`,
    `remove_file` and `list_files`. Sessions are not kept there.
    """

    sandbox: Any
    _root: Path = field(repr=False)
    """`base_dir` as an absolute path."""

    def __init__(
        self,
        base_dir: str | os.PathLike[str] = "./.strands/",
        *,
        sandbox: Any = None,
        search_strategy: SearchStrategy | None = None,
    ) -> None:
        if sandbox is not None and _needs_files(search_strategy):
            raise Invalid(_NEEDS_FILES)
        super().__init__(base_dir, search_strategy=search_strategy)
        object.__setattr__(self, "_root", self.path)
        object.__setattr__(self, "path", os.path.normpath(base_dir))
        object.__setattr__(self, "sandbox", sandbox)

    @property
    def base_dir(self) -> str:
        """The folder."""
        return str(self.path)

    @property
    def folder(self) -> Path:
        """The folder of sessions, as an absolute path."""
        return self._root if self.is_namespace else self._root / "session"

    def open_objects(self, writer: str) -> ObjectStore:
        """The objects of sessions. The caller closes it. Errors: `Invalid` with a sandbox."""
        if self.sandbox is not None:
            raise Invalid("sessions are not kept in a sandbox: give the session manager a storage without one")
        return super().open_objects(writer)

    def namespace(self, prefix: str) -> Self:
        """The storage of a folder below."""
        folder = below("", prefix)
        path = os.path.normpath(os.path.join(self.base_dir, folder))
        return scoped(self, {"path": path, "_root": self._root / folder, "is_namespace": True})

    def for_sandbox(self, sandbox: Any) -> Self:
        """The same folder in that sandbox, whose files a search strategy may be unable to read: then it warns."""
        if sandbox is self.sandbox:
            return self
        strategy = self.search_strategy
        if sandbox is not None and _needs_files(strategy):
            warnings.warn(f"{_NEEDS_FILES}; entries are searched by their words", UserWarning, stacklevel=2)
            strategy = None
        return scoped(self, {"sandbox": sandbox, "search_strategy": strategy})

    async def write(self, key: str, data: bytes) -> None:
        """Store the bytes; they have replaced those under the same key. In a sandbox they are not indexed."""
        if self.sandbox is None:
            await super().write(key, data)
            return
        async with _sandboxed(f"Failed to write {key!r}"):
            await self.sandbox.write_file(self._file(key), bytes(data))

    async def read(self, key: str) -> bytes | None:
        """The bytes; None when there are none."""
        if self.sandbox is None:
            return await super().read(key)
        async with _sandboxed(f"Failed to read {key!r}"):
            try:
                return await self.sandbox.read_file(self._file(key))
            except FileNotFoundError:
                return None

    async def delete(self, key: str) -> None:
        """Remove the bytes. A missing key is no error."""
        if self.sandbox is None:
            await super().delete(key)
            return
        async with _sandboxed(f"Failed to delete {key!r}"):
            try:
                await self.sandbox.remove_file(self._file(key))
            except FileNotFoundError:
                return

    async def list(self, query: str = "") -> builtins.list[str]:
        """The keys that begin with `query`, in order."""
        if self.sandbox is None:
            return await super().list(query)
        prefix = plain_prefix(query)
        async with _sandboxed(f"Failed to list {prefix!r}"):
            return sorted(key for key in await self._listed(prefix.rpartition("/")[0]) if key.startswith(prefix))

    async def _listed(self, folder: str) -> builtins.list[str]:
        found: builtins.list[str] = []
        try:
            entries = await self.sandbox.list_files(os.path.join(self.base_dir, folder))
        except FileNotFoundError:
            return found
        for entry in entries:
            key = f"{folder}/{entry.name}" if folder else entry.name
            found += await self._listed(key) if entry.is_dir else [key]
        return found

    def _file(self, key: str) -> str:
        return os.path.join(self.base_dir, plain_key(key))

    def open_bytes(self, writer: str) -> ObjectStore:
        """The objects of the whole folder. The caller closes it."""
        from repertory.backends.objects.files import FileObjectStore  # loaded when used

        del writer
        return FileObjectStore(self._root)


def _needs_files(strategy: object) -> bool:
    return bool(getattr(strategy, "requires_host_fs", False))


@asynccontextmanager
async def _sandboxed(failed: str) -> AsyncGenerator[None]:
    try:
        yield
    except OSError as error:
        raise StoreFailed(f"{failed}: {error}") from error


# The search with an index.


@dataclass(frozen=True)
class Bm25SearchStrategyConfig:
    """The location of the search index."""

    db_path: str | os.PathLike[str] | None = None
    """The path of the database; None: a hidden file beside the storage's folder."""


class Bm25SearchStrategy(SearchStrategy):
    """Ranks entries by BM25, with a full-text index in SQLite for each folder. Close it when it is used no more."""

    requires_host_fs = True

    def __init__(self, config: Bm25SearchStrategyConfig | None = None) -> None:
        self._path = None if config is None or config.db_path is None else Path(config.db_path)
        self._folder: str | None = None
        """The folder whose entries are in the database that was named."""
        self._indexes: dict[str, sqlite3.Connection] = {}
        self._lock = threading.Lock()

    async def index(self, storage: Any, key: str, data: bytes) -> None:
        """Make the entry known to searches. Entries with a hidden part in their key are left out.

        Errors: `Invalid` for a storage that is no folder, or another folder than that of the named database.
        """
        if not any(part.startswith(".") for part in key.split("/")):
            await run_in_thread(partial(self._do, storage, partial(_take_in, key, data)))

    async def search(self, storage: Any, query: str) -> builtins.list[StorageSearchResult]:
        """The entries with any of the words, or a word that begins with one, the best first. Scores are at most 1.

        Errors: as `index`.
        """
        words = sorted(word for word in tokenize(query) - STOP_WORDS if len(word) > 1)
        return await run_in_thread(partial(self._do, storage, partial(_find, words)))

    async def close(self) -> None:
        """Close the databases. Another use opens them again."""
        await run_in_thread(self._close)

    def _close(self) -> None:
        with self._lock:
            for connection in self._indexes.values():
                connection.close()
            self._indexes.clear()

    def _do(self, storage: Any, work: Callable[[sqlite3.Connection], T]) -> T:
        folder = getattr(storage, "base_dir", None)
        if not isinstance(folder, str):
            raise Invalid("an index is kept beside a folder: use LocalFileStorage", got=type(storage).__name__)
        with self._lock:
            folder = os.path.abspath(folder)
            if self._path is not None:
                if folder != (self._folder or folder):
                    text = f"the database already indexes {self._folder!r} and cannot also index {folder!r}"
                    raise Invalid(text, path=str(self._path))
                self._folder = folder
            return work(self._indexes.get(folder) or self._indexes.setdefault(folder, self._opened(folder)))

    def _opened(self, folder: str) -> sqlite3.Connection:
        beside, name = os.path.split(folder)
        path = self._path or Path(beside, f".{name}-search.sqlite")
        path.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))  # It holds the words of the entries.
        connection = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        connection.execute("CREATE TABLE IF NOT EXISTS entries (key TEXT PRIMARY KEY, digest BLOB) WITHOUT ROWID")
        connection.execute("CREATE VIRTUAL TABLE IF NOT EXISTS words USING fts5(key, text)")
        return connection


def _take_in(key: str, data: bytes, index: sqlite3.Connection) -> None:
    digest = blake2b(data, digest_size=16).digest()
    if index.execute("SELECT 1 FROM entries WHERE key = ? AND digest = ?", (key, digest)).fetchone():
        return
    with index:
        index.execute("BEGIN IMMEDIATE")
        index.execute("REPLACE INTO entries VALUES (?, ?)", (key, digest))
        index.execute("DELETE FROM words WHERE key = ?", (key,))
        index.execute("INSERT INTO words VALUES (?, ?)", (key, data.decode(errors="replace")))


def _find(words: builtins.list[str], index: sqlite3.Connection) -> builtins.list[StorageSearchResult]:
    if not words:
        return []
    any_of = " OR ".join(f'"{word}"*' for word in words)
    rows = index.execute("SELECT key, -bm25(words) FROM words WHERE words MATCH ? ORDER BY 2 DESC, 1", (any_of,))
    return [StorageSearchResult(key=key, score=fit / (1 + fit)) for key, fit in rows if fit > 0]
