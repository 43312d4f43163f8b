"""The SDK's memory stores in plain files: Markdown by topic, and one JSON file. They read what the SDK has written.

Their files are replaced as a whole, on stable storage when a write returns, and only if nobody has changed them since
they were read: no process loses what another one adds. `SQLiteMemoryStore` finds more, and faster.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, cast

import anyio

from repertory.app.memory.extraction import ExtractionConfig, ModelExtractor
from repertory.app.sessions.storages import FileStorage, InMemoryStorage
from repertory.backends.memory_ports import CompleteStore
from repertory.backends.ports import Create, Update
from repertory.core.ids import check_id
from repertory.core.memory.extracting import EXTRACTION_PROMPT, ExtractionResult
from repertory.core.memory.options import EntryMetadata, MemoryEntry, SearchOptions, read_options
from repertory.errors import AlreadyExists, Invalid, NotFound, PreconditionFailed, RepertoryError, StoreFailed

if TYPE_CHECKING:
    from repertory.backends.ports import ObjectStore
    from repertory.core.messages import Message

RESULTS = 10
"""The most entries that a search finds when nobody says how many."""
RELEVANCE_SCORE_KEY = "_relevanceScore"
_TOPIC_CHARS = 50
_TRIES = 100
_CLOSE_S = 5.0
_TOPICS = """\
Write one fact for each topic: its first line names the topic as a heading ("# How the user works"), and each further \
line says one thing about it."""

T = TypeVar("T")


class _Settings(CompleteStore):
    """The name and the settings that every store has."""

    def __init__(
        self, name: str, description: str | None, most: int | None, writable: bool, extraction: object
    ) -> None:
        if not name.strip():
            raise Invalid("name must not be empty")
        if most is not None and most < 1:
            raise Invalid("max_search_results must be at least 1", got=most)
        self.name = name
        self.description = description
        self.max_search_results = most
        self.writable = writable
        self.extraction: Any = extraction

    def _limit(self, options: SearchOptions | Mapping[str, object] | None) -> int:
        given = read_options(SearchOptions, options, "options").max_search_results
        limit = given if given is not None else self.max_search_results
        if limit is not None and limit < 1:
            raise Invalid("max_search_results must be at least 1", got=limit)
        return limit or RESULTS

    def _check_write(self, content: str) -> None:
        if not self.writable:
            raise Invalid("the store is not writable", store=self.name)
        if not content.strip():
            raise Invalid("content must not be empty", store=self.name)


class FileMemoryStore(_Settings):
    """Memories as Markdown files, one for each topic: `memory/NAME/TOPIC.md` in a storage.

    The first line of a memory is its topic; what is added to a known topic joins its file, each line once. Metadata is
    not kept. `storage`: a `FileStorage`, `S3Storage`, `InMemoryStorage`, or an object with the SDK's methods `write`,
    `read` and `list` (and `search`); `./.strands` when None. A `namespace` of a storage is used as it is.
    `extraction`: as of any store; without an extractor, facts are sorted into the topics that there are.

    Errors: `Invalid` for bad settings and empty memories; those of the storage.
    """

    def __init__(
        self,
        *,
        name: str,
        description: str | None = None,
        max_search_results: int | None = None,
        writable: bool = True,
        extraction: object = None,
        storage: Any = None,
    ) -> None:
        super().__init__(check_id(name, "store name"), description, max_search_results, writable, extraction)
        storage = FileStorage(Path(".strands")) if storage is None else storage
        own = hasattr(storage, "open_bytes") and getattr(storage, "sandbox", None) is None
        within = str(getattr(storage, "within", "")) if getattr(storage, "is_namespace", False) else f"memory/{name}/"
        self._files = _OwnFiles(storage, within) if own else _ForeignFiles(storage, within)
        if extraction is not None and extraction is not False:
            given = None if extraction is True else extraction
            config = read_options(ExtractionConfig, given, "extraction")
            self.extraction = replace(config, extractor=config.extractor or _ByTopic(self._files))

    async def add(self, content: str, metadata: EntryMetadata | None = None) -> str:
        """Add to the file of its topic, and return that file's name. What the file says already is not added again."""
        self._check_write(content)
        topic = content.split("\n", 1)[0]
        key = f"{_file_name(topic)}.md"

        def joined(old: bytes | None) -> bytes | None:
            if old is None:
                return content.encode()
            known = old.decode(errors="replace").split("\n")
            new = [line for line in content.split("\n") if line not in known]
            return "\n".join([*known, *new]).encode() if new else None

        await self._files.change(key, joined)
        return key

    async def search(
        self, query: str, options: SearchOptions | Mapping[str, object] | None = None
    ) -> list[MemoryEntry]:
        """The files with words of the query in their names or texts, those with the most words first."""
        limit = self._limit(options)
        if not query.strip():
            return []
        found: list[MemoryEntry] = []
        for key, score, data in await self._files.search(query):
            body = data if data is not None else await self._files.read(key)
            if body is not None and len(found) < limit:
                metadata = {"path": key, "score": score}
                found.append(MemoryEntry(content=body.decode(errors="replace"), metadata=metadata))
        return found


