"""How tools run: at once or in order, bounded, in threads, with timeouts, and whatever they do, without harm."""

from __future__ import annotations

import asyncio
import contextvars
import sqlite3
import threading
from pathlib import Path
from typing import Annotated, Any, Literal

import anyio
import anyio.from_thread
import anyio.to_thread
import pydantic
import pytest

from repertory import (
    AfterToolCallEvent,
    Agent,
    BeforeToolCallEvent,
    ScriptedModel,
    SQLiteSessionManager,
    ToolContext,
    tool,
)
from repertory.backends.tools.function_tool import THREADS_MAX, schema_class, tool_threads
from repertory.core.messages import Message, ToolResult, check_next, tool_results
from repertory.errors import Invalid

schema_class()  # Loading it uses a thread, which a clock that jumps would pass.

number_of_call: contextvars.ContextVar[int] = contextvars.ContextVar("number_of_call")


def use(name: str, **arguments: object) -> dict[str, object]:
    return {"toolUse": {"name": name, "input": arguments}}


def results(agent: Agent) -> list[ToolResult]:
    return [result for message in agent.messages for result in tool_results(message)]


def texts(agent: Agent) -> list[str]:
    return [str(result["content"][0].get("text")) for result in results(agent)]


def assert_valid(messages: list[Message]) -> None:
    previous = None
    for message in messages:
        check_next(previous, message)
        previous = message


# -------------------------------------------------------------------------------------------------- at once, in order


class Gauge:
    """Counts how many are inside at a time."""

    def __init__(self) -> None:
        self.inside = 0
        self.most = 0
        self.log: list[str] = []

    def tool(self) -> Any:
        @tool
        async def work(number: int, seconds: float = 1) -> int:
            """Work for a while."""
            self.inside += 1
            self.most = max(self.most, self.inside)
            self.log.append(f"begin {number}")
            await anyio.sleep(seconds)
            self.log.append(f"end {number}")
            self.inside -= 1
            return number

        return work


@pytest.mark.anyio
async def test_results_stand_in_the_order_asked_whatever_the_order_of_their_ends() -> None:
    gauge = Gauge()
    asked = [use("work", number=number, seconds=10 - number) for number in range(10)]
    agent = Agent(ScriptedModel([asked, "done"]), tools=[gauge.tool()], callback_handler=None)
    await agent.invoke_async("go")
    assert texts(agent) == [str(number) for number in range(10)]
    assert [entry for entry in gauge.log if entry.startswith("end")] == [f"end {n}" for n in range(9, -1, -1)]


@pytest.mark.anyio
async def test_no_more_than_sixteen_of_one_answer_run_at_a_time() -> None:
    gauge = Gauge()
    asked = [use("work", number=number) for number in range(50)]
    agent = Agent(ScriptedModel([asked, "done"]), tools=[gauge.tool()], callback_handler=None)
    began = anyio.current_time()
    await agent.invoke_async("go")
    assert gauge.most == 16
    assert anyio.current_time() - began == pytest.approx(4)
    assert texts(agent) == [str(number) for number in range(50)]


@pytest.mark.anyio
async def test_sequential_tools_run_in_order_each_between_its_hooks() -> None:
    gauge = Gauge()
    asked = [use("work", number=number, seconds=3 - number) for number in range(3)]
    agent = Agent(
        ScriptedModel([asked, "done"]), tools=[gauge.tool()], callback_handler=None, tool_execution="sequential"
    )

    def before(event: BeforeToolCallEvent) -> None:
        gauge.log.append(f"before {event.tool_use['input']['number']}")  # type: ignore[index,call-overload]

    def after(event: AfterToolCallEvent) -> None:
        gauge.log.append(f"after {event.tool_use['input']['number']}")  # type: ignore[index,call-overload]

    agent.add_hook(before)
    agent.add_hook(after)
    await agent.invoke_async("go")
    expected = [f"{what} {number}" for number in range(3) for what in ("before", "begin", "end", "after")]
    assert gauge.log == expected
    assert gauge.most == 1


# ------------------------------------------------------------------------------------------------------------ threads


