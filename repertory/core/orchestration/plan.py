"""The plan of an orchestrator: the nodes that begin a run, may start, and follow, and the end of the run."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

from msgspec import Struct

from repertory.core.ids import check_id
from repertory.core.messages import ContentBlock, Json, tool_results, tool_uses
from repertory.core.run_results import NodeResult, Status
from repertory.errors import Invalid

if TYPE_CHECKING:
    from repertory.core.messages import Message
    from repertory.core.orchestration.run import OrchestratorKind, Run, Task


class Plan(Protocol):
    """The rules of one kind of orchestrator. It has no state: all that it needs is in the run."""

    @property
    def kind(self) -> OrchestratorKind:
        """`graph` or `swarm`."""
        ...

    @property
    def nodes(self) -> Sequence[str]:
        """The ids of all nodes."""
        ...

    @property
    def entries(self) -> tuple[str, ...]:
        """The first frontier."""
        ...

    @property
    def time_max_s(self) -> float:
        """The total working time of a run, in seconds."""
        ...

    def startable(self, frontier: Frontier) -> tuple[str, ...]:
        """The nodes that may start now, in order."""
        ...

    def end_reason(self, run: Run, running: int) -> str | None:
        """The reason why no other node may start; None when one may. `running`: the number of nodes that run now."""
        ...

    def follow(self, run: Run, node: str, state: Mapping[str, object]) -> tuple[str, ...]:
        """The nodes that follow `node`, which has just ended. `state`: the caller's invocation state. Errors: those of
        conditions.
        """
        ...

    def input_for(self, run: Run, node: str, state: Mapping[str, object]) -> list[ContentBlock]:
        """The node's input. Errors: those of conditions."""
        ...


EDGES_DRAWN_MAX = 2000
"""The most edges that a run records."""
EdgePredicate: TypeAlias = "Callable[[Run, Mapping[str, object]], bool]"
"""True if an edge is followed, given the run and the caller's invocation state. Called when its source has ended, and
again when the input of its target is built.
"""


class GraphPlan(Struct, frozen=True, kw_only=True):
    """A graph's shape with its conditions and limits."""

    kind: OrchestratorKind = "graph"
    nodes: Sequence[str]
    entries: tuple[str, ...]
    shape: GraphShape
    conditions: Mapping[int, EdgePredicate] = {}
    """The conditions by the edge's index in the shape; edges without a condition are always followed."""
    executions_max: int | None = None
    time_max_s: float = math.inf

    @classmethod
    def of(
        cls,
        shape: GraphShape,
        *,
        conditions: Mapping[int, EdgePredicate] = {},
        executions_max: int | None = None,
        time_max_s: float = math.inf,
    ) -> GraphPlan:
        """The plan of a graph of this shape."""
        return cls(
            nodes=shape.nodes,
            entries=shape.entries,
            shape=shape,
            conditions=conditions,
            executions_max=executions_max,
            time_max_s=time_max_s,
        )

    def startable(self, frontier: Frontier) -> tuple[str, ...]:
        """The nodes that may start now, in order. At least one, unless something runs or nothing is pending."""
        waiting = [node for node in frontier.nodes if node not in frontier.running]
        # The only one waits for nobody, also in a loop: so a run can always go on.
        if not waiting or len(frontier.nodes) == 1:
            return tuple(waiting)
        behind: set[str] = set()
        to_look_at = list(frontier.nodes)
        while to_look_at:
            # Without edges that lead back, or two nodes of a loop would wait for each other.
            for target in self.shape.onward[to_look_at.pop()]:
                if target not in behind:
                    behind.add(target)
                    to_look_at.append(target)
        return tuple(node for node in waiting if node not in behind)

    def end_reason(self, run: Run, running: int) -> str | None:
        if self.executions_max is not None and run.ends + running >= self.executions_max:
            return f"Max node executions reached: {self.executions_max}"
        return None

    def follow(self, run: Run, node: str, state: Mapping[str, object]) -> tuple[str, ...]:
        """The targets of the node's edges whose conditions hold now."""
        edges = self.shape.outgoing[node]
        targets = (self.shape.edges[edge].target for edge in edges if self._holds(edge, run, state))
        return tuple(dict.fromkeys(targets))

    def input_for(self, run: Run, node: str, state: Mapping[str, object]) -> list[ContentBlock]:
        """The task, and the results of the sources of the node's edges whose conditions hold now."""
        before = {
            source: run.notes[source].result
            for edge in self.shape.incoming[node]
            if (source := self.shape.edges[edge].source) in run.notes
            # A source that was skipped has no output.
            and run.notes[source].status is Status.COMPLETED
            and self._holds(edge, run, state)
        }
        return graph_input(run.task, before)

    def _holds(self, edge: int, run: Run, state: Mapping[str, object]) -> bool:
        condition = self.conditions.get(edge)
        return condition is None or bool(condition(run, state))


