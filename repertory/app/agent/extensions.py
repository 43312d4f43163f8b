"""Makers of parts of agents and graphs from other folders: the front door has them, and their first use loads them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from repertory.actors.hooks.events import HookProvider, HookRegistry
    from repertory.app.agent.conversation_managers import ManagerChoice
    from repertory.app.host.life import SessionLife
    from repertory.app.host.plugins import Plugin
    from repertory.app.host.session import SessionSpec
    from repertory.app.sessions.sessions import SessionPlacement


class FollowingManager(Protocol):
    """A session manager that follows an agent or an orchestrator by its hooks, and stores the conversation itself."""

    manager: Any

    def register_hooks(self, registry: HookRegistry) -> None: ...
    async def restore(self, event: Any) -> None: ...
    def life(self, name: str, spec: Callable[[], SessionSpec], orchestrator: Any) -> SessionLife: ...


class WatchedTools(Protocol):
    """The tools of the files in a folder."""

    def changed(self) -> list[object]: ...
    async def renew(self, register: Callable[[object], None]) -> None: ...


class Extensions(Protocol):
    """The makers of an agent's optional parts."""

    tool_folder: Callable[[Path], WatchedTools]
    intervention_registry: Callable[[Sequence[Any]], HookProvider]
    foreign_tools: Callable[[object], list[object] | None]
    managed_context: Callable[[object, ManagerChoice, Sequence[Plugin]], tuple[ManagerChoice, Sequence[Plugin]]]
    hooked_or_placed: Callable[..., tuple[SessionPlacement | None, FollowingManager | None]]


made_by: Extensions
"""The front door, which is there before any other module of the package."""
