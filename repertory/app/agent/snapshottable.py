"""Objects that say themselves what belongs into a snapshot: plugins of agents, and nodes of orchestrators."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from repertory.errors import RepertoryError, SnapshotException

if TYPE_CHECKING:
    from repertory.core.messages import Json


@runtime_checkable
class Snapshottable(Protocol):
    """Something whose state belongs into snapshots: agents, orchestrators, and objects that own data.

    An agent's snapshot holds those of its plugins that have these methods, under the plugin's name; an orchestrator's
    holds those of its nodes.
    """

    def save_snapshot(self) -> Mapping[str, Any]:
        """What to keep, as JSON. It must not change afterwards."""
        ...

    def load_snapshot(self, snapshot: Any) -> object:
        """Go on from what `save_snapshot` gave, perhaps in another process and an earlier release."""
        ...


def saved_by(name: str, component: Snapshottable) -> dict[str, Json]:
    """What it keeps. Errors: `SnapshotException` for whatever it raises."""
    try:
        return dict(component.save_snapshot())
    except RepertoryError:
        raise
    except Exception as error:
        raise SnapshotException("this gave no snapshot", of=name, cause=repr(error)) from error


def loaded_by(name: str, component: Snapshottable, data: Json) -> None:
    """Give it back what it kept. Errors: `SnapshotException` for whatever it raises."""
    try:
        component.load_snapshot(data)
    except RepertoryError:
        raise
    except Exception as error:
        raise SnapshotException("this did not take its snapshot", of=name, cause=repr(error)) from error


def components(agent: Any) -> Iterator[tuple[str, Snapshottable]]:
    """The plugins of an agent that own data, by name."""
    for plugin in agent.plugins:
        name = plugin.name
        if isinstance(plugin, Snapshottable):
            yield name, plugin


def saved_components(agent: Any) -> dict[str, Json]:
    """What the plugins of an agent keep. Errors: `SnapshotException`."""
    return {name: saved_by(name, component) for name, component in components(agent)}


def load_components(agent: Any, data: Mapping[str, Json]) -> tuple[str, ...]:
    """Give the plugins of an agent back what they kept; gives the names of those that it does not have. Errors:
    `SnapshotException`.
    """
    found = dict(components(agent))
    for name, kept in data.items():
        if name in found:
            loaded_by(name, found[name], kept)
    return tuple(name for name in data if name not in found)
