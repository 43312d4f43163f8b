"""Deliveries: the events of a session reach somebody, in order, at least once, whatever ends in between."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import anyio
import pytest

from repertory import (
    Agent,
    AgentSpec,
    AnswerLinks,
    DeliveryEvent,
    FileSessions,
    Interrupt,
    Model,
    Runtime,
    ScriptedModel,
    Sessions,
    SQLiteSessions,
    Swarm,
    ToolContext,
    tool,
    webhook_secret,
)
from repertory.backends.tools.function_tool import schema_class
from repertory.core.deliveries import RETRY_S
from repertory.core.pending_work import CLAIMS_MAX
from repertory.errors import AlreadyExists, Invalid, ModelFailed, NotFound
from tests.operations.operated_places import place_of
from tests.simulation.killed_worlds import World

pytestmark = pytest.mark.anyio

schema_class()  # Loading it uses a thread, which a clock that jumps would pass.

EPOCH = 1_800_000_000.0


def wall() -> float:
    """Epoch seconds that pass as the loop's clock does."""
    return EPOCH + anyio.current_time()


def runtime_on(place: Any, **options: Any) -> Runtime:
    return Runtime(sessions=place, wall=wall, **{"idle_timeout_s": 5.0, **options})


def clerk(*replies: object, **more: Any) -> AgentSpec:
    return AgentSpec(name="clerk", model=ScriptedModel([*replies] or ["done"], loop=True), retry_strategy=None, **more)


class Receiver:
    """Takes events, unless it is down."""

    def __init__(self, down: Callable[[DeliveryEvent], bool] = lambda event: False) -> None:
        self.down = down
        self.tried: list[tuple[float, str]] = []
        self.got: list[DeliveryEvent] = []

    async def __call__(self, event: DeliveryEvent) -> None:
        self.tried.append((wall(), event.id))
        await anyio.sleep(0.01)
        if self.down(event):
            raise ConnectionError("down")
        self.got.append(event)

    @property
    def types(self) -> list[str]:
        return [event.type for event in self.got]

    @property
    def texts(self) -> list[object]:
        return [event.data.get("text") for event in self.got if event.type == "answer"]


@tool
async def render(tool_context: ToolContext) -> object:
    """Render a film."""
    return tool_context.defer(expires_s=3600)


@tool
async def transfer(amount: int, tool_context: ToolContext) -> str:
    """Transfer money."""
    return f"transferred: {tool_context.interrupt('approve', reason={'amount': amount}, may_answer=['boss'])}"


ASKS = {"toolUse": {"name": "transfer", "input": {"amount": 5}}}


async def test_an_answer_is_delivered_with_what_was_said() -> None:
    receiver = Receiver()
    async with runtime_on(World()) as runtime:
        runtime.deliver(receiver, on=["answer"], name="crm")
        await runtime.agent(clerk("hello")).session("acme~s").invoke("hi", idempotency_token="t1")
        await anyio.sleep(1)
    (event,) = receiver.got
    assert (event.type, event.session_id, event.agent) == ("answer", "acme~s", "clerk")
    assert event.data == {
        "session_id": "acme~s",
        "agent": "clerk",
        "tenant": "acme",
        "turn": 1,
        "token": "t1",
        "stop_reason": "end_turn",
        "text": "hello",
        "message": {"role": "assistant", "content": [{"text": "hello"}]},
    }
    assert event.to_dict()["type"] == "answer"


async def test_a_question_says_what_is_asked_and_who_may_answer() -> None:
    receiver = Receiver()
    async with runtime_on(World()) as runtime:
        runtime.deliver(receiver, on=["question", "answer"], name="boss")
        session = runtime.agent(clerk(ASKS, "paid", tools=[transfer])).session("s")
        result = await session.invoke("pay 5")
        await anyio.sleep(1)
        (event,) = receiver.got
        (asked,) = result.interrupts
        assert event.data["interrupts"] == [
            {
                "id": asked.id,
                "name": "approve",
                "reason": {"amount": 5},
                "tool": "transfer",
                "input": {"amount": 5},
                "may_answer": ["boss"],
            }
        ]
        assert (event.data["session_id"], event.data["agent"]) == ("s", "clerk")
        await session.invoke([asked.respond("yes")])
        await anyio.sleep(1)
    assert receiver.types == ["question", "answer"]


