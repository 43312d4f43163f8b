"""What users write around sessions with snapshots, as type checkers see it: `mypy --strict` accepts this file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, assert_type

from repertory import (
    Agent,
    FileStorage,
    Runtime,
    SessionManager,
    SnapshotEvery,
    SnapshotLocation,
    SnapshotManifest,
    SnapshotSessionManager,
    SnapshotSessions,
)


async def slow(turn_count: int, agent_data: Any) -> bool:
    return turn_count > 3 and bool(agent_data.messages)


def even(turn_count: int) -> bool:
    return turn_count % 2 == 0


class Kept:
    """A storage of the user's own, some of it asynchronous."""

    async def save_snapshot(
        self, *, location: SnapshotLocation, snapshot_id: str, is_latest: bool, snapshot: dict[str, Any]
    ) -> None: ...

    def load_snapshot(self, *, location: SnapshotLocation, snapshot_id: str | None = None) -> dict[str, Any] | None:
        return None

    def list_snapshot_ids(self, *, location: SnapshotLocation) -> list[str]:
        return []

    async def load_manifest(self, *, location: SnapshotLocation) -> SnapshotManifest:
        return SnapshotManifest()

    async def save_manifest(self, *, location: SnapshotLocation, manifest: SnapshotManifest) -> None: ...


Agent(session_manager=SessionManager("s", storage=FileStorage("x"), snapshot_trigger=slow, save_latest_on="never"))
Agent(session_manager=SnapshotSessionManager("s", snapshot_trigger=SnapshotEvery(turns=3), load_snapshot_id=3))
Agent(session_manager=SessionManager("s", storage=Kept(), snapshot_trigger=even))
Runtime(sessions=SnapshotSessions({"snapshot": Kept()}))


async def ids() -> None:
    assert_type(await SnapshotSessions().list_snapshot_ids("s"), Sequence[str])
    assert_type(await SessionManager("s").list_snapshot_ids(Agent(), limit=3), list[str])
