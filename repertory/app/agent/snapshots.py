"""Taking snapshots of an agent, and what loading one does to it at once."""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from repertory.actors.hooks.calls import fire_sync
from repertory.actors.hooks.events import AfterSnapshotEvent, BeforeSnapshotEvent
from repertory.app.agent.conversation_managers import restore_state
from repertory.app.agent.snapshottable import load_components, saved_components
from repertory.app.host.event_loop import inside_event_loop
from repertory.app.host.tracing import span
from repertory.core.interrupt_state import read_state, snapshot_state
from repertory.core.messages import repair
from repertory.core.snapshots.fields import Preset, SnapshotFields, fields_wanted
from repertory.core.snapshots.portable import Snapshot, read_fields, snapshot_of
from repertory.errors import AgentBusy, Invalid, NotReady

if TYPE_CHECKING:
    from repertory.actors.mirror import Mirror
    from repertory.app.agent.life import AgentLife
    from repertory.core.messages import Json
    from repertory.core.state import AgentState

_log = logging.getLogger("repertory.sessions")


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotLoaded:
    """What loading a snapshot has done."""

    fields: tuple[str, ...]
    """The fields that the snapshot held, which the agent has now; of an orchestrator, its nodes."""
    missing_tools: tuple[str, ...] = ()
    """Tools that were enabled and that this agent does not have."""
    missing_components: tuple[str, ...] = ()
    """Plugins whose data the snapshot holds and that this agent does not have."""
    missing_nodes: tuple[str, ...] = ()
    """Nodes that the snapshot holds and that this orchestrator does not have."""


class Moment(NamedTuple):
    """An agent as it is now."""

    agent: Any
    """The `Agent`."""
    mirror: Mirror
    state: AgentState
    life: AgentLife
    opened: bool


class SnapshotMethods(ABC):
    """What an `Agent` does with snapshots."""

    @property
    @abstractmethod
    def _moment(self) -> Moment:
        """What of it is looked at and changed."""

    @abstractmethod
    async def ready(self) -> None:
        """Open the session, and go on from what was loaded."""

    def save_snapshot(
        self,
        metadata: Mapping[str, Any] | None = None,
        *,
        preset: Preset = "session",
        include: Collection[str] | None = None,
        exclude: Collection[str] | None = None,
    ) -> Snapshot:
        """The agent as it is now, as JSON; `metadata` is kept in it. Also within a turn, from hooks and tools.

        Fields: messages, state, conversation_manager_state, interrupt_state and model_state, the data of plugins that
        are `Snapshottable`, `enabled_tools` when it was set, and those to `include` (`system_prompt`), without those to
        `exclude`. Errors: `Invalid` for names and values that make no sense; `NotReady` before the session was opened.
        """
        told = () if self._moment.agent.enabled_tools is None else ("enabled_tools",)
        return self._save(fields_wanted(preset, (*told, "components", *(include or ())), exclude), metadata)

    def take_snapshot(
        self,
        *,
        preset: Preset | None = None,
        include: Collection[str] | None = None,
        exclude: Collection[str] | None = None,
        app_data: Mapping[str, Any] | None = None,
    ) -> Snapshot:
        """`save_snapshot` as the SDK's newest release spells it: what preset and `include` name, and nothing else.

        Errors: `SnapshotException` when that is nothing; those of `save_snapshot`.
        """
        return self._save(fields_wanted(preset, include, exclude), app_data)

    def _save(self, wanted: frozenset[str], metadata: Mapping[str, Any] | None) -> Snapshot:
        moment = self._moment
        check_open(moment.opened)
        return _save(moment, wanted, metadata)

    def load_snapshot(
        self, snapshot: Mapping[str, Any], *, overrides: Mapping[str, Any] | None = None
    ) -> SnapshotLoaded:
        """Go on from a snapshot. Fields that it does not hold stay as they are; what was said until now stays in the
        history. `overrides`: other values for some fields, or, by `state.KEY`, for single values of the state.

        `messages`, `state` and what the conversation manager keeps are those of the snapshot at once. The session has
        it when this returns; inside an event loop, where nothing can be waited for here, when the next call begins:
        `load_snapshot_async` waits. Errors: `SnapshotException` for one that was changed, truncated, or is of another
        version or kind; `Invalid` for overrides that make no sense; `AgentBusy` from within a turn. Then nothing has
        changed.
        """
        loaded = self._load_snapshot(snapshot, overrides)
        if self._moment.agent.session_manager is not None and not inside_event_loop():
            from repertory.app.host.blocking import blocking_host

            blocking_host().run(self.ready)
        return loaded

    async def load_snapshot_async(
        self, snapshot: Mapping[str, Any], *, overrides: Mapping[str, Any] | None = None
    ) -> SnapshotLoaded:
        """`load_snapshot` that returns when the session has it. Cancelled, the next call sees to that."""
        loaded = self._load_snapshot(snapshot, overrides)
        await self.ready()
        return loaded

    def _load_snapshot(self, snapshot: object, overrides: Mapping[str, Any] | None) -> SnapshotLoaded:
        moment = self._moment
        if moment.life.in_a_turn:
            raise AgentBusy("a turn is running: load the snapshot when it is over", agent=moment.agent.agent_id)
        fields, loaded = _load(moment, snapshot, overrides)
        moment.life.loads.append(fields)
        return loaded