async def test_a_question_is_delivered_with_the_link_that_answers_it() -> None:
    receiver, links = Receiver(), AnswerLinks("x" * 32, "https://agents.example.com", wall=wall)
    async with runtime_on(World()) as runtime:
        runtime.deliver(receiver, on=["question", "answer"], name="boss", answer_link=links.link)
        session = runtime.agent(clerk(ASKS, "paid", tools=[transfer])).session("s")
        (asked,) = (await session.invoke("pay 5")).interrupts
        await anyio.sleep(1)
        (event,) = receiver.got
        (told,) = cast("list[dict[str, str]]", event.data["interrupts"])
        token = links.token_in(told["answer_link"].partition("token=")[2])
        assert (token.session_id, token.interrupt_id) == ("s", asked.id)
        await session.invoke([asked.respond("yes")])
        await anyio.sleep(1)
    assert [event.type for event in receiver.got] == ["question", "answer"]
    assert "answer_link" not in str(receiver.got[1].data)


async def test_the_function_that_makes_a_link_sees_what_waits_for_the_answer_and_who_may_give_it() -> None:
    @tool
    async def pay(amount: int, tool_context: ToolContext) -> str:
        """Pay."""
        return str(tool_context.interrupt("sure", reason="Really?", may_answer=["finance"]))

    seen, receiver = list[Interrupt](), Receiver()

    def link(asked: Interrupt) -> str:
        seen.append(asked)
        return "https://go.example.com/1"

    async with runtime_on(World()) as runtime:
        runtime.deliver(receiver, on=["question"], name="boss", answer_link=link)
        use = {"toolUse": {"name": "pay", "input": {"amount": 5}}}
        session = runtime.agent(clerk(use, "paid", tools=[pay])).session("s")
        (asked,) = (await session.invoke("pay 5")).interrupts
        await anyio.sleep(1)
    assert seen == [asked]
    assert (asked.tool, asked.input, asked.may_answer) == ("pay", {"amount": 5}, ("finance",))


async def test_a_function_that_cannot_take_an_event_is_refused_at_once() -> None:
    wrong: list[Any] = [lambda: None, lambda event, more: None, lambda *, event: None]
    runtime = runtime_on(World())
    for receiver in wrong:
        with pytest.raises(Invalid, match="is called with one event"):
            runtime.deliver(receiver, on=["answer"], name="boss")
    runtime.deliver(lambda event, more=None: None, on=["answer"], name="boss")


async def test_a_secret_for_a_function_is_refused_since_nothing_would_be_signed() -> None:
    with pytest.raises(Invalid, match="for the address of a webhook"):
        runtime_on(World()).deliver(Receiver(), on=["answer"], name="boss", secret=webhook_secret())


async def test_a_link_that_cannot_be_made_is_a_failed_try() -> None:
    receiver, tries = Receiver(), list[str]()

    def link(asked: Interrupt) -> str:
        tries.append(asked.id)
        if len(tries) == 1:
            raise ConnectionError("the shortener is down")
        return "https://go.example.com/1"

    async with runtime_on(World()) as runtime:
        runtime.deliver(receiver, on=["question"], name="boss", answer_link=link)
        with pytest.raises(Invalid, match="answer_link is a function"):
            runtime.deliver(receiver, on=["question"], name="other", answer_link="https://x")  # type: ignore[arg-type]
        session = runtime.agent(clerk(ASKS, "paid", tools=[transfer])).session("s")
        await session.invoke("pay 5")
        await anyio.sleep(60)
    assert len(tries) == 2
    assert receiver.types == ["question"]


async def test_timers_and_results_that_come_later_are_delivered_though_nobody_waits() -> None:
    receiver = Receiver()
    async with runtime_on(World()) as runtime:
        runtime.deliver(receiver, name="crm")
        use = {"toolUse": {"name": "render", "input": {}}}
        session = runtime.agent(clerk(use, "it is on its way", "seen", "woken", tools=[render])).session("s")
        await session.invoke("render")
        (late,) = await session.deferred()
        await session.complete_tool(late.id, "film.mp4")
        await anyio.sleep(1)
        await runtime.schedule(session, "wake up", in_s=100, id="alarm")
        await anyio.sleep(200)
    assert receiver.types == ["answer", "late_result", "answer", "timer", "answer"]
    _, came, told, timer, woken = receiver.got
    assert (came.data["tool"], came.data["id"], came.data["expired"]) == ("render", late.id, False)
    assert came.data["result"] == {"status": "success", "content": [{"text": "film.mp4"}]}
    assert told.data["late_results"] == [late.id]
    assert (timer.data["timer"], timer.data["prompt"]) == ("alarm", "wake up")
    assert woken.data["timer"] == "alarm"


