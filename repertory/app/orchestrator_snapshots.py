"""Taking snapshots of an orchestrator with its nodes, also while it works, and going on from them."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager, suppress
from typing import TYPE_CHECKING, Any, cast

from repertory.actors.caller_context import OPEN_TURNS
from repertory.actors.hooks.calls import fire_sync
from repertory.actors.hooks.events import AfterSnapshotEvent, BeforeSnapshotEvent
from repertory.app.agent_snapshots import SnapshotLoaded
from repertory.app.event_loop import inside_event_loop
from repertory.app.tracing import span
from repertory.core.snapshots.orchestrators import RunShape, check_shape
from repertory.core.snapshots.portable import ORCHESTRATOR, Snapshot, read_orchestrator, snapshot_of
from repertory.errors import ActorDead, AgentBusy, Invalid, SnapshotException, Unavailable

if TYPE_CHECKING:
    from repertory.actors.hooks.registry import HookRegistry
    from repertory.app.active_session import ActiveSession
    from repertory.app.tracing import AttributeValue


class OrchestratorSnapshots(ABC):
    """What an orchestrator does with snapshots."""

    id: str
    hooks: HookRegistry
    trace_attributes: Mapping[str, AttributeValue]

    @property
    @abstractmethod
    def _working(self) -> ActiveSession | None:
        """The orchestrator, if it is alive in this event loop."""

    @abstractmethod
    def _opened(self) -> AbstractAsyncContextManager[ActiveSession]:
        """The orchestrator, alive for as long as the block; waits for calls that keep it alive by themselves."""

    @property
    @abstractmethod
    def shape(self) -> RunShape:
        """What it is, and each of its nodes."""

    def save_snapshot(self, metadata: Mapping[str, Any] | None = None) -> Snapshot:
        """`save_snapshot_async` for sync code. Errors: `Invalid` inside an event loop, as well."""
        return cast("Snapshot", self._blocking(self.save_snapshot_async, metadata))

    def load_snapshot(self, snapshot: Mapping[str, Any]) -> SnapshotLoaded:
        """`load_snapshot_async` for sync code. Errors: `Invalid` inside an event loop, as well."""
        return cast("SnapshotLoaded", self._blocking(self.load_snapshot_async, snapshot))

    async def save_snapshot_async(self, metadata: Mapping[str, Any] | None = None) -> Snapshot:
        """The run and every node as they are now, as JSON; `metadata` is kept in it. Also during a run, from anywhere
        in the same event loop, which it does not stop or hold up: what nodes do meanwhile is not in it.

        It is one moment of all of them: what a node has said, and nobody has heard yet, is in it; a node that works is
        in it as far as it is, and goes on from there. Errors: `Invalid` for metadata that JSON cannot say;
        `RunUnfinished` while a snapshot is loaded, or was not loaded to its end; what opening a node meets.
        """
        if metadata is not None and not isinstance(cast("object", metadata), Mapping):
            raise Invalid("metadata is a dictionary", got=type(metadata).__name__)
        before = BeforeSnapshotEvent(agent=None, source=self, action="save", metadata=dict(metadata or {}))
        with span("repertory.snapshot.save", {**self.trace_attributes, "orchestrator.id": self.id}):
            fire_sync(self.hooks, before)
            state = await self._said()
            snapshot = snapshot_of(state, before.metadata, time.time(), ORCHESTRATOR)
            fire_sync(self.hooks, AfterSnapshotEvent(agent=None, source=self, action="save", snapshot=snapshot))
        return snapshot

    async def load_snapshot_async(self, snapshot: Mapping[str, Any]) -> SnapshotLoaded:
        """Go on from a snapshot: its run is the next run here, and each node's conversation is what it was then; nodes
        that had done nothing then begin anew. What was said until now stays in the history. Waits for calls that work,
        and returns when all of it is durable.

        The next call goes on with a run that owes work. Cancelled once it has begun, it is done to its end. When the
        process is killed on the way, or a node cannot be stored, calls raise `RunUnfinished` until the snapshot is
        loaded again, or `resume=False` begins another run. Errors: `SnapshotException` for a snapshot that was changed,
        truncated, or is of another version, kind or orchestrator; `AgentBusy` from within its run. Then nothing has
        changed. Besides those, what the store says.
        """
        with span("repertory.snapshot.load", {**self.trace_attributes, "orchestrator.id": self.id}):
            fields = read_orchestrator(snapshot)
            if fields.orchestrator_id != self.id:
                text = f"Snapshot orchestrator id mismatch: expected {self.id!r}, got {fields.orchestrator_id!r}"
                raise SnapshotException(text)
            shape = self.shape
            check_shape(self.id, fields, shape)
            async with self._opened() as session:
                if any(turn.agent is session.agent for turn in OPEN_TURNS.get()):
                    raise AgentBusy("a run is worked on: load the snapshot when it is over", orchestrator=self.id)
                fire_sync(self.hooks, BeforeSnapshotEvent(agent=None, source=self, action="load", snapshot=snapshot))
                await session.load_run(fields)
            loaded = SnapshotLoaded(
                fields=tuple(node for node in fields.nodes if node in shape.nodes),
                missing_nodes=tuple(node for node in fields.nodes if node not in shape.nodes),
            )
            event = AfterSnapshotEvent(agent=None, source=self, action="load", snapshot=snapshot, loaded=loaded)
            fire_sync(self.hooks, event)
        return loaded

    async def _said(self) -> Mapping[str, object]:
        active = self._working
        if active is not None:
            with suppress(ActorDead, Unavailable):  # The call that keeps it alive may be just over.
                return await active.save_run()
        async with self._opened() as session:
            return await session.save_run()

    def _blocking(self, function: Any, argument: object) -> object:
        if inside_event_loop():
            raise Invalid(f"inside an event loop await {function.__name__}", orchestrator=self.id)
        from repertory.app.blocking import blocking_host  # the event loop of sync code, loaded by the first sync call

        return blocking_host().run(function, argument)
