"""What users implement to keep sessions in a database of their own, and the records that it is given.

Source: the documented session layout; names, fields and defaults are those of the SDK whose users we serve.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypeVar

from repertory.errors import Invalid

if TYPE_CHECKING:
    from collections.abc import Awaitable, Sequence

Made = TypeVar("Made")


class SessionType(StrEnum):
    """What a session holds."""

    AGENT = "AGENT"


def _now() -> str:
    return datetime.now(UTC).isoformat()


@dataclass
class Session:
    """A session. Times are ISO 8601 in UTC, here and in the other records."""

    session_id: str
    session_type: SessionType
    created_at: str = field(default_factory=_now)
    updated_at: str = field(default_factory=_now)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Session:
        """The record from a mapping; what it does not know is left out."""
        return _from_mapping(cls, values)


@dataclass
class SessionAgent:
    """An agent in a session. Everything in it is JSON."""

    agent_id: str
    state: dict[str, Any]
    conversation_manager_state: dict[str, Any]
    _internal_state: dict[str, Any] = field(default_factory=dict[str, Any])
    created_at: str = field(default_factory=_now)
    updated_at: str = field(default_factory=_now)

    @property
    def internal_state(self) -> dict[str, Any]:
        """What only we read: whoever keeps the record keeps this, too."""
        return self._internal_state

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> SessionAgent:
        """The record from a mapping; what it does not know is left out."""
        return _from_mapping(cls, values)


@dataclass
class SessionMessage:
    """A message of an agent. `message` may hold bytes."""

    message: dict[str, Any]
    message_id: int
    """The messages are numbered from 0, in order."""
    redact_message: dict[str, Any] | None = None
    """What is shown instead, when the message was redacted; `message` is the same then."""
    created_at: str = field(default_factory=_now)
    updated_at: str = field(default_factory=_now)

    def to_message(self) -> dict[str, Any]:
        """The message as it is shown."""
        return self.message if self.redact_message is None else self.redact_message

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> SessionMessage:
        """The record from a mapping; what it does not know is left out."""
        return _from_mapping(cls, values)


@dataclass
class SessionMultiAgent:
    """A graph or swarm in a session: how far its run is."""

    id: str
    state: dict[str, Any]
    """The run, as JSON."""

    def serialize_state(self) -> dict[str, Any]:
        """What is to be kept, and what `read_multi_agent` gives back."""
        return self.state


class SessionRepository:
    """Where sessions are kept. Implement every method, either as a function or as a coroutine function; those of graphs
    and swarms when there are any.

    Functions run in worker threads, one at a time. Whatever they raise reaches the caller of the agent as
    `SessionException`. Records are to be kept whole, whatever stands in them, and given back equal. A repository knows
    no leases: two processes must not use one session at the same time.
    """

    def create_session(self, session: Session) -> Session | Awaitable[Session] | None:
        """Keep a new session."""
        raise self._missing("create_session")

    def read_session(self, session_id: str) -> Session | Awaitable[Session | None] | None:
        """The session; None when there is none."""
        raise self._missing("read_session")

    def create_agent(self, session_id: str, session_agent: SessionAgent) -> Awaitable[None] | None:
        """Keep a new agent of a session."""
        raise self._missing("create_agent")

    def read_agent(self, session_id: str, agent_id: str) -> SessionAgent | Awaitable[SessionAgent | None] | None:
        """The agent; None when there is none."""
        return None

    def update_agent(self, session_id: str, session_agent: SessionAgent) -> Awaitable[None] | None:
        """Keep the agent as it is now."""
        raise self._missing("update_agent")

    def create_message(self, session_id: str, agent_id: str, session_message: SessionMessage) -> Awaitable[None] | None:
        """Keep a new message of an agent."""
        raise self._missing("create_message")

    def read_message(
        self, session_id: str, agent_id: str, message_id: int
    ) -> SessionMessage | Awaitable[SessionMessage | None] | None:
        """The message of that number; None when there is none."""
        raise self._missing("read_message")

    def update_message(self, session_id: str, agent_id: str, session_message: SessionMessage) -> Awaitable[None] | None:
        """Keep the message as it is now: its content was redacted, and must not be kept anywhere."""
        raise self._missing("update_message")

    def list_messages(
        self, session_id: str, agent_id: str, limit: int | None = None, offset: int = 0
    ) -> Sequence[SessionMessage] | Awaitable[Sequence[SessionMessage]]:
        """The messages of an agent, oldest first, without the first `offset` ones, at most `limit`."""
        raise self._missing("list_messages")

    def create_multi_agent(self, session_id: str, multi_agent: SessionMultiAgent) -> Awaitable[None] | None:
        """Keep the run of a graph or swarm that has none yet. Only for who uses these, like the next two."""
        raise self._missing("create_multi_agent")

    def read_multi_agent(
        self, session_id: str, multi_agent_id: str
    ) -> dict[str, Any] | Awaitable[dict[str, Any] | None] | None:
        """What was kept of it last; None when there is nothing."""
        raise self._missing("read_multi_agent")

    def update_multi_agent(self, session_id: str, multi_agent: SessionMultiAgent) -> Awaitable[None] | None:
        """Keep the run as it is now."""
        raise self._missing("update_multi_agent")

    def _missing(self, method: str) -> Invalid:
        return Invalid(f"a session repository has a method {method}", repository=type(self).__name__)


def _from_mapping(made: type[Made], values: Mapping[str, Any]) -> Made:
    names = {each.name for each in fields(made)}  # type: ignore[arg-type]
    return made(**{name: value for name, value in values.items() if name in names})