@pytest.mark.parametrize("killed", [False, True], ids=["one life", "two lives"])
async def test_a_result_that_comes_later_reaches_those_whom_the_call_of_its_tool_named(killed: bool) -> None:
    phone, others, world = Receiver(), Receiver(), World()
    use = {"toolUse": {"name": "render", "input": {}}}
    spec = clerk(use, "it is on its way", "hello", "seen", tools=[render])

    def told(runtime: Runtime) -> Any:
        runtime.deliver(phone, name="phone", on=[])
        runtime.deliver(others, name="others", on=[])
        return runtime.agent(spec).session("s")

    async with runtime_on(world) as runtime:
        session = told(runtime)
        await session.invoke("render", deliver_to="phone")
        await session.invoke("hello", deliver_to="others")
        (late,) = await session.deferred()
        if not killed:
            await session.complete_tool(late.id, "film.mp4")
            await anyio.sleep(100)
    if killed:
        async with runtime_on(world) as runtime:
            await told(runtime).complete_tool(late.id, "film.mp4")
            await anyio.sleep(100)
    assert late.deliver_to == ("phone",)
    assert phone.types == ["answer", "late_result", "answer"]
    assert others.types == ["answer"]


async def test_a_result_that_does_not_come_in_time_is_delivered_as_expired() -> None:
    receiver = Receiver()
    async with runtime_on(World()) as runtime:
        runtime.deliver(receiver, on=["late_result"], name="crm")
        use = {"toolUse": {"name": "render", "input": {}}}
        await runtime.agent(clerk(use, "begun", "too late", tools=[render])).session("s").invoke("render")
        await anyio.sleep(4000)
    (event,) = receiver.got
    assert event.data["expired"] is True


class Broken(Model):
    """Fails."""

    async def stream(self, *args: Any, **options: Any) -> Any:
        raise RuntimeError("no")
        yield


async def test_a_turn_that_fails_is_delivered_with_its_error() -> None:
    receiver = Receiver()
    async with runtime_on(World()) as runtime:
        runtime.deliver(receiver, on=["failure"], name="ops")
        agent = runtime.agent(AgentSpec(name="clerk", model=Broken(), retry_strategy=None))
        with pytest.raises(ModelFailed):
            await agent.session("s").invoke("hi", idempotency_token="t")
        await anyio.sleep(1)
    (event,) = receiver.got
    assert (event.data["error"], event.data["token"]) == ("ModelFailed", "t")


async def test_a_call_names_further_destinations_for_its_turn_alone() -> None:
    everyone, one = Receiver(), Receiver()
    async with runtime_on(World()) as runtime:
        runtime.deliver(everyone, on=["answer"], name="all")
        runtime.deliver(one, on=[], name="one")
        session = runtime.agent(clerk("a", "b", "c")).session("s")
        await session.invoke("1")
        await session.invoke("2", deliver_to="one")
        await session.invoke("3")
        await anyio.sleep(1)
        with pytest.raises(Invalid, match="names a destination"):
            await session.invoke("4", deliver_to="nobody")
    assert (everyone.texts, one.texts) == (["a", "b", "c"], ["b"])


@tool
async def remind(tool_context: ToolContext, to: list[str] | None = None) -> str:
    """Remind the user."""
    return tool_context.wake_at(prompt="remind", in_s=100, deliver_to=to)


async def test_a_timer_names_the_destinations_of_its_turns() -> None:
    world, one, other = World(), Receiver(), Receiver()
    for asked in ("schedule", "fire"):
        async with runtime_on(world) as runtime:
            runtime.deliver(one, on=[], name="one")
            runtime.deliver(other, on=[], name="other")
            session = runtime.agent(clerk("a", "b", "c")).session("s")
            if asked == "schedule":
                await runtime.schedule(session, "1", in_s=100, every=50, id="tea", deliver_to="one")
                await runtime.schedule(session, "2", in_s=125, id="once")
                assert [timer.deliver_to for timer in await session.timers()] == [("one",), ()]
            else:
                await anyio.sleep(170)
                assert await session.cancel_timer("tea")
                await session.invoke("3")
                await anyio.sleep(1)
    assert [(event.type, event.data["timer"]) for event in one.got] == [("timer", "tea"), ("answer", "tea")] * 2
    assert not other.got


