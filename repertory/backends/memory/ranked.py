"""A memory store as its callers see it, over a database of turns and facts.

Turns and facts are stored side by side and are found as soon as they are stored; `repertory.core.recall.ranking` ranks
them. What is particular to a database is its `MemoryTables`.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast

from msgspec import Struct

from repertory.backends.memory.vectors import EntryVectors, VectorTables
from repertory.core.memory.options import AddMessagesContext, MemoryEntry, SearchOptions, read_options
from repertory.core.messages import Json
from repertory.core.recall.candidates import Query
from repertory.core.recall.entries import Saying, saying_of, sayings_of, sources_of
from repertory.core.recall.ranking import DEFAULT_WEIGHTS, RankingWeights
from repertory.errors import Invalid

if TYPE_CHECKING:
    from repertory.backends.memory_ports import Embedder
    from repertory.core.memory.options import EntryMetadata
    from repertory.core.messages import Message

T = TypeVar("T")
EntrySource: TypeAlias = tuple[int, float | None]
"""A turn that an entry was extracted from: its sequence number, and when it was said."""

RESULTS = 10
"""The number of entries that a search returns by default."""
_PAGE_MAX = 1000


@dataclass(frozen=True, slots=True)
class MemoryPage:
    """A page of entries, in the order in which they came."""

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
    embedder: Embedder | None = None
    weights: RankingWeights = DEFAULT_WEIGHTS


class MemoryTables(VectorTables):
    """The database of a store, in one scope. Reading creates nothing. `now` is in epoch seconds."""

    @abstractmethod
    async def add_turns(self, turns: Sequence[Saying], key: str | None, *, now: float) -> int:
        """Store turns, all or none. Returns how many were not stored before."""

    @abstractmethod
    async def add(self, saying: Saying, sources: Sequence[EntrySource], key: str | None, *, now: float) -> str | None:
        """Store one entry. Returns its id, or None when that key was taken before, or its source was forgotten."""

    @abstractmethod
    async def supersede(
        self, old: str, saying: Saying, sources: Sequence[EntrySource], key: str | None, *, now: float
    ) -> str | None:
        """Store an entry that replaces `old`. Errors: `NotFound`."""

    @abstractmethod
    async def forget(self, memory_id: str) -> int:
        """Erase an entry, and what was extracted from it. Returns the number of erased entries."""

    @abstractmethod
    async def forget_messages(self, session_id: str, agent_id: str | None, seq: int | None) -> int:
        """Erase the turns of a session, or one of them, and what was extracted from them."""

    @abstractmethod
    async def search(self, query: Query, vector: bytes | None) -> list[MemoryEntry]:
        """The best entries, best first; by their words and, given a vector, by similarity."""

    @abstractmethod
    async def page(self, after: int, limit: int) -> list[tuple[int, MemoryEntry]]:
        """Entries in the order in which they came, superseded ones too, with their keys."""

    @abstractmethod
    async def aclose(self) -> None:
        """Close what is open."""


class RankedMemory:
    """A memory store over tables of entries. May be used from several event loops and threads at once.

    Nothing is created before the first write. Cancellation: a write that has begun is waited for.
    """

    def __init__(
        self,
        settings: MemorySettings,
        tables: Callable[[], MemoryTables],
        *,
        clock: Callable[[], float],
        label: str,
    ) -> None:
        """`tables` is called anew after each closing; `clock` gives epoch seconds; `label` names the thread that makes
        vectors.
        """
        self.name = settings.name
        self.description = settings.description
        self.max_search_results = settings.max_search_results
        self.writable = settings.writable
        self.extraction = settings.extraction
        self._scope = settings.scope
        self._weights = settings.weights
        self._clock = clock
        self._embedder = settings.embedder
        self._label = label
        self._make_tables = tables
        self._tables = tables()
        self._vectors = self._vectors_of(self._tables)

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
        given = read_options(SearchOptions, options, "options").max_search_results
        wanted = next((number for number in (given, self.max_search_results) if number is not None), RESULTS)
        asked = Query(
            scope=self._scope,
            question=query,
            limit=_positive(wanted, "max_search_results"),
            as_of=as_of,
            weights=self._weights,
        )
        vector = None if self._vectors is None else await self._vectors.question(query)
        return await self._tables.search(asked, vector)

    async def add(
        self, content: str, metadata: EntryMetadata | None = None, *, context: AddMessagesContext | None = None
    ) -> str | None:
        """Store an entry and return its id. On return it is durable, and can be found.

        The metadata is kept and returned with it. `speaker` (or `name`), `role`, `session_id` (or `session`) and
        `said_at` affect searches, and make the entry a turn, in the order in which its session's turns came. `said_at`
        (or `timestamp`, `date`) is epoch seconds or ISO 8601; any other text is searched as it is. Any other entry is a
        fact: a known fact is counted (`seen`) and not stored twice. `id` is your own id; several entries may share it.

        Args:
            content: The text.
            metadata: Values that the entry carries, as JSON.
            context: The entry's source, with an `idempotency_key` that lets the entry be stored once.

        Returns:
            The id. None, with nothing stored, when the `idempotency_key` was taken before, or when a turn that the fact
            was extracted from has been forgotten.
        """
        where = read_options(AddMessagesContext, context, "context")
        saying = saying_of(content, metadata, where)
        sources, key = sources_of(where), where.idempotency_key
        return await self._written(self._tables.add(saying, sources, key, now=self._clock()))

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
        return await self._written(self._tables.add_turns(turns, where.idempotency_key, now=self._clock()))

    async def supersede(
        self,
        memory_id: str,
        content: str,
        metadata: EntryMetadata | None = None,
        *,
        context: AddMessagesContext | None = None,
    ) -> str | None:
        """Store an entry that replaces another, which is then found only `as_of` an earlier time. Returns the new id,
        or None as `add` does.

        Args:
            memory_id: The id of the entry that is replaced.
            content: The new text.
            metadata: Values that the entry carries, as JSON.
            context: The new entry's source.

        Raises:
            NotFound: For an unknown id. Check the id.
        """
        where = read_options(AddMessagesContext, context, "context")
        saying = saying_of(content, metadata, where)
        sources, key = sources_of(where), where.idempotency_key
        return await self._written(self._tables.supersede(memory_id, saying, sources, key, now=self._clock()))

    async def forget(
        self,
        memory_id: str | None = None,
        *,
        session_id: str | None = None,
        agent_id: str | None = None,
        seq: int | None = None,
    ) -> int:
        """Erase an entry by its id, or by its source: a session, an agent in it, or one message. Returns the number of
        erased entries.

        Facts that were extracted from erased turns are erased too, unless they have another source. Erased content
        leaves the files of the database, as the store's document says, and does not come back when the same messages
        are stored again.

        Args:
            memory_id: The id of the entry.
            session_id: The session.
            agent_id: The agent in the session; None for all.
            seq: The sequence number of the message; None for all.

        Raises:
            Invalid: Unless exactly one of `memory_id` and `session_id` is given. Correct the argument.
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
            return await self._tables.forget(memory_id)
        return await self._tables.forget_messages(str(session_id), agent_id, seq)

    async def embed(self, *, anew: bool = False) -> None:
        """Make every missing vector, and return when they are stored. Calling it is optional: vectors follow a write by
        themselves, and until then a text is found by its words.

        Args:
            anew: True first drops all vectors of the file, to change its embedder.

        Raises:
            Invalid: When there is no embedder, or when the vectors are another embedder's. Pass `anew=True` to change
                it.
            Failed: When the embedder fails. Read its cause.
        """
        if self._vectors is None:
            raise Invalid("this store has no embedder", store=self.name)
        await self._vectors.make_all(anew=anew)

    async def entries(self, *, after: str | None = None, limit: int = 100) -> MemoryPage:
        """All entries, superseded ones too, in the order in which they came.

        Args:
            after: The end of the page before; None for the first page.
            limit: The most entries of a page, at most 1,000.
        """
        start = 0 if after is None else _position(after)
        wanted = min(_positive(limit, "limit"), _PAGE_MAX)
        rows = await self._tables.page(start, wanted + 1)
        page = rows[:wanted]
        return MemoryPage([entry for _, entry in page], str(page[-1][0]) if len(rows) > wanted else None)

    async def aclose(self) -> None:
        """Close: no thread, file or connection of this event loop stays open. The next use opens it again. Calling it
        twice is allowed.
        """
        tables, self._tables = self._tables, self._make_tables()
        vectors, self._vectors = self._vectors, self._vectors_of(self._tables)
        if vectors is not None:
            await vectors.aclose()
        await tables.aclose()

    async def _written(self, work: Awaitable[T]) -> T:
        result = await work
        if self._vectors is not None:
            self._vectors.wake()
        return result

    def _vectors_of(self, tables: MemoryTables) -> EntryVectors | None:
        return None if self._embedder is None else EntryVectors(self._embedder, tables, self._label)


