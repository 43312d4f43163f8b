"""How the snapshots of a session are wanted: what its manager was told."""

from __future__ import annotations

from dataclasses import dataclass

from repertory.core.snapshots.trigger import MultiAgentSaveLatestOn, SaveLatestOn


class LoadOnce:
    """An earlier snapshot that each agent is to go on from, the first time that it is opened."""

    def __init__(self, snapshot_id: str) -> None:
        self._snapshot_id = snapshot_id
        self._done: set[str] = set()

    def pending(self, agent_id: str) -> str | None:
        """The snapshot that the agent has still to go on from."""
        return None if agent_id in self._done else self._snapshot_id

    def done(self, agent_id: str) -> None:
        """The agent goes on from it."""
        self._done.add(agent_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotChoices:
    """When the latest snapshot is saved, and what to begin with."""

    save_latest_on: SaveLatestOn = "message"
    multi_agent_save_latest_on: MultiAgentSaveLatestOn = "node"
    load: LoadOnce | None = None
    manager: str = ""
    """The name of the agent's conversation manager."""

    @property
    def only_when_triggered(self) -> bool:
        """Whether the latest snapshot waits for a trigger."""
        return self.save_latest_on in ("never", "trigger")
