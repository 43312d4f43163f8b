"""Sessions in memory that outlive whoever works on them, as those on a disk do; shared by tests of orchestrators."""

from __future__ import annotations

from repertory.testing.in_memory_sessions import MemorySessionStore, SessionShelf


class Shelf:
    """Where sessions are kept."""

    def __init__(self) -> None:
        self.shelf = SessionShelf()
        self.key = f"shelf {id(self)}"

    def open_store(self) -> MemorySessionStore:
        """As another process."""
        return MemorySessionStore(self.shelf, owner=f"owner {id(object())}")
