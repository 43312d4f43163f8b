"""A run whose nodes have filled in forms is gone on with by the released strands-agents package, and by us again.

Needs an interpreter that has the package: see `test_layout_interop.py`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from repertory import Agent, FileSessionManager, Graph, GraphBuilder, GraphState, ScriptedModel, Status
from repertory.backends.tools.function_tool import schema_class
from tests.app.orchestration.test_multi_agent_interop import Peer, down, failed, node, peer, text
from tests.app.sessions.test_layout_interop import pytestmark

__all__ = ["peer", "pytestmark"]
schema_class()  # Loading it looks at files, which a loop must not.


@dataclass
class Route:
    """Where to go."""

    to: str


def graph(folder: Path, last: Agent, seen: list[Any]) -> Graph:
    filled = {"toolUse": {"name": "Route", "input": {"to": "left"}}}

    def condition(state: GraphState) -> bool:
        seen.append(state.results["a"].result.structured_output)  # type: ignore[union-attr]
        return True

    builder = GraphBuilder()
    builder.add_node(Agent(ScriptedModel([filled]), structured_output_model=Route, callback_handler=None), "a")
    builder.add_node(last, "b")
    builder.add_node(node("C ours"), "c")
    builder.add_edge("a", "b")
    builder.add_edge("b", "c", condition)
    return builder.set_session_manager(FileSessionManager("s", folder)).build()


def test_the_package_reads_what_we_keep_beside_and_we_read_it_again(peer: Peer, tmp_path: Path) -> None:
    seen: list[Any] = []
    failed(graph(tmp_path, node(down), seen), "Do it")
    (file,) = tmp_path.rglob("multi_agent.json")
    said = json.loads(file.read_text())["node_results"]["a"]["result"]
    assert said["structured_output"] == {"to": "left"}
    told = {"session": "s", "folder": str(tmp_path)}
    nodes: dict[str, Any] = {"a": [], "b": text("B theirs")}
    found = peer.graph(told, nodes, edges="a>b", task="Do it")
    assert found["results"] == {"a": '{"to":"left"}\n', "b": "B theirs\n"}


def test_the_run_goes_on_with_what_was_filled_in(tmp_path: Path) -> None:
    seen: list[Any] = []
    failed(graph(tmp_path, node(down), seen), "Do it")
    result = graph(tmp_path, node("B ours"), seen)()
    assert result.status is Status.COMPLETED
    assert seen == [Route(to="left")] * len(seen)
    assert seen
