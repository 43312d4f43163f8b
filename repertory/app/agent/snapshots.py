"""Snapshots of an agent, and of plugins and nodes that save and load their own data."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, cast, runtime_checkable

from repertory.actors.hooks.calls import fire_sync
from repertory.actors.hooks.events import AfterSnapshotEvent, BeforeSnapshotEvent
from repertory.app.agent.conversation_managers import restore_state
from repertory.app.agent.persisted import Snapshot
from repertory.app.tracebacks import span, trace_ids
from repertory.core.messages import repair
from repertory.core.snapshots.fields import SnapshotFields
from repertory.core.snapshots.portable import read_fields, snapshot_of
from repertory.core.turns.interrupt_state import read_state, snapshot_state
from repertory.errors import Invalid, RepertoryError, SnapshotException
from repertory.logs import WARNING, note
from repertory.runtime.faults import failure_of, repr_of

if TYPE_CHECKING:
    from repertory.actors.journal import ReadModel
    from repertory.app.agent.conversation_managers import ConversationManager
    from repertory.core.messages import Json

_log = logging.getLogger("repertory.sessions")


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotLoaded:
    """The outcome of loading a snapshot."""

    fields: tuple[str, ...]
    """The fields of the snapshot, which the agent now has; of an orchestrator, its nodes."""
    missing_tools: tuple[str, ...] = ()
    """Enabled tools of the snapshot that this agent does not have."""
    missing_components: tuple[str, ...] = ()
    """Plugins with data in the snapshot that this agent does not have."""
    missing_nodes: tuple[str, ...] = ()
    """Nodes of the snapshot that this orchestrator does not have."""


def take_snapshot(
    agent: Any, read_model: ReadModel, wanted: Collection[str], metadata: Mapping[str, Any] | None
) -> Snapshot:
    """The snapshot of these fields. Errors: `Invalid`, `SnapshotException`, and those of guards."""
    if metadata is not None and not isinstance(cast("object", metadata), Mapping):
        raise Invalid("metadata is a dictionary", got=type(metadata).__name__)
    with span("repertory.snapshot.save", {**agent.trace_attributes, "gen_ai.agent.id": agent.agent_id}):
        before = BeforeSnapshotEvent(agent=agent, action="save", metadata={**trace_ids(), **(metadata or {})})
        fire_sync(agent.hooks, before)
        manager = agent.conversation_manager
        components = saved_components(agent) if "components" in wanted else {}
        now = read_model.now  # One value, so that messages and interrupts agree even beside a running turn.
        fields: dict[str, object] = {
            "messages": now.messages(),
            "state": agent.state.get(),
            "conversation_manager_state": {**manager.get_state(), **now.manager_state, "__name__": manager.name},
            "interrupt_state": snapshot_state(now.pending_tools),
            "model_state": {},
            "system_prompt": agent.spec().parts.system_prompt,
            "enabled_tools": agent.enabled_tools,
            "components": components,
        }
        chosen = {name: value for name, value in fields.items() if name in wanted}
        if not components:
            chosen.pop("components", None)
        snapshot = Snapshot(snapshot_of(chosen, before.metadata, time.time()))
        fire_sync(agent.hooks, AfterSnapshotEvent(agent=agent, action="save", snapshot=snapshot))
    return snapshot


def show_snapshot(
    agent: Any, read_model: ReadModel, snapshot: object, overrides: Mapping[str, object] | None
) -> tuple[SnapshotFields, SnapshotLoaded]:
    """Show the snapshot in the agent. Returns what has still to be stored in its conversation, and the outcome."""
    with span("repertory.snapshot.load", {**agent.trace_attributes, "gen_ai.agent.id": agent.agent_id}):
        fields = read_fields(snapshot, overrides)
        messages = read_model.messages() if fields.messages is None else repair(fields.messages)
        pending = read_state(fields.interrupts, messages[-1] if messages else None)
        fire_sync(agent.hooks, BeforeSnapshotEvent(agent=agent, action="load", snapshot=snapshot))
        missing_components = load_components(agent, fields.components)
        missing = enable_tools(agent, fields)
        if "system_prompt" in fields.names:
            agent.system_prompt = fields.system_prompt
        manager = fields.manager
        state = {key: value for key, value in (manager or {}).items() if key not in ("__name__", "summary_message")}
        read_model.show(messages=messages, pending=pending, manager_state=None if manager is None else state)
        if manager is not None:
            _restore_manager(agent.conversation_manager, manager.get("removed_message_count"), state)
        if fields.state is not None:
            agent.state.replace(fields.state)
        loaded = SnapshotLoaded(
            fields=tuple(sorted(fields.names)),
            missing_tools=missing,
            missing_components=missing_components,
        )
        fire_sync(agent.hooks, AfterSnapshotEvent(agent=agent, action="load", snapshot=snapshot, loaded=loaded))
    return fields, loaded


def _restore_manager(manager: ConversationManager, removed: object, state: Mapping[str, Json]) -> None:
    try:
        restore_state(manager, removed if isinstance(removed, int) else 0, state)
    except BaseException as raised:  # noqa: BLE001 - A manager may be the user's code, and may begin anew.
        error = failure_of(raised)
        note(_log, WARNING, "a conversation manager could not go on from a snapshot", error, manager=manager.name)


def enable_tools(agent: Any, fields: SnapshotFields) -> tuple[str, ...]:
    """Enable the tools that a snapshot names, if it names any; returns those that the agent does not have."""
    if "enabled_tools" not in fields.names:
        return ()
    known, names = set(agent.tool_registry.now.names), fields.enabled_tools
    agent.enabled_tools = None if names is None else [name for name in names if name in known]
    return tuple(name for name in names or () if name not in known)


@runtime_checkable
class Snapshottable(Protocol):
    """An object whose state belongs in snapshots: agents, orchestrators, and plugins that own data.

    An agent's snapshot holds those of its plugins that have these methods, under the plugin's name; an orchestrator's
    holds those of its nodes.
    """

    def save_snapshot(self) -> Mapping[str, Any]:
        """The data to keep, as JSON. It must not change afterwards."""
        ...

    def load_snapshot(self, snapshot: Any) -> object:
        """Restore the data that `save_snapshot` gave, perhaps in another process and an earlier release.

        Args:
            snapshot: The snapshot that `save_snapshot` returned.
        """
        ...


def saved_by(name: str, component: Snapshottable) -> dict[str, Json]:
    """The component's data. Errors: `SnapshotException` for whatever it raises."""
    try:
        return dict(component.save_snapshot())
    except RepertoryError:
        raise
    except BaseException as error:
        failure_of(error)  # What is none goes on.
        raise SnapshotException("this gave no snapshot", of=name, cause=repr_of(error)) from error


def loaded_by(name: str, component: Snapshottable, data: Json) -> None:
    """Restore the component's data. Errors: `SnapshotException` for whatever it raises."""
    try:
        component.load_snapshot(data)
    except RepertoryError:
        raise
    except BaseException as error:
        failure_of(error)  # What is none goes on.
        raise SnapshotException("this did not take its snapshot", of=name, cause=repr_of(error)) from error


def components(agent: Any) -> Iterator[tuple[str, Snapshottable]]:
    """The agent's plugins that are `Snapshottable`, by name."""
    for plugin in agent.plugins:
        name = plugin.name
        if isinstance(plugin, Snapshottable):
            yield name, plugin


def saved_components(agent: Any) -> dict[str, Json]:
    return {name: saved_by(name, component) for name, component in components(agent)}


def load_components(agent: Any, data: Mapping[str, Json]) -> tuple[str, ...]:
    """Restore the data of the agent's plugins; returns the names of those that it does not have. Errors:
    `SnapshotException`.
    """
    found = dict(components(agent))
    for name, stored in data.items():
        if name in found:
            loaded_by(name, found[name], stored)
    return tuple(name for name in data if name not in found)
