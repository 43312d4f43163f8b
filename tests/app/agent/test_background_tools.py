"""Tools in the background: beside the turn, told once when they end, in whatever life of the process."""

from __future__ import annotations

import copy
import re
from collections import Counter
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any

import anyio
import pytest

from repertory import (
    AfterToolCallEvent,
    Agent,
    AgentSpec,
    BeforeToolCallEvent,
    Budget,
    Graph,
    Runtime,
    ScriptedModel,
    ToolContext,
    tool,
)
from repertory.backends.tools.function_tool import schema_class
from repertory.core.interrupts import Interrupt
from repertory.core.messages import Message, text_of, tool_results, tool_uses
from repertory.core.turns.background_tasks import FLAG, MANAGE
from repertory.errors import Invalid
from tests.simulation.killed_worlds import World, killed

pytestmark = pytest.mark.anyio

schema_class()  # Loading it uses a thread, which a clock that jumps would pass.

EPOCH = 1_800_000_000.0


def wall() -> float:
    """Epoch seconds that pass as the loop's clock does."""
    return EPOCH + anyio.current_time()


def use(name: str, **given: Any) -> dict[str, Any]:
    return {"toolUse": {"name": name, "input": given}}


def behind(name: str, **given: Any) -> dict[str, Any]:
    """A use that the model puts in the background."""
    return use(name, **given, **{FLAG: True})


def told(messages: Sequence[Message]) -> list[str]:
    """The results that the model is told late, one by one."""
    texts = [text_of(message) for message in messages if message["role"] == "user"]
    block = r"<background_tool_result [^>]*>\n(.*?)\n</background_tool_result>"
    return [found for text in texts for found in re.findall(block, text, re.DOTALL)]


def task_of(messages: Sequence[Message], number: int = 0) -> str:
    """The id of a task that the model was given."""
    ids = [found for message in messages for result in tool_results(message)
           for found in re.findall(r"Task ID: (later-\w+?)\\n", str(result["content"]))]  # fmt: skip
    return ids[number]


@tool
async def slow(seconds: float, text: str = "done") -> str:
    """Take some seconds."""
    await anyio.sleep(seconds)
    return text


@tool(background=True)
async def always_slow(seconds: float) -> str:
    """Take some seconds."""
    await anyio.sleep(seconds)
    return "slow by itself"


def agent_with(replies: Sequence[object], **options: Any) -> Agent:
    options = {"tools": [slow], "background_tasks": True, **options}
    return Agent(ScriptedModel(replies), callback_handler=None, **options)


# What the model is shown and gets.


async def test_a_call_waits_for_its_tools_in_the_background_and_tells_what_they_gave() -> None:
    agent = agent_with([[behind("slow", seconds=5)], "It runs.", "It is done."])
    began = anyio.current_time()
    assert str(await agent.invoke_async("go")) == "It is done."
    assert anyio.current_time() - began >= 5
    (_, _, given, answer, later, _) = agent.messages
    (result,) = tool_results(given)
    assert result["status"] == "success"
    assert str(result["content"]).count("Background task dispatched.") == 1
    assert text_of(answer) == "It runs."
    assert told([later]) == ["done"]


async def test_only_tools_of_which_the_model_decides_show_it_the_choice_and_none_sees_it() -> None:
    seen: list[object] = []

    @tool
    def look(x: int) -> str:
        """Look."""
        seen.append(x)
        return "seen"

    @tool
    def never(x: int) -> str:
        """Look."""
        return "seen"

    model = ScriptedModel([[use("look", x=1, **{FLAG: False}), behind("never", x=2)], "Fine."])
    agent = Agent(model, tools=[look, never], background_tasks={"never": ["never"]}, callback_handler=None)
    assert str(await agent.invoke_async("go")) == "Fine."
    specs = {spec["name"]: spec["inputSchema"]["json"]["properties"] for spec in model.calls[0].tool_specs or ()}
    assert FLAG in specs["look"]
    assert FLAG not in specs["never"]
    assert FLAG not in specs[MANAGE]
    assert seen == [1]
    assert next(iter(tool_uses(agent.messages[1])))["input"] == {"x": 1, FLAG: False}
    assert [result["content"] for result in tool_results(agent.messages[2])] == [[{"text": "seen"}]] * 2


