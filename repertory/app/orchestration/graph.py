"""`Graph` and `GraphBuilder`: nodes that work in the order of their edges."""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeAlias, cast

from repertory.actors.orchestrator.run_driver import NodePolicy, OnFailure
from repertory.app.orchestration.nodes import RunnerSettings, node_of
from repertory.app.orchestration.orchestrator import (
    Orchestrator,
    RunState,
    checked_count,
    list_of,
    mapping_of,
    seconds,
    switch,
)
from repertory.core.json_fields import json_integer, json_list, json_texts
from repertory.core.orchestration.plan import Edge, GraphPlan, drawn_edges, in_a_row, shape_of
from repertory.core.run_results import MultiAgentResult, Status
from repertory.errors import HookFailed, Invalid
from repertory.runtime.faults import failure_of

if TYPE_CHECKING:
    from repertory.actors.call import Busy
    from repertory.actors.hooks.events import HookCallback, HookProvider
    from repertory.app.orchestration.nodes import NodeLocation
    from repertory.app.orchestration.orchestrator import MultiAgentPlugin
    from repertory.app.sessions.sessions import AnySessionManager
    from repertory.app.tracebacks import AttributeValue
    from repertory.core.messages import Json
    from repertory.core.orchestration.plan import EdgePredicate
    from repertory.core.orchestration.run import Run
    from repertory.core.pictures.runs import PicturedEdge
    from repertory.core.pictures.svg import Picture
    from repertory.core.run_results import NodeResult

NO_SESSIONS = "Session persistence is not supported for Graph agents yet: give the session_manager to the Graph."
"""The text of the SDK whose users we serve. The graph's own session stores the conversations of its agents."""


@dataclass(eq=False, slots=True)
class GraphNode:
    """A node of a graph, and what it did last in the run of `graph.state`. Nodes with the same id are equal.

    Args:
        node_id: The id of the node.
        policy: The rules by which it is run; see `NodePolicy`.
    """

    node_id: str
    executor: Any
    """The agent, graph, swarm or other object that does its work."""
    dependencies: set[GraphNode] = field(default_factory=set["GraphNode"], repr=False)
    """The nodes with an edge to it."""
    policy: NodePolicy = field(default_factory=NodePolicy, kw_only=True)
    graph: Graph | None = field(default=None, init=False, repr=False)
    """The graph that was made of it last."""

    @property
    def execution_status(self) -> Status:
        """`pending` before its first execution; then `dispatched` or `executing`, or how it has ended last."""
        return Status.PENDING if self.graph is None else self.graph.status_of(self.node_id)

    @property
    def result(self) -> NodeResult | None:
        """The result of its last execution; None before it has ended."""
        return None if self.graph is None else self.graph.state.results.get(self.node_id)

    @property
    def execution_time(self) -> int:
        """Milliseconds of its last execution; 0 before it has ended."""
        return 0 if self.result is None else self.result.execution_time

    def __eq__(self, other: object) -> bool:
        return isinstance(other, GraphNode) and other.node_id == self.node_id

    def __hash__(self) -> int:
        return hash(self.node_id)

    def __str__(self) -> str:
        return self.node_id


class EdgeConditionWithContext(Protocol):
    """A condition that is given the call's invocation state as well."""

    def __call__(self, state: GraphState, *, invocation_state: dict[str, Any]) -> bool:
        """True if the edge is followed."""
        ...


LegacyEdgeCondition: TypeAlias = Callable[["GraphState"], bool]
EdgeCondition: TypeAlias = LegacyEdgeCondition | EdgeConditionWithContext
"""Takes the `GraphState`, and `invocation_state` by keyword if it has a parameter of that name. A plain function."""


