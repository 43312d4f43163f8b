"""Agents that tools have started: where they live, how they go on after a kill, what they may spend, how they end."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, cast

import anyio
import anyio.lowlevel
import pytest

from repertory import (
    Agent,
    AgentSpec,
    Budget,
    Runtime,
    ScriptedModel,
    Sessions,
    SQLiteSessionManager,
    SQLiteSessions,
    Subagents,
    ToolContext,
    tool,
)
from repertory.backends.tools.function_tool import schema_class
from repertory.core.journal.codec import decode_all
from repertory.core.journal.records import StateChanged, StepStarted
from repertory.core.messages import check_next, text_of, tool_results
from repertory.core.steps import REPORTS_MAX, report_in
from repertory.core.turns.subagents import DEPTH_MAX, is_subagent
from repertory.errors import Gone, Invalid, LeaseLost, LimitReached, RepertoryError
from repertory.operations import erasing
from repertory.testing.in_memory_sessions import MemorySessionStore
from tests.operations.operated_places import place_of
from tests.simulation.killed_worlds import World, killed

pytestmark = pytest.mark.anyio

schema_class()  # Loading it uses a thread, which a clock that jumps would pass.


def use(name: str, **given: object) -> dict[str, object]:
    return {"toolUse": {"name": name, "input": given}}


def replies(*steps: object) -> ScriptedModel:
    """A model whose answer follows from the results that its conversation has: so a second process has it, too."""

    def reply(messages: Any, *_: object) -> object:
        done = sum(bool(list(tool_results(each))) for each in messages)
        step = steps[min(done, len(steps) - 1)]
        return step(messages) if callable(step) else step

    return ScriptedModel([reply], loop=True)


def last_result(messages: Any) -> str:
    return " ".join(str(block.get("text")) for each in tool_results(messages[-1]) for block in each["content"])


def worker(world: World, *, asks: bool = False) -> Agent:
    """An agent that works with two tools, the first of which is not idempotent."""

    @tool(idempotent=True)
    async def find(tool_context: ToolContext) -> str:
        """Find it."""
        await anyio.lowlevel.checkpoint()
        world.effect(f"find {tool_context.idempotency_key}")
        return "found"

    @tool(idempotent=True)
    async def book(tool_context: ToolContext) -> str:
        """Book it."""
        if asks and tool_context.interrupt("really?") != "yes":
            return "no"
        world.effect(f"book {tool_context.idempotency_key}")
        return "booked"

    model = replies(use("find"), use("book"), last_result)
    return Agent(model, name="worker", tools=[find, book], callback_handler=None)


def boss(world: World, **options: Any) -> AgentSpec:
    tools: list[Any] = options.pop("tools", None) or [worker(world).as_tool()]
    steps = options.pop("steps", None) or (use("worker", input="Do it."), last_result)
    return AgentSpec(name="boss", model=replies(*steps), tools=tools, **options)


async def call(world: World, spec: AgentSpec, prompt: object = "go", **options: Any) -> Any:
    async with Runtime(sessions=world, wakes_max=0) as runtime:
        return await runtime.agent(spec).session("s").invoke(prompt, idempotency_token="t", **options)


def journals(world: World) -> list[str]:
    return sorted(world.shelf.sessions["s"].journals)


def subagents(world: World) -> list[str]:
    return [each for each in journals(world) if is_subagent(each)]


# Where they live.


async def test_the_turn_of_an_agent_that_is_a_tool_stands_in_the_session_of_the_agent_that_asks() -> None:
    world = World()
    assert str(await call(world, boss(world))) == "booked"
    assert journals(world) == ["boss", *subagents(world)]
    assert len(subagents(world)) == 1


async def test_each_call_has_a_subagent_of_its_own_also_those_of_one_step() -> None:
    world = World()
    asked = [use("worker", input="One."), use("worker", input="One.")]
    await call(world, boss(world, steps=(asked, use("worker", input="One."), last_result)))
    assert len(subagents(world)) == 3
    assert sorted(key.split()[0] for key in world.effects.elements()) == ["book"] * 3 + ["find"] * 3


async def test_no_session_is_left_active_behind_a_subagent() -> None:
    world = World()
    async with Runtime(sessions=world, wakes_max=0) as runtime:
        await runtime.agent(boss(world)).session("s").invoke("go")
        actors = [actor.path for actor in runtime.tree().walk()]
    assert [path for path in actors if path.endswith("/agent")] == ["/session s boss/agent"]


async def test_a_parent_that_is_erased_takes_its_subagents_along() -> None:
    world = World()
    await call(world, boss(world))
    async with Sessions(world) as sessions:
        await sessions.delete("s")
    assert "s" not in world.shelf.sessions or not world.shelf.sessions["s"].journals


@pytest.mark.real_time
@pytest.mark.parametrize("kind", ["sqlite", "postgres", "journal in files", "bucket in files", "documents in files"])
async def test_an_agent_as_a_tool_works_in_every_place_and_goes_on_behind_a_shutdown(kind: str, tmp_path: Path) -> None:
    place, world, waiting = place_of(kind, tmp_path), World(), anyio.Event()

    @tool(durable=True)
    async def hang() -> str:
        """Wait, the first time."""
        if not waiting.is_set():
            waiting.set()
            await anyio.sleep_forever()
        return "went on"

    inner = worker(world)
    found, *_ = inner.tool_registry.registry.values()
    inner = Agent(replies(use("find"), use("hang"), last_result), name="worker", tools=[found, hang])
    spec = boss(world, tools=[inner.as_tool()])
    async with anyio.create_task_group() as group:
        runtime = await Runtime(sessions=place, drain_timeout_s=2.0, wakes_max=0).__aenter__()

        async def cut() -> None:
            with suppress(RepertoryError):
                await runtime.agent(spec).session("s").invoke("go", idempotency_token="t")

        group.start_soon(cut)
        await waiting.wait()
        await runtime.__aexit__(None, None, None)
    async with Runtime(sessions=place, wakes_max=0) as runtime:
        answer = str(await runtime.agent(spec).session("s").invoke("go", idempotency_token="t"))
    if kind in ("documents in files", "bucket in files"):  # Programs of the SDK would take it for an agent of theirs.
        return
    assert answer == "went on"
    assert world.effects.total() == 1


# Kills.


async def test_killed_at_any_moment_a_subagent_goes_on_once() -> None:
    world = World()
    await call(world, boss(world))
    assert len(world.left) > 6
    for number, left in enumerate(world.left):
        answer = await call(killed(left), boss(left))
        assert str(answer) == "booked", number
        assert len(subagents(left)) == 1, number
        # At most twice, with the same key: a kill between an effect and its record shows in no journal.
        assert len(left.effects) == 2, number
        assert max(left.effects.values()) <= 2, number


async def test_killed_at_any_moment_a_tool_that_starts_subagents_of_its_own_has_each_once() -> None:
    world = World()

    def spec(world: World) -> AgentSpec:
        inner = worker(world)

        @tool(durable=True)
        async def delegate(tool_context: ToolContext) -> str:
            """Have two agents do it."""
            found = dict[str, str]()

            async def one(name: str) -> None:
                found[name] = str(await tool_context.spawn(inner, f"Do {name}."))

            async with anyio.create_task_group() as group:
                group.start_soon(one, "a")
                group.start_soon(one, "b")
            last = await tool_context.spawn(inner, "Do a.")
            return f"{sorted(found.items())} {last}"

        return boss(world, tools=[delegate], steps=(use("delegate"), last_result))

    whole = str(await call(world, spec(world)))
    assert whole == "[('a', 'booked'), ('b', 'booked')] booked"
    for number, left in enumerate(world.left):
        assert str(await call(killed(left), spec(left))) == whole, number
        assert len(subagents(left)) == 3, number
        assert len(left.effects) == 6, number


async def test_a_question_of_a_subagent_waits_in_its_journal_and_the_answer_finds_it() -> None:
    world = World()

    def spec(world: World) -> AgentSpec:
        return boss(world, tools=[worker(world, asks=True).as_tool()])

    (question,) = (await call(world, spec(world))).interrupts
    assert question.name == "really?"
    left = killed(world)
    left.left.clear()
    assert str(await call(left, spec(left), [question.respond("yes")])) == "booked"
    for number, again in enumerate(left.left):
        # The answer may be on record by now, or not.
        prompt: object = [question.respond("yes")]
        try:
            answer = await call(killed(again), spec(again), prompt)
        except RepertoryError:
            answer = await call(again, spec(again), None)
        assert str(answer) == "booked", number
        assert len(again.effects) == 2, number
    assert len(left.effects) == 2


async def test_a_question_of_one_subagent_waits_for_those_beside_it() -> None:
    world, begun = World(), anyio.Event()

    def spec(world: World) -> AgentSpec:
        @tool
        async def ask(tool_context: ToolContext) -> str:
            """Ask."""
            await begun.wait()
            return str(tool_context.interrupt("really?"))

        @tool
        async def pay() -> str:
            """Pay."""
            begun.set()
            await anyio.sleep(1)
            world.effect("pay")
            return "paid"

        asking = Agent(replies(use("ask"), last_result), name="asking", tools=[ask], callback_handler=None)
        paying = Agent(replies(use("pay"), last_result), name="paying", tools=[pay], callback_handler=None)

        @tool(durable=True)
        async def delegate(tool_context: ToolContext) -> str:
            """Have two agents do it."""
            found = list[str]()

            async def one(agent: Agent) -> None:
                for number in range(2 if agent is paying else 1):
                    found.append(str(await tool_context.spawn(agent, f"Do {number}.")))

            async with anyio.create_task_group() as group:
                group.start_soon(one, asking)
                group.start_soon(one, paying)
            return " ".join(sorted(found))

        return boss(world, tools=[delegate], steps=(use("delegate"), last_result))

    result = await call(world, spec(world))
    (question,) = result.interrupts
    assert world.effects["pay"] == 2
    assert str(await call(world, spec(world), [question.respond("yes")])) == "paid paid yes"
    assert world.effects["pay"] == 2


# Erased meanwhile.


async def erased(world: World) -> None:
    """Another program erases the session."""
    await erasing.delete(MemorySessionStore(world.shelf, owner="eraser"), "s", 0.0, takeover=True)


@pytest.mark.parametrize("detached", [False, True])
async def test_a_session_that_is_erased_while_subagents_work_does_not_come_back(detached: bool) -> None:
    world, begun = World(), anyio.Event()

    @tool(durable=True)
    async def work(tool_context: ToolContext) -> str:
        """Work."""
        begun.set()
        await anyio.sleep(5)
        await tool_context.step("late", lambda: world.effect("late"))
        return "worked"

    grandchild = Agent(replies(use("work"), "done"), name="grandchild", tools=[work], callback_handler=None)
    child = Agent(
        replies(use("grandchild", input="go"), "done"), name="child", tools=[grandchild], callback_handler=None
    )

    @tool(durable=True)
    async def start(tool_context: ToolContext) -> str:
        """Start it."""
        tool_context.agent.state.set("name", "Marta")
        return str(await tool_context.spawn(child, "go", detached=detached))

    spec = boss(world, tools=[start, child.as_tool()], steps=(use("start"), "begun"), state={"plan": "gold"})
    async with Runtime(sessions=world) as runtime, anyio.create_task_group() as group:
        session = runtime.agent(spec).session("s")

        async def ask() -> None:
            with suppress(RepertoryError):
                await session.invoke("go")

        group.start_soon(ask)
        await begun.wait()
        await anyio.sleep(1)
        await erased(world)
        await anyio.sleep(60)
        assert not world.shelf.sessions["s"].journals
        assert not world.shelf.pending_work
        assert not world.effects
        # A call begins it anew, as the agent was built.
        await session.invoke("go")
        group.cancel_scope.cancel()
    records = decode_all(world.shelf.sessions["s"].journals["boss"]) or []
    states = [each for each in records if isinstance(each, StateChanged)]
    assert states[0].full == {"plan": "gold"}


@pytest.mark.parametrize("taken", ["erased", "taken over"])
async def test_a_tool_whose_session_was_taken_away_starts_no_more_subagents(taken: str) -> None:
    world, errors = World(), list[type[Exception]]()
    inner = worker(world)

    @tool(durable=True)
    async def delegate(tool_context: ToolContext) -> str:
        """Delegate, and again where that has failed."""
        await tool_context.spawn(inner, "Do 0.")
        if taken == "erased":
            await erased(world)
        else:
            other = MemorySessionStore(world.shelf, owner="other")
            await other.release([(await other.acquire("s", takeover=True)).lease])
        for number in (1, 2, 3):
            try:
                await tool_context.spawn(inner, f"Do {number}.")
            except RepertoryError as error:
                errors.append(type(error))
        return "done"

    with pytest.raises(LeaseLost):
        await call(world, boss(world, tools=[delegate], steps=(use("delegate"), last_result)))
    assert errors == [LeaseLost] * 3
    assert world.effects.total() == 2
    assert len(subagents_in(world)) == (0 if taken == "erased" else 1)


# Budgets.


async def test_a_share_of_a_budget_bounds_a_subagent_and_counts_for_the_whole() -> None:
    world, seen = World(), list[str]()
    inner = worker(world)

    @tool(durable=True)
    async def delegate(tool_context: ToolContext) -> str:
        """Delegate."""
        result = await tool_context.spawn(inner, "Do it.", budget=Budget(total_tokens=1))
        seen.append(result.stop_reason)
        return result.stop_reason

    budget = Budget(total_tokens=1_000_000)
    spec = boss(world, tools=[delegate], steps=(use("delegate"), last_result))
    assert str(await call(world, spec, budget=budget)) == "limit_total_tokens"
    assert budget.by["default"].calls == 1
    assert budget.spent.calls == 3


async def test_what_a_subagent_spent_before_a_kill_counts_for_its_share_and_for_the_budget_of_the_call() -> None:
    world = World()

    def spec(world: World, tokens: int) -> AgentSpec:
        inner = worker(world)

        @tool(durable=True)
        async def delegate(tool_context: ToolContext) -> str:
            """Delegate."""
            return (await tool_context.spawn(inner, "Do it.", budget=Budget(total_tokens=tokens))).stop_reason

        return boss(world, tools=[delegate], steps=(use("delegate"), last_result))

    whole = Budget(total_tokens=1_000_000)
    await call(world, spec(world, 1_000_000), budget=whole)
    first = next(left for left in world.left if any(key.startswith("book") for key in left.effects))
    budget = Budget(total_tokens=1_000_000)
    await call(killed(first), spec(first, 1_000_000), budget=budget)
    # The outer agent's own call before the kill is that of another caller.
    assert budget.by["default"].total_tokens == whole.by["default"].total_tokens
    assert budget.by["default"].calls == 3
    spent = whole.by["default"].total_tokens
    second = next(left for left in world.left if any(key.startswith("book") for key in left.effects))
    second = killed(second)
    assert str(await call(second, spec(second, spent // 2))) in ("limit_total_tokens", "end_turn")


# Bounds.


async def test_an_agent_that_starts_one_like_itself_ends_at_a_depth() -> None:
    world, errors = World(), list[str]()
    agents = list[Agent]()

    @tool(durable=True)
    async def again(tool_context: ToolContext) -> str:
        """Have one like me do it."""
        try:
            return str(await tool_context.spawn(agents[0], "Do it."))
        except LimitReached as error:
            errors.append(str(error))
            return "deep enough"

    agents.append(Agent(replies(use("again"), last_result), name="same", tools=[again], callback_handler=None))
    spec = boss(world, tools=[again], steps=(use("again"), last_result))
    assert str(await call(world, spec)) == "deep enough"
    assert len(subagents(world)) == DEPTH_MAX
    assert len(errors) == 1


async def test_the_limits_of_a_subagent_are_never_wider_than_its_own() -> None:
    world = World()
    inner = Agent(replies("fine"), name="inner", limits={"turns": 2}, callback_handler=None)
    found = list[str]()

    @tool
    async def delegate(tool_context: ToolContext) -> str:
        """Delegate."""
        loops = Agent(ScriptedModel([use("nothing")], loop=True), name="loops", limits={"turns": 2})
        for limits in ({"turns": 1}, {"turns": 50}):
            found.append((await tool_context.spawn(loops, "go", name=str(limits), limits=limits)).stop_reason)  # type: ignore[arg-type]
        return str(await tool_context.spawn(inner, "go"))

    assert str(await call(world, boss(world, tools=[delegate], steps=(use("delegate"), last_result)))) == "fine"
    assert found == ["limit_turns", "limit_turns"]


@pytest.mark.parametrize("bad", ["no agent", 3, None])
async def test_what_is_no_agent_is_refused(bad: object) -> None:
    world, errors = World(), list[str]()

    @tool
    async def delegate(tool_context: ToolContext) -> str:
        """Delegate."""
        with pytest.raises(Invalid) as refused:
            await tool_context.spawn(bad, "go")
        errors.append(str(refused.value))
        return "done"

    await call(world, boss(world, tools=[delegate], steps=(use("delegate"), last_result)))
    assert errors
    assert "a subagent is an Agent" in errors[0]


async def test_two_subagents_of_one_name_in_a_call_are_refused() -> None:
    world = World()

    @tool
    async def delegate(tool_context: ToolContext) -> str:
        """Delegate."""
        await tool_context.spawn(worker(world), "go", name="one")
        with pytest.raises(Invalid, match="a name of its own"):
            await tool_context.spawn(worker(world), "go", name="one")
        return "done"

    assert str(await call(world, boss(world, tools=[delegate], steps=(use("delegate"), last_result)))) == "done"


async def test_a_tool_outside_of_an_agent_has_no_subagents() -> None:
    context = ToolContext(tool_use={"toolUseId": "1", "name": "a", "input": {}})
    with pytest.raises(Invalid, match="no agent has called this one"):
        await context.spawn(Agent(ScriptedModel(["a"])), "go")


async def test_an_agent_without_a_session_has_subagents_in_memory() -> None:
    @tool
    async def delegate(tool_context: ToolContext) -> str:
        """Delegate."""
        inner = Agent(ScriptedModel(["fine"]), name="inner", callback_handler=None)
        return str(await tool_context.spawn(inner, "go"))

    agent = Agent(replies(use("delegate"), last_result), tools=[delegate], callback_handler=None)
    assert str(await agent.invoke_async("go")) == "fine"


# Cancellation.


@pytest.mark.parametrize("way", ["scope", "time"])
async def test_cancelling_the_parents_turn_cuts_the_subagent_and_leaves_it_a_valid_history(way: str) -> None:
    world, ended, begun = World(), anyio.Event(), anyio.Event()

    @tool
    async def hang() -> None:
        """Never end."""
        begun.set()
        try:
            await anyio.sleep_forever()
        finally:
            ended.set()

    inner = Agent(replies(use("hang"), "later"), name="worker", tools=[hang], callback_handler=None)
    async with Runtime(sessions=world, wakes_max=0) as runtime:
        session = runtime.agent(boss(world, tools=[inner.as_tool()])).session("s")
        if way == "scope":
            async with anyio.create_task_group() as group:
                group.start_soon(session.invoke, "go")
                await begun.wait()
                group.cancel_scope.cancel()
        else:
            assert (await session.invoke("go", timeout_s=1)).stop_reason == "limit_time"
        await ended.wait()
    async with Sessions(world) as sessions:
        (child,) = subagents(world)
        messages = [each for _, each in (await sessions.shown_at("s", agent=child)).messages]
    previous = None
    for message in messages:
        check_next(previous, message)
        previous = message
    assert [text_of(messages[0])] == ["Do it."]


async def test_the_events_of_a_subagent_go_through_the_stream_of_its_tool() -> None:
    world, pieces = World(), list[str]()
    async with Runtime(sessions=world, wakes_max=0) as runtime:
        async for event in runtime.agent(boss(world)).session("s").stream("go"):
            inner = event.get("tool_stream_event", {}).get("data", {})
            if isinstance(inner, dict) and "data" in inner:
                pieces.append(inner["data"])
    assert "".join(pieces) == "booked"


# Beside the turn.


def detaching(world: World, *, asks: bool = False, **bounds: Any) -> AgentSpec:
    """An agent whose tool has another agent do something beside the turn."""
    inner = worker(world, asks=asks)

    @tool(durable=True)
    async def start(tool_context: ToolContext) -> str:
        """Start it."""
        task = await tool_context.spawn(inner, "Do it.", detached=True, **bounds)
        return f"started {task[:6]}"

    def answer(messages: Any) -> str:
        texts = [block["text"] for each in messages for block in each["content"] if "text" in block]
        told = [text for text in texts if "background_tool_result" in text]
        return f"told {told[-1].splitlines()[-2]}" if told else "begun"

    return boss(world, tools=[start, inner.as_tool()], steps=(use("start"), answer))


async def told(world: World, spec: AgentSpec) -> list[str]:
    """The assistant's answers once nothing is owed."""
    async with Runtime(sessions=world) as runtime:
        session = runtime.agent(spec).session("s")
        with suppress(RepertoryError):
            await session.invoke("go", idempotency_token="t")
        with anyio.move_on_after(30):
            while True:
                texts = [text_of(each) for each in await session.messages() if each["role"] == "assistant"]
                if any(text.startswith("told") for text in texts):
                    return texts
                await anyio.sleep(0.1)
        return texts


