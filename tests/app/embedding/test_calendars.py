"""Timers at the times of a calendar, in processes that come and go."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
import zoneinfo
from collections.abc import Sequence
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import anyio
import pytest

from repertory import (
    Agent,
    AgentSpec,
    Graph,
    JournalSessions,
    Model,
    Runtime,
    ScriptedModel,
    Sessions,
    SQLiteSessions,
    ToolContext,
    tool,
)
from repertory.backends.tools.function_tool import schema_class
from repertory.core import timers
from repertory.core.messages import Message, text_of
from repertory.core.timers import MISSED_AFTER_S
from repertory.core.turns.due_times import AGAIN_S
from repertory.errors import Invalid
from tests.operations.operated_places import Memory, place_of
from tests.simulation.killed_worlds import World

pytestmark = pytest.mark.anyio

schema_class()  # Loading it uses a thread, which a clock that jumps would pass.


def berlin(text: str) -> float:
    """The epoch seconds of a time in Berlin."""
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo("Europe/Berlin")).timestamp()


def process_at(place: Any, text: str, **options: Any) -> Runtime:
    """A process that starts at a time in Berlin, by its own clock."""
    begin, started = berlin(text), anyio.current_time()
    return Runtime(sessions=place, wall=lambda: begin + anyio.current_time() - started, **options)


def clerk(reply: object = "done", **more: Any) -> AgentSpec:
    return AgentSpec(name="clerk", model=ScriptedModel([reply], loop=True), **more)


class Slow(Model):
    """Answers after a while."""

    def __init__(self, *seconds: float) -> None:
        self.left = list(seconds)
        """The seconds of each answer; those after them take none."""

    async def stream(self, messages: Sequence[Message], *args: Any, **options: Any) -> Any:
        await anyio.sleep(self.left.pop(0) if self.left else 0.0)
        async for event in ScriptedModel(["done"]).stream(messages, *args, **options):
            yield event


def prompts(messages: Sequence[Message]) -> list[str]:
    return [text_of(message) for message in messages if message["role"] == "user"]


async def turns_in(place: Any, text: str, seconds: float, spec: AgentSpec | None = None) -> tuple[list[str], str]:
    """The prompts of session `s` after a process has run from a time on, and the next time of its timer."""
    async with process_at(place, text) as runtime:
        session = runtime.agent(spec or clerk()).session("s")
        await anyio.sleep(seconds)
        (timer,) = await session.timers()
        following = datetime.fromtimestamp(timer.at, ZoneInfo("Europe/Berlin")).isoformat()
        return prompts(await session.messages()), following


async def set_at(place: Any, text: str, every: str, **options: Any) -> None:
    async with process_at(place, text) as runtime:
        session = runtime.agent(clerk()).session("s")
        await runtime.schedule(session, "report", every=every, tz="Europe/Berlin", id="t", **options)


async def test_a_turn_runs_every_weekday_at_eight_in_winter_and_in_summer() -> None:
    world = World()
    await set_at(world, "2027-03-26T07:00", "0 8 * * 1-5")
    days = ["26T08:00:00+01:00", "29T08:00:00+02:00", "30T08:00:00+02:00", "31T08:00:00+02:00"]
    for number, (due, following) in enumerate(pairwise(days)):
        before = f"2027-03-{due[:2]}T07:59"
        assert await turns_in(world, before, 55.0) == (["report"] * number, f"2027-03-{due}")
        assert await turns_in(world, before, 65.0) == (["report"] * (number + 1), f"2027-03-{following}")


@pytest.mark.parametrize(
    ("missed", "begun", "following"),
    [
        ("one", 1, "2027-01-22T08:00:00+01:00"),
        ("all", 4, "2027-01-22T08:00:00+01:00"),
        ("none", 0, "2027-01-22T08:00:00+01:00"),
    ],
)
async def test_times_that_were_missed_have_one_turn_or_one_each_or_none(
    missed: Any, begun: int, following: str
) -> None:
    world = World()
    await set_at(world, "2027-01-17T12:00", "0 8 * * *", missed=missed)
    assert await turns_in(world, "2027-01-21T09:00", 30.0) == (["report"] * begun, following)
    assert await turns_in(world, "2027-01-22T08:00:01", 30.0) == (["report"] * (begun + 1), "2027-01-23T08:00:00+01:00")


async def test_turns_for_all_missed_times_are_named_by_those_times_in_their_order() -> None:
    world = World()
    await set_at(world, "2027-01-17T12:00", "0 8 * * *", missed="all")
    async with process_at(world, "2027-01-20T09:00") as runtime:
        session = runtime.agent(clerk()).session("s")
        await anyio.sleep(30)
        for day in (18, 19, 20):
            token = f"timer:t:{berlin(f'2027-01-{day}T08:00')!r}"
            assert (await session.invoke(idempotency_token=token)).replayed


@pytest.mark.parametrize(("late_s", "begun"), [(MISSED_AFTER_S - 10, 1), (MISSED_AFTER_S + 10, 0)])
async def test_a_turn_that_waits_too_long_for_another_one_counts_as_missed(late_s: float, begun: int) -> None:
    async with process_at(World(), "2027-01-18T07:59") as runtime, anyio.create_task_group() as group:
        session = runtime.agent(AgentSpec(name="clerk", model=Slow(60.0 + late_s))).session("s")
        await runtime.schedule(session, "report", every="0 8 * * *", tz="Europe/Berlin", missed="none", id="t")
        group.start_soon(session.invoke, "hello")
        await anyio.sleep(60.0 + late_s + 5.0)
        assert prompts(await session.messages()) == ["hello", *["report"] * begun]
        (timer,) = await session.timers()
        assert timer.at == berlin("2027-01-19T08:00")
        group.cancel_scope.cancel()


async def test_callers_have_their_turns_while_a_timer_makes_up_for_what_it_missed() -> None:
    world = World()
    await set_at(world, "2027-01-18T08:00", "*/10 * * * *", missed="all")
    async with process_at(world, "2027-01-18T18:00:30") as runtime:
        model = Slow(*[10.0] * 100)
        session = runtime.agent(AgentSpec(name="clerk", model=model)).session("s")
        await anyio.sleep(25)
        with anyio.fail_after(35):
            await session.invoke("hello")
        assert 2 < prompts(await session.messages()).index("hello") < 5
        await anyio.sleep(900)
    assert 100 - len(model.left) == 1 + 60 + 1  # the caller's, those that were missed, and the one at ten past six


def sender(world: World) -> AgentSpec:
    """Answers each prompt by way of a tool with effects, so that a turn takes several commits."""

    @tool(idempotent=True)
    async def send(tool_context: ToolContext) -> str:
        """Send something."""
        world.effect(tool_context.idempotency_key)
        return "sent"

    def sending(messages: Sequence[Message], *_: object) -> object:
        sent = "toolResult" in messages[-1]["content"][0]
        return "done" if sent else [{"toolUse": {"name": "send", "input": {}}}]

    return clerk(sending, tools=[send])


@pytest.mark.parametrize(("missed", "begun"), [("one", 1), ("all", 3), ("none", 0)])
async def test_every_time_has_its_turn_once_after_a_kill_at_any_moment(missed: Any, begun: int) -> None:
    world = World()
    async with process_at(world, "2027-01-17T12:00") as runtime:
        session = runtime.agent(sender(world)).session("s")
        await session.invoke("hello")
        await runtime.schedule(session, "report", every="0 8 * * *", tz="Europe/Berlin", missed=missed, id="t")
    set_at = len(world.left)
    async with process_at(world, "2027-01-20T09:00") as runtime:
        runtime.agent(sender(world))
        await anyio.sleep(60)
    moments = world.left[set_at:]
    assert len(moments) > 2 * begun
    for left in moments:
        left.shelf.alive.clear()
        said, following = await turns_in(left, "2027-01-20T09:30", 100.0, sender(left))
        assert list(filter(None, said)) == ["hello", *["report"] * begun]
        assert following == "2027-01-21T08:00:00+01:00"
        assert len(left.effects) == 1 + begun


async def test_a_tool_and_a_program_without_agents_set_calendars() -> None:
    world = World()

    @tool
    async def remind(tool_context: ToolContext) -> str:
        """Remind the user."""
        with pytest.raises(Invalid, match="not by both"):
            tool_context.wake_at(prompt="no", every_s=60, every="0 8 * * *")
        return tool_context.wake_at(prompt="tool", every="0 8 * * 1-5", tz="Europe/Berlin", missed="all")

    begin = berlin("2027-03-26T12:00")
    await Sessions(world, wall=lambda: begin).schedule(
        "clerk", "s", "names", every="0 9 * * 1-5", tz="Europe/Berlin", missed="none", id="n"
    )
    async with process_at(world, "2027-03-26T12:00") as runtime:
        model = ScriptedModel([[{"toolUse": {"name": "remind", "input": {}}}], "done"])
        session = runtime.agent(AgentSpec(name="clerk", model=model, tools=[remind])).session("s")
        await session.invoke("please")
        await anyio.sleep(5)
        found = {timer.prompt: timer for timer in await session.timers()}
    assert (found["tool"].at, found["tool"].missed) == (berlin("2027-03-29T08:00"), "all")
    assert (found["names"].at, found["names"].missed) == (berlin("2027-03-29T09:00"), "none")
    assert {(timer.cron, timer.tz) for timer in found.values()} == {
        ("0 8 * * 1-5", "Europe/Berlin"),
        ("0 9 * * 1-5", "Europe/Berlin"),
    }


async def test_a_graph_runs_at_the_times_of_a_calendar_and_passes_those_that_it_missed() -> None:
    world = World()

    def make(_: str) -> Any:
        agent = Agent(model=ScriptedModel(["done"], loop=True), name="one", callback_handler=None)
        return Graph({"one": agent}, id="team")

    async with process_at(world, "2027-01-17T12:00") as runtime:
        session = runtime.orchestrator("team", make).session("s")
        await runtime.schedule(session, "report", every="0 8 * * *", tz="Europe/Berlin", missed="none", id="t")
    async with process_at(world, "2027-01-20T09:00") as runtime:
        session = runtime.orchestrator("team", make).session("s")
        await anyio.sleep(30)
        assert (await session.timers())[0].at == berlin("2027-01-21T08:00")
    async with process_at(world, "2027-01-21T08:00") as runtime:
        session = runtime.orchestrator("team", make).session("s")
        await anyio.sleep(30)
        assert (await session.timers())[0].at == berlin("2027-01-22T08:00")
        token = f"timer:t:{berlin('2027-01-21T08:00')!r}"
        assert (await session.invoke(idempotency_token=token)).run == 1


def forget_zones(folders: Sequence[str]) -> None:
    """The process knows the zones of these folders alone from now on."""
    zoneinfo.reset_tzpath(to=folders)
    ZoneInfo.clear_cache()
    timers._zone.cache_clear()


async def test_a_timer_waits_where_its_time_zone_is_not_known(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    await set_at(world, "2027-01-17T12:00", "0 8 * * *")
    zones = zoneinfo.TZPATH
    forget_zones(())
    begin, started = 1_800_259_200.0, anyio.current_time()  # nine o'clock on the eighteenth
    try:
        async with Runtime(sessions=world, wall=lambda: begin + anyio.current_time() - started) as runtime:
            session = runtime.agent(clerk()).session("s")
            await anyio.sleep(3 * AGAIN_S)
            assert prompts(await session.messages()) == []
            assert str(await session.invoke("hello")).strip() == "done"
    finally:
        forget_zones(zones)
    assert 2 < len([one for one in caplog.records if "tzdata" in one.getMessage()]) < 6
    assert (await turns_in(world, "2027-01-18T10:00", 60.0))[0] == ["hello", "report"]


@pytest.mark.parametrize("missed", ["one", "none"])
async def test_a_timer_whose_time_zone_is_not_known_holds_no_other_timer_up(missed: Any) -> None:
    world = World()
    await set_at(world, "2027-01-17T12:00", "0 8 * * *", missed=missed)
    zones = zoneinfo.TZPATH
    forget_zones(())
    begin, started = 1_800_259_200.0, anyio.current_time()  # nine o'clock on the eighteenth

    def wall() -> float:
        return begin + anyio.current_time() - started

    try:
        async with Runtime(sessions=world, wall=wall) as runtime:
            session = runtime.agent(clerk()).session("s")
            for number in range(3):
                await runtime.schedule(session, f"other {number}", in_s=5.0 + 7 * number)
            with anyio.fail_after(AGAIN_S):
                while "other 2" not in prompts(await session.messages()):  # noqa: ASYNC110 - nobody is told
                    await anyio.sleep(0.5)
            assert [timer.id for timer in await session.timers()] == ["t"]
    finally:
        forget_zones(zones)
    found = (await turns_in(world, "2027-01-18T10:00", 60.0))[0]
    assert found == [*(f"other {number}" for number in range(3)), *(["report"] if missed == "one" else [])]


@pytest.mark.real_time
@pytest.mark.parametrize("kind", ["sqlite", "postgres", "journal in files", "bucket"])
async def test_a_calendar_in_any_place_goes_on_in_the_next_process(kind: str, tmp_path: Path) -> None:
    place: Any = JournalSessions(Memory()) if kind == "bucket" else place_of(kind, tmp_path / "place")
    await set_at(place, "2027-03-26T12:00", "30 2 * * *", missed="all")
    with anyio.fail_after(50):
        async with process_at(place, "2027-03-29T12:00") as runtime:
            session = runtime.agent(clerk()).session("s")
            while len(await session.messages()) < 6:  # noqa: ASYNC110 - nobody is told
                await anyio.sleep(0.1)
            (timer,) = await session.timers()
            for day in ("27T02:30", "28T03:00", "29T02:30"):  # There is no half past two on the twenty-eighth.
                token = f"timer:t:{berlin(f'2027-03-{day}')!r}"
                await session.invoke(idempotency_token=token)
            assert len(await session.messages()) == 6  # Each of the tokens had its turn.
    assert (timer.at, timer.cron, timer.missed) == (berlin("2027-03-30T02:30"), "30 2 * * *", "all")


@pytest.mark.real_time
async def test_a_process_that_is_killed_while_it_makes_up_for_missed_times_leaves_the_others(tmp_path: Path) -> None:
    place, zone = SQLiteSessions(tmp_path / "a.db"), "Asia/Kolkata"
    begin = time.time() - 86_400 * 3 - 120
    async with Runtime(sessions=place, wall=lambda: begin) as runtime:
        session = runtime.agent(clerk()).session("s")
        daily = datetime.fromtimestamp(begin + 90, ZoneInfo(zone)).strftime("%M %H * * *")
        await runtime.schedule(session, "timed", every=daily, tz=zone, missed="all", id="t")
        (timer,) = await session.timers()
    program = Path(__file__).with_name("timing_worker.py")
    command = [sys.executable, str(program), str(tmp_path / "a.db")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)  # noqa: ASYNC220 - killed at a line of it
    assert process.stdout is not None
    assert process.stdout.readline() == "turn\n"
    assert process.stdout.readline() == "turn\n"
    process.send_signal(signal.SIGKILL)
    process.wait(30)
    process.stdout.close()
    with anyio.fail_after(40):
        async with Runtime(sessions=place) as runtime:
            session = runtime.agent(clerk()).session("s")
            while (await session.timers())[0].at < time.time():  # noqa: ASYNC110 - nobody is told
                await anyio.sleep(0.1)
            for day in range(4):
                token = f"timer:t:{timer.at + day * 86_400.0!r}"
                await session.invoke(idempotency_token=token)
            assert prompts(await session.messages()) == ["timed"] * 4
