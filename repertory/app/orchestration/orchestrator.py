"""The public API that graphs and swarms share.

The classes decide nothing about runs. They keep the orchestrator's actors alive for as long as a call (or `async with`)
lasts, and pass the calls on to them.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
import secrets
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Literal, Self, TypedDict, TypeVar, Unpack, cast

from msgspec.structs import replace

from repertory.actors.call import Busy, Invocation
from repertory.actors.context import AgentSettings
from repertory.actors.hooks.calls import fire_built, fire_sync
from repertory.actors.hooks.events import AfterSnapshotEvent, BeforeSnapshotEvent, HookProvider, HookRegistry
from repertory.actors.hooks.order import HookOrder
from repertory.actors.in_memory_journal import InMemoryJournal
from repertory.actors.orchestrator.events import MultiAgentInitializedEvent
from repertory.actors.orchestrator.run_driver import OrchestratorParts
from repertory.app.agent import extensions
from repertory.app.agent.persisted import Snapshot
from repertory.app.agent.session import CallOptions, read_call, take_unknown
from repertory.app.agent.snapshots import SnapshotLoaded
from repertory.app.host.blocking import blocking_host
from repertory.app.host.life import SessionLife
from repertory.app.host.plugins import cached_list, check_plugins, marked_callbacks
from repertory.app.orchestration.nodes import CustomNode, NodeLocation, RunSessionSpec, SessionNodeRunner
from repertory.app.sessions.sessions import PlacedSession, check_placement
from repertory.app.tracebacks import inside_event_loop, short_errors, span, telemetry, trace_ids
from repertory.core.ids import check_id
from repertory.core.orchestration.journals import journal_name, node_journal
from repertory.core.orchestration.run import RUN, Run
from repertory.core.result import AgentResult, OutputFields
from repertory.core.run_results import MultiAgentResult, NodeResult, Status
from repertory.core.snapshots.portable import (
    ORCHESTRATOR,
    RunFields,
    RunShape,
    check_orchestrator,
    read_orchestrator,
    read_run_document,
    run_document,
    snapshot_of,
    token_of,
)
from repertory.core.turn import StopReason
from repertory.errors import ActorDead, AgentBusy, Invalid, SessionBusy, SnapshotException, Unavailable

if TYPE_CHECKING:
    from repertory.actors.hooks.events import EventTypes, HookCallback
    from repertory.actors.orchestrator.run_driver import NodePolicy, StatusOf
    from repertory.app.agent.extensions import FollowingManager
    from repertory.app.host.session import ActiveSession
    from repertory.app.orchestration.nodes import Node, RunnerSettings
    from repertory.app.sessions.sessions import AnySessionManager, SessionPlacement
    from repertory.app.tracebacks import AttributeValue
    from repertory.backends.ports import OutputSchema
    from repertory.core.budget import Budget
    from repertory.core.messages import Prompt, Usage
    from repertory.core.orchestration.plan import Plan
    from repertory.core.orchestration.run import OrchestratorKind, Task
    from repertory.core.pictures.runs import PicturedEdge
    from repertory.core.pictures.svg import Picture
    from repertory.core.result import TurnEvent
    from repertory.core.snapshots.fields import SnapshotFields
    from repertory.core.snapshots.portable import NodeFields
    from repertory.core.stream_events import MultiAgentStreamEvent


class RunOptions(TypedDict, total=False):
    """The options of every call of an orchestrator beside the task and the invocation state. None means the same as
    leaving an option out.
    """

    idempotency_token: str | None
    """Names the run: a second call with the same token resumes it, or returns its result again."""
    resume: bool | None
    """The decision on an unfinished run. True resumes it, whatever the task; False abandons it and begins another.
    None resumes it when there is no task or the same one, and refuses another task with `RunUnfinished`.
    """
    timeout_s: float | None
    """Seconds for the whole call. Then it returns with status `interrupted` and reason `limit_time`; the run can be
    resumed."""
    budget: Budget | None
    """The budget of all nodes together, in this call. When it is used up the call returns with status `interrupted` and
    the reason; the run can be resumed."""
    busy: Busy | None
    """The conduct of the call while another one works: `queue` or `reject`; None for the orchestrator's own setting."""


Result = TypeVar("Result", bound=MultiAgentResult, covariant=True)
"""The type of a call's result."""