async def test_a_detached_subagent_works_beside_the_turn_and_its_result_is_told() -> None:
    world = World()
    texts = await told(world, detaching(world))
    assert texts[-1] == "told booked"
    assert len(subagents(world)) == 1
    assert len(world.effects) == 2


async def test_killed_at_any_moment_a_detached_subagent_goes_on_once_and_is_told_once() -> None:
    world = World()
    await told(world, detaching(world))
    for number, left in enumerate(world.left):
        texts = await told(killed(left), detaching(left))
        assert [text for text in texts if text.startswith("told")] == ["told booked"], number
        assert len(subagents(left)) == 1, number
        assert len(left.effects) == 2, number


async def test_a_detached_subagent_spends_at_most_what_is_left_for_the_call_also_after_a_kill() -> None:
    world = World()
    whole = Budget(total_tokens=1_000_000)
    spec = detaching(world, budget=Budget(total_tokens=1))
    async with Runtime(sessions=world, wakes_max=0) as runtime:
        session = runtime.agent(spec).session("s")
        await session.invoke("go", idempotency_token="t", budget=whole)
    first = next(left for left in world.left if subagents_in(left))
    texts = await told(killed(first), detaching(first, budget=Budget(total_tokens=1)))
    assert [text for text in texts if text.startswith("told")]
    assert not any(key.startswith("book") for key in first.effects)


