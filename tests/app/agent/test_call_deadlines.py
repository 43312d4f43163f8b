"""A call with a deadline comes back soon after it, whatever its store does or memory has to do, and nothing is lost."""

from __future__ import annotations

from contextlib import AsyncExitStack, aclosing
from typing import Any

import anyio
import pytest

from repertory import Agent, AgentSpec, Graph, ModelExtractor, Runtime, ScriptedModel, Status, StorePatience, tool
from repertory.actors.journal import LATE_S
from repertory.app.sessions.sessions import PlacedSession
from repertory.backends.ports import OwnedRows, SessionStore
from repertory.backends.tools.function_tool import schema_class
from repertory.core.messages import text_of
from repertory.errors import AgentBusy, Unavailable
from repertory.testing.in_memory_sessions import MemorySessionStore
from tests.app.agent.test_summary_budgets import Slow
from tests.app.embedding.test_store_outages import Weather, history, spec
from tests.app.memory.test_extraction_budgets import remembering

pytestmark = pytest.mark.anyio
schema_class()  # Loading it uses a thread, which a clock that jumps would pass.

DEADLINE_S = 5.0
SOON_S = 0.1
"""Clocks are read twice, and alarms go off late."""


class Watch:
    """Measures on the loop's clock, which jumps."""

    def __enter__(self) -> Watch:
        self.began = anyio.current_time()
        return self

    def __exit__(self, *error: object) -> None:
        self.took_s = anyio.current_time() - self.began


async def come_back(weather: Weather) -> None:
    """The store works again, and what was stuck in it has come to its end."""
    weather.trouble = ""
    await anyio.sleep(70)


@pytest.mark.parametrize("trouble", ["down", "stuck"])
@pytest.mark.parametrize("durability", ["pipelined", "strict"])
async def test_a_call_whose_store_does_not_answer_is_told_soon_after_its_deadline_and_can_be_made_again(
    durability: Any, trouble: str
) -> None:
    weather = Weather()
    async with Runtime(sessions=weather) as runtime:
        model = ScriptedModel(["one", "two", "three"])
        session = runtime.agent(AgentSpec(model=model, durability=durability)).session("s")
        await session.invoke("first")
        weather.trouble = trouble
        for _ in range(3):
            with Watch() as watch, pytest.raises(Unavailable, match="it waits, and is stored when the store is back"):
                await session.invoke("second", timeout_s=DEADLINE_S, idempotency_token="t")
            assert watch.took_s <= DEADLINE_S + LATE_S + SOON_S
        await come_back(weather)
        result = await session.invoke("second", timeout_s=DEADLINE_S, idempotency_token="t")
        assert (str(result), len(model.calls)) == ("two", 2)
        assert (await runtime.drain()).ok
        assert runtime.stats().restarts == 0
    assert await history(weather) == ["first", "one", "second", "two"]


async def test_a_store_that_is_slow_costs_a_call_no_more_than_its_time_and_stores_it_behind() -> None:
    weather = Weather()
    async with Runtime(sessions=weather) as runtime:
        session = runtime.agent(spec("one", "two", "three")).session("s")
        await session.invoke("first")
        weather.trouble = "slow"
        with Watch() as watch, pytest.raises(Unavailable):
            await session.invoke("second", timeout_s=1.0)
        assert watch.took_s <= 1.0 + LATE_S + SOON_S
        assert str(await session.invoke("third")) == "three"
    assert await history(weather) == ["first", "one", "second", "two", "third", "three"]


async def test_a_turn_that_its_deadline_ends_is_written_down_by_a_store_that_works() -> None:
    weather = Weather()
    async with Runtime(sessions=weather) as runtime:
        session = runtime.agent(AgentSpec(model=Slow(["late"], loop=True))).session("s")
        with Watch() as watch:
            result = await session.invoke("first", timeout_s=DEADLINE_S)
        assert (result.stop_reason, watch.took_s <= DEADLINE_S + SOON_S) == ("limit_time", True)
        weather.trouble = "down"
        with Watch() as watch, pytest.raises(Unavailable):
            await session.invoke("second", timeout_s=DEADLINE_S)
        assert watch.took_s <= DEADLINE_S + LATE_S + SOON_S
        weather.trouble = ""
        assert str(await session.invoke()) == "late"
    said = await history(weather)
    assert (said[0], *said[-2:]) == ("first", "second", "late")


