"""Durable steps of tools: each runs once, whatever ends meanwhile, and what a failed tool has done is undone."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from repertory import (
    AfterToolCallEvent,
    Agent,
    AgentSpec,
    Runtime,
    ScriptedModel,
    Snapshot,
    StepContext,
    StepRetry,
    ToolContext,
    tool,
)
from repertory.backends.tools.function_tool import schema_class
from repertory.core.messages import tool_results
from repertory.core.steps import STEPS_MAX, step_key
from repertory.errors import Invalid, StepFailed, StepsChanged
from tests.operations.operated_places import place_of
from tests.simulation.killed_worlds import World

pytestmark = pytest.mark.anyio

schema_class()  # Loading it uses a thread, which a clock that jumps would pass.

Program = Callable[[ToolContext], Any]


def works(program: Program, **settings: Any) -> Any:
    """A durable tool with this program."""

    @tool(name="work", **{"durable": True, **settings})
    async def work(tool_context: ToolContext) -> object:
        """Work."""
        return await program(tool_context)

    return work


def model(turns: int = 1) -> ScriptedModel:
    return ScriptedModel([{"toolUse": {"name": "work", "input": {}}}, "Done."] * turns)


def texts_of(agent: Agent) -> list[str]:
    """The texts of the last tool result."""
    found = [result for message in agent.messages for result in tool_results(message)]
    return [str(block.get("text", block.get("json"))) for block in found[-1]["content"]]


async def outcome(program: Program, **settings: Any) -> list[str]:
    agent = Agent(model(), tools=[works(program, **settings)], callback_handler=None)
    await agent.invoke_async("go")
    return texts_of(agent)


async def worker_on(world: World, program: Program, prompt: object = "go", **options: Any) -> Any:
    """A process that makes or goes on with the one turn."""
    async with Runtime(sessions=world, wakes_max=0) as runtime:
        spec = AgentSpec(name="worker", model=ScriptedModel([_replies], loop=True), tools=[works(program, **options)])
        return await runtime.agent(spec).session("s").invoke(prompt, idempotency_token="t")


def _replies(messages: Any, *_: object) -> object:
    results = list(tool_results(messages[-1]))
    return " ".join(str(b.get("text")) for b in results[0]["content"]) if results else [{"toolUse": {"name": "work"}}]


def killed(world: World) -> World:
    world.shelf.alive.clear()
    return world


# One life.


async def test_a_step_gives_what_json_keeps_of_its_result() -> None:
    async def program(context: ToolContext) -> object:
        value = await context.step("a", lambda: {"pair": (1, 2), "bytes": b"\x00\xff", "none": None})
        return repr(value)

    assert await outcome(program) == ["{'pair': [1, 2], 'bytes': b'\\x00\\xff', 'none': None}"]


@pytest.mark.parametrize(
    "value",
    [object(), {1, 2}, float("nan"), {(1, 2): 3}, "x" * 30_000_000],
    ids=["an object", "a set", "no number", "a key that is no text", "too large"],
)
async def test_a_result_that_cannot_be_recorded_fails_the_step_after_it_ran(value: object) -> None:
    ran = list[int]()

    def give() -> object:
        ran.append(1)
        return value

    async def program(context: ToolContext) -> object:
        return await context.step("give", give)

    (text, *_) = await outcome(program)
    assert "cannot be recorded" in text
    assert ran == [1]


async def test_a_failed_step_is_tried_again_as_often_as_its_retry_says() -> None:
    tries = list[StepContext]()

    async def flaky(value: str, *, step_context: StepContext) -> str:
        tries.append(step_context)
        if len(tries) < 3:
            raise ConnectionError("away")
        return value

    async def program(context: ToolContext) -> object:
        return await context.step("flaky", flaky, "there", retry=StepRetry(attempts=3, on=(ConnectionError,)))

    assert await outcome(program) == ["there"]
    assert len({each.idempotency_key for each in tries}) == 1
    assert {each.name for each in tries} == {"flaky"}


async def test_an_exception_that_the_retry_does_not_name_fails_the_step_at_once() -> None:
    tries = list[int]()

    def fail() -> None:
        tries.append(1)
        raise KeyError("x")

    async def program(context: ToolContext) -> object:
        with pytest.raises(StepFailed, match="KeyError") as caught:
            await context.step("fail", fail, retry=StepRetry(attempts=5, on=(ConnectionError,)))
        assert isinstance(caught.value.__cause__, KeyError)
        return "caught"

    assert await outcome(program) == ["caught"]
    assert tries == [1]


async def test_a_step_that_takes_too_long_fails() -> None:
    async def program(context: ToolContext) -> object:
        return await context.step("slow", anyio.sleep, 60, timeout_s=1)

    assert "step slow failed: TimeoutError" in (await outcome(program))[0]


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("", {}),
        ("a~b", {}),
        ("a#2", {}),
        ("x" * 101, {}),
        ("a", {"retry": 0}),
        ("a", {"retry": "often"}),
        ("a", {"timeout_s": 0}),
        ("a", {"timeout_s": float("inf")}),
    ],
)
async def test_a_step_with_bad_arguments_is_refused_and_does_not_run(name: str, options: dict[str, Any]) -> None:
    async def program(context: ToolContext) -> object:
        with pytest.raises(Invalid):
            await context.step(name, pytest.fail, **options)
        with pytest.raises(Invalid):
            await context.step("not callable", 5)  # type: ignore[arg-type] - what the test is about
        return "refused"

    assert await outcome(program) == ["refused"]


async def test_a_step_has_no_steps_of_its_own_and_asks_nobody() -> None:
    async def program(context: ToolContext) -> object:
        async def inner() -> object:
            return await context.step("inner", int)

        async def asks() -> object:
            return context.interrupt("may I?")

        with pytest.raises(StepFailed, match="no steps of its own"):
            await context.step("outer", inner)
        with pytest.raises(StepFailed, match="cannot ask a person"):
            await context.step("asks", asks)
        return "refused"

    assert await outcome(program) == ["refused"]


async def test_a_tool_call_has_a_bounded_number_of_steps() -> None:
    async def program(context: ToolContext) -> object:
        for number in range(STEPS_MAX):
            await context.step("one", abs, number, idempotent=True)
        return await context.step("too many", int)

    assert "that many steps at most" in (await outcome(program))[0]


async def test_steps_end_with_their_tool() -> None:
    kept = list[ToolContext]()

    async def program(context: ToolContext) -> object:
        kept.append(context)
        return await context.step("a", int)

    await outcome(program)
    with pytest.raises(Invalid, match="has ended"):
        await kept[0].step("late", int)
    with pytest.raises(Invalid, match="no steps here"):
        await ToolContext(tool_use={"toolUseId": "1", "name": "x", "input": {}}).step("a", int)


def test_a_durable_tool_has_effects() -> None:
    with pytest.raises(Invalid, match="has effects"):
        tool(durable=True, effects=False)(int.bit_length)


@pytest.mark.real_time
async def test_a_synchronous_tool_runs_its_steps_from_its_thread() -> None:
    threads = list[threading.Thread]()

    async def double(number: int) -> int:
        await anyio.lowlevel.checkpoint()
        return 2 * number

    @tool(durable=True)
    def work(tool_context: ToolContext) -> str:
        """Work."""
        threads.append(threading.current_thread())
        first = tool_context.run_step("here", threading.get_ident)
        assert first != threading.get_ident()
        # The event loop is not known in a thread of the tool's own.
        with ThreadPoolExecutor(1) as pool, pytest.raises(Invalid, match="run_step is for"):
            pool.submit(tool_context.run_step, "elsewhere", int).result()
        with pytest.raises(StepFailed, match="ZeroDivisionError"):
            tool_context.run_step("fails", lambda: 1 / 0)
        return str(tool_context.run_step("double", double, 4))

    agent = Agent(model(), tools=[work], callback_handler=None)
    await agent.invoke_async("go")
    assert texts_of(agent) == ["8"]


@pytest.mark.real_time
async def test_run_step_on_the_event_loop_is_refused() -> None:
    async def program(context: ToolContext) -> object:
        with pytest.raises(Invalid, match="await tool_context"):
            context.run_step("a", int)
        return "refused"

    assert await outcome(program) == ["refused"]


@pytest.mark.real_time
async def test_more_synchronous_tools_than_threads_get_through_their_steps() -> None:
    @tool
    def work(tool_context: ToolContext) -> int:
        """Work."""
        return tool_context.run_step("a", int, "5") + tool_context.run_step("b", int, "6")

    asks = [{"toolUse": {"name": "work", "input": {}}} for _ in range(70)]
    agent = Agent(ScriptedModel([asks, "Done."]), tools=[work], callback_handler=None)
    await agent.invoke_async("go")
    assert [r["content"] for r in tool_results(agent.messages[2])] == [[{"text": "11"}]] * 70


# Compensation.


async def test_what_a_failed_tool_has_done_is_undone_the_last_first() -> None:
    done = list[str]()

    async def program(context: ToolContext) -> object:
        for name in ("hotel", "car", "flight"):
            await context.step(name, done.append, name)
            context.on_failure(f"cancel {name}", done.append, f"no {name}")
        raise RuntimeError("no seats")

    texts = await outcome(program)
    assert done == ["hotel", "car", "flight", "no flight", "no car", "no hotel"]
    assert texts == ["Error: RuntimeError - no seats", "Undone: cancel flight, cancel car, cancel hotel."]


async def test_a_compensation_that_fails_is_told_and_keeps_no_other_from_running() -> None:
    done = list[str]()

    def refuse() -> None:
        raise PermissionError("too late")

    async def program(context: ToolContext) -> object:
        context.on_failure("first", done.append, "first")
        context.on_failure("second", refuse, retry=2)
        context.on_failure("third", done.append, "third")
        raise RuntimeError("no")

    assert (await outcome(program))[1] == (
        "Undone: third, first. NOT undone: second (StepFailed - step ~undo~second failed: PermissionError - too late)."
    )
    assert done == ["third", "first"]


async def test_a_tool_that_succeeds_undoes_nothing() -> None:
    async def program(context: ToolContext) -> object:
        context.on_failure("never", pytest.fail)
        return "fine"

    assert await outcome(program) == ["fine"]


async def test_a_tool_that_times_out_is_undone() -> None:
    done = list[str]()

    async def program(context: ToolContext) -> object:
        context.on_failure("undo", done.append, "undone")
        await context.step("slow", anyio.sleep, 60)

    assert (await outcome(program, timeout_s=1))[1] == "Undone: undo."
    assert done == ["undone"]


async def test_a_cancelled_turn_undoes_what_its_tool_has_done() -> None:
    done = list[str]()
    agent: Agent

    async def undo() -> None:
        await anyio.sleep(1)
        done.append("undone")

    async def program(context: ToolContext) -> object:
        context.on_failure("undo", undo)
        agent.cancel()
        await anyio.sleep(60)

    agent = Agent(model(), tools=[works(program)], callback_handler=None)
    result = await agent.invoke_async("go")
    assert result.stop_reason == "cancelled"
    assert done == ["undone"]
    assert texts_of(agent) == ["Cancelled before it ended.", "Undone: undo."]


async def test_compensations_of_a_cancelled_turn_are_bounded_in_time() -> None:
    agent: Agent

    async def program(context: ToolContext) -> object:
        context.on_failure("quick", int)
        context.on_failure("endless", anyio.sleep_forever)
        agent.cancel()
        await anyio.sleep(60)

    agent = Agent(model(), tools=[works(program)], callback_handler=None)
    with anyio.fail_after(40):
        await agent.invoke_async("go")
    assert "NOT undone: endless (there was no time left); quick (there was no time left)." in texts_of(agent)[1]


async def test_a_tool_that_a_hook_has_repeated_is_undone_after_the_last_attempt_only() -> None:
    done, tries = list[str](), list[int]()

    async def program(context: ToolContext) -> object:
        context.on_failure("undo", done.append, "undone")
        await context.step("first", done.append, "first")
        tries.append(context.attempt)
        await context.step("second", flaky)
        return "fine"

    def flaky() -> None:
        if len(tries) == 1:
            raise ConnectionError

    def again(event: AfterToolCallEvent) -> None:
        event.retry = event.exception is not None

    agent = Agent(model(), tools=[works(program)], callback_handler=None)
    agent.add_hook(again)
    await agent.invoke_async("go")
    assert (texts_of(agent), done, tries) == (["fine"], ["first"], [1, 2])


# Several lives.


async def lives(program: Callable[[World], Program], **options: Any) -> list[World]:
    """What a kill would leave at each moment of one turn."""
    world = World()
    world.moment()
    await worker_on(world, program(world), **options)
    world.moment()
    return world.left


def acts(world: World, name: str, value: object = None) -> Callable[[], object]:
    def act() -> object:
        world.effect(name)
        return value

    return act


async def _to_the_end(
    world: World, program: Program, known: Callable[[str], object], **options: Any
) -> tuple[str, int]:
    """The turn's answer, with a person who looks what happened; and how often the person was asked."""
    asked, prompt = 0, "go"
    for _ in range(20):
        result = await worker_on(killed(world), program, prompt, **options)
        if result.stop_reason != "interrupt":
            return str(result), asked
        asked += len(result.interrupts)
        prompt = [
            {"interruptResponse": {"interruptId": one.id, "response": known(str(one.reason["step"]))}}
            for one in result.interrupts
        ]
    raise AssertionError("the person is asked for ever")


