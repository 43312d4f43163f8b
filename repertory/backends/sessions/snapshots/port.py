"""What users implement to keep snapshots in a place of their own.

Source: the documented interface for custom storage, in the spelling of Python.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from repertory.core.snapshots.trigger import MultiAgentSaveLatestOn, SaveLatestOn

if TYPE_CHECKING:
    from repertory.core.snapshots.location import SnapshotLocation, SnapshotManifest


@runtime_checkable
class SnapshotStorage(Protocol):
    """Where snapshots are kept, as users implement it: every method a function or a coroutine function, called with
    keywords. Functions run in worker threads, one at a time; coroutine functions may overlap.

    A snapshot is a dictionary of values that JSON has: keep it whole, and give it back equal. Whatever a method raises
    reaches the caller of the agent as `SessionException`.
    """

    def save_snapshot(
        self, *, location: SnapshotLocation, snapshot_id: str, is_latest: bool, snapshot: dict[str, Any]
    ) -> Awaitable[None] | None:
        """Keep a snapshot in the place of one of the same id; with `is_latest`, as the latest one (whose id is 0)."""
        ...

    def load_snapshot(
        self, *, location: SnapshotLocation, snapshot_id: str | None = None
    ) -> Awaitable[dict[str, Any] | None] | dict[str, Any] | None:
        """The snapshot of that id, or the latest one; None when there is none."""
        ...

    def list_snapshot_ids(self, *, location: SnapshotLocation) -> Awaitable[Sequence[str]] | Sequence[str]:
        """The ids of all snapshots but the latest."""
        ...

    def load_manifest(
        self, *, location: SnapshotLocation
    ) -> Awaitable[SnapshotManifest | None] | SnapshotManifest | None:
        """What was saved last; None, or a new manifest, when nothing was."""
        ...

    def save_manifest(self, *, location: SnapshotLocation, manifest: SnapshotManifest) -> Awaitable[None] | None:
        """Keep the manifest."""
        ...


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
