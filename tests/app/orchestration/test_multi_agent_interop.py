"""Runs of graphs and swarms that we and the released strands-agents package go on with in turn.

Needs an interpreter that has the package: see `test_layout_interop.py`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from repertory import (
    Agent,
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
from tests.app.sessions.test_layout_interop import PEERS, PYTHON, bucket_url, place, pytestmark

__all__ = ["bucket_url", "place", "pytestmark"]


class Peer:
    """The released package in a process of its own, which may die."""

    def __init__(self) -> None:
        self.process = self._begin()

    def _begin(self) -> subprocess.Popen[str]:
        keys = {"AWS_ACCESS_KEY_ID": "AKIDEXAMPLE", "AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMI"}
        return subprocess.Popen(
            [str(PYTHON), str(PEERS / "strands_orchestrators.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, **keys, "OTEL_SDK_DISABLED": "true", "AWS_DEFAULT_REGION": "us-east-1"},
        )

    def graph(
        self, told: dict[str, str], nodes: dict[str, Any], edges: str = "a>b", task: Any = None, **more: Any
    ) -> Any:
        parts = [edge.split(">") for edge in edges.split()]
        return self._ask(kind="graph", nodes=nodes, edges=parts, task=task, **told, **more)

    def swarm(self, told: dict[str, str], nodes: dict[str, Any], task: Any = None, **more: Any) -> Any:
        return self._ask(kind="swarm", nodes=nodes, task=task, **told, **more)

    def _ask(self, **command: Any) -> Any:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if line:
            return json.loads(line)
        self.close()
        self.process = self._begin()
        return {"died": True}

    def close(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait(20)
        self.process.stdout.close()


@pytest.fixture(scope="module")
def peer() -> Iterator[Peer]:
    peer = Peer()
    yield peer
    peer.close()


def text(*words: str) -> list[Any]:
    return [[{"text": each}] for each in words]


HANDOFF = {"agent_name": "b", "message": "over to you", "context": {"found": 7}}
HANDING = [{"toolUse": {"toolUseId": "t1", "name": "handoff_to_agent", "input": HANDOFF}}]


def down(*_: object) -> object:
    raise RuntimeError


def node(*replies: Any, name: str = "agent") -> Agent:
    return Agent(ScriptedModel(list(replies)), name=name, callback_handler=None)


def graph(manager: Any, a: Agent, b: Agent) -> Graph:
    return Graph({"a": a, "b": b}, session_manager=manager())


def asked(node: Agent) -> str:
    return str([call.messages for call in node.model.calls])  # type: ignore[attr-defined]


def failed(graph: Any, task: Any) -> None:
    with pytest.raises(NodeFailed):
        graph(task)


# The package goes on with what we wrote.


def test_the_package_goes_on_where_our_graph_failed(peer: Peer, place: Any) -> None:
    manager, told = place
    failed(graph(manager, node("A ours"), node(down)), "Do it")
    found = peer.graph(told, {"a": [], "b": text("B theirs")}, task="Do it")
    assert list(found["asked"]) == ["b"]
    words = [block["text"] for block in found["asked"]["b"][0]["content"]]
    assert words == ["Original Task: Do it", "\nInputs from previous nodes:", "\nFrom a:", "  - Agent: A ours\n"]
    assert found["results"] == {"a": "A ours\n", "b": "B theirs\n"}
    again = graph(manager, node("A again"), node("B again"))
    result = again("And once more")
    assert (result.status, result.run, str(result)) == (Status.COMPLETED, 2, "a: A again\nb: B again")


@pytest.mark.parametrize("kind", ["graph", "swarm"])
def test_the_package_goes_on_where_we_were_killed(peer: Peer, tmp_path: Path, kind: str) -> None:
    child = [sys.executable, "-m", "tests.app.orchestration.dying_orchestrator", kind, str(tmp_path), "Do it"]
    assert subprocess.run(child, capture_output=True, check=False).returncode == -9
    told = {"session": "s", "folder": str(tmp_path)}
    nodes = {"a": [], "b": text("B theirs")}
    found = peer.graph(told, nodes, task="Do it") if kind == "graph" else peer.swarm(told, nodes, task="Do it")
    assert (found["status"], list(found["asked"])) == ("completed", ["b"])
    words = str(found["asked"]["b"])
    assert "A ours" in words if kind == "graph" else "over to you" in words and "{'found': 7}" in words


def test_the_package_begins_anew_after_a_run_of_ours_that_is_over(peer: Peer, tmp_path: Path) -> None:
    manager, told = lambda: FileSessionManager("s", tmp_path), {"session": "s", "folder": str(tmp_path)}
    graph(manager, node("A ours"), node("B ours"))("Do it")
    found = peer.graph(told, {"a": text("A theirs"), "b": text("B theirs")}, task="Something else")
    assert (found["found"]["status"], found["status"]) == ("pending", "completed")
    assert list(found["asked"]) == ["a", "b"]
    again = graph(manager, node("A again"), node("B again"))
    assert again("Something else").run == 3, "theirs is the second one"


def test_the_package_begins_anew_after_a_swarm_of_ours_that_is_over(peer: Peer, tmp_path: Path) -> None:
    manager, told = lambda: FileSessionManager("s", tmp_path), {"session": "s", "folder": str(tmp_path)}
    Swarm([node("A ours", name="a"), node(name="b")], session_manager=manager())("Do it")
    found = peer.swarm(told, {"a": text("A theirs"), "b": []}, task="Something else")
    assert (found["status"], found["results"]) == ("completed", {"a": "A theirs\n"})


def test_the_package_asks_anew_where_a_node_of_ours_waits_for_somebody(peer: Peer, tmp_path: Path) -> None:
    told, manager = {"session": "s", "folder": str(tmp_path)}, lambda: FileSessionManager("s", tmp_path)

    @tool
    def ask(tool_context: ToolContext) -> str:
        """Ask."""
        return str(tool_context.interrupt("approval", reason="?"))

    def asking(*replies: Any) -> Agent:
        return Agent(ScriptedModel(list(replies)), tools=[ask], callback_handler=None)

    for task in ("First", "Second"):
        result = graph(manager, node("A ours"), asking({"toolUse": {"name": "ask", "input": {}}}))(task)
        assert result.status is Status.INTERRUPTED
        if task == "First":
            assert peer.graph(told, {"a": [], "b": []})["found"]["status"] == "interrupted"
            answer: Any = [{"interruptResponse": {"interruptId": result.interrupts[0].id, "response": "yes"}}]
            assert graph(manager, node(), asking("done"))(answer).status is Status.COMPLETED
    found = peer.graph(told, {"a": [], "b": text("B theirs")}, task="Second")
    assert (found["status"], list(found["asked"])) == ("completed", ["b"])
    assert graph(manager, node("A"), asking("B"))("Third").run == 3


def test_a_node_that_waits_for_another_is_not_run_too_early(peer: Peer, tmp_path: Path) -> None:
    manager, told = lambda: FileSessionManager("s", tmp_path), {"session": "s", "folder": str(tmp_path)}
    builder = GraphBuilder().set_session_manager(manager())
    for name, agent in {"root": node("R"), "left": node("L"), "right": node(down), "join": node("J")}.items():
        builder.add_node(agent, name)
    edges = "root>left root>right left>join right>join"
    for edge in edges.split():
        source, target = edge.split(">")
        builder.add_edge(source, target)
    failed(builder.build(), [{"text": "Look"}, {"image": {"format": "png", "source": {"bytes": b"\x89PNG"}}}])
    nodes = {"root": [], "left": [], "right": text("R theirs"), "join": text("J theirs")}
    found = peer.graph(told, nodes, edges, task="-")
    assert list(found["asked"]) == ["right", "join"]
    told_to_join = found["asked"]["join"][0]["content"]
    assert "PNG" in str(told_to_join[2]), "the task that it was begun with"
    assert "L\n" in str(told_to_join) or "L\\n" in str(told_to_join)
    assert "R theirs" in str(told_to_join)


# We go on with what the package wrote.


@pytest.mark.parametrize(("end", "task"), [(None, "Do it"), (False, None)], ids=["failed", "killed"])
def test_we_go_on_where_the_package_stopped(peer: Peer, place: Any, end: Any, task: str | None) -> None:
    manager, told = place
    found = peer.graph(told, {"a": text("A theirs"), "b": [end]}, task="Do it")
    assert "error" in found or "died" in found
    a, b = node(), node("B ours")
    result = graph(manager, a, b)(task)
    assert (result.status, result.resumed, str(result)) == (Status.COMPLETED, True, "a: A theirs\nb: B ours")
    assert "  - Agent: A theirs" in asked(b)
    assert result.accumulated_usage["totalTokens"] > 15
    found = peer.graph(told, {"a": [], "b": []})
    assert found["found"]["status"] == "pending", "it is over for them, too"


def test_we_go_on_with_a_swarm_where_the_package_was_killed(peer: Peer, place: Any) -> None:
    manager, told = place
    found = peer.swarm(told, {"a": [HANDING, *text("A theirs")], "b": [False]}, task="Do it")
    assert "died" in found
    a, b = node(name="a"), node("B ours", name="b")
    result = Swarm([a, b], session_manager=manager())("Do it")
    assert isinstance(result, SwarmResult)
    assert (result.status, [str(each) for each in result.node_history]) == (Status.COMPLETED, ["a", "b"])
    assert "Handoff Message: over to you" in asked(b)
    assert "{'found': 7}" in asked(b)


def test_we_begin_anew_after_a_run_of_theirs_that_is_over(peer: Peer, tmp_path: Path) -> None:
    manager, told = lambda: FileSessionManager("s", tmp_path), {"session": "s", "folder": str(tmp_path)}
    peer.graph(told, {"a": text("A theirs"), "b": text("B theirs")}, task="Do it")
    result = graph(manager, node("A ours"), node("B ours"))("Do it")
    assert (result.status, result.run, str(result)) == (Status.COMPLETED, 2, "a: A ours\nb: B ours")


def test_a_run_may_change_hands_again_and_again(peer: Peer, tmp_path: Path) -> None:
    """Three nodes in a row, each one done by another side, and one failure in between each time."""
    told, edges = {"session": "s", "folder": str(tmp_path)}, "a>b b>c"

    def ours(**nodes: Agent) -> Graph:
        return Graph(nodes, session_manager=FileSessionManager("s", tmp_path))

    failed(ours(a=node("A ours"), b=node(down), c=node()), "Do it")
    peer.graph(told, {"a": [], "b": text("B theirs"), "c": [None]}, edges, task="Do it")
    failed(ours(a=node(), b=node(), c=node(down)), "Do it")
    result = ours(a=node(), b=node(), c=node("C ours"))(None)
    assert (result.status, result.run) == (Status.COMPLETED, 1)
    assert str(result) == "a: A ours\nb: B theirs\nc: C ours"
