"""Graphs: what runs, what each node is told, what a call gives, and how a run goes on."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack, aclosing, nullcontext
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from anyio.abc import TaskStatus

from repertory import (
    AfterMultiAgentInvocationEvent,
    AfterNodeCallEvent,
    Agent,
    BeforeMultiAgentInvocationEvent,
    BeforeNodeCallEvent,
    Graph,
    GraphBuilder,
    GraphState,
    HookFailed,
    MultiAgentBase,
    MultiAgentPlugin,
    MultiAgentResult,
    NodeFailed,
    Runtime,
    RunUnfinished,
    ScriptedModel,
    Sessions,
    Status,
    hook,
    tool,
)
from repertory.app.sessions.sessions import PlacedSession
from repertory.backends.tools.function_tool import schema_class
from repertory.core.messages import Message
from repertory.errors import AgentBusy, Invalid
from tests.app.orchestration.session_shelf import Shelf

pytestmark = pytest.mark.anyio
schema_class()  # Loading it uses a thread, which a clock that jumps would pass.


def agent(*replies: Any, **more: Any) -> Agent:
    return Agent(ScriptedModel(replies or ("fine",), loop=True), callback_handler=None, **more)


EVENTS = 5
"""Of an answer of one piece, each of which a slow model waits for."""


def slow(text: Any, delay_s: float) -> Agent:
    return Agent(ScriptedModel([text], delay_s=delay_s / EVENTS, loop=True), callback_handler=None)


def builder(edges: str, **nodes: object) -> GraphBuilder:
    """`"a>b b>c"`, with agents that say their own name unless given."""
    made = GraphBuilder()
    for name in dict.fromkeys(node for edge in edges.split() for node in edge.split(">")):
        made.add_node(nodes.get(name, agent(name.upper())), name)
    for edge in edges.split():
        if ">" in edge:
            made.add_edge(*edge.split(">"))
    return made


def told(node: Agent, turn: int = 0) -> list[str]:
    """What a node was told."""
    asked = [message for message in node.messages if message["role"] == "user"]
    return [block["text"] for block in asked[turn]["content"] if "text" in block]


def order(result: MultiAgentResult) -> list[str]:
    return [node.node_id for node in result.execution_order]  # type: ignore[attr-defined]


async def test_agents_run_in_the_order_given_and_each_is_told_the_task_and_what_came_before() -> None:
    first, second, third = agent("found it"), agent("wrote it"), agent("read it")
    result = await Graph({"a": first, "b": second, "c": third}).invoke_async("Write about bees")
    assert result.status is Status.COMPLETED
    assert str(result) == "a: found it\nb: wrote it\nc: read it"
    assert told(first) == ["Write about bees"]
    before = ["Original Task: Write about bees", "\nInputs from previous nodes:", "\nFrom a:", "  - Agent: found it"]
    assert told(second) == before
    assert told(third) == [*before[:2], "\nFrom b:", "  - Agent: wrote it"]
    assert order(result) == ["a", "b", "c"]
    assert (result.execution_count, result.run, result.resumed) == (3, 1, False)
    assert result.accumulated_usage["totalTokens"] > 0


async def test_a_task_may_be_content_blocks() -> None:
    image: Any = {"image": {"format": "png", "source": {"bytes": b"\x89PNG"}}}
    first, second = agent("a bee"), agent("fine")
    await Graph({"a": first, "b": second}).invoke_async([{"text": "Look"}, image])
    assert first.messages[0]["content"] == [{"text": "Look"}, image]
    assert second.messages[0]["content"][:3] == [{"text": "Original Task:"}, {"text": "Look"}, image]


async def test_a_node_after_a_fan_out_runs_once_with_everything_before_it() -> None:
    join = agent("together")
    graph = builder("root>left root>a a>right left>join right>join", join=join, left=slow("LEFT", 5)).build()
    result = await graph.invoke_async("Go")
    assert order(result)[-1] == "join"
    assert len(order(result)) == 5
    assert told(join)[2:] == ["\nFrom left:", "  - Agent: LEFT", "\nFrom right:", "  - Agent: RIGHT"]


async def test_nodes_that_do_not_wait_for_each_other_run_at_the_same_time() -> None:
    fan = builder(" ".join(f"root>n{number}" for number in range(50)), **{f"n{n}": slow("x", 10) for n in range(50)})
    began = anyio.current_time()
    await slow("x", 10).invoke_async("Go")
    one_s, began = anyio.current_time() - began, anyio.current_time()
    result = await fan.build().invoke_async("Go")
    assert anyio.current_time() - began == pytest.approx(one_s)
    assert result.execution_count == 51


async def test_edges_are_followed_when_their_conditions_hold() -> None:
    graph = builder("start yes no never")

    def is_yes(state: GraphState) -> bool:
        return "YES" in str(state.results["start"])

    def is_no(state: GraphState, *, invocation_state: dict[str, Any]) -> bool:
        return invocation_state["also"] == "no" and {node.node_id for node in state.completed_nodes} == {"start"}

    graph.nodes["start"].executor = agent("YES please")
    graph.add_edge("start", "yes", is_yes)
    graph.add_edge("start", "no", is_no)
    graph.add_edge("start", "never", lambda state: bool(state.failed_nodes))
    result = await graph.set_entry_point("start").build().invoke_async("Go", invocation_state={"also": "no"})
    assert sorted(order(result)) == ["no", "start", "yes"]


async def test_a_condition_that_fails_fails_the_run_and_loses_nothing() -> None:
    calls: list[str] = []
    graph = builder("a b")
    graph.nodes["a"].executor = agent(lambda *_: calls.append("a") or "A")
    good = False

    def condition(state: GraphState) -> bool:
        assert good
        return True

    graph.add_edge("a", "b", condition)
    built = graph.set_entry_point("a").build()
    with pytest.raises(NodeFailed) as caught:
        await built.invoke_async("Go")
    assert isinstance(caught.value.__cause__, HookFailed)
    good = True
    result = await built.invoke_async("Go")
    assert (order(result), calls, result.resumed) == (["a", "b"], ["a"], True)


async def test_a_loop_runs_until_its_condition_ends_it() -> None:
    drafts = iter(["draft 1", "draft 2", "draft 3"])
    writer, critic = agent(lambda *_: next(drafts)), agent("again", "again", "good")
    graph = builder("writer>critic", writer=writer, critic=critic)
    graph.add_edge("critic", "writer", lambda state: "again" in str(state.results["critic"]))
    result = await graph.set_entry_point("writer").set_max_node_executions(10).build().invoke_async("Go")
    assert order(result) == ["writer", "critic"] * 3
    assert str(result.results["writer"]) == "draft 3"
    assert told(critic, 2)[-1] == "  - Agent: draft 3"
    assert len(writer.messages) == 6


async def test_a_loop_has_a_limit_and_the_result_says_so() -> None:
    graph = builder("a>b b>a").set_entry_point("a").set_max_node_executions(5).build()
    result = await graph.invoke_async("Go")
    assert result.status is Status.FAILED
    assert result.reason == "Max node executions reached: 5"
    assert order(result) == ["a", "b", "a", "b", "a"]
    assert (await graph.invoke_async("Another")).run == 2


def test_a_loop_without_a_limit_is_warned_of() -> None:
    with pytest.warns(UserWarning, match="no limit"):
        builder("a>b b>a").set_entry_point("a").build()


@pytest.mark.parametrize("reset", [False, True], ids=["goes on", "begins anew"])
async def test_a_node_that_is_visited_again_goes_on_or_begins_with_what_it_was_built_with(reset: bool) -> None:
    first: list[Message] = [
        {"role": "user", "content": [{"text": "Be brief."}]},
        {"role": "assistant", "content": [{"text": "Yes."}]},
    ]
    writer = agent("text", messages=first, state={"mood": "calm"})
    graph = builder("writer>critic", writer=writer).reset_on_revisit(reset).set_max_node_executions(3)
    graph.add_edge("critic", "writer")
    await graph.set_entry_point("writer").build().invoke_async("Go")
    assert len(writer.messages) == (4 if reset else 6)
    assert writer.state.get("mood") == "calm"
    assert len(await writer.history()) == 6


async def test_a_node_that_takes_too_long_fails_and_the_others_keep_what_they_did() -> None:
    calls: list[str] = []
    good = slow(lambda *_: calls.append("good") or "GOOD", 10)
    graph = builder("root>slow root>good good>end", slow=slow("SLOW", 100), good=good).set_node_timeout(20).build()
    with pytest.raises(NodeFailed, match="Node 'slow' execution timed out after 20s") as caught:
        await graph.invoke_async("Go")
    so_far = caught.value.result
    assert isinstance(so_far, MultiAgentResult)
    assert so_far.status is Status.FAILED
    assert str(so_far.results["good"]) == "GOOD"
    graph.nodes["slow"].executor.model = ScriptedModel(["quick"])
    result = await graph.invoke_async("Go")
    assert (result.status, result.resumed, calls) == (Status.COMPLETED, True, ["good"])
    assert set(order(result)) == {"root", "slow", "good", "end"}


async def test_a_node_that_fails_is_tried_again_as_often_as_it_may_be() -> None:
    graph = GraphBuilder()
    graph.add_node(agent(ValueError("no"), ValueError("no"), "third time", retry_strategy=None), "a", retries=2)
    result = await graph.build().invoke_async("Go")
    assert (result.status, str(result)) == (Status.COMPLETED, "a: third time")


async def test_a_node_that_may_be_skipped_does_not_end_the_run() -> None:
    graph = GraphBuilder()
    graph.add_node(agent(ValueError("broken"), retry_strategy=None), "bad", on_failure="skip")
    last = agent("done")
    graph.add_node(agent("good"), "good")
    graph.add_node(last, "last")
    graph.add_edge("bad", "last")
    graph.add_edge("good", "last")
    result = await graph.build().invoke_async("Go")
    assert result.status is Status.COMPLETED
    assert result.results["bad"].status is Status.FAILED
    assert told(last)[2:] == ["\nFrom good:", "  - Agent: good"]


async def test_a_failed_run_goes_on_with_the_same_task_or_none_and_is_then_completed() -> None:
    shelf = Shelf()
    bad = ScriptedModel([ValueError("no"), "now"])

    def graph() -> Graph:
        nodes = {"a": agent("A"), "b": Agent(bad, callback_handler=None, retry_strategy=None)}
        return Graph(nodes, session_manager=PlacedSession("s", shelf))

    with pytest.raises(NodeFailed):
        await graph().invoke_async("Go")
    with pytest.raises(RunUnfinished, match="owing=\\['b'\\]"):
        await graph().invoke_async("Something else")
    result = await graph().invoke_async()
    assert (result.status, result.resumed, result.run, order(result)) == (Status.COMPLETED, True, 1, ["a", "b"])
    with pytest.raises(Invalid, match="no run to go on with"):
        await graph().invoke_async()


async def test_an_unfinished_run_may_be_given_up() -> None:
    graph = Graph({"a": agent(ValueError("no"), "fine", retry_strategy=None)})
    with pytest.raises(NodeFailed):
        await graph.invoke_async("Go")
    result = await graph.invoke_async("Something else", resume=False)
    assert (result.run, result.resumed, str(result)) == (2, False, "a: fine")
    with pytest.raises(Invalid):
        await graph.invoke_async("Go", resume=True)


async def test_every_nodes_conversation_is_kept_and_goes_on_in_the_next_run() -> None:
    shelf = Shelf()

    def graph() -> Graph:
        return Graph({"a": agent("A"), "b": agent("B")}, session_manager=PlacedSession("s", shelf))

    await graph().invoke_async("One")
    again = graph()
    result = await again.invoke_async("Two")
    assert result.run == 2
    assert [told(again.nodes["a"].executor, turn) for turn in (0, 1)] == [["One"], ["Two"]]
    assert set(shelf.shelf.sessions["s"].journals) == {
        "multi_agent.default_graph",
        "default_graph.a",
        "default_graph.b",
    }


async def test_a_run_may_be_gone_back_in_and_what_owed_work_then_is_done_anew() -> None:
    shelf, calls = Shelf(), list[str]()

    def graph() -> Graph:
        nodes = {name: agent(lambda *_, name=name: calls.append(name) or name) for name in "abc"}
        return Graph(nodes, session_manager=PlacedSession("s", shelf))

    first = await graph().invoke_async("Go")
    await graph().invoke_async("Go")
    assert (first.run, calls) == (1, ["a", "b", "c"] * 2)
    calls.clear()
    await Sessions(shelf).rewind("s", 2, agent="multi_agent.default_graph")  # The first run, after its first node.
    result = await graph().invoke_async("Go")
    assert (result.run, result.resumed, order(result), calls) == (3, True, ["a", "b", "c"], ["b", "c"])
    assert (await graph().invoke_async("Go")).run == 4
    calls.clear()
    await Sessions(shelf).rewind("s", 4, agent="multi_agent.default_graph")  # The end of the first run.
    assert ((await graph().invoke_async("Go")).resumed, calls) == (False, ["a", "b", "c"])


async def test_a_run_may_be_forked_and_both_go_on() -> None:
    shelf, calls = Shelf(), list[str]()

    def graph(session: str, last: Any = "c") -> Graph:
        nodes = {name: agent(lambda *_, name=name: calls.append(name) or name) for name in "ab"}
        nodes["c"] = agent(last, retry_strategy=None)
        return Graph(nodes, session_manager=PlacedSession(session, shelf))

    with pytest.raises(NodeFailed):
        await graph("s", ValueError("no")).invoke_async("Go")
    await Sessions(shelf).fork("s", "t")
    for session in "ts":
        made = graph(session, f"c of {session}")
        result = await made.invoke_async("Go")
        assert (result.status, result.resumed, str(result)) == (
            Status.COMPLETED,
            True,
            f"a: a\nb: b\nc: c of {session}",
        )
    assert calls == ["a", "b"]
    again = graph("t")
    await again.invoke_async("More")
    assert told(again.nodes["a"].executor) == ["Go"]


async def test_graphs_are_nodes_of_graphs() -> None:
    inner = Graph({"x": agent("X"), "y": agent("Y")}, id="inner")
    last = agent("Z")
    result = await Graph({"inner": inner, "z": last}).invoke_async("Go")
    assert result.execution_count == 3
    assert [str(found) for found in result.results["inner"].get_agent_results()] == ["X", "Y"]
    assert told(last)[2:] == ["\nFrom inner:", "  - Agent: X", "  - Agent: Y"]


@pytest.mark.parametrize("task", ["Go", "Something else"])
async def test_a_new_run_of_a_graph_does_not_go_on_with_what_a_graph_in_it_left_undone(task: str) -> None:
    calls: list[str] = []
    failing = agent(ValueError("no"), "Y", retry_strategy=None)
    inner = Graph({"x": agent(lambda *_: calls.append("x") or "X"), "y": failing}, id="inner")
    graph = Graph({"inner": inner})
    with pytest.raises(NodeFailed):
        await graph.invoke_async("Go")
    result = await graph.invoke_async(task, resume=False)
    assert (result.status, result.run, calls) == (Status.COMPLETED, 2, ["x", "x"])
    assert result.execution_count == 2


class Shouter(MultiAgentBase):
    """Somebody else's orchestrator."""

    id = "shouter"

    async def invoke_async(self, task: Any = None, invocation_state: Any = None, **options: Any) -> Any:
        del options, invocation_state
        return str(task[0]["text"]).upper()