async def test_detached_subagents_of_one_turn_share_what_is_left_for_it_also_after_a_kill() -> None:
    async def spent(world: World, tokens: int) -> int:
        """What the second lives of three subagents spend together that the first one left behind at once."""
        inner = worker(world)

        @tool(durable=True)
        async def start(tool_context: ToolContext) -> str:
            """Start them."""
            for name in "abc":
                await tool_context.spawn(inner, "Do it.", detached=True, name=name)
            return "started"

        steps = (use("start"), lambda messages: "begun")
        spec = boss(world, tools=[start, inner.as_tool()], steps=steps, background_tasks={"wait_for_completion": False})
        async with Runtime(sessions=world, wakes_max=0) as runtime:
            session = runtime.agent(spec).session("s")
            await session.invoke("go", idempotency_token="t", budget=Budget(total_tokens=tokens))
        left = next(each for each in world.left if subagents_in(each))
        inner = worker(left)
        spec = boss(left, tools=[start, inner.as_tool()], steps=steps, background_tasks={"wait_for_completion": False})
        async with Runtime(sessions=killed(left)) as runtime:
            while await runtime.agent(spec).session("s").deferred():  # noqa: ASYNC110 - Nothing tells of the last end.
                await anyio.sleep(0.1)
        return left.effects.total()

    enough, bound = await spent(World(), 1_000_000), await spent(World(), 800)
    assert enough == 6
    assert bound < 6


