"""`Runtime`: many agents and sessions in one process, for services and workers.

    async with Runtime(sessions=SQLiteSessions("agents.db")) as runtime:
        support = runtime.agent(AgentSpec(name="support", model=..., tools=[...]))
        result = await support.session("user-123").invoke("Hello!")

A session's actors start with its first message and are passivated when it is idle. Leaving the block drains: turns in
flight finish, journals are committed, leases are released, and `drain()` reports what did not make it in time.
"""

from __future__ import annotations

import copy
from collections.abc import AsyncGenerator, Mapping
from typing import TYPE_CHECKING, Any

from repertory.actors.agent import CallSettings
from repertory.actors.call import Busy, Invocation
from repertory.actors.mirror import Mirror
from repertory.actors.persister import MemoryJournal
from repertory.actors.registry import ToolRegistry
from repertory.actors.turn_driver import AgentParts, AgentSettings
from repertory.app.bedrock import default_model
from repertory.app.blueprint import Blueprint
from repertory.app.host import Host, HostSettings
from repertory.core.ids import check_id
from repertory.core.pairing import check_message, repair
from repertory.core.state import AgentState
from repertory.core.window.sliding import SlidingWindowConversationManager

if TYPE_CHECKING:
    from repertory.app.host import ShutdownHook
    from repertory.app.sessions import SessionPlace
    from repertory.app.spec import AgentSpec
    from repertory.core.events import TurnEvent
    from repertory.core.messages import Message, Prompt
    from repertory.core.result import AgentResult
    from repertory.runtime.report import DrainReport
    from repertory.runtime.system import OnFatal
    from repertory.runtime.tree import ActorInfo, SystemStats


class Runtime:
    """Hosts the sessions of one process in one event loop. An async context manager, entered once.

    `sessions`: where sessions are kept; without it they live in memory until the block ends. `idle_timeout_s`: how
    long a session without a message keeps its actors. `drain_timeout_s`: how long shutting down may take in all.
    `on_fatal`: what to do when the actors cannot be restarted any more: `raise` out of the block; `signal`, which
    sends this process SIGTERM, for servers that would otherwise go on answering without them; or a function of the
    error.
    """

    def __init__(
        self,
        *,
        sessions: SessionPlace | None = None,
        idle_timeout_s: float = 120.0,
        drain_timeout_s: float = 25.0,
        on_fatal: OnFatal = "raise",
    ) -> None:
        self._sessions = sessions
        settings = HostSettings(idle_timeout_s=idle_timeout_s, drain_timeout_s=drain_timeout_s, on_fatal=on_fatal)
        self._host = Host(settings)

    async def __aenter__(self) -> Runtime:
        await self._host.__aenter__()
        return self

    async def __aexit__(self, *exc_info: Any) -> bool | None:
        return await self._host.__aexit__(*exc_info)

    def agent(self, spec: AgentSpec) -> HostedAgent:
        """The agent, ready to be asked for sessions. Nothing starts yet. Errors: `Invalid` for a spec that makes no
        sense.
        """
        return HostedAgent(self._host, spec, self._sessions)

    def on_shutdown(self, phase: str, hook: ShutdownHook) -> None:
        """Run `hook` (async, no arguments) in a phase of the drain: see `PHASES` in `app/phases.py` for the names."""
        self._host.system.on_shutdown(phase, hook)

    async def serve_signals(self) -> None:
        """Drain on SIGTERM or SIGINT; a second one cuts it short, a third ends the process. Returns after the drain."""
        await self._host.system.serve_signals()

    async def drain(self) -> DrainReport:
        """Stop in phases and say what could not be finished. Calling it again gives the same report."""
        return await self._host.system.drain()

    @property
    def healthy(self) -> bool:
        """Whether it takes calls: neither lost nor draining. What a readiness probe should say."""
        return self._host.system.healthy

    def tree(self) -> ActorInfo:
        """Every actor as it is now: state, queue, what it works on."""
        return self._host.system.tree()

    def stats(self) -> SystemStats:
        """Counters of the whole process: messages, failures, restarts, dead letters."""
        return self._host.system.stats()


class HostedAgent:
    """One agent of a runtime, whatever the session."""

    def __init__(self, host: Host, spec: AgentSpec, sessions: SessionPlace | None) -> None:
        self._host = host
        self._spec = spec
        self._sessions = sessions
        self._agent_id = check_id(spec.name, "name")
        self._model = default_model(spec.model)
        self._tools = ToolRegistry(spec.tools)
        self._manager = spec.conversation_manager or SlidingWindowConversationManager()
        self._initial = tuple(repair([check_message(message) for message in spec.messages]))

    def session(self, session_id: str, *, takeover: bool = False) -> HostedSession:
        """One conversation with this agent. The same id is the same conversation, here and after a restart."""
        agent = AgentSettings(
            session_id=check_id(session_id, "session_id"),
            agent_id=self._agent_id,
            system_prompt=self._spec.system_prompt,
            durability=self._spec.durability,
            initial=self._initial,
            durable=self._sessions is not None,
        )
        parts = AgentParts(model=self._model, tools=self._tools, state=AgentState(self._spec.state), mirror=Mirror())
        calls = CallSettings(busy=self._spec.busy, unknown_outcome=self._spec.unknown_tool_outcome)
        blueprint = Blueprint(
            agent=agent,
            calls=calls,
            parts=parts,
            manager=self._manager,
            sessions=self._sessions,
            memory=MemoryJournal(),
            takeover=takeover,
        )
        return HostedSession(self._host, blueprint)


class HostedSession:
    """One conversation in a runtime. Cheap to make, any number of times."""

    def __init__(self, host: Host, blueprint: Blueprint) -> None:
        self._host = host
        self._blueprint = blueprint

    async def invoke(
        self, prompt: Prompt = None, *, busy: Busy | None = None, invocation_state: Mapping[str, Any] | None = None
    ) -> AgentResult:
        """Run a turn; see `Agent.invoke_async`."""
        invocation = Invocation(prompt=prompt, busy=busy, invocation_state=invocation_state or {})
        async with self._host.session(self._blueprint) as session:
            return await session.invoke(invocation)

    async def stream(
        self, prompt: Prompt = None, *, busy: Busy | None = None, invocation_state: Mapping[str, Any] | None = None
    ) -> AsyncGenerator[TurnEvent]:
        """Run a turn and yield what happens; see `Agent.stream_async`."""
        invocation = Invocation(prompt=prompt, busy=busy, invocation_state=invocation_state or {})
        async with self._host.session(self._blueprint) as session, session.stream(invocation) as events:
            async for event in events:
                yield event

    async def cancel(self) -> None:
        """Cut the running turn short, if one runs."""
        async with self._host.session(self._blueprint) as session:
            session.cancel()

    async def messages(self) -> list[Message]:
        """A copy of what the model is shown, oldest first."""
        async with self._host.session(self._blueprint) as session:
            return copy.deepcopy(session.messages())

    async def history(self) -> list[Message]:
        """A copy of everything ever said, oldest first."""
        async with self._host.session(self._blueprint) as session:
            return list(await session.history())