class MultiAgentBase(ABC):
    """The base class of objects that run several agents for one task, and can be a node themselves.

    Attributes:
        id: Its name in its session.
    """

    id: str

    @abstractmethod
    async def invoke_async(
        self, task: Prompt = None, invocation_state: dict[str, Any] | None = None, **options: Unpack[RunOptions]
    ) -> MultiAgentResult:
        """Work on the task, or resume it.

        Args:
            task: The prompt for the nodes. None goes on with the unfinished run.
            invocation_state: Values of the caller for the hooks and tools of this call. The model never sees them.
            options: The options of `RunOptions`.
        """

    def __call__(
        self, task: Prompt = None, invocation_state: dict[str, Any] | None = None, **values: Any
    ) -> MultiAgentResult:
        """`invoke_async` from sync code. `values` are further ones of the invocation state; that is deprecated.

        Args:
            task: The prompt for the nodes. None goes on with the unfinished run.
            invocation_state: Values of the caller for the hooks and tools of this call. The model never sees them.
            values: Further values of the invocation state; deprecated.
        """
        if values:
            warnings.warn("give other keywords as invocation_state={...}", UserWarning, stacklevel=2)
        return blocking_host().run(self.invoke_async, task, {**(invocation_state or {}), **values})

    async def stream_async(
        self, task: Prompt = None, invocation_state: dict[str, Any] | None = None, **options: Unpack[RunOptions]
    ) -> AsyncGenerator[MultiAgentStreamEvent[Any]]:
        """`invoke_async` with its events; the last event holds the result.

        Args:
            task: The prompt for the nodes. None goes on with the unfinished run.
            invocation_state: Values of the caller for the hooks and tools of this call. The model never sees them.
            options: The options of `RunOptions`.
        """
        yield {"type": "multiagent_result", "result": await self.invoke_async(task, invocation_state, **options)}

    def serialize_state(self) -> dict[str, Any]:
        """The run as JSON. Implement it, and the next one, if something stores the run."""
        raise NotImplementedError(f"{type(self).__name__} has no serialize_state")

    def deserialize_state(self, payload: dict[str, Any]) -> None:
        """Continue from what `serialize_state` has given.

        Args:
            payload: The state that `serialize_state` has given.
        """
        raise NotImplementedError(f"{type(self).__name__} has no deserialize_state")

    def add_hook(self, callback: HookCallback, event_type: EventTypes = None, order: float = HookOrder.DEFAULT) -> None:
        """Call `callback` at each event of that type. Implement it if the object fires events.

        Args:
            callback: The function to call; it gets the event. It may be async.
            event_type: The class of the events; None reads it from the annotation of the callback's parameter.
            order: Callbacks of a lower number run first; see `HookOrder`.
        """
        raise NotImplementedError(f"{type(self).__name__} has no add_hook, so it takes no plugins")