def subagents_in(world: World) -> list[str]:
    return subagents(world) if "s" in world.shelf.sessions else []


async def test_a_question_of_a_detached_subagent_is_asked_by_a_turn_of_its_parent() -> None:
    world = World()
    async with Runtime(sessions=world) as runtime:
        session = runtime.agent(detaching(world, asks=True)).session("s")
        result = await session.invoke("go")
        (question,) = result.interrupts
        answer = await session.invoke([question.respond("yes")])
    assert world.effects.total() == 2
    assert answer.stop_reason == "end_turn"


@pytest.mark.parametrize("bad", ["", None, [{"text": "a"}]])
async def test_a_detached_subagent_has_a_text_as_its_task_and_an_agent_that_is_a_tool(bad: object) -> None:
    world, errors = World(), list[str]()
    inner, other = worker(world), worker(world)

    @tool
    async def start(tool_context: ToolContext) -> str:
        """Start it."""
        for agent, prompt in ((inner, bad), (other, "go")):
            with pytest.raises(Invalid) as refused:
                await tool_context.spawn(agent, prompt, detached=True)  # type: ignore[arg-type]
            errors.append(str(refused.value))
        return "done"

    spec = boss(world, tools=[start, inner.as_tool()], steps=(use("start"), last_result))
    assert str(await call(world, spec)) == "done"
    assert "is a text" in errors[0]
    assert "as a tool" in errors[1]


