"""Snapshots of orchestrators that we and the released strands-agents package read from each other.

Needs an interpreter that has the package: see `test_layout_interop.py`.
"""

from __future__ import annotations

import json
import os
import subprocess
from typing import Any

import pytest

from repertory import Agent, Graph, NodeFailed, ScriptedModel, Snapshot, Status
from tests.app.sessions.test_layout_interop import PYTHON, pytestmark

__all__ = ["pytestmark"]

_SCRIPT = """
import asyncio, json, sys
from strands import Agent
from strands.models import Model
from strands.multiagent import GraphBuilder
from strands.multiagent._snapshot import load_snapshot, take_snapshot
from strands.types._snapshot import Snapshot


class Says(Model):
    def __init__(self, text):
        self.text = text

    def update_config(self, **config):
        pass

    def get_config(self):
        return {}

    async def structured_output(self, *args, **kwargs):
        raise NotImplementedError
        yield

    async def stream(self, *args, **kwargs):
        if self.text is None:
            raise RuntimeError("down")
        yield {"messageStart": {"role": "assistant"}}
        yield {"contentBlockStart": {"start": {}}}
        yield {"contentBlockDelta": {"delta": {"text": self.text}}}
        yield {"contentBlockStop": {}}
        yield {"messageStop": {"stopReason": "end_turn"}}


told = json.load(sys.stdin)
builder = GraphBuilder()
for name, text in told["nodes"].items():
    builder.add_node(Agent(model=Says(text), callback_handler=None), name)
builder.add_edge("a", "b")
graph = builder.build()
if told.get("snapshot"):
    load_snapshot(graph, Snapshot.from_dict(told["snapshot"]))
if told.get("state"):
    graph.deserialize_state(told["state"])
found = {"before": graph.serialize_state()}
try:
    result = asyncio.run(graph.invoke_async(told["task"]))
    found["results"] = {name: str(each) for name, each in result.results.items()}
except Exception as error:
    found["error"] = repr(error)
found["snapshot"] = take_snapshot(graph).to_dict()
found["state"] = graph.serialize_state()
print(json.dumps(found, default=repr))
"""


def theirs(**told: Any) -> Any:
    """What the released package does with a graph, and its snapshot afterwards."""
    environment = {**os.environ, "OTEL_SDK_DISABLED": "true"}
    said = json.dumps(told).encode()
    done = subprocess.run(
        [str(PYTHON), "-c", _SCRIPT], input=said, capture_output=True, check=False, timeout=60, env=environment
    )
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    return json.loads(done.stdout)


def ours(a: Any, b: Any) -> Graph:
    def node(reply: Any) -> Agent:
        return Agent(ScriptedModel([reply], loop=True), callback_handler=None, retry_strategy=None)

    return Graph({"a": node(a), "b": node(b)})


def test_the_released_package_goes_on_with_a_run_that_we_have_left_unfinished() -> None:
    graph = ours("A", ConnectionError("down"))
    with pytest.raises(NodeFailed):
        graph("go")
    document = json.loads(json.dumps(graph.save_snapshot().to_dict()))
    found = theirs(nodes={"a": "not asked", "b": "B"}, snapshot=document, task="go")
    assert found["before"]["completed_nodes"] == ["a"]
    assert {name: text.strip() for name, text in found["results"].items()} == {"a": "A", "b": "B"}


def test_we_go_on_with_a_run_that_the_released_package_has_left_unfinished() -> None:
    found = theirs(nodes={"a": "A", "b": None}, task="go")
    assert found["error"]
    graph = ours("not asked", "B")
    graph.load_snapshot(Snapshot.from_dict(found["snapshot"]))
    result = graph()
    assert (result.status, result.resumed) == (Status.COMPLETED, True)
    assert str(result).splitlines() == ["a: A", "b: B"]


def test_a_run_that_the_released_package_has_finished_is_over() -> None:
    found = theirs(nodes={"a": "A", "b": "B"}, task="go")
    graph = ours("A2", "B2")
    loaded = graph.load_snapshot(found["snapshot"])
    assert loaded.fields == ()
    assert graph("next").run == 2


def test_each_goes_on_with_the_run_that_the_other_has_serialized() -> None:
    graph = ours("A", ConnectionError("down"))
    with pytest.raises(NodeFailed):
        graph("go")
    found = theirs(
        nodes={"a": "not asked", "b": None}, state=json.loads(json.dumps(graph.serialize_state())), task="go"
    )
    assert found["before"]["completed_nodes"] == ["a"]
    assert found["error"]
    again = ours("not asked", "B")
    again.deserialize_state(found["state"])
    result = again("go")
    assert (result.resumed, str(result).splitlines()) == (True, ["a: A", "b: B"])