@short_errors
class Orchestrator(MultiAgentBase, Generic[Result]):
    """An orchestrator whose runs are stored: every node has its own journal in the orchestrator's session.

    A call returns when the run is over, or waits for a person, and the run is durable. A process may be killed at any
    moment: the next call with the same task, or with None, resumes the run.
    """

    kind = "multiagent"
    kind_of_run: OrchestratorKind
    _plan: Plan
    _targets: Mapping[str, Sequence[str]] = {}
    """The targets of each node's edges, of a graph that is drawn."""
    handler = None

    def __repr__(self) -> str:
        """The ids and the nodes, on one line."""
        from repertory.core.notebook import short_repr  # loaded when used

        session_id = getattr(self.session_manager, "session_id", None)
        return short_repr(self, {"id": self.id, "session_id": session_id, "nodes": sorted(self.shape.nodes)})

    def __init__(
        self,
        id: str,
        nodes: Mapping[str, Node],
        *,
        session_manager: AnySessionManager | None,
        hooks: Sequence[HookProvider | HookCallback] | None,
        plugins: Sequence[MultiAgentPlugin] | None,
        busy: Busy,
        trace_attributes: Mapping[str, AttributeValue] | None,
    ) -> None:
        self.id = check_id(id, "orchestrator id")
        following: FollowingManager | None = None
        if hasattr(session_manager, "append_message"):
            session_manager, following = extensions.made_by.hooked_or_placed(session_manager, orchestrates=True)
        self._node_map = dict(nodes)
        self.keep_in(check_placement(session_manager))
        self.kept_by = None if following is None else following.manager
        """The session manager that follows it by hooks, and keeps the run itself; None for all others."""
        if busy not in ("queue", "reject"):
            raise Invalid("busy is 'queue' or 'reject'", got=busy)
        self.busy: Busy = busy
        self.hooks = HookRegistry()
        if following is not None:
            self.hooks.add_own(following)
        for hook in list_of(object, hooks, "hooks"):
            self.hooks.add_hook(cast("HookProvider", hook))
        self.trace_attributes = _attributes(trace_attributes)
        _check_apart(self._node_map)
        self._run, self._status_of = Run(), None
        self._run.kind = self.kind_of_run
        self._opened = False
        """True once `state` is a call's run, the stored one or a given one."""
        self._given_run: RunFields | None = None
        """The fields of a run that the next call loads first; None for none."""
        self._memory = InMemoryJournal()
        self._unsaved_id = f"unsaved-{secrets.token_hex(8)}"
        self._journals: dict[str, dict[str, str]] = {}
        """The names of its journals, `RUN` for its own, by the name that it has in a session. Each is checked once."""
        make_life: Callable[..., SessionLife] = RunLife if following is None else following.life
        self._life = make_life(f"orchestrator {self.id}", partial(self.spec, None), self)
        for plugin in (checked := check_plugins(list_of(object, plugins, "plugins"), MultiAgentPlugin)):
            for callback in plugin.hooks:
                self.hooks.add_callback(None, callback)
        self._late = LateInits(self, checked)
        self._late.follow(fire_built(self.hooks, MultiAgentInitializedEvent(source=self, invocation_state={})))

    def keep_in(self, session_manager: SessionPlacement | None) -> None:
        """Keep its runs there. Errors: `Invalid` for a node whose journal could not be named."""
        for node in self._node_map if session_manager is not None else ():
            check_id(node_journal(self.id, node), "node id")
        self.session_manager = session_manager

    def add_hook(
        self, callback: HookCallback, event_type: EventTypes = None, order: float = 0, *, guard: bool | None = None
    ) -> None:
        """Call `callback` at each event of that type; see `HookRegistry.add_callback`."""
        self.hooks.add_callback(event_type, callback, order=order, guard=guard)

    @property
    def session_id(self) -> str | None:
        """The session's id; None when runs are not stored."""
        manager: Any = self.session_manager or self.kept_by
        return manager.session_id if manager is not None else None

    @property
    def form(self) -> OutputSchema | None:
        """The output schema: None, since an orchestrator has none."""
        return None

    def initial(self) -> SnapshotFields | None:
        """The initial conversation: None, since an orchestrator has none. `load` resets its nodes."""
        return None

    def __call__(
        self, task: Prompt = None, invocation_state: dict[str, Any] | None = None, **options: Unpack[RunOptions]
    ) -> Result:
        """Work on a task from sync code; takes the arguments of `invoke_async`. Blocks until the run is durable."""
        return blocking_host().run(self.invoke_async, task, invocation_state, **options)

    async def invoke_async(
        self, task: Prompt = None, invocation_state: dict[str, Any] | None = None, **options: Unpack[RunOptions]
    ) -> Result:
        """Work on a task, or resume the unfinished run. Cancelled, running nodes are cut short, and the run can be
        resumed.

        Errors: also what the store, guards and conditions raise.

        Args:
            task: The prompt for the nodes. None goes on with the unfinished run.
            invocation_state: Values for conditions, and for the hooks and tools of every node, which share this
                dictionary itself. It is not stored: a call that resumes a run brings its own.
            options: The options of `RunOptions`.

        Raises:
            RunUnfinished: For another task while a run is unfinished. Resume it, or pass `resume=False`.
            NodeFailed: When a node fails; it has the result so far. Read its cause, and call again to resume.
            AgentBusy: With `busy="reject"` while another call works. Call again when it is over.
        """
        invocation = read_run_call(task, invocation_state, options)
        alive = self._life.session(invocation.busy or self.busy, invocation.deadline)
        with self._life.running_now(invocation):
            async with alive as session:
                return cast("Result", await session.invoke(invocation))

    async def stream_async(
        self, task: Prompt = None, invocation_state: dict[str, Any] | None = None, **options: Unpack[RunOptions]
    ) -> AsyncGenerator[MultiAgentStreamEvent[Result]]:
        """`invoke_async` with its events: `multiagent_node_start`, `multiagent_node_stream` (whose `event` is the
        node's own), `multiagent_node_stop`, `multiagent_node_interrupt`, `multiagent_node_cancel` and
        `multiagent_handoff`, by `type`; the last event holds the `result`. Leaving early cancels the call: a caller
        that may leave closes the stream (`contextlib.aclosing`), since Python does not do so at once.
        """
        invocation = read_run_call(task, invocation_state, options)
        with self._life.running_now(invocation):
            async with self._life.stream(invocation, invocation.busy or self.busy, moves=True) as events:
                async for event in events:
                    yield cast("MultiAgentStreamEvent[Result]", with_type(event))

    def save_snapshot(self, metadata: Mapping[str, Any] | None = None) -> Snapshot:
        """`save_snapshot_async` for sync code.

        Args:
            metadata: Values of your own, as JSON, that the snapshot carries.

        Raises:
            Invalid: Inside an event loop. Use `save_snapshot_async`.
        """
        return cast("Snapshot", self._blocking(self.save_snapshot_async, metadata))

    def load_snapshot(self, snapshot: Mapping[str, Any]) -> SnapshotLoaded:
        """`load_snapshot_async` for sync code.

        Args:
            snapshot: The snapshot, as `save_snapshot` gave it.

        Raises:
            Invalid: Inside an event loop. Use `load_snapshot_async`.
        """
        return cast("SnapshotLoaded", self._blocking(self.load_snapshot_async, snapshot))

    async def save_snapshot_async(self, metadata: Mapping[str, Any] | None = None) -> Snapshot:
        """The run and every node as they are now, as JSON. Also during a run, from the same event loop. It does not
        stop the run; what nodes do meanwhile is not in it.

        It shows all nodes at one moment: it holds the messages of a node that no other node has read yet. A node that
        works is in it with its messages so far, and continues from there. Errors: also what opening a node raises.

        Args:
            metadata: Values of your own, as JSON, that the snapshot carries.

        Raises:
            Invalid: For metadata that is not JSON. Correct the argument.
            RunUnfinished: While a snapshot is loaded, or was not loaded completely. Load it again.
        """
        if metadata is not None and not isinstance(cast("object", metadata), Mapping):
            raise Invalid("metadata is a dictionary", got=type(metadata).__name__)
        with span("repertory.snapshot.save", {**self.trace_attributes, "orchestrator.id": self.id}):
            noted = {**trace_ids(), **(metadata or {})}
            before = BeforeSnapshotEvent(agent=None, source=self, action="save", metadata=noted)
            fire_sync(self.hooks, before)
            state = await self._read_state()
            snapshot = Snapshot(snapshot_of(state, before.metadata, time.time(), ORCHESTRATOR))
            fire_sync(self.hooks, AfterSnapshotEvent(agent=None, source=self, action="save", snapshot=snapshot))
        return snapshot

    async def load_snapshot_async(self, snapshot: Mapping[str, Any]) -> SnapshotLoaded:
        """Continue from a snapshot: its run is the next run here, and each node's conversation is that of the snapshot.
        Nodes that had done nothing then begin anew. The history keeps the messages until now. Waits for calls that
        work, and returns when all of it is durable.

        The next call resumes a run with work left. Cancelled after it has begun, loading still completes. When the
        process is killed on the way, or a node cannot be stored, calls raise `RunUnfinished` until the snapshot is
        loaded again, or `resume=False` begins another run. Errors: also those of the store.

        Args:
            snapshot: The snapshot, as `save_snapshot` gave it.

        Raises:
            SnapshotException: For a snapshot that was changed, truncated, or is of another version, kind or
                orchestrator. Nothing has changed; use an intact one.
            AgentBusy: From within its run. Nothing has changed; call again when it is over.
        """
        with span("repertory.snapshot.load", {**self.trace_attributes, "orchestrator.id": self.id}):
            fields = read_orchestrator(snapshot)
            if fields.orchestrator_id != self.id:
                text = f"Snapshot orchestrator id mismatch: expected {self.id!r}, got {fields.orchestrator_id!r}"
                raise SnapshotException(text)
            shape = self.shape
            check_orchestrator(self.id, fields, shape)
            async with self._life.session() as session:
                if session.in_a_turn:
                    raise AgentBusy("a run is active: load the snapshot when it is over", orchestrator=self.id)
                fire_sync(self.hooks, BeforeSnapshotEvent(agent=None, source=self, action="load", snapshot=snapshot))
                await session.load_run(fields)
            loaded = SnapshotLoaded(
                fields=tuple(node for node in fields.nodes if node in shape.nodes),
                missing_nodes=tuple(node for node in fields.nodes if node not in shape.nodes),
            )
            event = AfterSnapshotEvent(agent=None, source=self, action="load", snapshot=snapshot, loaded=loaded)
            fire_sync(self.hooks, event)
        return loaded

    async def _read_state(self) -> Mapping[str, object]:
        active = self._life.current_here
        if active is not None and self._given_run is None:
            with suppress(ActorDead, Unavailable):  # The call that keeps it alive may just have ended.
                return await active.save_run()
        async with self._life.session() as session:
            return await session.save_run()

    def _blocking(self, function: Any, argument: object) -> object:
        if inside_event_loop():
            raise Invalid(f"inside an event loop await {function.__name__}", orchestrator=self.id)
        return blocking_host().run(function, argument)

    def cancel(self) -> None:
        """End the running call early, if one runs; from any thread. The run can be resumed."""
        self._life.stop_before_its_turn(StopReason())
        current = self._life.current
        if current is not None and current.alive:
            current.cancel()

    async def __aenter__(self) -> Self:
        """Keep its actors, and its nodes whose conversations are stored, alive until the end of the block. Another task
        may leave the block.
        """
        await self._life.enter()
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        await self._life.leave(error)

    def spec(self, location: NodeLocation | None) -> RunSessionSpec:
        """The session spec: in a session of its own, or in that of the orchestrator whose node it is."""
        manager, wakes = self.session_manager, False
        if manager is not None:
            location = NodeLocation(
                session_id=manager.session_id, agent_id=self.id, sessions=manager.sessions, takeover=manager.takeover
            )
            wakes = isinstance(manager, PlacedSession) and manager.wakes
        where = location or NodeLocation(session_id=self._unsaved_id, agent_id=self.id, sessions=None)

        journals = self._journals.setdefault(where.agent_id, {})
        if RUN not in journals:
            journals[RUN] = check_id(journal_name(where.agent_id), "orchestrator id")

        def location_of(node: str) -> NodeLocation | None:
            if location is None:
                return None
            if node not in journals:
                journals[node] = check_id(node_journal(location.agent_id, node), "node id")
            return replace(location, agent_id=journals[node])

        given = self._runner(location_of)
        return RunSessionSpec(
            agent=AgentSettings(
                session_id=where.session_id,
                agent_id=journals[RUN],
                marks_questions=location is not None,
            ),
            parts_on=lambda host: self._parts(where.agent_id, SessionNodeRunner(host, given)),
            finished=self._end,
            reject=self.busy == "reject",
            given=(self._policies(), given.anew, given.anew_again, given.once),
            sessions=where.sessions,
            memory=self._memory,
            own=location is None,
            wakes=wakes,
            takeover=where.takeover,
            prepare=self._late.finish,
            opened=self._life.join,
            claim=self._life.claim,
        )

    async def ready(self) -> None:
        """Open the session, so that `state` is the stored run."""
        async with self._life.session():
            pass

    def _read_run(self) -> Run:
        """The run of `state`. In sync code the first use reads the stored one, unless another process has the session;
        inside an event loop `ready()` does.
        """
        if not self._opened and self.session_manager is not None and not inside_event_loop():
            self._opened = True  # It is asked once.
            with suppress(AgentBusy, SessionBusy):
                blocking_host().run(self._open)
        return self._run

    async def _open(self) -> None:
        async with self._life.session("reject"):
            pass

    def _watch(self, run: Run, status_of: StatusOf | None) -> None:
        self._run, self._status_of, self._opened = run, status_of, True

    def works_on(self, run: Run) -> bool:
        """True if a call works on this run now."""
        return self._status_of is not None and run is self._run

    def status_of(self, node: str) -> Status:
        """The status of a node in the run of `state`: while it runs, else as it has ended last."""
        running = None if self._status_of is None else self._status_of(node)
        note = self._run.notes.get(node)
        return running or (Status.PENDING if note is None else note.status)

    def picture(self) -> Picture:
        """The nodes and edges as a picture, with the run of `state` if there is one: `.svg`, `.text`; a notebook shows
        it. It asks nobody and reads nothing.
        """
        from repertory.app.orchestration.pictured import DrawnOrchestrator, picture_of  # loaded when used

        shapes = self.shape.nodes
        drawn = DrawnOrchestrator(
            title=self.id,
            kind=self.kind_of_run,
            shapes={name: shape if isinstance(shape, str) else shape.kind for name, shape in shapes.items()},
            entries=self._plan.entries,
            status_of=self.status_of,
            works=self.works_on(self._run),
            edges_of=self._drawn_edges,
        )
        return picture_of(drawn, self._run)

    @abstractmethod
    def _drawn_edges(self, order: Sequence[str], began: Sequence[str]) -> Sequence[PicturedEdge]:
        """The edges of a picture: see `EdgesOf`."""

    def serialize_state(self) -> dict[str, Any]:
        """The run of `state` as JSON, without the conversations of its nodes, which `save_snapshot` has. The SDK's
        `deserialize_state` reads it too.
        """
        return run_document(self._read_run(), self.id)

    def deserialize_state(self, payload: Mapping[str, Any]) -> None:
        """Continue from that run: `state` has it at once, and the next call of this object loads it before anything
        else. A call of an orchestrator whose node it is does not. Nodes begin with what they were built with, and ask
        again what they have asked a person, unless the SDK wrote it down.

        Args:
            payload: The state that `serialize_state` has given, also in the SDK.

        Raises:
            SnapshotException: For anything else. Use an intact snapshot.
            AgentBusy: While a call works. Call again when it is over.
        """
        if self._status_of is not None:
            raise AgentBusy("a run is active: give it another one when it is over", orchestrator=self.id)
        fields = read_run_document(payload, time.time())
        check_orchestrator(self.id, fields, self.shape)
        self._given_run = fields
        self._watch(fields.run(), None)

    async def load_given(self, session: ActiveSession) -> None:
        """Load what `deserialize_state` was given."""
        fields, self._given_run = self._given_run, None
        if fields is None:
            return
        try:
            await session.load_run(fields)
            self._watch(fields.run(), None)
        except BaseException:
            # Unless another run was given meanwhile, which counts.
            self._given_run = self._given_run or fields
            raise

    def node(self, name: str) -> Node | None:
        """The node of that name, or None."""
        return self._node_map.get(name)

    @property
    def shape(self) -> RunShape:
        """The kind of the orchestrator, and the shape of each of its nodes."""
        return RunShape(kind=self.kind_of_run, nodes={name: _shape_of(node) for name, node in self._node_map.items()})

    async def saved(self, session: ActiveSession, visit_of: Callable[[str], int | None]) -> Mapping[str, object] | None:
        state = await session.save_run()
        visit = None if (token := token_of(state)) is None else visit_of(token)
        turn = {} if visit is None else {"turn": {"visit": visit}}
        return {"type": "multiAgent", **state, **turn} if state["run"] or state["nodes"] else None

    async def load(self, session: ActiveSession, wanted: NodeFields | None, name_of: Callable[[int], str]) -> None:
        if isinstance(wanted, RunFields):
            await session.load_run(wanted, None if wanted.visit is None else name_of(wanted.visit))
        elif (await session.image()).last_seq:
            await session.load_run(RunFields(orchestrator_id=self.id, kind=self.kind_of_run))

    def _parts(self, orchestrator_id: str, runner: SessionNodeRunner) -> OrchestratorParts:
        return OrchestratorParts(
            orchestrator_id=orchestrator_id,
            plan=self._plan,
            runner=runner,
            hooks=self.hooks,
            policies=self._policies(),
            edges=self._targets,
            owner=self,
            watch=self._watch,
            find_telemetry=telemetry,
        )

    @abstractmethod
    def _policies(self) -> Mapping[str, NodePolicy]:
        """Timeout, retries and failure handling, by node."""

    @abstractmethod
    def _runner(self, location_of: Callable[[str], NodeLocation | None]) -> RunnerSettings:
        """The settings for running its nodes."""

    def _end(self, run: Run, result: MultiAgentResult) -> Result:
        self._watch(run, None)
        return self._finished(run, dataclasses.replace(result, results=ReadResults(result.results, self)))

    @abstractmethod
    def _finished(self, run: Run, result: MultiAgentResult) -> Result:
        """The result for callers."""


