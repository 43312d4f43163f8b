"""What a memory store is: whatever has these attributes and methods. Nobody has to subclass anything.

Only `search` must exist. The others are there or not, on the class or on the object. All may be synchronous or not;
a synchronous one runs in a worker thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from repertory.core.memory.options import AddMessagesContext, EntryMetadata, MemoryEntry, SearchOptions
from repertory.core.messages import Message


class MemoryStore(Protocol):
    """A place that can be searched for what is remembered.

    Besides, a store may have `add(content, metadata)`, `add_messages(messages, context)`, `initialize()` and
    `get_tools()`; see `AddingStore` and the others here. A store with `writable = True` has `add` or `add_messages`.
    """

    name: str
    """Unique among the stores of a manager; tools and callers name it so."""
    description: str | None
    """What it holds, for the model."""
    max_search_results: int | None
    """At most so many entries where a caller does not say; None leaves it to the manager."""
    writable: bool
    extraction: Any
    """Whether what is said is taken in by itself: False or None, True, or an `ExtractionConfig`."""

    async def search(self, query: str, options: SearchOptions | None = None) -> Sequence[MemoryEntry]:
        """What it knows of that, the best first. Errors: whatever it likes; others are asked all the same."""
        ...


@runtime_checkable
class AddingStore(Protocol):
    """A store that takes single memories in."""

    async def add(
        self, content: str, metadata: EntryMetadata | None = None, *, context: AddMessagesContext | None = None
    ) -> object:
        """Remember that. On return it is stored. `context` is given where the signature names it."""
        ...


@runtime_checkable
class MessageStore(Protocol):
    """A store that takes in what was said as it was said, and makes of it what it likes."""

    async def add_messages(self, messages: Sequence[Message], context: AddMessagesContext | None = None) -> object:
        """Take a batch in, in the order in which it was said. On return it is stored."""
        ...


@runtime_checkable
class InitializedStore(Protocol):
    """A store that has to be prepared before it is first used."""

    async def initialize(self) -> None:
        """Prepare it. When it fails, the next use tries again."""
        ...


@runtime_checkable
class ClosingStore(Protocol):
    """A store that holds something open."""

    async def aclose(self) -> None:
        """Close what it holds. It opens again when it is used again."""
        ...


class Embedder(Protocol):
    """Makes vectors of texts: texts that mean the same have vectors that point the same way.

    It is asked from several event loops. When it has an `aclose`, that is called in a loop that has no more use for it.
    """

    @property
    def name(self) -> str:
        """Of the model that makes them. Vectors of different names are never compared."""
        ...

    @property
    def dimensions(self) -> int:
        """How many numbers a vector has."""
        ...

    async def embed(self, texts: Sequence[str]) -> Sequence[Sequence[float]]:
        """A vector for each text, in order. Errors: whatever it likes; the texts are tried again later."""
        ...
