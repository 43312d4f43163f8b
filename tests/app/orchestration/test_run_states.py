"""`graph.state` and `swarm.state`: what a run is now, for hooks while it is worked on and for everybody afterwards."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from repertory import (
    AfterMultiAgentInvocationEvent,
    AfterNodeCallEvent,
    Agent,
    BeforeNodeCallEvent,
    Graph,
    GraphBuilder,
    MultiAgentResult,
    NodeFailed,
    ScriptedModel,
    Status,
    Swarm,
    ToolContext,
    tool,
)
from repertory.backends.tools.function_tool import schema_class
from repertory.core.run_results import run_fields
from repertory.errors import Corrupt, Invalid

pytestmark = pytest.mark.anyio
schema_class()  # Loading it uses a thread, which a clock that jumps would pass.

HANDING = {"agent_name": "b", "message": "yours", "context": {"found": 7}}


def agent(*replies: Any, **more: Any) -> Agent:
    return Agent(ScriptedModel(replies or ("fine",), loop=True), callback_handler=None, retry_strategy=None, **more)


def names(nodes: Any) -> list[str]:
    return [node.node_id for node in nodes]


async def test_a_hook_reads_what_the_node_has_led_to_and_how_far_the_run_is() -> None:
    seen: list[Any] = []

    def after(event: AfterNodeCallEvent) -> None:
        state = event.source.state
        seen.append((event.node_id, str(state.results[event.node_id]), state.status, names(state.execution_order)))

    def before(event: BeforeNodeCallEvent) -> None:
        seen.append((event.node_id, event.source.state.task))

    def over(event: AfterMultiAgentInvocationEvent) -> None:
        seen.append(event.source.state.status)

    graph = Graph({"a": agent("A"), "b": agent("B")})
    assert (graph.state.status, graph.state.task, dict(graph.state.results)) == (Status.PENDING, "", {})
    for callback in (after, before, over):
        graph.add_hook(callback)
    result = await graph.invoke_async("Go")
    assert seen == [
        ("a", "Go"),
        ("a", "A", Status.EXECUTING, ["a"]),
        ("b", "Go"),
        ("b", "B", Status.EXECUTING, ["a", "b"]),
        Status.COMPLETED,
    ]
    state = graph.state
    assert (state.results, state.accumulated_usage) == (result.results, result.accumulated_usage)
    assert (state.execution_order, state.entry_points) == (result.execution_order, result.entry_points)
    assert (state.completed_nodes, state.failed_nodes) == (frozenset(graph.nodes.values()), frozenset())
    assert (state.total_nodes, state.execution_count, state.edges) == (2, 2, result.edges)
    assert (state.accumulated_metrics, state.execution_time) == (result.accumulated_metrics, result.execution_time)


async def test_it_says_what_became_of_a_run_that_failed_waits_or_was_stopped() -> None:
    failing = Graph({"a": agent("A"), "b": agent(ConnectionError("down"))})
    with pytest.raises(NodeFailed):
        await failing.invoke_async("Go")
    assert (failing.state.status, names(failing.state.failed_nodes)) == (Status.FAILED, ["b"])

    @tool
    def ask(tool_context: ToolContext) -> str:
        """Ask."""
        return str(tool_context.interrupt("yes?"))

    asking = Graph({"a": agent({"toolUse": {"name": "ask", "input": {}}}, tools=[ask])})
    await asking.invoke_async("Go")
    assert (asking.state.status, names(asking.state.interrupted_nodes)) == (Status.INTERRUPTED, ["a"])

    slow = Graph({"a": Agent(ScriptedModel(["A"], delay_s=10), callback_handler=None)})
    async with anyio.create_task_group() as group:
        group.start_soon(slow.invoke_async, "Go")
        await anyio.sleep(1)
        assert slow.state.status is Status.EXECUTING
        group.cancel_scope.cancel()
    assert slow.state.status is Status.INTERRUPTED


async def test_a_run_that_is_only_told_of_once_more_is_the_state_as_well() -> None:
    graph = Graph({"a": agent("A", "B")})
    for task, token in (("One", "t1"), ("One", "t1")):
        await graph.invoke_async(task, idempotency_token=token)
    assert (graph.state.status, graph.state.task, str(graph.state.results["a"])) == (Status.COMPLETED, "One", "A")


async def test_a_swarm_says_who_has_control_and_what_was_left() -> None:
    handing = {"toolUse": {"name": "handoff_to_agent", "input": HANDING}}
    a, b = agent(handing, "done", name="a"), agent("B", name="b")
    swarm = Swarm([a, b])
    seen: list[Any] = []

    def before(event: BeforeNodeCallEvent) -> None:
        state = event.source.state
        seen.append((str(state.current_node), names(state.node_history), state.completion_status))

    swarm.add_hook(before)
    assert (swarm.state.completion_status, swarm.state.current_node) == (Status.PENDING, None)
    result = await swarm.invoke_async("Go")
    assert seen == [("a", [], Status.EXECUTING), ("b", ["a"], Status.EXECUTING)]
    assert (swarm.state.completion_status, swarm.state.current_node) == (Status.COMPLETED, None)
    assert swarm.shared_context.context == swarm.state.shared_context.context == {"a": {"found": 7}}
    assert swarm.state.node_history == result.node_history


def test_what_orchestrators_were_built_with_can_be_read() -> None:
    builder = GraphBuilder()
    builder.add_node(agent(), "a")
    builder.set_max_node_executions(9).set_execution_timeout(60).set_node_timeout(5).reset_on_revisit()
    graph = builder.build()
    assert (graph.max_node_executions, graph.execution_timeout, graph.node_timeout) == (9, 60.0, 5.0)
    assert (graph.reset_on_revisit, names(graph.entry_points), graph.edges) == (True, ["a"], ())
    swarm = Swarm([agent(name="a")], max_handoffs=3, repetitive_handoff_detection_window=4)
    assert (swarm.max_handoffs, swarm.max_iterations, swarm.execution_timeout) == (3, 20, 900.0)
    assert swarm.repetitive_handoff_detection_window == 4
    assert (swarm.repetitive_handoff_min_unique_agents, swarm.node_timeout) == (0, 300.0)


async def test_trace_attributes_stand_on_the_spans(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interface of OpenTelemetry, with a provider that writes down what it is told."""
    from opentelemetry import trace

    spans: list[Any] = []

    class Tracer(trace.NoOpTracer):
        def start_as_current_span(self, name: str, *args: Any, **options: Any) -> Any:
            spans.append(options["attributes"])
            return super().start_as_current_span(name, *args, **options)

    monkeypatch.setattr(trace, "get_tracer", lambda name: Tracer())
    told = {"team": "bees", "orchestrator.id": "mine"}
    for made in (
        Graph({"a": agent()}, id="o", trace_attributes=told),
        Swarm([agent(name="a")], id="o", trace_attributes=told),
    ):
        spans.clear()
        await made.load_snapshot_async(await made.save_snapshot_async())
        assert spans == [{"team": "bees", "orchestrator.id": "o"}] * 2
    with pytest.raises(Invalid, match="dictionary"):
        Graph({"a": agent()}, trace_attributes=["team"])  # type: ignore[arg-type]


async def test_a_result_is_made_of_its_json_again() -> None:
    result = await Graph({"a": agent("A"), "in": Graph({"b": agent("B")}, id="in")}).invoke_async("Go")
    again = MultiAgentResult.from_dict(result.to_dict())
    assert (again.status, str(again), again.accumulated_usage) == (result.status, str(result), result.accumulated_usage)
    assert run_fields(again, "stored") == run_fields(result, "stored")
    for said in ({}, {"type": "agent_result"}, {"type": "multiagent_result"}):
        with pytest.raises(Corrupt):
            MultiAgentResult.from_dict(said)  # type: ignore[arg-type]
