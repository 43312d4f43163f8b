"""What it takes to bring one orchestrator to life: settings and components, chosen but not started."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from repertory.actors.orchestrator.orchestrator import Finished, OrchestratorActor, OrchestratorSettings
from repertory.actors.orchestrator.run_driver import OrchestratorParts
from repertory.actors.persister import PersisterSettings, SessionPersister
from repertory.app.host.claim import Claim
from repertory.runtime.spec import ChildSpec

if TYPE_CHECKING:
    from repertory.actors.context import AgentSettings
    from repertory.actors.leases import Durable
    from repertory.actors.memory_journal import MemoryJournal
    from repertory.app.host.active_session import ActiveSession
    from repertory.app.host.blueprint import Blueprint
    from repertory.app.sessions.sessions import SessionPlace


class NodeHost(Protocol):
    """Where nodes are brought to life."""

    @property
    def refusing(self) -> bool:
        """Whether it shuts down."""
        ...

    async def enter(self, blueprint: Blueprint | OrchestratorBlueprint) -> ActiveSession:
        """One more user of the session."""
        ...

    async def leave(self, blueprint: Blueprint | OrchestratorBlueprint) -> None:
        """One user less."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class OrchestratorBlueprint:
    """One orchestrator in one session."""

    agent: AgentSettings
    """Its place among the agents of the session."""
    parts_on: Callable[[NodeHost], OrchestratorParts]
    """Its components, whose nodes live there."""
    finished: Finished
    reject: bool = False
    """Whether a call is refused while another one works."""
    sessions: SessionPlace | None = None
    """Where the session is kept; None keeps it in `memory` only."""
    memory: MemoryJournal
    own: bool = False
    """Whether its journal is its alone: nobody else can find it, and the orchestrator itself keeps it."""
    takeover: bool = False
    busy_by: float = math.inf
    """Until when the call that opens the session waits for another process at most, by the event loop's clock."""
    opened: Callable[[ActiveSession], None] | None = None
    """Called when it has come to life."""
    claim: Claim = field(default_factory=Claim)
    """What keeps it from being brought to life twice at a time."""
    parts: None = None
    """It is no agent."""

    @property
    def key(self) -> tuple[str, str, str]:
        """The same for every blueprint of the same orchestrator in the same stored session."""
        place = self.sessions.key if self.sessions is not None else "memory"
        return place, self.agent.session_id, self.agent.agent_id


def orchestrator_specs(
    blueprint: OrchestratorBlueprint, keeper: Durable | MemoryJournal, host: NodeHost
) -> Sequence[ChildSpec]:
    """The persister and the orchestrator, in starting order."""
    session_id, orchestrator_id = blueprint.agent.session_id, blueprint.agent.agent_id
    settings = PersisterSettings(
        session_id=session_id, agent_id=orchestrator_id, takeover=blueprint.takeover, busy_by=blueprint.busy_by
    )
    parts = blueprint.parts_on(host)

    def persister() -> SessionPersister:
        return SessionPersister(settings, keeper, os.urandom)

    def orchestrator() -> OrchestratorActor:
        own = OrchestratorSettings(
            session_id=session_id,
            orchestrator_id=orchestrator_id,
            reject=blueprint.reject,
            durable=blueprint.agent.durable,
        )
        backlog = keeper.backlog_of(session_id, orchestrator_id)
        return OrchestratorActor(own, parts, blueprint.finished, backlog, time.time)

    return [
        ChildSpec(
            name="persister",
            factory=persister,
            start_timeout_s=math.inf,  # Waiting for another process has its own bound, and so have stores.
            stop_timeout_s=settings.stop_timeout_s,
        ),
        ChildSpec(name="agent", factory=orchestrator),
    ]