async def test_a_call_without_a_deadline_waits_as_long_as_ever_behind_one_that_has_one() -> None:
    weather = Weather()
    async with Runtime(sessions=weather) as runtime:
        session = runtime.agent(spec()).session("s")
        await session.invoke("first")
        weather.trouble = "down"

        async def hurried() -> None:
            with pytest.raises(Unavailable):
                await session.invoke("second", timeout_s=DEADLINE_S)

        async with anyio.create_task_group() as group:
            group.start_soon(hurried)
            await anyio.sleep(1)
            with pytest.raises(Unavailable, match=r"waited_s=30\.0"):
                await session.invoke("third")
        await come_back(weather)
    assert await history(weather) == ["first", "ok", "second", "ok"]


async def test_a_tool_with_effects_whose_start_is_not_stored_in_time_does_not_run() -> None:
    weather = Weather()
    ran: list[int] = []

    @tool
    def pay(amount: int) -> str:
        """Pay."""
        ran.append(amount)
        return "paid"

    def at_once(*request: object) -> object:
        del request
        weather.trouble = "down"
        return {"toolUse": {"name": "pay", "input": {"amount": 1}}}

    async with Runtime(sessions=weather) as runtime:
        session = runtime.agent(spec(at_once, "done", tools=[pay])).session("s")
        with Watch() as watch, pytest.raises(Unavailable):
            await session.invoke("pay", timeout_s=DEADLINE_S)
        assert (watch.took_s <= DEADLINE_S + LATE_S + SOON_S, ran) == (True, [])
        await come_back(weather)
    said = await history(weather)
    assert (said[0], len(said)) == ("pay", 3)


async def test_a_call_does_not_wait_beyond_it_for_room_between_two_steps() -> None:
    weather = Weather()

    @tool
    async def look() -> str:
        """Look."""
        weather.trouble = "stuck"
        return "nothing"

    async with Runtime(sessions=weather, patience=StorePatience(records_max=1)) as runtime:
        session = runtime.agent(spec({"toolUse": {"name": "look", "input": {}}}, "done", tools=[look])).session("s")
        with Watch() as watch, pytest.raises(Unavailable):
            await session.invoke("look", timeout_s=DEADLINE_S)
        assert watch.took_s <= DEADLINE_S + LATE_S + SOON_S
        await come_back(weather)


async def test_an_agent_that_is_a_tool_does_not_hold_the_call_up_with_a_store_of_its_own() -> None:
    weather = Weather()
    place = PlacedSession("inner", weather)
    inner = Agent(ScriptedModel(["in"], loop=True), name="inner", session_manager=place, callback_handler=None)
    asking = {"toolUse": {"name": "inner", "input": {"input": "go"}}}
    tools = [inner.as_tool(preserve_context=True)]
    outer = Agent(ScriptedModel([asking, "out"], loop=True), tools=tools, callback_handler=None)
    weather.trouble = "down"
    with Watch() as watch:
        result = await outer.invoke_async("go", timeout_s=DEADLINE_S)
    assert (result.stop_reason, watch.took_s <= DEADLINE_S + 2 * LATE_S + SOON_S) == ("limit_time", True)
    weather.trouble = ""
    assert str(await outer.invoke_async("again")) == "out"
    assert text_of((await outer.history())[0]) == "go"


async def test_outside_a_runtime_the_last_attempt_to_store_it_takes_no_longer_either() -> None:
    weather = Weather()
    model = ScriptedModel(["one"], loop=True)
    agent = Agent(model, session_manager=PlacedSession("s", weather), callback_handler=None)
    weather.trouble = "down"
    with Watch() as watch, pytest.raises(Unavailable, match="waited_s=7"):
        await agent.invoke_async("first", timeout_s=DEADLINE_S, idempotency_token="t")
    assert watch.took_s <= DEADLINE_S + 2 * LATE_S + SOON_S
    weather.trouble = ""
    assert str(await agent.invoke_async("first", timeout_s=DEADLINE_S, idempotency_token="t")) == "one"
    assert await history(weather) == ["first", "one"]


