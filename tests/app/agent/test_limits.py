"""Bounds of a call: model calls, tokens and time, wherever the call happens to be when it reaches one."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from repertory import (
    Agent,
    AgentResult,
    AgentSpec,
    HostedSession,
    Runtime,
    ScriptedModel,
    tool,
)
from repertory.backends.tools.function_tool import schema_class
from repertory.core.messages import text_of, tool_results
from repertory.errors import AgentBusy, Invalid, Throttled
from tests.app.orchestration.recorder import add, slow, use
from tests.service.histories import check_history

pytestmark = pytest.mark.anyio

schema_class()  # Loading it uses a thread, which a clock that jumps would pass.

CLOSED: Any = {"role": "assistant", "content": [{"text": "closed"}]}


def agent_with(*replies: Any, **options: Any) -> Agent:
    options = {"tools": [add, slow], "callback_handler": None, **options}
    return Agent(ScriptedModel(list(replies)), **options)


def calls_of(agent: Agent) -> int:
    assert isinstance(agent.model, ScriptedModel)
    return len(agent.model.calls)


async def test_turns_bound_the_model_calls() -> None:
    agent = agent_with(*[use("add", a=n, b=n) for n in range(5)], "done")
    result = await agent.invoke_async("go", limits={"turns": 3})
    assert (result.stop_reason, result.message) == ("limit_turns", None)
    assert calls_of(agent) == 3
    assert len([one for message in agent.messages for one in tool_results(message)]) == 3
    check_history([*agent.messages, CLOSED])
    assert (await agent.invoke_async(limits={"turns": 3})).stop_reason == "end_turn"


async def test_a_limit_that_the_last_answer_reaches_changes_nothing() -> None:
    assert (await agent_with("done").invoke_async("go", limits={"turns": 1})).stop_reason == "end_turn"


@pytest.mark.parametrize(
    ("limits", "reason"),
    [({"total_tokens": 1}, "limit_total_tokens"), ({"output_tokens": 1}, "limit_output_tokens")],
)
async def test_tokens_are_looked_at_between_steps(limits: Any, reason: str) -> None:
    agent = agent_with(use("add", a=1, b=2), "never")
    result = await agent.invoke_async("go", limits=limits)
    assert result.stop_reason == reason
    assert result.metrics.usage["totalTokens"] > 1
    assert calls_of(agent) == 1


async def test_limits_are_of_one_call() -> None:
    agent = agent_with("one", "two")
    for _ in range(2):
        assert (await agent.invoke_async("go", limits={"turns": 1})).stop_reason == "end_turn"


async def test_a_prompt_that_is_steered_in_counts() -> None:
    agent = agent_with("one", "two", "three")
    agent.model = ScriptedModel(["one", "two", "three"], delay_s=5)
    results: list[AgentResult] = []

    async def call(prompt: str, **options: Any) -> None:
        results.append(await agent.invoke_async(prompt, **options))

    async with agent, anyio.create_task_group() as group:
        group.start_soon(lambda: call("go", limits={"turns": 1}))
        await anyio.sleep(7)
        group.start_soon(lambda: call("and this", busy="steer"))
    assert [result.stop_reason for result in results] == ["limit_turns"] * 2
    check_history([*agent.messages, CLOSED])


@pytest.mark.parametrize(
    "options",
    [
        {"limits": {"turns": 0}},
        {"limits": {"steps": 3}},
        {"limits": 3},
        {"timeout_s": 0},
        {"timeout_s": -1},
        {"timeout_s": float("inf")},
        {"timeout_s": float("nan")},
        {"timeout_s": "10"},
        {"timeout_s": True},
        {"cancel_signal": "now"},
        {"structured_output_prompt": 5},
    ],
    ids=repr,
)
async def test_bounds_that_make_no_sense_are_refused_and_nothing_is_said(options: Any) -> None:
    agent = agent_with("never")
    with pytest.raises(Invalid):
        await agent.invoke_async("go", **options)
    assert agent.messages == []


# Time.


async def seconds_of(agent: Agent | HostedSession, **options: Any) -> tuple[float, AgentResult]:
    began = anyio.current_time()
    invoke = agent.invoke_async if isinstance(agent, Agent) else agent.invoke
    result = await invoke("go", **options)
    return anyio.current_time() - began, result


async def test_time_is_over_while_the_model_answers() -> None:
    agent = agent_with()
    agent.model = ScriptedModel(["slowly", "later"], delay_s=100)
    seconds, result = await seconds_of(agent, timeout_s=30)
    assert (result.stop_reason, result.text) == ("limit_time", "")
    assert 30 <= seconds < 31
    assert [text_of(message) for message in agent.messages] == ["go"]
    assert str(await agent.invoke_async()) == "later"


@pytest.mark.parametrize("execution", ["concurrent", "sequential"])
async def test_time_is_over_while_tools_run(execution: Any) -> None:
    three = [use("slow", seconds=10), use("slow", seconds=1000), use("slow", seconds=10)]
    agent = agent_with(three, "later", tool_execution=execution)
    seconds, result = await seconds_of(agent, timeout_s=30)
    assert result.stop_reason == "limit_time"
    assert 30 <= seconds < 31
    statuses = [one["status"] for one in tool_results(agent.messages[-1])]
    assert statuses == ["success", "error", "success" if execution == "concurrent" else "error"]
    assert str(await agent.invoke_async("and?")) == "later"
    check_history(agent.messages)


async def test_time_is_over_while_it_waits_to_ask_again() -> None:
    seconds, result = await seconds_of(agent_with(Throttled("slow", retry_after_s=900)), timeout_s=30)
    assert (result.stop_reason, 30 <= seconds < 31) == ("limit_time", True)


@pytest.mark.parametrize("place", ["held", "outside", "runtime"])
async def test_time_is_over_while_other_turns_run_and_nothing_is_said(place: str) -> None:
    model = ScriptedModel([use("slow", seconds=1000), "done"])
    agent = Agent(model, tools=[slow], callback_handler=None)
    waited: list[float] = []

    async def late(call: Any) -> None:
        await anyio.sleep(10)
        began = anyio.current_time()
        with pytest.raises(AgentBusy, match="time"):
            await call("two", timeout_s=30)
        waited.append(anyio.current_time() - began)

    async def both(call: Any) -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(call, "one")
            group.start_soon(late, call)

    if place == "outside":
        await both(agent.invoke_async)
        history = await agent.history()
    elif place == "held":
        async with agent:
            await both(agent.invoke_async)
        history = await agent.history()
    else:
        async with Runtime() as runtime:
            session = runtime.agent(AgentSpec(model=model, tools=[slow])).session("s")
            await both(session.invoke)
            history = await session.history()
    assert 30 <= waited[0] < 31
    assert [text_of(message) for message in history if message["role"] == "user"] == ["one", ""]


async def test_the_time_of_waiting_and_running_is_one() -> None:
    """Also outside any block, where a call first waits for the one before it to leave."""
    agent = agent_with(use("slow", seconds=20), "one", use("slow", seconds=20), "two")
    results: list[AgentResult] = []

    async def call(**options: Any) -> None:
        results.append(await agent.invoke_async("go", **options))

    async with anyio.create_task_group() as group:
        group.start_soon(call)
        await anyio.sleep(1)
        began = anyio.current_time()
        group.start_soon(lambda: call(timeout_s=30))
    assert [result.stop_reason for result in results] == ["end_turn", "limit_time"]
    assert 30 <= anyio.current_time() - began < 31


async def test_a_call_that_is_steered_in_has_its_own_time() -> None:
    agent = agent_with(use("slow", seconds=1000), "never")
    refused: list[float] = []

    async def steer() -> None:
        began = anyio.current_time()
        with pytest.raises(AgentBusy):
            await agent.invoke_async("hurry", busy="steer", timeout_s=30)
        refused.append(anyio.current_time() - began)

    async with agent, anyio.create_task_group() as group:
        group.start_soon(agent.invoke_async, "go")
        await anyio.sleep(1)
        group.start_soon(steer)
        await anyio.sleep(100)
        assert [30 <= seconds < 31 for seconds in refused] == [True]
        agent.cancel()


async def test_a_stream_ends_with_its_result_when_time_is_over() -> None:
    agent = agent_with()
    agent.model = ScriptedModel(["slowly"], delay_s=9, chunk=1)
    events = [event async for event in agent.stream_async("go", timeout_s=30)]
    assert [event["data"] for event in events if "data" in event] == ["s", "l"]
    assert events[-1]["result"].stop_reason == "limit_time"


async def test_time_that_is_not_over_leaves_no_timer_behind() -> None:
    async with Runtime() as runtime:
        session = runtime.agent(AgentSpec(model=ScriptedModel(["one", "two"]))).session("s")
        before = runtime.stats().timers
        await session.invoke("go", timeout_s=1000)
        await session.invoke("go", timeout_s=1000)
        assert runtime.stats().timers == before


@pytest.mark.real_time
async def test_a_tool_in_a_thread_is_left_behind_when_time_is_over() -> None:
    import threading

    release = threading.Event()

    @tool
    def block() -> str:
        """Block its thread."""
        release.wait(20)
        return "done"

    agent = agent_with(use("block"), "later", tools=[block])
    try:
        result = await agent.invoke_async("go", timeout_s=0.05)
    finally:
        release.set()
    assert result.stop_reason == "limit_time"
    assert [one["status"] for one in tool_results(agent.messages[-1])] == ["error"]
    assert str(await agent.invoke_async("and?")) == "later"


async def test_bounds_hold_in_a_runtime() -> None:
    spec = AgentSpec(model=ScriptedModel([use("add", a=1, b=1), use("slow", seconds=1000), "later"]), tools=[add, slow])
    async with Runtime() as runtime:
        session = runtime.agent(spec).session("s")
        assert (await session.invoke("go", limits={"turns": 1})).stop_reason == "limit_turns"
        seconds, result = await seconds_of(session, timeout_s=30)
        assert (result.stop_reason, 30 <= seconds < 31) == ("limit_time", True)
        assert str(await session.invoke("and?")) == "later"
        check_history(await session.history())
