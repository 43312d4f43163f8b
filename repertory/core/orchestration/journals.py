"""What the journals of an orchestrator and of its nodes are called, among the agents of their session.

multi_agent.default_graph            the orchestrator `default_graph`
default_graph.writer                 its node `writer`, an agent
multi_agent.default_graph.team       its node `team`, an orchestrator
default_graph.team.anna              the node `anna` of that
"""

from __future__ import annotations

ORCHESTRATORS = "multi_agent."
"""How the names of orchestrators' journals begin. An agent of such a name would be taken for one."""


def journal_name(orchestrator: str) -> str:
    """The journal of an orchestrator, by its name in its session."""
    return f"{ORCHESTRATORS}{orchestrator}"


def orchestrator_in(journal: str) -> str | None:
    """The orchestrator whose journal it is; None when it is an agent's."""
    return journal.removeprefix(ORCHESTRATORS) if journal.startswith(ORCHESTRATORS) else None


def node_journal(orchestrator: str, node: str) -> str:
    """The name in its session of a node: an agent's journal, or what `journal_name` takes."""
    return f"{orchestrator}.{node}"