def drawn_edges(shape: GraphShape) -> Mapping[str, Sequence[str]]:
    """The targets of each node's edges. Empty for a graph with more than `EDGES_DRAWN_MAX`."""
    if len(shape.edges) > EDGES_DRAWN_MAX:
        return {}
    return {node: [shape.edges[number].target for number in out] for node, out in shape.outgoing.items() if out}


class SwarmPlan(Struct, frozen=True, kw_only=True):
    """A swarm's agents and limits."""

    kind: OrchestratorKind = "swarm"
    agents: Mapping[str, str | None]
    """Id to description, in the order of their addition."""
    nodes: Sequence[str]
    entries: tuple[str, ...]
    handoffs_max: int = 20
    executions_max: int = 20
    time_max_s: float = 900.0
    window: int = 0
    """The number of latest executions that are checked for agents that hand over in circles; 0 for none."""
    unique_min: int = 0
    """The least number of different agents among them."""

    def startable(self, frontier: Frontier) -> tuple[str, ...]:
        """The agent in control, unless it runs already."""
        return tuple(node for node in frontier.nodes if node not in frontier.running)

    def end_reason(self, run: Run, running: int) -> str | None:
        """The reason why no other agent may get control; None when one may."""
        del running
        if run.ends >= self.handoffs_max:
            return f"Max handoffs reached: {self.handoffs_max}"
        if run.ends >= self.executions_max:
            return f"Max iterations reached: {self.executions_max}"
        if 0 < self.window <= run.ends:
            unique = len(set(run.order[-self.window :]))
            if unique < self.unique_min:
                return f"Repetitive handoff: {unique} unique nodes out of {self.window} recent iterations"
        return None

    def follow(self, run: Run, node: str, state: Mapping[str, object]) -> tuple[str, ...]:
        """The agent that got the handoff, if any."""
        del state
        handed = run.notes[node].handed
        return () if handed is None or handed[0] not in self.agents else (handed[0],)

    def input_for(self, run: Run, node: str, state: Mapping[str, object]) -> list[ContentBlock]:
        """The task, who worked on it and what they left, and the other agents."""
        del state
        last = run.last
        return swarm_input(
            run.task,
            handed=None if last is None or last.handed is None else last.handed[1],
            history=run.order,
            context={each: note.context for each, note in run.notes.items()},
            others={each: description for each, description in self.agents.items() if each != node},
        )


HANDOFF = "handoff_to_agent"
"""The name of the handoff tool."""


def handoff_in(
    messages: Sequence[Message], agents: Collection[str]
) -> tuple[Mapping[str, Json], tuple[str, str] | None]:
    """The context that an agent leaves to others, and its handoff (agent and message). The last handoff counts;
    handoffs to unknown agents or without success are ignored.

    `messages`: all messages of one execution of the agent, whatever its model is shown.
    """
    context: dict[str, Json] = {}
    handed: tuple[str, str] | None = None
    for message, following in zip(messages, [*messages[1:], None], strict=False):
        results = () if following is None else tool_results(following)
        # A handoff that a hook refused, or whose tool failed, is none.
        done = {result["toolUseId"] for result in results if result.get("status") == "success"}
        for use in tool_uses(message):
            match use["input"]:
                case {"agent_name": str(name), "message": str(words), **rest} if (
                    use["name"] == HANDOFF and use["toolUseId"] in done and name in agents
                ):
                    handed = name, words
                    values = rest.get("context")
                    context |= values if isinstance(values, dict) else {}
                case _:
                    pass
    return context, handed


# The shape of a graph: its nodes, edges, entry points, and which edges lead back.
#
# An edge leads back when it closes a loop: following it runs its target again. The other edges have no loop, so they
# order the nodes; a node waits for the nodes before it, and for nothing else.