async def test_anything_that_can_be_asked_is_a_node() -> None:
    result = await Graph({"a": Shouter(), "b": agent("b")}).invoke_async("quiet")
    assert str(result) == "a: QUIET\nb: b"
    events = [event async for event in Shouter().stream_async([{"text": "x"}])]
    assert events == [{"type": "multiagent_result", "result": "X"}]


async def test_what_happens_is_streamed() -> None:
    graph = Graph({"a": agent("one"), "b": agent("two")})
    events = [event async for event in graph.stream_async("Go")]
    kinds = [event["type"] for event in events]
    assert [kind for kind in kinds if kind != "multiagent_node_stream"] == [
        "multiagent_node_start",
        "multiagent_node_stop",
        "multiagent_handoff",
        "multiagent_node_start",
        "multiagent_node_stop",
        "multiagent_result",
    ]
    inner: list[Any] = [event["event"] for event in events if event.get("node_id") == "a" and "event" in event]
    assert "".join(event.get("data", "") for event in inner) == "one"
    assert events[-1]["result"].status is Status.COMPLETED  # type: ignore[attr-defined]


async def test_leaving_a_stream_stops_the_run_which_can_be_gone_on_with() -> None:
    graph = Graph({"a": agent("A"), "b": slow("B", 50), "c": agent("C")})
    async with aclosing(graph.stream_async("Go")) as events:
        async for event in events:
            if event["type"] == "multiagent_node_start" and event["node_id"] == "b":
                break
    result = await graph.invoke_async("Go")
    assert (result.resumed, order(result)) == (True, ["a", "b", "c"])


