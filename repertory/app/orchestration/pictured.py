"""Graphs, swarms and their results as what `core/pictures` draws."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Literal, Required, TypedDict

from repertory.core.pictures.runs import NodeProgress, PicturedEdge, PicturedNode, PicturedRun, run_picture
from repertory.core.run_results import MultiAgentResult, NodeResult, Status

if TYPE_CHECKING:
    from repertory.core.orchestration.run import NodeNote, Run
    from repertory.core.pictures.svg import Picture

EACH_TO_EACH = "each agent may hand over to every other"

EdgesOf = Callable[[Sequence[str], Sequence[str]], Sequence[PicturedEdge]]
"""The edges to draw, given the nodes in the order of their ends, and those that have begun."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnOrchestrator:
    """The parts of a graph or a swarm that its picture shows."""

    title: str
    kind: Literal["graph", "swarm"]
    shapes: Mapping[str, str]
    """The kind of each node, by its id: `agent`, `graph`, `swarm` or `other`."""
    entries: Sequence[str]
    status_of: Callable[[str], Status]
    works: bool
    """True if a call works on the run now."""
    edges_of: EdgesOf


def picture_of(drawn: DrawnOrchestrator, run: Run) -> Picture:
    """The orchestrator with the run that it worked on last, or without one before its first call."""
    began = [name for name in drawn.shapes if drawn.status_of(name) is not Status.PENDING] if run.number else []
    nodes = [
        PicturedNode(
            node_id=name,
            kind=kind,
            entry=name in drawn.entries,
            status=drawn.status_of(name).value if run.number else None,
            **_noted(run.notes.get(name)),
        )
        for name, kind in drawn.shapes.items()
    ]
    return run_picture(
        PicturedRun(
            title=drawn.title,
            kind=drawn.kind,
            nodes=nodes,
            edges=drawn.edges_of(run.order, began),
            status=_status(run, works=drawn.works).value if run.number else None,
            time_ms=run.elapsed_ms if run.number else None,
            tokens=run.usage["totalTokens"] if run.number else None,
            note=run.reason or (EACH_TO_EACH if drawn.kind == "swarm" and not run.number else ""),
        )
    )


def _status(run: Run, *, works: bool) -> Status:
    if works:
        return Status.EXECUTING
    return Status.INTERRUPTED if run.status is Status.EXECUTING else run.status  # No call works on it.


def followed(source: str, target: str, order: Sequence[str], began: Iterable[str] = ()) -> bool:
    """True if the target worked after the source had ended: as far as the order tells, the run went along the edge."""
    if source not in order:
        return False
    return target in order[order.index(source) + 1 :] or (target in began and target not in order)


def handovers(order: Sequence[str]) -> Sequence[PicturedEdge]:
    """One edge for each two agents between which control went over."""
    found: dict[tuple[str, str], list[int]] = {}
    for number, pair in enumerate(pairwise(order), 1):
        found.setdefault(pair, []).append(number)
    return [
        PicturedEdge(source=source, target=target, orders=tuple(numbers), used=True)
        for (source, target), numbers in found.items()
    ]


class _Noted(TypedDict, total=False):
    time_ms: float
    tokens: int
    tries: int
    detail: str


def _noted(note: NodeNote | None) -> _Noted:
    if note is None:
        return {}
    result = note.result
    tokens = note.usage.get("totalTokens", 0)
    return {"time_ms": result.execution_time, "tokens": tokens, "tries": note.visits, "detail": str(result)}


def picture_of_result(
    result: MultiAgentResult, order: Sequence[str], edges: Sequence[PicturedEdge], entries: Sequence[str]
) -> Picture:
    """The run that ended with this result. `order`: the nodes in the order of their ends."""
    known: Mapping[str, NodeResult] = result.results
    names = dict.fromkeys([*(edge.source for edge in edges), *(edge.target for edge in edges), *order, *known])
    nodes = [
        PicturedNode(
            node_id=name,
            kind=_kind_of(known.get(name)),
            entry=name in entries,
            tries=order.count(name),
            **_outcome(known.get(name)),
        )
        for name in names
    ]
    return run_picture(
        PicturedRun(
            title=f"run {result.run}",
            kind=_kind_of_run(result),
            nodes=nodes,
            edges=edges,
            status=result.status.value,
            time_ms=result.execution_time,
            tokens=result.accumulated_usage["totalTokens"],
            note=result.reason or "",
        )
    )


def _kind_of_run(result: MultiAgentResult) -> Literal["graph", "swarm"]:
    return "swarm" if hasattr(result, "node_history") else "graph"


class _Outcome(TypedDict, total=False):
    status: Required[NodeProgress]
    time_ms: float
    tokens: int
    detail: str


def _outcome(found: NodeResult | None) -> _Outcome:
    if found is None:
        return {"status": "pending"}
    tokens = found.accumulated_usage.get("totalTokens", 0)
    return {
        "status": found.status.value,
        "time_ms": found.execution_time,
        "tokens": tokens,
        "detail": str(found),
    }


def _kind_of(found: NodeResult | None) -> str:
    if found is None or not isinstance(found.result, MultiAgentResult):
        return "agent"
    return _kind_of_run(found.result)
