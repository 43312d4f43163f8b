"""Agents' memory in one SQLite database: the embedded default, without a model or a service.

Turns and facts are stored side by side and are found as soon as they are stored; `repertory.core.recall.ranking` ranks
them. Durability: every write returns after an fsync. Any number of processes on one machine may share a database; it
must lie on a local disk, as SQLite requires. A forked child opens the database again.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import anyio
from anyio.lowlevel import checkpoint
from msgspec import Struct

from repertory.backends.owning_thread import OwningThread
from repertory.core.memory.options import AddMessagesContext, SearchOptions, read_options
from repertory.core.recall.entries import saying_of, sayings_of, sources_of
from repertory.core.recall.ranking import DEFAULT_WEIGHTS, RankingWeights
from repertory.errors import Failed, Invalid, RepertoryError
from repertory.forking import forget_in_children

if TYPE_CHECKING:
    from repertory.backends.memory.sqlite.database import MemoryDatabase
    from repertory.backends.memory_ports import Embedder
    from repertory.core.memory.options import EntryMetadata, MemoryEntry
    from repertory.core.messages import Message


# Making vectors in the background: a thread with an event loop that runs while there is work.
#
# A write wakes it and does not wait for it. Work left when the process ends is done after the next write.


_log = logging.getLogger("repertory.memory")


class EmbeddingThread:
    """Calls `work` until nothing is left, in a thread that exists only meanwhile."""

    def __init__(self, work: Callable[[], Awaitable[bool]], name: str) -> None:
        """`work` does one piece and returns True if there was one. An error of ours is logged, and ends the thread."""
        self._work = work
        self._name = name
        self._guard = threading.Lock()
        self._thread: threading.Thread | None = None
        self._woken = False
        self._closing = False
        forget_in_children(self)

    def forget_parent(self) -> None:
        """In a forked child: no thread. The parent's thread does the pending work."""
        self._guard, self._thread, self._woken = threading.Lock(), None, False

    def wake(self) -> None:
        """Start the thread if needed: there may be work."""
        with self._guard:
            self._woken = True
            if (self._thread is None or not self._thread.is_alive()) and not self._closing:
                self._thread = threading.Thread(target=self._main, name=self._name, daemon=True)
                self._thread.start()

    async def aclose(self) -> None:
        """Finish the running piece and no more. Returns when the thread is gone."""
        with self._guard:
            self._closing = True
            thread = self._thread
        with anyio.CancelScope(shield=True):
            while thread is not None and thread.is_alive():
                await checkpoint()

    def _main(self) -> None:
        try:
            anyio.run(self._run)
        except RepertoryError as error:
            _log.warning("vectors could not be made; texts are found by their words alone: %s", error)
            with self._guard:
                self._thread = None

    async def _run(self) -> None:
        while self._goes_on():
            while not self._closing and await self._work():
                pass

    def _goes_on(self) -> bool:
        """True if `wake` was called meanwhile. Otherwise the thread counts as gone."""
        with self._guard:
            if not self._woken or self._closing:
                self._thread = None
                return False
            self._woken = False
            return True


# A memory database from its first use to its closing, with the thread that owns it.


T = TypeVar("T")


class OpenedOnce:
    """Opens the database at its first use in each process; once closed, it stays closed."""

    def __init__(self, path: Path, scope: str, *, busy_timeout_s: float) -> None:
        self._path = path
        self._scope = scope
        self._busy_timeout_s = busy_timeout_s
        self._thread = OwningThread(f"repertory {path.name}")
        self._database: MemoryDatabase | None = None
        forget_in_children(self)

    def forget_parent(self) -> None:
        """In a forked child: the next use opens the database again."""
        self._database = None

    async def run(self, work: Callable[[MemoryDatabase], T]) -> T:
        """The result or the exception of `work`. Creates the database if needed."""
        return await self._thread.run(lambda: work(self._open()), after=self._tidy)

    async def run_if_there(self, work: Callable[[MemoryDatabase], T], otherwise: T) -> T:
        """The same without creating the database; `otherwise` if there is none."""
        return await self._thread.run(lambda: work(self._open()) if self._is_there() else otherwise, after=self._tidy)

    async def aclose(self) -> None:
        """Finish the work handed over before, then close the file and end the thread."""
        await self._thread.aclose(self._close)

    # On the thread.

    def _is_there(self) -> bool:
        return self._database is not None or os.path.lexists(self._path)

    def _open(self) -> MemoryDatabase:
        if self._database is None:
            from repertory.backends.memory.sqlite.database import MemoryDatabase  # loads sqlite3, with the first use

            self._database = MemoryDatabase(self._path, self._scope, busy_timeout_s=self._busy_timeout_s)
        return self._database

    def _tidy(self) -> None:
        if self._database is not None:
            self._database.tidy()

    def _close(self) -> None:
        database, self._database = self._database, None
        if database is not None:
            database.close()