async def test_a_tool_may_say_itself_that_it_runs_in_the_background() -> None:
    agent = Agent(
        ScriptedModel([[use("always_slow", seconds=1)], "It runs.", "Done."]),
        tools=[always_slow, slow],
        callback_handler=None,
    )
    assert str(await agent.invoke_async("go")) == "Done."
    assert told(agent.messages) == ["slow by itself"]
    never = Agent(
        ScriptedModel([[use("always_slow", seconds=1)], "Done."]),
        tools=[always_slow],
        background_tasks=False,
        callback_handler=None,
    )
    await never.invoke_async("go")
    assert told(never.messages) == []
    assert [result["content"] for result in tool_results(never.messages[2])] == [[{"text": "slow by itself"}]]


async def test_a_turn_that_still_runs_is_told_within_itself() -> None:
    agent = agent_with([[behind("slow", seconds=1, text="first")], [use("slow", seconds=5)], "Both."])
    assert str(await agent.invoke_async("go")) == "Both."
    assert told(agent.messages) == ["first"]
    assert any(tool_results(agent.messages[4]))  # In the message that has the result of the second tool.
    assert len(agent.messages) == 6


async def test_calls_in_the_foreground_are_not_held_up() -> None:
    agent = agent_with([[behind("slow", seconds=100, text="late"), use("slow", seconds=1)], "Both.", "Done."])
    began = anyio.current_time()
    ends: list[float] = []

    def note(event: AfterToolCallEvent) -> None:
        ends.append(anyio.current_time() - began)

    agent.add_hook(note)
    await agent.invoke_async("go")
    assert [round(each) for each in ends] == [1, 100]


async def test_hooks_are_called_once_before_a_tool_in_the_background_and_once_behind_it() -> None:
    calls: list[str] = []

    def before(event: BeforeToolCallEvent) -> None:
        calls.append(f"before {event.tool_use['name']}")

    def after(event: AfterToolCallEvent) -> None:
        calls.append(f"after {event.result['content'][0].get('text')}")
        event.result = {**event.result, "content": [{"text": "edited"}]}

    agent = agent_with([[behind("slow", seconds=1)], "It runs.", "Done."], hooks=[before, after])
    await agent.invoke_async("go")
    assert calls == ["before slow", "after done"]
    assert told(agent.messages) == ["edited"]


async def test_what_fails_in_the_background_is_told_as_a_failure() -> None:
    @tool
    async def fails() -> str:
        """Fail."""
        raise RuntimeError("no paper")

    agent = agent_with([[behind("fails")], "It runs.", "I see."], tools=[fails])
    await agent.invoke_async("go")
    (text,) = told(agent.messages)
    assert "no paper" in text
    assert 'status="error"' in str(agent.messages)


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ("yes", "background_tasks is True, False"),
        ({"wait": True}, "unknown keys"),
        ({"max_concurrency": 0}, "from 1 to 1,000"),
        ({"timeout": -1}, "positive number"),
        ({"wait_for_completion": "no"}, "True or False"),
        ({"always": "slow"}, "list of tools"),
        ({"always": [3]}, "tools or their names"),
        ({"always": ["slow"], "never": ["slow"]}, "one mode"),
    ],
    ids=["a word", "a key", "none at once", "no time", "waits", "a name", "a number", "two modes"],
)
async def test_wrong_settings_are_refused(given: Any, error: str) -> None:
    with pytest.raises(Invalid, match=error):
        agent_with(["x"], background_tasks=given)


