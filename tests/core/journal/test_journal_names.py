"""The names of journals that one session may have beside each other."""

from __future__ import annotations

import pytest

from repertory import Agent, AgentSpec, Graph, Runtime, ScriptedModel
from repertory.core.orchestration.journals import clash, journal_name
from repertory.errors import Invalid

GRAPH, DEEPER = journal_name("support"), journal_name("support.team")


@pytest.mark.parametrize(
    ("one", "other"),
    [(GRAPH, "support.triage"), (GRAPH, "support.team.anna"), (GRAPH, DEEPER), (DEEPER, "support.team.anna")],
)
def test_a_name_that_a_node_may_have_clashes_whoever_comes_first(one: str, other: str) -> None:
    assert clash(one, [other]) == other
    assert clash(other, [one]) == one


@pytest.mark.parametrize(
    ("one", "other"),
    [(GRAPH, "support"), (GRAPH, "supporter"), (GRAPH, GRAPH), ("a", "a.b"), (DEEPER, "support.triage")],
)
def test_other_names_stand_beside_each_other(one: str, other: str) -> None:
    assert clash(one, [other]) is clash(other, [one]) is None


def test_a_runtime_refuses_what_would_share_a_conversation() -> None:
    def graph(name: str) -> Graph:
        return Graph({"triage": Agent(ScriptedModel(["x"]), callback_handler=None)}, id=name)

    def agent(name: str) -> AgentSpec:
        return AgentSpec(name=name, model=ScriptedModel(["x"]))

    runtime = Runtime()
    runtime.orchestrator("support", lambda _: graph("support"))
    runtime.agent(agent("support"))
    for name in ("support.triage", "multi_agent.other"):
        with pytest.raises(Invalid, match="choose another name"):
            runtime.agent(agent(name))
    with pytest.raises(Invalid, match="choose another name"):
        runtime.orchestrator("support.team", lambda _: graph("support.team"))
    runtime.agent(agent("sales.first"))
    with pytest.raises(Invalid, match="choose another name"):
        runtime.orchestrator("sales", lambda _: graph("sales"))
