"""Code that calls tools: each call is a tool call like any other, and each takes effect once."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import anyio
import pytest

from repertory import (
    AfterToolCallEvent,
    Agent,
    AnthropicModel,
    BeforeToolCallEvent,
    CodeMode,
    HookFailed,
    Runtime,
    ScriptedModel,
    Sessions,
    Snapshot,
    SQLiteSessionManager,
    SQLiteSessions,
    ToolContext,
    ToolSearch,
    tool,
)
from repertory.backends.models.anthropic import messages_arguments
from repertory.backends.models.provider import ModelCall
from repertory.core.journal.rows import RecordKind
from repertory.core.messages import tool_results
from tests.code.coders import acts, asks_for, coder, printed, result_text, to_the_end
from tests.simulation.killed_worlds import World

pytestmark = [pytest.mark.anyio, pytest.mark.real_time]


@tool
def price(item: str, pieces: int = 1) -> int:
    """The price of an item.

    Args:
        item: Its name.
        pieces: How many.
    """
    return len(item) * pieces


@tool(effects=False)
async def rows(count: int) -> list[dict[str, int]]:
    """Rows of a table."""
    return [{"id": each} for each in range(count)]


@tool
def breaks() -> str:
    """Fails."""
    raise LookupError("no such row")


# What code does.


async def test_code_calls_tools_in_loops_and_beside_each_other_and_its_print_comes_back() -> None:
    code = """
import asyncio
many = await rows(count=200)
odd = [row["id"] for row in many if row["id"] % 2]
prices = await asyncio.gather(price("tea"), price("cake", 2), price(item="milk", pieces=3))
print(len(odd), prices, sum(prices))
"""
    assert await printed(code, rows, price) == "100 [3, 8, 12] 23"


async def test_a_tool_that_fails_raises_in_the_code_which_may_go_on() -> None:
    code = "try:\n    await breaks()\nexcept RuntimeError as error:\n    print('so', error)\nprint(await price('x'))"
    text = await printed(code, breaks, price)
    assert "no such row" in text
    assert text.endswith("1")


async def test_code_that_fails_gives_what_it_has_printed_and_how_it_failed() -> None:
    text = await printed("print('before')\nprint(1 / 0)\n", price)
    assert text.startswith("before")
    assert "ZeroDivisionError" in text
    assert "line 2" in text


async def test_a_name_that_no_tool_has_is_warned_about_once(caplog: pytest.LogCaptureFixture) -> None:
    mode = CodeMode(["p*", "rows"], exclude=["pirce"])
    agent = Agent(ScriptedModel(["Hello.", "Again."]), tools=[price], plugins=[mode], callback_handler=None)
    for _ in range(2):
        await agent.invoke_async("hello")
    assert [record.getMessage() for record in caplog.records if "CodeMode" in record.getMessage()] == [
        "CodeMode names tools that the agent does not have: ['rows', 'pirce']"
    ]


async def test_only_what_is_printed_comes_back() -> None:
    text = await printed("found = await rows(count=3)\nfound", rows)
    assert text.startswith("(The code has printed nothing.")
    assert "id" not in text


async def test_input_that_does_not_fit_a_tool_is_an_error_in_the_code() -> None:
    code = """
def calls():
    return [lambda: price("a", 1, 2), lambda: price("a", item="b"), lambda: price([]), lambda: price("a", {1: 2})]
for call in calls():
    try:
        print(await call())
    except (RuntimeError, TypeError) as error:
        print(type(error).__name__, str(error)[:60])