async def test_every_step_takes_effect_once_wherever_its_process_is_killed() -> None:
    def program(world: World) -> Program:
        async def run(context: ToolContext) -> object:
            first = await context.step("one", acts(world, "one", 1))
            second = await context.step("two", acts(world, "two", 2), idempotent=True)
            third = await context.step("one", acts(world, "one again", 3))
            return f"{first} {second} {third}"

        return run

    moments = await lives(program)
    assert len(moments) > 8
    questions = 0
    for left in moments:

        def known(key: str, left: World = left) -> object:
            name, value = {"one": ("one", 1), "one#2": ("one again", 3)}[key]
            return {"result": value} if left.effects[name] else "retry"

        answer, asked = await _to_the_end(left, program(left), known)
        questions += asked
        assert answer == "1 2 3"
        assert (left.effects["one"], left.effects["one again"]) == (1, 1)
        assert left.effects["two"] in (1, 2)
    assert questions


async def test_a_person_may_say_that_a_step_of_unknown_outcome_has_failed() -> None:
    def program(world: World) -> Program:
        async def run(context: ToolContext) -> object:
            context.on_failure("refund", acts(world, "refund"))
            return await context.step("charge", acts(world, "charge"))

        return run

    (left,) = [each for each in await lives(program) if each.effects["charge"]][:1]
    answer, asked = await _to_the_end(left, program(left), lambda key: "fail")
    assert asked == 1
    assert "nobody saw its end" in answer
    assert answer.endswith("Undone: refund.")
    assert left.effects == {"charge": 1, "refund": 1}