RESULTS = 10
"""How many entries a search returns by default."""
_PAGE_MAX = 1000


@dataclass(frozen=True, slots=True)
class MemoryPage:
    """Some entries, in the order in which they came."""

    entries: Sequence[MemoryEntry]
    next: str | None
    """Pass it as `after` for the entries that follow; None when there are none."""


class MemorySettings(Struct, frozen=True, kw_only=True):
    """A store's name, description and options for managers and users."""

    name: str
    description: str | None
    max_search_results: int | None
    writable: bool
    extraction: Any
    scope: str
    busy_timeout_s: float
    embedder: Embedder | None = None
    weights: RankingWeights = DEFAULT_WEIGHTS


class SQLiteMemory:
    """A memory store in a file. May be used from several event loops and threads at once.

    Nothing is created before the first write. Cancellation: a write that has begun is waited for. Errors of every call:
    `Unavailable` (locked for too long, disk full, no access: try again), `Corrupt` (not a memory database, damaged, or
    made by another release: nothing was changed), `Invalid` (symbolic link, bad arguments). All name the path.
    """

    def __init__(self, path: Path, settings: MemorySettings, *, clock: Callable[[], float]) -> None:
        """`clock` gives epoch seconds."""
        self.name = settings.name
        self.description = settings.description
        self.max_search_results = settings.max_search_results
        self.writable = settings.writable
        self.extraction = settings.extraction
        self._path = path
        self._scope = settings.scope
        self._busy_timeout_s = settings.busy_timeout_s
        self._weights = settings.weights
        self._clock = clock
        self._embedder = settings.embedder
        self._opened = self._closed()
        self._vectors = self._vectors_of(self._opened)

    @property
    def path(self) -> Path:
        """The database file."""
        return self._path

    @property
    def scope(self) -> str:
        """The owner of these memories. No call sees or changes those of another scope."""
        return self._scope

    async def search(
        self, query: str, options: SearchOptions | None = None, *, as_of: float | None = None
    ) -> Sequence[MemoryEntry]:
        """The entries that match the query, best first. Any text is a query; one without matches returns nothing.

        `options.max_search_results`: the most entries; by default the store's own number, else 10. `as_of`: epoch
        seconds; finds what was known and valid at that time. Without it, superseded entries are not found.

        Each entry's metadata has `id`, `kind` ("turn" or "fact"), `score` (higher is better, comparable within one
        search) and, where known, `role`, `speaker`, `said_at`, `session_id`, `agent_id`, `seq`, and the metadata that
        was stored.
        """
        from repertory.backends.memory.sqlite.recall import Sought  # loads sqlite3, with the first use

        given = read_options(SearchOptions, options, "options").max_search_results
        wanted = next((number for number in (given, self.max_search_results) if number is not None), RESULTS)
        sought = Sought(
            scope=self._scope,
            question=query,
            limit=_positive(wanted, "max_search_results"),
            as_of=as_of,
            weights=self._weights,
        )
        vector = None if self._vectors is None else await self._vectors.question(query)
        return await self._opened.run_if_there(lambda database: database.search(sought, vector), [])

    async def add(
        self, content: str, metadata: EntryMetadata | None = None, *, context: AddMessagesContext | None = None
    ) -> str | None:
        """Store an entry and return its id. On return it is durable, and can be found.

        The metadata is kept and returned with it. `speaker` (or `name`), `role`, `session_id` (or `session`) and
        `said_at` (or `timestamp`, `date`: epoch seconds or ISO 8601; any other text is searched as it is) affect
        searches, and make the entry a turn, in the order in which its session's turns came. Any other entry is a fact:
        a known fact is counted (`seen`) and not stored twice. `id` is your own id; several entries may share it.

        `context`: its source. Returns None, and stores nothing, when its `idempotency_key` was taken before, or when a
        turn that the fact was extracted from has been forgotten.
        """
        where = read_options(AddMessagesContext, context, "context")
        saying = saying_of(content, metadata, where)
        sources, key = sources_of(where), where.idempotency_key
        return await self._write(lambda database, now: database.add(saying, sources, key, now=now))

    async def add_messages(self, messages: Sequence[Message], context: AddMessagesContext | None = None) -> int:
        """Store each message as one turn, in the order given. Returns how many were stored. Messages without text are
        not stored, nor those of a session and agent whose sequence number was taken before, unless the context had
        times then and now, and they differ: that session was started again.

        All of them are stored, or none. A message's `metadata["custom"]["speaker"]` names the speaker, where a role
        does not.
        """
        where = read_options(AddMessagesContext, context, "context")
        turns = sayings_of(messages, where)
        if not turns:
            return 0
        stored = await self._write(
            lambda database, now: database.add_turns(turns, where.idempotency_key, now=now),
        )
        return len(stored)

    async def supersede(
        self,
        memory_id: str,
        content: str,
        metadata: EntryMetadata | None = None,
        *,
        context: AddMessagesContext | None = None,
    ) -> str | None:
        """Store an entry that replaces another, which is then found only `as_of` an earlier time. Returns the new id,
        or None as `add` does. Errors: `NotFound` for an unknown id; and see the class.
        """
        where = read_options(AddMessagesContext, context, "context")
        saying = saying_of(content, metadata, where)
        sources, key = sources_of(where), where.idempotency_key
        return await self._write(lambda database, now: database.supersede(memory_id, saying, sources, key, now=now))

    async def forget(
        self,
        memory_id: str | None = None,
        *,
        session_id: str | None = None,
        agent_id: str | None = None,
        seq: int | None = None,
    ) -> int:
        """Erase an entry by its id, or by its source: a session, an agent in it, or one message.

        Facts that were extracted from erased turns are erased too, unless they have another source. Erased content is
        overwritten in the file, in its index and in its log, and does not come back when the same messages are stored
        again. Returns the number of erased entries. Errors: `Invalid` unless exactly one of `memory_id` and
        `session_id` is given; and see the class.
        """
        if (memory_id is None) == (session_id is None):
            raise Invalid("say what to forget: memory_id, or session_id with agent_id and seq")
        if session_id is None and (agent_id is not None or seq is not None):
            raise Invalid("agent_id and seq stand beside a session_id")
        ids: dict[str, object] = {"memory_id": memory_id, "session_id": session_id, "agent_id": agent_id}
        for name, given in ids.items():
            if given is not None and not isinstance(given, str):
                raise Invalid(f"{name} is a string", got=given)
        if seq is not None and type(seq) is not int:
            raise Invalid("seq is the number of a message", got=seq)
        if memory_id is not None:
            return await self._opened.run_if_there(lambda database: database.forget(memory_id), 0)
        return await self._opened.run_if_there(
            lambda database: database.forget_messages(str(session_id), agent_id, seq), 0
        )

    async def embed(self, *, anew: bool = False) -> None:
        """Make every missing vector, and return when they are stored. Calling it is optional: vectors follow a write by
        themselves, and until then a text is found by its words.

        `anew`: first drop all vectors of the file, to change its embedder. Errors: `Invalid` when there is no embedder,
        or when the vectors are another embedder's; `Failed` when the embedder fails; and see the class.
        """
        if self._vectors is None:
            raise Invalid("this store has no embedder", store=self.name)
        await self._vectors.make_all(anew=anew)

    async def entries(self, *, after: str | None = None, limit: int = 100) -> MemoryPage:
        """All entries, superseded ones too, in the order in which they came, `limit` at a time (1,000 at most)."""
        start = 0 if after is None else _position(after)
        wanted = min(_positive(limit, "limit"), _PAGE_MAX)
        rows = await self._opened.run_if_there(lambda database: database.page(start, wanted + 1), [])
        shown = rows[:wanted]
        return MemoryPage([entry for _, entry in shown], str(shown[-1][0]) if len(rows) > wanted else None)

    async def aclose(self) -> None:
        """Close: no thread and no file stays open. The next use opens it again. Calling it twice is allowed."""
        opened, self._opened = self._opened, self._closed()
        vectors, self._vectors = self._vectors, self._vectors_of(self._opened)
        if vectors is not None:
            await vectors.aclose()
        await opened.aclose()

    def _closed(self) -> OpenedOnce:
        return OpenedOnce(self._path, self._scope, busy_timeout_s=self._busy_timeout_s)

    async def _write(self, work: Callable[[MemoryDatabase, float], T]) -> T:
        now = self._clock()
        result = await self._opened.run(lambda database: work(database, now))
        if self._vectors is not None:
            self._vectors.wake()
        return result

    def _vectors_of(self, opened: OpenedOnce) -> EntryVectors | None:
        return None if self._embedder is None else EntryVectors(self._embedder, opened, self._path.name)