class Edge(NamedTuple):
    """An edge between two nodes, by name."""

    source: str
    target: str


class GraphShape(Struct, frozen=True):
    """A valid graph, made by `shape_of`."""

    nodes: tuple[str, ...]
    """The ids of the nodes in the order of their addition."""
    edges: tuple[Edge, ...]
    """The edges in the order of their addition. Two may have the same ends."""
    entries: tuple[str, ...]
    """The nodes that a run begins with."""
    outgoing: Mapping[str, tuple[int, ...]]
    """Node to the indices in `edges` of its outgoing edges; every node has an entry."""
    incoming: Mapping[str, tuple[int, ...]]
    """Node to the indices in `edges` of its incoming edges; every node has an entry."""
    onward: Mapping[str, tuple[str, ...]]
    """Node to the targets of its edges that do not lead back."""
    loops: bool
    """True if a node may run more than once."""


def shape_of(nodes: Iterable[str], edges: Iterable[Edge], entries: Iterable[str] = ()) -> GraphShape:
    """The graph of these nodes and edges. Without `entries`, it begins at the nodes without incoming edges.

    Errors: `Invalid` for no nodes, a repeated or invalid name, an edge or entry without its node, and a graph without
    an entry point.
    """
    named = tuple(check_id(node, "node id") for node in nodes)
    known = frozenset(named)
    if not named:
        raise Invalid("a graph has at least one node")
    if len(known) < len(named):
        raise Invalid("two nodes have the same id", nodes=sorted(node for node in known if named.count(node) > 1))
    joined = tuple(edges)
    for edge in joined:
        for end in edge:
            if end not in known:
                raise Invalid("an edge joins two nodes of the graph", source=edge.source, target=edge.target)
    begins = tuple(dict.fromkeys(entries))
    for entry in begins:
        if entry not in known:
            raise Invalid("an entry point is a node of the graph", entry=entry)
    if not begins:
        reached = {edge.target for edge in joined}
        begins = tuple(node for node in named if node not in reached)
    if not begins:
        raise Invalid("No entry points found - all nodes have dependencies: name one")
    outgoing = _places(named, [edge.source for edge in joined])
    onward = _onward(named, joined, outgoing, begins)
    return GraphShape(
        nodes=named,
        edges=joined,
        entries=begins,
        outgoing=outgoing,
        incoming=_places(named, [edge.target for edge in joined]),
        onward=onward,
        loops=sum(len(targets) for targets in onward.values()) < len(joined),
    )


def in_a_row(nodes: Sequence[str]) -> GraphShape:
    """The graph in which each node follows the one before it."""
    return shape_of(nodes, [Edge(*pair) for pair in pairwise(nodes)], nodes[:1])


def _places(nodes: Sequence[str], ends: Sequence[str]) -> dict[str, tuple[int, ...]]:
    found: dict[str, list[int]] = {node: [] for node in nodes}
    for index, end in enumerate(ends):
        found[end].append(index)
    return {node: tuple(places) for node, places in found.items()}


def _onward(
    nodes: Sequence[str], edges: Sequence[Edge], outgoing: Mapping[str, tuple[int, ...]], entries: Sequence[str]
) -> dict[str, tuple[str, ...]]:
    """Depth-first search from the entries: an edge to a node on the current path leads back."""
    found: dict[str, list[str]] = {node: [] for node in nodes}
    seen: set[str] = set()
    for start in (*entries, *nodes):
        if start in seen:
            continue
        seen.add(start)
        on_the_way = {start}
        # A list and no recursion: a chain of a thousand nodes would overflow the stack.
        path = [(start, iter(outgoing[start]))]
        while path:
            node, places = path[-1]
            edge = next(places, None)
            if edge is None:
                path.pop()
                on_the_way.discard(node)
                continue
            target = edges[edge].target
            if target in on_the_way:
                continue
            found[node].append(target)
            if target not in seen:
                seen.add(target)
                on_the_way.add(target)
                path.append((target, iter(outgoing[target])))
    return {node: tuple(targets) for node, targets in found.items()}


