"""Sessions with snapshots that other tools can read: in a folder, a bucket, or a user's own storage."""

from __future__ import annotations

import inspect
import logging
import os
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import anyio
from msgspec.structs import replace

from repertory.actors.leases import Durable
from repertory.app.sessions.sessions import listed, new_owner
from repertory.app.sessions.storages import LEASE_S, FileStorage, open_journal
from repertory.backends.sessions.snapshots.port import SnapshotChoices, SnapshotStorage
from repertory.backends.sessions.snapshots.publisher import RunSnapshots
from repertory.backends.sessions.snapshots.storage_store import StorageSessionStore
from repertory.backends.sessions.snapshots.store import SnapshotSessionStore
from repertory.core.ids import check_id
from repertory.core.journal.codec import at_of
from repertory.core.messages import copy_message
from repertory.core.notebook import without_login
from repertory.core.snapshots.trigger import (
    MULTI_AGENT_SAVE_LATEST_ON,
    SAVE_LATEST_ON,
    AgentData,
    EndedTurn,
    MultiAgentSaveLatestOn,
    SaveLatestOn,
    SnapshotEvery,
    Trigger,
    wanted_by,
)
from repertory.errors import Invalid
from repertory.logs import ERROR, note
from repertory.runtime.faults import failure_of

if TYPE_CHECKING:
    from repertory.actors.context import AgentParts, AgentSettings, MarkTurn
    from repertory.actors.in_memory_journal import InMemoryJournal
    from repertory.app.sessions.storages import Storage
    from repertory.backends.ports import SessionInfo, SessionStore
    from repertory.core.journal.records import SnapshotTaken

AnySnapshotStorage: TypeAlias = "Storage | SnapshotStorage"
"""A place for snapshots: `FileStorage`, `S3Storage`, `InMemoryStorage`, or a user's own."""


