"""The session manager of the layout with snapshots, which programs may also drive by hand."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from msgspec.structs import replace

from repertory.app.sessions.snapshots import AnySnapshotStorage, SnapshotSessions
from repertory.backends.sessions.snapshots.port import LoadOnce
from repertory.backends.sessions.snapshots.publisher import RunSnapshots
from repertory.backends.worker_threads import run_foreign
from repertory.compat.managers_by_hand import SnapshotsByHand
from repertory.core.ids import check_id
from repertory.core.journal.restore import Appender
from repertory.core.snapshots.location import check_snapshot_id, number_of
from repertory.core.snapshots.trigger import MultiAgentSaveLatestOn, SaveLatestOn, Trigger
from repertory.errors import Invalid, NotFound

if TYPE_CHECKING:
    from repertory.backends.sessions.snapshots.storage_store import StorageSessionStore
    from repertory.backends.sessions.snapshots.store import SnapshotSessionStore


class _Identified(Protocol):
    """An agent or any other object with its id."""

    agent_id: str


@dataclass(frozen=True)
class SnapshotSessionManager(SnapshotsByHand):
    """One session with snapshots that other tools can read: pass it to `Agent(session_manager=...)`.

    The same id opens the same conversation again, in this process or the next, also after other tools of this layout
    have continued it. Every acknowledged record is durable whatever `save_latest_on` says: it decides only when other
    tools see it.

    Errors: from calls `SessionBusy` when another live process owns the session.

    Args:
        session_id: The id of the session. Without one, all share `default-session`.
        storage: `FileStorage`, `S3Storage`, `InMemoryStorage`, or your own `SnapshotStorage`; also as `{"snapshot":
            storage}`. When None, the `storage` of the first agent that has one, else `FileStorage()`.
        save_latest_on: `message` saves the latest snapshot after each committed message, `invocation` after each turn,
            `never` (also named `trigger`) when a numbered snapshot is taken.
        multi_agent_save_latest_on: `node` saves the snapshot of a graph or swarm each time that a node has ended,
            `invocation` when the run has ended or waits for a person.
        snapshot_trigger: Called after each turn, returns whether to take a numbered snapshot; a function or coroutine
            function with any of the parameters `turn_count`, `last_snapshot_at` and `agent_data`, or a `SnapshotEvery`.
            When it raises, that is logged and the latest snapshot is saved.
        load_snapshot_id: The numbered snapshot to continue from, the first time that an agent opens the session through
            this object. New snapshots overwrite later ones; the journal keeps everything.
        takeover: Fence a live owner in another process instead of being refused.

    Raises:
        Invalid: For bad arguments. Correct the argument.
        NotFound: For a missing snapshot. Check the name.
        SnapshotException: For a damaged one. Use an intact snapshot.
    """

    session_id: str = "default-session"
    _: KW_ONLY
    storage: AnySnapshotStorage | Mapping[str, Any] | None = None
    save_latest_on: SaveLatestOn = "message"
    multi_agent_save_latest_on: MultiAgentSaveLatestOn = "node"
    snapshot_trigger: Trigger | None = None
    load_snapshot_id: str | int | None = None
    takeover: bool = False
    _sessions: SnapshotSessions = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        try:
            check_id(self.session_id.strip() and self.session_id, "session_id")
        except Invalid as error:
            raise Invalid(f"not a valid session identifier: {error}") from error
        sessions = SnapshotSessions(
            self.storage,
            save_latest_on=self.save_latest_on,
            multi_agent_save_latest_on=self.multi_agent_save_latest_on,
            snapshot_trigger=self.snapshot_trigger,
        )
        if self.load_snapshot_id is not None:
            load = LoadOnce(check_snapshot_id(self.load_snapshot_id))
            sessions.choices = replace(sessions.choices, load=load)
        object.__setattr__(self, "_sessions", sessions)

    @property
    def sessions(self) -> SnapshotSessions:
        """The sessions of the storage, with the settings of this manager."""
        return self._sessions

    def open_snapshots(self) -> SnapshotSessionStore | StorageSessionStore:
        """The store of the storage. The caller closes it."""
        return self.sessions.open_any()

    def keep_in(self, storage: AnySnapshotStorage) -> None:
        """Use this storage, unless one was given.

        Raises:
            Invalid: For what is none. Correct the argument.
        """
        self.sessions.keep_in(storage)

    async def list_snapshot_ids(
        self, agent: str | _Identified = "default", *, limit: int | None = None, start_after: str | int | None = None
    ) -> list[str]:
        """The ids of an agent's numbered snapshots, oldest first: those after `start_after`, at most `limit`.

        Args:
            agent: The agent, or its id.
            limit: The most ids; None for all.
            start_after: Only ids after this one.

        Raises:
            Invalid: For a bad id, those of the storage. Correct the argument.
        """
        agent_id = agent if isinstance(agent, str) else agent.agent_id
        ids = list(await self.sessions.list_snapshot_ids(self.session_id, agent_id))
        if start_after is not None:
            after = _order(check_snapshot_id(start_after))
            ids = [each for each in ids if _order(each) > after]
        return ids if limit is None else ids[: max(limit, 0)]

    async def save_snapshot(self, agent: Any, *, is_latest: bool = False) -> str | None:
        """Take a numbered snapshot of an agent that has this manager, as its trigger would; returns its id. With
        `is_latest` save the latest one instead, whatever was chosen; then there is no id.

        It ends what calls in this event loop, or in sync code, have left open of the agent.

        Args:
            agent: The agent, which has this manager.
            is_latest: True if it replaces the latest snapshot.

        Raises:
            SessionBusy: While a call works. Call again when it is over.
            NotFound: If nothing is stored of the agent. Call it first.
        """
        from repertory.operations.reading import commit_rows, opening_of, owned  # loaded when used

        await run_foreign(agent.shutdown)
        await agent.shutdown_async()
        async with aclosing(self.sessions.open_any()) as store, owned(store, self.session_id, takeover=False) as lease:
            now = await opening_of(store, self.session_id, agent.agent_id)
            found = store.snapshots.find(self.session_id, agent.agent_id)
            if found is None or isinstance(found, RunSnapshots):
                raise NotFound("nothing is stored of the agent", session=self.session_id, agent=agent.agent_id)
            appender = Appender(agent.agent_id, now.fold, now.link, os.urandom)
            if is_latest:
                found.want_latest()
                await commit_rows(store, lease, appender.restate(time.time()))
                return None
            taken = found.history.mark(time.time())
            await commit_rows(store, lease, [*appender.append_all([taken]), *appender.restate(taken.at)])
            return str(int(taken.label.removeprefix("snapshot_")))

    async def restore_snapshot(self, agent: Any, *, snapshot_id: str | int | None = None) -> bool:
        """Let the agent continue from a numbered snapshot, or from the latest one; False when there is none. As
        `agent.load_snapshot`, inside an event loop: the next call stores it.

        Errors: those of `agent.load_snapshot`, and of the storage.

        Args:
            agent: The agent.
            snapshot_id: The id of the snapshot; None for the latest.

        Raises:
            Invalid: For a bad id. Correct the argument.
        """
        try:
            wanted = None if snapshot_id is None else check_snapshot_id(snapshot_id)
        except Invalid as error:
            raise Invalid(f"not a valid snapshot id: {error}") from error
        async with aclosing(self.sessions.open_any()) as store:
            found = await store.document(self.session_id, agent.agent_id, wanted)
        if found is not None:
            agent.load_snapshot(found)
        return found is not None

    async def delete_session(self) -> None:
        """Erase the session with all messages and snapshots. Close the agents that have it open first.

        Raises:
            NotFound: If there is no such session. Check the id.
            Invalid: For a user's own storage, which cannot remove anything. Correct the argument.
            SessionBusy: If another process owns it. Call again later.
        """
        store = self.sessions.open_store()
        try:
            await store.delete(self.session_id)
        finally:
            await store.aclose()


SessionManager = SnapshotSessionManager
"""The name in the documents."""


def _order(snapshot_id: str) -> tuple[bool, int, str]:
    number = number_of(snapshot_id)
    return number is None, number or 0, snapshot_id