async def test_hooks_are_told_and_may_cancel_a_node() -> None:
    seen: list[str] = []
    graph = Graph({"a": agent("A"), "b": agent("B")})

    def note(event: Any) -> None:
        seen.append(f"{type(event).__name__} {getattr(event, 'node_id', '')}".strip())
        assert event.source is graph
        assert event.invocation_state["key"] == 1

    for kind in (
        BeforeMultiAgentInvocationEvent,
        AfterMultiAgentInvocationEvent,
        BeforeNodeCallEvent,
        AfterNodeCallEvent,
    ):
        graph.add_hook(note, kind)
    await graph.invoke_async("Go", {"key": 1})
    assert seen == [
        "BeforeMultiAgentInvocationEvent",
        "BeforeNodeCallEvent a",
        "AfterNodeCallEvent a",
        "BeforeNodeCallEvent b",
        "AfterNodeCallEvent b",
        "AfterMultiAgentInvocationEvent",
    ]

    def cancel(event: BeforeNodeCallEvent) -> None:
        event.cancel_node = "not today" if event.node_id == "b" else False

    graph.add_hook(cancel)
    with pytest.raises(NodeFailed, match="not today"):
        await graph.invoke_async("Go", invocation_state={"key": 1})


class Counting(MultiAgentPlugin):
    """Counts nodes, and fails when it is prepared for the first time."""

    name = "counting"

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.prepared: list[object] = []

    @hook
    def before(self, event: BeforeNodeCallEvent) -> None:
        self.seen.append(event.node_id)

    async def init_multi_agent(self, orchestrator: object) -> None:
        self.prepared.append(orchestrator)
        assert len(self.prepared) > 1, "not yet"


