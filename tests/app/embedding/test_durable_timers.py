"""Timers: a session runs a turn at its time, once, in whatever process has its agent."""

from __future__ import annotations

import copy
import dataclasses
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest

from repertory import (
    Agent,
    AgentSpec,
    BeforeInvocationEvent,
    FileSessions,
    Model,
    Runtime,
    ScriptedModel,
    Sessions,
    SQLiteSessions,
    Timer,
    ToolContext,
    tool,
)
from repertory.backends.tools.function_tool import schema_class
from repertory.core.messages import Message, text_of
from repertory.core.pending_work import CLAIMS_MAX
from repertory.core.turns.due_times import AGAIN_S
from repertory.errors import Invalid, ModelFailed, TooLarge, Unavailable
from tests.operations.operated_places import LOCAL, place_of
from tests.simulation.killed_worlds import World

pytestmark = pytest.mark.anyio

schema_class()  # Loading it uses a thread, which a clock that jumps would pass.

EPOCH = 1_800_000_000.0


def wall() -> float:
    """Epoch seconds that pass as the loop's clock does."""
    return EPOCH + anyio.current_time()


def runtime_on(place: Any, **options: Any) -> Runtime:
    return Runtime(sessions=place, wall=wall, **{"idle_timeout_s": 5.0, **options})


def clerk(reply: object = "done", **more: Any) -> AgentSpec:
    return AgentSpec(name="clerk", model=ScriptedModel([reply], loop=True), **more)


def killed(world: World) -> World:
    """As its process left it when it was killed."""
    world.shelf.alive.clear()
    return world


def prompts(messages: Sequence[Message]) -> list[str]:
    return [text_of(message) for message in messages if message["role"] == "user"]


async def said_later(world: World, spec: AgentSpec, seconds: float) -> list[str]:
    """The prompts of session `s` after a process with this agent has run for a while, and nobody called."""
    async with runtime_on(world) as runtime:
        agent = runtime.agent(spec)
        await anyio.sleep(seconds)
        return prompts(await agent.session("s").messages())


class Remembers(Model):
    """Notes when it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, float]] = []

    async def stream(self, messages: Sequence[Message], *args: Any, **options: Any) -> Any:
        self.asked.append((text_of(messages[-1]), wall()))
        async for event in ScriptedModel(["done"]).stream(messages, *args, **options):
            yield event


@tool
async def remind(text: str, in_s: float, tool_context: ToolContext) -> str:
    """Remind the user."""
    return tool_context.wake_at(prompt=text, in_s=in_s)


def reminding(messages: Sequence[Message], *_: object) -> object:
    """Sets a timer in answer to a person's prompt, and is done then."""
    if "toolResult" in messages[-1]["content"][0] or not text_of(messages[-1]).startswith("please"):
        return "done"
    return [{"toolUse": {"name": "remind", "input": {"text": "call mum", "in_s": 300}}}]


async def test_a_timer_runs_a_turn_at_its_time_in_a_session_that_is_active() -> None:
    model = Remembers()
    async with runtime_on(World(), idle_timeout_s=1e6) as runtime:
        session = runtime.agent(AgentSpec(name="clerk", model=model)).session("s")
        await session.invoke("hello")
        at = wall() + 100
        timer_id = await runtime.schedule(session, "water the plants", at=at)
        assert await session.timers() == [Timer(id=timer_id, at=at, prompt="water the plants")]
        await anyio.sleep(99)
        assert len(model.asked) == 1
        await anyio.sleep(10)
        assert await session.timers() == []
        assert prompts(await session.messages()) == ["hello", "water the plants"]
    _, (_, asked_at) = model.asked
    assert asked_at >= at


async def test_a_timer_runs_a_turn_in_a_session_that_is_at_rest() -> None:
    model = Remembers()
    async with runtime_on(World()) as runtime:
        session = runtime.agent(AgentSpec(name="clerk", model=model)).session("s")
        at = wall() + 100
        await runtime.schedule(session, "water the plants", at=datetime.fromtimestamp(at, UTC))
        await anyio.sleep(120)
        ((_, asked_at),) = model.asked
        assert asked_at >= at
        assert prompts(await session.messages()) == ["water the plants"]