async def test_a_name_that_no_tool_has_is_warned_about_once(caplog: pytest.LogCaptureFixture) -> None:
    agent = agent_with(["Hello.", "Again."], background_tasks={"never": ["slwo"], "always": ["slow"]})
    for _ in range(2):
        await agent.invoke_async("hello")
    assert [record.getMessage() for record in caplog.records if "names tools" in record.getMessage()] == [
        "background_tasks names tools that the agent does not have: ['slwo']"
    ]


async def test_a_choice_that_is_none_is_an_error_of_the_call_alone() -> None:
    agent = agent_with([[use("slow", seconds=1, **{FLAG: "maybe"})], "Sorry."])
    await agent.invoke_async("go")
    (result,) = tool_results(agent.messages[2])
    assert (result["status"], result["content"]) == ("error", [{"text": f"'{FLAG}' must be a boolean"}])


# Bounds, and the model that looks after its tasks.


async def test_only_so_many_run_at_once_and_the_others_wait() -> None:
    now, most = 0, 0

    @tool
    async def count(n: int) -> str:
        """Count."""
        nonlocal now, most
        now, most = now + 1, max(most, now + 1)
        await anyio.sleep(1)
        now -= 1
        return f"{n}"

    uses = [behind("count", n=n) for n in range(7)]
    agent = agent_with([uses, "All run.", *["More."] * 7], tools=[count], background_tasks={"max_concurrency": 3})
    await agent.invoke_async("go")
    assert most == 3
    assert sorted(told(agent.messages)) == [str(n) for n in range(7)]
    texts = [str(result["content"]) for result in tool_results(agent.messages[2])]
    assert [("queued" in text, "working" in text) for text in texts] == [(False, True)] * 3 + [(True, False)] * 4


async def test_a_run_is_bounded_in_time() -> None:
    agent = agent_with([[behind("slow", seconds=100)], "It runs.", "Too slow."], background_tasks={"timeout": 2})
    began = anyio.current_time()
    await agent.invoke_async("go")
    assert anyio.current_time() - began < 3
    (text,) = told(agent.messages)
    assert "2" in text


async def test_the_model_lists_waits_for_and_cancels_its_tasks() -> None:
    replies: list[object] = [
        [behind("slow", seconds=5, text="short"), behind("slow", seconds=500, text="long")],
        [use(MANAGE, mode="list")],
        lambda messages, *_: [use(MANAGE, mode="wait", task_id=task_of(messages, 0))],
        lambda messages, *_: [use(MANAGE, mode="cancel", task_id=task_of(messages, 1))],
        lambda messages, *_: [use(MANAGE, mode="get", task_id="later-none")],
        "Done.",
    ]
    agent = agent_with(replies)
    began = anyio.current_time()
    await agent.invoke_async("go")
    assert anyio.current_time() - began < 10
    results = [result for message in agent.messages for result in tool_results(message)]
    tasks = results[2]["content"][0]["json"]["tasks"]  # type: ignore[index]
    assert [(each["tool_name"], each["status"]) for each in tasks] == [("slow", "working")] * 2
    cancelled = results[4]["content"][0]["json"]  # type: ignore[index]
    assert cancelled["status"] == "cancelled"
    assert (results[5]["status"], "was not found" in str(results[5]["content"])) == ("error", True)
    assert told(agent.messages)[0] == "short"
    assert not any("long" in text for text in told(agent.messages))


async def test_the_variables_of_the_call_and_its_budget_hold_in_the_background() -> None:
    tenant: ContextVar[str] = ContextVar("tenant", default="nobody")
    budget = Budget(total_tokens=10_000_000)
    helper = Agent(
        ScriptedModel(["Found."]), agent_id="helper", name="helper", description="Finds.", callback_handler=None
    )
    seen: list[str] = []

    @tool
    async def look(tool_context: ToolContext) -> str:
        """Look."""
        await anyio.sleep(1)
        seen.append(tenant.get())
        return "seen"

    uses = [behind("look"), behind("helper", input="find it")]
    agent = agent_with([uses, "They run.", "One.", "Both."], tools=[look, helper.as_tool()])
    tenant.set("acme")
    await agent.invoke_async("go", budget=budget)
    assert seen == ["acme"]
    assert "helper" in budget.by