async def test_plugins_bring_hooks_and_are_prepared_before_the_first_call() -> None:
    plugin = Counting()
    graph = builder("a>b").set_plugins([plugin]).build()
    with pytest.raises(AssertionError, match="not yet"):
        await graph.invoke_async("Go")
    await graph.invoke_async("Go")
    await graph.invoke_async("Go")
    assert (plugin.seen, plugin.prepared) == (["a", "b"] * 2, [graph, graph])
    with pytest.raises(Invalid, match="same name"):
        Graph({"a": agent()}, plugins=[Counting(), Counting()])
    with pytest.raises(Invalid, match="subclass of MultiAgentPlugin"):
        Graph({"a": agent()}, plugins=[object()])  # type: ignore[list-item]


async def test_calls_that_meet_queue_up_or_are_refused() -> None:
    graph = Graph({"a": slow("A", 5)})
    runs: list[int] = []

    async def call() -> None:
        runs.append((await graph.invoke_async("Go")).run)

    async with anyio.create_task_group() as group:
        group.start_soon(call)
        group.start_soon(call)
        await anyio.sleep(1)
        with pytest.raises(AgentBusy):
            await graph.invoke_async("Go", busy="reject")
    assert sorted(runs) == [1, 2]


@pytest.mark.parametrize("held", [False, True], ids=["lone", "held"])
async def test_a_call_that_waits_has_its_time_as_well(held: bool) -> None:
    graph = Graph({"a": slow("A", 50)})
    async with graph if held else nullcontext(), anyio.create_task_group() as group:
        group.start_soon(graph.invoke_async, "Go")
        await anyio.sleep(1)
        with pytest.raises(AgentBusy, match="all the time"):
            await graph.invoke_async("Go", timeout_s=5)
        group.cancel_scope.cancel()