def _shape_of(node: Node) -> RunShape | Literal["agent", "other"]:
    if isinstance(node, Orchestrator):
        return node.shape
    return "other" if isinstance(node, CustomNode) else "agent"


def read_run_call(task: Prompt, state: dict[str, Any] | None, options: RunOptions) -> Invocation:
    """The call of a run. Errors: `Invalid`, and `TypeError` for an option that only calls of agents have."""
    if options.get("deliver_to") is not None:
        raise Invalid("graphs and swarms deliver nothing: deliver_to is an option of calls to agents")
    others = sorted(options.keys() & (CallOptions.__annotations__.keys() - RunOptions.__annotations__.keys()))
    if others:
        msg = f"a call takes {', '.join(RunOptions.__annotations__)}, not {', '.join(others)}"
        raise TypeError(msg)
    state = {} if state is None else state
    if isinstance(cast("object", state), dict):
        take_unknown(options, RunOptions, state, stacklevel=5)
    resume = options.get("resume")
    if resume is not None and not isinstance(cast("object", resume), bool):
        raise Invalid("resume is True, False or None", got=resume)
    busy = options.get("busy")
    if busy not in (None, "queue", "reject"):
        raise Invalid("busy is 'queue' or 'reject'", got=busy)
    rest = {name: options.get(name) for name in RunOptions.__annotations__ if name != "resume"}
    return replace(read_call(task, cast("Any", {**rest, "invocation_state": state}), None), resume=resume)