@dataclass(frozen=True, slots=True)
class GraphEdge:
    """An edge of a graph, followed when its condition holds.

    Args:
        from_node: The node that ends first.
        to_node: The node that comes after it.
        condition: The test that decides if the edge is followed; None follows it always.

    Raises:
        Invalid: For a condition that is no function, or an async one. Correct the argument.
    """

    from_node: GraphNode
    to_node: GraphNode
    condition: EdgeCondition | None = None

    def __post_init__(self) -> None:
        condition = cast("object", self.condition)
        if condition is not None and (not callable(condition) or _is_async(condition)):
            raise Invalid("a condition is a plain function that gives True or False", edge=str(self), got=condition)

    def should_traverse(self, state: GraphState, *, invocation_state: dict[str, Any]) -> bool:
        """True if the condition holds.

        Args:
            state: The state of the run.
            invocation_state: Values of the caller for the hooks and tools of this call. The model never sees them.

        Raises:
            HookFailed: When it raises. Read its cause, and mend the callback.
            Invalid: When it returns an awaitable. Correct the argument.
        """
        if self.condition is None:
            return True
        with_state = {"invocation_state": invocation_state} if _takes_invocation_state(self.condition) else {}
        try:
            held = cast("object", self.condition(state, **with_state))
            if not isinstance(held, Awaitable):
                return bool(held)
        except BaseException as error:
            failure_of(error)  # What is none goes on.
            raise HookFailed("a condition failed", edge=str(self)) from error
        if isinstance(held, Coroutine):
            cast("Coroutine[Any, Any, Any]", held).close()
        raise Invalid("a condition gives True or False, not something to await", edge=str(self))

    def __str__(self) -> str:
        return f"{self.from_node} -> {self.to_node}"


class GraphState(RunState["Graph"]):
    """The current state of a graph's run: for conditions, and as `graph.state`. A view: every value is read when asked
    for.
    """

    __slots__ = ()

    @property
    def status(self) -> Status:
        """`executing` while a call works on the run."""
        return self._status

    @property
    def completed_nodes(self) -> frozenset[GraphNode]:
        """The nodes whose last execution completed."""
        return self._with(Status.COMPLETED)

    @property
    def failed_nodes(self) -> frozenset[GraphNode]:
        """The nodes whose last execution failed."""
        return self._with(Status.FAILED)

    @property
    def interrupted_nodes(self) -> frozenset[GraphNode]:
        """The nodes that wait for a person."""
        return self._with(Status.INTERRUPTED)

    @property
    def execution_order(self) -> tuple[GraphNode, ...]:
        """One entry for each time that a node ended, in order."""
        nodes = self._owner.nodes
        return tuple(nodes[node] for node in self._run.order if node in nodes)

    @property
    def execution_count(self) -> int:
        """The number of agents' turns in the run."""
        return self._run.executions

    @property
    def total_nodes(self) -> int:
        """The number of nodes of the graph."""
        return len(self._owner.nodes)

    @property
    def edges(self) -> tuple[tuple[GraphNode, GraphNode], ...]:
        """The graph's edges, as (from, to)."""
        return tuple((edge.from_node, edge.to_node) for edge in self._owner.edges)

    @property
    def entry_points(self) -> tuple[GraphNode, ...]:
        """The nodes where a run begins."""
        return self._owner.entry_points

    def _with(self, status: Status) -> frozenset[GraphNode]:
        nodes = self._owner.nodes
        return frozenset(nodes[node] for node in self._run.with_status(status) if node in nodes)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class GraphResult(MultiAgentResult):
    """The end of a graph's run, or the point where it waits.

    Args:
        status: `success` or `error`.
        reason: The reason, for the log and for who reads it; it may be empty.
        total_nodes: Nodes of the graph.
        completed_nodes: Nodes that completed.
        failed_nodes: Nodes that failed.
        interrupted_nodes: Nodes that wait for a person.
        edges: The graph's edges, as (from, to).
        entry_points: The nodes where the run began.
    """

    total_nodes: int = 0
    completed_nodes: int = 0
    failed_nodes: int = 0
    interrupted_nodes: int = 0
    execution_order: tuple[GraphNode, ...] = ()
    """One entry for each time that a node ended, in order."""
    edges: tuple[tuple[GraphNode, GraphNode], ...] = ()
    entry_points: tuple[GraphNode, ...] = ()

    def own_fields(self) -> dict[str, Json]:
        """The fields that only a graph's result has, as JSON: counts of nodes, and nodes as their ids."""
        fields: dict[str, Json] = {name: getattr(self, name) for name in _COUNTS}
        fields |= {name: [str(node) for node in getattr(self, name)] for name in ("execution_order", "entry_points")}
        edges: Json = [[str(node) for node in edge] for edge in self.edges]
        return {name: value for name, value in {**fields, "edges": edges}.items() if value}

    def with_own(self, fields: Mapping[str, Json]) -> Self:
        """The result with the fields that `own_fields` gave; nodes have no executor."""
        return replace(
            self,
            **{name: json_integer(fields.get(name, 0)) for name in _COUNTS},
            execution_order=_nodes_named(fields.get("execution_order", [])),
            edges=tuple((one, other) for one, other in map(_nodes_named, json_list(fields.get("edges", [])))),
            entry_points=_nodes_named(fields.get("entry_points", [])),
        )

    def picture(self) -> Picture:
        """The run as a picture, with the nodes and edges that the result knows: `.svg`, `.text`."""
        from repertory.app.orchestration.pictured import followed, picture_of_result  # loaded when used
        from repertory.core.pictures.runs import PicturedEdge

        order = [str(node) for node in self.execution_order]
        edges = [
            PicturedEdge(source=str(one), target=str(other), used=followed(str(one), str(other), order))
            for one, other in self.edges
        ]
        return picture_of_result(self, order, edges, [str(node) for node in self.entry_points])