async def test_a_tool_sets_a_timer_that_another_process_fires_after_a_kill() -> None:
    world = World()
    async with runtime_on(world) as runtime:
        agent = runtime.agent(clerk(reminding, tools=[remind]))
        await agent.session("s").invoke("please remind me")
        left = killed(copy.deepcopy(world))
    assert await said_later(left, clerk(), 280) == ["please remind me", ""]
    assert await said_later(left, clerk(), 60) == ["please remind me", "", "call mum"]
    assert await said_later(left, clerk(), 400) == ["please remind me", "", "call mum"]


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


async def test_a_timer_fires_once_after_a_kill_at_any_moment() -> None:
    world = World()
    async with runtime_on(world) as runtime:
        session = runtime.agent(sender(world)).session("s")
        await session.invoke("hello")
        await runtime.schedule(session, "once", in_s=60, id="a")
        await runtime.schedule(session, "often", in_s=30, every=1e6, id="b")
        set_at = len(world.left)
        await anyio.sleep(120)
    moments = [killed(left) for left in world.left[set_at:]]
    assert len(moments) > 5
    for left in moments:
        said = await said_later(left, sender(left), 100)
        assert sorted(filter(None, said)) == ["hello", "often", "once"]
        assert len(left.effects) == 3
        assert [(work.why, work.session_id) for work in left.shelf.pending_work.values()] == [("timer", "s")]


async def test_a_timer_that_was_set_is_there_after_a_kill_at_any_moment_of_its_turn() -> None:
    world = World()
    async with runtime_on(world) as runtime:
        await runtime.agent(clerk(reminding, tools=[remind])).session("s").invoke("please remind me")
    assert len(world.left) > 2
    for left in map(killed, world.left):
        begun = bool(left.shelf.sessions and left.shelf.sessions["s"].journals)
        async with runtime_on(left) as runtime:
            session = runtime.agent(clerk(reminding, tools=[remind], unknown_tool_outcome="retry")).session("s")
            await anyio.sleep(20)
            fired = prompts(await session.messages())[2:]
            assert [*(timer.prompt for timer in await session.timers()), *fired] == ["call mum"] * begun
            await anyio.sleep(400)
            assert prompts(await session.messages())[2:] == ["call mum"] * begun