@pytest.mark.parametrize(("policy", "charges", "answers"), [("retry", 2, "fine"), ("fail", 1, "Undone: refund.")])
async def test_an_agent_may_decide_itself_about_steps_of_unknown_outcome(
    policy: str, charges: int, answers: str
) -> None:
    def program(world: World) -> Program:
        async def run(context: ToolContext) -> object:
            context.on_failure("refund", acts(world, "refund"))
            return await context.step("charge", acts(world, "charge", "fine"))

        return run

    (left,) = [each for each in await lives(program) if each.effects["charge"]][:1]
    async with Runtime(sessions=killed(left), wakes_max=0) as runtime:
        spec = AgentSpec(
            name="worker",
            model=ScriptedModel([_replies], loop=True),
            tools=[works(program(left))],
            unknown_tool_outcome=policy,  # type: ignore[arg-type] - one of three words
        )
        result = await runtime.agent(spec).session("s").invoke("go", idempotency_token="t")
    assert str(result).endswith(answers)
    assert left.effects["charge"] == charges


async def test_compensations_run_once_wherever_their_process_is_killed() -> None:
    def program(world: World) -> Program:
        async def run(context: ToolContext) -> object:
            await context.step("one", acts(world, "one"))
            context.on_failure("undo one", acts(world, "undo one"))
            await context.step("two", acts(world, "two"))
            context.on_failure("undo two", acts(world, "undo two"))
            if world.effects["undo two"] == 0:
                raise RuntimeError("no")
            return "this failure does not come again, and the tool has failed all the same"

        return run

    for left in await lives(program):

        def known(key: str, left: World = left) -> object:
            return {"result": None} if left.effects[key.removeprefix("~undo~")] else "retry"

        answer, _ = await _to_the_end(left, program(left), known)
        assert "RuntimeError - no" in answer
        assert answer.endswith("Undone: undo two, undo one.")
        assert set(left.effects.values()) == {1}


