"""Options of memory stores and of their manager: they work as attributes and as mappings.

An option that was not given is None as an attribute, and not among the keys.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TypeAlias, TypeVar, cast

from repertory.core.messages import ContentBlock, Json, Message
from repertory.errors import Invalid


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Options(Mapping[str, object]):
    """Named values, some of which were not given. Subclasses are frozen dataclasses, whose fields they are."""

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
    """Options that a caller gave as an object or as a mapping. Errors: `Invalid` for others, and for unknown names."""
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
    """What a store is told with a search. `max_search_results`: at most so many entries."""

    max_search_results: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MemorySearchOptions(SearchOptions):
    """What a manager is told with a search. `stores`: the names of those to search; None for all."""

    stores: Sequence[str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MemoryAddOptions(Options):
    """What a manager is told with a write. `stores`: the names of those to write to; None for all that are writable."""

    metadata: EntryMetadata | None = None
    stores: Sequence[str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MemoryToolConfig(Options):
    """How a tool of the manager's is called and described; None for what it says by itself."""

    name: str | None = None
    description: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MemoryAddToolConfig(MemoryToolConfig):
    """The tool that writes.

    `stores`: those that it may write to, by name or themselves; None for all that have an `add`. `wait_for_writes`:
    whether the model waits for the stores and learns what failed; otherwise it is told at once that the write was
    accepted, which survives the process.
    """

    stores: Sequence[object] | None = None
    wait_for_writes: bool = True


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AddMessagesContext(Options):
    """Where something that a store is given comes from.

    For `add_messages`, and for an `add` that takes a parameter named `context`.
    """

    sequence_numbers: Sequence[int] | None = None
    """Where in its journal each message stands; for `add`, the messages that the content was taken from. They never
    change, and start anew in each journal."""
    session_id: str | None = None
    """None for what comes from no conversation, or from one that is not kept."""
    agent_id: str | None = None
    idempotency_key: str | None = None
    """The same whenever the same is written again, also after a crash, and never for anything else: a store that has
    taken it once need not take it again."""
    said_at: float | None = None
    """Epoch seconds: when the last of it was said."""
    message_times: Sequence[float] | None = None
    """Epoch seconds: when each message was said, one for each sequence number. A session that was deleted and begun
    again under its name has the same numbers, at other times."""


EntryMetadata: TypeAlias = Mapping[str, Json]
"""What else is known of a memory: JSON."""


@dataclass(frozen=True, slots=True)
class MemoryEntry:
    """Something that a memory store knows.

    `store_name`: which one; a `MemoryManager` fills it in. `metadata`: the store's own, such as ids, times and scores.
    """

    content: str
    store_name: str | None = None
    metadata: EntryMetadata | None = None


KINDS = tuple(ContentBlock.__annotations__)
"""The kinds of content blocks, by the key that says what a block is."""


@dataclass(frozen=True, slots=True, eq=False)
class MemoryMessageFilter(Options):
    """Which kinds of content blocks are left out: `text`, `toolUse`, `toolResult`, `image` and so on.

    Errors: `Invalid` for kinds that there are not.
    """

    exclude: Sequence[str] = ("toolUse", "toolResult")

    def __post_init__(self) -> None:
        if isinstance(self.exclude, str):
            raise Invalid("exclude is a list of kinds of content blocks", got=self.exclude)
        object.__setattr__(self, "exclude", tuple(self.exclude))
        unknown = [kind for kind in self.exclude if kind not in KINDS]
        if unknown:
            raise Invalid("there are no such content blocks", unknown=unknown, known=KINDS)


@dataclass(frozen=True, slots=True)
class Filtered:
    """What is left of some messages."""

    messages: tuple[Message, ...]
    positions: tuple[int, ...]
    """For each of them, where it stood among those that were given."""


def filtered(messages: Sequence[Message], message_filter: MemoryMessageFilter) -> Filtered:
    """The messages without the blocks that the filter leaves out; those of which nothing is left are gone.

    The input is not changed.
    """
    left = [(position, _without(message, message_filter)) for position, message in enumerate(messages)]
    kept = [(position, message) for position, message in left if message["content"]]
    return Filtered(tuple(message for _, message in kept), tuple(position for position, _ in kept))


def _without(message: Message, message_filter: MemoryMessageFilter) -> Message:
    content = [block for block in message["content"] if not any(kind in block for kind in message_filter.exclude)]
    return message if len(content) == len(message["content"]) else {**message, "content": content}