async def test_a_tool_in_the_background_that_calls_its_own_agent_does_not_wait_for_itself() -> None:
    @tool
    async def ask(tool_context: ToolContext) -> str:
        """Ask the agent itself."""
        await anyio.sleep(1)
        return str(await tool_context.agent.invoke_async("and?"))

    agent = agent_with([[behind("ask")], "It runs.", "I see."], tools=[ask])
    with anyio.fail_after(60):
        assert str(await agent.invoke_async("go")) == "I see."
    (text,) = told(agent.messages)
    assert "wait for itself" in text


# Where calls do not wait.


def spec(replies: Sequence[object], tools: Sequence[Any] = (slow,), **more: Any) -> AgentSpec:
    more = {"background_tasks": {"wait_for_completion": False}, **more}
    return AgentSpec(name="a", model=ScriptedModel(replies, loop=True), tools=list(tools), **more)


def runtime_on(world: World) -> Runtime:
    return Runtime(sessions=world, wall=wall, idle_timeout_s=5.0)  # type: ignore[arg-type] - a place of sessions


async def test_a_result_is_told_in_a_turn_of_its_own_where_calls_do_not_wait() -> None:
    async with runtime_on(World()) as runtime:
        session = runtime.agent(spec([[behind("slow", seconds=60)], "It runs.", "It is done."])).session("s")
        assert str(await session.invoke("go")) == "It runs."
        pending = await session.pending()
        assert pending is not None
        assert pending.why == "waits for a tool"
        await anyio.sleep(59)
        assert told(await session.messages()) == []
        await anyio.sleep(2)
        assert told(await session.messages()) == ["done"]
        assert text_of((await session.messages())[-1]) == "It is done."
        assert await session.pending() is None


async def test_a_result_from_outside_ends_the_run() -> None:
    ran = Counter[str]()

    @tool
    async def work() -> str:
        """Work."""
        ran["begun"] += 1
        await anyio.sleep(100)
        ran["ended"] += 1
        return "own"

    async with runtime_on(World()) as runtime:
        session = runtime.agent(spec([[behind("work")], "It runs.", "It is done."], [work])).session("s")
        await session.invoke("go")
        (waits,) = await session.deferred()
        assert await session.complete_tool(waits.id, "by a person")
        await anyio.sleep(200)
        assert told(await session.messages()) == ["by a person"]
        assert ran == {"begun": 1}


async def test_a_shutdown_waits_for_what_runs_and_leaves_what_waits_to_the_next_life() -> None:
    world, ran = World(), Counter[str]()

    @tool
    async def work(n: int) -> str:
        """Work."""
        ran[f"begun {n}"] += 1
        await anyio.sleep(5)
        ran[f"ended {n}"] += 1
        return str(n)

    replies = [[behind("work", n=1), behind("work", n=2)], "They run.", "Fine."]
    settings = {"background_tasks": {"wait_for_completion": False, "max_concurrency": 1}}
    async with runtime_on(world) as runtime:
        await runtime.agent(spec(replies, [work], **settings)).session("s").invoke("go")
    assert ran == {"begun 1": 1, "ended 1": 1}
    async with runtime_on(world) as runtime:
        session = runtime.agent(spec(["Fine."], [work], **settings)).session("s")
        await anyio.sleep(60)
        assert sorted(told(await session.messages())) == ["1", "2"]
    assert ran == {"begun 1": 1, "ended 1": 1, "begun 2": 1, "ended 2": 1}