@pytest.mark.parametrize("held", [False, True], ids=["lone", "held"])
async def test_a_node_that_calls_its_own_graph_is_told_so(held: bool) -> None:
    @tool(name="ask")
    async def ask() -> str:
        """Ask the graph."""
        return str(await graph.invoke_async("Go"))

    caller = agent({"toolUse": {"name": "ask", "input": {}}}, "done", tools=[ask])
    graph = Graph({"a": caller})
    async with graph if held else nullcontext():
        await graph.invoke_async("Go")
    assert "would wait for itself" in str(caller.messages[2])


async def test_a_call_may_have_a_time_and_the_run_goes_on_with_the_next_one() -> None:
    graph = Graph({"a": agent("A"), "b": slow("B", 10)})
    result = await graph.invoke_async("Go", timeout_s=5)
    assert (result.status, result.reason, order(result)) == (Status.INTERRUPTED, "limit_time", ["a"])
    result = await graph.invoke_async("Go")
    assert (result.status, result.resumed, order(result)) == (Status.COMPLETED, True, ["a", "b"])


async def test_a_run_may_have_a_time_which_all_of_its_calls_share() -> None:
    graph = builder("a>b", b=slow("B", 10)).set_execution_timeout(8).build()
    first = await graph.invoke_async("Go", timeout_s=5)
    assert (first.reason, first.execution_time) == ("limit_time", pytest.approx(5000, abs=2))
    began = anyio.current_time()
    result = await graph.invoke_async("Go")
    assert anyio.current_time() - began == pytest.approx(3)
    assert (result.status, result.reason) == (Status.FAILED, "Execution timed out: 8s")
    assert result.execution_time == pytest.approx(8000, abs=2)


