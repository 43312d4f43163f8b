"""Results as JSON: whole for callers, and for journals and documents as they always were."""

from __future__ import annotations

import json
from contextlib import suppress
from datetime import date
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from repertory import AgentResult, GraphResult, Interrupt, MultiAgentResult, NodeResult, SwarmResult
from repertory.app.orchestration.graph import GraphNode
from repertory.core.result import StepMetrics, ToolMetrics, TurnMetrics, WrongResult
from repertory.core.run_results import node_result_of
from repertory.errors import Corrupt, Invalid, NodeFailed, Throttled
from tests.core.result_strategies import AGENT_RESULTS, JSON, RUN_RESULTS, node_results

SAID: Any = {"role": "assistant", "content": [{"text": "hi"}]}
PICTURE: Any = {"role": "assistant", "content": [{"image": {"format": "png", "source": {"bytes": b"\0\1"}}}]}
USAGE: Any = {"inputTokens": 1, "outputTokens": 2, "totalTokens": 3}


def over_the_wire(data: dict[str, Any]) -> dict[str, Any]:
    read: dict[str, Any] = json.loads(json.dumps(data, allow_nan=False))
    return read


def test_a_result_that_holds_no_more_is_written_as_the_sdk_writes_it() -> None:
    data = {"type": "agent_result", "message": SAID, "stop_reason": "end_turn", "checkpoint": None}
    assert AgentResult("end_turn", SAID).to_dict() == data
    assert AgentResult.from_dict(data) == AgentResult("end_turn", SAID)
    asked = AgentResult("end_turn", PICTURE).to_dict()["message"]["content"][0]
    assert asked == {"image": {"format": "png", "source": {"bytes": {"__bytes_encoded__": True, "data": "AAE="}}}}


@given(AGENT_RESULTS)
def test_an_agents_result_is_read_as_it_was_written(result: AgentResult) -> None:
    again = AgentResult.from_dict(over_the_wire(result.to_dict()))
    assert again == result
    assert again.to_dict() == result.to_dict()


@given(node_results(AGENT_RESULTS))
def test_a_nodes_result_is_read_as_it_was_written(result: NodeResult) -> None:
    assert NodeResult.from_dict(over_the_wire(result.to_dict())) == result


@given(RUN_RESULTS)
def test_a_runs_result_is_read_as_it_was_written(result: MultiAgentResult) -> None:
    assert MultiAgentResult.from_dict(over_the_wire(result.to_dict())) == result


def test_the_result_of_a_graph_or_swarm_names_its_nodes() -> None:
    first, last = GraphNode(node_id="first", executor=object()), GraphNode(node_id="last", executor=object())
    graph = GraphResult(
        results={"first": NodeResult(AgentResult("end_turn", PICTURE))},
        total_nodes=2,
        completed_nodes=1,
        failed_nodes=1,
        interrupted_nodes=3,
        execution_order=(first, last, first),
        edges=((first, last),),
        entry_points=(first,),
    )
    data = over_the_wire(graph.to_dict())
    assert data["execution_order"] == ["first", "last", "first"]
    assert data["edges"] == [["first", "last"]]
    assert GraphResult.from_dict(data) == graph
    swarm = SwarmResult.from_dict({**SwarmResult().to_dict(), "node_history": ["a", "b", "a"]})
    assert [node.node_id for node in swarm.node_history] == ["a", "b", "a"]
    assert SwarmResult.from_dict(over_the_wire(swarm.to_dict())) == swarm
    wrong: list[tuple[type[MultiAgentResult], dict[str, Any]]] = [
        (GraphResult, {"edges": [["a"]]}),
        (GraphResult, {"total_nodes": "2"}),
        (SwarmResult, {"node_history": 1}),
    ]
    for kind, fields in wrong:
        with pytest.raises(Corrupt):
            kind.from_dict({**kind().to_dict(), **fields})


def test_the_error_of_a_node_is_read_as_the_error_that_it_was() -> None:
    failed = NodeFailed("no", node="x")
    failed.__cause__ = Throttled("slow", retry_after_s=2.0)
    failed.result = MultiAgentResult(results={"inner": NodeResult(failed)}, run=3)
    data = over_the_wire(node_result_of(failed, 5).to_dict())
    again = NodeResult.from_dict(data).result
    assert isinstance(again, NodeFailed)
    assert (str(again), again.fields) == ("no node='x'", {"node": "x"})
    assert isinstance(again.__cause__, Throttled)
    assert again.__cause__.retry_after_s == 2.0
    assert isinstance(again.result, MultiAgentResult)
    assert str(again.result.results["inner"]) == "no node='x'"


