"""Those whose snapshots a store looks after, agents or orchestrators, and what is done for them in the background."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

import anyio

from repertory.core.outage import own_errors
from repertory.errors import LeaseLost, RepertoryError, Retryable

if TYPE_CHECKING:
    from repertory.backends.sessions.snapshots.choices import SnapshotChoices

_log = logging.getLogger("repertory.sessions")
_RETRY_S = 5.0
"""How long to wait after an error before an agent's snapshots are put again."""
_AT_ONCE = 8
"""Agents whose snapshots are put at the same time."""


class SnapshotAgent(Protocol):
    """An agent or orchestrator whose snapshots are put from its journal."""

    @property
    def due(self) -> bool:
        """Whether there is anything to put."""
        ...

    async def publish(self) -> None:
        """Put what is due."""
        ...

    def forget(self) -> None:
        """The session is not ours any more."""
        ...


A = TypeVar("A", bound=SnapshotAgent)


class SnapshotAgents(Generic[A]):
    """The agents that are open, by session and agent id."""

    def __init__(self, choices: SnapshotChoices) -> None:
        """`choices`: for agents of whom nothing else was said."""
        self._choices = choices
        self._chosen: dict[tuple[str, str], SnapshotChoices] = {}
        self._open: dict[tuple[str, str], A] = {}
        self._busy: set[A] = set()
        self._work = anyio.Event()
        self._limiter = anyio.CapacityLimiter(_AT_ONCE)

    def use(self, session_id: str, agent_id: str, choices: SnapshotChoices) -> None:
        """How an agent's snapshots are wanted, the next time that it is opened."""
        self._chosen[session_id, agent_id] = choices

    def chosen(self, session_id: str, agent_id: str) -> SnapshotChoices:
        """How they are wanted."""
        return self._chosen.get((session_id, agent_id), self._choices)

    def find(self, session_id: str, agent_id: str) -> A | None:
        """An agent, if it is open."""
        return self._open.get((session_id, agent_id))

    def add(self, session_id: str, agent_id: str, agent: A) -> None:
        """An agent was opened."""
        self._open[session_id, agent_id] = agent
        self.look()

    def of(self, session_id: str) -> Iterator[tuple[str, A]]:
        """The agents of a session that are open, by id."""
        return iter([(agent_id, agent) for (session, agent_id), agent in self._open.items() if session == session_id])

    def drop(self, session_id: str, *, given_up: bool) -> None:
        """The session is not ours any more. `given_up`: nor does anybody want it back."""
        for agent_id, agent in self.of(session_id):
            agent.forget()
            del self._open[session_id, agent_id]
            if given_up:
                self._chosen.pop((session_id, agent_id), None)

    def look(self) -> None:
        """There may be something to put."""
        if any(agent.due and agent not in self._busy for agent in self._open.values()):
            self._work.set()

    async def run(self) -> None:
        """Put what is due, until cancelled, which is safe at any time."""
        async with anyio.create_task_group() as tasks:
            while True:
                self._work = anyio.Event()
                for agent in [agent for agent in self._open.values() if agent.due and agent not in self._busy]:
                    self._busy.add(agent)
                    tasks.start_soon(self._publish, agent)
                await self._work.wait()

    async def _publish(self, agent: A) -> None:
        told = ""
        try:
            while agent.due:
                try:
                    async with self._limiter:
                        with own_errors():
                            await agent.publish()
                except LeaseLost:
                    return
                except RepertoryError as error:
                    if not isinstance(error, Retryable) and str(error) != told:
                        told = str(error)
                        _log.warning("snapshots cannot be put why=%r", told)
                    await anyio.sleep(_RETRY_S)
        finally:
            self._busy.discard(agent)
