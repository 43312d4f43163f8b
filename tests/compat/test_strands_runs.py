"""Graphs and swarms as programs of the SDK use them: runs serialized by hand, nodes that tell of themselves."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any, ClassVar

import pytest

from repertory import (
    AfterNodeCallEvent,
    Agent,
    BeforeNodeCallEvent,
    Graph,
    GraphBuilder,
    GraphState,
    InMemoryStorage,
    MultiAgentBase,
    MultiAgentResult,
    NodeFailed,
    NodeResult,
    ScriptedModel,
    SnapshotSessionManager,
    Status,
    Swarm,
    ToolContext,
    tool,
)
from repertory.app.orchestration.graph import GraphEdge, GraphNode
from repertory.app.orchestration.swarm import SharedContext, SwarmNode
from repertory.backends.tools.function_tool import schema_class
from repertory.compat.managers_by_hand import HookedSessionManager as SessionManager
from repertory.compat.run_states import GraphValues, SwarmValues
from repertory.errors import AgentBusy, Invalid, SnapshotException

pytestmark = pytest.mark.anyio
schema_class()  # Loading it uses a thread, which a clock that jumps would pass.

DOWN = ConnectionError("down")
HANDING = {
    "toolUse": {"name": "handoff_to_agent", "input": {"agent_name": "b", "message": "yours", "context": {"found": 7}}}
}


def agent(*replies: Any, **more: Any) -> Agent:
    return Agent(ScriptedModel(replies or ("fine",), loop=True), callback_handler=None, retry_strategy=None, **more)


def through_json(value: Any) -> Any:
    return json.loads(json.dumps(value))


async def failed(run: Graph | Swarm, task: Any = "go") -> dict[str, Any]:
    """The run, as JSON, of a call that fails."""
    with pytest.raises(NodeFailed):
        await run.invoke_async(task)
    return through_json(run.serialize_state())


async def test_a_serialized_run_goes_on_in_another_object() -> None:
    state = await failed(Graph({"a": agent("A"), "b": agent(DOWN)}), [{"text": "go"}])
    assert (state["type"], state["completed_nodes"], state["next_nodes_to_execute"]) == ("graph", ["a"], ["b"])
    a, b = agent("never"), agent("B")
    graph = Graph({"a": a, "b": b})
    graph.deserialize_state(state)
    assert (graph.state.status, str(graph.state.results["a"])) == (Status.FAILED, "A")
    assert graph.nodes["a"].execution_status is Status.COMPLETED
    result = await graph.invoke_async()
    assert (result.status, result.resumed, str(result)) == (Status.COMPLETED, True, "a: A\nb: B")
    assert a.messages == []


async def test_a_serialized_run_that_is_loaded_into_a_session_is_durable_before_the_call_goes_on() -> None:
    state = await failed(Graph({"a": agent("A"), "b": agent(DOWN)}))
    storage = InMemoryStorage()

    def stored(b: Any) -> Graph:
        nodes = {"a": agent("never"), "b": agent(b)}
        return Graph(nodes, session_manager=SnapshotSessionManager(session_id="s", storage=storage))

    first = stored(DOWN)
    first.deserialize_state(state)
    await failed(first, None)
    result = await stored("B").invoke_async()
    assert (result.resumed, str(result)) == (True, "a: A\nb: B")


async def test_a_snapshot_has_the_run_that_was_given_and_not_the_one_before() -> None:
    state = await failed(Graph({"a": agent("A"), "b": agent(DOWN)}))
    graph = Graph({"a": agent("earlier"), "b": agent("B")})
    async with graph:
        await graph.invoke_async("earlier")
        graph.deserialize_state(state)
        snapshot = await graph.save_snapshot_async()
        other = Graph({"a": agent("never"), "b": agent("B")})
        await other.load_snapshot_async(snapshot)
        assert str(await other.invoke_async()) == str(await graph.invoke_async()) == "a: A\nb: B"


async def test_after_a_finished_run_was_given_the_next_call_begins_another() -> None:
    graph = Graph({"a": agent("A")})
    await graph.invoke_async("go")
    state = through_json(graph.serialize_state())
    again = Graph({"a": agent("A2")})
    again.deserialize_state(state)
    assert (again.state.status, again.state.task) == (Status.COMPLETED, "go")
    result = await again.invoke_async("next")
    assert (str(result), result.resumed) == ("a: A2", False)


async def test_nothing_was_serialized_before_the_first_run() -> None:
    swarm = Swarm([agent(name="a")])
    state = through_json(swarm.serialize_state())
    assert (state["type"], state["status"]) == ("swarm", "pending")
    swarm.deserialize_state(state)
    assert (await swarm.invoke_async("go")).status is Status.COMPLETED


async def test_a_node_that_waited_for_a_person_asks_again() -> None:
    @tool
    def ask(tool_context: ToolContext) -> str:
        """Ask."""
        return str(tool_context.interrupt("yes?"))

    def asking() -> Graph:
        return Graph({"a": agent({"toolUse": {"name": "ask", "input": {}}}, "done", tools=[ask])})

    before = asking()
    assert (await before.invoke_async("go")).status is Status.INTERRUPTED
    graph = asking()
    graph.deserialize_state(through_json(before.serialize_state()))
    waiting = await graph.invoke_async()
    assert [each.name for each in waiting.interrupts] == ["yes?"]
    answer: Any = [{"interruptResponse": {"interruptId": waiting.interrupts[0].id, "response": "sure"}}]
    assert str(await graph.invoke_async(answer)) == "a: done"


async def test_a_swarm_goes_on_with_the_agent_that_was_handed_over_to() -> None:
    state = await failed(Swarm([agent(HANDING, "handed", name="a"), agent(DOWN, name="b")]))
    assert (state["node_history"], state["next_nodes_to_execute"]) == (["a"], ["b"])
    swarm = Swarm([agent("never", name="a"), agent("B", name="b")])
    swarm.deserialize_state(state)
    assert (swarm.state.handoff_message, str(swarm.state.handoff_node)) == ("yours", "b")
    result = await swarm.invoke_async()
    assert (result.status, [node.node_id for node in result.node_history]) == (Status.COMPLETED, ["a", "b"])
    assert swarm.shared_context.context == {"a": {"found": 7}}
    assert (swarm.state.handoff_node, swarm.state.handoff_message) == (None, None)


async def test_what_is_no_run_of_such_an_orchestrator_is_refused() -> None:
    graph = Graph({"a": agent("A")})
    swarm = Swarm([agent(name="a")])
    for payload in (swarm.serialize_state(), {}, {"type": "graph"}, [], "x"):
        given: Any = payload
        with pytest.raises(SnapshotException):
            graph.deserialize_state(given)
    assert str(await graph.invoke_async("go")) == "a: A"


async def test_a_run_is_not_replaced_while_a_call_works_on_it() -> None:
    graph = Graph({"a": agent("A")})
    seen: list[Any] = []

    def before(event: BeforeNodeCallEvent) -> None:
        seen.append(event.source.serialize_state()["status"])
        with pytest.raises(AgentBusy):
            event.source.deserialize_state(event.source.serialize_state())

    graph.add_hook(before)
    assert str(await graph.invoke_async("go")) == "a: A"
    assert seen == ["executing"]


async def test_a_session_manager_of_a_program_goes_on_with_what_it_has_kept_in_the_sdk() -> None:
    class Keeper(SessionManager):
        session_id = "s"
        kept: ClassVar[dict[str, Any]] = {}

        def initialize(self, agent: Any, **kwargs: Any) -> None: ...

        def append_message(self, message: Any, agent: Any, **kwargs: Any) -> None: ...

        def redact_latest_message(self, redact_message: Any, agent: Any, **kwargs: Any) -> None: ...

        def sync_agent(self, agent: Any, **kwargs: Any) -> None: ...

        def initialize_multi_agent(self, source: Any, **kwargs: Any) -> None:
            source.deserialize_state(self.kept)

        def sync_multi_agent(self, source: Any, **kwargs: Any) -> None:
            type(self).kept = through_json(source.serialize_state())

    state = await failed(Graph({"a": agent("A"), "b": agent(DOWN)}))
    del state["repertory"]  # As the SDK writes it.
    Keeper.kept = state
    graph = Graph({"a": agent("never"), "b": agent("B")}, session_manager=Keeper())
    assert str(await graph.invoke_async("go")) == "a: A\nb: B"
    started = Graph({"a": agent("never"), "b": agent("never")})
    Keeper().initialize_multi_agent(started)  # What it keeps now is a snapshot.
    assert (started.state.status, str(started.state.results["b"])) == (Status.COMPLETED, "B")
    Keeper.kept = Swarm([agent(name="a")]).serialize_state()
    refused = Graph({"a": agent()}, session_manager=Keeper())
    for _ in range(2):  # What it keeps is not overwritten by a run that begins anew.
        with pytest.raises(SnapshotException):
            await refused.invoke_async("go")


async def test_a_node_tells_what_it_does_and_what_it_has_done() -> None:
    builder = GraphBuilder()
    a, b = builder.add_node(agent("A"), "a"), builder.add_node(agent(DOWN), "b")
    builder.add_edge(a, b)
    assert (b.dependencies, a.dependencies) == ({a}, set())
    assert (a.execution_status, a.result, a.execution_time) == (Status.PENDING, None, 0)
    graph = builder.build()
    seen: list[Any] = []

    def note(event: BeforeNodeCallEvent | AfterNodeCallEvent) -> None:
        seen.append((type(event).__name__[:6], a.execution_status, b.execution_status))

    graph.add_hook(note)
    await failed(graph)
    running, done, waiting = Status.EXECUTING, Status.COMPLETED, Status.PENDING
    assert seen == [
        ("Before", running, waiting),
        ("AfterN", done, waiting),
        ("Before", done, running),
        ("AfterN", done, Status.FAILED),
    ]
    assert (str(a.result), b.execution_status) == ("A", Status.FAILED)
    assert isinstance(b.result and b.result.result, NodeFailed | Exception)
    assert a.execution_time == graph.state.results["a"].execution_time


async def test_a_node_that_is_started_is_dispatched_until_it_begins() -> None:
    builder = GraphBuilder()
    for name in ("a", "b"):
        builder.add_node(agent(), name)
    graph = builder.build()
    seen: list[set[Status]] = []

    def before(event: BeforeNodeCallEvent) -> None:
        seen.append({node.execution_status for node in event.source.nodes.values()})

    graph.add_hook(before)
    await graph.invoke_async("go")
    assert seen[0] == {Status.EXECUTING, Status.DISPATCHED}
    assert {node.execution_status for node in graph.nodes.values()} == {Status.COMPLETED}


def test_a_condition_can_be_tried_with_a_state_of_the_programs_own() -> None:
    def done(state: Any) -> bool:
        return "a" in state.results and len(state.completed_nodes) == 1

    node = GraphNode("a", agent())
    edge = GraphEdge(node, GraphNode("b", agent()), done)
    state: Any = GraphValues(task="go")
    assert not edge.should_traverse(state, invocation_state={})
    state.completed_nodes.add(node)
    state.results["a"] = NodeResult(Invalid("no"))
    assert edge.should_traverse(state, invocation_state={})


def test_the_states_of_graphs_and_swarms_count_as_such_and_have_all_of_their_values() -> None:
    graph, swarm = Graph({"a": agent()}), Swarm([agent(name="a")])
    for plain, live in ((GraphValues, graph.state), (SwarmValues, swarm.state)):
        assert isinstance(live, plain)
        assert [each.name for each in fields(plain) if not hasattr(live, each.name)] == []
    assert isinstance(graph.state, GraphState)
    assert SwarmValues(None, "go").shared_context.context == {}
    assert swarm.nodes["a"].swarm is swarm


def test_values_are_left_in_a_context_of_the_programs_own_only() -> None:
    a = SwarmNode("a", agent(name="a"))
    context = SharedContext()
    context.add_context(a, "found", [1, {"two": None}])
    assert context.context == {"a": {"found": [1, {"two": None}]}}
    wrong: list[tuple[Any, Any, str]] = [
        (None, 1, "Key cannot be None"),
        (1, 1, "Key must be a string"),
        (" ", 1, "Key cannot be empty"),
        ("key", object(), "Value is not JSON serializable"),
    ]
    for key, value, text in wrong:
        with pytest.raises(ValueError, match=text):
            context.add_context(a, key, value)
    swarm = Swarm([agent(name="a")])
    with pytest.raises(Invalid, match="read-only"):
        swarm.shared_context.add_context(swarm.nodes["a"], "found", 1)


def test_what_an_object_that_runs_several_agents_has_not_is_not_implemented() -> None:
    class Own(MultiAgentBase):
        async def invoke_async(self, *args: Any, **more: Any) -> MultiAgentResult:
            return MultiAgentResult()

    own = Own()
    for call in (own.serialize_state, lambda: own.deserialize_state({}), lambda: own.add_hook(print)):
        with pytest.raises(NotImplementedError):
            call()