"""
    lines = (await printed(code, price)).splitlines()
    assert lines[0].startswith("RuntimeError price() takes 2 positional arguments but 3 were given")
    assert lines[1].startswith("RuntimeError price() got multiple values for argument 'item'")
    assert lines[2].startswith("RuntimeError")
    assert lines[3].startswith("TypeError the arguments of price()")


async def test_a_function_may_be_passed_on_like_any_value() -> None:
    code = "async def twice(function, value):\n    return await function(value) * 2\nprint(await twice(price, 'tea'))"
    assert await printed(code, price) == "6"


async def test_code_has_the_tools_that_it_is_given_and_no_others() -> None:
    plugin = CodeMode(tools=["p*"], exclude=["plain"])
    for code in ("print(await rows(count=1))", "print(await run_code(code='1'))", "print(await shell('ls'))"):
        assert "NameError" in await printed(code, price, rows, plugin=plugin)
    assert await printed("print(await price('tea'))", price, rows, plugin=plugin) == "3"


async def test_a_tool_that_the_model_is_only_shown_as_a_function_is_called_by_code_alone() -> None:
    model = ScriptedModel(
        [{"toolUse": {"name": "price", "input": {"item": "tea"}}}, asks_for("print(await price('tea'))"), "Done."]
    )
    agent = Agent(model, tools=[price, rows], plugins=[CodeMode(["price"], direct=False)], callback_handler=None)
    await agent.invoke_async("go")
    assert [spec["name"] for spec in model.calls[0].tool_specs or ()] == ["rows", "run_code"]
    texts = [result["content"][0].get("text") for message in agent.messages for result in tool_results(message)]
    assert texts == ["price is called by code alone: call it in run_code.", "3"]


async def test_the_model_is_shown_the_functions_with_their_types() -> None:
    model = ScriptedModel(["Fine."])
    agent = Agent(model, tools=[price, rows], plugins=[CodeMode()], callback_handler=None)
    await agent.invoke_async("go")
    description = [spec["description"] for spec in model.calls[0].tool_specs or ()][-1]
    assert "async def price(item: str, pieces: int = 1) -> int\n    # The price of an item.\n" in description
    assert "async def rows(count: int) -> list" in description


async def test_deferred_tools_are_there_when_they_were_found() -> None:
    @tool(deferred=True)
    def send_invoice(customer: str) -> str:
        """Send a customer the bill."""
        return f"sent to {customer}"

    code = "print(await send_invoice('Acme'))"
    find = {"toolUse": {"name": "search_tools", "input": {"query": "bill a customer"}}}
    model = ScriptedModel([asks_for(code), find, asks_for(code), "Done."])
    agent = Agent(model, tools=[send_invoice], plugins=[ToolSearch(), CodeMode()], callback_handler=None)
    await agent.invoke_async("go")
    texts = [result["content"][0].get("text") for message in agent.messages for result in tool_results(message)]
    assert "NameError" in str(texts[0])
    assert texts[2] == "sent to Acme"


# Each call is a tool call.


async def test_hooks_see_each_call_with_its_tool_and_may_change_it() -> None:
    seen: list[str] = []

    def before(event: BeforeToolCallEvent) -> None:
        seen.append(f"before {event.tool_use['name']} {json.dumps(event.tool_use['input'], sort_keys=True)}")
        given: Any = event.tool_use["input"]
        if given.get("item") == "gold":
            event.cancel_tool = "too dear"
        if given.get("item") == "tea":
            given["item"] = "green tea"

    def after(event: AfterToolCallEvent) -> None:
        seen.append(f"after {event.tool_use['name']} {event.result['status']}")

    code = "print(await price('tea'))\ntry:\n    await price('gold')\nexcept RuntimeError as error:\n    print(error)"
    model = ScriptedModel([asks_for(code), "Done."])
    agent = Agent(model, tools=[price], plugins=[CodeMode()], callback_handler=None)
    agent.hooks.add_callback(BeforeToolCallEvent, before)
    agent.hooks.add_callback(AfterToolCallEvent, after)
    await agent.invoke_async("go")
    assert result_text(agent) == "9\ntoo dear"
    assert seen[1:-1] == [
        'before price {"item": "tea", "pieces": 1}',
        "after price success",
        'before price {"item": "gold", "pieces": 1}',
        "after price error",
    ]


async def test_a_guard_that_fails_at_a_call_fails_the_turn() -> None:
    def before(event: BeforeToolCallEvent) -> None:
        if event.tool_use["name"] == "price":
            raise PermissionError("the policy is not there")

    agent = Agent(
        ScriptedModel([asks_for("print(await price('tea'))"), "Done."]),
        tools=[price],
        plugins=[CodeMode()],
        callback_handler=None,
    )
    agent.hooks.add_callback(BeforeToolCallEvent, before)
    with pytest.raises(HookFailed):
        await agent.invoke_async("go")


async def test_each_call_counts_in_the_metrics_of_the_turn() -> None:
    code = "for each in range(3):\n    await price('tea')"
    model = ScriptedModel([asks_for(code), "Done."])
    agent = Agent(model, tools=[price], plugins=[CodeMode()], callback_handler=None)
    result = await agent.invoke_async("go")
    assert result.metrics.tool_metrics["price"].call_count == 3
    assert result.metrics.tool_metrics["run_code"].call_count == 1


async def test_calls_share_the_state_of_the_agent_and_are_streamed() -> None:
    @tool
    def note(text: str, tool_context: ToolContext) -> str:
        """Note it."""
        noted: Any = tool_context.state.get("noted") or []
        tool_context.state.set("noted", [*noted, text])
        return "noted"

    model = ScriptedModel([asks_for("await note('a')\nawait note('b')"), "Done."])
    agent = Agent(model, tools=[note], plugins=[CodeMode()], callback_handler=None)
    started = [event["tool_started"]["name"] async for event in agent.stream_async("go") if "tool_started" in event]
    assert started == ["run_code", "note", "note"]
    assert agent.state.get("noted") == ["a", "b"]


async def test_code_that_calls_too_much_prints_too_much_or_takes_too_long_is_told_so() -> None:
    plugin = CodeMode(calls_max=3, output_bytes=100, timeout_s=20, cpu_s=1)
    code = """
