"""Graphs and swarms of a `Runtime`: one for each session, made when the session is asked for."""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing
from copy import copy
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar, Unpack, cast
from weakref import WeakSet, WeakValueDictionary

from repertory.actors.call import ChangeTimers, Invocation, callers_call
from repertory.actors.turn_log import followed_call
from repertory.app.embedding.call_queue import PostedTurn, QueuedCallInfo, find_posted, queue_at, queue_call
from repertory.app.embedding.turn_status import turn_is_pending
from repertory.app.host.call_forms import queued_call, read_queued_call
from repertory.app.orchestration.nodes import AgentNode
from repertory.app.orchestration.orchestrator import Orchestrator, read_run_call, with_type
from repertory.app.sessions.sessions import PlacedSession
from repertory.app.tracebacks import short_errors
from repertory.core.ids import check_id
from repertory.core.journal.restore import restore
from repertory.core.limits import NO_LIMITS
from repertory.core.orchestration.calls import KnownRun, known_run, run_questions
from repertory.core.orchestration.journals import journal_name
from repertory.core.orchestration.run import Run
from repertory.core.run_results import MultiAgentResult
from repertory.core.turns.turn_start import read_prompt
from repertory.errors import AgentBusy, Gone, HookFailed, Invalid, NotFound, SessionBusy
from repertory.runtime.faults import failure_of

if TYPE_CHECKING:
    from repertory.app.agent.agent import Agent
    from repertory.app.host.host import Host, SessionUse
    from repertory.app.orchestration.orchestrator import RunOptions
    from repertory.app.sessions.sessions import SessionLocation
    from repertory.backends.peer_ports import QueuedCall
    from repertory.core.callers import CallerRules
    from repertory.core.interrupts import Interrupt
    from repertory.core.messages import Prompt
    from repertory.core.pending_work import PendingWork
    from repertory.core.result import TurnEvent
    from repertory.core.stream_events import MultiAgentStreamEvent
    from repertory.core.timers import Timer

Result = TypeVar("Result", bound=MultiAgentResult)
"""The type of a call's result."""


@short_errors
class HostedOrchestrator(Generic[Result]):
    """One graph or swarm of a runtime, for any number of sessions.

    Args:
        host: The host that runs its actors.
        name: Its name in the runtime.
        make: Called with a session id; makes its graph or swarm.
        sessions: The place of its sessions; None for memory.

    Raises:
        Invalid: For a name that is not an id, and for what is no function. Correct the argument.
    """

    def __init__(
        self, host: Host, name: str, make: Callable[[str], Orchestrator[Result]], sessions: SessionLocation | None
    ) -> None:
        self._host = host
        self._name = check_id(name, "orchestrator id")
        if not callable(cast("object", make)):
            text = "a runtime makes a graph for each session: write runtime.orchestrator('team', make)"
            raise Invalid(text, got=type(make).__name__)
        self._make = make
        self._sessions = sessions
        self._made: WeakValueDictionary[str, Orchestrator[Result]] = WeakValueDictionary()
        self._agents: WeakSet[Agent] = WeakSet()
        """The agents in all of them: no two share one."""

    @property
    def journal(self) -> str:
        """The name under which its unfinished runs are recorded as pending work."""
        return journal_name(self._name)

    def session(self, session_id: str, *, takeover: bool = False) -> OrchestratorSession[Result]:
        """The runs in one session. The same id is the same session, also after a restart.

        Args:
            session_id: The id of the session.
            takeover: True fences another owner of the session, whose next write fails with `LeaseLost`. False refuses
                with `SessionBusy`.

        Raises:
            HookFailed: When `make` raises. Read its cause, and mend the callback.
            Invalid: When it returns anything but a new graph or swarm with the id that the runtime knows, without a
                session manager, of agents of its own. Correct the argument.
        """
        made = self._made.get(session_id)
        if made is None or takeover:
            placed = PlacedSession(check_id(session_id, "session_id"), self._sessions, takeover, wakes=True)
            made = self._made[session_id] = self._new(placed)
        return OrchestratorSession(self._host, made)

    def forget_sessions(self) -> None:
        """The runtime begins anew: what is in memory alone has ended. For the runtime."""
        self._made.clear()

    def _new(self, placed: PlacedSession) -> Orchestrator[Result]:
        try:
            made = cast("object", self._make(placed.session_id))
        except BaseException as error:
            failure_of(error)  # What is none goes on.
            raise HookFailed("the function that makes graphs failed", orchestrator=self._name) from error
        if not isinstance(made, Orchestrator):
            raise Invalid("the function makes a Graph or a Swarm", orchestrator=self._name, got=type(made).__name__)
        orchestrator = cast("Orchestrator[Result]", made)
        if orchestrator.id != self._name:
            text = f"the runtime knows it by another id: make it with id={self._name!r}"
            raise Invalid(text, got=orchestrator.id)
        if orchestrator.session_manager is not None or orchestrator.kept_by is not None:
            text = "the runtime keeps its runs: make a new one for each session, without a session_manager"
            raise Invalid(text, orchestrator=self._name)
        agents = set(agents_in(orchestrator))
        if shared := sorted(agent.name for agent in agents if agent in self._agents):
            raise Invalid("agents of another session: make new ones", orchestrator=self._name, agents=shared)
        orchestrator.keep_in(placed)
        self._agents.update(agents)
        return orchestrator