# Cancelled by a program.


@pytest.mark.parametrize("nested", [False, True])
async def test_a_program_cancels_a_detached_subagent_by_the_id_of_its_task(nested: bool) -> None:
    world, begun, ended = World(), anyio.Event(), anyio.Event()

    @tool(durable=True)
    async def book(tool_context: ToolContext) -> str:
        """Book it, and wait."""

        async def unbook() -> None:
            world.effect("unbook")

        tool_context.on_failure("unbook", unbook)
        await tool_context.step("book", lambda: world.effect("book"))
        begun.set()
        try:
            await anyio.sleep_forever()
        finally:
            ended.set()

    inner = Agent(replies(use("book"), "later"), name="worker", tools=[book], callback_handler=None)
    if nested:
        inner = Agent(replies(use("worker", input="go"), "later"), name="worker", tools=[inner], callback_handler=None)

    @tool(durable=True)
    async def start(tool_context: ToolContext) -> str:
        """Start it."""
        return await tool_context.spawn(inner, "Do it.", detached=True)

    async with Runtime(sessions=world, wakes_max=0) as runtime, anyio.create_task_group() as group:
        spec = boss(world, tools=[start, inner.as_tool()], steps=(use("start"), "begun"))
        session = runtime.agent(spec).session("s")
        group.start_soon(session.invoke, "go")
        await begun.wait()
        (task,) = await session.deferred()
        assert task.run is not None
        assert task.run.input == {"input": "Do it."}
        assert await session.cancel_tool(task.id) is True
        assert ended.is_set()
        assert await session.deferred() == []
        assert await session.cancel_tool(task.id) is False
        with pytest.raises(Gone):
            await session.cancel_tool("later-unknown")
        await session.invoke("go on")
        told_texts = [text_of(each) for each in await session.messages() if "background_tool_result" in text_of(each)]
    assert dict(world.effects) == {"book": 1, "unbook": 1}
    assert len(told_texts) == 1
    assert "Cancelled before it ended." in told_texts[0]


@pytest.mark.parametrize("way", ["spawn", "tool"])
@pytest.mark.parametrize("nested", [False, True])
async def test_a_program_ends_a_subagent_for_which_a_tool_waits_by_its_id(way: str, nested: bool) -> None:
    world, begun, ids = World(), anyio.Event(), list[str]()

    def spec(world: World) -> AgentSpec:
        @tool(durable=True)
        async def book(tool_context: ToolContext) -> str:
            """Book it, and wait."""
            ids.append(tool_context.agent_id)

            async def unbook() -> None:
                world.effect("unbook")

            tool_context.on_failure("unbook", unbook)
            await tool_context.step("book", lambda: world.effect("book"))
            begun.set()
            await anyio.sleep_forever()
            return "booked"

        inner = Agent(replies(use("book"), "later"), name="worker", tools=[book], callback_handler=None)
        if nested:
            asked = use("worker", input="go")
            inner = Agent(replies(asked, last_result), name="worker", tools=[inner], callback_handler=None)

        @tool(durable=True)
        async def start(tool_context: ToolContext) -> str:
            """Start it."""
            result = await tool_context.spawn(inner, "Do it.")
            return result.stop_reason if not nested else str(result)

        asked = use("start") if way == "spawn" else use("worker", input="Do it.")
        return boss(world, tools=[start, inner.as_tool()], steps=(asked, last_result))

    answers = list[str]()
    async with Runtime(sessions=world, wakes_max=0) as runtime, anyio.create_task_group() as group:
        session = runtime.agent(spec(world)).session("s")

        async def ask() -> None:
            answers.append(str(await session.invoke("go", idempotency_token="t")))

        group.start_soon(ask)
        await begun.wait()
        assert await session.cancel_tool(ids[0]) is True
        with pytest.raises(Gone):
            await session.cancel_tool(ids[0])
    wanted = "cancelled" if way == "spawn" and not nested else "Cancelled before it ended."
    assert answers == [wanted]
    assert dict(world.effects) == {"book": 1, "unbook": 1}
    # What is on record stays: neither the booking nor its compensation is made once more, whenever a kill comes.
    for number, left in enumerate([left for left in world.left if left.effects["unbook"]][1:]):
        assert str(await call(killed(left), spec(left))) in (wanted, "later", "end_turn"), number
        assert dict(left.effects) == {"book": 1, "unbook": 1}, number


