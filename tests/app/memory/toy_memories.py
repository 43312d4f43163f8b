"""Memory stores as users write them, that do what a test wants: fail, hang, lie, take their time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import anyio

from repertory import AddMessagesContext, MemoryEntry, SearchOptions


class Facts:
    """A store that takes single memories in."""

    description = "User preferences."
    max_search_results: int | None = None

    def __init__(self, name: str = "facts", *, extraction: Any = None, writable: bool = True) -> None:
        self.name = name
        self.writable = writable
        self.extraction = extraction
        self.entries: list[str] = []
        self.keys: list[str | None] = []
        self.contexts: list[AddMessagesContext] = []
        self.metadata: list[Mapping[str, Any] | None] = []
        self.searched: list[str] = []
        self.down: Exception | None = None
        self.refuses = ""
        """Contents with this in it."""
        self.search_s = self.add_s = 0.0

    async def search(self, query: str, options: SearchOptions | None = None) -> Sequence[MemoryEntry]:
        self.searched.append(query)
        await anyio.sleep(self.search_s)
        if self.down is not None:
            raise self.down
        words = query.casefold().split()
        found = [each for each in self.entries if any(word in each.casefold() for word in words)]
        limit = options.max_search_results if options is not None else None
        return [MemoryEntry(each) for each in found[: limit or 3]]

    async def add(
        self, content: str, metadata: Mapping[str, Any] | None = None, *, context: AddMessagesContext | None = None
    ) -> None:
        await anyio.sleep(self.add_s)
        if self.down is not None:
            raise self.down
        if self.refuses and self.refuses in content:
            raise ValueError("not this one")
        assert context is not None
        if context.idempotency_key is not None and context.idempotency_key in self.keys:
            return
        self.entries.append(content)
        self.metadata.append(metadata)
        self.keys.append(context.idempotency_key)
        self.contexts.append(context)


class Transcripts:
    """A store that is handed what was said."""

    description = None
    max_search_results: int | None = None
    writable = True

    def __init__(self, name: str = "transcripts", *, extraction: Any = True) -> None:
        self.name = name
        self.extraction = extraction
        self.batches: list[list[str]] = []
        self.contexts: list[AddMessagesContext] = []
        self.down: Exception | None = None
        self.takes_s = 0.0
        self.asked = 0

    async def search(self, query: str, options: SearchOptions | None = None) -> Sequence[MemoryEntry]:
        del query, options
        return []

    async def add_messages(self, messages: Sequence[Any], context: AddMessagesContext | None = None) -> None:
        self.asked += 1
        await anyio.sleep(self.takes_s)
        if self.down is not None:
            raise self.down
        assert context is not None
        if any(context.idempotency_key == other.idempotency_key for other in self.contexts):
            return
        self.batches.append([message["content"][0]["text"] for message in messages])
        self.contexts.append(context)


class InMemoryStore:
    """The store that the documents show to those who write their own."""

    name = "preferences"
    description = "User preferences and stable facts."
    max_search_results = None
    writable = True
    extraction = None

    def __init__(self) -> None:
        self._entries: list[str] = []

    async def search(self, query: str, options: SearchOptions | None = None) -> list[MemoryEntry]:
        limit = (options and options.max_search_results) or 3
        matches = [content for content in self._entries if query in content]
        return [MemoryEntry(content=content) for content in matches[:limit]]  # type: ignore[misc]

    async def add(self, content: str, metadata: dict[str, Any] | None = None) -> None:
        self._entries.append(content)
