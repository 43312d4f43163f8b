"""The page of a run: the last one of a graph or swarm, as a picture and as a table of its nodes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import quote_plus

from markupsafe import Markup

from repertory.app.orchestration.pictured import followed, handovers
from repertory.core.orchestration.calls import waiting
from repertory.core.orchestration.journals import ORCHESTRATORS, journal_name, node_journal, orchestrator_in
from repertory.core.pictures.runs import PicturedEdge, PicturedNode, PicturedRun, run_svg
from repertory.core.pictures.svg import STYLE
from repertory.core.run_results import Status
from repertory.errors import Corrupt
from repertory.inspector.wording import HIDDEN, first_words, rich_text, visible

if TYPE_CHECKING:
    from repertory.core.orchestration.run import Run
    from repertory.core.pictures.runs import NodeProgress
    from repertory.core.run_results import NodeResult

NODES_LISTED_MAX = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRow:
    """A node of a run."""

    name: str
    status: NodeProgress
    journal: str | None
    """The journal of its agent, or of its graph or swarm; None where the session has none yet."""
    time_ms: float | None = None
    tokens: int = 0
    visits: int = 0
    words: str = ""
    """The beginning of its result, its error, or the question that it waits with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPage:
    """A run on its page."""

    run: Run
    name: str
    status: NodeProgress
    nodes: Sequence[NodeRow]
    """The nodes, `NODES_LISTED_MAX` at most; what failed, waits or works comes first."""
    nodes_count: int
    picture: Markup
    task: Markup


def run_page(run: Run, journal: str, agents: Collection[str], href: str, *, works: bool, content: bool) -> RunPage:
    """A run to be shown. `agents`: the journals of its session; `href`: the address of a node's page, up to the name of
    its journal; `works`: whether it is under way.
    """
    orchestrator = orchestrator_in(journal) or journal
    names = dict.fromkeys(
        [*(each for node, targets in run.edges.items() for each in (node, *targets)), *run.order, *run.notes]
    )
    names |= dict.fromkeys(run.frontier)
    led_to = {target for targets in run.edges.values() for target in targets}
    nodes = [_node(name, run, orchestrator, agents, works=works, content=content) for name in names]
    status = run.status.value
    if status == "executing" and not works:
        status = "interrupted" if waiting(run) else "pending"
    drawn = PicturedRun(
        title=visible(orchestrator),
        kind=run.kind,
        nodes=[
            PicturedNode(
                node_id=each.name,
                kind="agent"
                if each.journal is None or not each.journal.startswith(ORCHESTRATORS)
                else "graph or swarm",
                status=each.status,
                time_ms=each.time_ms,
                tokens=each.tokens or None,
                tries=each.visits,
                entry=bool(run.edges) and each.name not in led_to,
                detail=each.words,
                href=f"{href}{quote_plus(each.journal)}" if each.journal else "",
            )
            for each in nodes
        ],
        edges=_edges(run),
        status=status,
        time_ms=run.elapsed_ms,
        tokens=run.usage["totalTokens"] or None,
        note="" if run.edges or run.kind == "swarm" else "edges as the run went",
    )
    picture = run_svg(drawn).replace(f"<style>{STYLE}</style>\n", "")  # Texts in it are escaped.
    task = run.task if isinstance(run.task, str) else " ".join(str(each.get("text", "")) for each in run.task)
    return RunPage(
        run=run,
        name=orchestrator,
        status=status,
        nodes=sorted(nodes, key=lambda each: _ORDER.get(each.status, 3))[:NODES_LISTED_MAX],
        nodes_count=len(nodes),
        picture=Markup(picture),  # nosec B704
        task=rich_text(task) if content else HIDDEN,
    )


_ORDER: Mapping[str, int] = {"failed": 0, "interrupted": 1, "executing": 2, "completed": 3, "pending": 4}


def _edges(run: Run) -> Sequence[PicturedEdge]:
    order = run.order
    if run.kind == "swarm" or not run.edges:
        return handovers(order)
    return [
        PicturedEdge(source=node, target=target, used=followed(node, target, order, run.notes))
        for node, targets in run.edges.items()
        for target in targets
    ]


def _node(name: str, run: Run, orchestrator: str, agents: Collection[str], *, works: bool, content: bool) -> NodeRow:
    own = node_journal(orchestrator, name)
    journal = next((each for each in (own, journal_name(own)) if each in agents), None)
    note = run.notes.get(name)
    pending = name in run.frontier
    if note is None:
        return NodeRow(name=name, status="executing" if pending and works else "pending", journal=journal)
    try:
        result = note.result
    except Corrupt:
        return NodeRow(name=name, status=note.status.value, journal=journal, visits=note.visits)
    status: NodeProgress = note.status.value
    if pending and works and note.status is Status.COMPLETED:
        status = "executing"  # It runs again.
    return NodeRow(
        name=name,
        status=status,
        journal=journal,
        time_ms=result.execution_time,
        tokens=note.usage.get("totalTokens", 0),
        visits=note.visits,
        words=_words(result) if content else "",
    )


def _words(result: NodeResult) -> str:
    asked = "; ".join(each.text for each in result.interrupts)
    return first_words(asked if result.status is Status.INTERRUPTED else str(result), 160)
