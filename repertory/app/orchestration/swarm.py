"""`Swarm`: agents that hand a task over to each other."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Self, cast

from repertory.actors.orchestrator.run_driver import NodePolicy
from repertory.app.agent.agent import Agent
from repertory.app.orchestration.nodes import AgentNode, RunnerSettings, check_no_calls_of_its_own
from repertory.app.orchestration.orchestrator import Orchestrator, RunState, checked_count, list_of, seconds
from repertory.backends.tools.decorator import tool
from repertory.core.json_fields import json_texts
from repertory.core.messages import error_result
from repertory.core.orchestration.plan import HANDOFF, SwarmPlan, handoff_in
from repertory.core.run_results import MultiAgentResult
from repertory.errors import Invalid

if TYPE_CHECKING:
    from repertory.actors.call import Busy
    from repertory.actors.hooks.events import HookCallback, HookProvider
    from repertory.app.orchestration.nodes import NodeLocation
    from repertory.app.orchestration.orchestrator import MultiAgentPlugin
    from repertory.app.sessions.sessions import AnySessionManager
    from repertory.app.tracebacks import AttributeValue
    from repertory.backends.ports import Tool
    from repertory.core.messages import Json
    from repertory.core.orchestration.run import Run
    from repertory.core.pictures.runs import PicturedEdge
    from repertory.core.pictures.svg import Picture
    from repertory.core.run_results import Status

NO_SESSIONS = "Session persistence is not supported for Swarm agents yet: give the session_manager to the Swarm."
"""The text of the SDK whose users we serve. The swarm's own session stores the conversations of its agents."""


@dataclass(frozen=True, slots=True)
class SwarmNode:
    """An agent of a swarm.

    Args:
        node_id: The id of the node.
        executor: The agent.
    """

    node_id: str
    executor: Agent
    swarm: Swarm | None = field(default=None, repr=False, compare=False)
    """The swarm that it is of."""

    def __str__(self) -> str:
        return self.node_id


@dataclass(frozen=True, slots=True)
class SharedContext:
    """The values that the agents of a swarm have left for each other."""

    context: Mapping[str, Mapping[str, Json]] = field(default_factory=dict[str, "Mapping[str, Json]"])
    """The values by name, under the agent that left them. Read-only."""

    def add_context(self, node: SwarmNode, key: str, value: Json) -> None:
        """Leave a value in a context of the program's own.

        Args:
            node: The node that leaves it.
            key: The name of the value.
            value: A value that JSON can hold.

        Raises:
            Invalid: For a key without a text, a value that is not JSON, and in the context of a swarm, whose agents
                leave values by handing over. Correct the argument.
        """
        if not isinstance(self.context, dict):
            raise Invalid("the context of a run is read-only: agents leave values by handing over", key=key)
        if cast("object", key) is None:
            raise Invalid("Key cannot be None")
        if not isinstance(cast("object", key), str):
            raise Invalid("Key must be a string", got=key)
        if not key.strip():
            raise Invalid("Key cannot be empty")
        try:
            json.dumps(value)
        except (TypeError, ValueError, RecursionError) as error:
            raise Invalid("Value is not JSON serializable", key=key, got=type(value).__name__) from error
        cast("dict[str, Json]", self.context.setdefault(node.node_id, {}))[key] = value


