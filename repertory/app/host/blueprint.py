"""What it takes to bring one session to life: settings and components, chosen but not started."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from repertory.actors.call import deadline as caller_deadline
from repertory.app.host.claim import Claim

if TYPE_CHECKING:
    from repertory.actors.agent import CallSettings
    from repertory.actors.call import Busy
    from repertory.actors.context import AgentParts, AgentSettings
    from repertory.actors.memory.consumer import MemoryParts
    from repertory.actors.persister import MemoryJournal
    from repertory.app.agent.conversation_managers import ConversationManager
    from repertory.app.host.active_session import ActiveSession
    from repertory.app.sessions.sessions import SessionPlace
    from repertory.core.outage import StorePatience


@dataclass(frozen=True, slots=True, kw_only=True)
class Blueprint:
    """One agent in one session."""

    agent: AgentSettings
    calls: CallSettings
    parts: AgentParts
    manager: ConversationManager
    sessions: SessionPlace | None = None
    """Where the session is kept; None keeps it in `memory` only."""
    memory: MemoryJournal
    own: bool = False
    """Whether the conversation is the agent's alone: nobody else can find it, and the agent itself keeps it."""
    remembers: MemoryParts | None = None
    """What the agent remembers with across conversations."""
    takeover: bool = False
    patience: StorePatience | None = None
    """What the agent wants in the place of its host's."""
    busy_by: float = math.inf
    """Until when the call that opens the session waits for another process at most, by the event loop's clock."""
    prepare: Callable[[], Awaitable[None]] | None = None
    """Awaited before the session comes to life."""
    opened: Callable[[ActiveSession], None] | None = None
    """Called when it has."""
    claim: Claim = field(default_factory=Claim)
    """What keeps the agent from being brought to life twice at a time."""

    def waiting(self, busy: Busy | None, deadline: float) -> Blueprint:
        """The same for one call, which waits for another process that has the session: not at all when it is refused
        while a turn runs, else until its deadline at most, and that of the call that it is a part of.
        """
        by = -math.inf if (busy or self.calls.busy) == "reject" else min(deadline, caller_deadline())
        return self if by == self.busy_by else replace(self, busy_by=by)

    @property
    def key(self) -> tuple[str, str, str]:
        """The same for every blueprint of the same agent in the same stored session."""
        place = self.sessions.key if self.sessions is not None else "memory"
        return place, self.agent.session_id, self.agent.agent_id