async def test_a_timer_whose_turn_fails_or_asks_tells_the_destination_that_it_names() -> None:
    one = Receiver()
    async with runtime_on(World()) as runtime:
        runtime.deliver(one, on=[], name="one")
        asking = runtime.agent(clerk(ASKS, "paid", tools=[transfer])).session("s")
        await runtime.schedule(asking, "pay", in_s=1, deliver_to=["one"])
        broken = runtime.agent(AgentSpec(name="broken", model=Broken(), retry_strategy=None)).session("s")
        await runtime.schedule(broken, "fail", in_s=10, deliver_to=["one"])
        await anyio.sleep(20)
        (asked,) = await asking.interrupts()
        await asking.invoke([asked.respond("yes")])
        await anyio.sleep(1)
    assert one.types == ["timer", "question", "timer", "failure", "answer"]


async def test_a_timer_that_a_tool_sets_goes_where_its_turn_goes_unless_it_names_others() -> None:
    one, other = Receiver(), Receiver()
    asks = [{"toolUse": {"name": "remind", "input": {"to": to}}} for to in (None, ["other"], ["nobody"])]
    async with runtime_on(World()) as runtime:
        runtime.deliver(one, on=[], name="one")
        runtime.deliver(other, on=[], name="other")
        said: list[Any] = []
        for number, ask in enumerate(asks):
            model = ScriptedModel([ask, "set", "woken"])
            spec = AgentSpec(name=f"clerk{number}", model=model, retry_strategy=None, tools=[remind])
            session = runtime.agent(spec).session("s")
            await session.invoke("remind me", deliver_to="one")
            said = await session.messages()
        await anyio.sleep(200)
    assert "names a destination" in str(said[2])
    assert one.texts == ["set", "set", "set", "woken"]
    assert other.texts == ["woken"]


async def test_posted_calls_and_timers_reach_the_destination_that_they_name() -> None:
    world, one, other = World(), Receiver(), Receiver()
    sessions = Sessions(world, wall=wall)
    await sessions.post("clerk", "s", "1", token="t1", deliver_to="one")
    await sessions.schedule("clerk", "s", "2", in_s=60.0, id="later", deliver_to=["one"])
    wrong: Any
    for wrong in ([], [5], {"a": 1}):
        with pytest.raises(Invalid, match="deliver_to"):
            await sessions.schedule("clerk", "s", "3", in_s=1.0, deliver_to=wrong)
    async with runtime_on(world) as runtime:
        runtime.deliver(one, on=[], name="one")
        runtime.deliver(other, on=[], name="other")
        session = runtime.agent(clerk("a", "b", "c")).session("s")
        await anyio.sleep(100)
        await session.post("3", token="t3", deliver_to="other")
        await anyio.sleep(10)
    assert [(event.type, event.data["token"]) for event in one.got[:1]] == [("answer", "t1")]
    assert (one.types, one.texts, other.texts) == (["answer", "timer", "answer"], ["a", "b"], ["c"])


async def test_destinations_that_there_are_not_are_refused_for_timers_too() -> None:
    async with runtime_on(World()) as runtime:
        session = runtime.agent(clerk()).session("s")
        wrong: Any
        for wrong in ("crm", [], [5], ["crm"] * 9, {"a": 1}, "https://example.org/hook"):
            with pytest.raises(Invalid, match="deliver_to"):
                await runtime.schedule(session, "x", in_s=1, deliver_to=wrong)
        assert await session.timers() == []


async def test_what_a_call_named_outlives_the_process_that_took_it() -> None:
    world, later = World(), Receiver()
    async with runtime_on(world) as runtime:
        runtime.deliver(Receiver(), on=[], name="one")
        started, go_on = anyio.Event(), anyio.Event()

        @tool
        async def wait() -> str:
            """Wait."""
            started.set()
            await go_on.wait()
            return "waited"

        spec = clerk({"toolUse": {"name": "wait", "input": {}}}, "done", tools=[wait])
        async with anyio.create_task_group() as group:
            group.start_soon(lambda: runtime.agent(spec).session("s").invoke("hi", deliver_to="one"))
            await started.wait()
            await anyio.sleep(1)
            left = copy.deepcopy(world)
            left.shelf.alive.clear()
            go_on.set()
    async with runtime_on(left) as runtime:
        runtime.deliver(later, on=[], name="one")

        @tool(name="wait")
        async def wait_no_more() -> str:
            """Wait."""
            return "waited"

        runtime.agent(clerk("after all", tools=[wait_no_more], unknown_tool_outcome="retry"))
        await anyio.sleep(60)
    assert later.texts == ["after all"]


