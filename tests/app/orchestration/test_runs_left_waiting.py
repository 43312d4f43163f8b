"""Runs in which the released strands-agents package has asked a person: we go on with the person's answers.

Needs an interpreter that has the package: see `test_layout_interop.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from repertory import (
    Agent,
    BeforeNodeCallEvent,
    FileSessionManager,
    Graph,
    GraphBuilder,
    NodeFailed,
    ScriptedModel,
    Status,
    Swarm,
    SwarmResult,
    ToolContext,
    tool,
)
from repertory.errors import InterruptsWaiting
from tests.app.orchestration.interrupted_agents import answering
from tests.app.orchestration.test_multi_agent_interop import HANDING, Peer, text
from tests.app.orchestration.test_multi_agent_snapshot_interop import on_files
from tests.app.sessions.test_layout_interop import bucket_url, in_bucket, in_folder, pytestmark

__all__ = ["bucket_url", "pytestmark"]


def pays(amount: int, use_id: str = "u1") -> list[Any]:
    return [{"toolUse": {"toolUseId": use_id, "name": "pay", "input": {"amount": amount}}}]


@pytest.fixture(scope="module")
def peer() -> Iterator[Peer]:
    peer = Peer()
    yield peer
    peer.close()


@pytest.fixture(params=["files", "s3", "snapshots"])
def kept(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """How to open a manager of ours, and what the peer is to be told, for the same session."""
    if request.param == "s3":
        return in_bucket(request.getfixturevalue("bucket_url"), tmp_path, monkeypatch)
    return on_files(tmp_path) if request.param == "snapshots" else in_folder(tmp_path)


class Clerk:
    """Agents that pay when a person agrees."""

    def __init__(self) -> None:
        self.paid: list[str] = []

    def agent(self, *replies: Any, name: str = "agent") -> Agent:
        @tool
        def pay(amount: int, tool_context: ToolContext) -> str:
            """Pay an amount, when a person agrees."""
            said = tool_context.interrupt("approve", reason={"amount": amount})
            self.paid.append(f"{amount} {said}")
            return f"paid {amount}: {said}"

        return Agent(ScriptedModel(list(replies)), name=name, tools=[pay], callback_handler=None)


def gate(event: BeforeNodeCallEvent) -> None:
    if event.node_id == "b" and event.interrupt("begin", reason="b") != "yes":
        event.cancel_node = "not allowed"


def test_a_node_that_asked_goes_on_with_the_answer_and_its_conversation(peer: Peer, kept: Any) -> None:
    manager, told = kept
    found = peer.graph(told, {"a": text("A theirs"), "b": [pays(7)]}, task="Do it")
    assert found["status"] == "interrupted"
    clerk = Clerk()
    b = clerk.agent("B ours")
    graph = Graph({"a": clerk.agent(), "b": b}, session_manager=manager())
    with pytest.raises(InterruptsWaiting):
        graph("Do it")
    waiting = graph(None)
    assert [(each.name, each.reason) for each in waiting.interrupts] == [
        (each["name"], each["reason"]) for each in found["interrupts"]
    ]
    result = graph(answering(waiting.interrupts))
    assert (result.status, result.run, str(result)) == (Status.COMPLETED, 1, "a: A theirs\nb: B ours")
    assert clerk.paid == ["7 yes"]
    told_to_b = str(b.model.calls[-1].messages)  # type: ignore[attr-defined]
    assert "  - Agent: A theirs" in told_to_b, "what it was asked, in the words of the package"
    assert "paid 7: yes" in told_to_b
    assert peer.graph(told, {"a": [], "b": []}, task=None)["found"]["status"] == "pending"


def test_several_nodes_that_asked_are_answered_one_after_the_other(peer: Peer, tmp_path: Path) -> None:
    told, edges = {"session": "s", "folder": str(tmp_path)}, "a>d b>d c>d"
    nodes = {"a": [pays(1, "ua")], "b": [pays(2, "ub")], "c": text("C theirs"), "d": []}
    found = peer.graph(told, nodes, edges, task="Do it")
    first, second = (each["id"] for each in found["interrupts"])
    clerk = Clerk()

    def graph() -> Graph:
        builder = GraphBuilder().set_session_manager(FileSessionManager("s", tmp_path))
        for name in nodes:
            builder.add_node(clerk.agent(f"{name.upper()} ours"), name)
        for source in ("a", "b", "c"):
            builder.add_edge(source, "d")
        return builder.build()

    waiting = graph()(answering({second: "yes"}))
    assert [each.id.partition(":tool_call:")[2] for each in waiting.interrupts] == [first.partition(":tool_call:")[2]]
    result = graph()(answering({first: "no"}))
    assert (result.status, len(clerk.paid)) == (Status.COMPLETED, 2)
    assert {name: str(each).strip() for name, each in result.results.items()} == {
        "a": "A ours",
        "b": "B ours",
        "c": "C theirs",
        "d": "D ours",
    }


def test_a_node_may_ask_again_after_it_changed_hands(peer: Peer, kept: Any) -> None:
    manager, told = kept
    found = peer.graph(told, {"a": text("A theirs"), "b": [pays(1, "u1")]}, task="Do it")
    clerk = Clerk()
    b = clerk.agent(pays(2, "u2"), "B ours")
    graph = Graph({"a": clerk.agent(), "b": b}, session_manager=manager())
    again = graph(answering({found["interrupts"][0]["id"]: "yes"}))
    assert [each.reason for each in again.interrupts] == [{"amount": 2}]
    result = Graph({"a": clerk.agent(), "b": clerk.agent("B ours")}, session_manager=manager())(
        answering(again.interrupts)
    )
    assert (str(result), clerk.paid) == ("a: A theirs\nb: B ours", ["1 yes", "2 yes"])


@pytest.mark.parametrize("answer", ["yes", "no"])
def test_a_node_that_had_not_begun_begins_or_is_cancelled(peer: Peer, kept: Any, answer: str) -> None:
    manager, told = kept
    found = peer.graph(told, {"a": text("A theirs"), "b": []}, task="Do it", gated=["b"])
    assert [each["name"] for each in found["interrupts"]] == ["begin"]
    clerk = Clerk()
    graph = Graph({"a": clerk.agent(), "b": clerk.agent("B ours")}, session_manager=manager())
    graph.add_hook(gate)
    answers = answering({found["interrupts"][0]["id"]: answer})
    if answer == "yes":
        assert str(graph(answers)) == "a: A theirs\nb: B ours"
    else:
        with pytest.raises(NodeFailed, match="not allowed"):
            graph(answers)


def test_a_swarm_that_handed_over_and_asked_goes_on(peer: Peer, kept: Any) -> None:
    manager, told = kept
    found = peer.swarm(told, {"a": [HANDING, *text("A theirs")], "b": [pays(7)]}, task="Do it")
    assert found["status"] == "interrupted"
    clerk = Clerk()
    b = clerk.agent("B ours", name="b")
    result = Swarm([clerk.agent(name="a"), b], session_manager=manager())(
        answering({each["id"]: "yes" for each in found["interrupts"]})
    )
    assert isinstance(result, SwarmResult)
    assert (result.status, [str(each) for each in result.node_history]) == (Status.COMPLETED, ["a", "b"])
    assert clerk.paid == ["7 yes"]
    assert "Handoff Message: over to you" in str(b.model.calls[-1].messages)  # type: ignore[attr-defined]


def test_a_swarm_whose_node_had_not_begun_begins_it(peer: Peer, kept: Any) -> None:
    manager, told = kept
    found = peer.swarm(told, {"a": [HANDING, *text("A theirs")], "b": []}, task="Do it", gated=["b"])
    clerk = Clerk()
    swarm = Swarm([clerk.agent(name="a"), clerk.agent("B ours", name="b")], session_manager=manager())
    swarm.add_hook(gate)
    result = swarm(answering({each["id"]: "yes" for each in found["interrupts"]}))
    assert (result.status, str(result.results["b"]).strip()) == (Status.COMPLETED, "B ours")


def test_who_wants_no_answer_begins_another_run(peer: Peer, tmp_path: Path) -> None:
    told = {"session": "s", "folder": str(tmp_path)}
    peer.graph(told, {"a": text("A theirs"), "b": [pays(7)]}, task="Do it")
    clerk = Clerk()
    graph = Graph(
        {"a": clerk.agent("A ours"), "b": clerk.agent("B ours")}, session_manager=FileSessionManager("s", tmp_path)
    )
    result = graph("Something else", resume=False)
    assert (result.run, str(result), clerk.paid) == (2, "a: A ours\nb: B ours", [])