def check_open(opened: bool) -> None:
    """Errors: `NotReady` before the session was opened."""
    if not opened:
        raise NotReady("the session is not open yet: await agent.ready(), enter `async with agent`, or make a call")


def _save(moment: Moment, wanted: Collection[str], metadata: Mapping[str, Any] | None) -> Snapshot:
    agent, mirror = moment.agent, moment.mirror
    if metadata is not None and not isinstance(cast("object", metadata), Mapping):
        raise Invalid("metadata is a dictionary", got=type(metadata).__name__)
    before = BeforeSnapshotEvent(agent=agent, action="save", metadata=dict(metadata or {}))
    with span("repertory.snapshot.save", {"agent.id": agent.agent_id}):
        fire_sync(agent.hooks, before)
        manager = agent.conversation_manager
        components = saved_components(agent) if "components" in wanted else {}
        fields: dict[str, object] = {
            "messages": mirror.messages(),
            "state": moment.state.get(),
            "conversation_manager_state": {**manager.get_state(), **mirror.manager_state, "__name__": manager.name},
            "interrupt_state": snapshot_state(mirror.standing),
            "model_state": {},
            "system_prompt": agent.system_prompt,
            "enabled_tools": agent.enabled_tools,
            "components": components,
        }
        chosen = {name: value for name, value in fields.items() if name in wanted}
        if not components:
            chosen.pop("components", None)
        snapshot = snapshot_of(chosen, before.metadata, time.time())
        fire_sync(agent.hooks, AfterSnapshotEvent(agent=agent, action="save", snapshot=snapshot))
    return snapshot


def _load(
    moment: Moment, snapshot: object, overrides: Mapping[str, object] | None
) -> tuple[SnapshotFields, SnapshotLoaded]:
    """Make the agent look like the snapshot: what has to become part of its conversation, and what was done."""
    agent = moment.agent
    with span("repertory.snapshot.load", {"agent.id": agent.agent_id}):
        fields = read_fields(snapshot, overrides)
        messages = moment.mirror.messages() if fields.messages is None else repair(fields.messages)
        standing = read_state(fields.interrupts, messages[-1] if messages else None)
        fire_sync(agent.hooks, BeforeSnapshotEvent(agent=agent, action="load", snapshot=snapshot))
        missing_components = load_components(agent, fields.components)
        missing = enable_tools(agent, fields)
        if "system_prompt" in fields.names:
            agent.system_prompt = fields.system_prompt
        if fields.messages is not None:
            moment.mirror.show(messages)
        if fields.manager is not None:
            _restore_manager(moment, fields.manager)
        moment.mirror.standing = standing
        if fields.state is not None:
            moment.state.replace(fields.state)
        loaded = SnapshotLoaded(
            fields=tuple(sorted(fields.names)),
            missing_tools=missing,
            missing_components=missing_components,
        )
        fire_sync(agent.hooks, AfterSnapshotEvent(agent=agent, action="load", snapshot=snapshot, loaded=loaded))
    return fields, loaded


def _restore_manager(moment: Moment, said: Mapping[str, Json]) -> None:
    """Have the conversation manager go on from what a snapshot says of it."""
    mirror, manager, removed = moment.mirror, moment.agent.conversation_manager, said.get("removed_message_count")
    mirror.manager_state = {key: value for key, value in said.items() if key not in ("__name__", "summary_message")}
    try:
        restore_state(manager, removed if isinstance(removed, int) else 0, mirror.manager_state)
    except Exception as error:  # noqa: BLE001 - A manager may be anybody's code, and may begin anew.
        _log.warning("a conversation manager could not go on from a snapshot manager=%r", manager.name, exc_info=error)


def enable_tools(agent: Any, fields: SnapshotFields) -> tuple[str, ...]:
    """Enable the tools that a snapshot names, if it names any; gives those that the agent does not have."""
    if "enabled_tools" not in fields.names:
        return ()
    known, names = set(agent.tool_names), fields.enabled_tools
    agent.enabled_tools = None if names is None else [name for name in names if name in known]
    return tuple(name for name in names or () if name not in known)