async def test_a_recurring_timer_keeps_its_times_and_fires_once_for_all_that_it_missed() -> None:
    model, world = Remembers(), World()
    spec = AgentSpec(name="clerk", model=model)
    async with runtime_on(world) as runtime:
        session = runtime.agent(spec).session("s")
        first = wall() + 10
        await runtime.schedule(session, "tick", at=first, every=timedelta(minutes=1), id="t")
        await anyio.sleep(200)
    assert [int((at - first) // 60) for _, at in model.asked] == [0, 1, 2, 3]
    await anyio.sleep(7200)
    model.asked.clear()
    begun = wall()
    async with runtime_on(world) as runtime:
        session = runtime.agent(spec).session("s")
        await anyio.sleep(5)
        (timer,) = await session.timers()
        assert len(model.asked) == 1
        assert begun < timer.at <= begun + 60
        assert (timer.at - first) % 60 == 0
        await anyio.sleep(120)
    assert len(model.asked) == 3


class Slow(Model):
    """Answers after 100 seconds."""

    async def stream(self, messages: Sequence[Message], *args: Any, **options: Any) -> Any:
        await anyio.sleep(100)
        async for event in ScriptedModel(["done"]).stream(messages, *args, **options):
            yield event


@pytest.mark.parametrize("busy", ["queue", "reject", "interrupt", "steer"])
async def test_a_timer_that_is_due_while_a_turn_runs_waits_for_its_end(busy: Any) -> None:
    async with runtime_on(World()) as runtime, anyio.create_task_group() as group:
        session = runtime.agent(AgentSpec(name="clerk", model=Slow(), busy=busy)).session("s")
        group.start_soon(session.invoke, "hello")
        await anyio.sleep(10)
        await runtime.schedule(session, "next", in_s=20)
        await anyio.sleep(80)
        assert prompts(await session.messages()) == ["hello"]
        await anyio.sleep(130)
        assert [message["role"] for message in await session.messages()] == ["user", "assistant"] * 2


async def test_a_timer_that_is_cancelled_or_replaced_while_it_waits_for_a_turn_does_not_fire() -> None:
    async with runtime_on(World()) as runtime, anyio.create_task_group() as group:
        session = runtime.agent(AgentSpec(name="clerk", model=Slow())).session("s")
        group.start_soon(session.invoke, "hello")
        await anyio.sleep(10)
        for timer_id in ("gone", "later"):
            await runtime.schedule(session, timer_id, in_s=20, id=timer_id)
        await anyio.sleep(50)
        assert await session.cancel_timer("gone")
        await runtime.schedule(session, "much later", in_s=400, id="later")
        await anyio.sleep(300)
        assert prompts(await session.messages()) == ["hello"]
        await anyio.sleep(300)
        assert prompts(await session.messages()) == ["hello", "much later"]


async def test_the_same_id_replaces_a_timer_and_a_cancelled_one_never_fires() -> None:
    async with runtime_on(World()) as runtime:
        session = runtime.agent(clerk()).session("s")
        assert await runtime.schedule(session, "first", in_s=60, id="a") == "a"
        await runtime.schedule(session, "second", in_s=120, id="a")
        await runtime.schedule(session, "third", in_s=120, id="b")
        assert [timer.prompt for timer in await session.timers()] == ["second", "third"]
        assert await session.cancel_timer("b")
        assert not await session.cancel_timer("b")
        await anyio.sleep(300)
        assert prompts(await session.messages()) == ["second"]


async def test_one_of_two_processes_fires_a_timer() -> None:
    world, one, two = World(), Remembers(), Remembers()
    async with runtime_on(world) as first, runtime_on(world) as second:
        session = first.agent(AgentSpec(name="clerk", model=one)).session("s")
        second.agent(AgentSpec(name="clerk", model=two))
        await first.schedule(session, "tick", every=50, id="t")
        await anyio.sleep(525)
        asked = [text for text, _ in (*one.asked, *two.asked)]
    assert asked == ["tick"] * 10


async def test_a_turn_that_was_killed_goes_on_before_a_timer_that_is_due() -> None:
    world = World()
    async with runtime_on(world) as runtime, anyio.create_task_group() as group:
        session = runtime.agent(AgentSpec(name="clerk", model=Slow())).session("s")
        await runtime.schedule(session, "timed", in_s=60)
        group.start_soon(session.invoke, "hello")
        await anyio.sleep(30)
        left = killed(copy.deepcopy(world))
        group.cancel_scope.cancel()
    await anyio.sleep(1000)
    async with runtime_on(left) as runtime:
        session = runtime.agent(clerk()).session("s")
        await anyio.sleep(60)
        assert [text_of(message) for message in await session.messages()] == ["hello", "done", "timed", "done"]


async def test_timers_wait_for_the_answer_of_a_person() -> None:
    @tool
    async def send(tool_context: ToolContext) -> str:
        """Send it if a person allows that."""
        return f"sent: {tool_context.interrupt('may I')}"

    def asking(messages: Sequence[Message], *_: object) -> object:
        asked = text_of(messages[-1]) == "send it"
        return [{"toolUse": {"name": "send", "input": {}}}] if asked else "done"

    async with runtime_on(World()) as runtime:
        session = runtime.agent(clerk(asking, tools=[send])).session("s")
        result = await session.invoke("send it")
        await runtime.schedule(session, "timed", in_s=60)
        await anyio.sleep(100)
        assert prompts(await session.messages()) == ["send it"]
        (question,) = result.interrupts
        await session.invoke([{"interruptResponse": {"interruptId": question.id, "response": "yes"}}])
        await anyio.sleep(10)
        assert prompts(await session.messages()) == ["send it", "", "timed"]


async def test_a_timer_that_waited_behind_a_turn_which_asks_a_person_fires_when_that_is_answered() -> None:
    @tool(idempotent=True)
    async def confirm(tool_context: ToolContext) -> str:
        """Ask."""
        await anyio.sleep(60)
        return str(tool_context.interrupt("sure"))

    def reply(messages: Sequence[Message], *_: object) -> object:
        asks = text_of(messages[-1]) == "confirm"
        return {"toolUse": {"name": "confirm", "input": {}}} if asks else "done"

    async with runtime_on(World(), idle_timeout_s=1e6) as runtime:
        session = runtime.agent(clerk(reply, tools=[confirm])).session("s")
        timer = await runtime.schedule(session, "water the plants", at=wall() + 10)
        (asked,) = (await session.invoke("confirm")).interrupts
        await anyio.sleep(2 * AGAIN_S)
        assert [each.id for each in await session.timers()] == [timer]
        await session.invoke([{"interruptResponse": {"interruptId": asked.id, "response": "yes"}}])
        await anyio.sleep(2 * AGAIN_S)
        assert await session.timers() == []
        assert prompts(await session.messages()) == ["confirm", "", "water the plants"]


async def test_a_timer_whose_model_cannot_be_reached_is_tried_again_with_one_prompt() -> None:
    failures = 3

    def failing(*_: object) -> object:
        nonlocal failures
        failures -= 1
        return Unavailable("the model is away") if failures >= 0 else "done"

    async with runtime_on(World()) as runtime:
        session = runtime.agent(clerk(failing, retry_strategy=None)).session("s")
        await runtime.schedule(session, "timed", in_s=60)
        await anyio.sleep(65)
        assert failures == 2
        await anyio.sleep(20 * AGAIN_S)
        assert [text_of(message) for message in await session.messages()] == ["timed", "done"]


async def test_a_timer_whose_turn_fails_for_good_is_over_and_a_recurring_one_goes_on() -> None:
    model = ScriptedModel([ModelFailed("no")], loop=True)
    async with runtime_on(World()) as runtime:
        session = runtime.agent(AgentSpec(name="clerk", model=model, retry_strategy=None)).session("s")
        await runtime.schedule(session, "once", in_s=60)
        await anyio.sleep(500)
        assert (len(model.calls), await session.timers()) == (1, [])
        await runtime.schedule(session, "often", every=100, id="often")
        await anyio.sleep(310)
        assert (len(model.calls), [timer.id for timer in await session.timers()]) == (4, ["often"])


async def test_a_hook_that_refuses_ends_a_timer_though_nothing_is_recorded() -> None:
    calls = Counter[str]()

    def refuse(event: BeforeInvocationEvent) -> None:
        calls["refused"] += 1
        event.cancel = "not now"

    async with runtime_on(World()) as runtime:
        session = runtime.agent(clerk(hooks=[refuse])).session("s")
        await runtime.schedule(session, "once", in_s=60)
        await anyio.sleep(500)
        assert (calls["refused"], await session.timers()) == (1, [])


async def test_a_timer_of_a_session_that_never_rests_is_not_parked() -> None:
    world = World()
    async with runtime_on(world, idle_timeout_s=1e6) as runtime:
        session = runtime.agent(clerk()).session("s")
        await runtime.schedule(session, "tick", every=60, id="t")
        await anyio.sleep(60 * 2 * CLAIMS_MAX + 30)
        (work,) = world.shelf.pending_work.values()
        assert (work.why, work.claims) == ("timer", 0)
        left = killed(copy.deepcopy(world))
    said = await said_later(left, clerk(), 60)
    assert said.count("tick") == 2 * CLAIMS_MAX + 1


async def test_a_turn_of_a_timer_outlasts_the_idle_time_of_its_session() -> None:
    async with runtime_on(World()) as runtime:
        session = runtime.agent(AgentSpec(name="clerk", model=Slow())).session("s")
        await runtime.schedule(session, "slow", in_s=60)
        await anyio.sleep(200)
        assert [text_of(message) for message in await session.messages()] == ["slow", "done"]


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"prompt": "", "in_s": 1}, "prompt"),
        ({"prompt": 5, "in_s": 1}, "prompt"),
        ({"prompt": "hi"}, "when"),
        ({"prompt": "hi", "in_s": -1}, "in_s"),
        ({"prompt": "hi", "in_s": float("nan")}, "in_s"),
        ({"prompt": "hi", "in_s": True}, "in_s"),
        ({"prompt": "hi", "at": "tomorrow"}, "at"),
        ({"prompt": "hi", "at": datetime(2027, 1, 1)}, "time zone"),
        ({"prompt": "hi", "at": 1e15}, "years"),
        ({"prompt": "hi", "at": 5.0, "in_s": 5.0}, "both"),
        ({"prompt": "hi", "every": 0.01}, "period"),
        ({"prompt": "hi", "every": "daily"}, "every"),
        ({"prompt": "hi", "in_s": 1, "id": "a/b"}, "timer id"),
        ({"prompt": "hi", "in_s": 1, "id": 5}, "timer id"),
        ({"prompt": "\ud83d", "in_s": 1}, "surrogates"),
    ],
)
async def test_a_timer_that_makes_no_sense_is_refused(wrong: dict[str, Any], why: str) -> None:
    async with runtime_on(World()) as runtime:
        session = runtime.agent(clerk()).session("s")
        with pytest.raises(Invalid, match=why):
            await runtime.schedule(session, **wrong)
        assert await session.timers() == []


