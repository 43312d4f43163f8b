"""Telling a store how snapshots are wanted, and asking the user's trigger whether a numbered one is due."""

from __future__ import annotations

import inspect
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TYPE_CHECKING, cast

import anyio

from repertory.actors.leases import Durable
from repertory.backends.sessions.snapshot_sessions import SnapshotSessionStore
from repertory.backends.sessions.snapshot_storage_sessions import StorageSessionStore
from repertory.core.journal.codec import at_of
from repertory.core.messages import copy_message
from repertory.core.snapshots.trigger import AgentData, EndedTurn, SnapshotEvery, Trigger, wanted_by
from repertory.errors import Invalid

if TYPE_CHECKING:
    from repertory.actors.agent_parts import MarkTurn
    from repertory.actors.memory_journal import MemoryJournal
    from repertory.app.blueprint import Blueprint
    from repertory.backends.sessions.snapshot_choices import SnapshotChoices
    from repertory.core.journal.records import SnapshotTaken

ANSWER_S = 10.0
"""How long a trigger may take to answer: nobody waits for the turn's answer for longer than that."""

_log = logging.getLogger("repertory.sessions")


def triggered_by(
    choices: SnapshotChoices, trigger: Trigger | None, blueprint: Blueprint, keeper: Durable | MemoryJournal
) -> MarkTurn | None:
    """What is asked after each turn of a session that is about to come to life; None without a trigger.

    The session's store is told how its snapshots are wanted.
    """
    store = keeper.store if isinstance(keeper, Durable) else None
    if not isinstance(store, SnapshotSessionStore | StorageSessionStore):
        return None
    key = blueprint.agent.session_id, blueprint.agent.agent_id
    store.snapshots.use(*key, replace(choices, manager=blueprint.manager.name))
    return None if trigger is None else _TriggeredSnapshots(store, key, trigger)


def choose_for_run(choices: SnapshotChoices, key: tuple[str, str], keeper: Durable | MemoryJournal) -> None:
    """Say how the snapshot of an orchestrator is wanted that is about to come to life. `key`: its session and journal.

    A storage of the user's own saves it with every commit. Errors: `Invalid` for an earlier one that is to be loaded.
    """
    if choices.load is not None:
        msg = "load_snapshot_id is for agents: a graph has no numbered snapshots; Sessions.rewind goes back in it"
        raise Invalid(msg, session=key[0])
    if isinstance(keeper, Durable) and isinstance(keeper.store, SnapshotSessionStore):
        keeper.store.runs.use(*key, choices)


class _TriggeredSnapshots:
    """Marks the turns of one agent after which its trigger says yes. It never takes a turn down."""

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
        if agent is None:  # The session has just been lost.
            return None
        due = False
        with anyio.move_on_after(ANSWER_S) as scope:
            try:
                due = await self._due(turn, agent.history.last_at)
            except Exception as error:  # noqa: BLE001 - A trigger is anybody's code; the turn has its answer already.
                _log.error("snapshot trigger failed; the latest snapshot is saved", exc_info=error)
                agent.want_latest()
        if scope.cancelled_caught:
            _log.error("snapshot trigger did not answer within %s s; the latest snapshot is saved", ANSWER_S)
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
        """When the agent's first record was made. As long as there is no snapshot, this is asked once per opening."""
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
