"""Whose question it is: answers reach the node that asked, once, wherever it stands, and are never asked for twice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anyio
import pytest

from repertory import (
    Agent,
    BeforeNodeCallEvent,
    BeforeToolsEvent,
    Graph,
    GraphBuilder,
    MultiAgentResult,
    ScriptedModel,
    Status,
    ToolContext,
    tool,
)
from repertory.app.sessions.sessions import PlacedSession
from repertory.backends.tools.function_tool import schema_class
from repertory.errors import InterruptNotFound, InterruptsWaiting, Invalid
from tests.app.orchestration.interrupted_agents import answering
from tests.simulation.killed_worlds import World

pytestmark = pytest.mark.anyio
schema_class()  # Loading it uses a thread, which a clock that jumps would pass.


class Bank:
    """Agents that ask before they pay, all by the same question id, as models that count their calls from 1 do."""

    def __init__(self, world: World | None = None) -> None:
        self.world = world or World()
        self.paid: list[str] = []

    def clerk(self, name: str, delay_s: float = 0.0) -> Agent:
        @tool
        async def pay(tool_context: ToolContext) -> str:
            """Pay."""
            said = tool_context.interrupt("pay?", reason=name)
            await anyio.sleep(delay_s)
            self.paid.append(f"{name}: {said}")
            self.world.effect(tool_context.idempotency_key)
            return "paid"

        use = {"toolUse": {"toolUseId": "call_0", "name": "pay", "input": {}}}
        model = ScriptedModel([lambda said, *_: "done" if "toolResult" in said[-1]["content"][0] else use], loop=True)
        return Agent(model, tools=[pay], callback_handler=None, unknown_tool_outcome="retry")

    def graph(self, *names: str, saved: bool = True, **more: Any) -> Graph:
        """All of them at once."""
        builder = GraphBuilder()
        if saved:
            builder.set_session_manager(PlacedSession("s", self.world, takeover=True))
        for name in names:
            builder.add_node(self.clerk(name, **more), name)
            builder.set_entry_point(name)
        return builder.build()


def about(result: MultiAgentResult, *reasons: str) -> Any:
    return answering([one for one in result.interrupts if one.reason in reasons])


def reasons(result: MultiAgentResult) -> list[Any]:
    return sorted(one.reason for one in result.interrupts)


async def test_two_nodes_that_ask_by_the_same_id_are_answered_apart() -> None:
    bank = Bank()
    asked = await bank.graph("customers", "logs").invoke_async("Delete")
    assert reasons(asked) == ["customers", "logs"]
    rest = await bank.graph("customers", "logs").invoke_async(about(asked, "logs"))
    assert (bank.paid, reasons(rest)) == (["logs: yes"], ["customers"])
    result = await bank.graph("customers", "logs").invoke_async(answering(rest.interrupts, "no"))
    assert (result.status, bank.paid) == (Status.COMPLETED, ["logs: yes", "customers: no"])


async def test_hooks_of_two_agents_that_ask_about_their_tools_are_answered_apart() -> None:
    done: list[str] = []

    def clerk(name: str) -> Agent:
        @tool
        async def act() -> str:
            """Act."""
            done.append(name)
            return "acted"

        def ask(event: BeforeToolsEvent) -> None:
            event.interrupt("act?", reason=name)

        use = {"toolUse": {"name": "act", "input": {}}}
        agent = Agent(ScriptedModel([use, "done"]), tools=[act], callback_handler=None)
        agent.add_hook(ask)
        return agent

    builder = GraphBuilder()
    for name in ("alice", "bob"):
        builder.add_node(clerk(name), name)
        builder.set_entry_point(name)
    graph = builder.build()
    asked = await graph.invoke_async("Go")
    rest = await graph.invoke_async(about(asked, "alice"))
    assert (done, reasons(rest)) == (["alice"], ["bob"])


async def test_an_id_that_a_node_uses_itself_is_understood_as_long_as_only_one_node_does() -> None:
    bank = Bank()
    unsaved = bank.graph("a", "b", saved=False)  # Where ids are those of the SDK.
    asked = await unsaved.invoke_async("Pay")
    (own,) = {one.id.removeprefix(f"v1:node:{one.reason}:") for one in asked.interrupts}
    with pytest.raises(Invalid, match="several nodes"):
        await unsaved.invoke_async(answering({own: "yes"}))
    asked = await bank.graph("a", "b").invoke_async("Pay")
    assert len({one.id.removeprefix(f"v1:node:{one.reason}:") for one in asked.interrupts}) == 2
    await bank.graph("a", "b").invoke_async(about(asked, "a"))
    with pytest.raises(InterruptNotFound):
        await bank.graph("a", "b").invoke_async(answering({"v1:node:c:" + own: "yes"}))
    result = await bank.graph("a", "b").invoke_async(answering({asked.interrupts[1].id: "yes"}))
    assert result.status is Status.COMPLETED
    again = await bank.graph("a").invoke_async("Pay", resume=False)
    (own,) = {one.id.removeprefix("v1:node:a:") for one in again.interrupts}
    assert (await bank.graph("a").invoke_async(answering({own: "yes"}))).run == again.run


@pytest.mark.parametrize("names", [("inner", "deep"), ("same", "same")], ids=["other names", "one name"])
async def test_hooks_of_nested_orchestrators_ask_and_are_answered_at_every_level(names: tuple[str, str]) -> None:
    world, told = World(), list[tuple[str, Any]]()

    def asking(level: str) -> Callable[[BeforeNodeCallEvent], None]:
        def ask(event: BeforeNodeCallEvent) -> None:
            told.append((level, event.interrupt("begin?", reason=level)))

        return ask

    def graph() -> Graph:
        inner = Graph({names[1]: Agent(ScriptedModel(["deep"]), callback_handler=None)}, id="inner")
        inner.add_hook(asking("inside"))
        outer = Graph({names[0]: inner}, session_manager=PlacedSession("s", world, takeover=True))
        outer.add_hook(asking("outside"))
        return outer

    asked = await graph().invoke_async("Go")
    assert reasons(asked) == ["outside"]
    asked = await graph().invoke_async(answering(asked.interrupts, "A"))
    assert reasons(asked) == ["inside"]
    result = await graph().invoke_async(answering(asked.interrupts, "B"))
    assert (result.status, "deep" in str(result)) == (Status.COMPLETED, True)
    assert told == [("outside", "A"), ("outside", "A"), ("inside", "B")]


async def test_who_has_answered_is_not_asked_again_whenever_the_process_is_killed() -> None:
    world = World()
    asked = await Bank(world).graph("a", "b").invoke_async("Pay")
    before = len(world.left)
    await Bank(world).graph("a", "b", delay_s=1.0).invoke_async(answering(asked.interrupts))
    answered = [left for left in world.left[before:] if left.size != world.left[before].size]
    assert len(answered) > 4
    for left in answered[:-1]:
        result = await Bank(left).graph("a", "b").invoke_async()
        assert (result.status, result.interrupts) == (Status.COMPLETED, ())
        assert len(left.effects) == 2, "once, by their idempotency keys"


async def test_another_answer_to_what_is_answered_is_refused_and_the_same_one_is_not() -> None:
    bank = Bank()
    asked = await bank.graph("a", delay_s=5.0).invoke_async("Pay")
    cut = await bank.graph("a", delay_s=5.0).invoke_async(answering(asked.interrupts), timeout_s=1.0)
    assert (cut.reason, cut.interrupts) == ("limit_time", ())
    with pytest.raises(Invalid, match="another answer"):
        await bank.graph("a").invoke_async(answering(asked.interrupts, "no"))
    result = await bank.graph("a").invoke_async(answering(asked.interrupts))
    assert (result.status, result.interrupts) == (Status.COMPLETED, ())


async def test_a_node_that_comes_again_asks_again() -> None:
    bank = Bank()

    def loop() -> Graph:
        builder = GraphBuilder().set_session_manager(PlacedSession("s", bank.world, takeover=True))
        builder.add_node(Agent(ScriptedModel(["worked"], loop=True), callback_handler=None), "work")
        builder.add_edge("work", "work", lambda state: len(state.execution_order) < 3)
        graph = builder.set_entry_point("work").set_max_node_executions(9).build()
        graph.add_hook(gate)
        return graph

    def gate(event: BeforeNodeCallEvent) -> None:
        bank.paid.append(event.interrupt("again?"))

    result = await loop().invoke_async("Go")
    for answer in ("one", "two", "three"):
        assert [one.name for one in result.interrupts] == ["again?"]
        result = await loop().invoke_async(answering(result.interrupts, answer))
    assert (result.status, bank.paid) == (Status.COMPLETED, ["one", "two", "three"])


async def test_an_answer_to_a_node_that_has_to_wait_for_another_one_is_kept() -> None:
    """`slow` comes round again, so that `asks` waits behind it once more, and a hook asks about `slow`."""
    bank = Bank()
    builder = GraphBuilder()
    builder.add_node(Agent(ScriptedModel(["u"], loop=True), callback_handler=None), "u")
    builder.add_node(bank.clerk("asks"), "asks")
    builder.add_node(Agent(ScriptedModel(["c"], loop=True, delay_s=0.1), callback_handler=None), "c")
    builder.add_edge("u", "asks")
    builder.add_edge("u", "c")
    builder.add_edge("c", "u", lambda state: sum(one.node_id == "u" for one in state.execution_order) < 2)
    graph = builder.set_entry_point("u").set_max_node_executions(20).build()
    begun: list[str] = []

    def gate(event: BeforeNodeCallEvent) -> None:
        if event.node_id == "u" and begun.count("u"):
            event.interrupt("again?", reason="again")
        begun.append(event.node_id)

    graph.add_hook(gate)
    asked = await graph.invoke_async("Go")
    assert reasons(asked) == ["again", "asks"]
    rest = await graph.invoke_async(about(asked, "asks"))
    assert reasons(rest) == ["again"]
    await graph.invoke_async(answering(rest.interrupts))
    assert bank.paid[0] == "asks: yes"


async def test_a_task_is_refused_when_nothing_but_answers_is_missing() -> None:
    bank = Bank()
    builder = GraphBuilder()
    builder.add_node(bank.clerk("a"), "a")
    builder.add_node(Agent(ScriptedModel(["B"]), callback_handler=None), "b")
    builder.add_node(Agent(ScriptedModel(["C"]), callback_handler=None), "c")
    builder.add_edge("a", "c")
    builder.add_edge("b", "c")
    graph = builder.build()
    asked = await graph.invoke_async("Go")
    assert reasons(asked) == ["a"]
    for task in ("Go", "Something else"):
        with pytest.raises(InterruptsWaiting):
            await graph.invoke_async(task)
    assert (await graph.invoke_async(answering(asked.interrupts))).status is Status.COMPLETED