async def test_a_prompt_above_its_bound_is_refused() -> None:
    async with runtime_on(World()) as runtime:
        session = runtime.agent(clerk(limits={"prompt_bytes": 1000})).session("s")
        with pytest.raises(TooLarge, match="prompt_bytes"):
            await runtime.schedule(session, "x" * 2000, in_s=10)
        await runtime.schedule(session, "x" * 500, in_s=10)


async def test_what_is_no_session_of_the_runtime_is_refused() -> None:
    async with runtime_on(World()) as one, runtime_on(World()) as two:
        for wrong in (two.agent(clerk()).session("s"), "s", None):
            with pytest.raises(Invalid, match="session of this runtime"):
                await one.schedule(wrong, "hi", in_s=1)  # type: ignore[arg-type]


@pytest.mark.real_time
async def test_where_nobody_wakes_a_session_a_timer_is_refused(tmp_path: Path) -> None:
    outcomes: list[str] = []

    @tool
    async def remind_me(tool_context: ToolContext) -> str:
        """Remind the user."""
        try:
            return tool_context.wake_at(prompt="hi", in_s=1)
        except Invalid as error:
            outcomes.append(str(error))
            raise

    def model() -> ScriptedModel:
        return ScriptedModel([[{"toolUse": {"name": "remind_me", "input": {}}}], "done"])

    await Agent(model=model(), tools=[remind_me], callback_handler=None).invoke_async("hi")
    async with Runtime(wall=wall) as runtime:
        session = runtime.agent(AgentSpec(model=model(), tools=[remind_me])).session("s")
        await session.invoke("hi")
        with pytest.raises(Invalid, match="only a Runtime wakes sessions"):
            await runtime.schedule(session, "hi", in_s=1)
    async with Runtime(sessions=FileSessions(tmp_path), wall=wall) as runtime:
        session = runtime.agent(AgentSpec(model=model(), tools=[remind_me])).session("s")
        await session.invoke("hi")
        with pytest.raises(Invalid, match="only a Runtime wakes sessions"):
            await runtime.schedule(session, "hi", in_s=1)
    assert len(outcomes) == 3
    assert all("only a Runtime wakes sessions" in text for text in outcomes)


