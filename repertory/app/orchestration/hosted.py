"""Graphs and swarms of a `Runtime`: one for each session, made when the session is asked for."""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Callable, Iterator
from typing import TYPE_CHECKING, Any, Generic, TypeVar, Unpack, cast
from weakref import WeakSet, WeakValueDictionary

from repertory.actors.call import callers_call
from repertory.app.host.edge import short_errors
from repertory.app.orchestration.nodes import AgentNode
from repertory.app.orchestration.orchestrator import Orchestrator, read_run_call, with_type
from repertory.app.sessions.sessions import PlacedSession
from repertory.core.ids import check_id
from repertory.core.limits import NO_LIMITS
from repertory.core.orchestration.calls import waiting
from repertory.core.orchestration.journals import journal_name
from repertory.core.orchestration.results import MultiAgentResult
from repertory.core.orchestration.run import Run
from repertory.errors import AgentBusy, Gone, HookFailed, Invalid, SessionBusy
from repertory.runtime.faults import failure_of

if TYPE_CHECKING:
    from repertory.actors.call import Invocation
    from repertory.app.agent.agent import Agent
    from repertory.app.host.host import Host, SessionUse
    from repertory.app.orchestration.orchestrator import RunOptions
    from repertory.app.sessions.sessions import SessionPlace
    from repertory.core.callers import CallerRules
    from repertory.core.interrupts import Interrupt
    from repertory.core.messages import Prompt
    from repertory.core.owed import OwedWork
    from repertory.core.result import TurnEvent

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
        self, host: Host, name: str, make: Callable[[str], Orchestrator[Result]], sessions: SessionPlace | None
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
        """The name under which its runs are owed."""
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
        self._spec = orchestrator.blueprint(None)
        self._caller: CallerRules | None = None

    def for_caller(self, rules: CallerRules) -> OrchestratorSession[Result]:
        """The same session for somebody outside of the program, whose tasks have only what the rules allow.

        Args:
            rules: The rules for tasks.
        """
        session = OrchestratorSession(self._host, self._orchestrator)
        session._caller = rules
        return session

    def _read_call(self, task: Prompt, state: dict[str, Any] | None, options: RunOptions) -> Invocation:
        """Errors: `Invalid` and `TooLarge`, before the session is opened, for what a caller may not say."""
        invocation = read_run_call(task, state, options)
        return invocation if self._caller is None else callers_call(invocation, self._caller, NO_LIMITS)

    def __repr__(self) -> str:
        """Its ids, on one line."""
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
            task: The prompt for the nodes. None goes on with the unfinished run.
            invocation_state: Values of the caller for the hooks and tools of this call. The model never sees them.
            options: The options of `RunOptions`.
        """
        invocation = self._read_call(task, invocation_state, options)
        async with self._use(invocation) as session:
            return cast("Result", await session.invoke(invocation))

    async def stream(
        self, task: Prompt = None, invocation_state: dict[str, Any] | None = None, **options: Unpack[RunOptions]
    ) -> AsyncGenerator[TurnEvent]:
        """The same with its events; see `Graph.stream_async`.

        Args:
            task: The prompt for the nodes. None goes on with the unfinished run.
            invocation_state: Values of the caller for the hooks and tools of this call. The model never sees them.
            options: The options of `RunOptions`.
        """
        invocation = self._read_call(task, invocation_state, options)
        async with self._use(invocation) as session, session.stream(invocation) as events:
            async for event in events:
                yield with_type(event)

    async def wake(self, work: OwedWork) -> None:
        """Go on with the run that the session owes, unless somebody does already. For the runtime. Errors: those of a
        call.

        Args:
            work: What the session owes.
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

    async def cancel(self) -> None:
        """End the running call early, if one runs. The run can be resumed."""
        async with self._host.session(self._spec) as session:
            session.cancel()

    async def interrupts(self) -> list[Interrupt]:
        """The questions to a person that have no answer."""
        async with self._host.session(self._spec) as session:
            image = await session.image()
        run = Run.of(image.nodes.values(), image.frontier, image.run)
        return [one for asked in waiting(run).values() for one in asked]