for each in range(5):
    try:
        print(await price("x"))
    except RuntimeError as error:
        print(error)
"""
    assert (await printed(code, price, plugin=plugin)).count("a code makes 3 calls at most") == 2
    text = await printed("print('x' * 1000)", plugin=plugin)
    assert text.startswith("x" * 100 + "\n[901 more bytes") or "more bytes were printed" in text
    assert len(text) < 250
    assert "TimeoutError" in await printed("while True:\n    pass", plugin=plugin)


async def test_output_that_was_left_out_is_counted_to_the_last_byte() -> None:
    text = await printed("for _ in range(50):\n    print('x' * 999)", plugin=CodeMode(output_bytes=100))
    assert text.endswith("[49,900 more bytes were printed and left out: print less]")


async def test_codes_that_share_a_processor_have_their_whole_time_of_computing() -> None:
    code = "total = 0\nfor each in range(1_500_000):\n    total += each\nprint(total)"
    texts: list[str] = []

    async def one() -> None:
        texts.append(await printed(code, plugin=CodeMode(cpu_s=2)))

    async with anyio.create_task_group() as group:
        for _ in range(24):
            group.start_soon(one)
    assert texts == ["1124999250000"] * 24


async def test_code_that_waits_too_long_for_a_tool_is_ended_and_says_which() -> None:
    @tool
    async def waits() -> str:
        """Waits."""
        await anyio.sleep_forever()
        return ""

    seen: list[str] = []
    agent = Agent(
        ScriptedModel([asks_for("print('so far')\nawait waits()"), "Done."]),
        tools=[waits],
        plugins=[CodeMode(timeout_s=2)],
        callback_handler=None,
    )
    agent.hooks.add_callback(AfterToolCallEvent, lambda event: seen.append(event.tool_use["name"]))
    await agent.invoke_async("go")
    text = result_text(agent)
    assert text.startswith("so far\n\nTimeoutError: the code did not end within 2 s")
    assert text.endswith("may or may not take effect: waits")
    assert seen == ["waits", "run_code"]


# People.


def pays(**settings: Any) -> Any:
    @tool(**settings)
    async def pay(amount: int, tool_context: ToolContext) -> str:
        """Pay."""
        answer = tool_context.interrupt("approve", reason={"amount": amount})
        return f"paid {amount}" if answer == "yes" else f"refused {amount}"

    return pay


async def test_a_call_may_ask_a_person_and_the_code_goes_on_with_the_answer() -> None:
    read = Counter[str]()

    @tool
    def look(key: str) -> str:
        """Look."""
        read[key] += 1
        return f"found {key}"

    code = """
import asyncio
print(await look("a"))
print(await asyncio.gather(pay(5), look("b"), pay(7)))
"""
    agent = Agent(ScriptedModel([asks_for(code), "Done."]), tools=[look, pays()], plugins=[CodeMode()])
    result = await agent.invoke_async("go")
    assert result.stop_reason == "interrupt"
    assert [(one.tool, one.input, one.name) for one in result.interrupts] == [
        ("pay", {"amount": 5}, "approve"),
        ("pay", {"amount": 7}, "approve"),
    ]
    answers = [one.respond("yes" if one.reason == {"amount": 5} else "no") for one in result.interrupts]
    result = await agent.invoke_async(answers)
    assert result.stop_reason == "end_turn"
    assert result_text(agent) == "found a\n['paid 5', 'found b', 'refused 7']"
    assert read == {"a": 1, "b": 1}


async def test_a_hook_may_ask_a_person_about_each_call() -> None:
    def before(event: BeforeToolCallEvent) -> None:
        if event.tool_use["name"] == "price":
            answer = event.interrupt("approve", reason=event.tool_use["input"])
            if answer != "yes":
                event.cancel_tool = "a person says no"

    code = """