@pytest.mark.real_time
@pytest.mark.anyio
async def test_many_synchronous_tools_leave_the_event_loop_alone_and_stay_within_their_bound() -> None:
    """The tools of three turns at once; a loop that was held up could not let them go."""
    gate, lock = threading.Event(), threading.Lock()
    inside, most, idents = 0, 0, set[int]()

    @tool
    def hold() -> str:
        """Wait for the test."""
        nonlocal inside, most
        with lock:
            inside += 1
            most = max(most, inside)
            idents.add(threading.get_ident())
        assert gate.wait(10)
        with lock:
            inside -= 1
        return "held"

    agents = [
        Agent(ScriptedModel([[use("hold") for _ in range(20)], "done"]), tools=[hold], callback_handler=None)
        for _ in range(3)
    ]
    with anyio.fail_after(20):
        async with anyio.create_task_group() as group:
            for agent in agents:
                group.start_soon(agent.invoke_async, "go")
            while inside < THREADS_MAX:  # noqa: ASYNC110 - only threads can tell
                await anyio.sleep(0.001)
            assert tool_threads().statistics().running_count == THREADS_MAX
            gate.set()
    assert most == THREADS_MAX
    assert threading.get_ident() not in idents
    assert all(texts(agent) == ["held"] * 20 for agent in agents)


@pytest.mark.real_time
@pytest.mark.anyio
async def test_a_thread_has_the_callers_context_variables_and_its_own_changes_stay_there() -> None:
    @tool
    def read_and_set(value: int) -> int:
        """Read the variable, then set it."""
        found = number_of_call.get()
        number_of_call.set(value)
        return found

    number_of_call.set(7)
    asked = [use("read_and_set", value=number) for number in range(5)]
    agent = Agent(ScriptedModel([asked, [use("read_and_set", value=9)], "done"]), tools=[read_and_set])
    with anyio.fail_after(20):
        await agent.invoke_async("go")
    assert texts(agent) == ["7"] * 6
    assert number_of_call.get() == 7


@pytest.mark.real_time
@pytest.mark.anyio
async def test_a_synchronous_tool_that_takes_too_long_is_given_up_on_and_runs_on_alone() -> None:
    gate, ended = threading.Event(), threading.Event()

    @tool(timeout_s=0.05)
    def stuck() -> None:
        """Wait for the test."""
        gate.wait(10)
        ended.set()

    agent = Agent(ScriptedModel([use("stuck"), "sorry"]), tools=[stuck], callback_handler=None)
    with anyio.fail_after(20):
        assert str(await agent.invoke_async("go")) == "sorry"
        assert not ended.is_set()
        gate.set()
        while tool_threads().statistics().running_count:  # noqa: ASYNC110 - only the thread can tell
            await anyio.sleep(0.001)
    assert texts(agent) == ["Error: TimeoutError - stuck did not finish within 0.05 s; it may or may not take effect"]


@pytest.mark.real_time
@pytest.mark.anyio
async def test_a_synchronous_tool_may_show_pieces_from_its_thread() -> None:
    @tool
    def report(tool_context: ToolContext) -> str:
        """Report progress."""
        assert tool_context.on_partial is not None
        anyio.from_thread.run(tool_context.on_partial, "half")
        return "reported"

    agent = Agent(ScriptedModel([use("report"), "done"]), tools=[report], callback_handler=None)
    with anyio.fail_after(20):
        events = [event async for event in agent.stream_async("go")]
    assert [event["tool_stream_event"]["data"] for event in events if "tool_stream_event" in event] == ["half"]  # type: ignore[index]


# -------------------------------------------------------------------------------------------- tools that do no good


class Panic(BaseException):
    """What some extension modules raise."""


@pytest.mark.anyio
@pytest.mark.parametrize("beside", [False, True], ids=["alone", "beside another"])
@pytest.mark.parametrize(
    "error",
    [SystemExit(2), Panic("aborted"), RecursionError("deep"), MemoryError(), StopAsyncIteration(), Exception()],
    ids=lambda error: type(error).__name__,
)
async def test_whatever_a_tool_raises_is_an_answer_to_the_model(error: BaseException, beside: bool) -> None:
    @tool
    async def fail() -> str:
        """Fail."""
        await anyio.lowlevel.checkpoint()
        raise error

    asked = [use("fail"), use("work", number=1)] if beside else [use("fail")]
    agent = Agent(ScriptedModel([asked, "sorry"]), tools=[fail, Gauge().tool()], callback_handler=None)
    with anyio.fail_after(20):
        assert str(await agent.invoke_async("go")) == "sorry"
    assert type(error).__name__ in texts(agent)[0]
    assert texts(agent)[1:] == (["1"] if beside else [])


@pytest.mark.real_time
@pytest.mark.anyio
async def test_a_thread_that_exits_is_an_answer_to_the_model() -> None:
    @tool
    def leave() -> str:
        """Leave, as command lines do on bad arguments."""
        raise SystemExit(2)

    agent = Agent(ScriptedModel([use("leave"), "sorry"]), tools=[leave], callback_handler=None)
    with anyio.fail_after(20):
        assert str(await agent.invoke_async("go")) == "sorry"
    assert texts(agent) == ["Error: SystemExit - 2"]


