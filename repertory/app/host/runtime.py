"""`Runtime`: many agents and sessions in one process, for services and workers.

    async with Runtime(sessions=SQLiteSessions("agents.db")) as runtime:
        support = runtime.agent(AgentSpec(name="support", model=..., tools=[...]))
        result = await support.session("user-123").invoke("Hello!")

A session's actors start with its first message and are passivated when it is idle. Leaving the block drains: turns in
flight finish, journals are committed, leases are released, and `drain()` reports what did not make it in time.
"""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol, Unpack, cast
from weakref import WeakValueDictionary

import anyio

from repertory.app import lazy_names as later
from repertory.app.agent.agent import Agent
from repertory.app.host.edge import short_errors
from repertory.core.retry import DEFAULT_PATIENCE, DEFAULT_RETRY
from repertory.errors import Gone, Invalid, SessionBusy

if TYPE_CHECKING:
    from anyio.abc import TaskStatus

    from repertory.actors.call import Busy, Invocation
    from repertory.actors.context import Durability, ToolExecution
    from repertory.actors.hooks.events import HookCallback, HookProvider
    from repertory.app.agent.conversation_managers import ManagerChoice
    from repertory.app.agent.plugins import Plugin
    from repertory.app.agent.session import CallOptions
    from repertory.app.host.host import Host, SessionUse, ShutdownHook
    from repertory.app.host.reports import DrainReport, RuntimeStats
    from repertory.app.memory.memory_manager import MemoryManager
    from repertory.app.plugins.interventions import InterventionHandler
    from repertory.app.sessions.sessions import SessionPlace
    from repertory.backends.ports import Model
    from repertory.core.interrupts import Interrupt
    from repertory.core.limits import Limits
    from repertory.core.messages import Message, Prompt, SystemPrompt
    from repertory.core.owed import OwedWork
    from repertory.core.result import AgentResult, TurnEvent
    from repertory.core.retry import RetryStrategy, StorePatience
    from repertory.core.turn_start import UnknownOutcome
    from repertory.runtime.drain import ActorsReport
    from repertory.runtime.lifecycle import ActorInfo
    from repertory.runtime.system import OnFatal


class Cancellable(Protocol):
    """An object for `serve_signals` to cancel: a scope of anyio or trio, or a task of asyncio."""

    def cancel(self) -> object: ...


