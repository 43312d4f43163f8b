"""The limits of tenants hold for every turn, and what waits for them holds up nobody else. On virtual time."""

from __future__ import annotations

import contextvars
import math
from collections.abc import AsyncGenerator
from contextlib import ExitStack, aclosing, asynccontextmanager
from typing import Any

import anyio
import pytest

from repertory import (
    Agent,
    AgentSpec,
    BeforeInvocationEvent,
    Graph,
    HumanInTheLoop,
    Runtime,
    ScriptedModel,
    ToolContext,
    tool,
)
from repertory.app.host.admission import AdmissionQueue
from repertory.backends.tools.function_tool import schema_class
from repertory.core.admission import ServiceLimits, turn_bounds
from repertory.errors import AgentBusy, Throttled, Unavailable
from repertory.service.http.service import Service
from tests.simulation.killed_worlds import World

pytestmark = pytest.mark.anyio

schema_class()  # Loading it uses a thread, which a clock that jumps would pass.


@tool
def pay() -> str:
    """Pay."""
    return "paid"


EPOCH = 1_800_000_000.0


class Turns:
    """A hook: when turns of which sessions began, and how long each takes."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds
        self.began: list[tuple[float, str]] = []

    async def __call__(self, event: BeforeInvocationEvent) -> None:
        self.began.append((round(anyio.current_time() - self.start, 1), event.agent.session_id or ""))
        await anyio.sleep(self.seconds)

    start = 0.0

    def of(self, tenant: str) -> list[float]:
        return [at for at, session in self.began if session.startswith(f"{tenant}~")]


@asynccontextmanager
async def limited(turns: Turns, **limits: Any) -> AsyncGenerator[tuple[Runtime, Any]]:
    runtime = Runtime(sessions=World(), wall=lambda: EPOCH + anyio.current_time(), wakes_max=2)
    async with runtime:
        agent = runtime.agent(
            AgentSpec(name="helper", model=ScriptedModel(["done"], loop=True), hooks=[turns.__call__])
        )
        Service(runtime, limits=ServiceLimits(**{"rate_per_s": math.inf, **limits}))
        turns.start = anyio.current_time()
        yield runtime, agent


async def test_timers_begin_no_more_turns_than_the_rate_of_their_tenant_allows() -> None:
    turns = Turns()
    async with limited(turns, rate_per_s=0.1, burst=2) as (runtime, agent):
        for number in range(3):
            await runtime.schedule(agent.session(f"acme~{number}"), "go", in_s=1.0, every=1.0)
        await anyio.sleep(35.5)
        assert len(turns.of("acme")) == 5
        await agent.session("globex~1").invoke("Hello.")
        assert turns.of("globex") == [35.5]


async def test_posted_calls_of_one_tenant_hold_up_nobody_elses() -> None:
    turns = Turns(10.0)
    async with limited(turns, concurrent=1) as (_, agent):
        for number in range(20):
            await agent.session(f"acme~{number}").post("go")
        await anyio.sleep(3.0)
        await agent.session("globex~1").post("go")
        await anyio.sleep(3.0)
        assert len(turns.of("globex")) == 1
        assert len(turns.of("acme")) == 1
        await anyio.sleep(250.0)
        assert len(turns.of("acme")) == 20


async def test_a_stream_whose_reader_has_left_counts_until_its_turn_ends() -> None:
    turns = Turns(10.0)
    async with limited(turns, concurrent=2) as (_, agent):
        for number in range(4):
            async with aclosing(agent.session(f"acme~{number}").stream("go", token="t", detach=True)) as events:
                with anyio.move_on_after(1.0):
                    await anext(events)
        await anyio.sleep(40.0)
        assert len(turns.of("acme")) == 4
        assert turns.of("acme")[1] < 5.0 < turns.of("acme")[2]


async def test_a_turn_that_a_turn_asks_for_passes_before_those_that_wait() -> None:
    @tool
    async def ask_other(tool_context: ToolContext) -> str:
        """Ask the other session."""
        return str(await asked.session("acme~shared").invoke("inner"))

    turns = Turns()
    async with limited(turns, concurrent=1) as (runtime, asked):
        replies = [{"toolUse": {"name": "ask_other", "input": {}}}, "over"]
        asking = runtime.agent(AgentSpec(name="asking", model=ScriptedModel(replies), tools=[ask_other]))
        turns.seconds = 5.0
        async with anyio.create_task_group() as group:
            group.start_soon(asked.session("acme~first").invoke, "runs")
            await anyio.sleep(1.0)
            group.start_soon(asking.session("acme~asking").invoke, "go")
            await anyio.sleep(0.1)
            group.start_soon(asked.session("acme~shared").invoke, "outer")
            await anyio.sleep(60.0)
        assert len(await asked.session("acme~shared").messages()) == 4
        assert [session for _, session in turns.began] == ["acme~first", "acme~shared", "acme~shared"]


async def test_runs_of_graphs_wait_for_the_limits_of_their_tenant() -> None:
    turns = Turns(10.0)
    async with limited(turns, concurrent=1) as (runtime, agent):

        def make(session_id: str) -> Graph:
            del session_id
            node = Agent(ScriptedModel(["done"]), name="node", callback_handler=None, hooks=[turns.__call__])
            return Graph({"node": node}, id="graph")

        runs = runtime.orchestrator("graph", make)
        async with anyio.create_task_group() as group:
            for number in range(3):
                group.start_soon(runs.session(f"acme~{number}").invoke, "go")
                await anyio.sleep(0.1)
            group.start_soon(agent.session("acme~plain").invoke, "go")
            await anyio.sleep(0.1)
            group.start_soon(agent.session("globex~1").invoke, "go")
        began = [at for at, session in turns.began if not session.startswith("globex")]
        assert [round(at) for at in began] == [0, 10, 20, 30]
        assert [round(at) for at in turns.of("globex")] == [0]


async def test_a_task_that_outlives_its_turn_waits_like_everybody() -> None:
    left: list[Any] = []

    @tool
    async def leave_a_task(tool_context: ToolContext) -> str:
        """Have something done later."""
        left.append(contextvars.copy_context())
        return "left"

    turns = Turns(10.0)
    async with limited(turns, concurrent=1) as (runtime, agent):
        replies = [{"toolUse": {"name": "leave_a_task", "input": {}}}, "over"]
        leaving = runtime.agent(AgentSpec(name="leaving", model=ScriptedModel(replies), tools=[leave_a_task]))
        await leaving.session("acme~leaving").invoke("go")
        async with anyio.create_task_group() as group:
            for number in range(3):
                left[0].run(group.start_soon, agent.session(f"acme~{number}").invoke, "go")
        assert [round(at) for at in turns.of("acme")] == [0, 10, 20]


async def test_a_turn_that_asks_a_person_gives_its_place_up() -> None:
    turns = Turns()
    async with limited(turns, concurrent=1) as (runtime, agent):
        replies = [{"toolUse": {"name": "pay", "input": {}}}, "paid"]
        spec = AgentSpec(name="asking", model=ScriptedModel(replies), tools=[pay], interventions=[HumanInTheLoop()])
        asking = runtime.agent(spec).session("acme~asking")
        (question,) = (await asking.invoke("go")).interrupts
        await agent.session("acme~other").invoke("Hello.", timeout_s=1.0)
        answer: Any = {"interruptResponse": {"interruptId": question.id, "response": "y"}}
        assert str(await asking.invoke([answer])) == "paid"


async def test_a_turn_within_a_turn_counts_for_its_tenant_alone_and_waits_for_nothing() -> None:
    gate, begun = AdmissionQueue(), list[str]()
    gate.limit(turn_bounds(ServiceLimits(rate_per_s=0.1, burst=2, concurrent=1, concurrent_in_all=2)))
    start = anyio.current_time()

    async def enter(tenant: str) -> None:
        leave = await gate.enter(f"{tenant}~s")
        begun.append(f"{tenant} {anyio.current_time() - start:.0f}")
        leave(False)

    outer = await gate.enter("a~outer")
    async with anyio.create_task_group() as group:
        with ExitStack() as inner:
            for number in range(10):
                inner.callback(await gate.enter(f"a~{number}", inner=True), False)
            for tenant in ("a", "b", "c"):
                group.start_soon(enter, tenant)
            await anyio.sleep(1)
            assert sorted(begun) == ["b 0", "c 0"]
        outer(False)
    assert begun[2:] == ["a 30"]  # One and two turns of the burst are owed, and none more.


async def test_what_waits_is_given_up_by_its_time_its_caller_and_the_drain() -> None:
    turns = Turns(12.0)
    async with limited(turns, concurrent=1, waiting=3) as (runtime, agent):
        gate = runtime.host.gate
        ended: list[str] = []

        async def waiting(session: str) -> None:
            try:
                await agent.session(session).invoke("go")
            except (Unavailable, Throttled) as error:
                ended.append(f"{session} {type(error).__name__}")

        async with anyio.create_task_group() as group:
            group.start_soon(waiting, "acme~runs")
            await anyio.sleep(1.0)
            with pytest.raises(AgentBusy):
                await agent.session("acme~late").invoke("go", timeout_s=2.0)
            async with aclosing(agent.session("acme~gone").stream("go")) as events:
                with anyio.move_on_after(1.0):
                    await anext(events)
            await anyio.sleep(1.0)
            assert gate.waiting_of("acme") == 0
            for number in range(4):
                group.start_soon(waiting, f"acme~{number}")
                await anyio.sleep(0.1)
            assert gate.waiting_of("acme") == 3
            assert ended == ["acme~3 Throttled"]
            await runtime.drain()
        assert sorted(ended[1:]) == [f"acme~{number} Unavailable" for number in range(3)]
        assert (await runtime.drain()).ok
        assert [session for _, session in turns.began] == ["acme~runs"]


async def test_a_wait_that_is_cancelled_leaves_its_place_and_the_watch_to_the_next() -> None:
    gate, begun = AdmissionQueue(), list[str]()
    gate.limit(turn_bounds(ServiceLimits(rate_per_s=0.1, burst=1)))
    start = anyio.current_time()

    async def enter(tenant: str, within_s: float = math.inf) -> None:
        with anyio.move_on_after(within_s):
            leave = await gate.enter(f"{tenant}~s")
            begun.append(f"{tenant} {anyio.current_time() - start:.0f}")
            leave(False)

    async with anyio.create_task_group() as group:
        for tenant, within_s in (("a", 1.0), ("b", 1.0), ("a", 5.0), ("a", math.inf), ("b", math.inf), ("a", math.inf)):
            group.start_soon(enter, tenant, within_s)
            await anyio.sleep(0.01)
    assert begun == ["a 0", "b 0", "a 10", "b 10", "a 20"]


async def test_a_turn_that_begins_at_the_moment_in_which_it_shall_watch_leaves_the_watch_to_the_next() -> None:
    """Two turns may begin at the same moment: the one that watched for it wakes the other one."""
    gate = AdmissionQueue()
    gate.limit(turn_bounds(ServiceLimits(concurrent=9, concurrent_in_all=9, rate_per_s=1.0, burst=1)))

    async def turn(session_id: str) -> None:
        (await gate.enter(session_id))(False)

    with anyio.fail_after(10):
        async with anyio.create_task_group() as group:
            for name in ("ann~1", "bob~1", "ann~2", "bob~2", "ann~3", "bob~3", "bob~4"):
                group.start_soon(turn, name)
    assert gate.waiting == 0
