"""Snapshots of orchestrators: one moment of the run and of every node, taken while they work, and gone on from."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from repertory import (
    AfterSnapshotEvent,
    Agent,
    BeforeNodeCallEvent,
    BeforeSnapshotEvent,
    Graph,
    GraphBuilder,
    Plugin,
    Runtime,
    RunUnfinished,
    ScriptedModel,
    Snapshot,
    Snapshottable,
    SQLiteSessionManager,
    Status,
    Swarm,
    SwarmResult,
    ToolContext,
    tool,
)
from repertory.app.sessions.sessions import PlacedSession
from repertory.backends.tools.function_tool import schema_class
from repertory.errors import AgentBusy, Invalid, NodeFailed, SnapshotException
from tests.app.orchestration import session_shelf

pytestmark = pytest.mark.anyio
schema_class()  # Loading it uses a thread, which a clock that jumps would pass.


class Shelf(session_shelf.Shelf):
    """Sessions there that are taken over from nobody."""

    def session(self, session_id: str = "s") -> PlacedSession:
        return PlacedSession(session_id, self)


EVENTS = 5
"""Of an answer of one piece, each of which a slow model waits for."""


def agent(*replies: Any, delay_s: float = 0.0, **more: Any) -> Agent:
    model = ScriptedModel(replies or ("fine",), loop=True, delay_s=delay_s / EVENTS)
    return Agent(model, callback_handler=None, retry_strategy=None, **more)


def through_json(snapshot: Snapshot) -> dict[str, Any]:
    return json.loads(json.dumps(snapshot))


def texts(node: Agent) -> list[str]:
    return [block.get("text", "?") for message in node.messages for block in message["content"]]


async def test_a_finished_run_goes_on_elsewhere_with_every_conversation() -> None:
    first = Graph({"a": agent("A1", "A2"), "b": agent("B1", "B2")})
    await first.invoke_async("one")
    snapshot = through_json(first_snapshot := await first.save_snapshot_async({"why": "test"}))
    assert first_snapshot.scope == "multiAgent"
    assert snapshot["metadata"] == {"why": "test"}
    a, b = agent("A2"), agent("B2")
    second = Graph({"a": a, "b": b}, session_manager=Shelf().session())
    loaded = await second.load_snapshot_async(snapshot)
    assert loaded.fields == ("a", "b")
    assert not loaded.missing_nodes
    result = await second.invoke_async("two")
    assert (result.run, result.resumed) == (2, False)
    assert texts(a) == ["one", "A1", "two", "A2"]
    assert [text for text in texts(b) if text in ("B1", "B2")] == ["B1", "B2"]


async def test_a_node_that_works_goes_on_from_where_it_was_and_its_effect_is_had_once() -> None:
    paid: list[str] = []

    @tool
    async def pay(tool_context: ToolContext) -> str:
        """Pay."""
        paid.append(tool_context.tool_use["toolUseId"])
        return "paid"

    use = {"toolUse": {"name": "pay", "input": {}}}

    def graph(shelf: Shelf, delay_s: float) -> tuple[Graph, Agent]:
        clerk = agent(use, "done", delay_s=delay_s, tools=[pay])
        return Graph({"first": agent("go"), "clerk": clerk}, session_manager=shelf.session()), clerk

    running, _ = graph(Shelf(), 1.0)
    taken: list[Snapshot] = []
    async with anyio.create_task_group() as group:
        group.start_soon(running.invoke_async, "Pay the bill")
        await anyio.sleep(1.5)  # The tool has run; the model is asked about its result.
        taken.append(await running.save_snapshot_async())
        group.cancel_scope.cancel()
    assert len(paid) == 1
    other, clerk = graph(Shelf(), 0.0)
    clerk.model = ScriptedModel(["done"])
    await other.load_snapshot_async(through_json(taken[0]))
    result = await other.invoke_async()
    assert (result.status, result.resumed) == (Status.COMPLETED, True)
    assert len(paid) == 1
    assert str(result.results["clerk"]).strip() == "done"
    assert str(result.results["first"]).strip() == "go"


async def test_an_answer_that_nobody_has_heard_yet_is_in_it() -> None:
    """The node has answered; the orchestrator's hook keeps the end from being noted in what is saved."""
    taken: list[Snapshot] = []
    a = agent("A1")
    graph = Graph({"a": a, "b": agent("B1")})

    async def save(event: BeforeNodeCallEvent) -> None:
        if event.node_id == "b":
            taken.append(await graph.save_snapshot_async())

    graph.add_hook(save)
    await graph.invoke_async("go")
    again = Graph({"a": agent(ConnectionError("not to be asked")), "b": agent("B2")})
    await again.load_snapshot_async(through_json(taken[0]))
    result = await again.invoke_async()
    assert [str(result.results[node]).strip() for node in ("a", "b")] == ["A1", "B2"]