async def test_a_delivery_that_fails_is_tried_again_under_the_same_id_and_holds_up_those_behind_it() -> None:
    receiver = Receiver(lambda event: wall() < EPOCH + began + 1000)
    async with runtime_on(World()) as runtime:
        began = anyio.current_time()
        runtime.deliver(receiver, on=["answer"], name="crm")
        session = runtime.agent(clerk("a", "b", "c")).session("s")
        for number in range(3):
            await session.invoke(str(number))
        await anyio.sleep(3000)
    assert receiver.texts == ["a", "b", "c"]
    first = receiver.got[0].id
    times = [at for at, tried in receiver.tried if tried == first]
    assert [tried for _, tried in receiver.tried[: len(times)]] == [first] * len(times)
    pauses = [later - earlier for earlier, later in pairwise(times)]
    assert all(0.8 * wanted <= pause <= 1.2 * wanted + 20 for pause, wanted in zip(pauses, RETRY_S, strict=False))


async def test_a_try_that_failed_while_the_clock_was_days_ahead_is_made_again_once_it_is_right() -> None:
    receiver, ahead_s = Receiver(lambda event: ahead_s > 0), 20 * 86_400.0

    def clock() -> float:
        return wall() + ahead_s

    async with Runtime(sessions=World(), wall=clock, idle_timeout_s=1e6) as runtime:
        runtime.deliver(receiver, on=["answer"], name="crm", retry_s=[300.0])
        await runtime.agent(clerk("a")).session("s").invoke("1")
        await anyio.sleep(1)
        assert len(receiver.tried) == 1
        ahead_s = 0.0
        await anyio.sleep(1000)
        assert receiver.texts == ["a"]


@pytest.mark.parametrize("idle_s", [1.0, 30.0])
async def test_a_session_is_not_idle_while_a_try_is_made(idle_s: float) -> None:
    begun = list[str]()

    async def slow(event: DeliveryEvent) -> None:
        begun.append(event.id)
        await anyio.sleep(18)

    async with runtime_on(World(), idle_timeout_s=idle_s) as runtime:
        runtime.deliver(slow, on=["answer"], name="slow")
        session = runtime.agent(clerk("a")).session("s")
        await session.invoke("1")
        await session.invoke("2")
        await anyio.sleep(120)
        assert not session.active
    assert len(begun) == len({*begun}) == 2


async def test_another_process_delivers_what_a_killed_one_owed() -> None:
    world, late = World(), Receiver()
    async with runtime_on(world) as runtime:
        runtime.deliver(Receiver(lambda event: True), on=["answer"], name="crm")
        await runtime.agent(clerk("owed")).session("s").invoke("hi")
        await anyio.sleep(100)
        left = copy.deepcopy(world)
        left.shelf.alive.clear()
    async with runtime_on(left) as runtime:
        runtime.deliver(late, on=["answer"], name="crm")
        runtime.agent(clerk())
        await anyio.sleep(2000)
    assert late.texts == ["owed"]


async def test_after_its_time_a_delivery_is_a_dead_letter_and_those_behind_it_come() -> None:
    world = World()
    receiver = Receiver(lambda event: event.data["text"] == "a")
    async with runtime_on(world) as runtime:
        runtime.deliver(receiver, on=["answer"], name="crm", retry_s=[60], give_up_s=600)
        session = runtime.agent(clerk("a", "b")).session("s")
        await session.invoke("1")
        await session.invoke("2")
        await anyio.sleep(1000)
        assert receiver.texts == ["b"]
    async with Sessions(world) as sessions:
        (dead,) = await sessions.deliveries("s", dead=True)
        assert (dead.to, dead.event, dead.next_at, dead.error) == ("crm", "answer", None, "ConnectionError('down')")
        with pytest.raises(NotFound, match="no such delivery"):
            await sessions.resend("s", ["evt_unknown"])
        (again,) = await sessions.resend("s")
        assert (again.id, again.dead) == (dead.id, False)
    receiver.down = lambda event: False
    async with runtime_on(world) as runtime:
        runtime.deliver(receiver, on=["answer"], name="crm")
        runtime.agent(clerk())
        await anyio.sleep(60)
    assert receiver.texts == ["b", "a"]
    assert receiver.got[-1].id == dead.id
    async with Sessions(world) as sessions:
        assert await sessions.deliveries() == []