@pytest.mark.parametrize("edits", [True, False], ids=["a program edits the messages", "a snapshot is loaded"])
async def test_a_snapshot_from_before_it_ends_a_run_and_an_edit_of_messages_leaves_it(edits: bool) -> None:
    ran = Counter[str]()

    @tool
    async def work() -> str:
        """Work."""
        try:
            await anyio.sleep(100)
        except BaseException:
            ran["cut"] += 1
            raise
        ran["ended"] += 1
        return "worked"

    async with runtime_on(World()) as runtime:
        replies = ["Hello.", [behind("work")], "It runs.", "Late."]
        session = runtime.agent(spec(replies, [work])).session("s")
        await session.invoke("hello")
        agent = session.agent
        async with agent:
            snapshot = agent.take_snapshot(preset="session")
            await session.invoke("go")
            await anyio.sleep(5)
            if edits:
                agent.messages = agent.messages[:2]
            else:
                await agent.load_snapshot_async(snapshot)
                await anyio.sleep(1)
                assert ran == {"cut": 1}
        await anyio.sleep(200)
        assert told(await session.messages()) == (["worked"] if edits else [])
        assert ran == ({"ended": 1} if edits else {"cut": 1})
        assert await session.pending() is None


async def test_the_node_of_a_graph_has_no_background_and_runs_its_tools_at_once() -> None:
    node = agent_with([[behind("slow", seconds=3)], "Done."])
    result = await Graph({"only": node}).invoke_async("go")
    assert "Done." in str(result)


# People.


def asking(world: World) -> Any:
    @tool
    async def pay(amount: int, tool_context: ToolContext) -> str:
        """Pay."""
        await anyio.sleep(1)
        answer = tool_context.interrupt("approve", reason={"amount": amount})
        world.effect("paid")
        return f"paid {amount}: {answer}"

    return pay


@pytest.mark.parametrize("waits", [True, False], ids=["the call waits", "it does not"])
async def test_a_tool_that_asks_a_person_goes_on_in_a_turn(waits: bool) -> None:
    world = World()
    replies = [[behind("pay", amount=3)], "It runs.", "Thank you."]
    own = spec(replies, [asking(world)], background_tasks={"wait_for_completion": waits})
    async with runtime_on(world) as runtime:
        session = runtime.agent(own).session("s")
        result = await session.invoke("go")
        await anyio.sleep(10)
        pending = await session.pending()
        assert pending is not None
        (question,) = pending.interrupts
        assert (question.name, question.reason, question.tool) == ("approve", {"amount": 3}, "pay")
        assert (result.stop_reason == "interrupt") == waits
        result = await session.invoke([{"interruptResponse": {"interruptId": question.id, "response": "yes"}}])
        assert str(result) == "Thank you."
        await anyio.sleep(10)
        results = [result for message in await session.messages() for result in tool_results(message)]
        assert results[-1]["content"] == [{"text": "paid 3: yes"}]
        assert told(await session.messages()) == []
    assert world.effects == {"paid": 1}


# Lives.


def three_kinds(world: World) -> list[Any]:
    """A durable tool with two steps, one that may run again, and one of which a person is asked."""

    def acts(name: str) -> Callable[[], str]:
        def act() -> str:
            world.effect(name)
            return name

        return act

    @tool(durable=True)
    async def durable(tool_context: ToolContext) -> str:
        """Take two steps."""
        first = await tool_context.step("one", acts("one"))
        await anyio.sleep(1)
        second = await tool_context.step("two", acts("two"), idempotent=True)
        return f"durable: {first} {second}"

    @tool(idempotent=True)
    async def again(tool_context: ToolContext) -> str:
        """Do the same again."""
        await anyio.sleep(2)
        world.effect(f"again {tool_context.idempotency_key}")
        return "again"

    @tool
    async def once() -> str:
        """Do it once."""
        await anyio.sleep(3)
        world.effect("once")
        return "once"

    return [durable, again, once]