@pytest.mark.parametrize("where", ["alone", "in a runtime", "in a graph"])
async def test_extraction_does_not_hold_a_call_up_beyond_it_and_is_done_later(where: str) -> None:
    reader = Slow(['[{"content": "one"}]', '[{"content": "two"}]'])
    agent, store = remembering(ModelExtractor(reader))
    caller: Any = Graph({"node": agent}) if where == "in a graph" else agent
    async with AsyncExitStack() as stack:
        if where == "in a runtime":
            await stack.enter_async_context(Runtime(idle_timeout_s=0))
        with Watch() as watch:
            await caller.invoke_async("first", timeout_s=DEADLINE_S)
        assert (watch.took_s <= DEADLINE_S + SOON_S, store.entries) == (True, [])
        await caller.invoke_async("second")
    assert store.entries[0] == "one"
    assert (await agent.flush_memory())["facts"].parked == 0


@pytest.mark.parametrize("trouble", ["down", "stuck"])
async def test_a_graph_is_told_soon_after_its_deadline_and_its_run_goes_on(trouble: str) -> None:
    weather = Weather()

    def last(*request: object) -> str:
        del request
        weather.trouble = trouble
        return "last"

    nodes = {"a": ScriptedModel(["a"]), "b": ScriptedModel([last, "again"])}
    agents = {name: Agent(model, name=name, callback_handler=None) for name, model in nodes.items()}
    graph = Graph(agents, session_manager=PlacedSession("graph", weather))
    async with graph:
        with Watch() as watch, pytest.raises(Unavailable):
            await graph.invoke_async("Go", timeout_s=DEADLINE_S)
        assert watch.took_s <= DEADLINE_S + LATE_S + SOON_S
        await come_back(weather)
        result = await graph.invoke_async("Go", timeout_s=DEADLINE_S)
    assert (result.status, result.resumed) == (Status.COMPLETED, True)
    assert [len(model.calls) for model in nodes.values()] == [1, 1]


@pytest.mark.parametrize("trouble", ["down", "stuck"])
async def test_a_graph_outside_any_block_is_told_too_when_its_sessions_have_tried_once_more_to_store(
    trouble: str,
) -> None:
    """One after the other, its node's and its own; a writer that is stuck in the store is left after five seconds."""
    weather = Weather()

    def last(*request: object) -> str:
        del request
        weather.trouble = trouble
        return "last"

    model = ScriptedModel([last, "again"])
    agent = Agent(model, callback_handler=None)
    graph = Graph({"a": agent}, session_manager=PlacedSession("graph", weather))
    with Watch() as watch, pytest.raises(Unavailable):
        await graph.invoke_async("Go", timeout_s=DEADLINE_S)
    assert watch.took_s <= DEADLINE_S + 3 * LATE_S + (5 if trouble == "stuck" else 0) + SOON_S
    weather.trouble = ""
    assert str((await graph.invoke_async("Go", timeout_s=DEADLINE_S)).results["a"]).strip() in ("last", "again")


class BlackHole(Weather):
    """A store that takes every request to open a session, and answers none."""

    def open_store(self) -> SessionStore:
        return _Hole(self.shelf, owner="one")


class _Hole(MemorySessionStore):
    async def acquire(self, session_id: str, **options: object) -> OwnedRows:
        await anyio.sleep_forever()
        raise AssertionError


@pytest.mark.parametrize(("options", "waits_s"), [({}, 7.0), ({"timeout_s": 3.0}, 3.0 + LATE_S)])
async def test_a_session_that_no_store_opens_takes_no_longer_than_its_caller_has(options: Any, waits_s: float) -> None:
    async with Runtime(sessions=BlackHole(), patience=StorePatience(wait_s=7)) as runtime:
        with Watch() as watch, pytest.raises(Unavailable):
            await runtime.agent(spec("never")).session("s").invoke("go", **options)
    assert watch.took_s == pytest.approx(waits_s, abs=SOON_S)


async def test_a_call_that_comes_while_the_last_turns_of_a_session_end_is_told_that_they_took_its_time() -> None:
    """A reader has left its turn to itself, and the session ends when that is over."""
    async with Runtime(sessions=Weather()) as runtime, anyio.create_task_group() as group:
        session = runtime.agent(AgentSpec(model=Slow(["late", "next"]))).session("s")
        async with aclosing(session.stream("first", token="t", detach=True)) as events:
            await anext(events)
        group.start_soon(runtime._host.let_go, session.spec)
        await anyio.sleep(1)
        with Watch() as watch, pytest.raises(AgentBusy, match="other turns took all the time"):
            await session.invoke("second", timeout_s=DEADLINE_S)
        assert watch.took_s <= DEADLINE_S + LATE_S + SOON_S
        assert str(await session.invoke("third")) == "next"