async def test_one_destination_that_is_down_holds_up_no_other() -> None:
    up, down = Receiver(), Receiver(lambda event: True)
    async with runtime_on(World()) as runtime:
        runtime.deliver(down, on=["answer"], name="down")
        runtime.deliver(up, on=["answer"], name="up", agents=["clerk"])
        runtime.deliver(other := Receiver(), on=["answer"], name="other", agents=["another"])
        session = runtime.agent(clerk("a", "b")).session("s")
        await session.invoke("1")
        await session.invoke("2")
        await anyio.sleep(1)
    assert (up.texts, down.texts, other.texts) == (["a", "b"], [], [])


async def test_a_receiver_that_never_answers_holds_up_no_other_destination_and_no_timer() -> None:
    up, late = Receiver(), Receiver()

    async def hang(event: DeliveryEvent) -> None:
        if hangs:
            await anyio.sleep(20)
            raise ConnectionError("no answer")
        await late(event)

    hangs = True

    async with runtime_on(World()) as runtime:
        runtime.deliver(hang, on=["answer"], name="hangs", agents=["other"], retry_s=[10])
        runtime.deliver(up, on=["answer"], name="up", agents=["clerk"])
        other = runtime.agent(AgentSpec(name="other", model=ScriptedModel(["x"], loop=True)))
        session = runtime.agent(clerk("a")).session("s")
        for number in range(40):
            await other.session(f"o{number}").invoke("1")
        await session.invoke("1")
        await anyio.sleep(1)
        assert up.texts == ["a"]
        await runtime.schedule(session, "wake", in_s=10)
        await anyio.sleep(12)
        assert up.texts == ["a", "a"]
        await anyio.sleep(20)
        hangs = False
        await anyio.sleep(100)
    assert len({event.session_id for event in late.got}) == 40


async def test_a_drain_makes_no_try_that_waits_for_its_destination() -> None:
    world, begun = World(), list[str]()

    async def slow(event: DeliveryEvent) -> None:
        begun.append(event.id)
        await anyio.sleep(5)

    async with runtime_on(world) as runtime:
        runtime.deliver(slow, on=["answer"], name="slow")
        agent = runtime.agent(clerk("a"))
        async with anyio.create_task_group() as group:
            for number in range(20):
                group.start_soon(agent.session(f"s{number}").invoke, "1")
        await anyio.sleep(1)
        now = anyio.current_time()
    assert (len(begun), anyio.current_time() - now < 9) == (8, True)
    async with Sessions(world) as sessions:
        assert len(await sessions.deliveries()) == 12


async def test_a_drain_waits_for_the_try_that_is_made_and_begins_no_other() -> None:
    world, receiver = World(), Receiver()
    async with runtime_on(world) as runtime:
        runtime.deliver(receiver, on=["answer"], name="crm")
        await runtime.agent(clerk("a")).session("s").invoke("1")
    assert receiver.texts == ["a"]
    async with Sessions(world) as sessions:
        assert await sessions.deliveries() == []


async def test_an_answer_that_was_erased_meanwhile_is_not_told() -> None:
    world, receiver = World(), Receiver(lambda event: wall() < EPOCH + began + 100)
    async with runtime_on(world) as runtime:
        began = anyio.current_time()
        runtime.deliver(receiver, on=["answer"], name="crm")
        await runtime.agent(clerk("the password is swordfish")).session("s").invoke("1")
        await anyio.sleep(20)
    async with Sessions(world) as sessions:
        await sessions.redact("s", 2, "[redacted]")
    async with runtime_on(world) as runtime:
        runtime.deliver(receiver, on=["answer"], name="crm")
        runtime.agent(clerk())
        await anyio.sleep(1000)
    assert receiver.texts == ["[redacted]"]


async def test_a_rewind_keeps_what_is_to_be_delivered_and_a_fork_has_none() -> None:
    world, receiver = World(), Receiver(lambda event: wall() < EPOCH + began + 100)
    async with runtime_on(world) as runtime:
        began = anyio.current_time()
        runtime.deliver(receiver, on=["answer"], name="crm")
        session = runtime.agent(clerk("a", "b")).session("s")
        await session.invoke("1")
        await session.invoke("2")
        await anyio.sleep(20)
    async with Sessions(world) as sessions:
        await sessions.fork("s", "t")
        await sessions.rewind("s", 2)
        assert {each.session_id for each in await sessions.deliveries()} == {"s"}
    async with runtime_on(world) as runtime:
        runtime.deliver(receiver, on=["answer"], name="crm")
        runtime.agent(clerk())
        await anyio.sleep(1000)
    assert receiver.texts == ["a", "b"]


