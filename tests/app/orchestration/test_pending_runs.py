"""What graphs and swarms of a runtime owe is done even if nobody calls: runs of killed processes, and questions that
nobody answered in time.
"""

from __future__ import annotations

import copy
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Any

import anyio
import pytest

from repertory import (
    Agent,
    Graph,
    GraphBuilder,
    Model,
    MultiAgentResult,
    OrchestratorSession,
    Runtime,
    ScriptedModel,
    Sessions,
    SQLiteSessionManager,
    SQLiteSessions,
    Status,
    Swarm,
    ToolContext,
    tool,
)
from repertory.app.orchestration.orchestrator import Orchestrator
from repertory.backends.tools.function_tool import schema_class
from repertory.core.messages import Message
from repertory.core.pending_work import CLAIMS_MAX
from repertory.core.turns.turn_start import EXPIRED_TEXT
from repertory.errors import HookFailed, Invalid, ModelFailed, NodeFailed, RepertoryError, RunUnfinished, Unavailable
from tests.simulation.killed_worlds import World, killed

pytestmark = pytest.mark.anyio
schema_class()  # Loading it uses a thread, which a clock that jumps would pass.

TASK = "Build the shed"
Make = Callable[[World], Orchestrator[Any]]


def worker(world: World, name: str, reply: object = None, *, handing: str | None = None) -> Agent:
    """Does one thing outside, says so, and may hand over in between."""

    @tool(name="work", idempotent=True)
    async def work(tool_context: ToolContext) -> str:
        """Do it."""
        world.effect(f"{name} {tool_context.idempotency_key}")
        return "done"

    def working(messages: Sequence[Message], *_: object) -> Any:
        results = [block for message in messages for block in message["content"] if "toolResult" in block]
        if not results:
            return {"toolUse": {"name": "work", "input": {}}}
        if len(results) == 1 and handing is not None:
            return {"toolUse": {"name": "handoff_to_agent", "input": {"agent_name": handing, "message": "go on"}}}
        return f"{name} has worked"

    model = reply if isinstance(reply, Model) else ScriptedModel([reply or working], loop=True)
    return Agent(model, tools=[work], name=name, callback_handler=None, retry_strategy=None)


def diamond(world: World) -> Graph:
    builder = GraphBuilder().set_graph_id("team")
    for name in ("root", "left", "right", "join"):
        builder.add_node(worker(world, name), name)
    for source, target in (("root", "left"), ("root", "right"), ("left", "join"), ("right", "join")):
        builder.add_edge(source, target)
    return builder.build()


def swarm(world: World) -> Swarm:
    agents = [worker(world, "a", handing="b"), worker(world, "b", handing="c"), worker(world, "c")]
    return Swarm(agents, id="team")


def nested(world: World) -> Graph:
    """A swarm and a graph as nodes of a graph."""
    inner = Graph({"one": worker(world, "one"), "two": worker(world, "two")}, id="inner")
    others = Swarm([worker(world, "a", handing="b"), worker(world, "b")], id="others")
    return Graph({"inner": inner, "others": others, "last": worker(world, "last")}, id="team")


def row(world: World, *replies: object) -> Graph:
    """Two nodes, one after the other, the second of which answers so."""
    return Graph({"first": worker(world, "first"), "second": worker(world, "second", *replies)}, id="team")


async def woken(world: World, make: Make, seconds: float = 60.0) -> World:
    """What a process with this orchestrator leaves when it has run for a while, and nobody called."""
    async with Runtime(sessions=world, idle_timeout_s=5.0) as runtime:
        runtime.orchestrator("team", lambda _: make(world))
        await anyio.sleep(seconds)
    return world


async def result_of(world: World, make: Make = diamond) -> MultiAgentResult:
    """The result of the run in session `s`, which must be over."""
    async with Runtime(sessions=world, wakes_max=0) as runtime:
        session = runtime.orchestrator("team", lambda _: make(world)).session("s")
        result = await session.invoke(TASK, idempotency_token="the run")
    assert result.replayed
    return result


