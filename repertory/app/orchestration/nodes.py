"""Running the nodes of an orchestrator: agents and orchestrators by their sessions, other objects by `invoke_async`.

A node's session stays alive from the node's first execution in a call until the node has no more work in it.
"""

from __future__ import annotations

import dataclasses
import os
from collections import defaultdict
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeAlias, cast, runtime_checkable

import anyio
from msgspec import Struct
from msgspec.structs import replace

from repertory.actors.call import Invocation
from repertory.actors.context import AgentParts
from repertory.actors.leases import Durable
from repertory.actors.orchestrator.orchestrator import OrchestratorActor, OrchestratorSettings
from repertory.actors.orchestrator.run_driver import NodeCall, NodeEnd
from repertory.actors.persister import PersisterSettings, persister_spec
from repertory.app.agent.agent import Agent
from repertory.app.agent.session import CallbackHandler, calls_of, output_schema_of
from repertory.app.agent.snapshots import (
    Snapshottable,
    enable_tools,
    load_components,
    loaded_by,
    saved_by,
    saved_components,
)
from repertory.app.host.session import SessionSpec
from repertory.core.budget import LIMITED_BY_BUDGET
from repertory.core.caller_events import CallerEvents, is_start
from repertory.core.journal.codec import dump
from repertory.core.messages import check_message
from repertory.core.orchestration.journals import orchestrator_in
from repertory.core.orchestration.run import RUN
from repertory.core.result import AgentResult
from repertory.core.run_results import MultiAgentResult, Status, node_result_of
from repertory.core.snapshots.fields import SnapshotFields
from repertory.core.snapshots.portable import AgentInRun, OtherInRun, conversation_fields, last_turn
from repertory.errors import (
    ActorDead,
    InterruptNotFound,
    InterruptsWaiting,
    Invalid,
    RepertoryError,
    RunUnfinished,
    Unavailable,
)
from repertory.runtime.faults import failure_of
from repertory.runtime.spec import ChildSpec

if TYPE_CHECKING:
    from repertory.actors.in_memory_journal import InMemoryJournal
    from repertory.actors.memory.store import MemoryStoreMessage
    from repertory.actors.orchestrator.orchestrator import Finished
    from repertory.actors.orchestrator.run_driver import NameOf, OrchestratorParts, VisitOf
    from repertory.app.agent.session import AgentSessionSpec
    from repertory.app.host.session import ActiveSession, SessionHost
    from repertory.app.sessions.sessions import SessionLocation
    from repertory.backends.ports import OutputSchema, Tool
    from repertory.core.journal.image import Image
    from repertory.core.messages import Json, Message
    from repertory.core.result import TurnEvent
    from repertory.core.run_results import NodeOutcome
    from repertory.core.snapshots.portable import NodeFields
    from repertory.runtime.ref import ActorRef

_COMING_MAX = 4
"""Nodes without a store that start at a time: they wait only for the event loop, so the first ones may work while
the others start. Nodes with a store all start at once, and wait for it in parallel.
"""


class NodeLocation(Struct, frozen=True, kw_only=True):
    """The place of a node's journal: the orchestrator's session, under the node's own name."""

    session_id: str
    agent_id: str
    sessions: SessionLocation | None
    takeover: bool = False


@runtime_checkable
class ChoosingLocation(Protocol):
    """The additional method of a `SessionLocation` that takes snapshots of runs."""

    def choose_for_run(self, session_id: str, journal: str, keeper: Durable | InMemoryJournal) -> None:
        """Decide how a graph or swarm that is about to start is written to its snapshot."""
        ...