class Answer(BaseModel):
    count: int
    day: date


def test_what_json_cannot_hold_is_left_out() -> None:
    nan = float("nan")
    result = AgentResult(
        "end_turn",
        {"role": "assistant", "content": [{"text": "so", "score": nan, "by": object()}]},  # type: ignore[typeddict-unknown-key]
        metrics=TurnMetrics(cycles=(StepMetrics(USAGE, nan, 1.0, 1),), duration_s=2.0),
        state={"n": nan, "client": object(), "kept": [1]},
        structured_output=Answer(count=1, day=date(2024, 2, 29)),
    )
    again = AgentResult.from_dict(over_the_wire(result.to_dict()))
    assert again.message == {"role": "assistant", "content": [{"text": "so"}]}
    assert again.metrics == TurnMetrics(cycles=(StepMetrics(USAGE, 0.0, 1.0, 1),), duration_s=2.0)
    assert again.state == {"kept": [1]}
    assert again.structured_output == {"count": 1, "day": "2024-02-29"}
    bare = AgentResult("end_turn", None)
    assert AgentResult("end_turn", None, structured_output=object()).to_dict() == bare.to_dict()


def test_a_structured_output_that_is_json_is_written_as_it_is_whatever_the_message_says() -> None:
    said: Any = {"role": "assistant", "content": [{"text": '{"other": 2}'}]}
    for output in ({"a": 1}, ["a"], "a", 1.5, False):
        result = AgentResult("end_turn", said, structured_output=output)
        assert AgentResult.from_dict(over_the_wire(result.to_dict())) == result


def test_a_journal_keeps_a_result_as_it_always_has() -> None:
    asked = Interrupt("i1", "approve", {"why": 1}, expires_at=5.5)
    result = AgentResult(
        "interrupt",
        PICTURE,
        metrics=TurnMetrics(
            cycles=(StepMetrics(USAGE, 4.0, 0.5, 1), StepMetrics(USAGE, 6.0, 0.7, 2)),
            tool_metrics={"look": ToolMetrics(call_count=2, error_count=1, total_time=0.25)},
            duration_s=1.5,
            left_out={"memory": "late"},
        ),
        state={"marked": {"__bytes_encoded__": True, "data": "AAE="}, "client": object()},
        interrupts=[asked],
        structured_output={"a": 1},
        replayed=True,
    )
    record = node_result_of(result, 7).to_record()
    outcome = record["result"]
    assert isinstance(outcome, dict)
    assert outcome.pop("message") == PICTURE
    assert json.dumps(record) == (
        '{"result": {"type": "agent_result", "stop_reason": "interrupt", "metrics": {"duration_s": 1.5, "usage": '
        '{"inputTokens": 2, "outputTokens": 4, "totalTokens": 6}, "latency_ms": 10.0, "tools": {"look": {"call_count": '
        '2, "error_count": 1, "total_time": 0.25}}}, "structured_output": {"a": 1}, "state": {"marked": '
        '{"__bytes_encoded__": true, "data": "AAE="}}}, "execution_time": 7, "status": "interrupted", "interrupts": '
        '[{"id": "i1", "name": "approve", "reason": {"why": 1}, "response": null, "expires_at": 5.5}]}'
    )
    again = NodeResult.from_record({**record, "result": {**outcome, "message": PICTURE}}).result
    assert isinstance(again, AgentResult)
    sums: Any = {"inputTokens": 2, "outputTokens": 4, "totalTokens": 6}
    assert again.metrics.cycles == (StepMetrics(sums, 10.0, 1.5, 1),)
    assert again.state == {"marked": {"__bytes_encoded__": True, "data": "AAE="}}
    assert (again.message, again.interrupts, again.replayed) == (PICTURE, [asked], False)
    failed = node_result_of(NodeFailed("no", node="x"), 5).to_record()
    assert failed["result"] == {"type": "exception", "message": "no node='x'", "cause": "NodeFailed"}


@given(JSON)
def test_anything_else_is_an_error_that_says_so(data: Any) -> None:
    for kind, error in ((AgentResult, Invalid), (NodeResult, Corrupt), (MultiAgentResult, Corrupt)):
        with pytest.raises(error):
            kind.from_dict(data)


@given(AGENT_RESULTS, st.data())
def test_a_damaged_result_is_still_a_result_or_a_type_error(result: AgentResult, data: st.DataObject) -> None:
    fields = result.to_dict()
    fields[data.draw(st.sampled_from(sorted(fields)))] = data.draw(JSON)
    with suppress(WrongResult):
        assert isinstance(AgentResult.from_dict(fields), AgentResult)
    assert issubclass(WrongResult, TypeError)
