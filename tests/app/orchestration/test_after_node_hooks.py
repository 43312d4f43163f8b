"""Hooks that look at what a node has done: they have looked before anything follows it, and a guard may withhold it."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from repertory import (
    AfterNodeCallEvent,
    Agent,
    BeforeNodeCallEvent,
    Graph,
    GraphBuilder,
    HookFailed,
    MultiAgentResult,
    NodeFailed,
    ScriptedModel,
    Status,
)
from repertory.app.sessions.sessions import PlacedSession
from tests.app.orchestration.session_shelf import Shelf

pytestmark = pytest.mark.anyio


class Counted:
    """An agent that says its name, and how often its model was asked."""

    def __init__(self, name: str, delay_s: float = 0.0) -> None:
        self.asked = 0

        def answer(*rest: object) -> str:
            del rest
            self.asked += 1
            return name.upper()

        self.agent = Agent(ScriptedModel([answer], loop=True, delay_s=delay_s), callback_handler=None)


def graph_of(edges: str, *nodes: str, policies: dict[str, Any] | None = None) -> tuple[Graph, dict[str, Counted]]:
    made = {name: Counted(name, delay_s=2 if name == "slow" else 0) for name in nodes}
    builder = GraphBuilder()
    for name, each in made.items():
        builder.add_node(each.agent, name, on_failure=(policies or {}).get(name, "fail"))
    for edge in edges.split():
        before, _, after = edge.partition(">")
        builder.add_edge(before, after)
    return builder.set_session_manager(PlacedSession("s", Shelf())).build(), made


async def test_what_follows_a_node_begins_when_hooks_have_looked_at_it() -> None:
    graph, _ = graph_of("a>b a>c slow>c", "a", "b", "c", "slow")
    seen: list[str] = []

    async def before(event: BeforeNodeCallEvent) -> None:
        seen.append(f"before {event.node_id}")

    async def after(event: AfterNodeCallEvent) -> None:
        await anyio.sleep(100 if event.node_id == "a" else 1)
        seen.append(f"after {event.node_id}")

    graph.add_hook(before)
    graph.add_hook(after)
    result = await graph.invoke_async("Go")
    assert result.status is Status.COMPLETED
    assert sorted(seen[:2]) == ["before a", "before slow"]
    assert seen[2:4] == ["after slow", "after a"], "nobody else waits for a hook"
    assert sorted(seen[4:6]) == ["before b", "before c"]


class Picky:
    """A guard that does not let one node pass until it is told to."""

    def __init__(self, node: str) -> None:
        self.node = node
        self.content = False
        self.looked = 0

    async def __call__(self, event: AfterNodeCallEvent) -> None:
        await anyio.sleep(0.1)
        if event.node_id == self.node:
            self.looked += 1
            if not self.content:
                raise ValueError("not good enough")


@pytest.mark.parametrize("node", ["a", "b"], ids=["in the middle", "last"])
async def test_what_a_guard_does_not_let_pass_is_withheld_until_it_does(node: str) -> None:
    graph, nodes = graph_of("a>b", "a", "b")
    guard = Picky(node)
    graph.add_hook(guard, AfterNodeCallEvent, guard=True)
    for times in (1, 2):
        with pytest.raises(NodeFailed, match="not good enough") as caught:
            await graph.invoke_async("Go")
        assert isinstance(caught.value.__cause__, HookFailed)
        so_far = caught.value.result
        assert isinstance(so_far, MultiAgentResult)
        assert (so_far.status, so_far.results[node].status) == (Status.FAILED, Status.FAILED)
        assert guard.looked == times
    assert nodes["b"].asked == (node == "b"), "nothing follows what was withheld"
    guard.content = True
    result = await graph.invoke_async()
    assert (result.status, result.run, result.resumed) == (Status.COMPLETED, 1, True)
    assert str(result) == "a: A\nb: B"
    assert [each.asked for each in nodes.values()] == [1, 1], "what an agent has answered is there already"
    assert result.accumulated_usage["outputTokens"] == 2


async def test_what_a_guard_withholds_of_a_node_that_may_be_skipped_is_skipped() -> None:
    graph, nodes = graph_of("a>b", "a", "b", policies={"a": "skip"})
    graph.add_hook(Picky("a"), AfterNodeCallEvent, guard=True)
    result = await graph.invoke_async("Go")
    assert (result.status, result.results["a"].status) == (Status.COMPLETED, Status.FAILED)
    assert str(nodes["b"].agent.messages[0]["content"]).count("A") == 0, "nobody is told what was withheld"


async def test_a_guard_stops_nothing_that_runs_and_loses_nothing_of_it() -> None:
    graph, nodes = graph_of("a>b slow>c", "a", "b", "slow", "c")
    guard = Picky("a")
    graph.add_hook(guard, AfterNodeCallEvent, guard=True)
    with pytest.raises(NodeFailed, match="not good enough"):
        await graph.invoke_async("Go")
    guard.content = True
    result = await graph.invoke_async("Go")
    assert (result.status, result.resumed) == (Status.COMPLETED, True)
    assert {name: each.asked for name, each in nodes.items()} == dict.fromkeys(("a", "b", "slow", "c"), 1)


async def test_what_was_answered_about_a_node_counts_until_a_guard_lets_it_pass() -> None:
    graph, nodes = graph_of("a>b", "a", "b")
    guard = Picky("a")

    def ask(event: BeforeNodeCallEvent) -> None:
        if event.node_id == "a" and event.interrupt("sure?") != "yes":
            event.cancel_node = "not sure"

    graph.add_hook(ask)
    graph.add_hook(guard, AfterNodeCallEvent, guard=True)
    asked = await graph.invoke_async("Go")
    yes: list[Any] = [{"interruptResponse": {"interruptId": one.id, "response": "yes"}} for one in asked.interrupts]
    with pytest.raises(NodeFailed, match="not good enough"):
        await graph.invoke_async(yes)
    guard.content = True
    result = await graph.invoke_async()
    assert (result.status, nodes["a"].asked) == (Status.COMPLETED, 1), "nobody is asked again"


async def test_an_observer_that_fails_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    graph, _ = graph_of("a>b", "a", "b")
    graph.add_hook(Picky("a"), AfterNodeCallEvent)
    result = await graph.invoke_async("Go")
    assert (result.status, str(result)) == (Status.COMPLETED, "a: A\nb: B")
    assert "hook failed" in caplog.text


async def test_a_limit_counts_a_node_once_while_hooks_look_at_it() -> None:
    builder = GraphBuilder()
    for name in ("a", "slow", "b"):
        builder.add_node(Counted(name, delay_s=1 if name == "slow" else 0).agent, name)
    builder.add_edge("slow", "b")
    graph = builder.set_max_node_executions(3).build()

    async def look(event: AfterNodeCallEvent) -> None:
        await anyio.sleep(100 if event.node_id == "a" else 0)

    graph.add_hook(look)
    assert (await graph.invoke_async("Go")).status is Status.COMPLETED