async def test_a_run_that_was_killed_goes_on_though_somebody_looks_at_its_session_all_the_time() -> None:
    world = World()
    async with Runtime(sessions=world) as runtime:
        await runtime.orchestrator("team", lambda _: row(world)).session("s").invoke(TASK, idempotency_token="the run")
    owing = 0
    for left in map(killed, world.left):
        if not left.shelf.pending_work:
            continue
        owing += 1
        async with Runtime(sessions=left) as runtime:
            session = runtime.orchestrator("team", lambda _, left=left: row(left)).session("s")
            for _ in range(100):
                assert await session.interrupts() == []
                await anyio.sleep(0.2)
        assert left.shelf.pending_work == {}
        assert (await result_of(left, row)).status is Status.COMPLETED
    assert owing


@pytest.mark.parametrize(("make", "workers"), [(diamond, 4), (swarm, 3), (nested, 5)])
async def test_a_run_that_was_killed_at_any_moment_is_finished_though_nobody_calls(make: Make, workers: int) -> None:
    world = World()
    async with Runtime(sessions=world) as runtime:
        session = runtime.orchestrator("team", lambda _: make(world)).session("s")
        whole = await session.invoke(TASK, idempotency_token="the run")
    assert (whole.status, len(world.effects), world.shelf.pending_work) == (Status.COMPLETED, workers, {})
    owing = 0
    for left in map(killed, world.left):
        pending_work = bool(left.shelf.pending_work)
        owing += pending_work
        await woken(left, make)
        assert left.shelf.pending_work == {}
        assert len(left.effects) in (0, workers)
        if pending_work:
            assert said(await result_of(left, make)) == said(whole)
    assert owing > 2 * workers


def said(result: MultiAgentResult) -> list[str]:
    """What the nodes said. Those that run at the same time end in any order."""
    return sorted(str(result).splitlines())


async def test_the_processes_that_go_on_with_a_run_may_be_killed_too(rng: random.Random) -> None:
    world = World()
    async with Runtime(sessions=world) as runtime:
        session = runtime.orchestrator("team", lambda _: nested(world)).session("s")
        await session.invoke(TASK, idempotency_token="the run")
    for _ in range(CLAIMS_MAX):
        owing = [left for left in world.left if left.shelf.pending_work]
        if not owing:
            break
        world = await woken(killed(rng.choice(owing)), nested)
        assert (len(world.effects), world.shelf.pending_work) == (5, {})
    assert (await result_of(world, nested)).status is Status.COMPLETED


class Slow(Model):
    """Answers after an hour."""

    async def stream(self, messages: Sequence[Message], *_: Any, **__: Any) -> Any:
        await anyio.sleep(3600)
        yield {}


def slow(world: World) -> Graph:
    return row(world, Slow())


def steady(world: World) -> Graph:
    return row(world)


async def begun(world: World, *, started: bool = False) -> World:
    """The world of a process that was killed in the middle of a run. `started`: of a call of the graph itself."""
    async with Runtime(sessions=world) as runtime, anyio.create_task_group() as group:
        session = runtime.orchestrator("team", lambda _: slow(world)).session("s")
        call = session.orchestrator.invoke_async if started else session.invoke
        group.start_soon(lambda: call(TASK, idempotency_token="the run"))
        await anyio.sleep(10)
        left = copy.deepcopy(world)
        group.cancel_scope.cancel()
    return killed(left)


async def test_a_run_whose_caller_was_told_an_error_is_not_gone_on_with() -> None:
    world = World()
    async with Runtime(sessions=world) as runtime:
        session = runtime.orchestrator("team", lambda _: row(world, ModelFailed("no"))).session("s")
        with pytest.raises(NodeFailed):
            await session.invoke(TASK)
        await anyio.sleep(1)
        left = killed(copy.deepcopy(world))
    assert left.shelf.pending_work == {}
    assert len((await woken(left, steady)).effects) == 1


