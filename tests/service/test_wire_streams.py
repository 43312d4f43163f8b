"""What agents, graphs and swarms really yield, over JSON."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from repertory import (
    Agent,
    Graph,
    GraphResult,
    MultiAgentResult,
    NodeFailed,
    ScriptedModel,
    Swarm,
    SwarmResult,
    ToolContext,
    error_from_json,
    error_to_json,
    event_from_json,
    event_to_json,
    tool,
)
from repertory.backends.tools.function_tool import schema_class
from repertory.errors import Throttled, Unavailable

pytestmark = pytest.mark.anyio
schema_class()  # Loading it takes a thread, and time on these clocks stands still or jumps.


def told(event: dict[str, Any], run_result: type[MultiAgentResult] = MultiAgentResult) -> dict[str, Any]:
    """The event as another process gets it."""
    return event_from_json(json.loads(json.dumps(event_to_json(event), allow_nan=False)), run_result)


def kinds(events: list[dict[str, Any]]) -> set[str]:
    return {str(event.get("type", next(iter(event)))) for event in events}


@tool
async def fetch() -> AsyncIterator[Any]:
    """Fetch in pieces."""
    yield b"\0\1"
    yield {"done": 0.5}
    yield "all"


@tool
def pay(tool_context: ToolContext) -> str:
    """Ask first."""
    return str(tool_context.interrupt("pay?", reason={"sum": 3}))


def use(name: str, **given: Any) -> Any:
    return {"toolUse": {"name": name, "input": given}}


def agent(*replies: Any, name: str = "one", **more: Any) -> Agent:
    return Agent(ScriptedModel(replies), name=name, callback_handler=None, **more)


async def test_an_agents_events_arrive_as_they_were_yielded() -> None:
    one = agent(Throttled("slow", retry_after_s=1.0), use("fetch"), use("pay"), tools=[fetch, pay])
    events: list[Any] = [event async for event in one.stream_async("Go")]
    assert kinds(events) == {
        *("message", "event", "tool_started", "tool_stream", "tool_finished", "tool_interrupt_event"),
        *("model_retry", "result", "init_event_loop", "start", "start_event_loop", "tool_use_stream"),
        "event_loop_throttled_delay",
    }
    for event in events:
        again = told(event)
        if "model_retry" in event:
            error, was = again["model_retry"].pop("error"), event["model_retry"].pop("error")
            assert (type(error), str(error), error.retry_after_s) == (Throttled, str(was), 1.0)
        assert again == event
    assert told(events[-1])["result"].interrupts[0].reason == {"sum": 3}


async def test_an_agents_events_as_a_tool_arrive_as_they_were_yielded() -> None:
    inner = agent(Unavailable("away"), use("fetch"), "fetched", name="inner", tools=[fetch])
    outer = agent(use("inner", input="go"), "done", tools=[inner])
    events: list[Any] = [event async for event in outer.stream_async("Go")]
    pieces = [event["tool_stream_event"]["data"] for event in events if "tool_stream_event" in event]
    assert {"model_retry", "tool_stream", "tool_finished"} <= kinds([piece for piece in pieces if piece])
    for event in events:
        again = told(event)
        retry = again.get("tool_stream_event", {}).get("data", {}).get("model_retry")
        if retry is not None:
            error, was = retry.pop("error"), event["tool_stream_event"]["data"]["model_retry"].pop("error")
            assert (type(error), str(error)) == (type(was), str(was))
        assert again == event


async def test_a_graphs_events_arrive_as_they_were_yielded() -> None:
    asking = agent(use("pay"), tools=[pay])
    graph = Graph({"plan": agent(use("fetch"), "planned", tools=[fetch]), "ask": asking})
    events: list[Any] = [event async for event in graph.stream_async("Go")]
    assert kinds(events) == {
        *("multiagent_node_start", "multiagent_node_stream", "multiagent_node_stop", "multiagent_node_interrupt"),
        *("multiagent_handoff", "multiagent_result"),
    }
    for event in events[:-1]:
        asked = {"interrupts": [*event["interrupts"]]} if "interrupts" in event else {}
        assert told(event) == {**event, **asked}
    result = told(events[-1], GraphResult)["result"]
    assert type(result) is GraphResult
    assert result.to_dict() == events[-1]["result"].to_dict()
    assert result.execution_order == events[-1]["result"].execution_order
    assert result.interrupts[0].reason == {"sum": 3}


async def test_the_result_of_a_graph_in_a_graph_arrives_without_what_only_graphs_have() -> None:
    graph = Graph({"in": Graph({"deep": agent("deep")}, id="inside")})
    events: list[Any] = [event async for event in graph.stream_async("Go")]
    stopped = next(event["node_result"] for event in events if event["type"] == "multiagent_node_stop")
    again = told({"type": "multiagent_node_stop", "node_result": stopped})["node_result"]
    assert (type(stopped.result), type(again.result)) == (GraphResult, MultiAgentResult)
    assert again.result.results == stopped.result.results
    assert again.to_record() == stopped.to_record()


async def test_a_swarms_events_arrive_as_they_were_yielded() -> None:
    given = {"agent_name": "two", "message": "yours"}
    swarm = Swarm([agent(use("handoff_to_agent", **given), "over", name="one"), agent("done", name="two")])
    events: list[Any] = [event async for event in swarm.stream_async("Go")]
    for event in events[:-1]:
        assert told(event) == event
    assert {
        "type": "multiagent_handoff",
        "from_node_ids": ["one"],
        "to_node_ids": ["two"],
        "message": "yours",
    } in events
    result = told(events[-1], SwarmResult)["result"]
    assert [node.node_id for node in result.node_history] == ["one", "two"]
    assert result.results == events[-1]["result"].results


class Broken:
    """A node of a program that has failed in its own way, with events of its own."""

    async def invoke_async(self, task: Any = None, **options: Any) -> Any:
        raise ZeroDivisionError(task)

    async def stream_async(self, task: Any = None, **options: Any) -> AsyncIterator[Any]:
        yield {"working": self, "on": task, "call": self.invoke_async}
        raise ZeroDivisionError("no luck")


async def test_the_error_of_a_failed_run_arrives_with_the_result_so_far() -> None:
    graph = Graph({"fine": agent("fine"), "broken": Broken()})
    events: list[Any] = []
    with pytest.raises(NodeFailed) as raised:
        events += [events.append(event) async for event in graph.stream_async("Go")]
    error: Any = error_from_json(json.loads(json.dumps(error_to_json(raised.value), allow_nan=False)))
    assert (type(error), str(error), error.fields) == (NodeFailed, str(raised.value), raised.value.fields)
    assert (type(error.__cause__), str(error.__cause__)) == (ZeroDivisionError, "no luck")
    assert str(error.result.results["fine"]) == "fine"
    assert isinstance(error.result.results["broken"].result, ZeroDivisionError)
    own = next(event["event"] for event in events if event.get("node_id") == "broken" and "event" in event)
    assert own["working"] is not None
    assert told(own)["on"] == own["on"]
    assert "call" not in told(own)