async def test_saving_neither_stops_nor_holds_up_a_run() -> None:
    took: list[float] = []

    async def run(graph: Graph) -> None:
        began = anyio.current_time()
        await graph.invoke_async("go")
        took.append(anyio.current_time() - began)

    def graph() -> Graph:
        return Graph({"a": agent("A", delay_s=1.0), "b": agent("B", delay_s=1.0)})

    await run(graph())
    watched = graph()
    async with anyio.create_task_group() as group:
        group.start_soon(run, watched)
        while len(took) < 2:
            await anyio.sleep(0.07)
            (await watched.save_snapshot_async()).validate()
    assert took[0] > 1
    assert took[1] == pytest.approx(took[0])


def after_its_tool(use: dict[str, Any], text: str) -> Any:
    """Uses a tool, and says the text when it has the result."""

    def reply(messages: Any, *_: object) -> Any:
        return text if "toolResult" in messages[-1]["content"][-1] else use

    return reply


async def test_what_waits_for_people_waits_for_them_elsewhere_too() -> None:
    @tool
    async def ask(tool_context: ToolContext) -> str:
        """Ask."""
        return f"they said {tool_context.interrupt('sure?', reason='big')}"

    def approve(event: BeforeNodeCallEvent) -> None:
        if event.node_id == "plain":
            event.interrupt("begin?")

    use = {"toolUse": {"name": "ask", "input": {}}}

    def graph() -> Graph:
        inner = Graph({"deep": agent(after_its_tool(use, "deep is done"), tools=[ask])}, id="inner")
        plain = agent(after_its_tool(use, "plain is done"), tools=[ask])
        made = Graph({"plain": plain, "inner": inner}, session_manager=Shelf().session())
        made.add_hook(approve)
        return made

    there = graph()
    asked = await there.invoke_async("go")
    names: list[str] = []
    while asked.interrupts:
        names += [one.name for one in asked.interrupts]
        snapshot = through_json(await there.save_snapshot_async())
        there = graph()
        await there.load_snapshot_async(snapshot)
        again = await there.invoke_async()
        assert again.interrupts == asked.interrupts
        answers = [{"interruptResponse": {"interruptId": one.id, "response": "yes"}} for one in asked.interrupts]
        asked = await there.invoke_async(answers)
    assert names == ["begin?", "sure?", "sure?"]
    assert asked.status is Status.COMPLETED
    assert str(asked).splitlines()[0] == "plain: plain is done"
    assert "deep is done" in str(asked)


async def test_going_back_in_the_same_session_takes_every_conversation_back() -> None:
    shelf = Shelf()
    a, b, late = agent("A1", "A2", "A3"), agent("B1", "B2", "B3"), agent("late")

    def wants_late(state: Any) -> bool:
        return state.task == "two"

    builder = GraphBuilder()
    for name, node in (("a", a), ("b", b), ("late", late)):
        builder.add_node(node, name)
    builder.add_edge("a", "b")
    builder.add_edge("b", "late", condition=wants_late)
    graph = builder.set_session_manager(shelf.session()).build()
    await graph.invoke_async("one")
    snapshot = await graph.save_snapshot_async()
    await graph.invoke_async("two")
    assert texts(late)[-1] == "late"
    await graph.load_snapshot_async(snapshot)
    result = await graph.invoke_async("three")
    assert result.run == 4
    assert texts(a) == ["one", "A1", "three", "A3"]
    await graph.invoke_async("two")
    assert texts(late).count("late") == 1, "what was said beyond the snapshot is not shown any more"