class RunSessionSpec(SessionSpec, frozen=True, kw_only=True):
    """One graph or swarm in one session."""

    working: ClassVar[str] = "another call works on the run"
    no_time: ClassVar[str] = "other calls took all the time of this one"

    parts: None = None
    parts_on: Callable[[SessionHost], OrchestratorParts]
    """Makes the components, whose nodes live on the given host."""
    finished: Finished
    reject: bool = False
    """True if a call is refused while another one works."""
    given: tuple[object, ...] = ()
    """The sources of the components that `parts_on` makes, as far as a program may change them between two calls."""

    def continues(self, other: SessionSpec) -> bool:
        """True if both are of the same orchestrator object, with the same attributes."""
        return (
            isinstance(other, RunSessionSpec)
            and self.claim is other.claim
            and (self.agent, self.reject, self.given) == (other.agent, other.reject, other.given)
        )

    @property
    def named(self) -> Mapping[str, str]:
        """The orchestrator's name, for errors."""
        journal = self.agent.agent_id
        return {"orchestrator": orchestrator_in(journal) or journal}

    async def members(
        self,
        keeper: Durable | InMemoryJournal,
        memories: Mapping[str, ActorRef[MemoryStoreMessage]],
        host: SessionHost,
    ) -> Sequence[ChildSpec]:
        session_id, journal, location = self.agent.session_id, self.agent.agent_id, self.sessions
        if isinstance(location, ChoosingLocation):
            location.choose_for_run(session_id, journal, keeper)
        settings = PersisterSettings(
            session_id=session_id, agent_id=journal, takeover=self.takeover, busy_by=self.busy_by
        )
        wakes, marks = False, self.agent.marks_questions
        if isinstance(keeper, Durable):
            capabilities = keeper.store.capabilities
            wakes, marks = self.wakes and capabilities.waking is not None, not capabilities.shares_turns
        own = OrchestratorSettings(
            orchestrator_id=journal,
            session_id=session_id,
            reject=self.reject,
            wakes=wakes,
            gate=host.gate,
            marks_questions=marks,
        )
        parts = self.parts_on(host)

        def orchestrator() -> OrchestratorActor:
            return OrchestratorActor(own, parts, self.finished, keeper.buffer_of(session_id, journal), host.wall)

        return [persister_spec(settings, keeper, os.urandom), ChildSpec(name="agent", factory=orchestrator)]


class SessionNode(Protocol):
    """An agent or an orchestrator, as a node."""

    kind: str
    """`agent` or `multiagent`, for events."""

    def spec(self, location: NodeLocation | None) -> SessionSpec:
        """The session spec of the node there; None: in its own place."""
        ...

    @property
    def form(self) -> OutputSchema | None:
        """The output schema of the node."""
        ...

    @property
    def handler(self) -> CallbackHandler | None:
        """The callback handler for the node's events."""
        ...

    def initial(self) -> SnapshotFields | None:
        """The messages and state of a fresh execution; None for an orchestrator, which has no conversation."""
        ...

    async def saved(self, session: ActiveSession, visit_of: Callable[[str], int | None]) -> Mapping[str, object] | None:
        """The node's part of a snapshot; None when it has done nothing. `visit_of`: the execution with that token."""
        ...

    async def load(self, session: ActiveSession, wanted: NodeFields | None, name_of: Callable[[int], str]) -> None:
        """Become what the snapshot or, for None, the constructor says; returns when that is durable. `name_of`: the
        token of an execution.
        """
        ...


@runtime_checkable
class Askable(Protocol):
    """Any other object that can be asked, such as an agent of another library."""

    async def invoke_async(self, prompt: Any, /, *, invocation_state: dict[str, Any]) -> Any:
        """Do the work. Returns an `AgentResult`, a `MultiAgentResult` or a text."""
        ...


@runtime_checkable
class Streamable(Protocol):
    """An object that is asked in this way instead, so that a caller who streams sees its events as well."""

    def stream_async(self, prompt: Any, /, *, invocation_state: dict[str, Any]) -> AsyncGenerator[Any]:
        """Do the work: yield any events, and the result as `{"result": ...}` at last."""
        ...


class CustomNode(Struct, frozen=True):
    """An object that keeps its conversation itself, or has none."""

    executor: Askable


_EMPTY_MESSAGE: Message = {"role": "assistant", "content": []}
Node: TypeAlias = SessionNode | CustomNode
EndOf: TypeAlias = "Callable[[Sequence[Message]], tuple[Mapping[str, Json], tuple[str, str] | None]]"
"""Reads the context that a node leaves for others, and its handoff, from all messages of an execution."""


class RunnerSettings(Struct, frozen=True, kw_only=True):
    """The rules by which nodes are run."""

    nodes: Mapping[str, Node]
    location_of: Callable[[str], NodeLocation | None]
    anew: bool = False
    """True if every execution begins with the messages and state that the node was built with."""
    anew_again: bool = False
    """True if every execution but the node's first in a run does."""
    once: bool = False
    """True if no node works twice in a run."""
    end_of: EndOf | None = None