class _ByTopic:
    """An extractor that tells the model which topics there are."""

    def __init__(self, files: _OwnFiles | _ForeignFiles) -> None:
        self._files = files

    async def extract(self, messages: list[Message], context: Any = None) -> list[ExtractionResult]:
        """The facts, by topic. Errors: those of `ModelExtractor`."""
        prompt = f"{EXTRACTION_PROMPT}\n\n{_TOPICS}"
        topics = [key.rpartition("/")[2].removesuffix(".md").replace("-", " ") for key in await self._files.keys()]
        if topics:
            prompt += f"\n\nExisting topics: {', '.join(topics)}. Reuse an existing topic heading where it fits."
        return await ModelExtractor(system_prompt=prompt).extract(messages, context)


def _file_name(topic: str) -> str:
    words = re.sub(r"[^a-z0-9\s-]", "", topic.lower()).split()
    name = "-".join(words)[:_TOPIC_CHARS].strip("-")
    return name or f"entry-{sha256(topic.encode()).hexdigest()[:12]}"


@dataclass
class TestMemoryAddResult:
    """The id of what was added, or was there already."""

    __test__: ClassVar[bool] = False

    id: str


class TestMemoryStore(_Settings):
    """Memories in one JSON file that people can read, for trying things out: a search reads all of it.

    `path`: the file; `~/.strands/memory/NAME.json` when None. `persist=False` keeps memories as long as this object. A
    memory that is there already is not added again.

    Errors: `Invalid` (a ValueError) for bad settings, empty memories and a file that holds anything else; `StoreFailed`
    for a file that cannot be read or written.
    """

    __test__: ClassVar[bool] = False

    def __init__(
        self,
        *,
        name: str,
        description: str | None = None,
        max_search_results: int | None = None,
        writable: bool = True,
        extraction: object = None,
        persist: bool = True,
        path: str | None = None,
    ) -> None:
        super().__init__(name, description, max_search_results, writable, extraction)
        if path is not None and not path.strip():
            raise Invalid("path must not be empty")
        plain = re.sub(r"\.\.|[^\w.-]", "_", name)
        self._path = Path(path) if path else Path.home() / ".strands" / "memory" / f"{plain}.json"
        self._files = _OwnFiles(FileStorage(self._path.parent) if persist else InMemoryStorage(), "")

    async def add(self, content: str, metadata: EntryMetadata | None = None) -> TestMemoryAddResult:
        """Write a memory; it is on stable storage on return."""
        self._check_write(content)
        added: dict[str, Any] = {"id": token_hex(16), "content": content}
        if metadata:
            added["metadata"] = dict(metadata)
        now = datetime.fromtimestamp(time.time(), UTC).isoformat(timespec="milliseconds")
        added["createdAt"] = now.replace("+00:00", "Z")
        ids: list[str] = []
        self._entries(await self._named("write", self._files.read(self._path.name)))

        def with_added(old: bytes | None) -> bytes | None:
            entries = self._entries(old)
            same = next((entry["id"] for entry in entries if entry["content"] == content), None)
            ids.append(same or added["id"])
            return None if same else json.dumps([*entries, added], indent=2, ensure_ascii=False).encode()

        await self._named("write", self._files.change(self._path.name, with_added))
        return TestMemoryAddResult(id=ids[-1])

    async def search(
        self, query: str, options: SearchOptions | Mapping[str, object] | None = None
    ) -> list[MemoryEntry]:
        """The memories that share words with the query, those with the most first, and the newest of equal ones."""
        limit, words = self._limit(options), _words(query)
        entries = self._entries(await self._named("read", self._files.read(self._path.name)))
        scored = [(len(words & _words(entry["content"])), entry) for entry in reversed(entries)]
        scored.sort(key=lambda one: (one[0], one[1]["createdAt"]), reverse=True)
        return [
            MemoryEntry(
                content=entry["content"], metadata={**(entry.get("metadata") or {}), RELEVANCE_SCORE_KEY: score}
            )
            for score, entry in scored[:limit]
            if score
        ]

    def _entries(self, body: bytes | None) -> list[dict[str, Any]]:
        """The memories in a file. Errors: `Invalid` for anything but a list of memories."""
        try:
            found: object = json.loads(body) if body is not None else list[object]()
        except ValueError as error:
            raise Invalid("the memory file has invalid JSON", path=str(self._path)) from error
        if not isinstance(found, list):
            raise Invalid("the memory file is expected a JSON array of records", path=str(self._path))
        for record in cast("list[object]", found):
            fields: Mapping[str, object] = cast("Mapping[str, object]", record) if isinstance(record, dict) else {}
            if not all(isinstance(fields.get(name), str) for name in ("id", "content", "createdAt")):
                raise Invalid("each record must have string fields id, content, createdAt", path=str(self._path))
            if not isinstance(fields.get("metadata") or {}, dict):
                raise Invalid("'metadata', when present, must be a JSON object", path=str(self._path))
        return cast("list[dict[str, Any]]", found)

    async def _named(self, doing: str, work: Awaitable[T]) -> T:
        try:
            return await work
        except RepertoryError as error:
            raise StoreFailed(f"Failed to {doing} {str(self._path)!r}: {error}", path=str(self._path)) from error


