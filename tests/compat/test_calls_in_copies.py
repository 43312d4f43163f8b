"""A tool call that a snapshot or a fork was taken in the middle of is the same call where that is gone on from."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import anyio
import pytest

from repertory import (
    Agent,
    Graph,
    InMemoryStorage,
    JournalSessionManager,
    JournalSessions,
    ScriptedModel,
    Sessions,
    Snapshot,
    Status,
    ToolContext,
    tool,
)
from repertory.core.messages import tool_results
from tests.app.orchestration.interrupted_agents import Office, answering

pytestmark = pytest.mark.anyio


class Shop:
    """Tools that write down under which idempotency key, and in which attempt, they run. Orders wait for the door."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str, int]] = []
        self.taken: list[Snapshot] = []
        self.ordering = anyio.Event()
        self.door = anyio.Event()

    def note(self, context: ToolContext) -> None:
        self.calls.append((context.tool_use["name"], context.idempotency_key, context.attempt))

    @property
    def tools(self) -> list[Any]:
        @tool
        async def look(tool_context: ToolContext) -> str:
            """Look at the shelf."""
            self.note(tool_context)
            return "three left"

        @tool
        async def buy(agent: Agent, tool_context: ToolContext) -> str:
            """Buy one. A snapshot is taken meanwhile."""
            self.note(tool_context)
            self.taken.append(agent.save_snapshot())
            return "bought"

        @tool(idempotent=True)
        async def order(tool_context: ToolContext) -> str:
            """Order one, which takes as long as the door is closed."""
            self.note(tool_context)
            self.ordering.set()
            await self.door.wait()
            return "ordered"

        return [look, buy, order]

    def agent(self, *replies: Any, storage: InMemoryStorage | None = None, session: str = "s", **options: Any) -> Agent:
        manager = JournalSessionManager(session, storage or InMemoryStorage())
        model = ScriptedModel(replies)
        return Agent(
            model, tools=self.tools, session_manager=manager, callback_handler=None, agent_id="clerk", **options
        )


def use(*names: str) -> list[dict[str, Any]]:
    return [{"toolUse": {"name": name, "input": {}}} for name in names]


def over_json(snapshot: Mapping[str, Any]) -> dict[str, Any]:
    return json.loads(json.dumps(snapshot, allow_nan=False))


async def bought() -> tuple[Shop, str]:
    """A shop where something was bought once, and the call's key."""
    shop = Shop()
    await shop.agent("Hello.", use("look", "buy"), "Bought.", tool_execution="sequential").invoke_async("Hello!")
    agent = shop.agent(use("look", "buy"), "Bought.", tool_execution="sequential")
    await agent.invoke_async("One, please")
    assert [name for name, _, _ in shop.calls] == ["look", "buy"]
    return shop, shop.calls[-1][1]


async def test_an_agents_snapshot_knows_what_has_ended_and_asks_about_what_was_running() -> None:
    shop, key = await bought()
    other = shop.agent("Bought after all.", session="elsewhere")
    await other.load_snapshot_async(over_json(shop.taken[0]))
    asked = await other.invoke_async()
    assert [(one.name, one.reason["tool"]) for one in asked.interrupts] == [("unknown_tool_outcome", "buy")]
    result = await other.invoke_async(answering(asked.interrupts, "retry"))
    assert str(result) == "Bought after all."
    assert [(name, attempt) for name, _, attempt in shop.calls] == [("look", 1), ("buy", 1), ("buy", 2)]
    assert shop.calls[-1][1] == key


async def test_who_goes_on_otherwise_is_told_that_the_outcome_is_unknown() -> None:
    shop, _ = await bought()
    other = shop.agent("As you like.", session="elsewhere")
    await other.load_snapshot_async(over_json(shop.taken[0]))
    await other.invoke_async("Never mind")
    told = [result["content"][0].get("text", "") for result in tool_results(other.messages[-2])]
    assert told[0] == "three left"
    assert told[1].startswith("Outcome unknown")
    assert len(shop.calls) == 2


async def test_a_snapshot_of_a_snapshot_says_the_same() -> None:
    shop, key = await bought()
    first, second = shop.agent(session="first"), shop.agent("Done.", session="second")
    await first.load_snapshot_async(over_json(shop.taken[0]))
    await second.load_snapshot_async(over_json(first.save_snapshot()))
    asked = await second.invoke_async()
    await second.invoke_async(answering(asked.interrupts, "retry"))
    assert shop.calls[2:] == [("buy", key, 2)]


async def test_a_tool_that_waits_for_a_person_goes_on_under_its_key() -> None:
    office = Office()
    agent = office.agent("Hello.", {"toolUse": {"name": "pay", "input": {"amount": 1}}})
    await agent.invoke_async("Hello!")
    await agent.invoke_async("Pay")
    other = office.agent("Paid.", storage=InMemoryStorage())
    await other.load_snapshot_async(over_json(agent.save_snapshot()))
    asked = await other.invoke_async()
    assert str(await other.invoke_async(answering(asked.interrupts))) == "Paid."
    (first, second) = office.keys
    assert (second[0], second[1]) == (first[0], 2)


async def test_a_fork_goes_on_under_the_key_of_its_source() -> None:
    shop, storage = Shop(), InMemoryStorage()
    source = shop.agent("Hello.", use("order"), "Ordered.", storage=storage)
    await source.invoke_async("Hello!")
    async with anyio.create_task_group() as group:
        group.start_soon(source.invoke_async, "One, please")
        await shop.ordering.wait()
        await Sessions(JournalSessions(storage)).fork("s", "fork")
        shop.door.set()
    fork = shop.agent("Ordered there.", storage=storage, session="fork")
    assert str(await fork.invoke_async()) == "Ordered there."
    (first, second) = shop.calls
    assert (first[1:], second[1:]) == ((first[1], 1), (first[1], 2))


async def test_a_node_of_a_graph_goes_on_under_the_key_of_its_call() -> None:
    shop = Shop()

    def graph(session: str, *replies: Any) -> Graph:
        clerk = Agent(ScriptedModel(replies), tools=shop.tools, callback_handler=None)
        return Graph({"clerk": clerk}, session_manager=JournalSessionManager(session, InMemoryStorage()))

    running, taken = graph("s", use("order"), "Ordered."), []
    async with anyio.create_task_group() as group:
        group.start_soon(running.invoke_async, "One, please")
        await shop.ordering.wait()
        taken.append(over_json(await running.save_snapshot_async()))
        group.cancel_scope.cancel()
    shop.door.set()
    for session in ("first", "second"):
        other = graph(session, "Ordered there.")
        await other.load_snapshot_async(taken[0])
        result = await other.invoke_async()
        assert (result.status, str(result)) == (Status.COMPLETED, "clerk: Ordered there.")
    assert [attempt for _, _, attempt in shop.calls] == [1, 2, 2]
    assert len({key for _, key, _ in shop.calls}) == 1