async def test_a_shutdown_undoes_nothing_and_the_next_process_goes_on() -> None:
    waiting = anyio.Event()

    def program(world: World) -> Program:
        async def run(context: ToolContext) -> object:
            context.on_failure("undo", acts(world, "undo"))
            await context.step("one", acts(world, "one"))
            if world.effects["waited"] == 0:
                world.effect("waited")
                waiting.set()
                await anyio.sleep_forever()
            return await context.step("two", acts(world, "two", "fine"))

        return run

    world, outcomes = World(), list[str]()
    runtime = await Runtime(sessions=world, drain_timeout_s=1.0, wakes_max=0).__aenter__()
    spec = AgentSpec(name="worker", model=ScriptedModel([_replies], loop=True), tools=[works(program(world))])

    async def call() -> None:
        result = await runtime.agent(spec).session("s").invoke("go", idempotency_token="t")
        outcomes.append(result.stop_reason)

    async with anyio.create_task_group() as group:
        group.start_soon(call)
        await waiting.wait()
        await runtime.__aexit__(None, None, None)
    assert outcomes == ["cancelled"]
    assert str(await worker_on(killed(world), program(world))) == "fine"
    assert world.effects == {"one": 1, "waited": 1, "two": 1}


async def test_a_failed_step_fails_again_in_the_next_life_without_running() -> None:
    def program(world: World) -> Program:
        def fail() -> None:
            world.effect("fail")
            raise LookupError("nothing")

        async def run(context: ToolContext) -> object:
            try:
                await context.step("fail", fail)
            except StepFailed as error:
                await context.step("instead", acts(world, "instead"))
                return str(error)

        return run

    for left in [each for each in await lives(program) if each.effects["instead"]]:
        answer, _ = await _to_the_end(left, program(left), lambda key: {"result": None})
        assert answer == "step fail failed: LookupError - nothing"
        assert left.effects == {"fail": 1, "instead": 1}


