"""Calls and timers that are put down beside a session without building its agent, also for graphs and swarms."""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest

from repertory import (
    Agent,
    AgentSpec,
    FileSessions,
    Graph,
    Model,
    OrchestratorSession,
    Runtime,
    ScriptedModel,
    Sessions,
    SQLiteSessions,
    Status,
    Swarm,
    ToolContext,
    tool,
)
from repertory.app.orchestration.orchestrator import Orchestrator
from repertory.backends.tools.function_tool import schema_class
from repertory.console.main import main
from repertory.core.messages import Message, text_of
from repertory.errors import Invalid, ModelFailed, NotFound, TooLarge, Unavailable
from tests.simulation.killed_worlds import World

pytestmark = pytest.mark.anyio
schema_class()  # Loading it uses a thread, which a clock that jumps would pass.

EPOCH = 1_800_000_000.0
CLERK = AgentSpec(name="clerk", model=ScriptedModel(["done"], loop=True))


def wall() -> float:
    """Epoch seconds that pass as the loop's clock does."""
    return EPOCH + anyio.current_time()


def runtime_on(place: Any) -> Runtime:
    return Runtime(sessions=place, wall=wall, idle_timeout_s=5.0)


def sessions_of(world: World) -> Sessions:
    return Sessions(world, wall=wall)


def worker(world: World, name: str, reply: Any = None) -> Agent:
    def noting(messages: Sequence[Message], *_: object) -> str:
        world.effect(f"{name}: {text_of(messages[-1])}")
        return "done"

    model = reply if isinstance(reply, Model) else ScriptedModel([reply or noting], loop=True)
    return Agent(model, name=name, callback_handler=None, retry_strategy=None)


def graph(world: World, *replies: object) -> Graph:
    return Graph({"first": worker(world, "first"), "second": worker(world, "second", *replies)}, id="team")


def swarm(world: World) -> Swarm:
    return Swarm([worker(world, "only")], id="team")


async def left_to(world: World, make: Any, seconds: float) -> World:
    """The world after a process with this orchestrator has run for a while, and nobody called."""
    async with runtime_on(world) as runtime:
        runtime.orchestrator("team", lambda _: make(world))
        await anyio.sleep(seconds)
    return world


def done_by(world: World, node: str) -> list[str]:
    """The tasks that a node has worked on."""
    return sorted(key.removeprefix(f"{node}: ") for key in world.effects.elements() if key.startswith(f"{node}: "))


def session_of(runtime: Runtime, world: World, make: Any = graph) -> OrchestratorSession[Any]:
    def made(_: str) -> Orchestrator[Any]:
        return make(world)

    return runtime.orchestrator("team", made).session("s")


async def test_a_turn_is_posted_and_scheduled_by_names_alone_and_the_next_process_does_it() -> None:
    world = World()
    sessions = sessions_of(world)
    assert await sessions.post("clerk", "s", "one", token="t1") == "t1"
    await sessions.post("clerk", "s", "one", token="t1")
    assert await sessions.schedule("clerk", "s", "two", in_s=60.0, id="later") == "later"
    await sessions.schedule("clerk", "s", "two, in other words", in_s=60.0, id="later")
    with pytest.raises(Invalid):
        await sessions.schedule("clerk", "s", "never")
    async with runtime_on(world) as runtime:
        session = runtime.agent(CLERK).session("s")
        await anyio.sleep(5)
        assert [timer.prompt for timer in await session.timers()] == ["two, in other words"]
        assert (await session.invoke(idempotency_token="t1")).replayed
        await anyio.sleep(100)
        said = [text_of(message) for message in await session.messages()]
        assert said == ["one", "done", "two, in other words", "done"]
    assert (await sessions.cluster()).calls == []