async def test_a_run_may_be_cancelled() -> None:
    graph = Graph({"a": slow("A", 50)})

    async def cancel() -> None:
        await anyio.sleep(1)
        graph.cancel()

    async with anyio.create_task_group() as group:
        group.start_soon(cancel)
        result = await graph.invoke_async("Go")
    assert (result.status, result.reason) == (Status.INTERRUPTED, "cancelled")


@pytest.mark.parametrize("held", [False, True], ids=["by itself", "in a block"])
async def test_a_run_is_cancelled_however_soon_after_the_beginning_of_its_call(held: bool) -> None:
    """While its session opens, while it waits in the mailbox, and when its first node works."""
    for steps in range(40):
        graph = Graph({"a": slow("A", 1000)})
        results: list[MultiAgentResult] = []

        async def call(*, task_status: TaskStatus[None], graph: Graph = graph, results: Any = results) -> None:
            task_status.started()
            results.append(await graph.invoke_async("Go"))

        async with AsyncExitStack() as stack:
            if held:
                await stack.enter_async_context(graph)
            with anyio.fail_after(100):
                async with anyio.create_task_group() as group:
                    await group.start(call)
                    for _ in range(steps):
                        await anyio.lowlevel.checkpoint()
                    graph.cancel()
        assert [(result.status, result.reason) for result in results] == [(Status.INTERRUPTED, "cancelled")], steps


async def test_a_call_that_is_cancelled_before_its_first_node_does_nothing() -> None:
    calls: list[str] = []
    graph = Graph({"a": agent(lambda *_: calls.append("a") or "A")})
    graph.add_hook(lambda event: graph.cancel(), BeforeMultiAgentInvocationEvent)
    result = await graph.invoke_async("Go")
    assert (result.status, result.reason, calls) == (Status.INTERRUPTED, "cancelled", [])


async def test_a_run_that_a_shutdown_cuts_short_goes_on_at_the_next_start() -> None:
    shelf = Shelf()

    def graph() -> Graph:
        nodes = {"a": agent("A"), "b": slow("B", 5), "c": agent("C")}
        return Graph(nodes, session_manager=PlacedSession("s", shelf))

    caught: list[Exception] = []

    async def call() -> None:
        try:
            await graph().invoke_async("Go")
        except Exception as error:  # noqa: BLE001 - looked at below
            caught.append(error)

    async with anyio.create_task_group() as group, Runtime() as runtime:
        group.start_soon(call)
        await anyio.sleep(1)
        await runtime.drain()
    assert "shutting down" in str(caught[0])
    result = await graph().invoke_async("Go")
    assert (result.status, result.resumed, order(result)) == (Status.COMPLETED, True, ["a", "b", "c"])


async def test_a_block_keeps_a_graph_open_between_calls() -> None:
    shelf = Shelf()
    graph = Graph({"a": agent("A")}, session_manager=PlacedSession("s", shelf))
    async with graph:
        assert [(await graph.invoke_async("Go")).run for _ in range(3)] == [1, 2, 3]
        with pytest.raises(Invalid, match="open already"):
            await graph.__aenter__()


async def test_a_run_that_owes_work_to_a_node_that_is_gone_says_so() -> None:
    shelf = Shelf()
    bad = Graph({"a": agent(ValueError("no"), retry_strategy=None)}, session_manager=PlacedSession("s", shelf))
    with pytest.raises(NodeFailed):
        await bad.invoke_async("Go")
    other = Graph({"b": agent("B")}, session_manager=PlacedSession("s", shelf))
    with pytest.raises(Invalid, match="missing=\\['a'\\]"):
        await other.invoke_async("Go")
    assert (await other.invoke_async("Go", resume=False)).status is Status.COMPLETED