_COUNTS = ("total_nodes", "completed_nodes", "failed_nodes", "interrupted_nodes")


def _nodes_named(value: Json) -> tuple[GraphNode, ...]:
    return tuple(GraphNode(node_id=node, executor=None) for node in json_texts(value))


class Graph(Orchestrator[GraphResult]):
    """Agents that work on a task in the order of the edges.

    `Graph({"researcher": a, "writer": b})` runs them in the order given; `GraphBuilder` makes any other shape. A node
    gets the task, and the answers of the nodes with an edge to it. It starts as soon as no unfinished node comes before
    it; nodes that do not wait for each other run at the same time.

    Each argument can be read as an attribute.

    Errors: from calls see `Orchestrator.invoke_async`.

    Args:
        agents: Agents by node id, to run in this order. Give this or `nodes`.
        nodes: Nodes by id, as a `GraphBuilder` makes them.
        edges: The edges between them.
        entry_points: The nodes where a run begins; empty for those without an edge to them.
        max_node_executions: Executions of nodes in one run, all together; None for no limit. Beyond it the run ends
            with status `failed`.
        execution_timeout: Seconds for one run, all of its calls together; None for no limit.
        node_timeout: Seconds for one attempt of a node.
        reset_on_revisit: True if a node that runs again in the same run begins with the messages and state that it was
            built with.
        session_manager: The manager that stores runs, and every node's conversation; without one they live as long as
            this object.
        hooks: Hook providers or single callbacks.
        plugins: Plugins, in the order in which they are set up.
        id: The graph's name in its session.
        busy: The conduct of a call while another one works: `queue` or `reject`.
        trace_attributes: Additional attributes of its spans.

    Attributes:
        kind_of_run: `graph`.

    Raises:
        Invalid: For an invalid graph. Correct the argument.
    """

    kind_of_run = "graph"

    def __init__(
        self,
        agents: Mapping[str, object] | None = None,
        *,
        nodes: Mapping[str, GraphNode] | None = None,
        edges: Iterable[GraphEdge] = (),
        entry_points: Iterable[GraphNode] = (),
        max_node_executions: int | None = None,
        execution_timeout: float | None = None,
        node_timeout: float | None = None,
        reset_on_revisit: bool = False,
        session_manager: AnySessionManager | None = None,
        hooks: Sequence[HookProvider | HookCallback] | None = None,
        plugins: Sequence[MultiAgentPlugin] | None = None,
        id: str = "default_graph",
        busy: Busy = "queue",
        trace_attributes: Mapping[str, AttributeValue] | None = None,
    ) -> None:
        if (agents is None) == (nodes is None):
            raise Invalid("a graph is made of agents={id: agent}, or by a GraphBuilder")
        if nodes is None:
            given = mapping_of(object, agents, "agents")
            nodes = {name: GraphNode(node_id=name, executor=agent) for name, agent in given.items()}
            shape = in_a_row(tuple(nodes))
            edges = [GraphEdge(from_node=nodes[edge.source], to_node=nodes[edge.target]) for edge in shape.edges]
        else:
            nodes, edges = mapping_of(GraphNode, nodes, "nodes"), list_of(GraphEdge, edges, "edges")
            renamed = [name for name, node in nodes.items() if node.node_id != name]
            if renamed:
                raise Invalid("a node stands under its own id", nodes=renamed)
            joined = [Edge(edge.from_node.node_id, edge.to_node.node_id) for edge in edges]
            shape = shape_of(nodes, joined, [node.node_id for node in list_of(GraphNode, entry_points, "entry_points")])
        self.nodes = dict(nodes)
        self.edges = tuple(edges)
        self.entry_points = tuple(self.nodes[node] for node in shape.entries)
        self.node_timeout = None if node_timeout is None else seconds(node_timeout, "node_timeout")
        self.execution_timeout = None if execution_timeout is None else seconds(execution_timeout, "execution_timeout")
        most = max_node_executions
        self.max_node_executions = None if most is None else checked_count(most, "max_node_executions")
        self.reset_on_revisit = switch(reset_on_revisit, "reset_on_revisit")
        for edge in self.edges:
            edge.to_node.dependencies.add(edge.from_node)
        self._loops = shape.loops
        self._targets = drawn_edges(shape)
        self._plan = GraphPlan.of(
            shape,
            conditions={
                index: self._condition(edge) for index, edge in enumerate(self.edges) if edge.condition is not None
            },
            executions_max=self.max_node_executions,
            time_max_s=math.inf if self.execution_timeout is None else self.execution_timeout,
        )
        if shape.loops and max_node_executions is None and execution_timeout is None:
            text = "a graph with a loop has no limit: set_max_node_executions or set_execution_timeout"
            warnings.warn(text, stacklevel=3)
        made = {name: node_of(name, node.executor, NO_SESSIONS) for name, node in self.nodes.items()}
        _check_once(self.nodes.values())
        super().__init__(
            id,
            made,
            session_manager=session_manager,
            hooks=hooks,
            plugins=plugins,
            busy=busy,
            trace_attributes=trace_attributes,
        )
        for node in self.nodes.values():
            node.graph = self

    @property
    def state(self) -> GraphState:
        """The run that a call worked on last, as it is now; hooks may read it during the run. Before the first call it
        is the stored run, after `await ready()` inside an event loop; `pending` if there is none.
        """
        return GraphState(self._read_run(), self)

    @property
    def passes_model_errors(self) -> bool:
        """True if an agent of it does: see `Agent.passes_model_errors`."""
        agents = (getattr(node, "agent", node) for node in self._node_map.values())
        return any(getattr(agent, "passes_model_errors", False) for agent in agents)

    def _drawn_edges(self, order: Sequence[str], began: Sequence[str]) -> Sequence[PicturedEdge]:
        from repertory.app.orchestration.pictured import followed  # loaded when used
        from repertory.core.pictures.runs import PicturedEdge

        return [
            PicturedEdge(
                source=str(edge.from_node),
                target=str(edge.to_node),
                conditional=edge.condition is not None,
                used=followed(str(edge.from_node), str(edge.to_node), order, began),
            )
            for edge in self.edges
        ]

    def _policies(self) -> Mapping[str, NodePolicy]:
        policies = {name: node.policy for name, node in self.nodes.items()}
        if self.node_timeout is not None:
            for name, own in policies.items():
                if own.timeout_s is None:
                    policies[name] = replace(own, timeout_s=self.node_timeout)
        return policies

    def _runner(self, location_of: Callable[[str], NodeLocation | None]) -> RunnerSettings:
        return RunnerSettings(
            nodes=self._node_map,
            location_of=location_of,
            anew_again=self.reset_on_revisit,
            once=not self._loops,
        )

    def _condition(self, edge: GraphEdge) -> EdgePredicate:
        def holds(run: Run, state: Mapping[str, object]) -> bool:
            return edge.should_traverse(GraphState(run, self), invocation_state=cast("dict[str, Any]", state))

        return holds

    def _finished(self, run: Run, result: MultiAgentResult) -> GraphResult:
        known = {each.name: getattr(result, each.name) for each in fields(result)}
        state = GraphState(run, self)
        ends = [note.status for note in run.notes.values()]
        return GraphResult(
            **known,
            total_nodes=len(self.nodes),
            completed_nodes=ends.count(Status.COMPLETED),
            failed_nodes=ends.count(Status.FAILED),
            interrupted_nodes=ends.count(Status.INTERRUPTED),
            execution_order=state.execution_order,
            edges=state.edges,
            entry_points=self.entry_points,
        )


