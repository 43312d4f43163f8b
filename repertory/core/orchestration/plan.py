"""What an orchestrator asks when it has to decide: where a run begins, what may start, what follows, when it ends."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeAlias

from repertory.core.messages import tool_results, tool_uses
from repertory.core.orchestration.frontier import startable
from repertory.core.orchestration.node_input import graph_input, swarm_input
from repertory.core.orchestration.results import Status

if TYPE_CHECKING:
    from repertory.core.messages import ContentBlock, Json, Message
    from repertory.core.orchestration.frontier import Frontier
    from repertory.core.orchestration.run import Kind, Run
    from repertory.core.orchestration.shape import GraphShape


class Plan(Protocol):
    """How one kind of orchestrator goes on. It keeps nothing: everything that it needs to know stands in the run."""

    @property
    def kind(self) -> Kind:
        """Which kind that is."""
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
        """How long a run may be worked on in all, in seconds."""
        ...

    def startable(self, frontier: Frontier) -> tuple[str, ...]:
        """The nodes that may start now, in order."""
        ...

    def end_reason(self, run: Run, running: int) -> str | None:
        """Why no other node may start; None when one may. `running`: nodes that run now."""
        ...

    def follow(self, run: Run, node: str, state: Mapping[str, object]) -> tuple[str, ...]:
        """What comes after a node, which has just ended. `state`: the caller's invocation state. Errors: what
        conditions raise.
        """
        ...

    def input_for(self, run: Run, node: str, state: Mapping[str, object]) -> list[ContentBlock]:
        """What the node is told. Errors: what conditions raise."""
        ...


Condition: TypeAlias = "Callable[[Run, Mapping[str, object]], bool]"
"""Whether an edge is followed, by what the run knows and by the caller's invocation state. Asked when the node that it
leaves has ended, and again when the input of the node that it leads to is put together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphPlan:
    """A shape with conditions and limits."""

    shape: GraphShape
    conditions: Mapping[int, Condition] = field(default_factory=dict[int, "Condition"])
    """By the place of the edge in the shape; the others are always followed."""
    executions_max: int | None = None
    time_max_s: float = math.inf

    @property
    def kind(self) -> Kind:
        """Which kind of orchestrator it is for."""
        return "graph"

    @property
    def nodes(self) -> Sequence[str]:
        """The ids of all nodes."""
        return self.shape.nodes

    @property
    def entries(self) -> tuple[str, ...]:
        """The first frontier."""
        return self.shape.entries

    def startable(self, frontier: Frontier) -> tuple[str, ...]:
        """The nodes that may start now, in order."""
        return startable(self.shape, frontier)

    def end_reason(self, run: Run, running: int) -> str | None:
        """Why no other node may start; None when one may."""
        if self.executions_max is not None and run.ends + running >= self.executions_max:
            return f"Max node executions reached: {self.executions_max}"
        return None

    def follow(self, run: Run, node: str, state: Mapping[str, object]) -> tuple[str, ...]:
        """Where the edges of the node lead that may be followed now."""
        places = self.shape.outgoing[node]
        targets = (self.shape.edges[place].target for place in places if self._holds(place, run, state))
        return tuple(dict.fromkeys(targets))

    def input_for(self, run: Run, node: str, state: Mapping[str, object]) -> list[ContentBlock]:
        """The task, and what the nodes said from which an edge leads here that may be followed now."""
        before = {
            source: run.notes[source].result
            for place in self.shape.incoming[node]
            if (source := self.shape.edges[place].source) in run.notes
            and run.notes[source].status is Status.COMPLETED
            and self._holds(place, run, state)
        }
        return graph_input(run.task, before)

    def _holds(self, place: int, run: Run, state: Mapping[str, object]) -> bool:
        condition = self.conditions.get(place)
        return condition is None or bool(condition(run, state))


@dataclass(frozen=True, slots=True, kw_only=True)
class SwarmPlan:
    """Agents that know each other, and limits."""

    agents: Mapping[str, str | None]
    """Id to description, in the order in which they were added."""
    entry: str
    handoffs_max: int = 20
    executions_max: int = 20
    time_max_s: float = 900.0
    window: int = 0
    """How many of the latest executions are looked at for agents that hand over in circles; 0 for none."""
    unique_min: int = 0
    """How many different agents must be among them."""

    @property
    def kind(self) -> Kind:
        """Which kind of orchestrator it is for."""
        return "swarm"

    @property
    def nodes(self) -> Sequence[str]:
        """The ids of all agents."""
        return tuple(self.agents)

    @property
    def entries(self) -> tuple[str, ...]:
        """Who begins."""
        return (self.entry,)

    def startable(self, frontier: Frontier) -> tuple[str, ...]:
        """Who has control, unless it works already."""
        return tuple(node for node in frontier.nodes if node not in frontier.running)

    def end_reason(self, run: Run, running: int) -> str | None:
        """Why nobody else may get control; None when somebody may."""
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
        """Whom the agent has handed over to, if anybody."""
        del state
        handed = run.notes[node].handed
        return () if handed is None or handed[0] not in self.agents else (handed[0],)

    def input_for(self, run: Run, node: str, state: Mapping[str, object]) -> list[ContentBlock]:
        """The task, who worked on it and what they left, and who else there is."""
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
"""The name of the tool."""


def handoff_in(
    messages: Sequence[Message], agents: Collection[str]
) -> tuple[Mapping[str, Json], tuple[str, str] | None]:
    """What an agent leaves for others, and to whom it hands over with which words. The last time counts; handing over
    to somebody who is not there, or that was not carried out, counts for nothing.

    `messages`: everything said in one execution of the agent, whatever its model is shown.
    """
    context: dict[str, Json] = {}
    handed: tuple[str, str] | None = None
    for message, following in zip(messages, [*messages[1:], None], strict=False):
        results = () if following is None else tool_results(following)
        done = {result["toolUseId"] for result in results if result.get("status") == "success"}
        for use in tool_uses(message):
            match use["input"]:
                case {"agent_name": str(name), "message": str(words), **rest} if (
                    use["name"] == HANDOFF and use["toolUseId"] in done and name in agents
                ):
                    handed = name, words
                    left = rest.get("context")
                    context |= left if isinstance(left, dict) else {}
                case _:
                    pass
    return context, handed