class _Alive(Struct, frozen=True):
    spec: SessionSpec
    session: ActiveSession


class SessionNodeRunner:
    """A `NodeRunner` whose node sessions live on a host."""

    def __init__(self, host: SessionHost, settings: RunnerSettings) -> None:
        self._host = host
        self._settings = settings
        self._alive: dict[str, _Alive] = {}
        self._coming = anyio.Semaphore(_COMING_MAX)
        self._cuts: list[NodeCut] = []
        """Snapshots of all nodes that are being read."""

    def kind_of(self, node: str) -> str:
        """`agent` or `multiagent`, for events."""
        found = self._settings.nodes[node]
        return "agent" if isinstance(found, CustomNode) else found.kind

    async def run(self, call: NodeCall) -> NodeEnd:
        node = self._settings.nodes[call.node]
        call.invocation_state.setdefault("request_state", {})
        # A snapshot shows all nodes at one moment, so a node is read before it works on.
        for cut in tuple(self._cuts):
            await cut.keep(call.node)
        if isinstance(node, CustomNode):
            return NodeEnd(outcome=await _asked(node.executor, call))
        try:
            alive = await self._enter(call.node, node)
            if (call.again and self._settings.anew_again) or self._settings.anew:
                await _begin_anew(alive.session, node, call)
            before = 0 if self._settings.end_of is None else _before(await alive.session.image(), call.token)
            outcome = await _invoked(alive.session, node, call)
        except (Unavailable, ActorDead) as error:
            # A node that the drain has cut off has not failed: its run is resumed later.
            return NodeEnd(outcome=None if self._host.refusing else error)
        except RepertoryError as error:
            return NodeEnd(outcome=error)
        if self._host.refusing and isinstance(outcome, AgentResult) and outcome.stop_reason == "cancelled":
            return NodeEnd(outcome=None)
        reason = outcome.stop_reason if isinstance(outcome, AgentResult) else outcome.reason
        if reason in LIMITED_BY_BUDGET:
            return NodeEnd(outcome=None, stopped=reason)
        if self._settings.end_of is None:
            return NodeEnd(outcome=outcome)
        context, handed = self._settings.end_of(await alive.session.messages_after(before))
        return NodeEnd(outcome=outcome, context=context, handed=handed)

    def cut(self, visit_of: VisitOf) -> NodeCut:

        async def read(name: str) -> object:
            node = self._settings.nodes[name]
            if isinstance(node, CustomNode):
                own = saved_by(name, node.executor) if isinstance(node.executor, Snapshottable) else None
                return None if own is None else {"type": "other", "state": own}
            async with self._reached(name, node) as session:
                return await node.saved(session, lambda token: visit_of(name, token))

        cut = NodeCut(self._settings.nodes, read, self._cuts.remove)
        self._cuts.append(cut)
        return cut

    async def load(self, nodes: Mapping[str, NodeFields | None], name_of: NameOf) -> None:
        errors: list[RepertoryError] = []

        async def load(name: str) -> None:
            try:
                await self._load(name, nodes[name], name_of)
            except RepertoryError as error:
                errors.append(error)

        async with anyio.create_task_group() as group:
            for name in nodes:
                group.start_soon(load, name)
        if errors:
            raise errors[0]

    async def _load(self, name: str, wanted: NodeFields | None, name_of: NameOf) -> None:
        node = self._settings.nodes[name]
        if not isinstance(node, CustomNode):
            async with self._reached(name, node) as session:
                await node.load(session, wanted, lambda visit: name_of(name, visit))
        elif isinstance(wanted, OtherInRun) and isinstance(node.executor, Snapshottable):
            loaded_by(name, node.executor, wanted.state)

    @asynccontextmanager
    async def _reached(self, name: str, node: SessionNode) -> AsyncGenerator[ActiveSession]:
        """The node's session, alive for as long as the block."""
        spec = node.spec(self._settings.location_of(name))
        session = await self._host.enter(spec)
        try:
            yield session
        finally:
            await self._host.leave(spec)

    async def done(self, node: str) -> None:
        alive = self._alive.pop(node, None) if self._settings.once else None
        if alive is not None:
            await self._host.leave(alive.spec)

    async def rest(self) -> None:
        """Let every node's session rest, in parallel."""
        alive, self._alive = self._alive, {}
        async with anyio.create_task_group() as group:
            for one in alive.values():
                group.start_soon(self._host.leave, one.spec)

    async def _enter(self, name: str, node: SessionNode) -> _Alive:
        alive = self._alive.get(name)
        if alive is not None and alive.session.alive:
            return alive
        if alive is not None:
            del self._alive[name]
            await self._host.leave(alive.spec)
        location = self._settings.location_of(name)
        spec = node.spec(location)
        async with AsyncExitStack() as stack:
            async with self._coming if location is None else nullcontext():
                session = await self._host.enter(spec)
            stack.push_async_callback(self._host.leave, spec)
            alive = self._alive[name] = _Alive(spec, session)
            # From here on `rest` lets the session go.
            stack.pop_all()
        return alive


