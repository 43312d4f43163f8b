"""How a graph goes on: along its edges, as far as their conditions hold."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from repertory.core.orchestration.frontier import startable
from repertory.core.orchestration.node_input import graph_input
from repertory.core.orchestration.results import Status

if TYPE_CHECKING:
    from repertory.core.messages import ContentBlock
    from repertory.core.orchestration.frontier import Frontier
    from repertory.core.orchestration.run import Kind, Run
    from repertory.core.orchestration.shape import GraphShape

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