def test_a_cancellation_that_nobody_asked_for_is_an_answer_to_the_model() -> None:
    """On asyncio a library may let one out; taken for ours, it would end the turn without a word."""

    @tool
    async def await_cancelled() -> str:
        """Wait for what was cancelled."""
        future = asyncio.get_running_loop().create_future()
        future.cancel()
        return str(await future)

    agent = Agent(ScriptedModel([use("await_cancelled"), "sorry"]), tools=[await_cancelled], callback_handler=None)
    assert str(agent("go")) == "sorry"
    assert texts(agent) == ["Error: CancelledError"]


@pytest.mark.anyio
async def test_a_tool_that_is_no_function_of_ours_may_fail_as_it_likes() -> None:
    class Rough:
        name = "rough"
        effects = True
        idempotent = False
        timeout_s = None

        @property
        def spec(self) -> dict[str, object]:
            return {"name": "rough", "description": "Rough.", "inputSchema": {"json": {"type": "object"}}}

        async def run(self, tool_use: Any, context: Any) -> ToolResult:
            await anyio.lowlevel.checkpoint()
            raise OSError(28, "No space left on device")

    agent = Agent(ScriptedModel([use("rough"), "sorry"]), tools=[Rough()], callback_handler=None)
    assert str(await agent.invoke_async("go")) == "sorry"
    assert texts(agent) == ["Error: OSError - [Errno 28] No space left on device"]


@pytest.mark.anyio
async def test_a_timeout_of_one_tool_leaves_the_others_alone() -> None:
    @tool(timeout_s=5, effects=False)
    async def slow() -> None:
        """Never end."""
        await anyio.sleep_forever()

    asked = [use("slow"), use("work", number=1, seconds=20)]
    agent = Agent(ScriptedModel([asked, "done"]), tools=[slow, Gauge().tool()], callback_handler=None)
    await agent.invoke_async("go")
    assert texts(agent) == ["Error: TimeoutError - slow did not finish within 5 s", "1"]


@pytest.mark.anyio
async def test_a_tool_that_swallows_its_cancellation_cannot_hold_the_turn() -> None:
    @tool
    async def stubborn() -> str:
        """Go on for a while after being told to stop."""
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.sleep(2)
        return "never"

    agent = Agent(ScriptedModel([use("stubborn"), "later"]), tools=[stubborn], callback_handler=None)
    with anyio.fail_after(30):
        with anyio.move_on_after(1):
            await agent.invoke_async("go")
        assert str(await agent.invoke_async("again")) == "later"
    assert_valid(agent.messages)


# ----------------------------------------------------------------------------------------------- effects, idempotency


@pytest.mark.real_time
@pytest.mark.anyio
async def test_a_tool_with_effects_finds_its_intent_stored_and_one_without_need_not(tmp_path: Path) -> None:
    seen: dict[str, bool] = {}

    async def intent_is_stored(name: str) -> bool:
        def bodies() -> list[str]:
            with sqlite3.connect(tmp_path / "a.db") as database:
                return [bytes(row[0]).decode() for row in database.execute("SELECT body FROM rows")]

        found = await anyio.to_thread.run_sync(bodies)
        return any(f'"name":"{name}"' in body and '"idempotency_key"' in body for body in found)

    @tool
    async def pay() -> str:
        """Pay."""
        seen["pay"] = await intent_is_stored("pay")
        return "paid"

    @tool(effects=False)
    async def look_up() -> str:
        """Look something up."""
        seen["look_up"] = await intent_is_stored("look_up")
        return "found"

    manager = SQLiteSessionManager("s", path=tmp_path / "a.db")
    agent = Agent(
        ScriptedModel([use("pay"), use("look_up"), "done"]),
        tools=[pay, look_up],
        session_manager=manager,
        callback_handler=None,
    )
    with anyio.fail_after(20):
        await agent.invoke_async("go")
    assert seen == {"pay": True, "look_up": False}


@pytest.mark.anyio
async def test_every_attempt_at_a_call_carries_the_same_key_and_every_call_its_own() -> None:
    keys: list[tuple[str, int]] = []

    @tool
    async def pay(tool_context: ToolContext) -> str:
        """Pay."""
        await anyio.lowlevel.checkpoint()
        keys.append((tool_context.idempotency_key, tool_context.attempt))
        return "paid"

    agent = Agent(ScriptedModel([[use("pay"), use("pay")], use("pay"), "done"]), tools=[pay], callback_handler=None)

    def again(event: AfterToolCallEvent) -> None:
        event.retry = event.tool_use["toolUseId"] == "tooluse_1" and len(keys) < 4

    agent.add_hook(again)
    await agent.invoke_async("go")
    by_key: dict[str, list[int]] = {}
    for key, attempt in keys:
        by_key.setdefault(key, []).append(attempt)
    assert sorted(by_key.values()) == [[1], [1], list(range(1, len(keys) - 1))]


