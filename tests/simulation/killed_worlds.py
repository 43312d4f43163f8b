"""A world that can be left at any moment: what was stored, and what tools had done, as a killed process leaves it."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

from repertory.backends.ports import Batch, Position
from repertory.errors import LeaseLost
from repertory.testing.in_memory_sessions import MemorySessionStore, SessionShelf


@dataclass
class World:
    """Everything that outlives a process."""

    shelf: SessionShelf = field(default_factory=SessionShelf)
    effects: Counter[str] = field(default_factory=Counter[str])
    """What tools did: idempotency key to how often they were asked."""
    wakes: ClassVar[bool] = True
    left: list[World] = field(default_factory=list["World"])
    """What a kill would have left, at each moment when something had changed."""

    @property
    def key(self) -> str:
        """The same for the same world."""
        return f"world {id(self)}"

    def open_store(self) -> RecordingStore:
        """A store of a process that takes over from whoever was killed."""
        return RecordingStore(self)

    def moment(self) -> None:
        """Keep what a kill would leave now, if anything has changed."""
        now = World(copy.deepcopy(self.shelf), Counter(self.effects))
        if not self.left or self.left[-1].size != now.size:
            self.left.append(now)

    @property
    def size(self) -> tuple[int, int]:
        """Grows with every change."""
        sessions = self.shelf.sessions.values()
        return sum(len(rows) for one in sessions for rows in one.journals.values()), self.effects.total()

    def effect(self, key: str) -> None:
        """A tool does something outside."""
        self.effects[key] += 1
        self.moment()


def killed(world: World) -> World:
    """As its processes left it when they were killed, an hour ago."""
    world.shelf.alive.clear()
    world.shelf.pending_work = {
        key: replace(work, at=work.at - 3600.0) for key, work in world.shelf.pending_work.items()
    }
    return world


class RecordingStore(MemorySessionStore):
    """Keeps what a kill would leave before and after each commit."""

    def __init__(self, world: World) -> None:
        super().__init__(world.shelf, owner=f"owner {id(self)}")
        self._world = world

    async def append(self, batches: Sequence[Batch]) -> Sequence[Position | LeaseLost]:
        """As the store in memory."""
        self._world.moment()
        outcomes = await super().append(batches)
        self._world.moment()
        return outcomes