async def test_steps_beside_each_other_are_found_again_in_any_order() -> None:
    def program(world: World, order: int = 1) -> Program:
        async def run(context: ToolContext) -> object:
            found = dict[int, object]()

            async def one(number: int) -> None:
                found[number] = await context.step("send", send, number)

            async with anyio.create_task_group() as group:
                for number in range(3)[::order]:
                    group.start_soon(one, number)
            return str([found[number] for number in range(3)])

        def send(number: int) -> int:
            world.effect(f"send {number}")
            return number * 10

        return run

    for left in await lives(program):

        def known(key: str, left: World = left) -> object:
            return "retry"

        answer, _ = await _to_the_end(left, program(left, -1), known)
        assert answer == "[0, 10, 20]"


async def _changed(old: Callable[[World], Program], new: Callable[[World], Program]) -> tuple[World, StepsChanged]:
    left = next(each for each in reversed(await lives(old)) if not _has_result(each))
    with pytest.raises(StepsChanged) as caught:
        await worker_on(killed(left), new(left))
    return left, caught.value


def _has_result(world: World) -> bool:
    journals = (rows for one in world.shelf.sessions.values() for rows in one.journals.values())
    return any(b"toolResult" in row.body for rows in journals for row in rows)


async def test_a_program_that_asks_for_another_step_is_told_and_nothing_runs_and_the_old_one_can_go_on() -> None:
    def old(world: World) -> Program:
        async def run(context: ToolContext) -> object:
            context.on_failure("undo", acts(world, "undo"))
            await context.step("charge", acts(world, "charge"))
            await context.step("ship", acts(world, "ship"), idempotent=True)
            return "shipped"

        return run

    def new(world: World) -> Program:
        async def run(context: ToolContext) -> object:
            context.on_failure("undo", acts(world, "undo"))
            try:
                await context.step("charge card", acts(world, "charge card"))
            except Exception:  # noqa: BLE001 - a program may catch all, and is stopped all the same
                return "shipped"

        return run

    left, error = await _changed(old, new)
    assert error.fields == {"step": "charge card", "recorded": "charge", "position": 1}
    assert "undo" not in left.effects
    assert str(await worker_on(killed(left), old(left))) == "shipped"
    assert left.effects["charge"] == 1


async def test_a_program_that_ends_without_a_step_that_it_took_is_told() -> None:
    def old(world: World) -> Program:
        async def run(context: ToolContext) -> object:
            await context.step("charge", acts(world, "charge"))
            await context.step("ship", acts(world, "ship"), idempotent=True)
            return "shipped"

        return run

    def new(world: World) -> Program:
        async def run(context: ToolContext) -> object:
            return "shipped"

        return run

    left, error = await _changed(old, new)
    assert error.fields["recorded"] == ["charge", "ship"]
    assert str(await worker_on(killed(left), old(left))) == "shipped"