@pytest.mark.real_time
async def test_a_fork_has_no_timers_and_a_rewind_an_export_and_a_copy_keep_them(tmp_path: Path) -> None:
    place, other = SQLiteSessions(tmp_path / "a.db"), SQLiteSessions(tmp_path / "b.db")
    async with Runtime(sessions=place) as runtime:
        session = runtime.agent(clerk()).session("s")
        await session.invoke("hello")
        await runtime.schedule(session, "later", in_s=1e6, id="t")
        await session.invoke("how are you")
        timers = await session.timers()
    sessions = Sessions(place)
    await sessions.fork("s", "forked")
    await sessions.export("s", tmp_path / "s.jsonl")
    await Sessions(other).import_(tmp_path / "s.jsonl", session_id="imported")
    await sessions.copy("s", other, new_id="copied")
    await sessions.rewind("s", 2)
    found: dict[str, list[Timer]] = {}
    for where, names in ((place, ("s", "forked")), (other, ("imported", "copied"))):
        async with Runtime(sessions=where) as runtime:
            agent = runtime.agent(clerk())
            found |= {name: await agent.session(name).timers() for name in names}
    assert found == {"s": timers, "forked": [], "imported": timers, "copied": timers}


@pytest.mark.real_time
async def test_the_timer_of_an_imported_session_fires_though_nobody_opens_it(tmp_path: Path) -> None:
    place, other = SQLiteSessions(tmp_path / "a.db"), SQLiteSessions(tmp_path / "b.db")
    async with Runtime(sessions=place) as runtime:
        await runtime.schedule(runtime.agent(clerk()).session("s"), "now", in_s=0.5)
        async with Runtime(sessions=other, wakes_max=0):
            pass
        await Sessions(place).export("s", tmp_path / "s.jsonl")
    await Sessions(other).import_(tmp_path / "s.jsonl")
    assert [work.why for work in await Sessions(other).pending_work()] == ["timer"]
    async with Runtime(sessions=other) as runtime:
        session = runtime.agent(clerk()).session("s")
        with anyio.fail_after(20):
            while await Sessions(other).pending_work():  # noqa: ASYNC110 - another process's state
                await anyio.sleep(0.1)
        assert prompts(await session.messages()) == ["now"]