@pytest.mark.parametrize("timeout_s", [5.0, None])
async def test_a_run_that_its_caller_has_left_or_got_back_is_not_gone_on_with(timeout_s: float | None) -> None:
    world = World()
    async with Runtime(sessions=world) as runtime:
        session = runtime.orchestrator("team", lambda _: slow(world)).session("s")
        with anyio.move_on_after(10):
            result = await session.invoke(TASK, timeout_s=timeout_s)
            assert result.reason == "limit_time"
        await anyio.sleep(1)
        assert world.shelf.pending_work == {}
        assert session.orchestrator.state.status is Status.INTERRUPTED


async def test_a_run_that_is_gone_on_with_by_a_caller_is_owed_again() -> None:
    world = World()
    async with Runtime(sessions=world) as runtime:
        session = runtime.orchestrator("team", lambda _: slow(world)).session("s")
        await session.invoke(TASK, timeout_s=5.0, idempotency_token="the run")
        async with anyio.create_task_group() as group:
            group.start_soon(session.invoke)
            await anyio.sleep(10)
            left = killed(copy.deepcopy(world))
            group.cancel_scope.cancel()
    assert (await result_of(await woken(left, steady), steady)).status is Status.COMPLETED


async def test_a_call_that_is_refused_leaves_the_run_owed() -> None:
    world = await begun(World())
    async with Runtime(sessions=world, wakes_max=0) as runtime:
        session = runtime.orchestrator("team", lambda _: steady(world)).session("s")
        with pytest.raises(RunUnfinished):
            await session.invoke("Build a boat")
    assert (await result_of(await woken(world, steady), steady)).status is Status.COMPLETED


async def test_a_run_that_was_begun_by_the_graph_of_a_session_is_owed_too() -> None:
    world = await begun(World(), started=True)
    assert (await result_of(await woken(world, steady), steady)).status is Status.COMPLETED


async def test_a_run_that_a_drain_cuts_short_is_finished_by_the_next_process() -> None:
    world = World()
    async with anyio.create_task_group() as group:
        runtime = await Runtime(sessions=world, drain_timeout_s=4.0).__aenter__()

        async def call() -> None:
            session = runtime.orchestrator("team", lambda _: slow(world)).session("s")
            with suppress(RepertoryError):
                await session.invoke(TASK, idempotency_token="the run")

        group.start_soon(call)
        await anyio.sleep(1)
        await runtime.__aexit__(None, None, None)
    assert (await result_of(await woken(killed(world), steady), steady)).status is Status.COMPLETED


async def test_a_run_is_tried_again_when_a_model_of_it_cannot_be_reached() -> None:
    world = await begun(World())
    async with Runtime(sessions=world, idle_timeout_s=5.0) as runtime:
        runtime.orchestrator("team", lambda _: row(world, Unavailable("the model is away")))
        await anyio.sleep(20)
    (work,) = world.shelf.pending_work.values()
    assert (work.agent_id, work.why, work.parked) == ("multi_agent.team", "turn", False)
    assert (await result_of(await woken(killed(world), steady), steady)).status is Status.COMPLETED


async def test_a_run_whose_nodes_fail_for_good_is_not_tried_again() -> None:
    world = await begun(World())
    await woken(world, lambda left: row(left, ModelFailed("no")))
    assert world.shelf.pending_work == {}


async def test_a_run_whose_graph_cannot_be_made_stays_owed() -> None:
    world = await begun(World())

    def failing(_: str) -> Graph:
        raise OSError("no such file")

    async with Runtime(sessions=world, idle_timeout_s=5.0) as runtime:
        team = runtime.orchestrator("team", failing)
        with pytest.raises(HookFailed) as raised:
            team.session("s")
        assert isinstance(raised.value.__cause__, OSError)
        await anyio.sleep(20)
    assert (await result_of(await woken(killed(world), steady), steady)).status is Status.COMPLETED


