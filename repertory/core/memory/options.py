"""Options of memory stores and of their manager, usable as attributes and as mappings.

An option that was not given is None as an attribute, and missing from the keys.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TypeAlias, TypeVar, cast

from msgspec import Struct

from repertory.core.messages import ContentBlock, Json, Message
from repertory.errors import Invalid


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Options(Mapping[str, object]):
    """Named values, some of which were not given. Subclasses are frozen dataclasses; their fields are the options."""

    def _given(self) -> dict[str, object]:
        named = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in named.items() if value is not None}

    def __getitem__(self, name: str) -> object:
        return self._given()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._given())

    def __len__(self) -> int:
        return len(self._given())


_Kind = TypeVar("_Kind", bound=Options)


def read_options(kind: type[_Kind], given: object, what: str) -> _Kind:
    """Options from a caller's object or mapping. Errors: `Invalid` for other types and for unknown names."""
    if given is None:
        return kind()
    if isinstance(given, kind):
        return given
    if not isinstance(given, Mapping):
        raise Invalid(f"{what} is a {kind.__name__} or a mapping", got=type(given).__name__)
    named = cast("Mapping[str, object]", given)
    known = {field.name for field in fields(kind)}
    unknown = [name for name in named if name not in known]
    if unknown:
        raise Invalid(f"{what} has no such options", unknown=unknown, known=sorted(known))
    return kind(**named)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SearchOptions(Options):
    """Options of a store's search.

    Args:
        max_search_results: The largest number of entries.
    """

    max_search_results: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MemorySearchOptions(SearchOptions):
    """Options of a manager's search.

    Args:
        max_search_results: The most entries; None for the store's number.
        stores: The names of the stores to search; None for all.
    """

    stores: Sequence[str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MemoryAddOptions(Options):
    """Options of a manager's write.

    Args:
        metadata: Values that the entry carries, as JSON.
        stores: The names of the stores to write to; None for all that are writable.
    """

    metadata: EntryMetadata | None = None
    stores: Sequence[str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MemoryToolConfig(Options):
    """Name and description of one of the manager's tools; None for its defaults.

    Args:
        name: The tool's name; None for the default.
        description: The tool's description; None for the default.
    """

    name: str | None = None
    description: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MemoryAddToolConfig(MemoryToolConfig):
    """The tool that writes.

    Args:
        name: Its name.
        description: What it does, in words for a model.
        stores: The stores that it may write to, as names or objects; None for all that have an `add`.
        wait_for_writes: True if the model waits for the stores and learns of failures; else it is told at once that the
            write was accepted, and the write survives a crash.
    """

    stores: Sequence[object] | None = None
    wait_for_writes: bool = True


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AddMessagesContext(Options):
    """The origin of what a store is given.

    For `add_messages`, and for an `add` that takes a parameter named `context`.

    Args:
        agent_id: The id of the agent in its session.
    """

    sequence_numbers: Sequence[int] | None = None
    """The sequence numbers of the messages in their journal; for `add`, those of the messages that the content came
    from. They never change, and start anew in each journal.
    """
    session_id: str | None = None
    """The id of the session; None for content from no conversation, or from one that is not stored."""
    agent_id: str | None = None
    idempotency_key: str | None = None
    """The id of one write, the same for every attempt at it, also after a crash: a store that has it need not take it
    again.
    """
    said_at: float | None = None
    """The time of the last message, in epoch seconds."""
    message_times: Sequence[float] | None = None
    """The time of the message of each sequence number, in epoch seconds. A session that was deleted and begun again has
    the same numbers, at other times.
    """


EntryMetadata: TypeAlias = Mapping[str, Json]
"""Further JSON data about a memory."""


@dataclass(frozen=True, slots=True)
class MemoryEntry:
    """An entry of a memory store.

    Args:
        content: The text.
        store_name: The store; a `MemoryManager` fills it in.
        metadata: The store's own, such as ids, times and scores.
    """

    content: str
    store_name: str | None = None
    metadata: EntryMetadata | None = None


KINDS = tuple(ContentBlock.__annotations__)
"""The kinds of content blocks, named by their key."""


@dataclass(frozen=True, slots=True, eq=False)
class MemoryMessageFilter(Options):
    """The kinds of content blocks to leave out: `text`, `toolUse`, `toolResult`, `image` and so on.

    Args:
        exclude: The kinds of content blocks that are left out.

    Raises:
        Invalid: For unknown kinds. Correct the argument.
    """

    exclude: Sequence[str] = ("toolUse", "toolResult")

    def __post_init__(self) -> None:
        if isinstance(self.exclude, str):
            raise Invalid("exclude is a list of kinds of content blocks", got=self.exclude)
        object.__setattr__(self, "exclude", tuple(self.exclude))
        unknown = [kind for kind in self.exclude if kind not in KINDS]
        if unknown:
            raise Invalid("there are no such content blocks", unknown=unknown, known=KINDS)


class Filtered(Struct, frozen=True):
    """Messages after filtering."""

    messages: tuple[Message, ...]
    positions: tuple[int, ...]
    """The index of each message among the given ones."""


def filtered(messages: Sequence[Message], message_filter: MemoryMessageFilter) -> Filtered:
    """The messages without the excluded blocks; messages that become empty are dropped. The input is not changed."""
    reduced = [(position, _without(message, message_filter)) for position, message in enumerate(messages)]
    remaining = [(position, message) for position, message in reduced if message["content"]]
    return Filtered(tuple(message for _, message in remaining), tuple(position for position, _ in remaining))


def _without(message: Message, message_filter: MemoryMessageFilter) -> Message:
    content = [block for block in message["content"] if not any(kind in block for kind in message_filter.exclude)]
    return message if len(content) == len(message["content"]) else {**message, "content": content}