@pytest.mark.real_time
@pytest.mark.parametrize("kind", LOCAL)
async def test_any_place_keeps_the_timers_of_a_session_that_is_brought_there(kind: str, tmp_path: Path) -> None:
    place, other = SQLiteSessions(tmp_path / "a.db"), place_of(kind, tmp_path / "other")
    async with Runtime(sessions=place) as runtime:
        session = runtime.agent(clerk()).session("s")
        await session.invoke("hello")
        await runtime.schedule(session, "call Barbara Streisand", in_s=1e6, every=60, id="t")
        await session.invoke("how are you")
        (timer,) = await session.timers()
    await Sessions(place).copy("s", other)
    async with Runtime(sessions=other) as runtime:
        there = runtime.agent(clerk()).session("s")
        await there.invoke("and now")
        assert await there.timers() == [timer]
    sessions = Sessions(other)
    await sessions.fork("s", "forked")
    await sessions.redact_text("s", "Barbara Streisand", "somebody")
    await sessions.rewind("s", 2)
    assert (await sessions.doctor()).ok
    await sessions.export("s", tmp_path / "s.jsonl")
    await Sessions(place).import_(tmp_path / "s.jsonl", session_id="back")
    assert [(work.session_id, work.at, work.why) for work in await Sessions(place).pending_work()] == [
        ("back", timer.at, "timer"),
        ("s", timer.at, "timer"),
    ]
    async with Runtime(sessions=other) as runtime:
        assert await runtime.agent(clerk()).session("forked").timers() == []
    async with Runtime(sessions=place) as runtime:
        (back,) = await runtime.agent(clerk()).session("back").timers()
    assert back == dataclasses.replace(timer, prompt="call somebody")


