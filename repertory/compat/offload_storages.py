"""The SDK's storages of its `ContextOffloader`: ours, in which programs can keep contents by hand as well."""

from __future__ import annotations

import os
import re
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from pathlib import PurePath
from secrets import token_hex
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import anyio

from repertory.app.sessions import storages
from repertory.backends.ports import Create
from repertory.core.ids import is_key
from repertory.errors import Invalid, NotFound

if TYPE_CHECKING:
    from repertory.backends.ports import ObjectStore

T = TypeVar("T")
_CLOSE_S = 5.0
_ENDINGS = {
    "application/json": ".json",
    "application/pdf": ".pdf",
    "image/gif": ".gif",
    "image/jpeg": ".jpg",
    "image/png": ".png",
    "image/webp": ".webp",
    "text/csv": ".csv",
    "text/html": ".html",
    "text/markdown": ".md",
    "text/plain": ".txt",
}
_TYPES = {ending: content_type for content_type, ending in _ENDINGS.items()}
_BY_HAND = re.compile(r"_[0-9a-f]{12}(\.\w+)?$|^\d+_\d+_")
"""Names that `store` gives to contents, here and in the SDK."""


class OffloadStorage(Protocol):
    """A place for contents, which names them itself."""

    async def store(self, key: str, content: bytes, content_type: str = "text/plain") -> str:
        """Keep a content; returns its reference."""
        ...

    async def retrieve(self, reference: str) -> tuple[bytes, str]:
        """The content and its type. Errors: `KeyError` when there is none."""
        ...


class _Contents(ABC):
    """Contents as objects, whose names tell their types."""

    __slots__ = ()

    def _reference(self, name: str) -> str:
        return name

    async def store(self, key: str, content: bytes, content_type: str = "text/plain") -> str:
        """Keep a content under a new name; returns its reference. It is on stable storage on return."""
        ending = _ENDINGS.get(content_type, ".bin")
        name = f"{re.sub(r'[^A-Za-z0-9_-]', '_', key)[:80]}_{token_hex(6)}{ending}"
        await self._with_objects(lambda objects: objects.put(name, content, Create()))
        return self._reference(name)

    async def retrieve(self, reference: str) -> tuple[bytes, str]:
        """The content and its type. Errors: `KeyError` when nothing was kept under the reference."""
        try:
            name = await self._with_objects(lambda objects: self._named(objects, reference))
            body = (await self._with_objects(lambda objects: objects.get(name))).body
        except NotFound:
            raise KeyError(f"Reference not found: {reference}") from None
        return body, _TYPES.get(PurePath(name).suffix, "application/octet-stream")

    async def part_of(self, reference: str) -> dict[str, Any] | None:
        """A content that the program itself has stored, as a block of a message; None for other references."""
        if not _BY_HAND.search(PurePath(reference).name):
            return None
        try:
            body, content_type = await self.retrieve(reference)
        except KeyError:
            return None
        kind, _, name = content_type.partition("/")
        if kind == "text" or name == "json":
            return {"text": body.decode(errors="replace")}
        if kind == "image":
            return {"image": {"format": name, "source": {"bytes": body}}}
        return {"document": {"format": name, "name": "content", "source": {"bytes": body}}}

    async def _named(self, objects: ObjectStore, reference: str) -> str:
        """The name in a reference, which may be a path, and may lack its ending."""
        name = PurePath(reference).name
        if not is_key(name):
            raise NotFound("nothing has such a name", reference=reference)
        if PurePath(name).suffix:
            return name
        return next((info.key for info in await objects.list(f"{name}.")), name)

    @abstractmethod
    def open_objects(self, writer: str) -> ObjectStore:
        """Open the storage's objects, as every storage does."""

    async def _with_objects(self, work: Callable[[ObjectStore], Awaitable[T]]) -> T:
        objects = self.open_objects(token_hex(8))
        try:
            return await work(objects)
        finally:
            with anyio.move_on_after(_CLOSE_S, shield=True):
                await objects.aclose()


class FileContents(storages.FileStorage, _Contents):
    """Contents as files in a folder. `sandbox` is ignored: files are written by this process."""

    def __init__(self, artifact_dir: str | os.PathLike[str] = "./artifacts", *, sandbox: Any = None) -> None:
        del sandbox
        super().__init__(artifact_dir)


class MemoryContents(storages.InMemoryStorage, _Contents):
    """Contents that live as long as this object. `evict_after_turns` is checked and ignored: the offloader evicts."""

    def __init__(self, evict_after_turns: int | None = 20) -> None:
        if evict_after_turns is not None and evict_after_turns < 1:
            raise Invalid("evict_after_turns must be a positive integer", got=evict_after_turns)
        super().__init__()

    async def _named(self, objects: ObjectStore, reference: str) -> str:
        return await super()._named(objects, reference.removeprefix("mem_"))

    def _reference(self, name: str) -> str:
        return f"mem_{name}"

    def clear(self) -> None:
        """Forget everything."""
        self._shelf = None


class BucketContents(storages.S3Storage, _Contents):
    """Contents in a bucket; a reference is an `s3://` address, or a key below the prefix."""

    @property
    def _below(self) -> str:
        prefix = self.prefix.strip("/")
        return f"{prefix}/" if prefix else ""

    def _reference(self, name: str) -> str:
        return f"s3://{self.bucket}/{self._below}{name}"

    async def _named(self, objects: ObjectStore, reference: str) -> str:
        key = reference.removeprefix(f"s3://{self.bucket}/")
        if not key.startswith(self._below) or not is_key(key):
            raise NotFound("this is another place", reference=reference)
        return key.removeprefix(self._below)