async def test_a_tool_that_is_not_durable_is_asked_about_and_goes_on_over_its_steps() -> None:
    def program(world: World) -> Program:
        async def run(context: ToolContext) -> object:
            await context.step("one", acts(world, "one"))
            await context.step("two", acts(world, "two"))
            return "fine"

        return run

    moments = await lives(program, durable=False)
    (left,) = [each for each in moments if each.effects["two"]][:1]
    asked = await worker_on(killed(left), program(left), durable=False)
    (question,) = asked.interrupts
    assert question.name == "unknown_tool_outcome"
    response = [{"interruptResponse": {"interruptId": question.id, "response": "retry"}}]
    result = await worker_on(left, program(left), response, durable=False)
    (question,) = result.interrupts
    assert question.reason == {"tool": "work", "step": "two", "input": {}}
    assert question.text.startswith("step two of work({}) was cut off")
    response = [{"interruptResponse": {"interruptId": question.id, "response": {"result": None}}}]
    assert str(await worker_on(left, program(left), response, durable=False)) == "fine"
    assert left.effects == {"one": 1, "two": 1}


async def test_an_answer_about_a_step_that_is_none_is_refused_and_the_question_stays() -> None:
    def program(world: World) -> Program:
        async def run(context: ToolContext) -> object:
            return await context.step("one", acts(world, "one"))

        return run

    left = next(each for each in await lives(program) if each.effects["one"])
    (question,) = (await worker_on(killed(left), program(left))).interrupts
    bad = [{"interruptResponse": {"interruptId": question.id, "response": "perhaps"}}]
    with pytest.raises(Invalid, match="unknown step outcome"):
        await worker_on(left, program(left), bad)
    assert [one.id for one in (await worker_on(left, program(left), None)).interrupts] == [question.id]


async def test_a_snapshot_taken_between_two_steps_has_the_first_one() -> None:
    done = list[str]()

    def pay() -> dict[str, object]:
        done.append("paid")
        return {"receipt": b"\x00\xff", "id": 7}

    async def program(context: ToolContext) -> object:
        paid = await context.step("pay", pay)
        with suppress(StepFailed):
            await context.step("fail", done.remove, "nothing")
        answer = context.interrupt("ship?")
        return await context.step("ship", lambda: f"{paid['receipt']!r} {answer}")

    asking = Agent(model(), tools=[works(program)], callback_handler=None)
    (question,) = (await asking.invoke_async("go")).interrupts
    taken = json.loads(json.dumps(asking.take_snapshot(preset="session").to_dict()))
    other = Agent(ScriptedModel(["Done."]), tools=[works(program)], callback_handler=None)
    await other.load_snapshot_async(Snapshot.from_dict(taken))
    await other.invoke_async([question.respond("yes")])
    assert texts_of(other) == ["b'\\x00\\xff' yes"]
    assert done == ["paid"]


PLACES = ["sqlite", "postgres", "journal in files", "documents in files", "bucket in files", "journal in memory"]


@pytest.mark.real_time
@pytest.mark.parametrize("kind", PLACES)
async def test_a_tool_goes_on_over_its_steps_in_every_place(kind: str, tmp_path: Path) -> None:
    place, done, waiting = place_of(kind, tmp_path), list[str](), anyio.Event()

    @tool(durable=True)
    async def work(tool_context: ToolContext) -> str:
        """Work."""
        await tool_context.step("first", done.append, "first")
        if not waiting.is_set():
            waiting.set()
            await anyio.sleep_forever()
        await tool_context.step("second", done.append, "second")
        return "fine"

    spec = AgentSpec(name="worker", model=ScriptedModel([_replies], loop=True), tools=[work])
    async with anyio.create_task_group() as group:
        runtime = await Runtime(sessions=place, drain_timeout_s=2.0, wakes_max=0).__aenter__()
        group.start_soon(partial(runtime.agent(spec).session("s").invoke, "go", idempotency_token="t"))
        await waiting.wait()
        await runtime.__aexit__(None, None, None)
    async with Runtime(sessions=place, wakes_max=0) as runtime:
        assert str(await runtime.agent(spec).session("s").invoke("go", idempotency_token="t")) == "fine"
    assert done == ["first", "second"]


