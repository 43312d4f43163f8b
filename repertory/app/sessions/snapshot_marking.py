"""What a place is asked and told about the snapshots of a session that is about to come to life, when it takes any."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from repertory.actors.context import MarkTurn
    from repertory.actors.leases import Durable
    from repertory.actors.memory_journal import MemoryJournal
    from repertory.app.host.blueprint import Blueprint
    from repertory.app.orchestration.blueprint import OrchestratorBlueprint


@runtime_checkable
class MarkingPlace(Protocol):
    """What a `SessionPlace` has besides when it takes snapshots of its sessions."""

    def marker(self, blueprint: Blueprint, keeper: Durable | MemoryJournal) -> MarkTurn | None:
        """What is asked at the end of each turn of a session that is about to come to life."""
        ...


@runtime_checkable
class ChoosingPlace(Protocol):
    """What a `SessionPlace` has besides when it takes snapshots of runs."""

    def choose_for_run(self, session_id: str, journal: str, keeper: Durable | MemoryJournal) -> None:
        """Say how the snapshot of an orchestrator is wanted that is about to come to life."""
        ...


def marker_of(blueprint: Blueprint, keeper: Durable | MemoryJournal) -> MarkTurn | None:
    """What is asked at the end of each turn; None when nobody is."""
    place = blueprint.sessions
    return place.marker(blueprint, keeper) if isinstance(place, MarkingPlace) else None


def choose_for_run(blueprint: OrchestratorBlueprint, keeper: Durable | MemoryJournal) -> None:
    """Say how an orchestrator's snapshot is wanted, where there are any."""
    place = blueprint.sessions
    if isinstance(place, ChoosingPlace):
        place.choose_for_run(blueprint.agent.session_id, blueprint.agent.agent_id, keeper)