def asker(name: str, expires_s: float | None) -> Agent:
    @tool(idempotent=True)
    async def send(tool_context: ToolContext) -> str:
        """Send if a person allows it."""
        return f"sent: {tool_context.interrupt('may I', expires_s=expires_s)}"

    def sending(messages: Sequence[Message], *_: object) -> Any:
        block = messages[-1]["content"][0]
        if "toolResult" not in block:
            return {"toolUse": {"name": "send", "input": {}}}
        return f"{name}: {block['toolResult']['content']}"

    return Agent(ScriptedModel([sending], loop=True), tools=[send], name=name, callback_handler=None)


def asking(world: World, *expires_s: float | None, depth: int = 1) -> Graph:
    """One node for each of these times, which asks a person for so long; then one that works."""
    builder = GraphBuilder().set_graph_id("team")
    builder.add_node(worker(world, "last"), "last")
    for place, each in enumerate(expires_s):
        agent = asker(f"asks{place}", each)
        builder.add_node(agent if depth == 1 else Graph({"in": agent}, id=f"inner{place}"), f"asks{place}")
        builder.add_edge(f"asks{place}", "last")
    return builder.build()


async def test_a_run_whose_questions_are_answered_is_finished_after_a_kill_at_any_moment() -> None:
    world = World()

    def make(left: World) -> Graph:
        return asking(left, None, None, depth=2)

    async with Runtime(sessions=world) as runtime:
        session = runtime.orchestrator("team", lambda _: make(world)).session("s")
        asked = await session.invoke(TASK, idempotency_token="the run")
        answers: Any = [{"interruptResponse": {"interruptId": one.id, "response": "yes"}} for one in asked.interrupts]
        waiting = len(world.left)
        assert (await session.invoke(answers)).status is Status.COMPLETED
    owing = 0
    for left in map(killed, world.left[waiting:]):
        pending_work = bool(left.shelf.pending_work)
        owing += pending_work
        await woken(left, make)
        assert left.shelf.pending_work == {}
        assert not pending_work or str(await result_of(left, make)).count("sent: yes") == 2
    assert owing > 4


@pytest.mark.real_time
@pytest.mark.parametrize(
    ("expires_s", "depth", "here", "left"),
    [
        ([0.1], 1, True, 0),
        ([0.1], 2, False, 0),
        ([0.1, 0.3], 1, False, 0),
        ([0.1, 7200.0], 1, True, 1),
        ([0.1, None], 1, False, 1),
        ([7200.0], 1, False, 1),
    ],
)
async def test_a_run_goes_on_when_the_time_to_answer_its_questions_is_over(
    expires_s: list[float | None], depth: int, here: bool, left: int
) -> None:
    """`here`: in the process that asked, otherwise in another one."""
    world = World()

    def make(_: World) -> Graph:
        return asking(world, *expires_s, depth=depth)

    async with Runtime(sessions=world) as runtime:
        session = runtime.orchestrator("team", lambda _: make(world)).session("s")
        result = await session.invoke(TASK, idempotency_token="the run")
        assert (result.status, len(await session.interrupts())) == (Status.INTERRUPTED, len(expires_s))
        if here:
            await until_asked(session, left)
    async with Runtime(sessions=world) as runtime:
        session = runtime.orchestrator("team", lambda _: make(world)).session("s")
        await until_asked(session, left)
    assert [work.why for work in world.shelf.pending_work.values()] == (
        ["expiry"] if left and 7200.0 in expires_s else []
    )
    if not left:
        assert EXPIRED_TEXT in str(await result_of(world, make))
        assert len(world.effects) == 1


async def until_asked(session: OrchestratorSession[Any], questions: int) -> None:
    """Waits until so many questions have no answer, and then for a while."""
    with anyio.fail_after(30):
        while len(await session.interrupts()) > questions:  # noqa: ASYNC110 - another actor's state
            await anyio.sleep(0.1)
    await anyio.sleep(0.5)