async def _begin_anew(session: ActiveSession, node: SessionNode, call: NodeCall) -> None:
    """Reset the node, and those within it, to what it was built with, unless this execution began before a crash."""
    if call.answers:
        return
    image, wanted = await session.image(), node.initial()
    if _is_begun(image, call.token):
        return
    if wanted is None:
        await node.load(session, None, lambda _: call.token)
    elif image.message_count > len(wanted.messages or ()):
        await session.show(wanted)


def _is_begun(image: Image, token: str) -> bool:
    """True if the last turn or run, or an earlier answered turn, has this token."""
    run = image.nodes.get(RUN)
    begun = image.tokens or (() if run is None else (run.data.get("token"),))
    return token in begun or token in image.finished_turns


def _before(image: Image, token: str) -> int:
    """The sequence number before the first message of an execution, which may have begun before a crash."""
    known = image.finished_turns.get(token)
    if known is not None:
        return known.seq - 1
    return image.tokens[token] - 1 if token in image.tokens else image.last_seq


async def _invoked(session: ActiveSession, node: SessionNode, call: NodeCall) -> AgentResult | MultiAgentResult:
    """The outcome of a turn, or of a run.

    An earlier run's unfinished work and questions are abandoned: this execution is another one. Answers that were
    stored before a crash are not given again: the turn continues. A run that an earlier attempt brought to its limit is
    over, so this attempt is another run with the same token, which is the one found after a crash.
    """
    invocation = Invocation(
        prompt=call.prompt,
        invocation_state=call.invocation_state,
        idempotency_token=call.token,
        output_schema=node.form,
        budget_owner=call.budget_owner,
    )
    try:
        outcome = await _followed(session, node, call, invocation)
    except (InterruptsWaiting, RunUnfinished):
        return await _followed(session, node, call, replace(invocation, drop_interrupts=True, resume=False))
    except InterruptNotFound:
        return await _followed(session, node, call, replace(invocation, prompt=None))
    ended = isinstance(outcome, MultiAgentResult) and outcome.replayed and outcome.status is Status.FAILED
    if ended and call.prompt is not None and not call.answers:
        return await _followed(session, node, call, replace(invocation, resume=False))
    return outcome


async def _followed(
    session: ActiveSession, node: SessionNode, call: NodeCall, invocation: Invocation
) -> AgentResult | MultiAgentResult:
    handler = calls_of(node.handler, call.invocation_state, call.invocation_state.get("agent"))
    if handler is None and call.publish is None:
        return await session.invoke(invocation)
    if handler is not None:
        invocation = replace(invocation, in_step=True)
    events = CallerEvents(call.invocation_state)
    async with session.stream(invocation) as turn:
        async for event in turn:
            if handler is not None:
                for each in events.of(event) or (event,):
                    await handler.tell(each)
            if call.publish is not None and not is_start(event):
                await call.publish(event)
            if isinstance(result := event.get("result"), AgentResult | MultiAgentResult):
                return cast("AgentResult | MultiAgentResult", result)
    raise AssertionError("a stream ends with its result or an error")


async def _asked(node: Askable, call: NodeCall) -> NodeOutcome:
    """The result of a foreign node. Its exception is the outcome, also a cancellation that this task did not get."""
    try:
        if isinstance(node, Streamable):
            return _checked(await _streamed(node, call), call.node)
        return _checked(await node.invoke_async(call.prompt, invocation_state=call.invocation_state), call.node)
    except BaseException as raised:  # noqa: BLE001 - a node may be the user's code, and the run judges its failure
        return failure_of(raised)