for item in ("tea", "gold"):
    try:
        print(await price(item))
    except RuntimeError as error:
        print(error)
"""
    agent = Agent(ScriptedModel([asks_for(code), "Done."]), tools=[price], plugins=[CodeMode()], callback_handler=None)
    agent.hooks.add_callback(BeforeToolCallEvent, before)
    result = await agent.invoke_async("go")
    asked = list[Any]()
    while result.stop_reason == "interrupt":
        asked += result.interrupts
        one: Any = result.interrupts[0]
        result = await agent.invoke_async([one.respond("yes" if one.input["item"] == "tea" else "no")])
    assert [one.input["item"] for one in asked] == ["tea", "gold"]
    assert result_text(agent) == "3\na person says no"


async def test_a_question_that_waits_when_its_process_is_killed_finds_its_answer() -> None:
    world = World()
    code = "print(await act(1))\nprint(await pay(5))\nprint(await act(2))"

    def spec() -> Any:
        return coder(code, [acts(world, "act"), pays()])

    async with Runtime(sessions=world, wakes_max=0) as runtime:
        result = await runtime.agent(spec()).session("s").invoke("go", idempotency_token="t")
        assert result.stop_reason == "interrupt"
    for left in world.left[-1:]:
        answer, asked = await to_the_end(left, coder(code, [acts(left, "act"), pays()]), lambda one: "yes")
        assert answer == "10\npaid 5\n20"
        assert [one.tool for one in asked] == ["pay"]
        assert sorted(key.split()[1] for key in left.effects) == ["1", "2"]


# Kills.


FOUR = """
import asyncio, random, time
print(await one(1))
both = await asyncio.gather(two(2), three(random.randint(3, 3)))
print(both, time.time() > 0)
print(await one(sum(both)))
"""


async def lives(code: str, world: World, tools: Any) -> list[World]:
    """What a kill would leave at each moment of one life."""
    async with Runtime(sessions=world, wakes_max=0) as runtime:
        await runtime.agent(coder(code, tools(world))).session("s").invoke("go", idempotency_token="t")
    return world.left


def four(world: World) -> list[Any]:
    return [acts(world, "one"), acts(world, "two", idempotent=True), acts(world, "three")]


async def test_each_call_takes_effect_once_wherever_the_process_is_killed() -> None:
    moments = await lives(FOUR, World(), four)
    assert len(moments) > 8
    questions = 0
    for left in moments:

        def known(one: Any, left: World = left) -> object:
            done = any(mark.split(" ")[2] == one.reason["step"] for mark in left.effects)
            return {"result": one.input["value"] * 10} if done else "retry"

        answer, asked = await to_the_end(left, coder(FOUR, four(left)), known)
        questions += len(asked)
        assert answer == "10\n[20, 30] True\n500"
        counts = Counter(" ".join(key.split(" ")[:2]) for key in left.effects.elements())
        assert {name: count for name, count in counts.items() if not name.startswith("two")} == {
            "one 1": 1,
            "one 50": 1,
            "three 3": 1,
        }
        assert counts["two 2"] in (1, 2)
        assert len({key for key in left.effects if key.startswith("two")}) == 1
    assert questions


class RandomCode:
    """A random program of calls, one after the other and beside each other."""

    def __init__(self, rng: random.Random) -> None:
        lines = ["import asyncio, random", "total = 0"]
        for _ in range(rng.randint(1, 4)):
            kind = rng.choice(("one", "beside", "loop", "chain", "random"))
            name, value = rng.choice(("one", "two", "three")), rng.randint(1, 3)
            if kind == "one":
                lines.append(f"total += await {name}({value})")
            elif kind == "beside":
                lines.append(f"total += sum(await asyncio.gather({name}({value}), one(total), two({value})))")
            elif kind == "loop":
                lines += [f"for each in range({value}):", f"    total += await {name}(each)"]
            elif kind == "random":
                lines.append(f"total += await {name}(random.randint(0, 100))")
            else:
                lines += [
                    "async def chain(at):",
                    f"    return await {name}((await one(at)) % 7)",
                    f"total += sum(await asyncio.gather(*[chain(at) for at in range({value})]))",
                ]
            lines.append("total %= 1000")
            lines.append("print(total)")
        self.code = "\n".join(lines)


@pytest.mark.parametrize("number", range(4))
async def test_any_code_ends_as_if_it_simply_ran_wherever_its_process_is_killed(
    number: int, rng: random.Random
) -> None:
    del number
    code = RandomCode(rng).code
    print(code)
    world = World()
    async with Runtime(sessions=world, wakes_max=0) as runtime:
        result = await runtime.agent(coder(code, four(world))).session("s").invoke("go", idempotency_token="t")
    whole, effects = str(result), Counter(world.effects)
    for left in rng.sample(world.left, min(5, len(world.left))):

        def known(one: Any, left: World = left) -> object:
            done = any(mark.split(" ")[2] == one.reason["step"] for mark in left.effects)
            return {"result": one.input["value"] * 10} if done else "retry"

        # Before its first effect the tool may not have begun: then it begins anew, with a key and a seed of its own.
        begun, random_values = bool(left.effects), "randint" in code
        answer, _ = await to_the_end(left, coder(code, four(left)), known)
        if begun:
            assert left.effects.keys() == effects.keys()
        if begun or not random_values:
            assert answer == whole
            assert {mark.rsplit(" ", 1)[0] for mark in left.effects} == {mark.rsplit(" ", 1)[0] for mark in effects}
        for mark, count in left.effects.items():
            assert count == 1 or mark.startswith("two "), mark


# Tools with steps, in code.


async def test_the_steps_of_a_tool_that_code_calls_take_effect_once_wherever_the_process_is_killed() -> None:
    def tools(world: World) -> list[Any]:
        @tool(durable=True)
        async def book(city: str, tool_context: ToolContext) -> str:
            """Book a trip."""

            def act(name: str) -> str:
                world.effect(f"{name} {city}")
                return f"{name} to {city}"

            first = await tool_context.step("charge", act, "charge")
            second = await tool_context.step("seat", act, "seat")
            return f"{first}, {second}"

        return [book, acts(world, "one")]

    code = "import asyncio\nprint(await asyncio.gather(book('Rome'), one(1), book('Oslo')))\nprint(await book('Rome'))"
    world = World()
    moments = await lives(code, world, tools)
    whole = "['charge to Rome, seat to Rome', 10, 'charge to Oslo, seat to Oslo']\ncharge to Rome, seat to Rome"
    questions = 0
    for left in moments[:: max(1, len(moments) // 12)]:

        def known(one: Any, left: World = left) -> object:
            step = one.reason["step"]
            if one.tool == "one":
                return {"result": 10} if any(mark.startswith("one") for mark in left.effects) else "retry"
            call, _, name = step.partition(">")
            # `book~digest#2` is the second trip to Rome.
            city = one.input["city"]
            done = left.effects[f"{name} {city}"] > ("#2" in call)
            return {"result": f"{name} to {city}"} if done else "retry"

        answer, asked = await to_the_end(left, coder(code, tools(left)), known)
        questions += len(asked)
        assert answer == whole
        trips = {mark: count for mark, count in left.effects.items() if not mark.startswith("one")}
        assert trips == {"charge Rome": 2, "seat Rome": 2, "charge Oslo": 1, "seat Oslo": 1}
    assert questions


async def test_a_tool_that_fails_in_code_undoes_what_it_has_done() -> None:
    done: list[str] = []

    @tool(durable=True)
    async def book(tool_context: ToolContext) -> str:
        """Book a trip."""
        await tool_context.step("charge", done.append, "charged")
        tool_context.on_failure("refund", done.append, "refunded")
        raise LookupError("no seat")

    code = "try:\n    await book()\nexcept RuntimeError as error:\n    print(error)"
    text = await printed(code, book)
    assert text == "Error: LookupError - no seat\nUndone: refund."
    assert done == ["charged", "refunded"]


# Records.


async def test_the_journal_has_each_call_with_its_input_and_redaction_reaches_it(tmp_path: Path) -> None:
    @tool
    def name() -> str:
        """Somebody's name."""
        return "Erika Mustermann"

    code = "print(await price(await name()))\nawait pay(5)"
    manager = SQLiteSessionManager("s", path=tmp_path / "s.db")
    tools, model = [name, price, pays()], ScriptedModel([asks_for(code), "Done."])
    async with Agent(model, tools=tools, plugins=[CodeMode()], session_manager=manager) as agent:
        result = await agent.invoke_async("go")
        assert result.stop_reason == "interrupt"

    async def calls() -> list[tuple[str, object]]:
        lines = list[bytes]()

        async def write(chunk: bytes) -> None:
            lines.append(chunk)

        async with Sessions(SQLiteSessions(tmp_path / "s.db")) as sessions:
            await sessions.write_export("s", write)
            await sessions.redact_text("s", "Mustermann", "somebody")
        rows = [json.loads(line) for line in b"".join(lines).splitlines()]
        steps = [row for row in rows if row.get("kind") == RecordKind.STEP_STARTED and "body" in row]
        bodies = [json.loads(row["body"]) for row in steps]
        return [(body["tool"], body.get("input")) for body in bodies]

    # One that has stopped to ask is stated again.
    stopped = ("pay", {"amount": 5})
    assert await calls() == [("name", {}), ("price", {"item": "Erika Mustermann"}), stopped, stopped]
    redacted = await calls()
    assert redacted[-3:] == [("name", {}), ("price", {"item": "Erika somebody"}), stopped]
    assert "Mustermann" not in str(redacted)