# --------------------------------------------------------------------------------- what the model gets wrong


class Line(pydantic.BaseModel):
    item: str
    amount: int = pydantic.Field(ge=1)


@tool
async def order(
    lines: list[Line], express: bool = False, size: Literal["S", "M"] = "S", note: Annotated[str, "for us"] = ""
) -> str:
    """Order something."""
    await anyio.lowlevel.checkpoint()
    return f"{[line.amount for line in lines]} {express} {size} {note!r}"


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({}, ["lines: field required"]),
        ({"lines": "two"}, ["lines: Input should be a valid list (got 'two')"]),
        (
            {"lines": [{"item": "a", "amount": 0}, {"amount": "x"}]},
            ["lines.0.amount: Input should be greater than or equal to 1 (got 0)", "lines.1.item: field required"],
        ),
        ({"lines": [], "size": "XL"}, ["size: Input should be 'S' or 'M' (got 'XL')"]),
        ({"lines": [], "exprss": True}, ["exprss: no such field", "its fields are: lines, express, size, note"]),
        ({"lines": [], "express": "perhaps"}, ["express: Input should be a valid boolean"]),
    ],
    ids=["missing", "type", "nested", "choice", "misspelt", "boolean"],
)
async def test_a_wrong_input_is_answered_with_every_fault_and_never_runs(arguments: Any, told: list[str]) -> None:
    agent = Agent(ScriptedModel([use("order", **arguments), "sorry"]), tools=[order], callback_handler=None)
    await agent.invoke_async("go")
    (result,) = results(agent)
    assert result["status"] == "error"
    text = str(result["content"][0]["text"])
    assert text.startswith("Error: Invalid - input of order: ")
    for part in told:
        assert part in text


@tool
async def keep(anything: dict[str, Any]) -> str:
    """Keep anything."""
    await anyio.lowlevel.checkpoint()
    return "kept"


@pytest.mark.anyio
@pytest.mark.parametrize("depth", [150, 600, 900])
async def test_an_input_that_is_nested_beyond_sense_is_refused_and_the_turn_goes_on(depth: int) -> None:
    deep: dict[str, Any] = {}
    for _ in range(depth):
        deep = {"a": deep}
    agent = Agent(ScriptedModel([use("keep", anything=deep), "sorry"]), tools=[keep], callback_handler=None)
    assert str(await agent.invoke_async("go")) == "sorry"
    assert texts(agent)[0].startswith("The input is not valid JSON")
    with pytest.raises(Invalid, match="nested too deeply"):
        await agent.invoke_async([{"text": "look"}, {"document": deep}])  # type: ignore[typeddict-item]
    with pytest.raises(Invalid, match="nested too deeply"):
        await agent.tool.keep.invoke_async(anything=deep)


@pytest.mark.anyio
async def test_a_model_that_corrects_itself_succeeds() -> None:
    def correct(messages: Any, *_: object) -> Any:
        assert "amount" in str(messages[-1])
        return use("order", lines=[{"item": "a", "amount": 2}], note="thanks")

    agent = Agent(
        ScriptedModel([use("order", lines=[{"item": "a", "amount": 0}]), correct, "done"]),
        tools=[order],
        callback_handler=None,
    )
    assert str(await agent.invoke_async("go")) == "done"
    assert texts(agent)[1] == "[2] False S 'thanks'"


# ------------------------------------------------------------------------------------------------- tools as they come


@pytest.mark.anyio
async def test_tools_may_stand_in_lists_and_the_same_one_twice_is_once() -> None:
    @tool
    async def one() -> str:
        """One."""
        await anyio.lowlevel.checkpoint()
        return "1"

    @tool
    async def two() -> str:
        """Two."""
        await anyio.lowlevel.checkpoint()
        return "2"

    agent = Agent(ScriptedModel([[use("one"), use("two")], "done"]), tools=[one, [two, (one,)]], callback_handler=None)
    assert agent.tool_names == ["one", "two"]
    await agent.invoke_async("go")
    assert texts(agent) == ["1", "2"]


@pytest.mark.parametrize("name", ["make_it", "make-it"])
def test_two_tools_of_one_name_are_refused_with_the_way_out(name: str) -> None:
    @tool
    def make_it() -> str:
        """Make it."""
        return ""

    @tool(name=name)
    def other() -> str:
        """Make it otherwise."""
        return ""

    with pytest.raises(Invalid, match="two tools have the same name; give one another with @tool"):
        Agent(ScriptedModel([]), tools=[make_it, other])


def test_a_plain_function_is_refused_with_the_way_out() -> None:
    with pytest.raises(Invalid, match="decorate a function with @tool"):
        Agent(ScriptedModel([]), tools=[len])