def agents_in(orchestrator: Orchestrator[Any]) -> Iterator[Agent]:
    """The agents of its nodes, and of those within them."""
    for name in orchestrator.shape.nodes:
        node = orchestrator.node(name)
        if isinstance(node, AgentNode):
            yield node.agent
        elif isinstance(node, Orchestrator):
            yield from agents_in(cast("Orchestrator[Any]", node))


@short_errors
class OrchestratorSession(Generic[Result]):
    """The runs of a graph or swarm in one session of a runtime. Cheap to create, any number of times.

    Args:
        host: The host that runs its actors.
    """

    def __init__(self, host: Host, orchestrator: Orchestrator[Result]) -> None:
        self._host = host
        self._orchestrator = orchestrator
        self._spec = orchestrator.spec(None)
        self._caller: CallerRules | None = None

    def for_caller(self, rules: CallerRules) -> OrchestratorSession[Result]:
        """The session for somebody outside of the program, whose tasks have only what the rules allow.

        Args:
            rules: The rules for tasks.
        """
        session = copy(self)
        session._caller = rules
        return session

    def _read_call(self, task: Prompt, state: dict[str, Any] | None, options: RunOptions) -> Invocation:
        """Errors: `Invalid` and `TooLarge`, before the session is opened, for what a caller may not say."""
        invocation = read_run_call(task, state, options)
        return invocation if self._caller is None else callers_call(invocation, self._caller, NO_LIMITS)

    def __repr__(self) -> str:
        """The ids, on one line."""
        from repertory.core.notebook import short_repr  # loaded when used

        manager = self._orchestrator.session_manager
        session_id = None if manager is None else getattr(manager, "session_id", None)
        return short_repr(self, {"session_id": session_id, "orchestrator": self._orchestrator.id})

    @property
    def orchestrator(self) -> Orchestrator[Result]:
        """The graph or swarm of this session, for its hooks, its state and its snapshots."""
        return self._orchestrator

    async def invoke(
        self, task: Prompt = None, invocation_state: dict[str, Any] | None = None, **options: Unpack[RunOptions]
    ) -> Result:
        """Work on a task, or resume the unfinished run; see `Graph.invoke_async`.

        Args:
            task: The prompt for the nodes. None goes on with the unfinished run; with an `idempotency_token`, with the
                run of that token, and waits for it while its call is posted.
            invocation_state: Values of the caller for the hooks and tools of this call. The model never sees them.
            options: The options of `RunOptions`.
        """
        invocation = self._read_call(task, invocation_state, options)
        posted = PostedTurn(self.posted, invocation)
        while True:
            try:
                async with self._use(invocation) as session:
                    return cast("Result", await session.invoke(invocation))
            except NotFound as error:
                await posted.pause(error)

    async def stream(
        self,
        task: Prompt = None,
        invocation_state: dict[str, Any] | None = None,
        *,
        token: str | None = None,
        detach: bool = False,
        after: str | None = None,
        **options: Unpack[RunOptions],
    ) -> AsyncGenerator[MultiAgentStreamEvent[Result]]:
        """Work on a task as `invoke` does, with its events; see `Graph.stream_async`. Leaving it ends the call.

        `token` names the run, as `idempotency_token` does, for a reader that may lose its connection. Each event then
        has an `"offset"`, from which `attach` reads on. A second call with the token reads the same run. With
        `detach=True` the run goes on when its reader has left. Both need a token.

        Args:
            task: The prompt for the nodes. None goes on with the unfinished run.
            invocation_state: Values of the caller for the hooks and tools of this call. The model never sees them.
            token: The idempotency token of the run.
            detach: True lets the run go on when its reader leaves. It needs a token.
            after: The offset of the last event that the reader has; None for all events.
            options: The options of `RunOptions`.

        Raises:
            Invalid: For a token that is no id, and for what is no offset. Correct the argument.
        """
        if token is None and (detach or after is not None):
            raise Invalid("a run that is to outlive its reader needs a token, by which it is found again")
        if token is not None:
            options["idempotency_token"] = token
        invocation = self._read_call(task, invocation_state, options)
        if token is not None:
            invocation = followed_call(invocation, after=after, detach=detach)
        async with aclosing(self._events(invocation)) as events:
            async for event in events:
                yield cast("MultiAgentStreamEvent[Result]", event)

    async def attach(self, token: str, *, after: str | None = None) -> AsyncGenerator[MultiAgentStreamEvent[Result]]:
        """Read a run that was begun with this token, here or before a restart: its events after the offset `after`, of
        an event that the reader has; None for all that this process has. Of the pieces that nodes streamed long ago,
        only the results are told. The last event is the result, which has those of every node. A run that was cut short
        goes on; one whose call is posted is waited for. Errors: those of the run.

        Args:
            token: The idempotency token of the run.
            after: The offset of the last event that the reader has; None for all events.

        Raises:
            NotFound: When no run of this token is known. Say its task again with the token: `stream(task, token=...)`.
            Invalid: For what is no offset. Correct the argument.
        """
        async with aclosing(self.follow(token, after, tells_wait=False)) as events:
            async for event in events:
                yield cast("MultiAgentStreamEvent[Result]", event)

    def follow(self, token: str, after: str | None = None, *, tells_wait: bool = True) -> AsyncGenerator[TurnEvent]:
        """The events of `attach`. For the HTTP service.

        Args:
            token: The idempotency token of the run.
            after: The offset of the last event that the reader has; None for all events.
            tells_wait: True tells `accepted` once while the call is posted.
        """
        invocation = read_run_call(None, None, {"idempotency_token": check_id(token, "token")})
        invocation = followed_call(invocation, after=after, begins=False, detach=True)
        return self._events(invocation, tells_wait=tells_wait)

    def _events(self, invocation: Invocation, *, tells_wait: bool = False) -> AsyncGenerator[TurnEvent]:
        return PostedTurn(self.posted, invocation).events(partial(self._events_now, invocation), tells_wait=tells_wait)

    async def _events_now(self, invocation: Invocation) -> AsyncGenerator[TurnEvent]:
        async with self._use(invocation) as session, session.stream(invocation) as events:
            async for event in events:
                if "model_retry" not in event:  # Of a log that has ended; a node's own is within its event.
                    yield with_type(event)

    async def post(
        self,
        task: Prompt,
        *,
        token: str | None = None,
        invocation_state: dict[str, Any] | None = None,
        **options: Unpack[RunOptions],
    ) -> str:
        """Have a run worked on without waiting for it: the call is kept beside the session until it is done, whatever
        ends meanwhile. Returns its token once it is stored; `invoke(idempotency_token=token)` gives the result later.

        Calls of a session are made in order. The same token is not kept twice. A call that fails for good is parked,
        and `repertory cluster` lists it. Errors: those of the store, with nothing kept.

        Args:
            task: The prompt for the nodes. None goes on with the unfinished run.
            token: The idempotency token of the run.
            invocation_state: Values of the caller for the hooks and tools of this call, as JSON.
            options: The options of `RunOptions`.

        Raises:
            Invalid: For sessions outside SQLite and PostgreSQL, and for what JSON cannot hold. Correct the argument.
        """
        if token is not None:
            options["idempotency_token"] = token
        invocation = self._read_call(task, invocation_state, options)
        read_prompt(invocation.prompt, invocation.limits.sizes.prompt_bytes)
        boxed = queued_call(invocation, None, self._spec.agent.session_id, self._orchestrator.id)
        return await queue_call(self._host, self._spec.sessions, boxed)

    async def posted(self, token: str) -> QueuedCallInfo | None:
        """The posted call of this token, while it is not done; None if there is none, or not any more. Errors: those of
        the store.

        Args:
            token: The idempotency token of the run.
        """
        ids = self._spec.agent.session_id, self._orchestrator.id
        return await find_posted(self._host, self._spec.sessions, *ids, token)

    async def make(self, posted: QueuedCall) -> None:
        """Work on the run of a posted call, or set the timer that was posted. For the runtime. Errors: those of it.

        Args:
            posted: The call that was posted.

        Raises:
            Invalid: When it asks for something else. Post it again.
        """
        match read_queued_call(posted, None):
            case ChangeTimers() as change:
                await self.change_timers(change)
            case Invocation() as invocation:
                async with self._use(invocation) as session:
                    await session.invoke(invocation)
            case _:
                raise Invalid("nobody asks that of a graph or swarm", token=posted.token)

    async def keeps_calls(self) -> bool:
        """True if `post` takes calls: of sessions in SQLite or PostgreSQL."""
        return await queue_at(self._host, self._spec.sessions) is not None

    async def begun(self) -> bool:
        """True if the session has begun; asking this does not begin it. Errors: those of its store."""
        location, ids = self._spec.sessions, self._spec.agent
        if location is None or self._host.holds(self._spec):
            return self._host.knows(self._spec)
        found = await (await self._host.store_of(location)).sessions(ids.session_id)
        return bool(found) and ids.agent_id in found[0].agents

    async def open_token(self) -> str | None:
        """The token of the current run, if it is not over; None for a run without a token. For the runtime."""
        known = await self.told()
        return None if known is None or known.state == "answered" else known.token

    async def told(self, token: str | None = None) -> KnownRun | None:
        """The outcome of the run of this token, which does not go on by that; None when no such run is known. Without a
        token: the current one. Errors: those of the store.

        Args:
            token: The run's token; None for the current run.
        """
        location, ids = self._spec.sessions, self._spec.agent
        if not await self.begun():
            return None
        if location is None or self._host.holds(self._spec):
            async with self._host.session(self._spec) as session:
                image, works = await session.image(), session.in_a_turn
        else:
            rows = await (await self._host.store_of(location)).load(ids.session_id, ids.agent_id)
            image = restore(rows, session_id=ids.session_id).fold.image()
            works = await turn_is_pending(self._host, self._spec)
        return known_run(Run.of(image.nodes.values(), image.frontier, image.run), token, works=works)

    async def wake(self, work: PendingWork) -> None:
        """Go on with the session's unfinished run, unless somebody does already. For the runtime. Errors: those of a
        call.

        Args:
            work: The pending work of the session.
        """
        go_on = read_run_call(None, None, {"busy": "reject"})
        spec = self._spec.waiting(reject=True, deadline=math.inf)
        try:
            async with self._host.session(spec) as session:
                await session.wake(work.why, go_on)
        except (AgentBusy, SessionBusy, Gone):
            return
        finally:
            await self._host.let_go(spec)

    def _use(self, invocation: Invocation) -> SessionUse:
        reject = (invocation.busy or self._orchestrator.busy) == "reject"
        spec = self._spec.waiting(reject=reject, deadline=invocation.deadline)
        return self._host.session(spec, invocation.deadline)

    def is_of(self, host: Host) -> bool:
        """True if it is hosted there. For the runtime.

        Args:
            host: The host to compare with.
        """
        return self._host is host

    async def timers(self) -> list[Timer]:
        """The timers of the session, the next one first; see `Runtime.schedule`."""
        async with self._host.session(self._spec) as session:
            return sorted((await session.image()).timers.values(), key=lambda timer: (timer.at, timer.id))

    async def cancel_timer(self, id: str) -> bool:
        """Cancel a timer; returns when that is stored. False if there is none of that id: it may have begun its run,
        which goes on. Errors: those of opening the session and of its store.

        Args:
            id: The timer's id.
        """
        return await self.change_timers(ChangeTimers(timer_id=check_id(id, "timer id")))

    async def change_timers(self, change: ChangeTimers) -> bool:
        """Set or cancel a timer. For the runtime.

        Args:
            change: The timers to set and to cancel.

        Raises:
            Invalid: For destinations of deliveries, which are of agents alone. Leave them out.
        """
        if change.deliver_to:
            raise Invalid("graphs and swarms deliver nothing: deliver_to is an option of timers of agents")
        async with self._host.session(self._spec) as session:
            return await session.change_timers(change)

    async def cancel(self) -> None:
        """End the running call early, if one runs. The run can be resumed."""
        async with self._host.session(self._spec) as session:
            session.cancel()

    async def interrupts(self) -> list[Interrupt]:
        """The questions to a person that have no answer."""
        async with self._host.session(self._spec) as session:
            image = await session.image()
        run = Run.of(image.nodes.values(), image.frontier, image.run)
        return run_questions(run, self._spec.agent.session_id)
