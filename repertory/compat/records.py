"""The records of sessions, and the class that users implement to keep them in their own database."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Self, cast

from repertory.core.json_bytes import decoded, decoded_value, encoded, encoded_value
from repertory.core.provider_parts import (
    as_ours_if_message,
    for_others,
    manager_for_others,
)
from repertory.core.snapshots.document import enveloped
from repertory.core.snapshots.location import AGENT_SCOPE
from repertory.errors import Invalid

# Source: the documented session layout; names, fields and defaults are those of the SDK whose users we serve.


class SessionType(StrEnum):
    """The kind of a session.

    Attributes:
        AGENT: A session of an agent.
    """

    AGENT = "AGENT"


def _now() -> str:
    return datetime.now(UTC).isoformat()


@dataclass
class _StoredRecord:
    def to_dict(self) -> dict[str, Any]:
        """The record as JSON; bytes are in it as marked base64."""
        return encoded(asdict(self))

    @classmethod
    def from_dict(cls, env: Mapping[str, Any]) -> Self:
        """The record from its JSON; unknown keys are left out.

        Args:
            env: The result of `to_dict`.
        """
        return cls.from_stored(decoded(env))

    @classmethod
    def from_stored(cls, values: Mapping[str, Any]) -> Self:
        """The record from a mapping whose bytes are decoded; unknown keys are left out."""
        names = {each.name for each in fields(cls)}
        return cls(**{name: value for name, value in values.items() if name in names})


@dataclass
class Session(_StoredRecord):
    """A session. Times are ISO 8601 in UTC, here and in the other records.

    Args:
        session_id: The id of the session.
        session_type: The kind of the session.
        created_at: The time of its creation, as ISO 8601 text.
        updated_at: The time of its last change, as ISO 8601 text.
    """

    session_id: str
    session_type: SessionType
    created_at: str = field(default_factory=_now)
    updated_at: str = field(default_factory=_now)


@dataclass
class SessionAgent(_StoredRecord):
    """An agent in a session. Everything in it is JSON.

    Args:
        agent_id: The id of the agent in its session.
        state: The agent's values, as JSON.
        conversation_manager_state: The result of the conversation manager's `get_state`.
        created_at: The time of its creation, as ISO 8601 text.
        updated_at: The time of its last change, as ISO 8601 text.
    """

    agent_id: str
    state: dict[str, Any]
    conversation_manager_state: dict[str, Any]
    _internal_state: dict[str, Any] = field(default_factory=dict[str, Any])
    created_at: str = field(default_factory=_now)
    updated_at: str = field(default_factory=_now)

    @property
    def internal_state(self) -> dict[str, Any]:
        """Data for Repertory's own use: the repository has to store it with the record."""
        return self._internal_state

    def initialize_internal_state(self, agent: Any) -> None:
        """Let an agent wait for the person for whom it waited when the record was made; its messages are those of then.
        Errors: those of `agent.load_snapshot`.

        Args:
            agent: The agent.
        """
        asked = self._internal_state.get("interrupt_state")
        if asked:
            agent.load_snapshot(enveloped(AGENT_SCOPE, {"interrupt_state": asked}, {}, time.time(), None))

    @classmethod
    def from_agent(cls, agent: Any) -> SessionAgent:
        """The record of an agent as it is now, without what waits for a person.

        Args:
            agent: The agent.

        Raises:
            Invalid: Without an id. Correct the argument.
        """
        if agent.agent_id is None:
            raise Invalid("agent_id needs to be defined")
        manager = getattr(agent, "conversation_manager", None)
        manager_state = {} if manager is None else cast("dict[str, Any]", manager_for_others(manager.get_state()))
        return cls(agent.agent_id, agent.state.get(), manager_state)


@dataclass
class SessionMessage(_StoredRecord):
    """A message of an agent. `message` may hold bytes.

    Args:
        message: The message.
        created_at: The time of its creation, as ISO 8601 text.
        updated_at: The time of its last change, as ISO 8601 text.
    """

    message: dict[str, Any]
    message_id: int
    """Messages are numbered from 0, in order."""
    redact_message: dict[str, Any] | None = None
    """The message to show instead, when it was redacted; `message` is the same then."""
    created_at: str = field(default_factory=_now)
    updated_at: str = field(default_factory=_now)

    def to_message(self) -> dict[str, Any]:
        """The message to show."""
        message = self.message if self.redact_message is None else self.redact_message
        return cast("dict[str, Any]", as_ours_if_message(message))

    @classmethod
    def from_message(cls, message: Any, index: int) -> SessionMessage:
        """The record of a message; `index` is its number.

        Args:
            message: The message.
            index: The number of the message, from 0.
        """
        return cls(cast("dict[str, Any]", for_others(message)), index)