async def test_an_answer_to_a_question_of_the_list_is_posted_and_the_next_process_goes_on() -> None:
    @tool
    async def pay(tool_context: ToolContext) -> str:
        """Pay."""
        return f"paid: {tool_context.interrupt('approve')}"

    world, use = World(), {"toolUse": {"name": "pay", "input": {}}}
    sessions = sessions_of(world)
    async with runtime_on(world) as runtime:
        spec = AgentSpec(name="clerk", model=ScriptedModel([use]), tools=[pay])
        await runtime.agent(spec).session("s").invoke("pay")
    (asked,) = (await sessions.interrupts()).questions
    await sessions.post(asked.agent, asked.session_id, [asked.interrupt.respond("yes")])
    async with runtime_on(world) as runtime:
        session = runtime.agent(AgentSpec(name="clerk", model=ScriptedModel(["done"]), tools=[pay])).session("s")
        await anyio.sleep(5)
        assert text_of((await session.messages())[-1]) == "done"
    assert (await sessions.interrupts()).questions == []


async def test_what_cannot_be_posted_is_refused_at_once(tmp_path: Path) -> None:
    sessions = sessions_of(World())
    for agent, session_id, prompt in (("a/b", "s", "x"), ("a", "", "x"), ("a", "s", object())):
        with pytest.raises(Invalid):
            await sessions.post(agent, session_id, prompt)  # type: ignore[arg-type]
    with pytest.raises(TooLarge):
        await sessions.post("a", "s", "x" * 100_000_000)
    with pytest.raises(Invalid, match="SQLite or in PostgreSQL"):
        await Sessions(FileSessions(tmp_path)).post("a", "s", "x")


@pytest.mark.parametrize("make", [graph, swarm])
async def test_a_run_is_posted_by_names_or_by_its_session_and_its_result_is_waited_for(make: Any) -> None:
    world = World()
    await sessions_of(world).post("team", "s", "one", token="t1")
    async with runtime_on(world) as runtime:
        session = session_of(runtime, world, make)
        assert await session.post("two", token="t2") == "t2"
        assert await session.posted("t2") is not None
        result = await session.invoke(idempotency_token="t2")
        assert (result.status, result.run) == (Status.COMPLETED, 2)
        assert (await session.invoke(idempotency_token="t1")).run == 1
        assert await session.posted("t2") is None
        with pytest.raises(NotFound):
            await session.invoke(idempotency_token="nobody's")


async def test_a_run_that_fails_for_good_is_parked_with_why() -> None:
    world = World()
    async with runtime_on(world) as runtime:
        session = session_of(runtime, world, lambda left: graph(left, ModelFailed("no")))
        await session.post("one", token="t1")
        await anyio.sleep(5)
        posted = await session.posted("t1")
        assert posted is not None
        assert posted.parked


async def test_a_timer_begins_a_run_at_its_time_and_again() -> None:
    world = World()
    async with runtime_on(world) as runtime:
        session = session_of(runtime, world)
        await runtime.schedule(session, "news", in_s=100.0, every=100.0, id="daily")
        await runtime.schedule(session, "once", in_s=150.0)
        await anyio.sleep(310)
        assert done_by(world, "first") == ["news", "news", "news", "once"]
        assert [timer.id for timer in await session.timers()] == ["daily"]
        assert await session.cancel_timer("daily")
        assert not await session.cancel_timer("daily")
    assert world.shelf.pending_work == {}


async def test_a_timer_of_a_run_fires_once_whenever_its_processes_are_killed() -> None:
    world = World()
    async with runtime_on(world) as runtime:
        await runtime.schedule(session_of(runtime, world), "news", in_s=10.0)
        world.left.clear()
        await anyio.sleep(60)
    assert len(done_by(world, "second")) == 1
    for left in world.left:
        left.shelf.alive.clear()
        await left_to(left, graph, 200.0)
        assert left.shelf.pending_work == {}
        # The model of a node is asked again if it was killed before its answer was stored.
        assert {len(set(done_by(left, node))) for node in ("first", "second")} == {1}
        async with runtime_on(left) as runtime:
            history = await Sessions(left, wall=wall).show("s", agent="team.second")
            assert [each.message["role"] for each in history.agents["team.second"].messages] == ["user", "assistant"]
            assert await session_of(runtime, left).timers() == []


