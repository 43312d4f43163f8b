"""The states of runs as plain objects: for tests of conditions and hooks. Those of graphs and swarms count as such."""

from __future__ import annotations

import time
from abc import ABCMeta
from collections.abc import Mapping, MutableMapping, MutableSequence, MutableSet
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from repertory.app.orchestration.graph import GraphNode, GraphState
from repertory.app.orchestration.swarm import SharedContext, SwarmNode, SwarmState
from repertory.core.result import no_usage
from repertory.core.run_results import NodeResult, Status

if TYPE_CHECKING:
    from repertory.core.messages import Usage
    from repertory.core.orchestration.run import Task


def _no_latency() -> dict[str, float]:
    return {"latencyMs": 0}


class _CountsViews(ABCMeta):
    """The metaclass of classes whose instances the live states count as, too: see `register` below."""


@dataclass
class GraphValues(metaclass=_CountsViews):
    """The state of a graph's run with values of the program's own; see `repertory.GraphState`."""

    task: Task = ""
    status: Status = Status.PENDING
    completed_nodes: MutableSet[GraphNode] = field(default_factory=set[GraphNode])
    failed_nodes: MutableSet[GraphNode] = field(default_factory=set[GraphNode])
    interrupted_nodes: MutableSet[GraphNode] = field(default_factory=set[GraphNode])
    execution_order: MutableSequence[GraphNode] = field(default_factory=list[GraphNode])
    start_time: float = field(default_factory=time.time)
    results: MutableMapping[str, NodeResult] = field(default_factory=dict[str, NodeResult])
    accumulated_usage: Usage = field(default_factory=no_usage)
    accumulated_metrics: Mapping[str, float] = field(default_factory=_no_latency)
    execution_count: int = 0
    execution_time: int = 0
    total_nodes: int = 0
    edges: MutableSequence[tuple[GraphNode, GraphNode]] = field(default_factory=list[tuple[GraphNode, GraphNode]])
    entry_points: MutableSequence[GraphNode] = field(default_factory=list[GraphNode])


@dataclass
class SwarmValues(metaclass=_CountsViews):
    """The state of a swarm's run with values of the program's own; see `repertory.SwarmState`."""

    current_node: SwarmNode | None
    task: Task
    completion_status: Status = Status.PENDING
    shared_context: SharedContext = field(default_factory=SharedContext)
    node_history: MutableSequence[SwarmNode] = field(default_factory=list[SwarmNode])
    start_time: float = field(default_factory=time.time)
    results: MutableMapping[str, NodeResult] = field(default_factory=dict[str, NodeResult])
    accumulated_usage: Usage = field(default_factory=no_usage)
    accumulated_metrics: Mapping[str, float] = field(default_factory=_no_latency)
    execution_time: int = 0
    handoff_node: SwarmNode | None = None
    handoff_message: str | None = None


GraphValues.register(GraphState)
SwarmValues.register(SwarmState)