# The frontier: which nodes are pending, which of them may start, and what follows when one has ended.
#
# A node with several incoming edges runs once, when all that can still be followed have been: it waits while any
# pending node comes before it. So the frontier alone, which every record of a run holds, suffices to go on from,
# without a count of what has arrived.


class Frontier(NamedTuple):
    """The pending nodes."""

    nodes: tuple[str, ...] = ()
    """Running and waiting nodes, in the order in which they became pending."""
    running: frozenset[str] = frozenset()
    again: tuple[str, ...] = ()
    """The running nodes that must run once more."""

    def started(self, node: str) -> Frontier:
        return self._replace(running=self.running | {node})

    def stopped(self, node: str) -> Frontier:
        """The frontier after the node has stopped without finishing its work."""
        return self._replace(running=self.running - {node})

    def ended(self, node: str, targets: Iterable[str]) -> Frontier:
        """The frontier after the node has finished its work: `targets` follow."""
        nodes = dict.fromkeys(each for each in self.nodes if each != node)
        running = self.running - {node}
        again = dict.fromkeys(each for each in self.again if each != node)
        # A running node that is reached again runs once more afterwards, however often it was reached meanwhile.
        for target in (*([node] if node in self.again else []), *targets):
            (again if target in running else nodes).setdefault(target)
        return Frontier(tuple(nodes), running, tuple(again))

    @property
    def at_rest(self) -> tuple[str, ...]:
        """The pending nodes as a record stores them: as if nothing ran."""
        return (*self.nodes, *self.again)


def frontier_of(at_rest: Iterable[str]) -> Frontier:
    """The frontier of a run that nothing drives. A node that was running and must run once more is listed twice."""
    nodes: dict[str, None] = {}
    again: dict[str, None] = {}
    for node in at_rest:
        (again if node in nodes else nodes).setdefault(node)
    return Frontier(tuple(nodes), frozenset(), tuple(again))


# The input of a node. The wording is that of the SDK whose users we serve. Further lines of other nodes' texts are
# indented, so that they cannot pass for a heading or for another node's words.

_LINE_BREAK = re.compile("\r\n|[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]")


def graph_input(task: Task, before: Mapping[str, NodeResult]) -> list[ContentBlock]:
    """The task, and the results of the nodes before."""
    own: list[ContentBlock] = []
    if isinstance(task, str):
        own.append({"text": task if not before else f"Original Task: {task}"})
    else:
        own.extend(task)
    if not before:
        return own
    blocks: list[ContentBlock] = []
    if not isinstance(task, str):
        blocks.append({"text": "Original Task:"})
    blocks.extend(own)
    blocks.append({"text": "\nInputs from previous nodes:"})
    for node, result in before.items():
        blocks.append({"text": f"\nFrom {node}:"})
        blocks.extend({"text": f"  - Agent: {_quoted(str(each))}"} for each in result.get_agent_results())
    return blocks


def swarm_input(
    task: Task,
    *,
    handed: str | None,
    history: Sequence[str],
    context: Mapping[str, Mapping[str, Json]],
    others: Mapping[str, str | None],
) -> list[ContentBlock]:
    """The task, and what an agent needs to know of earlier ones. `others`: possible handoff targets, with
    descriptions.
    """
    parts: list[str] = [f"Handoff Message: {_quoted(handed)}\n\n"] if handed else []
    parts.append(f"User Request: {task}\n\n" if isinstance(task, str) else "User Request: Multi-modal task\n\n")
    if history:
        parts.append(f"Previous agents who worked on this: {' → '.join(history)}\n\n")
    known = [f"• {node}: {values}\n" for node, values in context.items() if values]
    if known:
        parts += ["Shared knowledge from previous agents:\n", *known, "\n"]
    if others:
        parts.append("Other agents available for collaboration:\n")
        for node, description in others.items():
            parts.append(f"Agent name: {node}." + (f" Agent description: {description}" if description else "") + "\n")
        parts.append("\n")
    parts.append(
        "You have access to swarm coordination tools if you need help from other agents. "
        "If you don't hand off to another agent, the swarm will consider the task complete."
    )
    blocks: list[ContentBlock] = [{"text": f"Context:\n{''.join(parts)}\n\n"}]
    blocks += () if isinstance(task, str) else task
    return blocks


def _quoted(text: str) -> str:
    return _LINE_BREAK.sub(r"\g<0>    ", text)