async def test_a_timer_gives_up_a_run_that_was_left_unfinished_but_waits_for_one_that_asks_a_person() -> None:
    world = World()

    @tool(idempotent=True)
    async def send(tool_context: ToolContext) -> str:
        """Send if a person allows it."""
        return f"sent: {tool_context.interrupt('may I')}"

    def asking(left: World) -> Graph:
        replies = [{"toolUse": {"name": "send", "input": {}}}, "sent", "done"]
        return Graph(
            {"asks": Agent(ScriptedModel(replies), tools=[send], name="asks", callback_handler=None)}, id="team"
        )

    async with runtime_on(world) as runtime:
        session = session_of(runtime, world, asking)
        asked = await session.invoke("ask")
        await runtime.schedule(session, "news", in_s=10.0)
        await anyio.sleep(60)
        assert len(await session.timers()) == 1
        answer: Any = [{"interruptResponse": {"interruptId": asked.interrupts[0].id, "response": "yes"}}]
        assert (await session.invoke(answer)).status is Status.COMPLETED
        await anyio.sleep(60)
        assert await session.timers() == []

    class Slow(Model):
        async def stream(self, messages: Sequence[Message], *_: Any, **__: Any) -> AsyncIterator[Any]:
            await anyio.sleep(3600)
            yield {}

    other = World()
    async with runtime_on(other) as runtime:
        left = await session_of(runtime, other, lambda each: graph(each, Slow())).invoke("old", timeout_s=5.0)
        assert left.reason == "limit_time"
    async with runtime_on(other) as runtime:
        session = session_of(runtime, other)
        await runtime.schedule(session, "news", in_s=10.0)
        await anyio.sleep(60)
        assert done_by(other, "first") == ["news", "old"]
        assert (await session.invoke("next")).run == 3


async def test_a_run_of_a_timer_is_tried_again_after_an_error_that_may_pass() -> None:
    world = World()
    async with runtime_on(world) as runtime:
        session = session_of(runtime, world, lambda left: graph(left, Unavailable("the model is away")))
        await runtime.schedule(session, "news", in_s=10.0)
        await anyio.sleep(20)
        left = copy.deepcopy(world)
    left.shelf.alive.clear()
    await left_to(left, graph, 200.0)
    assert done_by(left, "first") == ["news"]
    assert len(done_by(left, "second")) == 1


@pytest.mark.real_time
def test_the_command_posts_and_schedules(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = str(tmp_path / "agents.db")
    to = ["post", "--at", place, "--agent", "clerk", "--session", "s"]
    assert main([*to, "--token", "t1", "--deliver-to", "crm", "hello"]) == 0
    assert main([*to, "--in", "0.1", "--timer", "soon", "--deliver-to", "crm", "again"]) == 0
    weekdays = ["--every", "0 8 * * 1-5", "--tz", "Europe/Berlin", "--missed", "none", "--timer", "report"]
    assert main([*to, *weekdays, "report"]) == 0
    assert capsys.readouterr().out.split() == ["t1", "soon", "report"]
    for wrong in (["--timer", "soon"], ["--token", "t", "--in", "5"]):
        assert main([*to, *wrong, "hello"]) == 2
    assert "a timer has --timer" in capsys.readouterr().err
    for wrong in (["--every", "0 0 30 2 *"], ["--every", "0 8 * * *", "--tz", "Mars"], ["--tz", "Europe/Berlin"]):
        assert main([*to, *wrong, "hello"]) == 2
        assert "hello" not in capsys.readouterr().out

    told: list[str] = []

    async def done() -> list[str]:
        async with Runtime(sessions=SQLiteSessions(place)) as runtime:
            runtime.deliver(lambda event: told.append(event.type), on=[], name="crm")
            session = runtime.agent(CLERK).session("s")
            for _ in range(400):
                if len(await session.messages()) == 4 and [one.id for one in await session.timers()] == ["report"]:
                    break
                await anyio.sleep(0.05)
            (timer,) = await session.timers()
            assert (timer.cron, timer.tz, timer.missed) == ("0 8 * * 1-5", "Europe/Berlin", "none")
            return [text_of(message) for message in await session.messages()]

    assert anyio.run(done) == ["hello", "done", "again", "done"]
    assert told == ["answer", "timer", "answer"]