async def test_a_program_gives_up_waiting_for_a_tool_that_has_deferred() -> None:
    world = World()

    @tool
    def order(tool_context: ToolContext) -> object:
        """Order it."""
        return tool_context.defer()

    async with Runtime(sessions=world, wakes_max=0) as runtime:
        session = runtime.agent(boss(world, tools=[order], steps=(use("order"), "begun"))).session("s")
        await session.invoke("go")
        (waiting,) = await session.deferred()
        assert await session.cancel_tool(waiting.id) is True
        await session.invoke("go on")
        texts = [text_of(each) for each in await session.messages()]
    assert any("Cancelled before it ended." in text for text in texts)


async def test_without_a_place_for_it_a_detached_subagent_is_refused() -> None:
    errors = list[str]()
    inner = Agent(ScriptedModel("fine", loop=True), name="inner", callback_handler=None)

    @tool(durable=True)
    async def start(tool_context: ToolContext) -> str:
        """Start it."""
        with pytest.raises(Invalid) as refused:
            await tool_context.spawn(inner, "go", detached=True)
        errors.append(str(refused.value))
        with pytest.raises(TypeError, match="'nme'"):
            await tool_context.spawn(inner, "go", nme="a")  # type: ignore[call-overload]
        return "done"

    agent = Agent(replies(use("start"), last_result), tools=[start, inner], callback_handler=None)
    assert str(await agent.invoke_async("go")) == "done"
    assert "would not be stored" in errors[0]


# Reports.


def reporting(world: World) -> AgentSpec:
    """An agent with a subagent whose tool reports, and with a synchronous tool that does."""

    @tool(durable=True)
    async def search(tool_context: ToolContext) -> str:
        """Search."""
        for number in (12, 40):
            await tool_context.report(f"found {number} of 40")
            world.effect(f"report {tool_context.idempotency_key} {number}")
        return "found all"

    @tool
    def count(tool_context: ToolContext) -> str:
        """Count."""
        tool_context.run_report("counting")
        return "counted"

    inner = Agent(replies(use("search"), last_result), name="worker", tools=[search], callback_handler=None)
    return boss(world, tools=[inner.as_tool(), count], steps=(use("worker", input="Do it."), use("count"), last_result))


def reports_of(event: Any) -> list[str]:
    text = report_in(event)
    return [] if text is None else [text]


def reported(world: World, agent_id: str) -> list[str]:
    """The reports in the journal of this agent."""
    records = decode_all(world.shelf.sessions["s"].journals[agent_id]) or []
    return [str(each.input) for each in records if isinstance(each, StepStarted) and each.lane == "report"]


async def test_reports_of_tools_and_of_subagents_go_through_the_stream() -> None:
    world, found = World(), list[str]()
    async with Runtime(sessions=world, wakes_max=0) as runtime:
        async for event in runtime.agent(reporting(world)).session("s").stream("go"):
            found += reports_of(event)
    assert found == ["found 12 of 40", "found 40 of 40", "counting"]


async def test_a_report_is_one_record_and_stays_one_when_its_tool_runs_again() -> None:
    world = World()
    await call(world, reporting(world))
    assert reported(world, subagents(world)[0]) == ["found 12 of 40", "found 40 of 40"]
    for number, left in enumerate(world.left):
        await call(killed(left), reporting(left))
        assert reported(left, subagents(left)[0]) == ["found 12 of 40", "found 40 of 40"], number


async def test_the_status_of_a_turn_lists_the_reports_of_tools_that_run() -> None:
    made, ends = anyio.Event(), anyio.Event()

    @tool
    async def search(tool_context: ToolContext) -> str:
        """Search."""
        await tool_context.report("found 12 of 40")
        made.set()
        await ends.wait()
        return "found all"

    spec = boss(World(), tools=[search], steps=(use("search"), last_result))
    async with Runtime(sessions=World(), wakes_max=0) as runtime, anyio.create_task_group() as group:
        session = runtime.agent(spec).session("s")
        group.start_soon(partial(session.invoke, "go", idempotency_token="t"))
        await made.wait()
        running = await session.told("t")
        ends.set()
        await session.invoke("go", idempotency_token="t")
        over = await session.told("t")
    assert running is not None
    assert over is not None
    assert (list(running.reports), list(over.reports)) == (["found 12 of 40"], [])


async def test_a_report_of_a_tool_in_the_background_is_shown_by_the_turn_that_runs() -> None:
    world, found = World(), list[str]()
    inner: Any = next(each for each in reporting(world).tools if getattr(each, "name", "") == "worker")

    @tool(durable=True)
    async def start(tool_context: ToolContext) -> str:
        """Start it."""
        await tool_context.spawn(inner.agent, "Do it.", detached=True)
        return "started"

    spec = boss(world, tools=[start, inner], steps=(use("start"), "done"))
    async with Runtime(sessions=world, wakes_max=0) as runtime:
        async for event in runtime.agent(spec).session("s").stream("go"):
            found += reports_of(event)
    assert found == ["found 12 of 40", "found 40 of 40"]