def _words(text: str) -> frozenset[str]:
    return frozenset(re.findall(r"\w+", text.lower()))


# Where the files are.

Found = tuple[str, float, "bytes | None"]
"""The key of a file, how well it fits, and its content, where it was read already."""


class _OwnFiles:
    """Files in a storage of this package. A change is made only to what was read."""

    def __init__(self, storage: Any, within: str) -> None:
        self._storage = storage
        self._within = within

    async def read(self, key: str) -> bytes | None:
        async with self._open() as objects:
            return await _body(objects, self._within + key)

    async def change(self, key: str, changed: Callable[[bytes | None], bytes | None]) -> None:
        """Replace the content by what `changed` makes of it; None leaves it. Called again when another writer was
        faster.
        """
        async with self._open() as objects:
            for _ in range(_TRIES):
                try:
                    old = await objects.get(self._within + key)
                except NotFound:
                    old = None
                new = changed(None if old is None else old.body)
                if new is None:
                    return
                try:
                    await objects.put(self._within + key, new, Create() if old is None else Update(old.version))
                except (AlreadyExists, PreconditionFailed):
                    continue
                searched = self._scoped()  # It may keep an index.
                await searched.strategy.index(searched, key, new)
                return
        raise StoreFailed("others write this file all the time", key=key)

    async def keys(self) -> list[str]:
        async with self._open() as objects:
            return [info.key.removeprefix(self._within) for info in await objects.list(self._within)]

    async def search(self, query: str) -> Sequence[Found]:
        return [(one.key, one.score, one.data) for one in await self._scoped().search(query)]

    def _scoped(self) -> Any:
        return self._storage if self._storage.is_namespace else self._storage.namespace(self._within)

    @asynccontextmanager
    async def _open(self) -> AsyncGenerator[ObjectStore]:
        objects: ObjectStore = self._storage.open_bytes(token_hex(8))
        try:
            yield objects
        finally:
            with anyio.move_on_after(_CLOSE_S, shield=True):
                await objects.aclose()


async def _body(objects: ObjectStore, key: str) -> bytes | None:
    try:
        return (await objects.get(key)).body
    except NotFound:
        return None


class _ForeignFiles:
    """Files in a storage with the SDK's methods. Changes come one after the other within this process."""

    def __init__(self, storage: Any, within: str) -> None:
        self._storage = storage
        self._within = within
        self._lock = anyio.Lock()

    async def read(self, key: str) -> bytes | None:
        """The bytes of an object; None as well for one that cannot be read."""
        try:
            return await self._storage.read(self._within + key)
        except RepertoryError:
            return None

    async def change(self, key: str, changed: Callable[[bytes | None], bytes | None]) -> None:
        async with self._lock:
            new = changed(await self._storage.read(self._within + key))
            if new is not None:
                await self._storage.write(self._within + key, new)

    async def keys(self) -> list[str]:
        return [key.removeprefix(self._within) for key in await self._storage.list(self._within)]

    async def search(self, query: str) -> Sequence[Found]:
        if hasattr(self._storage, "search"):
            found = await self._storage.search(query)
            return [
                (one.key.removeprefix(self._within), one.score, one.data)
                for one in found
                if one.key.startswith(self._within)
            ]
        return _by_words(query, {key: await self.read(key) for key in await self.keys()})


def _by_words(query: str, bodies: Mapping[str, bytes | None]) -> list[Found]:
    """The files that share words with the query, by their names and texts."""
    words = _words(query)
    texts = {key: f"{key.removesuffix('.md')} {(body or b'').decode(errors='replace')}" for key, body in bodies.items()}
    scored = [(key, float(len(words & _words(text))), bodies[key]) for key, text in texts.items()]
    return sorted((one for one in scored if one[1]), key=lambda one: (-one[1], one[0]))