class SwarmState(RunState["Swarm"]):
    """The current state of a swarm's run, as `swarm.state`. A view: every value is read when asked for."""

    __slots__ = ()

    @property
    def completion_status(self) -> Status:
        """`executing` while a call works on the run."""
        return self._status

    @property
    def current_node(self) -> SwarmNode | None:
        """The agent that has control; None when the run is over."""
        return next((self._owner.nodes[node] for node in self._run.frontier if node in self._owner.nodes), None)

    @property
    def node_history(self) -> tuple[SwarmNode, ...]:
        """The agents that had control and ended, in order."""
        nodes = self._owner.nodes
        return tuple(nodes[node] for node in self._run.order if node in nodes)

    @property
    def shared_context(self) -> SharedContext:
        """The values that the agents have left for each other."""
        contexts = {node: note.context for node, note in self._run.notes.items() if note.context}
        return SharedContext(MappingProxyType(contexts))

    @property
    def handoff_node(self) -> SwarmNode | None:
        """The agent that was handed over to last, until it has ended."""
        handed = self._handed
        return None if handed is None else self._owner.nodes.get(handed[0])

    @property
    def handoff_message(self) -> str | None:
        """The message for that agent; None if there is none."""
        return None if self._handed is None else self._handed[1]

    @property
    def _handed(self) -> tuple[str, str] | None:
        last = None if self._run.over else self._run.last
        return None if last is None else last.handed


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class SwarmResult(MultiAgentResult):
    """The end of a swarm's run, or the point where it waits.

    Args:
        status: `success` or `error`.
        reason: The reason, for the log and for who reads it; it may be empty.
    """

    node_history: tuple[SwarmNode, ...] = ()
    """The agents that had control, in order."""

    def own_fields(self) -> dict[str, Json]:
        """The fields that only a swarm's result has, as JSON: the ids of the agents."""
        return {"node_history": [node.node_id for node in self.node_history]} if self.node_history else {}

    def with_own(self, fields: Mapping[str, Json]) -> Self:
        """The result with the fields that `own_fields` gave; nodes have no executor."""
        nobody = cast("Agent", None)
        names = json_texts(fields.get("node_history", []))
        return replace(self, node_history=tuple(SwarmNode(node_id=name, executor=nobody) for name in names))

    def picture(self) -> Picture:
        """The run as a picture, with the nodes and edges that the result knows: `.svg`, `.text`."""
        from repertory.app.orchestration.pictured import handovers, picture_of_result  # loaded when used

        order = [node.node_id for node in self.node_history]
        return picture_of_result(self, order, handovers(order), order[:1])


class Swarm(Orchestrator[SwarmResult]):
    """Agents that hand a task over to each other until one of them completes it.

    Each agent is known by its name, and gets a tool, `handoff_to_agent`, which gives control to another agent with a
    message and with values that all of them see from then on. An agent that ends its turn without a handoff ends the
    run. An agent begins each time with the messages and state that it was built with; its journal keeps all messages.

    Each argument can be read as an attribute.

    Errors: from calls see `Orchestrator.invoke_async`.

    Args:
        nodes: The agents. `agents` is another word for it.
        agents: The agents, in place of `nodes`.
        entry_point: The agent that begins; None for the first.
        max_handoffs: The most handoffs in one run. Then the run ends with status `failed`.
        max_iterations: The most turns of agents in one run. Then the run ends with status `failed`.
        execution_timeout: Seconds for one run, all of its calls together.
        node_timeout: Seconds for one turn.
        repetitive_handoff_detection_window: The number of last turns that are looked at; 0 looks at none.
        repetitive_handoff_min_unique_agents: With fewer different agents among those turns, the run ends with status
            `failed`.
        session_manager: The manager that stores runs, and every agent's conversation; without one they live as long as
            this object.
        hooks: Hook providers or single callbacks.
        plugins: Plugins, in the order in which they are set up.
        id: The swarm's name in its session.
        busy: The conduct of a call while another one works: `queue` or `reject`.
        trace_attributes: Further attributes of its spans.

    Attributes:
        kind_of_run: `swarm`.

    Raises:
        Invalid: For no nodes, and for a setting out of its range. Correct the argument.
    """

    kind_of_run = "swarm"

    def __init__(
        self,
        nodes: Sequence[Agent] | None = None,
        *,
        agents: Sequence[Agent] | None = None,
        entry_point: Agent | None = None,
        max_handoffs: int = 20,
        max_iterations: int = 20,
        execution_timeout: float = 900.0,
        node_timeout: float = 300.0,
        repetitive_handoff_detection_window: int = 0,
        repetitive_handoff_min_unique_agents: int = 0,
        session_manager: AnySessionManager | None = None,
        hooks: Sequence[HookProvider | HookCallback] | None = None,
        plugins: Sequence[MultiAgentPlugin] | None = None,
        id: str = "default_swarm",
        busy: Busy = "queue",
        trace_attributes: Mapping[str, AttributeValue] | None = None,
    ) -> None:
        if (nodes is None) == (agents is None):
            raise Invalid("a swarm is made of nodes=[agent, ...] (or agents=[...])")
        named = _named(list_of(object, agents if nodes is None else nodes, "agents"))
        self.nodes = {name: SwarmNode(name, agent, self) for name, agent in named.items()}
        self.entry_point = entry_point
        self.max_handoffs = checked_count(max_handoffs, "max_handoffs")
        self.max_iterations = checked_count(max_iterations, "max_iterations")
        self.execution_timeout = seconds(execution_timeout, "execution_timeout")
        self.node_timeout = seconds(node_timeout, "node_timeout")
        window, least = repetitive_handoff_detection_window, repetitive_handoff_min_unique_agents
        self.repetitive_handoff_detection_window = checked_count(window, "repetitive_handoff_detection_window", least=0)
        self.repetitive_handoff_min_unique_agents = checked_count(
            least, "repetitive_handoff_min_unique_agents", least=0
        )
        first = next(iter(named), None)
        if first is None:
            raise Invalid("a swarm has at least one agent")
        if entry_point is not None:
            first = next((name for name, agent in named.items() if agent is entry_point), None)
            if first is None:
                raise Invalid("Entry point agent not found in swarm nodes.", available=list(named))
        self._plan = SwarmPlan(
            agents={name: agent.description for name, agent in named.items()},
            nodes=tuple(named),
            entries=(first,),
            handoffs_max=self.max_handoffs,
            executions_max=self.max_iterations,
            time_max_s=self.execution_timeout,
            window=repetitive_handoff_detection_window,
            unique_min=repetitive_handoff_min_unique_agents,
        )
        handing = partial(handoff_tool, frozenset(named))
        super().__init__(
            id,
            {name: AgentNode(agent, handing) for name, agent in named.items()},
            session_manager=session_manager,
            hooks=hooks,
            plugins=plugins,
            busy=busy,
            trace_attributes=trace_attributes,
        )

    @property
    def state(self) -> SwarmState:
        """The run that a call worked on last, as it is now; hooks may read it during the run. Before the first call it
        is the stored run, after `await ready()` inside an event loop; `pending` if there is none.
        """
        return SwarmState(self._read_run(), self)

    @property
    def shared_context(self) -> SharedContext:
        """The shared context of `state`."""
        return self.state.shared_context

    def _drawn_edges(self, order: Sequence[str], began: Sequence[str]) -> Sequence[PicturedEdge]:
        from repertory.app.orchestration.pictured import handovers  # loaded when used

        return handovers(order)

    def _policies(self) -> Mapping[str, NodePolicy]:
        return dict.fromkeys(self.nodes, NodePolicy(timeout_s=self.node_timeout))

    def _runner(self, location_of: Callable[[str], NodeLocation | None]) -> RunnerSettings:
        end_of = partial(handoff_in, agents=frozenset(self.nodes))
        return RunnerSettings(nodes=self._node_map, location_of=location_of, anew=True, end_of=end_of)

    def _finished(self, run: Run, result: MultiAgentResult) -> SwarmResult:
        known = {each.name: getattr(result, each.name) for each in fields(result)}
        return SwarmResult(**known, node_history=SwarmState(run, self).node_history)