@pytest.mark.parametrize("bad", ["", "x" * 1001, 3, None], ids=["empty", "long", "a number", "nothing"])
async def test_a_report_is_a_short_text(bad: Any) -> None:
    @tool
    async def search(tool_context: ToolContext) -> str:
        """Search."""
        with pytest.raises(Invalid, match="a text of at most 1,000 characters"):
            await tool_context.report(bad)
        return "done"

    agent = Agent(replies(use("search"), last_result), tools=[search], callback_handler=None)
    assert str(await agent.invoke_async("go")) == "done"


async def test_no_tool_call_has_more_reports_on_record_than_the_bound() -> None:
    world = World()

    @tool
    async def search(tool_context: ToolContext) -> str:
        """Search."""
        for number in range(REPORTS_MAX + 20):
            await tool_context.report(f"found {number}")
        return "done"

    await call(world, boss(world, tools=[search], steps=(use("search"), last_result)))
    assert len(reported(world, "boss")) == REPORTS_MAX


# The tool by which a model starts them.


@pytest.mark.parametrize("background", [False, True])
async def test_a_model_has_one_of_several_agents_do_a_task_also_across_kills(background: bool) -> None:
    def spec(world: World) -> AgentSpec:
        other = Agent(ScriptedModel("no", loop=True), name="other", callback_handler=None)
        team = Subagents(worker(world), other, background=background)

        def answer(messages: Any) -> str:
            texts = [str(block) for each in messages for block in each["content"]]
            return "told booked" if any("booked" in text for text in texts) else "begun"

        return boss(world, tools=[team], steps=(use("subagent", agent="worker", prompt="Do it."), answer))

    world = World()
    assert (await told(world, spec(world)))[-1] == "told booked"
    for number, left in enumerate(world.left):
        texts = await told(killed(left), spec(left))
        assert texts.count("told booked") == 1, number
        assert len(subagents(left)) == 1, number
        assert len(left.effects) == 2, number


async def test_the_model_cancels_a_subagent_by_the_id_of_its_task() -> None:
    world, begun, ended = World(), anyio.Event(), anyio.Event()

    @tool
    async def hang() -> None:
        """Never end."""
        begun.set()
        try:
            await anyio.sleep_forever()
        finally:
            ended.set()

    inner = Agent(replies(use("hang"), "later"), name="worker", tools=[hang], callback_handler=None)

    @tool
    async def look() -> str:
        """Wait until it works."""
        await begun.wait()
        return "it works"

    def cancel(messages: Any) -> object:
        text = str(messages)
        task_id = text[text.index("later-") :].split("\\n")[0]
        return use("strands_manage_background_task", mode="cancel", task_id=task_id)

    team = Subagents(inner, background=True)
    steps = (use("subagent", agent="worker", prompt="Do it."), use("look"), cancel, "done")
    assert str(await call(world, boss(world, tools=[team, look], steps=steps))) == "done"
    assert ended.is_set()
    async with Sessions(world) as sessions:
        messages = [each for _, each in (await sessions.shown_at("s", agent=subagents(world)[0])).messages]
    for before, message in zip([None, *messages], messages, strict=False):
        check_next(before, message)


def test_subagents_of_one_name_are_refused() -> None:
    agent = Agent(ScriptedModel([]), name="a")
    for agents in ((), (agent, agent)):
        with pytest.raises(Invalid, match="a name of its own"):
            Subagents(*agents)


def test_what_is_no_agent_and_a_flag_that_is_none_are_refused_at_once() -> None:
    wrong, agent = cast("Any", "yes"), Agent(ScriptedModel([]), name="a")
    with pytest.raises(Invalid, match="Subagents takes agents"):
        Subagents(wrong)
    with pytest.raises(Invalid, match="background is True or False"):
        Subagents(agent, background=wrong)
    with pytest.raises(Invalid, match="preserve_context is True or False"):
        agent.as_tool(preserve_context=wrong)
    with pytest.raises(Invalid, match="delegate is True or False"):
        agent.as_tool(delegate=wrong)


@pytest.mark.parametrize("given", [{}, {"agent": "nobody", "prompt": "go"}, {"agent": "worker", "prompt": " "}])
async def test_a_task_that_is_none_is_answered_with_what_one_looks_like(given: dict[str, object]) -> None:
    world = World()
    spec = boss(world, tools=[Subagents(worker(world))], steps=(use("subagent", **given), last_result))
    assert str(await call(world, spec)).startswith(("There is no such agent. There are: worker", "The prompt must be"))


# Those that have ended.


def asking_many(seen: list[str], count: int, **options: Any) -> AgentSpec:
    """An agent that has subagents do something, so many one after the other in each turn. `seen`: their ids."""

    @tool(idempotent=True)
    async def note(tool_context: ToolContext) -> str:
        """Note it."""
        seen.append(tool_context.agent_id)
        return "noted"

    inner = Agent(replies(use("note"), last_result), name="worker", tools=[note], callback_handler=None)

    def step(messages: Any) -> object:
        done = 0
        for message in messages:
            done = 0 if any("text" in block for block in message["content"] if message["role"] == "user") else done
            done += bool(list(tool_results(message)))
        return use("worker", input=f"Do {done}.") if done < count else "done"

    return boss(World(), tools=[inner.as_tool()], steps=(*[step] * 100, step), **options)


async def rested() -> None:
    """What is done behind a turn is done. By the clock of the tests."""
    await anyio.sleep(0.5)