async def test_a_swarm_that_handed_over_goes_on_with_whoever_has_control() -> None:
    hand = {
        "toolUse": {
            "name": "handoff_to_agent",
            "input": {"agent_name": "roofer", "message": "The roof.", "context": {"leak": "north"}},
        }
    }

    def swarm(delay_s: float) -> tuple[Swarm, Agent]:
        roofer = agent("mended", delay_s=delay_s, name="roofer")
        return Swarm([agent(after_its_tool(hand, "asked"), name="clerk"), roofer]), roofer

    first, _ = swarm(5.0)
    taken: list[Snapshot] = []
    async with anyio.create_task_group() as group:
        group.start_soon(first.invoke_async, "My shed leaks")
        await anyio.sleep(2.0)
        taken.append(await first.save_snapshot_async())
        group.cancel_scope.cancel()
    second, roofer = swarm(0.0)
    await second.load_snapshot_async(through_json(taken[0]))
    result = await second.invoke_async()
    assert isinstance(result, SwarmResult)
    assert [node.node_id for node in result.node_history] == ["clerk", "roofer"]
    assert len([text for text in texts(roofer) if "The roof." in text and "north" in text]) == 1


async def test_a_graph_without_a_run_can_be_gone_back_to() -> None:
    graph = Graph({"a": agent("A1", "A2")}, session_manager=Shelf().session())
    snapshot = through_json(await graph.save_snapshot_async())
    await graph.invoke_async("one")
    await graph.load_snapshot_async(snapshot)
    with pytest.raises(Invalid, match="no run to go on with"):
        await graph.invoke_async()
    await graph.invoke_async("two")
    assert texts(graph.nodes["a"].executor) == ["two", "A2"]


async def test_nodes_that_are_not_there_any_more_are_named() -> None:
    graph = Graph({"a": agent("A"), "b": agent("B")})
    await graph.invoke_async("go")
    loaded = await Graph({"a": agent()}).load_snapshot_async(await graph.save_snapshot_async())
    assert (loaded.fields, loaded.missing_nodes) == (("a",), ("b",))


async def test_hooks_see_it_and_may_add_to_it_or_refuse() -> None:
    seen: list[tuple[str, Any]] = []
    graph = Graph({"a": agent("A")})

    def before(event: BeforeSnapshotEvent) -> None:
        assert event.agent is None
        seen.append((f"before {event.action}", event.source))
        if event.action == "save":
            event.metadata["by"] = "hook"
        if event.action == "load" and event.snapshot["metadata"].get("old"):
            raise ValueError("too old")

    def after(event: AfterSnapshotEvent) -> None:
        seen.append((f"after {event.action}", event.source))

    graph.add_hook(before, BeforeSnapshotEvent)
    graph.add_hook(after, AfterSnapshotEvent)
    await graph.invoke_async("go")
    snapshot = await graph.save_snapshot_async()
    assert snapshot.app_data == {"by": "hook"}
    await graph.load_snapshot_async(snapshot)
    assert seen == [(what, graph) for what in ("before save", "after save", "before load", "after load")]
    with pytest.raises(Exception, match="too old"):
        await graph.load_snapshot_async({**snapshot, "metadata": {"old": True}})
    assert (await graph.invoke_async("next")).run == 3, "the refused one changed nothing"


@pytest.mark.parametrize("kind", ["changed", "truncated", "of an agent", "other id", "of a swarm", "other node"])
async def test_what_cannot_be_loaded_is_refused_and_changes_nothing(kind: str) -> None:
    graph = Graph({"a": agent("A1", "A2")})
    await graph.invoke_async("one")
    snapshot: Any = through_json(await graph.save_snapshot_async())
    match kind:
        case "changed":
            snapshot["state"]["frontier"] = ["a"]
        case "truncated":
            del snapshot["sha256"]
        case "of an agent":
            lone = agent("x")
            await lone.invoke_async("hi")
            snapshot = lone.save_snapshot()
        case "other id":
            other = Graph({"a": agent()}, id="other")
            await other.invoke_async("x")
            snapshot = await other.save_snapshot_async()
        case "of a swarm":
            swarm = Swarm([agent(name="a")], id=graph.id)
            await swarm.invoke_async("x")
            snapshot = await swarm.save_snapshot_async()
        case _:
            nested = Graph({"a": Graph({"deep": agent()}, id="deep")})
            await nested.invoke_async("x")
            snapshot = await nested.save_snapshot_async()
    with pytest.raises(SnapshotException):
        await graph.load_snapshot_async(snapshot)
    assert (await graph.invoke_async("two")).run == 2
    assert texts(graph.nodes["a"].executor) == ["one", "A1", "two", "A2"]


async def test_an_agent_says_that_it_is_no_agents_snapshot() -> None:
    graph = Graph({"a": agent("A")})
    with pytest.raises(SnapshotException, match="Expected a snapshot of type 'agent', got 'multiAgent'"):
        agent().load_snapshot(await graph.save_snapshot_async())


