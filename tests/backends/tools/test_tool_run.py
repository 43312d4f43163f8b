"""One run of a tool: what it gets, what it answers, how it fails."""

from __future__ import annotations

import contextvars
import functools
import logging
import sys
import threading
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import anyio
import pytest

from repertory.backends.ports import Tool, ToolContext
from repertory.backends.tools.decorator import tool

pytestmark = pytest.mark.anyio

number: contextvars.ContextVar[int] = contextvars.ContextVar("number")


@tool
async def divide(a: int, b: int) -> float:
    """Divide."""
    await anyio.lowlevel.checkpoint()
    return a / b


def error(text: str) -> dict[str, Any]:
    return {"toolUseId": "use-1", "status": "error", "content": [{"text": text}]}


def success(*content: dict[str, Any]) -> dict[str, Any]:
    return {"toolUseId": "use-1", "status": "success", "content": list(content)}


async def test_an_asynchronous_tool_answers_with_its_use_id(run_tool: Any):
    assert await run_tool(divide, {"a": 6, "b": 3}) == success({"text": "2.0"})


async def test_an_exception_is_an_answer_to_the_model(run_tool: Any, caplog: pytest.LogCaptureFixture):
    """Strands behaviour, to the letter; ours is the log entry, which is one line."""
    assert await run_tool(divide, {"a": 1, "b": 0}) == error("Error: ZeroDivisionError - division by zero")
    (record,) = caplog.records
    said = "tool failed tool='divide' tool_use='use-1' agent='a' error='ZeroDivisionError' at="
    assert record.getMessage().startswith(said)
    assert record.levelno == logging.WARNING
    assert record.exc_info is None


async def test_faulty_input_is_an_answer_that_names_the_field_and_is_no_warning(
    run_tool: Any, caplog: pytest.LogCaptureFixture
):
    answer = await run_tool(divide, {"a": "six", "b": 1})
    assert answer["status"] == "error"
    assert "a: Input should be a valid integer" in answer["content"][0]["text"]
    assert not caplog.records


async def test_a_result_that_json_cannot_say_is_an_answer_that_names_its_type(run_tool: Any):
    @tool
    async def raw() -> dict[str, bytes]:
        return {"data": b"x"}

    answer = await run_tool(raw, {})
    assert answer["status"] == "error"
    assert "place=\"result['data']\" got='bytes'" in answer["content"][0]["text"]


async def test_agent_and_context_are_put_in(tool_context: ToolContext, run_tool: Any):
    @tool
    async def look(
        word: str, agent: Any, tool_context: ToolContext, again: ToolContext | None = None
    ) -> dict[str, Any]:
        same = again is tool_context
        return {"word": word, "agent": agent, "key": tool_context.idempotency_key, "same": same}

    assert await run_tool(look, {"word": "hi"}) == success(
        {"json": {"word": "hi", "agent": "the agent", "key": "key-1", "same": True}}
    )
    assert tool_context.state.get("colour") == "green"


async def test_defaults_of_the_function_apply_when_the_model_leaves_a_field_out(run_tool: Any):
    sentinel = object()

    @tool
    async def default(x: Any = sentinel) -> bool:
        return x is sentinel

    assert await run_tool(default, {}) == success({"text": "True"})


async def test_a_method_runs_on_its_instance(run_tool: Any):
    class Account:
        def __init__(self, balance: int) -> None:
            self.balance = balance

        @tool
        async def pay(self, amount: int) -> int:
            self.balance -= amount
            return self.balance

    account = Account(10)
    assert await run_tool(account.pay, {"amount": 3}) == success({"text": "7"})
    assert account.balance == 7


async def test_a_callable_object_and_an_asynchronous_partial_run_on_the_loop(run_tool: Any):
    class Shout:
        async def __call__(self, word: str) -> str:
            await anyio.lowlevel.checkpoint()
            return word.upper()

    assert await run_tool(tool(name="shout")(Shout()), {"word": "a"}) == success({"text": "A"})

    async def join(left: str, right: str) -> str:
        return left + right

    joined = tool(name="join")(functools.partial(join, "a"))
    assert await run_tool(joined, {"right": "b"}) == success({"text": "ab"})