@pytest.mark.parametrize(("kept", "most"), [(0, 0), (4, 5), (8, 10)])
async def test_no_more_subagents_stay_than_the_agent_keeps_and_the_newest_do(kept: int, most: int) -> None:
    world, seen = World(), list[str]()
    spec = asking_many(seen, 3, retain_subagents=kept)
    async with Runtime(sessions=world, wakes_max=0) as runtime:
        session = runtime.agent(spec).session("s")
        for turn in range(6):
            await session.invoke(f"go {turn}")
            await rested()
            now = subagents(world)
            assert len(now) <= most, turn
            assert set(seen[len(seen) - min(kept, len(seen)) :]) <= set(now), turn
    assert len(seen) == 18
    # The next process goes on as before.
    async with Runtime(sessions=world, wakes_max=0) as runtime:
        await runtime.agent(spec).session("s").invoke("go on")
        await rested()
    assert len(subagents(world)) <= most


async def test_all_subagents_stay_if_the_agent_says_so() -> None:
    world, seen = World(), list[str]()
    async with Runtime(sessions=world, wakes_max=0) as runtime:
        session = runtime.agent(asking_many(seen, 3, retain_subagents=None)).session("s")
        for turn in range(4):
            await session.invoke(f"go {turn}")
        await rested()
    assert len(subagents(world)) == 12


@pytest.mark.real_time
async def test_an_agent_outside_of_a_runtime_keeps_as_few(tmp_path: Path) -> None:
    seen, path = list[str](), tmp_path / "a.db"
    spec = asking_many(seen, 3)
    for turn in range(3):
        manager = SQLiteSessionManager("s", path=path)
        agent = Agent(spec.model, tools=spec.tools, agent_id="boss", session_manager=manager, retain_subagents=2)
        await agent.invoke_async(f"go {turn}")
        await agent.shutdown_async()
    async with Sessions(SQLiteSessions(path)) as sessions:
        (info,) = await sessions.list()
    assert set(info.agents) == {"boss", *seen[-2:]}


async def test_killed_at_any_moment_no_more_stay_and_nothing_is_done_twice() -> None:
    world = World()
    spec = partial(asking_many, count=2, retain_subagents=1)
    async with Runtime(sessions=world, wakes_max=0) as runtime:
        session = runtime.agent(spec([])).session("s")
        for turn in range(3):
            await session.invoke(f"go {turn}", idempotency_token=f"t{turn}")
            await rested()
    for number, left in enumerate(world.left):
        seen = list[str]()
        async with Runtime(sessions=killed(left), wakes_max=0) as runtime:
            session = runtime.agent(spec(seen)).session("s")
            for turn in range(4):
                await session.invoke(f"go {turn}", idempotency_token=f"t{turn}")
                await rested()
        assert len(subagents(left)) == 1, number
        async with Sessions(left) as sessions:
            shown = await sessions.shown_at("s", agent="boss")
        results = [
            block["text"]
            for _, message in shown.messages
            for result in tool_results(message)
            for block in result["content"]
            if "text" in block
        ]
        assert results == ["noted"] * 8, number


async def test_a_subagent_that_asks_stays_until_its_call_has_ended() -> None:
    world = World()
    spec = boss(world, tools=[worker(world, asks=True).as_tool()], retain_subagents=0)
    async with Runtime(sessions=world, wakes_max=0) as runtime:
        session = runtime.agent(spec).session("s")
        (question,) = (await session.invoke("go")).interrupts
        await rested()
        assert len(subagents(world)) == 1
        await session.invoke([question.respond("yes")])
        await rested()
    assert subagents(world) == []
    assert world.effects.total() == 2


async def test_a_subagent_in_the_background_stays_until_its_result_is_told() -> None:
    world, gate = World(), anyio.Event()

    @tool(durable=True)
    async def wait() -> str:
        """Wait."""
        await gate.wait()
        return "waited"

    inner = Agent(replies(use("wait"), last_result), name="waiter", tools=[wait], callback_handler=None)

    @tool(durable=True)
    async def start(tool_context: ToolContext) -> str:
        """Start it."""
        await tool_context.spawn(inner, "Wait.", detached=True)
        return "started"

    spec = boss(world, tools=[start, inner.as_tool()], steps=(use("start"), "begun"), retain_subagents=0)
    async with Runtime(sessions=world, wakes_max=0) as runtime, anyio.create_task_group() as group:
        session = runtime.agent(spec).session("s")
        group.start_soon(session.invoke, "go")
        await rested()
        assert len(subagents(world)) == 1
        gate.set()
        await rested()
    assert subagents(world) == []


@pytest.mark.real_time
@pytest.mark.parametrize("kind", ["sqlite", "postgres", "journal in files", "journal in memory"])
async def test_in_every_place_no_more_subagents_stay_than_the_agent_keeps(kind: str, tmp_path: Path) -> None:
    place, seen = place_of(kind, tmp_path), list[str]()
    spec = asking_many(seen, 2, retain_subagents=3)
    for round in range(2):
        async with Runtime(sessions=place, wakes_max=0) as runtime:
            session = runtime.agent(spec).session("s")
            for turn in range(3):
                await session.invoke(f"go {round} {turn}")
            async with Sessions(place) as sessions:
                while True:
                    (info,) = await sessions.list()
                    now = {each for each in info.agents if is_subagent(each)}
                    if now == set(seen[-3:]):
                        break
                    await anyio.sleep(0.05)
    async with Sessions(place) as sessions:
        report = await sessions.doctor()
        await sessions.fork("s", "f")
        await sessions.rewind("s", to=0)
        await sessions.export("s", tmp_path / "s.jsonl")
        await sessions.delete("s")
    assert not report.damages
    assert [list(each.problems) for each in report.sessions] == [[]]


@pytest.mark.parametrize("bad", [-1, True, 1.5, "all"])
def test_what_is_no_number_of_subagents_is_refused(bad: Any) -> None:
    with pytest.raises(Invalid, match="retain_subagents is a number"):
        Agent(ScriptedModel([]), retain_subagents=bad)
