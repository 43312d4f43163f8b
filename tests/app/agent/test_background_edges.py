"""Tools in the background where something comes between: a kill, a drain, a store that is down, the tool itself."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Sequence
from typing import Any

import anyio
import pytest

from repertory import Runtime, ToolContext, tool
from repertory.backends.ports import Batch, Position
from repertory.core.messages import Message, text_of, tool_results
from repertory.core.turns.background_tasks import MANAGE
from repertory.errors import LeaseLost, StoreUnavailable
from repertory.testing.in_memory_sessions import MemorySessionStore
from tests.app.agent.test_background_tools import (
    agent_with,
    behind,
    runtime_on,
    slow,
    spec,
    task_of,
    told,
    use,
    wall,
)
from tests.simulation.killed_worlds import World, killed

pytestmark = pytest.mark.anyio


def results_in(messages: Sequence[Message]) -> list[str]:
    """The results of tools, as the model is shown them at once."""
    return [str(result["content"]) for message in messages for result in tool_results(message)]


async def test_a_turn_that_a_kill_cuts_short_does_not_say_that_a_tool_in_the_background_did_not_run() -> None:
    world = World()

    @tool(idempotent=True)
    async def work() -> str:
        """Work."""
        return "worked"

    @tool
    async def pause() -> str:
        """Pause."""
        await anyio.sleep(40)
        return "paused"

    def replies(messages: Sequence[Message], *_: object) -> object:
        return [behind("work"), use("pause")] if text_of(messages[-1]) == "go" else "Fine."

    own = spec([replies], [work, pause], unknown_tool_outcome="fail")
    async with runtime_on(world) as runtime:
        await runtime.agent(own).session("s").invoke("go")
    moments = [left for left in world.left if left.shelf.sessions]
    assert len(moments) >= 3
    for number, left in enumerate(moments):
        second = killed(copy.deepcopy(left))
        second.shelf.pending_work = {}  # The call that comes is the first to open the session.
        async with runtime_on(second) as runtime:
            session = runtime.agent(own).session("s")
            await session.invoke("something else")
            await anyio.sleep(100)
            messages = await session.messages()
        assert "Not run" not in str(messages), number
        dispatched = sum("Background task dispatched" in text for text in results_in(messages))
        assert told(messages) == ["worked"] * dispatched, number


async def test_a_tool_that_the_program_calls_does_not_wait_for_those_in_the_background_and_runs_once() -> None:
    ran = Counter[str]()

    @tool
    async def other() -> str:
        """Do something else."""
        ran["other"] += 1
        return "other"

    async with agent_with([[behind("slow", seconds=50)], "It runs.", "Done."], tools=[slow, other]) as agent:
        with anyio.move_on_after(1):
            await agent.invoke_async("go")
        await anyio.sleep(1)
        began = anyio.current_time()
        result = await agent.tool.other.invoke_async()
        assert anyio.current_time() == began
    assert result["content"] == [{"text": "other"}]
    assert ran == {"other": 1}


async def test_what_a_draining_turn_puts_in_the_background_is_begun_by_the_next_life_without_a_question() -> None:
    world = World()

    @tool
    async def work() -> str:
        """Work."""
        world.effect("done")
        return "worked"

    replies = [[use("slow", seconds=4)], [behind("work")], "It runs."]
    async with runtime_on(world) as runtime, anyio.create_task_group() as group:
        group.start_soon(runtime.agent(spec(replies, [work, slow])).session("s").invoke, "go")
        await anyio.sleep(1)
        await runtime.drain()
    assert world.effects == {}
    async with runtime_on(world) as runtime:
        session = runtime.agent(spec(["Fine."], [work, slow])).session("s")
        await anyio.sleep(60)
        assert await session.pending() is None
        messages = await session.messages()
    assert told(messages) == ["worked"]
    assert "Status: queued" in results_in(messages)[1]
    assert world.effects == {"done": 1}


async def test_the_model_is_told_what_a_shutdown_has_cut() -> None:
    world = World()
    async with runtime_on(world) as runtime:
        await runtime.agent(spec([[behind("slow", seconds=500)], "It runs."])).session("s").invoke("go")
        await runtime.drain()
    async with runtime_on(world) as runtime:
        session = runtime.agent(spec(["Fine."])).session("s")
        await anyio.sleep(60)
        assert told(await session.messages()) == ["Cancelled before it ended."]


async def test_a_run_that_is_under_way_takes_one_place() -> None:
    turns = [[behind("slow", seconds=50)] for _ in range(5)]
    agent = agent_with([*turns, "They run.", *["More."] * 5])
    await agent.invoke_async("go")
    queued = ["Status: queued" in text for text in results_in(agent.messages)]
    assert queued == [False, False, False, False, True]


async def test_a_run_that_was_taken_back_before_it_began_leaves_its_place() -> None:
    replies: list[object] = [
        [behind("slow", seconds=50), behind("slow", seconds=50)],
        lambda messages, *_: [use(MANAGE, mode="cancel", task_id=task_of(messages, 1))],
        lambda messages, *_: [use(MANAGE, mode="cancel", task_id=task_of(messages, 0))],
        [behind("slow", seconds=1, text="third")],
        "They run.",
        *["More."] * 3,
    ]
    agent = agent_with(replies, background_tasks={"max_concurrency": 1})
    await agent.invoke_async("go")
    texts = results_in(agent.messages)
    assert ["Status: queued" in texts[at] for at in (0, 1, 4)] == [False, True, False]


@pytest.mark.parametrize("later", [False, True], ids=["of the turn that runs", "of an earlier turn"])
async def test_a_tool_in_the_background_that_asks_its_own_agent_never_waits_for_itself(later: bool) -> None:
    @tool
    async def ask(tool_context: ToolContext) -> str:
        """Ask the agent."""
        await anyio.sleep(10)
        return str(await tool_context.agent.invoke_async("inner"))

    async with agent_with([[behind("ask")], "It runs.", "Later.", "Done."], tools=[ask]) as agent:
        with anyio.fail_after(100):
            if later:
                with anyio.move_on_after(1):
                    await agent.invoke_async("go")
            await agent.invoke_async("go" if not later else "and?")
        (text,) = told(agent.messages)
    assert "AgentBusy" in text


async def test_where_calls_do_not_wait_a_tool_in_the_background_may_ask_its_own_agent() -> None:
    @tool
    async def ask(tool_context: ToolContext) -> str:
        """Ask the agent."""
        await anyio.sleep(10)
        return f"said: {await tool_context.agent.invoke_async('inner')}"

    replies = [[behind("ask")], "It runs.", "Inner.", "Done."]
    async with agent_with(replies, tools=[ask], background_tasks={"wait_for_completion": False}) as agent:
        await agent.invoke_async("go")
        await anyio.sleep(20)
        await agent.invoke_async("and?")
        assert told(agent.messages) == ["said: Inner."]


async def test_a_call_that_only_waits_for_its_tools_can_be_ended_behind_the_current_ones() -> None:
    async with agent_with([[behind("slow", seconds=50)], "It runs.", "Done."]) as agent:

        async def stop() -> None:
            await anyio.sleep(5)
            agent.cancel(after_current_tools=True)

        began = anyio.current_time()
        async with anyio.create_task_group() as group:
            group.start_soon(stop)
            assert str(await agent.invoke_async("go")) == "It runs."
        assert anyio.current_time() - began < 10


class OutageWorld(World):
    """A world whose store may be down."""

    down = False

    def open_store(self) -> Any:
        return OutageStore(self)


class OutageStore(MemorySessionStore):
    """Stores nothing while it is down."""

    def __init__(self, world: OutageWorld) -> None:
        super().__init__(world.shelf, owner="one")
        self._of = world

    async def append(self, batches: Sequence[Batch]) -> Sequence[Position | LeaseLost]:
        if self._of.down:
            raise StoreUnavailable("down")
        return await super().append(batches)


@pytest.mark.parametrize("down_s", [20, 200, 2000])
async def test_a_run_that_begins_while_the_store_is_down_runs_once_when_it_is_back(down_s: float) -> None:
    world, ran = OutageWorld(), Counter[int]()

    @tool
    async def work(number: int) -> str:
        """Work."""
        ran[number] += 1
        await anyio.sleep(60)
        return str(number)

    settings = {"background_tasks": {"max_concurrency": 1, "wait_for_completion": False}}
    own = spec([[behind("work", number=1), behind("work", number=2)], "They run.", "Done."], [work], **settings)
    # Its owner keeps it, so no other life could mend it.
    async with Runtime(sessions=world, wall=wall, idle_timeout_s=1e6) as runtime:  # type: ignore[arg-type]
        session = runtime.agent(own).session("s")
        await session.invoke("go")
        await anyio.sleep(50)
        world.down = True
        await anyio.sleep(down_s)
        world.down = False
        await anyio.sleep(500)
        assert sorted(told(await session.messages())) == ["1", "2"]
        assert await session.pending() is None
    assert ran == {1: 1, 2: 1}


async def test_nobody_waits_for_a_run_that_cannot_go_on_here() -> None:
    world, name = World(), "one"

    @tool(durable=True)
    async def work(tool_context: ToolContext) -> str:
        """Work."""
        await tool_context.step(name, lambda: 1, idempotent=True)
        await anyio.sleep(600)
        return "worked"

    def replies(messages: Sequence[Message], *_: object) -> object:
        asked = {"go": [behind("work")], "wait": [use(MANAGE, mode="wait", task_id=task_of(messages))]} if (
            messages[1:]) else {"go": [behind("work")]}  # fmt: skip
        return asked.get(text_of(messages[-1]), "Fine.")

    async with runtime_on(world) as runtime:
        await runtime.agent(spec([replies], [work])).session("s").invoke("go")
        await anyio.sleep(1)
        left = killed(copy.deepcopy(world.left[-1]))
    name = "another"
    async with runtime_on(left) as runtime:
        session = runtime.agent(spec([replies], [work])).session("s")
        await anyio.sleep(10)
        with anyio.fail_after(100):
            assert str(await session.invoke("wait")) == "Fine."