async def test_an_asynchronous_generator_hands_over_what_it_yields_and_ends_with_the_last(tool_context: ToolContext):
    @tool
    async def count(to: int) -> AsyncIterator[str]:
        for step in range(to):
            await anyio.lowlevel.checkpoint()
            yield f"step {step}"

    seen: list[object] = []

    async def on_partial(value: object) -> None:
        seen.append(value)

    use: Any = {"toolUseId": "use-1", "name": "count", "input": {"to": 3}}
    context = replace(tool_context, on_partial=on_partial)
    assert await count.run(use, context) == success({"text": "step 2"})
    assert seen == ["step 0", "step 1", "step 2"]


async def test_a_cancelled_generator_is_closed_before_the_run_ends(run_tool: Any):
    closed = anyio.Event()

    @tool
    async def endless() -> AsyncIterator[int]:
        try:
            yield 1
            await anyio.sleep_forever()
        finally:
            closed.set()

    with anyio.fail_after(5):
        with anyio.move_on_after(0.01):
            await run_tool(endless, {})
        assert closed.is_set()


async def test_cancellation_is_never_an_answer(run_tool: Any):
    answers: list[object] = []

    @tool
    async def hang() -> None:
        await anyio.sleep_forever()

    with anyio.fail_after(5), anyio.move_on_after(0.01) as scope:
        answers.append(await run_tool(hang, {}))
    assert scope.cancelled_caught
    assert answers == []


async def test_the_members_of_an_exception_group_are_told(run_tool: Any):
    async def fail(error: Exception) -> None:
        raise error

    @tool
    async def both() -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(fail, ValueError("left"))
            tasks.start_soon(fail, KeyError("right"))

    text = (await run_tool(both, {}))["content"][0]["text"]
    assert "ValueError - left" in text
    assert "KeyError - 'right'" in text


async def test_a_tool_satisfies_the_port():
    port: Tool = divide
    assert port.name == "divide"


@pytest.mark.real_time
async def test_a_synchronous_tool_runs_in_a_thread_of_its_own_with_the_callers_context(run_tool: Any):
    @tool
    def where() -> dict[str, Any]:
        return {"thread": threading.get_ident(), "number": number.get()}

    number.set(7)
    with anyio.fail_after(30):
        answer = await run_tool(where, {})
    told = answer["content"][0]["json"]
    assert told["number"] == 7
    assert told["thread"] != threading.get_ident()


@pytest.mark.real_time
async def test_a_plain_wrapper_around_an_asynchronous_function_is_awaited_on_the_loop(run_tool: Any):
    def logged(function: Any) -> Any:
        @functools.wraps(function)
        def call(**arguments: Any) -> Any:
            return function(**arguments)

        return call

    @tool
    @logged
    async def double(x: int) -> int:
        await anyio.lowlevel.checkpoint()
        return 2 * x

    with anyio.fail_after(30):
        assert await run_tool(double, {"x": 4}) == success({"text": "8"})


@pytest.mark.real_time
async def test_stop_iteration_from_a_thread_is_an_answer(run_tool: Any):
    @tool
    def exhausted() -> None:
        raise StopIteration

    with anyio.fail_after(30):
        assert (await run_tool(exhausted, {}))["status"] == "error"


@pytest.mark.real_time
async def test_the_first_schema_of_a_process_does_not_hold_the_event_loop_up():
    """The schema library takes some 70 ms and reads files; blocking detection is on in this program, on asyncio."""
    program = """
import os
import anyio
from blockbuster import blockbuster_ctx
from repertory.backends.ports import ToolContext
from repertory.backends.tools.decorator import tool
from repertory.core.state import AgentState

@tool
async def add(a: int, b: int) -> int:
    return a + b

async def main():
    use = {"toolUseId": "1", "name": "add", "input": {"a": 1, "b": 2}}
    context = ToolContext(tool_use=use, agent_id="a", state=AgentState(), idempotency_key="k")
    with blockbuster_ctx("repertory"):
        print((await add.run(use, context))["content"], flush=True)
        os._exit(0)  # Switching the detection off while a thread runs can crash CPython 3.11.

anyio.run(main)
"""
    with anyio.fail_after(30):
        ended = await anyio.run_process([sys.executable, "-c", program])
    assert ended.stdout.decode().strip() == "[{'text': '3'}]"