async def _streamed(node: Streamable, call: NodeCall) -> object:
    """The result of a foreign node, whose events go to a caller who streams as they come."""
    events = node.stream_async(call.prompt, invocation_state=call.invocation_state)
    result: object = None
    async with aclosing(events) if hasattr(events, "aclose") else nullcontext(events) as given:
        async for event in given:
            turn_event = cast("TurnEvent", event) if isinstance(event, dict) else {"data": cast("object", event)}
            result = turn_event.get("result")
            ended = isinstance(result, AgentResult | MultiAgentResult | str)
            if call.publish is not None and not ended:
                await call.publish(turn_event)
    return result


def _checked(result: object, node: str) -> NodeOutcome:
    """The result of a foreign node. Errors: `Invalid` for one that a run cannot use or store."""
    if isinstance(result, str):
        return AgentResult(stop_reason="end_turn", message={"role": "assistant", "content": [{"text": result}]})
    if not isinstance(result, AgentResult | MultiAgentResult):
        text = "a node gives an AgentResult, a MultiAgentResult or a text"
        raise Invalid(text, node=node, got=type(result).__name__)
    given = cast("AgentResult | MultiAgentResult", result)
    if isinstance(given, AgentResult) and given.message not in (None, _EMPTY_MESSAGE):
        check_message(given.message)
    if isinstance(given, MultiAgentResult) and given.status is Status.PENDING:  # It has not said how it ended.
        given = dataclasses.replace(given, status=Status.COMPLETED)
    ended = node_result_of(given, 0)
    if ended.status is Status.EXECUTING:
        raise Invalid("a node has ended when it gives its result", node=node, status=ended.status.value)
    # Encoded here, where the error is the node's; in the run's own record it would fail the whole call.
    dump(ended.to_record())
    return given


class NodeCut:
    """Reads every node once, for a snapshot of one moment: the runner has a node read before it starts there."""

    def __init__(
        self, nodes: Collection[str], read: Callable[[str], Awaitable[object]], done: Callable[[NodeCut], None]
    ) -> None:
        """`read` returns a node's state, None when it has done nothing yet; `done` is called when all are read."""
        self._nodes = nodes
        self._read_one = read
        self._done = done
        self._locks: dict[str, anyio.Lock] = defaultdict(anyio.Lock)
        self._found: dict[str, object] = {}
        self._error: RepertoryError | None = None

    async def read(self) -> Mapping[str, object]:
        """The states of all nodes that have done anything. Errors: the last that reading a node raised."""
        try:
            async with anyio.create_task_group() as group:
                for node in self._nodes:
                    group.start_soon(self.keep, node)
        finally:
            self._done(self)
        if self._error is not None:
            raise self._error
        return {node: self._found[node] for node in self._nodes if self._found[node] is not None}

    async def keep(self, node: str) -> None:
        """Read the node, unless it was read. An error is kept for `read`, so that the node may start."""
        async with self._locks[node]:
            if node not in self._found:
                try:
                    self._found[node] = await self._read_one(node)
                except RepertoryError as error:
                    self._found[node], self._error = None, error


# Agents as nodes.


def node_of(name: str, executor: object, no_sessions: str) -> Node:
    """The node for this object. A graph or swarm with a session of its own has its run there.

    Errors: `Invalid` for an object that cannot be a node, an agent with a session manager, and an orchestrator with one
    of the program's own.
    """
    if isinstance(executor, Agent):
        if executor.session_manager is not None or executor.kept_by is not None:
            raise Invalid(no_sessions)
        check_no_calls_of_its_own(executor)
        return AgentNode(executor)
    if hasattr(executor, "spec") and hasattr(executor, "session_manager"):
        if cast("Any", executor).kept_by is not None:
            raise Invalid(no_sessions)
        return cast("Node", executor)
    if isinstance(executor, type) or not isinstance(executor, Askable):
        raise Invalid("a node is an agent, a graph, a swarm, or has invoke_async", node=name, got=executor)
    return CustomNode(executor)


