"""Storages by hand: a program writes, reads, lists and searches bytes of its own in them."""

from __future__ import annotations

import builtins
import copy
import re
import secrets
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar, runtime_checkable

import anyio

from repertory.backends.ports import Overwrite
from repertory.core.ids import check_key, check_prefix
from repertory.errors import (
    Invalid,
    InvalidKey,
    NotFound,
    RepertoryError,
    Retryable,
    SessionException,
    StoreFailed,
    StoreUnavailable,
)

if TYPE_CHECKING:
    from repertory.backends.ports import ObjectStore

T = TypeVar("T")


@dataclass(frozen=True)
class StorageSearchResult:
    """One entry of a storage that a search found."""

    key: str
    score: float
    """Positive; the higher, the better it fits. Scores of different searches cannot be compared."""
    data: bytes | None = field(default=None, repr=False)


@runtime_checkable
class BytesStorage(Protocol):
    """A place for bytes under keys: the protocol of users' own storages."""

    async def write(self, key: str, data: bytes) -> None:
        """Store the bytes; they replace those under the same key."""
        ...

    async def read(self, key: str) -> bytes | None:
        """The bytes; None when there are none."""
        ...

    async def delete(self, key: str) -> None:
        """Remove the bytes. A missing key is no error."""
        ...

    async def list(self, query: str) -> builtins.list[str]:
        """The keys that begin with `query`, in order."""
        ...

    async def search(self, query: str) -> builtins.list[StorageSearchResult]:
        """The entries that fit the query's words, best first: every entry is read, unless a storage knows better."""
        return await KeywordSearchStrategy().search(self, query)


class SearchStrategy(Protocol):
    """A way to find the entries of a storage by their words."""

    requires_host_fs: bool = False
    """True if the strategy needs the storage's files on this machine, so that a storage in a sandbox cannot have it."""

    async def index(self, storage: Any, key: str, data: bytes) -> None:
        """Called with each entry, after it was written."""
        ...

    async def search(self, storage: Any, query: str) -> builtins.list[StorageSearchResult]:
        """The entries that fit the query, the best first."""
        ...


class StoredBytes(ABC):
    """The methods of a storage whose objects a program uses by hand.

    Keys are parts with slashes between; slashes at both ends, and several in a row, count for nothing. Sessions and
    snapshots in the same storage are objects like all others: keep what is yours in a `namespace`. Errors of all:
    `InvalidKey` (a ValueError and a `SessionException`), and `SessionException` for what the storage cannot do.
    """

    __slots__ = ()

    is_namespace: bool
    """True if `namespace` has made this storage."""

    @property
    def within(self) -> str:
        """The prefix of every key, with a slash at its end; empty for the whole storage."""
        return ""

    @property
    def strategy(self) -> SearchStrategy:
        """The strategy by which `search` finds entries."""
        return KeywordSearchStrategy()

    @abstractmethod
    def open_objects(self, writer: str) -> ObjectStore:
        """An object store there, which the caller closes."""

    @abstractmethod
    def namespace(self, prefix: str) -> Self:
        """The part of the storage below `prefix`, as if there were nothing else."""

    def open_bytes(self, writer: str) -> ObjectStore:
        """An object store with what these methods read and write, which the caller closes."""
        return self.open_objects(writer)

    async def write(self, key: str, data: bytes) -> None:
        """Store the bytes; they are durable on return, and have replaced those under the same key. Errors: also what
        the search strategy raises, for bytes that are stored.

        Args:
            key: The name under which they are kept.
            data: The bytes.
        """
        clean, content = plain_key(key), bytes(data)
        await self._do(f"Failed to write {clean!r}", lambda it: it.put(self.within + clean, content, Overwrite()))
        await self.strategy.index(self, clean, content)

    async def read(self, key: str) -> bytes | None:
        """The bytes; None when there are none."""
        clean = plain_key(key)
        try:
            return (await self._do(f"Failed to read {clean!r}", lambda it: it.get(self.within + clean))).body
        except NotFound:
            return None

    async def delete(self, key: str) -> None:
        """Remove the bytes. A missing key is no error."""
        clean = plain_key(key)
        await self._do(f"Failed to delete {clean!r}", lambda it: it.delete(self.within + clean))

    async def list(self, query: str = "") -> builtins.list[str]:
        """The keys that begin with `query`, in order."""
        clean = plain_prefix(query)
        found = await self._do(f"Failed to list {clean!r}", lambda it: it.list(self.within + clean))
        return [info.key.removeprefix(self.within) for info in found]

    async def search(self, query: str) -> builtins.list[StorageSearchResult]:
        """The entries that fit the words of the query, the best first."""
        return await self.strategy.search(self, query)

    async def _do(self, failed: str, work: Callable[[ObjectStore], Awaitable[T]]) -> T:
        try:
            async with aclosing(self.open_bytes(secrets.token_hex(8))) as objects:
                return await work(objects)
        except (NotFound, Invalid):
            raise
        except RepertoryError as error:
            kind = StoreUnavailable if isinstance(error, Retryable) else StoreFailed
            raise kind(f"{failed}: {error}") from error