@dataclass
class SessionMultiAgent:
    """A graph or swarm in a session, with its run.

    Args:
        id: The id of the graph or swarm.
    """

    id: str
    state: dict[str, Any]
    """The run, as JSON."""

    def serialize_state(self) -> dict[str, Any]:
        """The JSON to store, which `read_multi_agent` returns."""
        return self.state


class SessionRepository:
    """A database of sessions. Implement every method, either as a function or as a coroutine function; those of graphs
    and swarms when there are any.

    Functions run in worker threads, one at a time. Their exceptions reach the agent's caller as `SessionException`.
    Records have to be stored whole, with all keys, and returned equal. A repository has no leases: two processes must
    not use one session at the same time.
    """

    def create_session(self, session: Session) -> Session | Awaitable[Session] | None:
        """Store a new session.

        Args:
            session: The session.
        """
        raise self._missing("create_session")

    def read_session(self, session_id: str) -> Session | Awaitable[Session | None] | None:
        """The session; None when there is none.

        Args:
            session_id: The id of the session.
        """
        raise self._missing("read_session")

    def create_agent(self, session_id: str, session_agent: SessionAgent) -> Awaitable[None] | None:
        """Store a new agent of a session.

        Args:
            session_id: The id of the session.
            session_agent: The agent's record.
        """
        raise self._missing("create_agent")

    def read_agent(self, session_id: str, agent_id: str) -> SessionAgent | Awaitable[SessionAgent | None] | None:
        """The agent; None when there is none.

        Args:
            session_id: The id of the session.
            agent_id: The id of the agent in its session.
        """
        return None

    def update_agent(self, session_id: str, session_agent: SessionAgent) -> Awaitable[None] | None:
        """Replace the agent's record.

        Args:
            session_id: The id of the session.
            session_agent: The agent's record.
        """
        raise self._missing("update_agent")

    def create_message(self, session_id: str, agent_id: str, session_message: SessionMessage) -> Awaitable[None] | None:
        """Store a new message of an agent.

        Args:
            session_id: The id of the session.
            agent_id: The id of the agent in its session.
            session_message: The message's record.
        """
        raise self._missing("create_message")

    def read_message(
        self, session_id: str, agent_id: str, message_id: int
    ) -> SessionMessage | Awaitable[SessionMessage | None] | None:
        """The message of that number; None when there is none.

        Args:
            session_id: The id of the session.
            agent_id: The id of the agent in its session.
            message_id: The number of the message, from 0.
        """
        raise self._missing("read_message")

    def update_message(self, session_id: str, agent_id: str, session_message: SessionMessage) -> Awaitable[None] | None:
        """Replace the message's record: its content was redacted, and must be erased everywhere.

        Args:
            session_id: The id of the session.
            agent_id: The id of the agent in its session.
            session_message: The message's record.
        """
        raise self._missing("update_message")

    def list_messages(
        self, session_id: str, agent_id: str, limit: int | None = None, offset: int = 0
    ) -> Sequence[SessionMessage] | Awaitable[Sequence[SessionMessage]]:
        """The messages of an agent, oldest first, without the first `offset` ones, at most `limit`.

        Args:
            session_id: The id of the session.
            agent_id: The id of the agent in its session.
            limit: The most that is returned.
            offset: The number of the oldest messages that are left out.
        """
        raise self._missing("list_messages")

    def create_multi_agent(self, session_id: str, multi_agent: SessionMultiAgent) -> Awaitable[None] | None:
        """Store the run of a graph or swarm that has none yet. Only needed with graphs or swarms, like the next two.

        Args:
            session_id: The id of the session.
            multi_agent: The record of the graph or swarm.
        """
        raise self._missing("create_multi_agent")

    def read_multi_agent(
        self, session_id: str, multi_agent_id: str
    ) -> dict[str, Any] | Awaitable[dict[str, Any] | None] | None:
        """The last stored run; None when there is none.

        Args:
            session_id: The id of the session.
            multi_agent_id: The id of the graph or swarm.
        """
        raise self._missing("read_multi_agent")

    def update_multi_agent(self, session_id: str, multi_agent: SessionMultiAgent) -> Awaitable[None] | None:
        """Replace the run's record.

        Args:
            session_id: The id of the session.
            multi_agent: The record of the graph or swarm.
        """
        raise self._missing("update_multi_agent")

    def _missing(self, method: str) -> Invalid:
        return Invalid(f"a session repository has a method {method}", repository=type(self).__name__)


def encode_bytes_values(obj: Any) -> Any:
    """The value as JSON: bytes become dictionaries of marked base64."""
    return encoded_value(obj)


def decode_bytes_values(obj: Any) -> Any:
    """The value from its JSON."""
    return decoded_value(obj)
