"""Keeping an agent's actors in one place at a time.

They live in the event loop of the call that brought them to life. A call in another loop, of another thread, would
bring a second set to life on the same conversation; it is refused while the first one lives.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from repertory.errors import AgentBusy
from repertory.forking import forget_in_children

if TYPE_CHECKING:
    from repertory.app.host.active_session import ActiveSession


class Claim:
    """Who has brought an agent to life. Safe from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._starting = False
        self._session: ActiveSession | None = None
        forget_in_children(self)

    def forget_parent(self) -> None:
        """In a forked child: nobody has."""
        self._lock, self._starting, self._session = threading.Lock(), False, None

    @property
    def session(self) -> ActiveSession | None:
        """The session that lives, if one does."""
        return self._session if self._session is not None and self._session.alive else None

    def take(self, agent_id: str) -> None:
        """Bring it to life now. Needs one `give_up`. Errors: `AgentBusy` when somebody else has."""
        with self._lock:
            if self._starting or self.session is not None:
                text = "the agent is at work in another event loop, or for another graph or swarm"
                raise AgentBusy(text, agent=agent_id)
            self._starting = True

    def holds(self, session: ActiveSession) -> None:
        """It lives."""
        self._session, self._starting = session, False

    def give_up(self) -> None:
        """It is at rest."""
        self._session, self._starting = None, False