def scoped(storage: T, attributes: Mapping[str, object]) -> T:
    """A copy of the storage with other attributes."""
    made = copy.copy(storage)
    for name, value in attributes.items():
        object.__setattr__(made, name, value)
    return made


def plain_key(key: str) -> str:
    """The key without the slashes that count for nothing. Errors: `InvalidKey`."""
    clean = _joined(key).strip("/")
    if not clean:
        raise InvalidKey("a key must not be empty")
    return _checked(check_key, clean)


def plain_prefix(prefix: str) -> str:
    """The beginning of keys without those slashes; it may be empty and may end with one. Errors: `InvalidKey`."""
    return _checked(check_prefix, _joined(prefix).lstrip("/"))


def below(within: str, prefix: str) -> str:
    """The prefix of a namespace of a storage that has the prefix `within` already. Errors: `InvalidKey`."""
    clean = plain_prefix(prefix).strip("/")
    return f"{within}{clean}/" if clean else within


def _joined(key: str) -> str:
    return re.sub("/+", "/", key)


def _checked(check: Callable[[object], str], key: str) -> str:
    try:
        return check(key)
    except Invalid as error:
        raise InvalidKey(str(error)) from error


# Searches by words.

_STOP_WORDS = """
    a about an and are as at be but by can could did do does for from had has have he her his how i if in into is it its
    me my no not of on or our she should so than that the their them then there these they this those to us was we were
    what when where which who why will with would you your
"""
STOP_WORDS = frozenset(_STOP_WORDS.split())
"""Words of English that tell nothing about a text."""
_AT_ONCE = 8
"""Entries that are read at the same time."""


def tokenize(text: str) -> set[str]:
    """The words of a text, in lower case."""
    return set(re.findall(r"\w+", text.lower()))


def token_overlap_score(query_tokens: set[str], content: str) -> int:
    """The number of words of the query that the text has."""
    return len(query_tokens & tokenize(content))


class KeywordSearchStrategy:
    """Counts the words of the query that an entry's key or text has. Each search reads every entry."""

    requires_host_fs = False

    async def index(self, storage: Any, key: str, data: bytes) -> None:
        """Does nothing: there is no index."""

    async def search(self, storage: Any, query: str) -> builtins.list[StorageSearchResult]:
        """The entries with at least one of the words, the best first. Those that cannot be read are left out."""
        words = tokenize(query) - STOP_WORDS
        found: builtins.list[StorageSearchResult] = []
        if not words:
            return found
        limit = anyio.Semaphore(_AT_ONCE)

        async def look(key: str) -> None:
            async with limit:
                try:
                    data = await storage.read(key)
                except SessionException:
                    return
            score = (
                0 if data is None else token_overlap_score(words, f"{_words_of(key)} {data.decode(errors='replace')}")
            )
            if score:
                found.append(StorageSearchResult(key=key, score=float(score), data=data))

        async with anyio.create_task_group() as tasks:
            for key in await storage.list(""):
                tasks.start_soon(look, key)
        return sorted(found, key=lambda one: (-one.score, one.key))


def _words_of(key: str) -> str:
    folder, _, name = key.rpartition("/")
    return f"{folder} {name.rpartition('.')[0] or name}"
