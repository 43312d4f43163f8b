"""The port by which calls reach other runtimes. The kernel knows no implementation of it; `cluster` has one."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from repertory.actors.call import Invocation
    from repertory.app.host.admission import AdmissionQueue
    from repertory.app.host.call_forms import SessionQuestion
    from repertory.app.host.host import Host
    from repertory.app.host.session import SessionSpec
    from repertory.app.sessions.sessions import SessionLocation
    from repertory.backends.peer_ports import QueuedCall
    from repertory.backends.ports import OutputSchema
    from repertory.core.result import AgentResult, TurnEvent


class PeerSession(Protocol):
    """A session of an agent that this runtime has, as calls between runtimes need it."""

    @property
    def spec(self) -> SessionSpec: ...

    @property
    def schema(self) -> OutputSchema | None:
        """The agent's own output schema."""
        ...

    async def read_here(self, what: SessionQuestion) -> object:
        """The answer to a question about the session. Errors: those of opening it."""
        ...


class CallRouter(Protocol):
    """The way of a runtime's calls to the runtimes that its sessions are in. For one event loop."""

    admission: AdmissionQueue
    """The admission of calls, which knows how full this runtime is."""
    name: str
    """The name of this runtime among its peers."""

    async def open(self, place: SessionLocation) -> None:
        """Join. Errors: `Invalid` for a place that cannot be shared, or an address; those of place and address."""

    @property
    def peer_count(self) -> int:
        """The number of other runtimes that are known."""
        ...

    async def invoke(self, session: PeerSession, invocation: Invocation) -> AgentResult:
        """Run a turn, wherever the session is."""
        ...

    def stream(self, session: PeerSession, invocation: Invocation) -> AsyncGenerator[TurnEvent]:
        """Run a turn as `invoke` does, with its events. Leaving it early cancels the turn."""
        ...

    async def ask(self, session: PeerSession, what: SessionQuestion) -> object:
        """Ask the owner of the session, or open it here. Errors: those of opening it; as for calls."""
        ...

    async def has_owner(self, session_id: str) -> bool:
        """True if a process has the session open. Errors: `Unavailable`."""
        ...

    def check_for(self, posted: QueuedCall) -> None:
        """Errors: `Throttled` for a posted call that another living peer is to make."""

    def changed(self) -> None:
        """Tell the peers soon that this runtime has another agent."""


class Sharing(Protocol):
    """The settings with which a runtime shares its sessions, such as `Peers`."""

    def router(
        self, host: Host, session_of: Callable[[str, str], PeerSession | None], agents: Callable[[], frozenset[str]]
    ) -> CallRouter:
        """`session_of`: agent and session id to the session; None for an agent that this runtime does not have."""
        ...
