"""A memory store is any object with these attributes and methods; no subclassing is needed.

Only `name` and `search` are required. The others are optional, on the class or on the object. Each method may be
synchronous or asynchronous; a synchronous one runs in a worker thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn, Protocol, runtime_checkable

from repertory.core.memory.options import AddMessagesContext, EntryMetadata, MemoryEntry, SearchOptions
from repertory.core.messages import Message


class MemoryStore(Protocol):
    """A searchable store of memory entries.

    A store may also have `add(content, metadata)`, `add_messages(messages, context)`, `initialize()` and `get_tools()`;
    see `AddingStore` and the other protocols here. The further attributes of a `CompleteStore` have defaults: no
    description, no extraction, the manager's number of results, and writable if it has `add` or `add_messages`.
    """

    name: str
    """The store's name, unique among the stores of a manager; tools and callers use it."""

    async def search(self, query: str, options: SearchOptions | None = None) -> Sequence[MemoryEntry]:
        """The entries that match the query, best first. Errors: any; the other stores are asked all the same.

        Args:
            query: The text to search for.
            options: The options of this search.
        """
        ...


class CompleteStore(MemoryStore, Protocol):
    """A store with every attribute and method, to be subclassed. What a subclass leaves as it is here, no manager
    calls.

    Attributes:
        writable: True if entries can be added.
    """

    description: str | None
    """A description of the store's contents, for the model."""
    max_search_results: int | None
    """The most entries to return when the caller gives no number; None leaves it to the manager."""
    writable: bool
    extraction: Any
    """The choice whether the store extracts entries from conversations automatically: False or None, True, or an
    `ExtractionConfig`.
    """

    async def add(self, content: str, metadata: EntryMetadata | None = None) -> object:
        """Store one entry.

        Args:
            content: The text.
            metadata: Values of your own, as JSON.

        Raises:
            NotImplementedError: Unless the subclass can.
        """
        return _missing(self, "add")

    async def add_messages(self, messages: Sequence[Message], context: AddMessagesContext | None = None) -> object:
        """Take in a batch of messages.

        Args:
            messages: The messages, oldest first.
            context: The origin of the messages; see `AddMessagesContext`.

        Raises:
            NotImplementedError: Unless the subclass can.
        """
        return _missing(self, "add_messages")

    async def initialize(self) -> None:
        """Prepare the store."""

    def get_tools(self) -> Sequence[Any]:
        """The store's own tools: none."""
        return []


def _missing(store: object, method: str) -> NoReturn:
    # Not in the methods themselves: type checkers would take them for abstract, and let nobody make a subclass.
    raise NotImplementedError(f"{type(store).__name__} does not implement {method}.")


def implements(store: object, method: str) -> bool:
    """True if the store has the method: one only declared by the protocol that it subclasses does not count."""
    found = getattr(store, method, None)
    return callable(found) and getattr(getattr(found, "__func__", found), "__module__", "") != __name__


@runtime_checkable
class AddingStore(Protocol):
    """A store that accepts single entries."""

    async def add(
        self, content: str, metadata: EntryMetadata | None = None, *, context: AddMessagesContext | None = None
    ) -> object:
        """Store one entry; it is stored on return. `context` is passed if the signature names it.

        Args:
            content: The text.
            metadata: Values of your own, as JSON.
            context: The origin of the messages; see `AddMessagesContext`.
        """
        ...


@runtime_checkable
class MessageStore(Protocol):
    """A store that accepts messages and extracts entries from them itself."""

    async def add_messages(self, messages: Sequence[Message], context: AddMessagesContext | None = None) -> object:
        """Take in a batch of messages, in conversation order. They are stored on return.

        Args:
            messages: The messages, oldest first.
            context: The origin of the messages; see `AddMessagesContext`.
        """
        ...


@runtime_checkable
class InitializedStore(Protocol):
    """A store that needs preparation before its first use."""

    async def initialize(self) -> None:
        """Prepare the store. If it fails, the next use tries again."""
        ...


@runtime_checkable
class ClosingStore(Protocol):
    """A store that holds open resources."""

    async def aclose(self) -> None:
        """Close what the store holds. The next use opens it again."""
        ...


class Embedder(Protocol):
    """Turns texts into vectors; texts with similar meaning have vectors in similar directions.

    It is called from several event loops. If it has an `aclose`, that is called in each loop that no longer needs it.
    """

    @property
    def name(self) -> str:
        """The embedding model's name. Vectors of different names are never compared."""
        ...

    @property
    def dimensions(self) -> int:
        """The length of a vector."""
        ...

    async def embed(self, texts: Sequence[str]) -> Sequence[Sequence[float]]:
        """Embed texts: one vector per text, in order. Errors: any; the texts are tried again later.

        Args:
            texts: The texts, in the order of the vectors.
        """
        ...
