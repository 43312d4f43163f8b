"""What a runtime's drain did, and what it could not finish or store."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from repertory.actors.backlog import NotStored
from repertory.core.memory.flushed import FlushReport
from repertory.runtime.drain import DrainReport as ActorsReport


@dataclass(frozen=True, kw_only=True)
class DrainReport(ActorsReport):
    """A whole drain."""

    not_stored: tuple[NotStored, ...] = ()
    """By session and agent, what is not on stable storage: what the store would not take until the end, and turns that
    were answered (`durability="relaxed"`) and got lost, if no call was told of that."""

    memory: FlushReport = field(default_factory=lambda: FlushReport(stores={}))
    """By memory store, what it took in of the sessions that were active, and what not: that is in their journals, and
    is tried again when they are open again."""

    @property
    def ok(self) -> bool:
        """Whether every phase completed, no actor was lost for good, and everything is stored."""
        return super().ok and not self.not_stored


def drain_report(actors: ActorsReport, not_stored: tuple[NotStored, ...], memory: FlushReport) -> DrainReport:
    """The report of the actors, with what is not stored and what memory stores have."""
    said = {each.name: getattr(actors, each.name) for each in fields(ActorsReport)}
    return DrainReport(**said, not_stored=not_stored, memory=memory)
