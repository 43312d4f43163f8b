"""How one memory store takes part in a conversation."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from repertory.core.memory.message_filter import MemoryMessageFilter

if TYPE_CHECKING:
    from repertory.actors.memory.desk import StoreDesk
    from repertory.core.memory.extracting import ExtractionResult
    from repertory.core.messages import Message

Extract: TypeAlias = "Callable[[str, Sequence[Message], Sequence[float]], Awaitable[Sequence[ExtractionResult]]]"
"""Makes memories of what the agent of this id has in its conversation: messages, and the times (epoch seconds) at which
they were said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySource:
    """What an agent was told of a store."""

    desk: StoreDesk
    extracts: bool = False
    """Whether it takes in what is said."""
    every: int | None = None
    """After so many turns; None when only somebody says so."""
    extract: Extract | None = None
    """None for a store that is handed the messages."""
    leaves_out: MemoryMessageFilter = field(default_factory=MemoryMessageFilter)
    holds: tuple[object, ...] = ()
    """The store, and whatever else may hold something open for it."""