# Any program, against one that simply runs.


class RandomProgram:
    """A tool made by chance: steps in order, steps beside each other, failures that are caught and that are not."""

    def __init__(self, rng: random.Random) -> None:
        self.parts: list[tuple[str, Any]] = []
        for number in range(rng.randint(1, 5)):
            kind = rng.choice(["step", "step", "idempotent", "beside", "caught", "undo", "again"])
            name = rng.choice(["a", "b", f"s{number}"])
            self.parts.append((kind, (name, number, rng.randint(2, 3))))
        self.fails = rng.random() < 0.4

    async def run(self, step: Callable[..., Any], undo: Callable[..., None], act: Callable[..., Any]) -> str:
        found = list[object]()
        for kind, (name, number, width) in self.parts:
            if kind in ("step", "idempotent"):
                found.append(await step(name, partial(act, f"{name} {number}"), idempotent=kind == "idempotent"))
            elif kind == "beside":
                together = dict[int, object]()

                async def one(at: int, name: str = name, number: int = number, to: Any = together) -> None:
                    to[at] = await step(f"{name} {number} {at}", partial(act, f"{name} {number} {at}"))

                async with anyio.create_task_group() as group:
                    for at in range(width):
                        group.start_soon(one, at)
                found.append([together[at] for at in range(width)])
            elif kind == "caught":
                try:
                    await step(name, partial(act, f"{name} {number}", fail=True))
                except StepFailed as error:
                    found.append(str(error))
            elif kind == "undo":
                undo(f"undo {number}", partial(act, f"undo {number}"))
            else:
                found += [await step(name, partial(act, f"{name} {number} {time}")) for time in range(width)]
        if self.fails:
            await step("last", partial(act, "last", fail=True))
        return str(found)


async def simply(program: RandomProgram) -> tuple[str, list[str]]:
    """The answer and the effects of the program where nothing is recorded and nobody is killed."""
    effects, undos, counts = list[str](), list[Callable[[], object]](), dict[str, int]()

    async def act(name: str, *, fail: bool = False) -> str:
        if fail:
            raise LookupError(name)
        effects.append(name)
        return f"did {name}"

    async def step(name: str, function: Callable[[], Any], **_: object) -> object:
        count = counts[name] = counts.get(name, 0) + 1
        try:
            return await function()
        except LookupError as error:
            key = name if count == 1 else f"{name}#{count}"
            raise StepFailed(f"step {key} failed: LookupError - {error}") from error

    names = list[str]()

    def undo(name: str, function: Callable[[], Any]) -> None:
        undos.append(function)
        names.append(name)

    try:
        return await program.run(step, undo, act), effects
    except StepFailed as error:
        for function in reversed(undos):
            await function()
        text = f"Error: StepFailed - {error}"
        return f"{text} Undone: {', '.join(reversed(names))}." if names else text, effects


@pytest.mark.parametrize("number", range(12))
async def test_any_tool_ends_as_if_it_simply_ran_wherever_its_process_is_killed(
    number: int, rng: random.Random
) -> None:
    del number
    program = RandomProgram(rng)
    answer, effects = await simply(program)
    keys = list[str]()

    def tool_of(world: World) -> Program:
        async def act(name: str, *, step_context: StepContext, fail: bool = False) -> str:
            await anyio.lowlevel.checkpoint()
            if fail:
                raise LookupError(name)
            world.effect(f"{name}@{step_context.idempotency_key}")
            return f"did {name}"

        def run(context: ToolContext) -> Any:
            keys.append(context.idempotency_key)
            return program.run(context.step, context.on_failure, act)

        return run

    free = [f"{name} {at}" for kind, (name, at, _) in program.parts if kind == "idempotent"]
    for left in await lives(tool_of):

        def known(key: str, left: World = left) -> object:
            """What a person finds who looks for the step's idempotency key."""
            mark = step_key(keys[-1], key)
            done = [effect.partition("@")[0] for effect in left.effects if effect.endswith(f"@{mark}")]
            return {"result": f"did {done[0]}"} if done else "retry"

        ended, _ = await _to_the_end(left, tool_of(left), known)
        assert ended == answer
        assert sorted(effect.partition("@")[0] for effect in left.effects) == sorted(effects)
        for effect, count in left.effects.items():
            assert count == 1 or effect.partition("@")[0] in free, effect