def with_type(event: TurnEvent) -> TurnEvent:
    """The event as streams of runs give it: the last one, with the result, has a type too."""
    return {"type": "multiagent_result", **event} if "type" not in event else event


def _attributes(given: Mapping[str, AttributeValue] | None) -> Mapping[str, AttributeValue]:
    if given is not None and not isinstance(cast("object", given), Mapping):
        raise Invalid("trace_attributes is a dictionary", got=type(given).__name__)
    return dict(given or {})


def _check_apart(nodes: Mapping[str, Node]) -> None:
    """Refuse nodes whose journals could have the name of a journal within another node."""
    for outer, node in nodes.items():
        beneath = node_journal(outer, "")
        found = [name for name in nodes if isinstance(node, Orchestrator) and name.startswith(beneath)]
        if found:
            raise Invalid(
                "nodes within this one could share a journal with others; rename one", node=outer, others=found
            )


T = TypeVar("T")
_NO_LISTS = (str, bytes, Mapping)


def seconds(value: object, what: str) -> float:
    """The value as a number of seconds. Errors: `Invalid`."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise Invalid(f"{what} is a positive number of seconds", got=value)
    return float(value)


def checked_count(value: object, what: str, *, least: int = 1) -> int:
    """The value, a whole number, `least` or more. Errors: `Invalid`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise Invalid(f"{what} is a whole number, {least} or more", got=value)
    return value