@pytest.mark.parametrize(
    ("inside", "by"), [("nothing", "itself"), ("a runtime", "itself"), ("a runtime", "another one of the session")]
)
async def test_nothing_is_loaded_from_within_its_run(inside: str, by: str) -> None:
    shelf = Shelf()
    graph = Graph({"a": agent("A")}, session_manager=shelf.session())
    other = graph if by == "itself" else Graph({"a": agent("A")}, session_manager=shelf.session())
    refused: list[Exception] = []

    async def load(_: BeforeNodeCallEvent) -> None:
        try:
            await other.load_snapshot_async(await other.save_snapshot_async())
        except AgentBusy as error:
            refused.append(error)

    graph.add_hook(load)
    async with Runtime() if inside == "a runtime" else nullcontext():
        await graph.invoke_async("go")
    assert refused


def test_the_other_spelling_of_one_without_a_run_is_read_back_too() -> None:
    graph = Graph({"a": agent("A")})
    snapshot = graph.save_snapshot()
    document = json.loads(json.dumps(snapshot.to_dict()))
    assert document["data"]["state"]["status"] == "pending"
    assert Snapshot.from_dict(document) == snapshot
    del document["data"]["repertory"], document["sha256"]
    graph.load_snapshot(document)
    assert graph("go").status is Status.COMPLETED


async def test_sync_methods_name_the_others_inside_an_event_loop() -> None:
    graph = Graph({"a": agent("A")})
    with pytest.raises(Invalid, match="await save_snapshot_async"):
        graph.save_snapshot()
    with pytest.raises(Invalid, match="await load_snapshot_async"):
        graph.load_snapshot(await graph.save_snapshot_async())


async def test_a_load_waits_for_the_run_that_is_worked_on() -> None:
    graph = Graph({"a": agent("A1", "A2", delay_s=1.0)})
    snapshot = await graph.save_snapshot_async()
    results: list[Any] = []

    async def run() -> None:
        results.append(await graph.invoke_async("go"))

    async with anyio.create_task_group() as group:
        group.start_soon(run)
        await anyio.sleep(0.1)
        await graph.load_snapshot_async(snapshot)
    assert results[0].status is Status.COMPLETED
    assert (await graph.invoke_async("again")).run == 3
    assert texts(graph.nodes["a"].executor) == ["again", "A2"]


async def test_inside_a_runtime_too() -> None:
    shelf = Shelf()
    async with Runtime():
        graph = Graph({"a": agent("A1", delay_s=1.0), "b": agent("B1")}, session_manager=shelf.session())
        taken: list[Snapshot] = []
        async with anyio.create_task_group() as group:
            group.start_soon(graph.invoke_async, "go")
            await anyio.sleep(0.1)
            taken.append(await graph.save_snapshot_async())
        other = Graph({"a": agent("A1"), "b": agent("B1")}, session_manager=shelf.session("other"))
        await other.load_snapshot_async(taken[0])
        result = await other.invoke_async()
        assert result.resumed
        assert texts(other.nodes["a"].executor) == ["go", "A1"]


class Counter:
    """Somebody else's agent, which keeps itself."""

    def __init__(self, count: int = 0) -> None:
        self.count = count

    async def invoke_async(self, prompt: Any, /, *, invocation_state: dict[str, Any]) -> str:
        self.count += 1
        return f"asked {self.count} times"

    def save_snapshot(self) -> dict[str, int]:
        return {"count": self.count}

    def load_snapshot(self, snapshot: Any) -> None:
        self.count = snapshot["count"]


async def test_a_node_that_keeps_itself_and_plugins_of_agents_say_what_they_keep() -> None:
    class Notes(Plugin):
        """A plugin that owns data."""

        name = "notes"

        def __init__(self) -> None:
            self.kept: list[str] = []

        def save_snapshot(self) -> dict[str, Any]:
            return {"kept": self.kept}

        def load_snapshot(self, snapshot: Any) -> None:
            self.kept = list(snapshot["kept"])

    notes, later = Notes(), Notes()
    graph = Graph({"counter": Counter(), "a": agent("A", plugins=[notes])})
    notes.kept.append("bees")
    await graph.invoke_async("go")
    snapshot = through_json(await graph.save_snapshot_async())
    again = Graph({"counter": Counter(), "a": agent("A", plugins=[later])})
    await again.load_snapshot_async(snapshot)
    assert later.kept == ["bees"]
    assert str((await again.invoke_async("go on")).results["counter"]).strip() == "asked 2 times"
    assert isinstance(graph, Snapshottable)


