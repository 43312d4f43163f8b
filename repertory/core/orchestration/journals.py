"""The names of the journals of an orchestrator and its nodes, among the agents of their session.

multi_agent.default_graph            the orchestrator `default_graph`
default_graph.writer                 its node `writer`, an agent
multi_agent.default_graph.team       its node `team`, an orchestrator
default_graph.team.anna              the node `anna` of that
"""

from __future__ import annotations

from collections.abc import Iterable

ORCHESTRATORS = "multi_agent."
"""The prefix of orchestrators' journal names. An agent with such a name would be taken for one."""


def journal_name(orchestrator: str) -> str:
    """The journal of an orchestrator, by its name in the session."""
    return f"{ORCHESTRATORS}{orchestrator}"


def orchestrator_in(journal: str) -> str | None:
    """The orchestrator whose journal this is; None for an agent's journal."""
    return journal.removeprefix(ORCHESTRATORS) if journal.startswith(ORCHESTRATORS) else None


def node_journal(orchestrator: str, node: str) -> str:
    """A node's name in its session: an agent's journal, or the argument of `journal_name`."""
    return f"{orchestrator}.{node}"


def clash(journal: str, others: Iterable[str]) -> str | None:
    """The first of the other journals that a session cannot have beside this one: a node of one of the two would have
    the other's journal, or that of one of its nodes. None if there is none.
    """
    orchestrator = orchestrator_in(journal)
    for other in others:
        other_orchestrator = orchestrator_in(other)
        nodes = None if orchestrator is None else node_journal(orchestrator, "")
        other_nodes = None if other_orchestrator is None else node_journal(other_orchestrator, "")
        if nodes is not None and (other_orchestrator or other).startswith(nodes):
            return other
        if other_nodes is not None and (orchestrator or journal).startswith(other_nodes):
            return other
    return None