async def test_a_process_without_the_destination_leaves_it_to_others() -> None:
    world, receiver = World(), Receiver()
    async with runtime_on(world) as runtime:
        runtime.deliver(Receiver(lambda event: True), on=["answer"], name="crm")
        await runtime.agent(clerk("a")).session("s").invoke("1")
    async with runtime_on(world) as runtime:
        runtime.deliver(receiver, on=["answer"], name="another")
        runtime.agent(clerk())
        await anyio.sleep(60)
    async with Sessions(world) as sessions:
        (waits,) = await sessions.deliveries()
        assert waits.error == "this process has no destination of this name"
    assert receiver.got == []


async def test_deliveries_do_not_count_as_work_that_kills_its_owners() -> None:
    world, receiver = World(), Receiver()
    async with runtime_on(world) as runtime:
        runtime.deliver(Receiver(lambda event: True), on=["answer"], name="crm", retry_s=[10], give_up_s=1e6)
        await runtime.agent(clerk("a")).session("s").invoke("1")
        await anyio.sleep(10 * 2 * CLAIMS_MAX)
    async with runtime_on(world) as runtime:
        runtime.deliver(receiver, on=["answer"], name="crm")
        runtime.agent(clerk())
        await anyio.sleep(60)
    assert receiver.texts == ["a"]


async def test_random_outages_and_kills_lose_nothing_and_keep_the_order_of_each_session(rng: random.Random) -> None:
    """Each life ends by a kill: the next one begins with the store as it was then."""
    world, got = World(), dict[str, list[str]]()

    async def receive(event: DeliveryEvent) -> None:
        await anyio.sleep(rng.uniform(0, 0.5))
        if rng.random() < 0.5:
            raise ConnectionError("down")
        ids = got.setdefault(event.session_id, [])
        if event.id not in ids:
            ids.append(event.id)
            texts.setdefault(event.session_id, []).append(str(event.data["text"]))

    texts, said = dict[str, list[str]](), dict[str, list[str]]()
    for life in range(4):
        async with runtime_on(world) as runtime:
            runtime.deliver(receive, on=["answer"], name="crm", retry_s=[1.0, 2.0])
            agent = runtime.agent(clerk(lambda messages, *_: messages[-1]["content"][0]["text"].upper()))
            for number in range(rng.randint(2, 8)):
                session_id = f"s{rng.randrange(3)}"
                await agent.session(session_id).invoke(f"say {life} {number}")
                said.setdefault(session_id, []).append(f"SAY {life} {number}")
                await anyio.sleep(rng.choice((0, 0, 0.3, 8)))
            left = copy.deepcopy(world)
            left.shelf.alive.clear()
        world = left
    async with runtime_on(world) as runtime:
        runtime.deliver(receive, on=["answer"], name="crm", retry_s=[1.0, 2.0])
        runtime.agent(clerk())
        await anyio.sleep(1000)
    assert texts == said


def test_what_is_no_destination_is_refused_at_once(tmp_path: Path) -> None:
    runtime, secret = Runtime(sessions=SQLiteSessions(tmp_path / "a.db")), webhook_secret()
    for to, options in (
        ("https://example.org", {}),
        ("ftp://example.org", {"secret": secret}),
        ("no address", {"secret": secret}),
        ("https://example.org", {"secret": "swordfish"}),
        ("https://example.org", {"secret": secret, "on": ["nothing"]}),
        ("https://example.org", {"secret": secret, "retry_s": []}),
        ("https://example.org", {"secret": secret, "give_up_s": -1}),
        ("https://example.org", {"secret": secret, "timeout_s": 0}),
        ("https://example.org", {"secret": secret, "agents": "clerk"}),
        ("https://example.org", {"secret": secret, "colour": "red"}),
        (print, {}),
        (5, {"name": "five"}),
    ):
        with pytest.raises(Invalid) as refused:
            runtime.deliver(to, **options)  # type: ignore[arg-type] - wrong on purpose
        assert "swordfish" not in str(refused.value)
    runtime.deliver(print, name="crm")
    with pytest.raises(AlreadyExists):
        runtime.deliver(print, name="crm")
    with pytest.raises(Invalid, match="stored sessions"):
        Runtime().deliver(print, name="crm")