def test_sync_code_saves_and_loads_on_disk(tmp_path: Path) -> None:
    def graph(session: str, *replies: Any) -> Graph:
        manager = SQLiteSessionManager(session, tmp_path / "agents.db")
        return Graph({"a": agent("A"), "b": agent(*replies)}, session_manager=manager)

    first = graph("one", ConnectionError("down"))
    with pytest.raises(NodeFailed):
        first("go")
    path = tmp_path / "run.json"
    path.write_text(json.dumps(first.save_snapshot()))
    second = graph("two", "B")
    second.load_snapshot(json.loads(path.read_text()))
    result = second()
    assert result.resumed
    assert str(result).strip() == "a: A\nb: B"


def test_the_other_spelling_is_read_back_whole() -> None:
    graph = Graph({"a": agent("A"), "b": agent("B")})
    task: Any = [{"text": "go"}, {"image": {"format": "png", "source": {"bytes": b"\x89"}}}]
    graph(task)
    snapshot = graph.save_snapshot({"mine": 1})
    document = json.loads(json.dumps(snapshot.to_dict()))
    assert document["scope"] == "multiAgent"
    assert document["data"]["orchestrator_id"] == graph.id
    assert document["data"]["state"]["completed_nodes"] == ["a", "b"]
    assert Snapshot.from_dict(document) == snapshot
    document["data"]["state"]["current_task"] = "another"
    with pytest.raises(SnapshotException, match="changed"):
        Snapshot.from_dict(document)


async def test_a_node_that_had_said_nothing_goes_back_to_what_it_was_built_with() -> None:
    """Also when it has something else to keep."""
    given: Any = [
        {"role": "user", "content": [{"text": "Be kind."}]},
        {"role": "assistant", "content": [{"text": "I am."}]},
    ]

    def graph() -> tuple[Graph, Agent]:
        shy = agent("A", messages=given, enabled_tools=[])
        return Graph({"a": shy}), shy

    snapshot = through_json(await graph()[0].save_snapshot_async())
    later, shy = graph()
    await later.invoke_async("one")
    assert texts(shy) == ["Be kind.", "I am.", "one", "A"]
    await later.load_snapshot_async(snapshot)
    await later.invoke_async("two")
    assert texts(shy) == ["Be kind.", "I am.", "two", "A"]


async def test_nothing_is_saved_while_a_snapshot_is_loaded() -> None:
    shelf = Shelf()
    graph = Graph({"a": agent("A")}, session_manager=shelf.session())
    await graph.invoke_async("one")
    snapshot = await graph.save_snapshot_async()
    refused: list[RunUnfinished] = []

    async def save() -> None:
        while not refused:
            try:
                await graph.save_snapshot_async()
            except RunUnfinished as error:
                refused.append(error)

    async with graph, anyio.create_task_group() as group:
        await graph.invoke_async("two")
        group.start_soon(save)
        while not refused:
            await graph.load_snapshot_async(snapshot)
    (await graph.save_snapshot_async()).validate()


@pytest.mark.parametrize("inside", ["nothing", "a runtime", "its block"])
async def test_a_load_whose_caller_gives_up_is_done_to_its_end(inside: str) -> None:
    source = Graph({"a": agent("A1"), "b": agent("B1")})
    await source.invoke_async("one")
    snapshot = await source.save_snapshot_async()
    loaded, ticks = False, 1
    while not loaded:
        graph = Graph({"a": agent("A2"), "b": agent("B2")}, session_manager=Shelf().session())
        async with graph if inside == "its block" else Runtime() if inside == "a runtime" else nullcontext():
            await graph.invoke_async("other")
            async with anyio.create_task_group() as group:
                group.start_soon(graph.load_snapshot_async, snapshot)
                for _ in range(ticks):
                    await anyio.lowlevel.checkpoint()
                group.cancel_scope.cancel()
            result = await graph.invoke_async("two")
        loaded = result.run == 3
        assert loaded or result.run == 2, "it had not begun"
        before = ["one", "A1"] if loaded else ["other", "A2"]
        assert texts(graph.nodes["a"].executor) == [*before, "two", "A2"]
        ticks += 4