# The service of a model that runs code itself.


def sent_tools(model: Any, plugin: CodeMode, *tools: Any, **config: Any) -> list[dict[str, Any]]:
    parts = Agent(model, tools=list(tools), plugins=[plugin], callback_handler=None).spec().parts
    assert parts.deferral is not None
    call = ModelCall(
        config={"model_id": "m", "max_tokens": 10, **config},
        messages=[{"role": "user", "content": [{"text": "go"}]}],
        tool_specs=list(parts.deferral.visible_specs(parts)),
        system_prompt=None,
        system_prompt_content=None,
        tool_choice=None,
    )
    return messages_arguments(call)["tools"]


def test_anthropics_own_code_may_call_the_tools_where_the_model_is_set_so() -> None:
    model = AnthropicModel(code_mode=True, client_args={"api_key": "k"})
    sent = sent_tools(model, CodeMode(["price"]), price, rows)
    assert [(each["name"], each.get("allowed_callers")) for each in sent] == [
        ("price", ["direct", "code_execution_20260120"]),
        ("rows", None),
        ("code_execution", None),
    ]
    assert sent[-1]["type"] == "code_execution_20260120"
    (only, *_) = sent_tools(model, CodeMode(["price"], direct=False), price, rows)
    assert only["allowed_callers"] == ["code_execution_20260120"]
    # A version that the program has chosen itself, and none for a model without the setting.
    newer = {"type": "code_execution_20260521", "name": "code_execution"}
    sent = sent_tools(model, CodeMode(["price"]), price, anthropic_tools=[newer])
    assert sent[0]["allowed_callers"] == ["direct", "code_execution_20260521"]
    assert sent[1:] == [newer]
    plain = AnthropicModel(client_args={"api_key": "k"})
    for sent in (sent_tools(plain, CodeMode(), price), sent_tools(model, CodeMode(provider="never"), price)):
        assert [each["name"] for each in sent] == ["price", "run_code"]
        assert not [each for each in sent if "allowed_callers" in each]


