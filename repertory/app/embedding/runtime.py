"""`Runtime`: many agents and sessions in one process, for services and workers.

    async with Runtime(sessions=SQLiteSessions("agents.db")) as runtime:
        support = runtime.agent(AgentSpec(name="support", model=..., tools=[...]))
        result = await support.session("user-123").invoke("Hello!")

A session's actors start with its first message and are passivated when it is idle. Leaving the block drains: turns in
flight finish, journals are committed, leases are released, and `drain()` reports what did not make it in time.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from secrets import token_hex
from typing import TYPE_CHECKING, Any, Never, Protocol, TypeVar, Unpack, cast

import anyio

from repertory.actors.call import ChangeTimers
from repertory.app import wings
from repertory.app.agent.session import given_manager
from repertory.app.embedding.hosted import AgentSpec, HostedAgent, HostedSession
from repertory.app.embedding.live import answers_of, view_of
from repertory.app.embedding.reports import drain_report, runtime_stats
from repertory.app.host.dispatcher import RecoveryHooks
from repertory.app.host.host import Host, HostSettings
from repertory.app.host.session import meter_provider, wall_clock
from repertory.app.sessions.sessions import WakingLocation, check_location
from repertory.app.tracebacks import flush_exporters, short_errors
from repertory.core.deliveries import check_names
from repertory.core.memory.progress import together
from repertory.core.orchestration.journals import clash, journal_name, orchestrator_in
from repertory.core.retry import DEFAULT_PATIENCE
from repertory.core.session_life import SessionState
from repertory.core.timers import DueTimes, TimerOptions
from repertory.errors import Invalid, NotFound, RepertoryError
from repertory.forking import never_collect
from repertory.logs import INFO, WARNING, note
from repertory.runtime.host_task import HostTask

if TYPE_CHECKING:
    from anyio.abc import TaskStatus

    from repertory.app.embedding.deliveries import DeliveryOptions, EventReceiver, NamedDestinations
    from repertory.app.embedding.hosted_orchestrators import HostedOrchestrator, OrchestratorSession
    from repertory.app.embedding.live import LiveView
    from repertory.app.embedding.reports import DrainReport, RuntimeStats
    from repertory.app.host.admission import AdmissionQueue
    from repertory.app.host.call_router import CallRouter, Sharing
    from repertory.app.host.host import Host, ShutdownHook
    from repertory.app.memory.memory_manager import MemoryManager
    from repertory.app.orchestration.orchestrator import Orchestrator
    from repertory.app.sessions.sessions import SessionLocation
    from repertory.backends.peer_ports import QueuedCall
    from repertory.core.deliveries import DeliveryType
    from repertory.core.messages import ToolStatus
    from repertory.core.pending_work import PendingWork, StalledAgent
    from repertory.core.pictures.svg import Picture
    from repertory.core.retry import StorePatience
    from repertory.core.run_results import MultiAgentResult
    from repertory.runtime.drain import ActorsReport
    from repertory.runtime.lifecycle import ActorInfo
    from repertory.runtime.system import OnFatal

_log = logging.getLogger("repertory.app")

RunResult = TypeVar("RunResult", bound="MultiAgentResult")
"""The type of a result of a graph or swarm."""


class Cancellable(Protocol):
    """An object for `serve_signals` to cancel: a scope of anyio or trio, or a task of asyncio."""

    def cancel(self) -> object: ...


@short_errors
class Runtime:
    """Hosts the sessions of one process in one event loop. An async context manager; another task of the same loop may
    leave it. It may be entered again when it has ended, in any event loop: it starts anew, with the same agents.

    `wall` gives the time in epoch seconds, for tests of timers.

    Args:
        sessions: The location of stored sessions; without it they live in memory until the block ends.
        memory: The default for agents without a memory manager: a memory manager, or its stores.
        idle_timeout_s: Seconds that a session without a message keeps its actors.
        drain_timeout_s: Seconds that shutting down may take in all.
        on_fatal: The reaction to the loss of all actors, by a cancellation of their task that is not Repertory's.
            `raise` raises out of the block. `signal` sends this process SIGTERM, for servers that would go on answering
            without them. A function gets the error.
        patience: The limits on calls that wait for a store that cannot be written, and on their records.
        wakes_max: Sessions that are woken at the same time for pending work that nobody waits for, such as a
            turn whose process was killed; 0 leaves that to other processes (`docs/guides/sessions/pending-work.md`).
        peers: Share the sessions with other runtimes, in other processes or on other machines, so that each of them
            answers for every session (`docs/guides/services/scaling.md`).
        webhook_secret: Signs the webhooks of `deliver` and `deliver_to` that have no secret of their own: `whsec_` and
            base64, or several of them while it is changed. With it, `deliver_to` takes any address of HTTPS.
        wall: Returns the time in epoch seconds. Tests replace it.

    Raises:
        Invalid: For bad settings. Correct the argument.
    """

    def __init__(
        self,
        *,
        sessions: SessionLocation | None = None,
        memory: MemoryManager | Sequence[object] | Mapping[str, object] | None = None,
        idle_timeout_s: float = 120.0,
        drain_timeout_s: float = 25.0,
        on_fatal: OnFatal = "raise",
        patience: StorePatience = DEFAULT_PATIENCE,
        wakes_max: int = 16,
        peers: Sharing | None = None,
        webhook_secret: str | Sequence[str] | None = None,
        wall: Callable[[], float] | None = None,
    ) -> None:
        if type(cast("object", wakes_max)) is not int or wakes_max < 0:
            raise Invalid("wakes_max is a number of sessions, or 0", got=wakes_max)
        self._wakes_max = wakes_max
        self._drain_timeout_s = drain_timeout_s
        self._served: dict[str, HostedAgent | HostedOrchestrator[Any]] = {}
        """The agents, graphs and swarms that may be woken, by the name under which their work is pending."""
        self._sessions = check_location(sessions, "sessions")
        self._memory = given_manager({"stores": memory} if isinstance(memory, list | tuple) else memory)
        settings = HostSettings(
            idle_timeout_s=idle_timeout_s,
            drain_timeout_s=drain_timeout_s,
            on_fatal=on_fatal,
            patience=patience,
            wall=wall_clock if wall is None else wall,
        )
        self._host = Host(settings)
        self._hooks: list[tuple[str, ShutdownHook]] = []
        """The hooks that were given outside of its block, for each time that it is entered."""
        self._begin()
        if peers is not None and self._sessions is None:
            raise Invalid("peers share stored sessions: write Runtime(sessions=PostgresSessions(DSN), peers=...)")
        self._peers = peers
        if webhook_secret is not None:
            self._check_delivers()
            self._host.destinations = self._new_destinations(webhook_secret)

    def __repr__(self) -> str:
        """The location, the agents and the readiness for calls, on one line."""
        from repertory.core.notebook import short_repr  # loaded when used

        location = "in memory" if self._sessions is None else self._sessions.key
        fields = {"sessions": location, "agents": sorted(self._served), "healthy": self.healthy}
        return short_repr(self, fields)

    def _begin(self, *, detached: bool = False) -> None:
        self._task = HostTask(self._host, name="repertory runtime", detached=detached)
        self._report: DrainReport | None = None
        self._cluster: CallRouter | None = None

    def _begin_again(self, *, detached: bool = False) -> None:
        """Make it ready to be entered. Errors: `Invalid` while it is open."""
        if self._task.begun:
            host = self._host
            if host.lost_its_loop:
                never_collect(host, self._task)  # Collecting its tasks would run their ends, half of them.
                host.abandon()
            elif not self._task.over or not (self._task.left or host.elsewhere):
                raise Invalid("this runtime is open: it may be entered again when it has ended")
            host.renew()
            for served in self._served.values():
                served.forget_sessions()
            for phase, hook in self._hooks:
                host.system.on_shutdown(phase, hook)
        self._begin(detached=detached)

    if not TYPE_CHECKING:

        def __enter__(self) -> Never:
            raise Invalid("a runtime is entered in async code: `async with Runtime() as runtime`")

        __exit__ = __enter__

    async def __aenter__(self) -> Runtime:
        self._begin_again()
        return await self._enter()

    async def _enter(self) -> Runtime:
        await self._task.enter()
        try:
            if meter_provider() is not None:
                wings.telemetry().watch_host(self._host, lambda: self._cluster)
            if self._peers is not None and self._sessions is not None:
                self._cluster = self._peers.router(self._host, self._session_for_peer, self._agent_names)
                await self._cluster.open(self._sessions)
            if isinstance(self._sessions, WakingLocation) and self._wakes_max:
                recovery = RecoveryHooks(
                    wake=self._wake,
                    call=self._make,
                    agents=self._served.keys,
                    takes_calls=lambda: {orchestrator_in(name) or name for name in self._served},
                    stalled=self._stalled,
                    room=self._wakes_max,
                    waiting=self._host.gate.waiting_of,
                )
                await self._host.recover_due(self._sessions, recovery)
        except BaseException as error:
            await self._task.leave(error)
            raise
        note(_log, INFO, "a runtime has started", peer=None if self._cluster is None else self._cluster.name)
        return self

    async def start(self) -> Runtime:
        """Start without a block, for hosts that call back when they start and when they stop. Returns this runtime; end
        it by `stop`, in the same event loop, from any task.

        Nobody's task is cancelled when the actors are lost: `healthy` is false then, calls raise `ActorDead`, and
        `stop` raises the error; `on_fatal="signal"` ends the process. Errors: those of entering the block.

        Raises:
            Invalid: While it is open. Stop it first.
        """
        self._begin_again(detached=True)
        return await self._enter()

    async def stop(self) -> DrainReport:
        """Drain, as at the end of the block, and report what could not be finished or stored. A second call gives the
        same report. Errors: what the actors were lost by.

        Raises:
            Invalid: Before `start`. Correct the argument.
        """
        if not self._task.begun:
            raise Invalid("this runtime was not started: await runtime.start()")
        report = await self.drain()
        await self.__aexit__(None, None, None)
        return report

    @property
    def host(self) -> Host:
        """The host of the runtime's actors and sessions, for workers."""
        return self._host

    @property
    def served(self) -> Mapping[str, HostedAgent | HostedOrchestrator[Any]]:
        """The agents by name, and the graphs and swarms by the names of their journals, for workers."""
        return self._served

    @property
    def admission(self) -> AdmissionQueue | None:
        """The queue that admits calls, in a runtime with peers, for workers."""
        return None if self._cluster is None else self._cluster.admission

    def _session_for_peer(self, agent: str, session_id: str) -> HostedSession | None:
        served = self._served.get(agent)
        return served.session(session_id) if isinstance(served, HostedAgent) else None

    def _agent_names(self) -> frozenset[str]:
        return frozenset(name for name, served in self._served.items() if isinstance(served, HostedAgent))

    async def _wake(self, work: PendingWork) -> None:
        served = self._served.get(work.agent_id)
        if served is not None:
            await served.session(work.session_id).wake(work)

    async def _make(self, posted: QueuedCall) -> None:
        served = self._served.get(posted.agent_id) or self._served[journal_name(posted.agent_id)]
        await served.session(posted.session_id).make(posted)

    async def _stalled(self, for_s: float) -> list[StalledAgent]:
        since, host = anyio.current_time() - for_s, self._host
        # Emptied first: sessions that start during this look are noted in the new list.
        looked, host.opened = host.opened, []
        found: list[StalledAgent] = []
        for active in looked:
            slot = active.slot
            if slot.session is not active or not active.alive or slot.spec is None:
                continue
            if active.since > since or slot.users or slot.state is SessionState.STOPPING or active.in_a_turn:
                host.opened.append(active)
                continue
            ids = slot.spec.agent.session_id, slot.spec.agent.agent_id
            with suppress(RepertoryError):  # It ends at this moment.
                if await active.goes_on("turn"):
                    host.opened.append(active)
                    found.append(ids)
        return found

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            await self._task.leave(error)
        finally:
            self._note_end()
            if meter_provider() is not None:
                wings.telemetry().unwatch_host(self._host)
        await flush_exporters()

    def _note_end(self) -> None:
        actors = self._host.system.report
        if actors is None:
            return
        report = self._whole(actors)
        level = INFO if report.ok else WARNING
        unfinished, lost = len(report.unfinished), sum(each.records for each in report.not_stored)
        details = {"reason": report.reason, "unfinished": unfinished, "not_stored": lost, "cut_short": report.cut_short}
        note(_log, level, "a runtime has ended", duration_s=round(report.duration_s, 3), ok=report.ok, **details)

    @asynccontextmanager
    async def lifespan(self, app: object) -> AsyncGenerator[dict[str, Runtime]]:
        """The lifespan for web frameworks: `FastAPI(lifespan=runtime.lifespan)`, or Starlette's. The runtime is entered
        when the server starts, and drains when it stops; requests find it as `request.state.runtime`.

        Args:
            app: The application; it is not used.
        """
        del app
        async with self:
            yield {"runtime": self}

    def agent(self, spec: AgentSpec) -> HostedAgent:
        """The agent, from which to get sessions. Nothing starts yet.

        Args:
            spec: The parts of its sessions. The last spec of a name serves peers, timers and pending work.

        Raises:
            Invalid: For a bad spec, or a name that a node of a served graph or swarm may have. Correct the argument.
        """
        given = cast("object", spec)
        if not isinstance(given, AgentSpec):
            text = "a runtime makes the agents of its sessions: write runtime.agent(AgentSpec(name='a', model=...))"
            raise Invalid(text, got=type(given).__name__)
        if spec.memory_manager is None:
            spec = replace(spec, memory_manager=self._memory)
        if orchestrator_in(spec.name) is not None:
            raise Invalid("graphs and swarms have names that begin so: choose another name", name=spec.name)
        self._refuse_clash(spec.name)
        agent = self._served[spec.name] = HostedAgent(self._host, spec, self._sessions, lambda: self._cluster)
        if self._cluster is not None:
            self._cluster.changed()
        return agent

    def orchestrator(self, name: str, make: Callable[[str], Orchestrator[RunResult]]) -> HostedOrchestrator[RunResult]:
        """The graph or swarm of this id, from which to get sessions. `make` gives a new `Graph` or `Swarm` with this id
        for a session id, made of new agents and without a session manager. It is called when a session is first asked
        for, and when one is woken.

        Args:
            name: Its name.
            make: Called with a session id; makes its graph or swarm.

        Raises:
            Invalid: For a name that is not an id, or no function; beside an agent, graph or swarm whose name begins
                with this one and a dot, or the other way round. Also for a name among the `agents` of a destination.
                Correct the argument.
        """
        from repertory.app.embedding.hosted_orchestrators import HostedOrchestrator  # loaded when used

        made = HostedOrchestrator(self._host, name, make, self._sessions)
        self._refuse_clash(made.journal)
        if self._host.destinations is not None:
            from repertory.app.embedding.deliveries import check_delivers_none  # loaded when used

            check_delivers_none(self._host.destinations.by_name.values(), [name])
        self._served[made.journal] = made
        return made

    def _refuse_clash(self, journal: str) -> None:
        if (other := clash(journal, self._served)) is not None:
            text = "the nodes of a graph or swarm have names that begin with its own and a dot: choose another name"
            raise Invalid(text, name=journal, beside=other)

    async def schedule(
        self,
        session: HostedSession | OrchestratorSession[Any],
        prompt: str,
        *,
        id: str | None = None,
        deliver_to: str | Sequence[str] | None = None,
        **times: Unpack[TimerOptions],
    ) -> str:
        """Have a session of this runtime run a turn with this prompt at a time, even if nobody calls; returns the
        timer's id once it is stored. A graph or swarm begins a run with it: one that was left unfinished is given up
        then, and one that asks a person is waited for.

        Errors: those of opening the session and of its store. Cancelled, the timer may be set.

        Args:
            session: The session that begins the turn.
            prompt: The prompt with which the turn begins.
            id: Replaces the session's timer of that id; a new one without.
            deliver_to: The destinations that are told of the timer's turns besides those of the runtime: names or
                addresses of `Runtime.deliver`, as for a call.
            times: `at`, an aware datetime or epoch seconds, or `in_s`, seconds from now. `every`: again and again, at a
                period of seconds, or at the times of a cron expression such as `0 8 * * 1-5` in the time zone `tz`
                (UTC without one), from now on or from `at`. `missed`: one turn for all times that were missed
                (`one`), up to 100 turns (`all`), or none (`none`).

        Raises:
            Invalid: For sessions that nobody wakes (those in SQLite, PostgreSQL and JournalSessions are), wrong values,
                destinations that there are not, those of graphs and swarms, and more than 1,000 timers. Correct the
                argument.
            TooLarge: For a prompt above `limits["prompt_bytes"]`, or above 128 KiB together with those of all timers.
                Give a smaller value, or raise the bound.
        """
        if not (hasattr(session, "change_timers") and session.is_of(self._host)):
            raise Invalid("schedule takes a session of this runtime: runtime.agent(spec).session('user-123')")
        timer_id = token_hex(8) if id is None else id
        to = check_names(deliver_to)
        change = ChangeTimers(timer_id=timer_id, prompt=prompt, due=DueTimes(**times), deliver_to=to)
        await session.change_timers(change)
        return timer_id

    def deliver(
        self,
        to: str | EventReceiver,
        *,
        on: Collection[DeliveryType] = ("answer", "question", "late_result", "failure", "timer"),
        **options: Unpack[DeliveryOptions],
    ) -> None:
        """Have events of the sessions of this runtime's agents brought to somebody, also if nobody waits for them, as
        with timers, posted calls and jobs. Call it in each process that runs the agents, before they are used.

        The commit that stores an event says that it is to be delivered. It is tried again with back-off, also by
        another process, until the destination has it or it is given up: at least once, each time with the same id. The
        events of a session come in order; one that was given up is a dead letter (`repertory deliveries`), and those
        behind it come. Sessions of graphs and swarms, and those in memory, deliver nothing.

        Args:
            to: The address of a webhook, which is signed by the Standard Webhooks scheme. Or a function, which gets a
                `DeliveryEvent`, and may be async; it has the event when it returns, and is called again if it raises.
            on: The types of events: `answer`, `question`, `late_result`, `failure` and `timer`. With an empty list only
                those of turns that name it as `deliver_to`.
            options: `name`: in the journals and for `deliver_to`; a function needs one, and an address is its own.
                `secret`: signs a webhook, `whsec_` and base64, or several of them; the runtime's without. `agents`:
                the names of the agents whose events are delivered; all without. `timeout_s`: seconds that a try may
                take (20). `retry_s`: seconds from one try to the next, the last one repeated (5 s to a day).
                `give_up_s`: seconds after which a try that fails is the last one (3 days). `answer_link`: gives the
                link by which a person answers a question, such as `AnswerLinks(...).link`; each interrupt of a
                `question` has it as `answer_link`.

        Raises:
            Invalid: For wrong values, a webhook without a secret, a function with one, without a name or that cannot be
                called with one event, sessions that nobody wakes, and a graph or swarm among the `agents`. Correct the
                argument.
            AlreadyExists: For a second destination of a name. Choose another name.
        """
        self._check_delivers()
        from repertory.app.embedding.deliveries import NamedDestinations  # loaded when used

        destinations = self._host.destinations
        if not isinstance(destinations, NamedDestinations):
            destinations = self._new_destinations(None)
        orchestrators = [name for journal in self._served if (name := orchestrator_in(journal)) is not None]
        destinations.add(to, on, options, orchestrators)
        self._host.destinations = destinations
        for slot in self._host.slots.values():
            if slot.spec is not None and slot.spec.parts is not None and slot.within is None:
                slot.spec.parts.destinations = destinations

    def _check_delivers(self) -> None:
        if not (isinstance(self._sessions, WakingLocation) and self._sessions.wakes):
            raise Invalid("deliveries are of stored sessions: write Runtime(sessions=SQLiteSessions('agents.db'))")

    def _new_destinations(self, secret: str | Sequence[str] | None) -> NamedDestinations:
        from repertory.app.embedding.deliveries import NamedDestinations  # loaded when used

        return NamedDestinations(secret)

    async def complete_tool(
        self,
        agent: str,
        session_id: str,
        id: str,
        result: object,
        *,
        status: ToolStatus = "success",
        start_turn: bool = True,
    ) -> bool:
        """`HostedSession.complete_tool` of the agent of this name, for a program that has names alone, such as a
        webhook. Errors: those of `HostedSession.complete_tool`.

        Args:
            session_id: The id of the session.
            id: The id that `tool_context.defer` gave.
            result: The result, as a tool returns it.
            status: `success` or `error`.
            start_turn: False leaves the result to the next turn.
            agent: The agent's name in the runtime.

        Raises:
            NotFound: If this runtime has no such agent. Check the name.
        """
        session = self._session_for_peer(agent, session_id)
        if session is None:
            raise NotFound("this runtime has no such agent", agent=agent)
        return await session.complete_tool(id, result, status=status, start_turn=start_turn)

    def on_shutdown(self, phase: str, hook: ShutdownHook) -> None:
        """Run `hook` (async, no arguments) in a phase of the drain: `refuse`, `turns`, `memory`, `commit` or
        `close`. A hook that is given outside of the runtime's block is run at the end of each, others at the end of
        this one.

        Args:
            phase: The phase of the drain, such as `memory`.
            hook: An async function without arguments.
        """
        self._host.system.on_shutdown(phase, hook)
        if not self.started:
            self._hooks.append((phase, hook))

    async def serve_signals(
        self, *, cancel: Cancellable | None = None, task_status: TaskStatus[None] | None = None
    ) -> DrainReport:
        """Drain on SIGTERM or SIGINT; a second one cuts the drain short, a third ends the process. Returns after the
        drain, also if other code began it.

        `draining` tells such a loop earlier.

        Only for programs that own their process: after the first signal the process has `drain_timeout_s` + 5 s to end,
        and is then ended with 128 plus the signal's number. Cancelled, signals have their earlier effect again, and a
        drain that has begun goes on. `await group.start(runtime.serve_signals)` returns once the signal handlers are
        installed.

        Args:
            cancel: The scope, or the asyncio task, of the work beside it, such as loops that take jobs; it is cancelled
                when the drain is over, so calls in flight have their answers by then.
            task_status: The task status that `TaskGroup.start` gives; call it by `group.start(...)`.

        Raises:
            Invalid: Outside the main thread. Correct the argument.
        """
        # As the parameter's default it would load half of anyio with this module.
        self._host.check_loop()
        status = anyio.TASK_STATUS_IGNORED if task_status is None else task_status
        report = self._whole(await self._host.system.serve_signals(task_status=status))
        await flush_exporters()
        if cancel is not None:
            cancel.cancel()
        return report

    @property
    def draining(self) -> anyio.Event:
        """Set when the drain begins, or the actors are lost: a loop that takes jobs stops taking them, as new calls are
        refused with `Unavailable`. `await runtime.draining.wait()`, or `is_set()`.
        """
        return self._host.system.draining

    @property
    def drained(self) -> anyio.Event:
        """Set when the drain is over, or the actors are lost: everything has stopped."""
        return self._host.system.drained

    @property
    def started(self) -> bool:
        """True if its block was entered, or `start` was called, and it has not ended since."""
        return self._task.begun and not self._task.over

    @property
    def drain_timeout_s(self) -> float:
        """Seconds that shutting down may take in all."""
        return self._drain_timeout_s

    @property
    def shares_sessions(self) -> bool:
        """True if other runtimes may answer for its sessions too: it was made with `peers`."""
        return self._peers is not None

    @property
    def agents(self) -> Mapping[str, HostedAgent]:
        """The agents that were made of it so far, by name."""
        return {name: served for name, served in self._served.items() if isinstance(served, HostedAgent)}

    @property
    def sessions(self) -> SessionLocation | None:
        """The location where sessions are stored; None if they live in memory."""
        return self._sessions

    async def serve_inspector(
        self,
        address: str = "127.0.0.1:8400",
        *,
        allow_changes: bool = False,
        content: bool = True,
        token: str | None = None,
        hosts: Sequence[str] = (),
        prices: Mapping[str, tuple[float, float]] = {},
        task_status: TaskStatus[str] | None = None,
    ) -> None:
        """Serve the pages of an `Inspector` over this runtime until it has drained, or until cancelled, for programs
        without a web server: `group.start_soon(runtime.serve_inspector)`. `await group.start(...)` returns the URL when
        it listens; port 0 takes a free one.

        Addresses that other machines reach need `token`; see `Inspector` for this and the other arguments.

        Args:
            address: The address to listen at, as `HOST:PORT`.
            allow_changes: True lets people change sessions on the pages, and answer questions. False shows only.
            content: False hides what people and models said.
            token: The secret that a browser has to know; None on this machine alone.
            hosts: The names by which clients may call it; `*` allows all.
            prices: Model id, or `*` for any other, to the prices of a million input and a million output tokens, as in
                a `Budget`. Turns and model calls are shown with their cost.
            task_status: The task status that `TaskGroup.start` gives; call it by `group.start(...)`.

        Raises:
            Invalid: For an address that other machines reach, without a token. Give a token.
            Unavailable: For an address that is taken. Choose another port.
            ImportError: Without the extra `inspect`. Install the extra that the message names.
        """
        # Loaded when used, and in a thread: it takes a few hundred milliseconds.
        from repertory.backends.worker_threads import run_in_thread

        server = await run_in_thread(wings.inspector)
        status = anyio.TASK_STATUS_IGNORED if task_status is None else task_status
        options = {"content": content, "token": token, "hosts": hosts, "prices": prices}
        await server.serve_runtime(self, address, {**options, "allow_changes": allow_changes}, status)

    async def drain(self) -> DrainReport:
        """Stop in phases and report what could not be finished or stored. A second call gives the same report.

        Raises:
            Invalid: In another event loop than the runtime's. Call it there.
        """
        self._host.check_loop()
        report = self._whole(await self._host.system.drain())
        await flush_exporters()
        return report

    def _whole(self, actors: ActorsReport) -> DrainReport:
        if self._report is None:
            memory = together((), self._host.flushed)
            self._report = drain_report(actors, self._host, memory)
        return self._report

    @property
    def healthy(self) -> bool:
        """True if the runtime takes calls: its actors are not lost, and it does not drain. For readiness probes."""
        return self._host.system.healthy

    def tree(self) -> ActorInfo:
        """Every actor as it is now: state, queue, current work."""
        return self._host.system.tree()

    def look(self, *, idle: bool = True) -> LiveView:
        """The activity of the runtime at this instant: its sessions with their turns, steps and tools, its actors,
        memory stores and commits. `idle=False` leaves out sessions that do nothing, and their actors: for a page that
        is drawn again and again, of thousands of sessions; the counters are of all.

        In its event loop. It asks no actor, so it works on stuck ones too. It holds the loop while it reads every
        session (`docs/reference/metrics.md` says how long).

        Args:
            idle: False leaves out sessions that do nothing.

        Raises:
            NotReady: Before the block. Open it first.
        """
        return view_of(self._host, self._cluster, idle=idle)

    def answers(self, session_id: str) -> dict[str, str]:
        """The text of the answers that models give in a session now, as far as it has come, by agent id. What a model
        says through middleware is not in it, nor that of an agent that runs in another process. In its event loop.

        Args:
            session_id: The session.
        """
        return answers_of(self._host, session_id)

    async def serve_metrics(
        self,
        address: str = "127.0.0.1:9464",
        *,
        hosts: Collection[str] = (),
        task_status: TaskStatus[str] | None = None,
    ) -> None:
        """Answer `GET /metrics` in Prometheus' text format, for a worker without a web server, until it is cancelled or
        the drain is over. See `metrics_app`, which sets the meter provider in the same way.

        `await group.start(runtime.serve_metrics)` returns the address once it listens.

        Args:
            address: `host:port`, port 0 for any; anybody who reaches it may read, so it is this machine alone unless
                you say more.
            hosts: The names that requests may use, besides addresses and those of this machine; `*` for all. A web page
                can make any other name lead here.
            task_status: The task status that `TaskGroup.start` gives; call it by `group.start(...)`.

        Raises:
            ImportError: Without the extra `telemetry`. Install the extra that the message names.
            Invalid: For an address that is none or is taken, and as `metrics_app`. Correct the argument.
        """
        wings.telemetry().watch_host(self._host, lambda: self._cluster)
        status = anyio.TASK_STATUS_IGNORED if task_status is None else task_status
        await wings.telemetry().serve_metrics(address, hosts, self._host.system.drained, status)

    def picture(self) -> Picture:
        """`tree` as a picture: `.svg`, `.text`; a notebook shows it. Of many sessions, those that failed or have the
        most messages waiting are drawn, and the others fold into one row.
        """
        from repertory.core.pictures.actors import actors_picture  # loaded when used

        return actors_picture(self.tree())

    def stats(self) -> RuntimeStats:
        """Counters of the whole process: messages, failures, restarts, dead letters, records not stored yet, and how
        full it is.
        """
        return runtime_stats(self._host, None if self._cluster is None else self._cluster.admission)