def _positive(number: object, what: str) -> int:
    if isinstance(number, bool) or not isinstance(number, int) or number < 1:
        raise Invalid(f"{what} is a positive number", got=number)
    return number


def _position(after: str) -> int:
    if not (after.isascii() and after.isdigit()):
        raise Invalid("after is what an earlier page said is next", got=after)
    return int(after)


AT_ONCE = 64
"""How many texts the embedder receives together, between two commits."""

_log = logging.getLogger("repertory.memory")


class EntryVectors:
    def __init__(self, embedder: Embedder, opened: OpenedOnce, name: str) -> None:
        """Errors: `ImportError` when numpy is missing."""
        if find_spec("numpy") is None:
            msg = "searching by vectors needs numpy: pip install 'repertory[vectors]'"
            raise ImportError(msg)
        self._embedder = embedder
        self._opened = opened
        self._claimed = False
        self._thread = EmbeddingThread(self._make_some_apart, f"repertory {name} vectors")

    def wake(self) -> None:
        self._thread.wake()

    async def question(self, query: str) -> bytes | None:
        """The vector of a query; None when the embedder fails: then only words are searched. Errors: `Invalid` when the
        vectors are another embedder's.
        """
        if not query.strip():
            return None
        await self._claim(anew=False)
        try:
            (vector,) = await self._packed(await self._embed([query]), 1)
        except RepertoryError as error:
            _log.warning("a question could not be embedded; it is searched by its words alone: %s", error)
            return None
        return vector

    async def make_all(self, *, anew: bool) -> None:
        """Make the missing vectors, or all. Errors: `Invalid`, `Failed`, and those of the database."""
        await self._claim(anew=anew)
        while await self._make_some():
            pass

    async def aclose(self) -> None:
        """End the thread; vectors that are still missing are made after the next write."""
        await self._thread.aclose()

    async def _make_some(self) -> bool:
        """Make the vectors of a few entries. False if there were none."""
        await self._claim(anew=False)
        entries = await self._opened.run_if_there(lambda database: database.pending_vectors(AT_ONCE), [])
        if not entries:
            return False
        vectors = await self._packed(await self._embed([entry.text for entry in entries]), len(entries))
        made = [(entry.entry, vector) for entry, vector in zip(entries, vectors, strict=True)]
        await self._opened.run(lambda database: database.store_vectors(made))
        return True

    async def _make_some_apart(self) -> bool:
        """The same in the thread's event loop, which ends when nothing is left."""
        goes_on = await self._make_some()
        aclose = getattr(self._embedder, "aclose", None)
        if not goes_on and aclose is not None:
            await aclose()
        return goes_on

    async def _embed(self, texts: Sequence[str]) -> Sequence[Sequence[float]]:
        try:
            return await self._embedder.embed(texts)
        except RepertoryError:
            raise
        except Exception as error:
            raise Failed("the embedder failed", embedder=self._embedder.name, texts=len(texts)) from error

    async def _packed(self, vectors: Sequence[Sequence[float]], texts: int) -> list[bytes]:
        """On the database's thread, since numpy is loaded there."""

        def packed(database: MemoryDatabase) -> list[bytes]:
            return database.packed_vectors(vectors, texts, self._embedder.dimensions)

        return await self._opened.run_if_there(packed, [b""] * texts)

    async def _claim(self, *, anew: bool) -> None:
        """Claims once, when the database exists."""
        if anew or not self._claimed:
            name, dimensions = self._embedder.name, self._embedder.dimensions

            def claim(database: MemoryDatabase) -> bool:
                database.claim_vectors(name, dimensions, anew=anew)
                return True

            self._claimed = await self._opened.run_if_there(claim, False)