def switch(value: object, what: str) -> bool:
    """The value, True or False. Errors: `Invalid`."""
    if not isinstance(value, bool):
        raise Invalid(f"{what} is True or False", got=value)
    return value


def list_of(kind: type[T], values: object, what: str) -> list[T]:
    """The values as a list, None as an empty one. Errors: `Invalid`."""
    if values is None:
        return []
    if not isinstance(values, Iterable) or isinstance(values, _NO_LISTS):
        raise Invalid(f"{what} is a list", got=type(cast("object", values)).__name__)
    found = list(cast("Iterable[object]", values))
    for each in found:
        if not isinstance(each, kind):
            raise Invalid(f"{what} is a list of {kind.__name__}", got=type(each).__name__)
    return cast("list[T]", found)


def mapping_of(kind: type[T], values: object, what: str) -> dict[str, T]:
    """The values as a dictionary by id. Errors: `Invalid`."""
    if not isinstance(values, Mapping):
        raise Invalid(f"{what} is a dictionary by id", got=type(values).__name__)
    found = dict(cast("Mapping[object, object]", values))
    for name, each in found.items():
        if not isinstance(name, str) or not name:
            raise Invalid("a node id is a text", got=name)
        if not isinstance(each, kind):
            raise Invalid(f"{what} is a dictionary of {kind.__name__}", node=name, got=type(each).__name__)
    return cast("dict[str, T]", found)


