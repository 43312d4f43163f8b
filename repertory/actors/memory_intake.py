"""What the memory of a session knows of one store: how far it has got, and what is to be done for it.

Not an actor: it belongs to the session's memory.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import anyio

from repertory.core.memory.breaker import Breaker
from repertory.core.memory.progress import MemoryWrite, Progress
from repertory.errors import RepertoryError

if TYPE_CHECKING:
    from repertory.actors.memory_link import MemoryLink
    from repertory.actors.memory_source import MemorySource
    from repertory.actors.memory_store import MemoryStoreMessage
    from repertory.core.budget import Budget
    from repertory.runtime.ref import ActorRef

ATTEMPTS_MAX = 3
"""How often something is tried that fails for no reason that passes, before it is given up."""


@dataclass(slots=True)
class Intake:
    """What is known of one store."""

    source: MemorySource
    link: MemoryLink
    ref: ActorRef[MemoryStoreMessage]
    progress: Progress
    recorded: Progress
    """As the journal has it."""
    durable: Progress
    """As it surely has it on stable storage."""
    last: int = 0
    """Sequence number of the last message of the last turn that is over."""
    turns: int = 0
    """Turns that are over since `progress.position`."""
    fired: bool = False
    put_off: bool = False
    """Whether the extractor was refused its model by a budget of the last call that wanted something extracted."""
    lock: anyio.Lock = field(default_factory=anyio.Lock)
    """Held by whoever works for it."""
    breaker: Breaker = field(default_factory=Breaker)
    held: dict[str, RepertoryError] = field(default_factory=dict[str, RepertoryError])
    """Key of a write to why the store has just refused it, for a reason that may be the write's own."""
    attempts: dict[str, int] = field(default_factory=dict[str, int])
    """Key of a write to how often it was refused while others were not."""
    landed: int = 0
    error: str | None = None

    @property
    def name(self) -> str:
        return self.source.desk.name

    @property
    def due(self) -> bool:
        """Whether a trigger has asked for what was said."""
        every = self.source.every
        asked = self.fired or (every is not None and self.turns >= every)
        return self.source.extracts and asked and self.last > self.progress.position

    @property
    def budgets(self) -> tuple[Budget, ...]:
        """What is extracted counts towards them, unless it is flushed."""
        return self.link.budgets.get(self.name, ())

    @property
    def may_extract(self) -> bool:
        """Whether there is something left to have a model asked on; else what was said waits for another call."""
        used_up = self.put_off or any(budget.used_up for budget in self.budgets)
        return self.source.extract is None or not used_up

    @property
    def unread(self) -> bool:
        """Whether it has not got everything that was said."""
        left = self.source.extracts and self.last > self.progress.position
        return bool(left or self.progress.pending or self.progress.again)

    @property
    def pending(self) -> list[MemoryWrite]:
        """What is to be written and has not just been refused."""
        return [write for write in self.progress.pending if write.key not in self.held]

    def has_work(self, *, forced: bool) -> bool:
        """Whether anything is to be done; `forced`: whatever triggers say."""
        progress = self.progress
        if self.pending:
            return True
        unread = self.due or (forced and self.source.extracts and self.last > progress.position)
        room = progress.room > 0 and len(self.held) < ATTEMPTS_MAX
        return bool(progress.again or unread) and room and (forced or self.may_extract)

    def claim(self) -> None:
        """The turns that are over and that nobody has claimed are extracted next, as one stretch."""
        self.progress = self.progress.claimed(self.last)
        self.fired, self.turns = False, 0

    def wanted(self, budgets: tuple[Budget, ...]) -> None:
        """A call wants what was said extracted, on its budgets."""
        self.link.budgets[self.name] = budgets
        self.put_off = False
