"""What it takes to bring one session to life: settings and components, chosen but not started."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from repertory.actors.agent import CallSettings
    from repertory.actors.persister import MemoryJournal
    from repertory.actors.turn_driver import AgentParts, AgentSettings
    from repertory.app.sessions import SessionPlace
    from repertory.core.window.plan import WindowManager


@dataclass(frozen=True, slots=True, kw_only=True)
class Blueprint:
    """One agent in one session."""

    agent: AgentSettings
    calls: CallSettings
    parts: AgentParts
    manager: WindowManager
    sessions: SessionPlace | None = None
    """Where the session is kept; None keeps it in `memory` only."""
    memory: MemoryJournal
    place: str = "memory"
    """Tells conversations apart that are kept in memory only."""
    takeover: bool = False
    prepare: Callable[[], Awaitable[None]] | None = None
    """Awaited before the session comes to life."""
    opened: Callable[[], None] | None = None
    """Called when it has."""

    @property
    def key(self) -> tuple[str, str, str]:
        """The same for every blueprint of the same agent in the same stored session."""
        place = self.sessions.key if self.sessions is not None else self.place
        return place, self.agent.session_id, self.agent.agent_id