# The results of nodes after a restart, with their structured output read by the nodes' output schemas again.
#
# A record holds it as JSON. A reader of a result gets the object, if the node's output schema still accepts the JSON.


class ReadResults(Mapping[str, NodeResult]):
    """Results by node, each read when asked for."""

    def __init__(self, results: Mapping[str, NodeResult], owner: Orchestrator[Any]) -> None:
        self._results = results
        self._owner = owner

    def __getitem__(self, node: str) -> NodeResult:
        return _read_again(self._results[node], self._owner.node(node))

    def __iter__(self) -> Iterator[str]:
        return iter(self._results)

    def __len__(self) -> int:
        return len(self._results)

    def __repr__(self) -> str:
        return repr(dict(self))


def _read_again(found: NodeResult, node: Node | None) -> NodeResult:
    form = None if node is None or isinstance(node, CustomNode) else node.form
    match found.result:
        case AgentResult(structured_output=OutputFields() as output) as outcome if form is not None:
            try:
                value, _ = form.read(dict(output))
            except Invalid:  # The output schema has changed.
                return found
            return dataclasses.replace(found, result=dataclasses.replace(outcome, structured_output=value))
        case MultiAgentResult(results=results) as outcome if not isinstance(results, ReadResults):
            if not isinstance(node, Orchestrator):
                return found
            inner = cast("Orchestrator[Any]", node)
            return dataclasses.replace(found, result=dataclasses.replace(outcome, results=ReadResults(results, inner)))
        case _:
            return found


