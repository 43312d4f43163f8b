"""Agents whose store is down: calls wait, then are told; nothing is dropped in silence, and the drain says what is
missing. Our decisions: `docs/design/ownership.md`, `docs/guides/sessions/when-storage-fails.md`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import anyio
import pytest

from repertory import Agent, AgentResult, AgentSpec, DrainReport, Runtime, ScriptedModel, StorePatience, tool
from repertory.app.sessions.sessions import PlacedSession
from repertory.backends.ports import Batch, Lease, OwnedRows, Position, SessionStore, give_up
from repertory.backends.shields import Uncut
from repertory.core.messages import text_of, tool_results
from repertory.errors import LeaseLost, RepertoryError, SessionException, Throttled, Unavailable
from repertory.testing.in_memory_sessions import MemorySessionStore, SessionShelf

pytestmark = pytest.mark.anyio

DURABILITIES = ["pipelined", "strict", "relaxed"]


class Weather:
    """Sessions in memory, behind a store that may be told to fail."""

    key = "weather"

    def __init__(self) -> None:
        self.shelf = SessionShelf()
        self.opened = 0
        self.trouble = ""

    def open_store(self) -> SessionStore:
        self.opened += 1
        return _Store(self, f"owner {self.opened}")


class _Store(MemorySessionStore):
    def __init__(self, weather: Weather, owner: str) -> None:
        super().__init__(weather.shelf, owner=owner)
        self._weather = weather

    async def release(self, leases: Sequence[Lease]) -> Sequence[RepertoryError | None]:
        if self._weather.trouble == "hangs whole":
            await _never()
        return await super().release(leases)

    async def aclose(self) -> None:
        if self._weather.trouble == "hangs whole":
            await _never()
        await super().aclose()

    async def append(self, batches: Sequence[Batch]) -> Sequence[Position | LeaseLost]:
        match self._weather.trouble:
            case "hangs whole":
                await _never()
            case "down":
                raise Unavailable("the disk is full")
            case "throttled":
                raise Throttled("slow down")
            case "hangs":
                await anyio.sleep(10_000)
            case "stuck":
                await anyio.sleep(60)
            case "slow":
                await anyio.sleep(5)
            case "answers get lost":
                await super().append(batches)
                raise Unavailable("the answer was lost")
            case _:
                pass
        return await super().append(batches)


async def _never() -> None:
    """A request that a cancellation waits for, and that a server does not answer."""
    with Uncut():
        await anyio.sleep(10_000)


def spec(*replies: object, durability: str = "pipelined", **options: Any) -> AgentSpec:
    model = ScriptedModel(list(replies) or ["ok"], loop=True)
    return AgentSpec(model=model, durability=durability, **options)  # type: ignore[arg-type] - one of three


async def history(weather: Weather, session_id: str = "s") -> list[str]:
    weather.trouble = ""
    async with Runtime(sessions=weather) as runtime:
        return [text_of(message) for message in await runtime.agent(spec()).session(session_id).history()]


async def clear_up(weather: Weather, after_s: float) -> None:
    await anyio.sleep(after_s)
    weather.trouble = ""


@pytest.mark.parametrize("durability", DURABILITIES)
@pytest.mark.parametrize("trouble", ["down", "throttled", "answers get lost"])
async def test_an_outage_shorter_than_the_patience_only_costs_time(trouble: str, durability: str) -> None:
    weather = Weather()
    async with Runtime(sessions=weather) as runtime, anyio.create_task_group() as group:
        session = runtime.agent(spec(durability=durability)).session("s")
        await session.invoke("before")
        weather.trouble = trouble
        group.start_soon(clear_up, weather, 10)
        began = anyio.current_time()
        await session.invoke("during")
        await session.invoke("still")
        if trouble != "answers get lost":  # Those are recognised, so nothing has to wait.
            assert anyio.current_time() - began >= 10
        await session.invoke("after")
        report = await runtime.drain()
    assert report.ok
    assert await history(weather) == ["before", "ok", "during", "ok", "still", "ok", "after", "ok"]


@pytest.mark.parametrize("trouble", ["down", "hangs"])
@pytest.mark.parametrize("durability", ["pipelined", "strict"])
async def test_a_turn_that_could_not_be_stored_is_not_acknowledged_and_the_next_one_does_not_begin(
    durability: str, trouble: str
) -> None:
    weather = Weather()
    asked: list[str] = []

    def answer(messages: Any, *rest: object) -> str:
        del rest
        asked.append(text_of(messages[-1]))
        return "ok"

    async with Runtime(sessions=weather, patience=StorePatience(wait_s=20)) as runtime:
        session = runtime.agent(spec(answer, durability=durability)).session("s")
        await session.invoke("first")
        weather.trouble = trouble
        for number in range(3):
            began = anyio.current_time()
            with pytest.raises(Unavailable, match="waited_s=20") as caught:
                await session.invoke(f"number {number}")
            assert anyio.current_time() - began <= 21
        assert "try again later" in str(caught.value)
        assert asked.count("number 1") == asked.count("number 2") == 0, "nobody pays for a turn that cannot be stored"
        assert [text_of(m) for m in await session.messages()][:3] == ["first", "ok", "number 0"]
        assert len(await session.messages()) <= 4
        report = await runtime.drain()
    assert not report.ok
    (told,) = report.not_stored
    assert (told.session_id, told.turns, told.answered) == ("s", (2,), False)
    assert await history(weather) == ["first", "ok"]


async def test_when_the_store_is_back_what_waited_is_stored_once_and_the_session_goes_on() -> None:
    weather = Weather()
    async with Runtime(sessions=weather, patience=StorePatience(wait_s=20)) as runtime:
        session = runtime.agent(spec()).session("s")
        await session.invoke("first")
        weather.trouble = "down"
        for number in range(3):
            with pytest.raises(Unavailable):
                await session.invoke(f"number {number}")
        weather.trouble = ""
        await session.invoke("last")
        assert (await runtime.drain()).ok
        assert runtime.stats().restarts == 0, "it was never reopened"
    assert await history(weather) == ["first", "ok", "number 0", "ok", "last", "ok"]


async def test_a_token_gives_the_answer_that_could_not_be_acknowledged_and_runs_nothing_twice() -> None:
    weather = Weather()
    async with Runtime(sessions=weather, patience=StorePatience(wait_s=20)) as runtime:
        model = ScriptedModel(["one", "two"])
        session = runtime.agent(AgentSpec(model=model)).session("s")
        await session.invoke("first", idempotency_token="a")
        weather.trouble = "down"
        for _ in range(2):
            with pytest.raises(Unavailable):
                await session.invoke("second", idempotency_token="b")
        weather.trouble = ""
        result = await session.invoke("second", idempotency_token="b")
        assert (str(result), result.replayed) == ("two", True)
        assert len(model.calls) == 2
    assert await history(weather) == ["first", "one", "second", "two"]


async def test_a_tool_with_effects_does_not_run_when_its_start_cannot_be_stored() -> None:
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

    async with Runtime(sessions=weather, patience=StorePatience(wait_s=20)) as runtime:
        session = runtime.agent(spec(at_once, "done", tools=[pay])).session("s")
        with pytest.raises(Unavailable):
            await session.invoke("go")
        assert ran == []
        weather.trouble = ""
        said = await session.history()
        assert [result["status"] for result in tool_results(said[2])] == ["error"]
        await session.invoke("and now?")
        assert (await runtime.drain()).ok


async def test_results_of_tools_that_ended_stand_when_the_start_of_the_next_cannot_be_stored() -> None:
    weather = Weather()

    @tool
    def pay() -> str:
        """Pay."""
        weather.trouble = "down"
        return "paid"

    @tool
    def post() -> str:
        """Post."""
        raise AssertionError("its start is on record nowhere")

    uses = [{"toolUse": {"name": name, "input": {}}} for name in ("pay", "post")]
    async with Runtime(sessions=weather) as runtime:
        agent = runtime.agent(spec(uses, tools=[pay, post], tool_execution="sequential"))
        session = agent.session("s")
        with pytest.raises(Unavailable):
            await session.invoke("go")
        weather.trouble = ""
        results = [
            result["content"][0]["text"] for message in await session.history() for result in tool_results(message)
        ]
    assert results == ["paid", "Not run: the turn could not be stored."]


async def test_a_turn_waits_for_room_before_its_next_step() -> None:
    weather = Weather()

    @tool(effects=False)
    async def look() -> str:
        """Look."""
        return "seen"

    use = {"toolUse": {"name": "look", "input": {}}}
    async with Runtime(sessions=weather, patience=StorePatience(wait_s=20, records_max=6)) as runtime:
        model = ScriptedModel([use], loop=True)
        session = runtime.agent(AgentSpec(model=model, tools=[look])).session("s")
        await session.messages()
        weather.trouble = "down"
        with pytest.raises(Unavailable, match="records="):
            await session.invoke("go")
        assert runtime.stats().records_waiting <= 6 + 3, "one step may go beyond"
        assert len(model.calls) <= 4
        assert runtime.stats().sessions_behind == 1
        weather.trouble = ""
        await anyio.sleep(5)
        assert (runtime.stats().records_waiting, runtime.stats().sessions_behind) == (0, 0)


async def test_other_sessions_go_on_while_one_waits() -> None:
    weather = Weather()

    class OneIsDown(_Store):
        async def append(self, batches: Sequence[Batch]) -> Sequence[Position | LeaseLost]:
            outcomes: list[Any] = []
            for batch in batches:
                if batch.lease.session_id == "bad":
                    outcomes.append(Unavailable("down"))
                else:
                    outcomes += await super().append([batch])
            return outcomes

    weather.open_store = lambda: OneIsDown(weather, "owner")  # type: ignore[method-assign] - one more kind of weather
    async with Runtime(sessions=weather) as runtime:
        agent = runtime.agent(spec())
        outcomes: list[tuple[str, float]] = []

        async def talk(name: str) -> None:
            began = anyio.current_time()
            try:
                await agent.session(name).invoke("hi")
            except Unavailable:
                name = f"{name} failed"
            outcomes.append((name, anyio.current_time() - began))

        async with anyio.create_task_group() as group:
            for name in ("bad", "good", "better"):
                group.start_soon(talk, name)
        assert [name for name, _ in outcomes][2] == "bad failed"
        assert all(took_s < 1 for _, took_s in outcomes[:2])
        report = await runtime.drain()
    assert [told.session_id for told in report.not_stored] == ["bad"]


# Relaxed: the answer comes first.


async def test_the_call_after_a_relaxed_turn_that_is_not_stored_says_so_and_the_turn_is_stored_when_it_can_be() -> None:
    weather = Weather()
    async with Runtime(sessions=weather, patience=StorePatience(wait_s=20)) as runtime:
        session = runtime.agent(spec(durability="relaxed")).session("s")
        weather.trouble = "down"
        assert str(await session.invoke("first")) == "ok"
        began = anyio.current_time()
        with pytest.raises(Unavailable, match="the disk is full"):
            await session.invoke("second")
        assert anyio.current_time() - began <= 21
        weather.trouble = ""
        assert str(await session.invoke("third")) == "ok"
        assert (await runtime.drain()).ok
    assert await history(weather) == ["first", "ok", "third", "ok"]


async def test_a_relaxed_turn_that_was_never_stored_stands_in_the_drain_report() -> None:
    weather = Weather()
    async with Runtime(sessions=weather) as runtime:
        session = runtime.agent(spec(durability="relaxed")).session("s")
        await session.invoke("first")
        await anyio.sleep(1)
        weather.trouble = "down"
        await session.invoke("second")
        report = await runtime.drain()
        assert await runtime.drain() is report
    assert not report.ok
    assert report.unfinished == ()
    (told,) = report.not_stored
    assert (told.session_id, told.agent_id, told.records, told.turns) == ("s", "default", 2, (2,))
    assert (told.answered, told.error) == (True, "the disk is full")
    assert told.since > 0
    assert await history(weather) == ["first", "ok"]


async def lose_a_relaxed_turn(runtime: Runtime, weather: Weather) -> Any:
    session = runtime.agent(spec(durability="relaxed")).session("s")
    await session.invoke("first")
    await anyio.sleep(1)
    weather.trouble = "down"
    await session.invoke("second")
    await anyio.sleep(1)
    other = MemorySessionStore(weather.shelf, owner="somebody else")
    await give_up(other, (await other.acquire("s", takeover=True)).lease)
    weather.trouble = ""
    await anyio.sleep(10)
    return session


async def test_a_relaxed_turn_that_is_lost_to_a_takeover_is_told_to_the_next_call_once() -> None:
    weather = Weather()
    async with Runtime(sessions=weather) as runtime:
        session = await lose_a_relaxed_turn(runtime, weather)
        with pytest.raises(SessionException, match=r"turns that were answered are lost.*turns=\(2,\)"):
            await session.invoke("third")
        assert str(await session.invoke("fourth")) == "ok"
        assert (await runtime.drain()).ok
    assert await history(weather) == ["first", "ok", "fourth", "ok"]


async def test_a_lost_turn_that_no_call_was_told_of_stands_in_the_drain_report() -> None:
    weather = Weather()
    async with Runtime(sessions=weather) as runtime:
        await lose_a_relaxed_turn(runtime, weather)
        report = await runtime.drain()
    assert not report.ok
    assert [(told.turns, told.answered) for told in report.not_stored] == [((2,), True)]


# Sessions that rest, drains that have no time, calls outside a runtime.


async def test_a_session_of_which_something_waits_is_not_put_to_rest() -> None:
    weather = Weather()
    async with Runtime(sessions=weather, idle_timeout_s=10) as runtime:
        session = runtime.agent(spec(durability="relaxed")).session("s")
        weather.trouble = "down"
        await session.invoke("first")
        await anyio.sleep(60)
        assert [actor for actor in runtime.tree().walk() if actor.path.endswith("/persister")]
        weather.trouble = ""
        await anyio.sleep(60)
        assert not [actor for actor in runtime.tree().walk() if actor.path.endswith("/persister")]
    assert await history(weather) == ["first", "ok"]


async def test_a_session_without_idle_time_hands_what_it_could_not_store_to_the_next_call() -> None:
    weather = Weather()
    async with Runtime(sessions=weather, idle_timeout_s=0) as runtime:
        session = runtime.agent(spec(durability="relaxed")).session("s")
        weather.trouble = "down"
        await session.invoke("first")
        weather.trouble = ""
        await session.invoke("second")
        assert (await runtime.drain()).ok
    assert await history(weather) == ["first", "ok", "second", "ok"]


@pytest.mark.parametrize("trouble", ["down", "hangs", "hangs whole"])
async def test_a_drain_ends_in_time_whatever_the_store_does_and_calls_that_wait_are_told(trouble: str) -> None:
    weather = Weather()
    errors: list[str] = []
    reports: list[DrainReport] = []
    async with Runtime(sessions=weather, drain_timeout_s=20) as runtime:
        agent = runtime.agent(spec())
        for name in ("a", "b"):
            await agent.session(name).invoke("first")
        weather.trouble = trouble

        async def call(name: str) -> None:
            try:
                await agent.session(name).invoke("second")
            except RepertoryError as error:
                errors.append(type(error).__name__)

        async with anyio.create_task_group() as group:
            for name in ("a", "b"):
                group.start_soon(call, name)
            await anyio.sleep(1)
            began = anyio.current_time()
            reports.append(await runtime.drain())
            assert anyio.current_time() - began <= 20
    assert errors == ["StoreUnavailable", "StoreUnavailable"]
    assert [told.session_id for told in reports[0].not_stored] == ["a", "b"]
    assert not reports[0].ok


async def test_a_slow_store_is_no_outage() -> None:
    weather = Weather()
    weather.trouble = "slow"
    async with Runtime(sessions=weather) as runtime:
        session = runtime.agent(spec()).session("s")
        for number in range(3):
            await session.invoke(f"number {number}")
        assert (await runtime.drain()).ok
    assert len(await history(weather)) == 6


async def test_a_relaxed_call_outside_a_runtime_is_not_answered_when_it_could_not_be_stored() -> None:
    weather = Weather()
    place = PlacedSession("s", weather)
    agent = Agent(ScriptedModel(["ok"], loop=True), session_manager=place, callback_handler=None, durability="relaxed")
    weather.trouble = "down"
    with pytest.raises(Unavailable, match="is lost"):
        await agent.invoke_async("first")
    weather.trouble = ""
    assert str(await agent.invoke_async("second")) == "ok"
    assert await history(weather) == ["second", "ok"]


async def test_a_call_outside_a_runtime_waits_and_is_told() -> None:
    weather = Weather()
    place = PlacedSession("s", weather)
    agent = Agent(ScriptedModel(["ok"], loop=True), session_manager=place, callback_handler=None)
    weather.trouble = "down"
    began = anyio.current_time()
    with pytest.raises(Unavailable, match="waited_s=30"):
        await agent.invoke_async("first")
    assert anyio.current_time() - began < 60
    weather.trouble = ""
    result: AgentResult = await agent.invoke_async("second")
    assert str(result) == "ok"


async def test_a_store_that_is_down_when_a_session_opens_says_so_at_once_and_opens_when_it_is_back() -> None:
    weather = Weather()

    class Shut(_Store):
        async def acquire(self, session_id: str, **options: Any) -> OwnedRows:
            if weather.trouble:
                raise Unavailable("the database is locked")
            return await super().acquire(session_id, **options)

    weather.open_store = lambda: Shut(weather, "owner")  # type: ignore[method-assign] - one more kind of weather
    async with Runtime(sessions=weather) as runtime:
        session = runtime.agent(spec()).session("s")
        weather.trouble = "down"
        with pytest.raises(Unavailable, match="the database is locked"):
            await session.invoke("first")
        weather.trouble = ""
        assert str(await session.invoke("second")) == "ok"
    assert await history(weather) == ["second", "ok"]