def test_an_agent_that_keeps_its_own_session_is_refused() -> None:
    kept = Agent(ScriptedModel(["x"]), session_manager=PlacedSession("s", None))
    with pytest.raises(ValueError, match="Session persistence is not supported for Graph agents yet"):
        GraphBuilder().add_node(kept)
    with pytest.raises(ValueError, match="Session persistence is not supported for Graph agents yet"):
        Graph({"a": kept})


@pytest.mark.parametrize("together", [True, False])
async def test_a_graph_with_a_session_of_its_own_is_a_node_whose_run_is_kept_there(together: bool) -> None:
    shelf, inner_shelf = Shelf(), Shelf()
    calls: list[str] = []

    def made() -> Graph:
        def work(*_: Any) -> str:
            calls.append("work")
            return "done"

        def check(*_: Any) -> str:
            calls.append("check")
            if calls.count("check") == 1:
                raise ValueError("no")
            return "checked"

        place = shelf if together else inner_shelf
        inner = Graph({"w": agent(work)}, id="inner", session_manager=PlacedSession("own", place))
        builder = GraphBuilder()
        builder.add_node(inner, "in")
        builder.add_node(agent(check, retry_strategy=None), "check")
        builder.add_edge("in", "check")
        builder.set_session_manager(PlacedSession("outer", shelf))
        return builder.build()

    with pytest.raises(NodeFailed):
        await made().invoke_async("Go")
    result = await made().invoke_async(None)
    assert (result.status, calls) == (Status.COMPLETED, ["work", "check", "check"])
    assert (await made().invoke_async("Again")).status is Status.COMPLETED
    assert calls == ["work", "check", "check", "work", "check"]
    kept = Graph({"w": agent()}, id="inner", session_manager=PlacedSession("own", shelf if together else inner_shelf))
    await kept.ready()
    assert kept.status_of("w") is Status.COMPLETED


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (lambda: Graph({"a": Graph({"b": agent()}), "a.b": agent()}), "share a journal"),
        (lambda: Graph(), "made of agents"),
        (lambda: Graph({}), "at least one node"),
        (lambda: Graph({"a": object()}), "a node is"),
        (lambda: Graph({"a/b": agent()}), "node id"),
        (lambda: Graph({"a": agent()}, id="a/b"), "orchestrator id"),
        (lambda: Graph({"a": agent()}, node_timeout=0), "node_timeout"),
        (lambda: Graph({"a": agent()}, max_node_executions=0), "max_node_executions"),
        (lambda: GraphBuilder().build(), "at least one node"),
        (lambda: builder("a>b").add_edge("a", "c"), "Target node 'c' not found"),
        (lambda: builder("a>b").set_entry_point("c"), "Node 'c' not found"),
        (lambda: builder("a").add_node(agent(), "a"), "already exists"),
    ],
    ids=[
        "names",
        "nothing",
        "empty",
        "no agent",
        "a path",
        "an id",
        "a time",
        "a number",
        "nothing built",
        "edge",
        "entry",
        "twice",
    ],
)
def test_what_is_no_graph_is_refused(make: Any, what: str) -> None:
    with pytest.raises(Invalid, match=what):
        make()


def test_one_agent_cannot_be_two_nodes() -> None:
    twice = agent()
    with pytest.raises(Invalid, match="Duplicate node instance"):
        Graph({"a": twice, "b": twice})


async def test_an_option_of_agents_that_runs_do_not_have_is_refused() -> None:
    graph = Graph({"a": agent()})
    with pytest.raises(TypeError, match="not limits"):
        await graph.invoke_async("Go", limits={"turns": 1})  # type: ignore[call-arg]
    history: Sequence[Message] = [{"role": "user", "content": [{"text": "x"}]}, {"role": "user", "content": []}]
    with pytest.raises(Invalid):
        await graph.invoke_async(history)


@pytest.mark.real_time
def test_a_graph_can_be_called_from_sync_code() -> None:
    result = Graph({"a": agent("A")})("Go")
    assert str(result) == "a: A"


async def test_a_node_that_is_done_is_at_rest_while_others_still_work() -> None:
    """So its agent can be asked by itself meanwhile."""
    quick = agent("A")
    graph = builder("a b", a=quick, b=slow("B", 5.0)).build()
    results: list[MultiAgentResult] = []

    async def run() -> None:
        results.append(await graph.invoke_async("go"))

    async with anyio.create_task_group() as group:
        group.start_soon(run)
        await anyio.sleep(1)
        assert str(await quick.invoke_async("And you?")).strip() == "A"
        assert not results
    assert results[0].status is Status.COMPLETED
