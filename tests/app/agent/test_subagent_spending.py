"""A budget is the parent's share and survives kills: what subagents had spent counts, whatever had ended before."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from repertory import (
    Agent,
    AgentSpec,
    Budget,
    Runtime,
    ScriptedModel,
    SummarizingConversationManager,
    ToolContext,
    tool,
)
from repertory.actors.hooks.events import AfterModelCallEvent
from repertory.backends.tools.function_tool import schema_class
from repertory.core.journal.codec import decode_all
from repertory.core.journal.records import MessageAdded, SubagentSpending
from repertory.core.turns.subagents import is_subagent
from repertory.errors import RepertoryError
from tests.app.agent.test_subagents import call, last_result, replies, subagents, use
from tests.campaigns.dying_work import place_in
from tests.operations.operated_places import place_of
from tests.simulation.killed_worlds import World, killed

pytestmark = pytest.mark.anyio

schema_class()  # Loading it uses a thread, which a clock that jumps would pass.

ENOUGH = 1_000_000


def leaf(world: World, name: str = "leaf", seconds: float = 1.0) -> Agent:
    """An agent that marks a moment and answers."""

    @tool(idempotent=True)
    async def mark(tool_context: ToolContext) -> str:
        """Mark it."""
        await anyio.sleep(seconds)
        world.effect(f"{name} {tool_context.idempotency_key}")
        return "marked"

    return Agent(replies(use("mark"), f"{name} is done"), name=name, tools=[mark], callback_handler=None)


class NarrowModel(ScriptedModel):
    """A model with a small window."""

    @property
    def context_window_limit(self) -> int | None:
        return 500


def last_moment(world: World, effect: str) -> World:
    """As a kill would have left the world when the first effect of this name was there."""
    return killed(next(left for left in world.left if any(key.startswith(effect) for key in left.effects)))


def tokens_in(world: World, *, of_subagents: bool = False) -> int:
    """The tokens on record."""
    journals = world.shelf.sessions["s"].journals.items()
    counted = [rows for agent, rows in journals if is_subagent(agent) or not of_subagents]
    records: list[Any] = [record for rows in counted for record in decode_all(rows) or []]
    usages = [each.message.get("metadata", {}).get("usage") for each in records if isinstance(each, MessageAdded)]
    return sum(each["totalTokens"] for each in usages if each is not None)


def marking(world: World, name: str, seconds: float = 1.0) -> Any:
    @tool(idempotent=True, name=name)
    async def mark() -> str:
        """Mark it."""
        await anyio.sleep(seconds)
        world.effect(name)
        return "marked"

    return mark


async def spent_again(world: World, spec: Callable[[World], AgentSpec], effect: str) -> tuple[Budget, Budget]:
    """The budget of an undisturbed call, and that of the call that goes on after a kill at this effect."""
    whole, again = Budget(total_tokens=ENOUGH), Budget(total_tokens=ENOUGH)
    await call(world, spec(world), budget=whole)
    left = last_moment(world, effect)
    await call(left, spec(left), budget=again)
    return whole, again


def without_boss(budget: Budget) -> dict[str, tuple[int, int]]:
    return {who: (spent.total_tokens, spent.calls) for who, spent in budget.by.items() if who != "boss"}


async def test_what_subagents_of_a_subagent_had_spent_that_ended_before_a_kill_counts() -> None:
    def spec(world: World) -> AgentSpec:
        steps = (use("leaf", input="Do it."), use("late"), "done")
        middle = Agent(
            replies(*steps),
            name="middle",
            agent_id="middle",
            tools=[leaf(world).as_tool(), marking(world, "late")],
            callback_handler=None,
        )

        @tool(durable=True)
        async def delegate(tool_context: ToolContext) -> str:
            """Delegate."""
            return str(await tool_context.spawn(middle, "Do it."))

        return AgentSpec(name="boss", model=replies(use("delegate"), last_result), tools=[delegate])

    whole, again = await spent_again(World(), spec, "late")
    assert whole.by["default"].calls == 2
    assert without_boss(again) == without_boss(whole)


async def test_a_share_bounds_a_subagent_whose_own_subagents_had_ended_before_a_kill() -> None:
    async def ended_with(tokens: int) -> tuple[int, list[str]]:
        world, reasons = World(), list[str]()

        def spec(world: World) -> AgentSpec:
            middle = Agent(
                replies(use("leaf", input="Do it."), use("late"), "done"),
                name="middle",
                tools=[leaf(world).as_tool(), marking(world, "late")],
                callback_handler=None,
            )

            @tool(durable=True)
            async def delegate(tool_context: ToolContext) -> str:
                """Delegate."""
                result = await tool_context.spawn(middle, "Do it.", budget=Budget(total_tokens=tokens))
                reasons.append(result.stop_reason)
                return result.stop_reason

            return AgentSpec(name="boss", model=replies(use("delegate"), last_result), tools=[delegate])

        await call(world, spec(world))
        left = last_moment(world, "late")
        spent = tokens_in(left, of_subagents=True)
        await call(left, spec(left))
        return spent, reasons

    spent, reasons = await ended_with(ENOUGH)
    assert reasons == ["end_turn", "end_turn"]
    assert await ended_with(spent + 1) == (spent, ["end_turn", "end_turn"])
    assert await ended_with(spent) == (spent, ["limit_total_tokens", "limit_total_tokens"])


async def test_what_summaries_of_a_subagent_had_spent_counts_after_a_kill() -> None:
    def spec(world: World) -> AgentSpec:
        def reply(messages: Any, specs: Any, *_: object) -> Any:
            if not specs:
                return "A summary."
            done = sum(text in str(messages) for text in ("A summary", "marked"))
            return use("late") if "marked" not in str(messages[-1]) else f"done {done}"

        manager = SummarizingConversationManager(preserve_recent_messages=2, proactive_compression=True)
        model = NarrowModel([reply], loop=True)
        middle = Agent(
            model,
            name="middle",
            agent_id="middle",
            messages=[
                {"role": role, "content": [{"text": "word " * 60}]} for _ in range(3) for role in ("user", "assistant")
            ],
            tools=[marking(world, "late")],
            conversation_manager=manager,
            callback_handler=None,
        )

        @tool(durable=True)
        async def delegate(tool_context: ToolContext) -> str:
            """Delegate."""
            return str(await tool_context.spawn(middle, "Do it."))

        return AgentSpec(name="boss", model=replies(use("delegate"), last_result), tools=[delegate])

    whole, again = await spent_again(World(), spec, "late")
    summaries = [who for who in whole.by if who.endswith("/summary")]
    assert summaries
    assert without_boss(again) == without_boss(whole)


async def test_what_agents_without_a_session_had_spent_in_a_tool_of_a_subagent_counts_after_a_kill() -> None:
    def spec(world: World) -> AgentSpec:
        @tool(idempotent=True)
        async def ask() -> str:
            """Ask another agent."""
            return str(await Agent(ScriptedModel("Yes."), agent_id="oracle", callback_handler=None).invoke_async("?"))

        middle = Agent(
            replies(use("ask"), use("late"), "done"),
            name="middle",
            agent_id="middle",
            tools=[ask, marking(world, "late")],
            callback_handler=None,
        )
        return AgentSpec(name="boss", model=replies(use("middle", input="go"), last_result), tools=[middle.as_tool()])

    whole, again = await spent_again(World(), spec, "late")
    assert whole.by["oracle"].calls == 1
    assert without_boss(again) == without_boss(whole)


async def test_an_answer_that_a_hook_has_thrown_away_counts_after_a_kill() -> None:

    def spec(world: World) -> AgentSpec:
        middle = Agent(
            replies(use("late"), "done"),
            name="middle",
            agent_id="middle",
            tools=[marking(world, "late")],
            callback_handler=None,
        )
        asked = list[object]()

        def once_more(event: AfterModelCallEvent) -> None:
            asked.append(event)
            event.retry = len(asked) == 1 and not world.effects

        middle.add_hook(once_more)
        return AgentSpec(name="boss", model=replies(use("middle", input="go"), last_result), tools=[middle.as_tool()])

    whole, again = await spent_again(World(), spec, "late")
    assert whole.by["middle"].calls == 3
    assert without_boss(again) == without_boss(whole)


def spending_records(world: World) -> list[SubagentSpending]:
    journals: Iterable[Any] = world.shelf.sessions["s"].journals.items()
    return [
        record
        for agent, rows in journals
        if is_subagent(agent)
        for record in decode_all(rows) or []
        if isinstance(record, SubagentSpending)
    ]


async def test_a_subagent_without_hidden_calls_has_one_record_more_which_says_who_has_started_it() -> None:
    world = World()
    spec = AgentSpec(name="boss", model=replies(use("leaf", input="go"), last_result), tools=[leaf(world).as_tool()])
    await call(world, spec)
    [record] = spending_records(world)
    assert (record.parent, record.calls) == ("boss", ())
    assert record.parent_turn
    assert not any(
        isinstance(each, SubagentSpending) for each in decode_all(world.shelf.sessions["s"].journals["boss"]) or []
    )


@pytest.mark.real_time
@pytest.mark.parametrize("kind", ["sqlite", "sqlite, encrypted", "postgres", "journal in files"])
async def test_in_every_place_what_was_spent_before_a_shutdown_counts(kind: str, tmp_path: Path) -> None:
    where = place_in if "encrypted" in kind else place_of
    place, waiting, budgets = where(kind, tmp_path, ""), anyio.Event(), [Budget(), Budget()]

    @tool(durable=True)
    async def hang() -> str:
        """Wait, the first time."""
        if not waiting.is_set():
            waiting.set()
            await anyio.sleep_forever()
        return "went on"

    steps = (use("leaf", input="Do it."), use("hang"), "done")
    tools: list[Any] = [leaf(World(), seconds=0.0).as_tool(), hang]
    middle = Agent(replies(*steps), name="middle", agent_id="middle", tools=tools, callback_handler=None)
    model = replies(use("middle", input="go"), last_result)
    spec = AgentSpec(name="boss", model=model, tools=[middle.as_tool()])
    async with anyio.create_task_group() as group:
        runtime = await Runtime(sessions=place, drain_timeout_s=2.0, wakes_max=0).__aenter__()

        async def cut() -> None:
            with suppress(RepertoryError):
                await runtime.agent(spec).session("s").invoke("go", idempotency_token="t", budget=budgets[0])

        group.start_soon(cut)
        await waiting.wait()
        await runtime.__aexit__(None, None, None)
    async with Runtime(sessions=place, wakes_max=0) as runtime:
        await runtime.agent(spec).session("s").invoke("go", idempotency_token="t", budget=budgets[1])
    before, again = map(without_boss, budgets)
    assert before["default"] == again["default"]
    assert (before["middle"][1], again["middle"][1]) == (2, 3)


# Several that share the budget of the turn that has detached them.


class Pool:
    """A turn that detaches subagents, which work one after the other while it goes on."""

    def __init__(self, names: str, parent_steps: int) -> None:
        self.names, self.parent_steps = names, parent_steps

    def spec(self, world: World) -> AgentSpec:
        kinds = {name: leaf(world, name) for name in self.names}

        @tool(durable=True)
        async def start(tool_context: ToolContext) -> str:
            """Start them."""
            for name, each in kinds.items():
                await tool_context.spawn(each, f"Do {name}.", detached=True, name=name)
            return "started"

        steps = [use("start"), *[use("step")] * self.parent_steps, "begun"]
        return AgentSpec(
            name="boss",
            model=replies(*steps),
            tools=[start, *(each.as_tool() for each in kinds.values()), marking(world, "step", 0.01)],
            background_tasks={"max_concurrency": 1, "agentic": []},
        )

    async def left_of(self, budget: Budget) -> World:
        """What a kill leaves of a life with this budget, in front of the first message of the last subagent."""
        world = World()
        async with Runtime(sessions=world, wakes_max=0) as runtime:
            session = runtime.agent(self.spec(world)).session("s")
            await session.invoke("go", idempotency_token="t", budget=budget)
            while await session.deferred():  # noqa: ASYNC110 - Nothing tells of the last end.
                await anyio.sleep(0.1)
        return next(each for each in reversed(world.left) if len(subagents(each)) < len(self.names))

    async def second_life(self, left: World) -> list[str]:
        """The marks of a second life."""
        before = left.effects.copy()
        async with Runtime(sessions=killed(left)) as runtime:
            session = runtime.agent(self.spec(left)).session("s")
            with anyio.fail_after(300):
                while await session.deferred():  # noqa: ASYNC110 - Nothing tells of the last end.
                    await anyio.sleep(0.1)
        return marks(left.effects - before)


def marks(effects: Iterable[str]) -> list[str]:
    return sorted({key.split()[0] for key in effects} - {"step"})


@pytest.mark.parametrize("parent_steps", [0, 4])
async def test_siblings_that_had_ended_and_the_turn_that_detached_them_count_for_what_those_that_go_on_share(
    parent_steps: int,
) -> None:
    pool = Pool("abc", parent_steps)
    left = await pool.left_of(Budget(total_tokens=ENOUGH))
    assert marks(left.effects) == ["a", "b"]
    spent = tokens_in(left)
    assert await pool.second_life(left) == ["c"]
    for more, marked in ((1, ["c"]), (0, [])):
        left = await pool.left_of(Budget(total_tokens=spent + more))
        assert (marks(left.effects), tokens_in(left)) == (["a", "b"], spent)
        assert await pool.second_life(left) == marked