class SnapshotSessions:
    """All sessions in one storage, with their snapshots: pass it to `Runtime(sessions=...)`.

    The arguments have the meaning of `SnapshotSessionManager`'s. Nothing is created before it is needed.

    Args:
        storage: The storage of the data.
        save_latest_on: When the latest snapshot is saved: after each `message`, after each turn (`invocation`), or only
            by a trigger (`trigger`, `never`).
        multi_agent_save_latest_on: The same for graphs and swarms: after each `node`, or when a run ends
            (`invocation`).
        snapshot_trigger: Decides after a turn whether a numbered snapshot is taken; None takes none.

    Attributes:
        choices: These settings as one value.
    """

    def __init__(
        self,
        storage: AnySnapshotStorage | Mapping[str, Any] | None = None,
        *,
        save_latest_on: SaveLatestOn = "message",
        multi_agent_save_latest_on: MultiAgentSaveLatestOn = "node",
        snapshot_trigger: Trigger | None = None,
    ) -> None:
        _check_one_of(SAVE_LATEST_ON, "save_latest_on", save_latest_on)
        _check_one_of(MULTI_AGENT_SAVE_LATEST_ON, "multi_agent_save_latest_on", multi_agent_save_latest_on)
        self._given = storage is not None
        self.storage = _storage(storage)
        self.snapshot_trigger = _trigger(snapshot_trigger)
        self.choices = SnapshotChoices(
            save_latest_on=save_latest_on, multi_agent_save_latest_on=multi_agent_save_latest_on
        )

    def keep_in(self, storage: AnySnapshotStorage) -> None:
        """Use the storage of the first agent that has one, unless one was given.

        Args:
            storage: The storage of the data.

        Raises:
            Invalid: For others. Correct the argument.
        """
        if not self._given:
            self.storage, self._given = _storage(storage), True

    def __repr__(self) -> str:
        """The place, on one line."""
        return f"{type(self).__name__}({without_login(self.key)!r})"

    @property
    def key(self) -> str:
        """The key of the location, equal for all objects that name the same sessions."""
        return f"snapshots:{_key(self.storage)}"

    def open_store(self) -> SessionStore:
        """A store on this storage. The caller closes it.

        Raises:
            ImportError: If the extra is missing. Install what the message names.
        """
        return self.open_any()

    def marker(
        self, agent: AgentSettings, manager: str, parts: AgentParts, keeper: Durable | InMemoryJournal
    ) -> MarkTurn | None:
        """The callback for the end of each turn of a session that is about to start; None without a trigger.

        Args:
            agent: The session's and the agent's ids.
            manager: The name of its conversation manager.
            parts: The agent's components.
            keeper: The store or memory that has the journal.
        """
        choices = replace(self.choices, manager=manager, prompted=parts)
        return triggered_by(choices, self.snapshot_trigger, (agent.session_id, agent.agent_id), keeper)

    def choose_for_run(self, session_id: str, journal: str, keeper: Durable | InMemoryJournal) -> None:
        """Set the snapshot choices of an orchestrator that is about to start.

        Args:
            session_id: The id of the session.
            journal: The id of the run's journal.
            keeper: The store or memory that has the journal.
        """
        choose_for_run(self.choices, (session_id, journal), keeper)

    async def list(self) -> Sequence[SessionInfo]:
        """Every session, the most recently changed first; empty when there is nothing yet.

        Raises:
            Invalid: For a user's own storage, which cannot list them. Correct the argument.
        """
        return await listed(self)

    async def list_snapshot_ids(self, session_id: str, agent_id: str = "default") -> Sequence[str]:
        """The ids of an agent's numbered snapshots, oldest first.

        Args:
            session_id: The id of the session.
            agent_id: The id of the agent in its session.
        """
        store = self.open_any()
        try:
            return await store.list_snapshot_ids(check_id(session_id, "session_id"), check_id(agent_id, "agent_id"))
        finally:
            await store.aclose()

    def open_any(self) -> SnapshotSessionStore | StorageSessionStore:
        """Open the store with the additional methods for its snapshots."""
        from repertory.backends.sessions.journal.format import BESIDE_SNAPSHOTS  # loaded when used

        owner = new_owner()
        if not _keeps_objects(self.storage):
            storage = cast("SnapshotStorage", self.storage)
            return StorageSessionStore(storage, owner=owner, wall=time.time, entropy=os.urandom, choices=self.choices)
        object_storage = cast("Storage", self.storage)
        objects = object_storage.open_objects(owner)
        journal = open_journal(object_storage, objects, owner, LEASE_S, BESIDE_SNAPSHOTS)
        return SnapshotSessionStore(journal, objects, wall=time.time, entropy=os.urandom, choices=self.choices)


def _storage(given: AnySnapshotStorage | Mapping[str, Any] | None) -> AnySnapshotStorage:
    if given is None:
        return FileStorage()
    found: Any = given
    if isinstance(given, Mapping):
        if set(given) != {"snapshot"}:
            raise Invalid('a storage for snapshots is given as {"snapshot": storage}', got=sorted(map(str, given)))
        found = given["snapshot"]
    if not _keeps_objects(found) and not isinstance(found, SnapshotStorage):
        methods = "save_snapshot, load_snapshot, list_snapshot_ids, load_manifest, save_manifest"
        msg = f"a storage is FileStorage, S3Storage, InMemoryStorage, or an object with the methods {methods}"
        raise Invalid(msg, got=type(found).__name__)
    return cast("AnySnapshotStorage", found)


def _keeps_objects(storage: object) -> bool:
    return not isinstance(storage, SnapshotStorage) and hasattr(storage, "open_objects")


def _key(storage: AnySnapshotStorage) -> str:
    if isinstance(storage, FileStorage):  # Asked for at every call; to look for methods takes longer.
        return storage.key
    return cast("Storage", storage).key if _keeps_objects(storage) else f"{id(storage):x}"


def _check_one_of(known: Sequence[str], name: str, given: str) -> None:
    """Errors: `Invalid` for an argument `name` whose value is not among the known ones."""
    if given not in known:
        raise Invalid(f"{name} must be one of {', '.join(known)}", got=given)


def _trigger(given: Trigger | None) -> Trigger | None:
    if given is not None and not isinstance(given, SnapshotEvery):
        if not callable(given):
            raise Invalid("a snapshot trigger is a function or a SnapshotEvery", got=type(given).__name__)
        wanted_by(given)
    return given