def check_no_calls_of_its_own(agent: Agent) -> None:
    """Raise `Invalid` for an agent whose class overrides how it is called. A run calls the agent's session, so that its
    turn survives a crash, and would not call the override.
    """
    kind = type(agent)
    for name in ("invoke_async", "stream_async", "__call__"):
        if getattr(kind, name) is not getattr(Agent, name):
            what = f"{kind.__name__} has its own {name}, which the turns of a node would not call"
            instead = "put that code into hooks, or make the node an object with invoke_async that calls the agent"
            raise Invalid(f"{what}: {instead}", agent=agent.name)


_OF_AGENT = tuple(name for name in AgentParts.__struct_fields__ if name not in ("mark", "last_run_session"))
"""The components that belong to an agent; the others belong to the session that it is in."""


class AgentNode:
    kind = "agent"

    def __init__(self, agent: Agent, tool: Callable[[], Tool] | None = None) -> None:
        """`tool`: makes an additional tool for the agent."""
        self.agent = agent
        self._tool = tool
        self._with_tool: tuple[tuple[object, ...], AgentParts] | None = None
        """The agent's components with the tool, and what they were made of."""
        self._first_state = cast("Mapping[str, Json]", agent.state.get())

    def spec(self, location: NodeLocation | None) -> AgentSessionSpec:
        own = self.agent.spec()
        parts = own.parts
        if self._tool is not None:
            own = replace(own, parts=self._parts(own.parts, self._tool))
        # Nobody brings a node to life for a result that comes later.
        settings = replace(own.agent, defers=False)
        if location is None:
            return replace(own, agent=settings)
        settings = replace(
            settings,
            session_id=location.session_id,
            agent_id=location.agent_id,
            durable=location.sessions is not None,
            marks_questions=True,
        )
        prepare = partial(self._move_in, location, parts, own.prepare)
        own = replace(own, sessions=location.sessions, own=False, takeover=location.takeover, wakes=False)
        return replace(own, agent=settings, prepare=prepare)

    def _parts(self, parts: AgentParts, tool: Callable[[], Tool]) -> AgentParts:
        """The components with the tool: the same object as before, unless the agent has got another component."""
        made_of = tuple(getattr(parts, name) for name in _OF_AGENT)
        known = self._with_tool
        if known is None or any(then is not now for then, now in zip(known[0], made_of, strict=True)):
            known = self._with_tool = made_of, replace(parts, tools=parts.tools.also(tool()))
        return known[1]

    async def _move_in(
        self, where: NodeLocation, parts: AgentParts, prepare: Callable[[], Awaitable[None]] | None
    ) -> None:
        """Prepare the agent before it starts there: in another session than before, its state begins anew."""
        if prepare is not None:
            await prepare()
        lives_in = (None if where.sessions is None else where.sessions.key, where.session_id, where.agent_id)
        if parts.last_run_session not in (None, lives_in):
            parts.state.replace(self._first_state)
        parts.last_run_session = lives_in

    @property
    def form(self) -> OutputSchema | None:
        return output_schema_of(self.agent.structured_output_model)

    @property
    def handler(self) -> CallbackHandler | None:
        return self.agent.callback_handler

    def initial(self) -> SnapshotFields:
        messages = self.agent.spec().agent.initial
        return SnapshotFields(messages=messages, state=self._first_state, names=frozenset(("messages", "state")))

    async def saved(self, session: ActiveSession, visit_of: Callable[[str], int | None]) -> Mapping[str, object] | None:
        image, fields = await session.image(), dict[str, object]()
        if image.last_seq:
            fields = conversation_fields(image)
            turn = last_turn(image)
            visit = None if turn is None else visit_of(turn.token)
            if turn is not None and visit is not None:
                fields["turn"] = {"visit": visit, "messages": turn.messages}
        if own := saved_components(self.agent):
            fields["components"] = own
        if self.agent.enabled_tools is not None:
            fields["enabled_tools"] = self.agent.enabled_tools
        return {"type": "agent", **fields} if fields else None

    async def load(self, session: ActiveSession, wanted: NodeFields | None, name_of: Callable[[int], str]) -> None:
        known = wanted if isinstance(wanted, AgentInRun) else None
        if known is not None and known.fields.messages is not None:
            await session.show(known.under(None if known.visit is None else name_of(known.visit)))
        elif (await session.image()).last_seq:
            await session.show(self.initial())
        if known is not None:
            load_components(self.agent, known.fields.components)
            enable_tools(self.agent, known.fields)
