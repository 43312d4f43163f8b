"""What makes a session outlive its process: a store, and what the sessions in it share."""

from __future__ import annotations

from dataclasses import dataclass, field

from repertory.actors.backlog import Backlog, Backlogs
from repertory.actors.leases import Leases
from repertory.actors.writer import WriterMessage
from repertory.backends.ports import SessionStore
from repertory.core.store_patience import StorePatience
from repertory.runtime.ref import ActorRef


@dataclass(frozen=True, slots=True, kw_only=True)
class Durable:
    """A store, its leases and its writer."""

    store: SessionStore
    leases: Leases
    writer: ActorRef[WriterMessage]
    backlogs: Backlogs = field(default_factory=Backlogs)
    """What has been accepted and is not stored; its settings say how long callers wait."""

    def backlog_of(self, session_id: str, agent_id: str, patience: StorePatience | None = None) -> Backlog:
        """Where what waits of that agent is kept, the same whoever asks. `patience`: the agent's own."""
        return self.backlogs.of(self.store.name, session_id, agent_id, patience)