ANSWER_S = 10.0
"""Seconds that a trigger may take, and so delay the turn's answer."""

_log = logging.getLogger("repertory.sessions")


def triggered_by(
    choices: SnapshotChoices, trigger: Trigger | None, key: tuple[str, str], keeper: Durable | InMemoryJournal
) -> MarkTurn | None:
    """The callback for the end of each turn of a session that is about to start; None without a trigger.

    It also sets the snapshot choices of the session's store. `key`: the session and the agent.
    """
    store = keeper.store if isinstance(keeper, Durable) else None
    if not isinstance(store, SnapshotSessionStore | StorageSessionStore):
        return None
    store.snapshots.use(*key, choices)
    return None if trigger is None else _TriggeredSnapshots(store, key, trigger)


def choose_for_run(choices: SnapshotChoices, key: tuple[str, str], keeper: Durable | InMemoryJournal) -> None:
    """Set the snapshot choices of an orchestrator that is about to start. `key`: its session and journal.

    A user's own storage saves its snapshot with every commit. Errors: `Invalid` for choices with a snapshot to load.
    """
    if choices.load is not None:
        msg = "load_snapshot_id is for agents: a graph has no numbered snapshots; Sessions.rewind goes back in it"
        raise Invalid(msg, session=key[0])
    if isinstance(keeper, Durable) and isinstance(keeper.store, SnapshotSessionStore):
        keeper.store.snapshots.use(*key, choices)


class _TriggeredSnapshots:
    """Marks the turns of one agent after which its trigger returns True. It never fails a turn."""

    def __init__(
        self, store: SnapshotSessionStore | StorageSessionStore, key: tuple[str, str], trigger: Trigger
    ) -> None:
        self._store = store
        self._key = key
        self._trigger = trigger
        self._started_at: float | None = None

    async def __call__(self, turn: EndedTurn) -> SnapshotTaken | None:
        """The record that marks the turn, when a snapshot is due."""
        agent = self._store.snapshots.find(*self._key)
        if agent is None or isinstance(agent, RunSnapshots):  # The lease has just been lost.
            return None
        due = False
        with anyio.move_on_after(ANSWER_S) as scope:
            try:
                due = await self._due(turn, agent.history.last_at)
            except BaseException as raised:  # noqa: BLE001 - A trigger is the user's code; the turn has its answer already.
                error = failure_of(raised)
                note(_log, ERROR, "snapshot trigger failed; the latest snapshot is saved", error)
                agent.want_latest()
        if scope.cancelled_caught:
            note(_log, ERROR, "snapshot trigger did not answer; the latest snapshot is saved", within_s=ANSWER_S)
            agent.want_latest()
        return agent.history.mark(time.time()) if due else None

    async def _due(self, turn: EndedTurn, last_at: float | None) -> bool:
        if not isinstance(self._trigger, SnapshotEvery):
            return await _asked(self._trigger, turn, last_at)
        since = last_at
        if since is None and self._trigger.seconds is not None:
            since = await self._session_start()
        return self._trigger.due(turn.turns, time.time() - since if since is not None else 0.0)

    async def _session_start(self) -> float:
        """The time of the agent's first record. Without a snapshot, this is read once per opening."""
        if self._started_at is None:
            rows = await self._store.load(*self._key, whole=True)
            times = (at_of(row.body) for row in rows if not row.erased)
            self._started_at = next((at for at in times if at is not None), time.time())
        return self._started_at


async def _asked(trigger: Callable[..., object], turn: EndedTurn, last_at: float | None) -> bool:
    wanted = wanted_by(trigger)
    offered: dict[str, object] = {}
    if "turn_count" in wanted:
        offered["turn_count"] = turn.turns
    if "last_snapshot_at" in wanted:
        offered["last_snapshot_at"] = None if last_at is None else int(last_at * 1000)
    if "agent_data" in wanted:
        offered["agent_data"] = AgentData([copy_message(message) for message in turn.messages], turn.state.get())
    answer = trigger(**offered)
    return bool(await cast("Awaitable[object]", answer) if inspect.isawaitable(answer) else answer)