def _positive(number: object, what: str) -> int:
    if isinstance(number, bool) or not isinstance(number, int) or number < 1:
        raise Invalid(f"{what} is a positive number", got=number)
    return number


def _position(after: str) -> int:
    if not (after.isascii() and after.isdigit()):
        raise Invalid("after is what an earlier page said is next", got=after)
    return int(after)


def entry_of_row(row: Sequence[Any], score: float | None) -> MemoryEntry:
    """An entry as callers see it, with the caller's metadata unchanged. The row: key, content, kind (1 for a fact),
    role, speaker, when it was said, session, agent, sequence number, given id, times seen, when it was recorded, when
    it was superseded, by what, metadata.
    """
    key, content, kind, role, speaker, at, session, agent, seq, given_id, seen, recorded_at, gone_at, *rest = row
    successor, metadata = rest
    known: dict[str, Json] = {
        "id": given_id or str(key),
        "kind": "fact" if kind else "turn",
        "role": role,
        "speaker": speaker,
        "said_at": at,
        "recorded_at": recorded_at,
        "session_id": session or None,
        "agent_id": agent or None,
        "seq": seq,
        "superseded_at": gone_at,
        "superseded_by": None if successor is None else str(successor),
    }
    if kind:
        known["seen"] = seen
    known = {name: value for name, value in known.items() if value is not None}
    if metadata is not None:
        known.update(cast("dict[str, Json]", json.loads(metadata)))
    if score is not None:
        known["score"] = round(score, 6)
    return MemoryEntry(content=content, metadata=known)
