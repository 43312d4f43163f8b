"""`session.pending()`: what a conversation has left unfinished, and why."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest

from repertory import AgentSpec, PendingTurn, Runtime, ScriptedModel, StorePatience, ToolContext, tool
from repertory.errors import ModelFailed
from tests.app.embedding.test_store_outages import Weather
from tests.cluster.test_peers import Site

pytestmark = pytest.mark.anyio


class Waiting(ScriptedModel):
    def __init__(self) -> None:
        super().__init__(["done"], loop=True)
        self.begun, self.go_on = anyio.Event(), anyio.Event()

    async def stream(self, *args: Any, **options: Any) -> AsyncIterator[Any]:
        self.begun.set()
        await self.go_on.wait()
        async for event in super().stream(*args, **options):
            yield event


@tool
async def pay(context: ToolContext) -> str:
    """Pay."""
    return str(context.interrupt("sure", reason="It costs a lot."))


async def test_a_turn_is_pending_while_it_runs_and_nothing_is_when_it_is_answered() -> None:
    model = Waiting()
    async with Runtime(sessions=Weather()) as runtime, anyio.create_task_group() as group:
        session = runtime.agent(AgentSpec(model=model)).session("s")
        assert await session.pending() is None
        group.start_soon(session.invoke, "Hello")
        await model.begun.wait()
        assert await session.pending() == PendingTurn(why="runs")
        model.go_on.set()
        await session.invoke("And now?")
        assert await session.pending() is None


async def test_a_turn_that_was_cut_short_goes_on_by_a_call_without_a_prompt() -> None:
    weather = Weather()
    async with Runtime(sessions=weather) as runtime:
        session = runtime.agent(AgentSpec(model=ScriptedModel([ModelFailed("no")]), retry_strategy=None)).session("s")
        with pytest.raises(ModelFailed):
            await session.invoke("Hello")
        assert await session.pending() == PendingTurn(why="cut short")
    async with Runtime(sessions=weather, wakes_max=0) as runtime:
        session = runtime.agent(AgentSpec(model=ScriptedModel(["Here I am."]))).session("s")
        assert await session.pending() == PendingTurn(why="cut short")
        assert str(await session.invoke()).strip() == "Here I am."
        assert await session.pending() is None


async def test_questions_to_a_person_are_named_until_they_are_answered() -> None:
    model = ScriptedModel([{"toolUse": {"name": "pay", "input": {}}}, "paid"])
    async with Runtime(sessions=Weather()) as runtime:
        session = runtime.agent(AgentSpec(model=model, tools=[pay])).session("s")
        result = await session.invoke("Pay")
        pending = await session.pending()
        assert pending is not None
        assert (pending.why, list(pending.interrupts)) == ("asks", list(result.interrupts))
        await session.invoke([{"interruptResponse": {"interruptId": result.interrupts[0].id, "response": "yes"}}])
        assert await session.pending() is None


async def test_an_answer_that_is_not_stored_waits_for_its_store() -> None:
    weather = Weather()
    async with Runtime(sessions=weather, patience=StorePatience(wait_s=600), wall=lambda: 1e9) as runtime:
        spec = AgentSpec(model=ScriptedModel(["ok"], loop=True), durability="relaxed")
        session = runtime.agent(spec).session("s")
        await session.invoke("Hello")
        await anyio.sleep(1)
        weather.trouble = "down"
        await session.invoke("Will you remember?")
        await anyio.sleep(1)
        assert await session.pending() == PendingTurn(why="store")
        weather.trouble = ""
        await anyio.sleep(60)
        assert await session.pending() is None


async def test_another_process_of_the_cluster_tells_it_too() -> None:
    site = Site()
    use = {"toolUse": {"name": "pay", "input": {}}}
    async with site.process("a", [use], tools=[pay]), site.process("gate", room=0, tools=[pay]) as gate:
        await anyio.sleep(3)
        session = gate.agent.session("s")
        assert await session.pending() is None
        result = await session.invoke("Pay")
        pending = await session.pending()
        assert pending is not None
        assert (pending.why, list(pending.interrupts)) == ("asks", list(result.interrupts))
        assert await session.interrupts() == list(result.interrupts)
