"""Whether somebody is to be asked at the end of each turn of a session: that depends on where the session is kept."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from repertory.actors.agent_parts import MarkTurn
    from repertory.actors.durable import Durable
    from repertory.actors.memory_journal import MemoryJournal
    from repertory.app.blueprint import Blueprint


@runtime_checkable
class MarkingPlace(Protocol):
    """What a `SessionPlace` has besides when it takes snapshots of its sessions."""

    def marker(self, blueprint: Blueprint, keeper: Durable | MemoryJournal) -> MarkTurn | None:
        """What is asked at the end of each turn of a session that is about to come to life."""
        ...


def marker_of(blueprint: Blueprint, keeper: Durable | MemoryJournal) -> MarkTurn | None:
    """What is asked at the end of each turn; None when nobody is."""
    place = blueprint.sessions
    return place.marker(blueprint, keeper) if isinstance(place, MarkingPlace) else None