@pytest.mark.real_time
@pytest.mark.parametrize("kind", ["sqlite", "postgres", "journal in files"])
async def test_every_place_keeps_what_is_to_be_delivered_for_the_next_process(kind: str, tmp_path: Path) -> None:
    place, tried, came = place_of(kind, tmp_path), anyio.Event(), anyio.Event()
    down = Receiver(lambda event: tried.set() is None)
    async with Runtime(sessions=place) as runtime:
        runtime.deliver(down, on=["answer"], name="shop")
        await runtime.agent(clerk("hello")).session("s").invoke("hi", idempotency_token="t")
        with anyio.fail_after(20):
            await tried.wait()
    waiting = await Sessions(place).deliveries("s")
    assert [(each.to, each.tries) for each in waiting] == [("shop", 1)]
    receiver = Receiver(lambda event: came.set() is not None)
    async with Runtime(sessions=place) as runtime:
        runtime.deliver(receiver, on=["answer"], name="shop")
        runtime.agent(clerk("hello"))
        with anyio.fail_after(40):
            await came.wait()
    assert [event.id for event in receiver.got] == [event_id for _, event_id in down.tried[:1]]
    assert receiver.texts == ["hello"]
    assert await Sessions(place).deliveries("s") == []


@pytest.mark.real_time
@pytest.mark.parametrize("kind", ["sqlite", "postgres", "journal in files"])
async def test_an_owner_that_is_fenced_during_a_try_marks_nothing_and_the_next_one_sends_it_again(
    kind: str, tmp_path: Path
) -> None:
    place, hangs, answers, over = place_of(kind, tmp_path), anyio.Event(), anyio.Event(), anyio.Event()
    tried: list[str] = []
    got: list[object] = []

    async def receive(event: DeliveryEvent) -> None:
        tried.append(event.id)
        if len(tried) == 1:
            hangs.set()
            await answers.wait()  # The owner is fenced meanwhile, and hears of success late.
        elif len(tried) == 2:
            raise ConnectionError("down")
        got.append(event.data["text"])
        if len(got) == 3:
            over.set()

    async with Runtime(sessions=place) as runtime:
        runtime.deliver(receive, on=["answer"], name="crm", retry_s=[0.1])
        session = runtime.agent(clerk("a", "b")).session("s")
        await session.invoke("1")
        with anyio.fail_after(30):
            await hangs.wait()
        await session.invoke("2")
        async with Sessions(place) as sessions:
            await sessions.mark("s", "here", takeover=True)
            # The one that is being tried is not known to be delivered.
            assert [each.tries for each in await sessions.deliveries("s")] == [0, 0]
            answers.set()
            with anyio.fail_after(60):
                await over.wait()
    assert await Sessions(place).deliveries("s") == []
    # The late answer, then the same event again, then the next one.
    assert (got, len({*tried[:3]}), tried[3] != tried[2], len(tried)) == (["a", "a", "b"], 1, True, 4)


async def test_what_delivers_nothing_says_so_when_it_is_asked_to(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def team(_: str) -> Swarm:
        return Swarm([Agent(ScriptedModel(["hi"]), name="only", callback_handler=None)], id="team")

    for place in (FileSessions(tmp_path / "documents"), None):
        with pytest.raises(Invalid, match="stored sessions"):
            Runtime(sessions=place, webhook_secret=webhook_secret())
        with pytest.raises(Invalid, match="stored sessions"):
            Runtime(sessions=place).deliver(print, name="crm")
    async with Runtime(sessions=FileSessions(tmp_path / "documents")) as runtime:
        with pytest.raises(Invalid, match="names a destination"):
            await runtime.agent(clerk("a")).session("s").invoke("hi", deliver_to="crm")
    async with runtime_on(World()) as runtime:
        runtime.deliver(print, name="crm", on=[])
        hosted = runtime.orchestrator("team", team)
        with pytest.raises(Invalid, match="deliver nothing"):
            await hosted.session("s").invoke("hi", deliver_to="crm")  # type: ignore[call-arg] - wrong on purpose
        with pytest.raises(Invalid, match="deliver nothing"):
            await hosted.session("s").post("hi", deliver_to="crm")  # type: ignore[call-arg] - wrong on purpose
        with pytest.raises(Invalid, match="deliver nothing"):
            await runtime.schedule(hosted.session("s"), "hi", in_s=1, deliver_to="crm")
        with pytest.raises(Invalid, match="deliver nothing"):
            runtime.deliver(print, name="ops", agents=["team", "clerk"])
        assert "crm" not in caplog.text
        runtime.deliver(print, name="all")
        assert "graphs and swarms deliver nothing" in caplog.text
    runtime = runtime_on(World())
    runtime.deliver(print, name="ops", agents=["team"])
    with pytest.raises(Invalid, match="deliver nothing"):
        runtime.orchestrator("team", team)
