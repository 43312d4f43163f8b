"""The interface that users implement to keep snapshots in their own storage.

Source: the documented interface for custom storage, in Python spelling.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from msgspec import Struct

from repertory.core.messages import SystemPrompt
from repertory.core.snapshots.trigger import MultiAgentSaveLatestOn, SaveLatestOn

if TYPE_CHECKING:
    from repertory.core.snapshots.location import SnapshotLocation, SnapshotManifest


@runtime_checkable
class SnapshotStorage(Protocol):
    """A snapshot storage that users implement. Each method is a function or a coroutine function, called with keyword
    arguments. Functions run in worker threads, one at a time; coroutine functions may overlap.

    A snapshot is a dictionary of JSON values: store it whole, and return an equal one. An exception that a method
    raises reaches the caller of the agent as `SessionException`.
    """

    def save_snapshot(
        self, *, location: SnapshotLocation, snapshot_id: str, is_latest: bool, snapshot: dict[str, Any]
    ) -> Awaitable[None] | None:
        """Store a snapshot; it replaces one with the same id. With `is_latest`, store it as the latest one (whose id is
        0).

        Args:
            location: Whose snapshot it is.
            snapshot_id: The id of the snapshot; None for the latest.
            is_latest: True if it replaces the latest snapshot.
            snapshot: The snapshot, as `save_snapshot` gave it.
        """
        ...

    def load_snapshot(
        self, *, location: SnapshotLocation, snapshot_id: str | None = None
    ) -> Awaitable[dict[str, Any] | None] | dict[str, Any] | None:
        """The snapshot of that id; without an id, the latest one. None when there is none.

        Args:
            location: Whose snapshot it is.
            snapshot_id: The id of the snapshot; None for the latest.
        """
        ...

    def list_snapshot_ids(self, *, location: SnapshotLocation) -> Awaitable[Sequence[str]] | Sequence[str]:
        """The ids of all snapshots but the latest.

        Args:
            location: Whose snapshot it is.
        """
        ...

    def load_manifest(
        self, *, location: SnapshotLocation
    ) -> Awaitable[SnapshotManifest | None] | SnapshotManifest | None:
        """The last saved manifest; None, or a new manifest, when none was saved.

        Args:
            location: Whose snapshot it is.
        """
        ...

    def save_manifest(self, *, location: SnapshotLocation, manifest: SnapshotManifest) -> Awaitable[None] | None:
        """Store the manifest.

        Args:
            location: Whose snapshot it is.
            manifest: The manifest.
        """
        ...


class LoadOnce:
    """An earlier snapshot from which each agent continues the first time that it is opened."""

    def __init__(self, snapshot_id: str) -> None:
        self._snapshot_id = snapshot_id
        self._done: set[str] = set()

    def pending(self, agent_id: str) -> str | None:
        """The snapshot from which the agent must still continue."""
        return None if agent_id in self._done else self._snapshot_id

    def done(self, agent_id: str) -> None:
        """Record that the agent continued from it."""
        self._done.add(agent_id)


class Prompted(Protocol):
    """Objects with a system prompt: an agent's parts."""

    system_prompt: SystemPrompt


class SnapshotChoices(Struct, frozen=True, kw_only=True):
    """The occasions on which the latest snapshot is saved, and the snapshot to start from."""

    save_latest_on: SaveLatestOn = "message"
    multi_agent_save_latest_on: MultiAgentSaveLatestOn = "node"
    load: LoadOnce | None = None
    manager: str = ""
    prompted: Prompted | None = None
    """An object with the agent's system prompt, which gets the stored one if it has none."""

    @property
    def only_when_triggered(self) -> bool:
        """True if the latest snapshot waits for a trigger."""
        return self.save_latest_on in ("never", "trigger")