# With what else there is.


async def test_code_may_run_in_the_background_and_ask_from_there() -> None:
    done: list[int] = []

    @tool
    async def one(value: int) -> int:
        """One."""
        done.append(value)
        return value * 2

    code = "print(await one(1), await pay(5), await one(2))"
    model = ScriptedModel([asks_for(code), *["It runs."] * 9])
    agent = Agent(
        model,
        tools=[one, pays()],
        plugins=[CodeMode()],
        background_tasks={"always": ["run_code"]},
        callback_handler=None,
    )
    result = await agent.invoke_async("go")
    assert result.stop_reason == "interrupt"
    assert [(each.name, each.reason) for each in result.interrupts] == [("approve", {"amount": 5})]
    await agent.invoke_async([each.respond("yes") for each in result.interrupts])
    assert done == [1, 2]
    assert "2 paid 5 4" in json.dumps(agent.messages)


async def test_a_snapshot_of_code_that_waits_for_a_person_has_its_calls() -> None:
    done: list[int] = []

    @tool
    async def one(value: int) -> int:
        """One."""
        done.append(value)
        return value * 2

    def made(*replies: Any) -> Agent:
        model = ScriptedModel(list(replies))
        return Agent(model, tools=[one, pays()], plugins=[CodeMode()], callback_handler=None)

    asking = made(asks_for("print(await one(1), await pay(5), await one(2))"), "Done.")
    result = await asking.invoke_async("go")
    taken = json.loads(json.dumps(asking.take_snapshot(preset="session").to_dict()))
    other = made("Done.")
    await other.load_snapshot_async(Snapshot.from_dict(taken))
    await other.invoke_async([each.respond("yes") for each in result.interrupts])
    assert done == [1, 2]
    assert result_text(other) == "2 paid 5 4"
