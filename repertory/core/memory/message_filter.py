"""What of a conversation is left out before anything is remembered of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from repertory.core.memory.options import Options
from repertory.core.messages import ContentBlock, Message
from repertory.errors import Invalid

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
