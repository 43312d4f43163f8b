"""One memory, as a store gives it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from repertory.core.messages import Json

Metadata: TypeAlias = Mapping[str, Json]
"""What else is known of a memory: JSON."""


@dataclass(frozen=True, slots=True)
class MemoryEntry:
    """Something that a memory store knows.

    `store_name`: which one; a `MemoryManager` fills it in. `metadata`: the store's own, such as ids, times and scores.
    """

    content: str
    store_name: str | None = None
    metadata: Metadata | None = None