def _named(agents: Sequence[object]) -> dict[str, Agent]:
    named: dict[str, Agent] = {}
    if len({id(agent) for agent in agents}) < len(agents):
        raise Invalid("Duplicate node instance detected. Each node must have a unique object instance.")
    for agent in agents:
        if not isinstance(agent, Agent):
            raise Invalid("a swarm is made of agents", got=type(agent).__name__)
        if agent.session_manager is not None or agent.kept_by is not None:
            raise Invalid(NO_SESSIONS)
        check_no_calls_of_its_own(agent)
        if agent.name in named:
            raise Invalid(f"Node ID '{agent.name}' is not unique. Each agent must have a unique name.")
        if HANDOFF in agent.tool_names:
            text = f"Agent '{agent.name}' already has tools with names that conflict with swarm coordination tools"
            raise Invalid(text, tool=HANDOFF)
        named[agent.name] = agent
    return named


def handoff_tool(agents: frozenset[str]) -> Tool:
    """The tool that gives control to another of these agents. It only records the handoff: `handoff_in` reads it."""

    @tool(name=HANDOFF, effects=False)
    async def handoff_to_agent(agent_name: str, message: str, context: dict[str, Any] | None = None) -> dict[str, Any]:
        """Transfer control to another agent in the swarm for specialized help.

        Args:
            agent_name: Name of the agent to hand off to.
            message: What needs to be done, and why you hand off.
            context: More that the next agents should know.
        """
        del context
        if agent_name not in agents:
            return dict(error_result("", f"Error: Agent '{agent_name}' not found in swarm"))
        return {"status": "success", "content": [{"text": f"Handing off to {agent_name}: {message}"}]}

    return handoff_to_agent