@short_errors
class Runtime:
    """Hosts the sessions of one process in one event loop. An async context manager, entered once; another task of the
    same loop may leave it.

    `sessions`: where sessions are stored; without it they live in memory until the block ends. `memory`: the default
    for agents without a memory manager: a memory manager, or its stores. `idle_timeout_s`: how long a session without
    a message keeps its actors. `drain_timeout_s`: how long shutting down may take in all. `on_fatal`: what to do when
    the actors cannot be restarted any more: `raise` out of the block; `signal`, which sends this process SIGTERM, for
    servers that would otherwise go on answering without them; or a function of the error. `patience`: how long calls
    wait for a store that cannot be written, and how many records may wait with them. `wakes_max`: how many sessions are
    woken at the same time for work that they owe and nobody waits for, such as a turn whose process was killed; 0
    leaves that to other processes (`docs/owed-work.md`).
    """

    def __init__(
        self,
        *,
        sessions: SessionPlace | None = None,
        memory: MemoryManager | Sequence[object] | Mapping[str, object] | None = None,
        idle_timeout_s: float = 120.0,
        drain_timeout_s: float = 25.0,
        on_fatal: OnFatal = "raise",
        patience: StorePatience = DEFAULT_PATIENCE,
        wakes_max: int = 16,
    ) -> None:
        if type(cast("object", wakes_max)) is not int or wakes_max < 0:
            raise Invalid("wakes_max is a number of sessions, or 0", got=wakes_max)
        self._wakes_max = wakes_max
        self._served: dict[str, HostedAgent] = {}
        """The agents by name: those that may be woken."""
        self._sessions = later.check_place(sessions, "sessions")
        self._memory = later.given_manager({"stores": memory} if isinstance(memory, list | tuple) else memory)
        settings = later.HostSettings(
            idle_timeout_s=idle_timeout_s, drain_timeout_s=drain_timeout_s, on_fatal=on_fatal, patience=patience
        )
        self._host = later.Host(settings)
        self._task = later.HostTask(self._host, name="repertory runtime")
        self._report: DrainReport | None = None

    async def __aenter__(self) -> Runtime:
        await self._task.enter()
        if isinstance(self._sessions, later.WakingPlace) and self._wakes_max:
            awakening = later.Awakening(wake=self._wake, agents=self._served.keys, room=self._wakes_max)
            try:
                await self._host.wake_due(self._sessions, awakening)
            except BaseException as error:
                await self._task.leave(error)
                raise
        return self

    async def _wake(self, work: OwedWork) -> None:
        served = self._served.get(work.agent_id)
        if served is not None:
            await served.session(work.session_id).wake(work)

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        await self._task.leave(error)

    def agent(self, spec: AgentSpec) -> HostedAgent:
        """The agent, from which to get sessions. Nothing starts yet. Errors: `Invalid` for a bad spec."""
        given = cast("object", spec)
        if not isinstance(given, AgentSpec):
            text = "a runtime makes the agents of its sessions: write runtime.agent(AgentSpec(name='a', model=...))"
            raise Invalid(text, got=type(given).__name__)
        if spec.memory_manager is None:
            spec = replace(spec, memory_manager=self._memory)
        agent = self._served[spec.name] = HostedAgent(self._host, spec, self._sessions)
        return agent

    def on_shutdown(self, phase: str, hook: ShutdownHook) -> None:
        """Run `hook` (async, no arguments) in a phase of the drain: see `PHASES` in `app/host/host.py` for names."""
        self._host.system.on_shutdown(phase, hook)

    async def serve_signals(
        self, *, cancel: Cancellable | None = None, task_status: TaskStatus[None] | None = None
    ) -> DrainReport:
        """Drain on SIGTERM or SIGINT; a second one cuts the drain short, a third ends the process. Returns after the
        drain, also if other code began it.

        `cancel`: the scope, or the asyncio task, of the work beside it, such as loops that take jobs; it is cancelled
        when the drain is over, so calls in flight have their answers by then. `draining` tells such a loop earlier.

        Only for programs that own their process: after the first signal the process has `drain_timeout_s` + 5 s to end,
        and is then ended with 128 plus the signal's number. Cancelled, signals have their earlier effect again, and a
        drain that has begun goes on. `await group.start(runtime.serve_signals)` returns once the signal handlers are
        installed. Errors: `Invalid` outside the main thread.
        """
        # As the parameter's default it would load half of anyio with this module.
        told = anyio.TASK_STATUS_IGNORED if task_status is None else task_status
        report = self._whole(await self._host.system.serve_signals(task_status=told))
        if cancel is not None:
            cancel.cancel()
        return report

    @property
    def draining(self) -> anyio.Event:
        """Set when the drain begins, or the actors are lost: a loop that takes jobs stops taking them, as new calls are
        refused with `Unavailable`. `await runtime.draining.wait()`, or `is_set()`.
        """
        return self._host.system.draining

    async def drain(self) -> DrainReport:
        """Stop in phases and report what could not be finished or stored. A second call gives the same report."""
        return self._whole(await self._host.system.drain())

    def _whole(self, actors: ActorsReport) -> DrainReport:
        if self._report is None:
            memory = later.together((), self._host.flushed)
            self._report = later.drain_report(actors, self._host.buffers.not_stored(), memory)
        return self._report

    @property
    def healthy(self) -> bool:
        """Whether it takes calls: its actors are not lost, and it does not drain. For readiness probes."""
        return self._host.system.healthy

    def tree(self) -> ActorInfo:
        """Every actor as it is now: state, queue, current work."""
        return self._host.system.tree()

    def stats(self) -> RuntimeStats:
        """Counters of the whole process: messages, failures, restarts, dead letters, and records not stored yet."""
        return later.runtime_stats(self._host.system.stats(), self._host.buffers)


@short_errors
class HostedAgent:
    """One agent of a runtime, for any number of sessions."""

    def __init__(self, host: Host, spec: AgentSpec, sessions: SessionPlace | None) -> None:
        self._host = host
        if spec.context_manager is not None:
            manager, more = later.managed_context(spec.context_manager, spec.conversation_manager, spec.plugins)
            spec = replace(spec, conversation_manager=manager, plugins=more, context_manager=None)
        tools, plugins = later.as_tools(spec.tools), later.check_plugins(spec.plugins, later.Plugin)
        memory = later.given_manager(spec.memory_manager)
        added = [tool for plugin in later.with_memory(plugins, memory) for tool in plugin.tools]
        with_plugins = later.ToolRegistry([*tools, *added])
        later.check_forgetful(with_plugins)
        self._sessions = sessions
        self._manager = None if spec.conversation_manager is None else later.chosen_manager(spec.conversation_manager)
        """The manager to copy, or to ask its factory, for each session."""
        self._agents: WeakValueDictionary[str, Agent] = WeakValueDictionary()
        # A bad spec is refused here; the agent built for that needs no plugins.
        self._spec = replace(
            spec, model=later.default_model(spec.model), tools=with_plugins, plugins=(), memory_manager=None
        )
        self._agent("unsaved", takeover=False)
        self._spec = replace(self._spec, tools=later.ToolRegistry(tools), plugins=plugins, memory_manager=memory)

    def session(self, session_id: str, *, takeover: bool = False) -> HostedSession:
        """One conversation with this agent. The same id is the same conversation, also after a restart."""
        agent = self._agents.get(session_id)
        if agent is None or takeover:
            agent = self._agents[session_id] = self._agent(later.check_id(session_id, "session_id"), takeover=takeover)
        return HostedSession(self._host, agent)

    def _agent(self, session_id: str, *, takeover: bool) -> Agent:
        spec, manager = self._spec, self._manager
        same = {each.name: getattr(spec, each.name) for each in fields(AgentSpec)}
        own: dict[str, Any] = {
            "agent_id": spec.name,
            "callback_handler": None,
            "conversation_manager": spec.conversation_manager if manager is None else later.another_manager(manager),
            "state": later.agent_state(spec.state).get(),
            "session_manager": later.PlacedSession(session_id, self._sessions, takeover),
        }
        return Agent(**{**same, **own})