@pytest.mark.parametrize("drain_s", [60.0, 4.0])
async def test_a_drain_waits_for_the_turn_of_a_timer_and_leaves_one_that_it_cuts_short_owed(drain_s: float) -> None:
    world = World()
    spec = AgentSpec(name="clerk", model=ScriptedModel(["done"], delay_s=5.0))
    async with runtime_on(world, drain_timeout_s=drain_s) as runtime:
        await runtime.schedule(runtime.agent(spec).session("s"), "timed", in_s=10)
        await anyio.sleep(12)
    assert [work.why for work in world.shelf.pending_work.values()] == ([] if drain_s == 60.0 else ["turn"])
    async with runtime_on(world) as runtime:
        session = runtime.agent(clerk("went on")).session("s")
        await anyio.sleep(20)
        said = [text_of(message) for message in await session.messages()]
    assert said == ["timed", "done" if drain_s == 60.0 else "went on"]
    assert world.shelf.pending_work == {}


def stored_in(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.glob("a.db*") if path.is_file())


@pytest.mark.real_time
async def test_a_text_is_redacted_in_the_prompt_of_a_timer(tmp_path: Path) -> None:
    place = SQLiteSessions(tmp_path / "a.db")
    async with Runtime(sessions=place) as runtime:
        session = runtime.agent(clerk()).session("s")
        await runtime.schedule(session, "call Barbara Streisand", in_s=1e6, id="t")
        await session.invoke("hello")
    await Sessions(place).redact_text("s", "Barbara Streisand", "somebody")
    async with Runtime(sessions=place) as runtime:
        (timer,) = await runtime.agent(clerk()).session("s").timers()
    assert timer.prompt == "call somebody"
    assert b"Streisand" not in stored_in(tmp_path)


@pytest.mark.real_time
async def test_the_timeline_tells_which_timers_were_set_and_cancelled(tmp_path: Path) -> None:
    place = SQLiteSessions(tmp_path / "a.db")
    async with Runtime(sessions=place) as runtime:
        session = runtime.agent(clerk()).session("s")
        await runtime.schedule(session, "later", in_s=1e6, id="one")
        await runtime.schedule(session, "later", in_s=1e6, id="two")
        await session.cancel_timer("one")
        await runtime.schedule(session, "now", in_s=0, id="three")
        with anyio.fail_after(20):
            while not await session.messages():  # noqa: ASYNC110 - nobody is told
                await anyio.sleep(0.01)
    entries = (await Sessions(place).history("s")).happenings
    assert [(entry.what, entry.text) for entry in entries] == [
        ("timer", "one set"),
        ("timer", "two set"),
        ("timer", "one cancelled"),
        ("timer", "three set"),
        ("turn", "now"),
    ]


@pytest.mark.real_time
async def test_the_timer_of_a_killed_process_fires_in_one_of_two_others(tmp_path: Path) -> None:
    program, at = Path(__file__).with_name("timing_worker.py"), time.time() + 5
    command = [sys.executable, str(program), str(tmp_path / "a.db"), str(at)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)  # noqa: ASYNC220 - killed at its first line
    assert process.stdout is not None
    assert process.stdout.readline() == "set\n"
    process.send_signal(signal.SIGKILL)
    process.wait(30)
    process.stdout.close()
    places = [SQLiteSessions(tmp_path / "a.db") for _ in range(2)]
    models = [ScriptedModel(["done"]) for _ in places]
    with anyio.fail_after(40):
        async with Runtime(sessions=places[0]) as one, Runtime(sessions=places[1]) as two:
            one.agent(AgentSpec(name="clerk", model=models[0]))
            two.agent(AgentSpec(name="clerk", model=models[1]))
            while await Sessions(places[0]).pending_work():  # noqa: ASYNC110 - another process's state
                await anyio.sleep(0.1)
    assert time.time() >= at
    assert sorted(len(model.calls) for model in models) == [0, 1]