def replies_to(messages: Sequence[Message], *_: object) -> object:
    """Dispatches the three, and says how many results it has been told."""
    if text_of(messages[-1]) == "go":
        return [behind("durable"), behind("again"), behind("once")]
    return f"told {len(told(messages))}"


def looked_up(questions: Sequence[Interrupt], world: World) -> list[Any]:
    """The answers of a person who looks in the world for the effect that is asked about."""
    answers: list[Any] = []
    for one in questions:
        about = one.reason if isinstance(one.reason, dict) else {}
        name = "one" if about.get("step") == "one" else "once"
        answers.append(one.respond({"result": name} if world.effects[name] else "retry"))
    return answers


async def the_life_of(world: World, *, calls: bool, **more: Any) -> list[Message]:
    """What a process makes of the world, in which a person answers what is asked as the world is."""
    own = AgentSpec(name="a", model=ScriptedModel([replies_to], loop=True), tools=three_kinds(world), **more)
    async with runtime_on(world) as runtime:
        session = runtime.agent(own).session("s")
        if calls:
            await session.invoke("go", idempotency_token="t")
        for _ in range(10):
            await anyio.sleep(30)
            pending = await session.pending()
            if pending is None:
                break
            if pending.interrupts:
                await session.invoke(looked_up(pending.interrupts, world))
        else:
            raise AssertionError(f"it never ends: {pending}")
        return await session.messages()


@pytest.mark.parametrize("waits", [True, False], ids=["calls wait", "calls do not wait"])
async def test_every_result_is_told_once_wherever_the_process_is_killed(waits: bool) -> None:
    world = World()
    world.moment()
    more = {"background_tasks": {"wait_for_completion": waits}}
    await the_life_of(world, calls=True, **more)
    world.moment()
    moments = [left for left in world.left if left.shelf.sessions]
    assert len(moments) >= 10
    for number, left in enumerate(moments):
        second = copy.deepcopy(left)
        second.left = []
        messages = await the_life_of(killed(second), calls=number % 2 == 0 or not left.shelf.pending_work, **more)
        late = told(messages)
        # What a person was asked about has its result in the turn that asked.
        direct = [
            text for message in messages for result in tool_results(message)
            for block in result["content"] if (text := str(block.get("text", ""))) and "dispatched" not in text
        ]  # fmt: skip
        assert sorted([*late, *direct]) == ["again", "durable: one two", "once"], (number, late, direct)
        assert second.effects["one"] == 1, number
        assert second.effects["once"] == 1, number
        assert len([name for name in second.effects if name.startswith("again ")]) == 1, number
        assert text_of(messages[-1]).startswith("told"), number


@pytest.mark.parametrize(("policy", "times"), [("retry", 2), ("fail", 1)])
async def test_an_agent_may_decide_itself_about_a_run_of_unknown_outcome(policy: Any, times: int) -> None:
    world = World()

    @tool
    async def work() -> str:
        """Work."""
        world.effect("done")
        await anyio.sleep(1000)
        return "never"

    settings = {"background_tasks": {"wait_for_completion": False}, "unknown_tool_outcome": policy}
    async with runtime_on(world) as runtime:
        await runtime.agent(spec([[behind("work")], "It runs."], [work], **settings)).session("s").invoke("go")
        left = world.left[-1]
        world.left = []
        await anyio.sleep(1)
        left = World(copy.deepcopy(world.shelf), Counter(world.effects))

    @tool(name="work")
    async def quick() -> str:
        """Work."""
        left.effect("done")
        return "quick"

    async with runtime_on(killed(left)) as runtime:
        session = runtime.agent(spec(["Fine."], [quick], **settings)).session("s")
        await anyio.sleep(60)
        (text,) = told(await session.messages())
    assert left.effects["done"] == times
    assert ("quick" in text) == (policy == "retry")
    assert ("Outcome unknown" in text) == (policy == "fail")