def _takes_invocation_state(condition: EdgeCondition) -> bool:
    try:
        return "invocation_state" in inspect.signature(condition).parameters
    except (TypeError, ValueError):
        return False


def _is_async(condition: object) -> bool:
    """True if calling the condition returns a coroutine, as far as its type shows."""
    while isinstance(condition, partial):
        condition = cast("partial[object]", condition).func
    called = inspect.getattr_static(type(condition), "__call__", None)
    return inspect.iscoroutinefunction(condition) or inspect.iscoroutinefunction(called)


def _check_once(nodes: Iterable[GraphNode]) -> None:
    executors = [id(node.executor) for node in nodes]
    if len(set(executors)) < len(executors):
        raise Invalid("Duplicate node instance detected. Each node must have a unique object instance.")


class GraphBuilder:
    """Builds a graph. The `set_*` methods and `reset_on_revisit` return the builder.

    Attributes:
        nodes: The nodes until now, by id.
        edges: The edges until now.
        entry_points: The nodes where a run begins, until now.
    """

    def __init__(self) -> None:
        self.nodes: dict[str, GraphNode] = {}
        self.edges: list[GraphEdge] = []
        self.entry_points: list[GraphNode] = []
        self._settings: dict[str, Any] = {}

    def add_node(
        self,
        executor: object,
        node_id: str | None = None,
        *,
        timeout_s: float | None = None,
        retries: int = 0,
        on_failure: OnFailure = "fail",
    ) -> GraphNode:
        """Add an agent, a graph, a swarm, or another object with `invoke_async`. The default id is the executor's `id`,
        else its `name`, else a number.

        Args:
            executor: The agent, graph, swarm or other object that does the work.
            node_id: The node's id; None for the executor's `id`, else its `name`, else a number.
            timeout_s: Seconds for one attempt of the node; None for the graph's `node_timeout`.
            retries: Further executions of the node after a failure.
            on_failure: `fail` ends the run when the node fails; `skip` goes on without it.

        Raises:
            Invalid: For an id or an executor that was added before, and for one with a session manager. Correct the
                argument.
        """
        if node_id is None:
            own = getattr(executor, "id", None) or getattr(executor, "name", None)
            node_id = str(own or f"node_{len(self.nodes)}")
        if not isinstance(cast("object", node_id), str) or not node_id:
            raise Invalid("a node id is a text", got=node_id)
        if node_id in self.nodes:
            raise Invalid(f"Node '{node_id}' already exists")
        if any(node.executor is executor for node in self.nodes.values()):
            raise Invalid("Duplicate node instance detected. Each node must have a unique object instance.")
        node_of(node_id, executor, NO_SESSIONS)
        if on_failure not in ("fail", "skip"):
            raise Invalid("on_failure is 'fail' or 'skip'", got=on_failure)
        bound_s = None if timeout_s is None else seconds(timeout_s, "timeout_s")
        policy = NodePolicy(
            timeout_s=bound_s, retries=checked_count(retries, "retries", least=0), on_failure=on_failure
        )
        node = self.nodes[node_id] = GraphNode(node_id=node_id, executor=executor, policy=policy)
        return node

    def add_edge(
        self, from_node: str | GraphNode, to_node: str | GraphNode, condition: EdgeCondition | None = None
    ) -> GraphEdge:
        """Add an edge, followed if the condition holds. The condition may be called several times for one decision, so
        it must have no effects.

        Args:
            from_node: The node that ends first, or its id.
            to_node: The node that comes after it, or its id.
            condition: The test that decides if the edge is followed; None follows it always.

        Raises:
            Invalid: For an unknown node, and for an async condition. Correct the argument.
        """
        edge = GraphEdge(
            from_node=self._node(from_node, "Source node"),
            to_node=self._node(to_node, "Target node"),
            condition=condition,
        )
        self.edges.append(edge)
        edge.to_node.dependencies.add(edge.from_node)
        return edge

    def _node(self, node: str | GraphNode, what: str) -> GraphNode:
        found = self.nodes.get(str(node))
        if isinstance(node, GraphNode) and found is not node:
            raise Invalid(f"{what} object has not been added to the graph, use graph.add_node", node=node.node_id)
        if found is None:
            raise Invalid(f"{what} '{node}' not found")
        return found

    def set_entry_point(self, node_id: str) -> GraphBuilder:
        """Begin at this node; several are allowed.

        Args:
            node_id: The id of the node.

        Raises:
            Invalid: For an unknown node. Correct the argument.
        """
        self.entry_points.append(self._node(node_id, "Node"))
        return self

    def reset_on_revisit(self, enabled: bool = True) -> GraphBuilder:
        """Set whether a node that runs again in the same run begins with what it was built with.

        Args:
            enabled: True if it begins anew.
        """
        return self._set("reset_on_revisit", enabled)

    def set_max_node_executions(self, max_executions: int | None) -> GraphBuilder:
        """Set how often nodes may run in one run, all together.

        Args:
            max_executions: The most executions; None for no limit.
        """
        return self._set("max_node_executions", max_executions)

    def set_execution_timeout(self, timeout: float | None) -> GraphBuilder:
        """Set the seconds for one run, all of its calls together.

        Args:
            timeout: Seconds; None for no limit.
        """
        return self._set("execution_timeout", timeout)

    def set_node_timeout(self, timeout: float | None) -> GraphBuilder:
        """Set the seconds for one attempt of a node.

        Args:
            timeout: Seconds; None for no limit.
        """
        return self._set("node_timeout", timeout)

    def set_graph_id(self, graph_id: str) -> GraphBuilder:
        """Set the graph's name in its session.

        Args:
            graph_id: The id.
        """
        return self._set("id", graph_id)

    def set_session_manager(self, session_manager: AnySessionManager | None) -> GraphBuilder:
        """Set where runs, and every node's conversation, are stored.

        Args:
            session_manager: The session manager; None keeps runs in memory.
        """
        return self._set("session_manager", session_manager)

    def set_hook_providers(self, hooks: Sequence[HookProvider | HookCallback]) -> GraphBuilder:
        """Set the providers of hook callbacks.

        Args:
            hooks: Hook providers or single callbacks.
        """
        return self._set("hooks", hooks)

    def set_plugins(self, plugins: Sequence[MultiAgentPlugin]) -> GraphBuilder:
        """Set the plugins.

        Args:
            plugins: Plugins, in the order in which they are set up.
        """
        return self._set("plugins", plugins)

    def build(self) -> Graph:
        """The graph.

        Raises:
            Invalid: For one without a node or an entry point. Correct the argument.
        """
        if not self.nodes:
            raise Invalid("Graph must contain at least one node")
        return Graph(nodes=self.nodes, edges=self.edges, entry_points=self.entry_points, **self._settings)

    def _set(self, name: str, value: object) -> GraphBuilder:
        self._settings[name] = value
        return self