async def test_a_session_of_a_graph_is_the_same_session_each_time() -> None:
    async with Runtime() as runtime:
        team = runtime.orchestrator("team", lambda _: row(World()))
        assert (await team.session("s").invoke(TASK)).run == 1
        async with aclosing(team.session("s").stream(TASK)) as events:
            last = [event async for event in events][-1]
        assert (last["type"], last["result"].run) == ("multiagent_result", 2)
        assert (await team.session("t").invoke(TASK)).run == 1
        assert team.session("s").orchestrator.session_id == "s"


async def test_a_run_is_cancelled_by_its_session() -> None:
    world = World()
    async with Runtime(sessions=world) as runtime, anyio.create_task_group() as group:
        team = runtime.orchestrator("team", lambda _: slow(world))

        async def call() -> None:
            assert (await team.session("s").invoke(TASK)).reason == "cancelled"

        group.start_soon(call)
        await anyio.sleep(10)
        await team.session("s").cancel()


@pytest.mark.parametrize(("name", "make"), [("", steady), ("a/b", steady), ("team", None), ("team", "steady")])
async def test_what_names_or_makes_no_orchestrator_is_refused(name: str, make: Any) -> None:
    async with Runtime() as runtime:
        with pytest.raises(Invalid):
            runtime.orchestrator(name, make)


async def test_a_graph_that_is_no_session_s_own_is_refused(tmp_path: Path) -> None:
    world, known = World(), Agent(ScriptedModel(["hi"]), name="known", callback_handler=None)
    shared, manager = row(world), SQLiteSessionManager("s", str(tmp_path / "a.db"))
    stored = Graph({"a": worker(world, "a")}, id="team", session_manager=manager)
    makers: list[tuple[Callable[[str], Any], str]] = [
        (lambda _: known, "a Graph or a Swarm"),
        (lambda _: Graph({"a": worker(world, "a")}), "id='team'"),
        (lambda _: stored, "without a session_manager"),
        (lambda _: shared, "a new one for each session"),
        (lambda _: Graph({"a": Graph({"b": known}, id="inner")}, id="team"), "agents of another session"),
    ]
    async with Runtime() as runtime:
        for make, why in makers:
            with pytest.raises(Invalid, match=why):
                kept = [runtime.orchestrator("team", make).session("s")]
                team = runtime.orchestrator("team", make)
                kept += [team.session("s"), team.session("t")]


@pytest.mark.real_time
async def test_the_run_of_a_killed_process_is_finished_once_by_one_of_two_others(tmp_path: Path) -> None:
    program = Path(__file__).with_name("pending_work_worker.py")
    process = subprocess.Popen(  # noqa: ASYNC220 - it is killed at its first line
        [sys.executable, str(program), str(tmp_path / "a.db"), "team"], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "asked\n"
    process.send_signal(signal.SIGKILL)
    process.wait(30)
    process.stdout.close()
    place, models = SQLiteSessions(tmp_path / "a.db"), [ScriptedModel(["done"]) for _ in range(2)]
    (work,) = await Sessions(place).pending_work()
    assert (work.session_id, work.agent_id, work.why, work.parked) == ("s", "multi_agent.team", "turn", False)

    def team(runtime: Runtime, model: ScriptedModel) -> None:
        agent = Agent(model, name="clerk", callback_handler=None)
        runtime.orchestrator("team", lambda _: Graph({"clerk": agent}, id="team"))

    with anyio.fail_after(30):
        async with Runtime(sessions=place) as one, Runtime(sessions=SQLiteSessions(tmp_path / "a.db")) as two:
            team(one, models[0])
            team(two, models[1])
            while await Sessions(place).pending_work():  # noqa: ASYNC110 - another process's state
                await anyio.sleep(0.1)
    assert sorted(len(model.calls) for model in models) == [0, 1]