@short_errors
class HostedSession:
    """One conversation in a runtime. Cheap to create, any number of times."""

    def __init__(self, host: Host, agent: Agent) -> None:
        self._host = host
        self._agent = agent
        self._spec = agent.blueprint().woken()

    @property
    def agent(self) -> Agent:
        """The agent of this conversation, for its tools and hooks."""
        return self._agent

    async def invoke(self, prompt: Prompt = None, **options: Unpack[CallOptions]) -> AgentResult:
        """Run a turn; see `Agent.invoke_async`."""
        invocation = later.read_call(prompt, options, self._agent.structured_output_model)
        async with self._use(invocation) as session:
            return await session.invoke(invocation)

    async def stream(self, prompt: Prompt = None, **options: Unpack[CallOptions]) -> AsyncGenerator[TurnEvent]:
        """Run a turn and yield its events; see `Agent.stream_async`."""
        invocation = later.read_call(prompt, options, self._agent.structured_output_model)
        async with self._use(invocation) as session, session.stream(invocation) as events:
            async for event in events:
                yield event

    async def wake(self, work: OwedWork) -> None:
        """Do what the session owes, unless another process has it. For the runtime. Errors: those of a turn."""
        go_on = later.read_call(None, {}, self._agent.structured_output_model)
        spec = self._spec.waiting(reject=True, deadline=math.inf)
        try:
            async with self._host.session(spec) as session:
                await session.wake(work.why, go_on)
        except (SessionBusy, Gone):
            return
        finally:
            await self._host.let_go(spec)

    def _use(self, invocation: Invocation) -> SessionUse:
        reject = (invocation.busy or self._spec.calls.busy) == "reject"
        spec = self._spec.waiting(reject=reject, deadline=invocation.deadline)
        return self._host.session(spec, invocation.deadline)

    async def cancel(self) -> None:
        """Cut the running turn short, if one runs."""
        async with self._host.session(self._spec) as session:
            session.cancel()

    async def messages(self) -> list[Message]:
        """A copy of the messages that the model sees, oldest first."""
        async with self._host.session(self._spec) as session:
            return [later.copy_message(message) for message in session.messages()]

    async def interrupts(self) -> list[Interrupt]:
        """The questions to a person that have no answer; see `Agent.interrupts`."""
        async with self._host.session(self._spec) as session:
            return list(session.read_model.pending_tools.waiting)

    async def history(self) -> list[Message]:
        """A copy of all messages of the conversation, oldest first; see `Agent.history`."""
        from repertory.app.operations.reading import whole_history  # loaded when used

        async with self._host.session(self._spec) as session:
            return await whole_history(session, self._spec)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSpec:
    """An agent for any number of sessions. The fields have the meaning of `Agent`'s arguments.

    Each session has its own messages, state, system prompt and conversation manager: copies of those here that provably
    share nothing, or a factory's (`conversation_manager=lambda: Mine(...)`). Model, tools, hooks, plugins,
    interventions, memory manager and retry strategy are shared by all sessions, so they store data of a conversation
    only under its agent (`event.agent`, `context.agent`) or its session. `Runtime.agent` refuses, with `Invalid`,
    conversation managers that cannot be copied, and agents as tools with `preserve_context=True`.
    """

    name: str = "default"
    """The agent's id within each session."""
    model: Model | str | None = None
    tools: Iterable[object] = ()
    system_prompt: SystemPrompt = None
    conversation_manager: ManagerChoice = None
    messages: Sequence[Message] = ()
    state: Mapping[str, object] = field(default_factory=dict[str, object])
    durability: Durability = "pipelined"
    busy: Busy = "queue"
    unknown_tool_outcome: UnknownOutcome = "ask"
    description: str | None = None
    hooks: Sequence[HookProvider | HookCallback] = ()
    plugins: Sequence[Plugin] = ()
    interventions: Sequence[InterventionHandler] = ()
    context_manager: Literal["auto", False] | None = None
    memory_manager: MemoryManager | Mapping[str, object] | None = None
    """None for the runtime's."""
    structured_output_model: type[Any] | None = None
    aux_model: Model | str | None = None
    retry_strategy: RetryStrategy | None = DEFAULT_RETRY
    limits: Limits | None = None
    enabled_tools: Sequence[str] | None = None
    tool_execution: ToolExecution = "concurrent"

    def __post_init__(self) -> None:
        """Errors: `Invalid` (a ValueError) for a name that is not an id."""
        later.check_id(self.name, "name")