Owner = TypeVar("Owner", bound=Orchestrator[Any])


class RunState(Generic[Owner]):
    """A read-only view of a run of a graph or swarm: every value is read when asked for."""

    __slots__ = ("_owner", "_run")

    def __init__(self, run: Run, owner: Owner) -> None:
        self._run = run
        self._owner = owner

    @property
    def task(self) -> Task:
        """The task of the run; an empty text before the first run."""
        return self._run.task

    @property
    def results(self) -> Mapping[str, NodeResult]:
        """The result of each node's last execution, by node id."""
        return ReadResults(self._run.results, self._owner)

    @property
    def accumulated_usage(self) -> Usage:
        """The tokens of all work in the run."""
        return self._run.usage

    @property
    def accumulated_metrics(self) -> Mapping[str, float]:
        """`latencyMs` of all model calls in the run."""
        return {"latencyMs": self._run.latency_ms}

    @property
    def execution_time(self) -> int:
        """Milliseconds of work on the run until a node ended last, over all calls of the run."""
        return self._run.elapsed_ms

    @property
    def start_time(self) -> float:
        """The start of the run in epoch seconds; 0 before the first run."""
        return self._run.begun_at

    @property
    def _status(self) -> Status:
        if self._owner.works_on(self._run):
            return Status.EXECUTING
        status = self._run.status
        return Status.INTERRUPTED if status is Status.EXECUTING else status  # No call works on it.


class MultiAgentPlugin:
    """Extends graphs and swarms by its methods that are marked with `@hook`. Subclass it and give it a `name`.

    A class may also be a `Plugin`: then it extends agents, too. One object may serve many orchestrators.
    `init_multi_agent` may do more. An asynchronous one runs before the orchestrator's first call; when it fails, so
    does the call, and the next call tries it again.

    Attributes:
        name: The plugin's name; each needs one of its own.
    """

    name: str = ""

    @property
    def hooks(self) -> list[Callable[..., Any]]:
        """The marked callbacks, base classes first, in the order in which they were written; as `Plugin.hooks`."""
        return cached_list(self, "hooks", marked_callbacks)

    def init_multi_agent(self, orchestrator: Any) -> Awaitable[None] | None:
        """Prepare an orchestrator that got this plugin; its hooks are registered already.

        Args:
            orchestrator: The graph or swarm.
        """
        del orchestrator


class RunLife(SessionLife):
    """The life of an orchestrator: before its use, it loads what it was given."""

    def __init__(self, name: str, spec: Callable[[], RunSessionSpec], owner: Orchestrator[Any]) -> None:
        super().__init__(name, spec, keeps_host=True)
        self._owner = owner

    async def _before_use(self, session: ActiveSession) -> None:
        await self._owner.load_given(session)


class LateInits:
    """The asynchronous work of plugins and init callbacks that precedes the first call."""

    def __init__(self, orchestrator: object, plugins: Sequence[MultiAgentPlugin]) -> None:
        """Calls every plugin's `init_multi_agent`. Errors: what a plugin raises."""
        self._orchestrator = orchestrator
        self._waiting: list[tuple[MultiAgentPlugin, Awaitable[None]]] = []
        self._following: list[Callable[[], Awaitable[None]]] = []
        for plugin in plugins:
            self._begin(plugin)

    def _begin(self, plugin: MultiAgentPlugin) -> None:
        begun = cast("object", plugin.init_multi_agent(self._orchestrator))
        if inspect.isawaitable(begun):
            self._waiting.append((plugin, begun))

    def follow(self, callbacks: Sequence[Callable[[], Awaitable[None]]]) -> None:
        """Await these callbacks after the plugins."""
        self._following.extend(callbacks)

    async def finish(self) -> None:
        """Await what is left. A plugin that fails is initialised anew by the next call."""
        while self._waiting:
            plugin, begun = self._waiting.pop(0)
            try:
                await begun
            except BaseException:
                # A coroutine can be awaited once, so the next call needs a new one.
                self._begin(plugin)
                raise
        while self._following:
            await self._following.pop(0)()
