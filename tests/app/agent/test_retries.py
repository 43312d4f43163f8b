"""Model calls that fail and are made again: how long the wait is, who is told, and what ends it."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import anyio
import pytest

from repertory import (
    AfterModelCallEvent,
    Agent,
    AgentResult,
    AgentSpec,
    BeforeModelCallEvent,
    Model,
    ModelRetryStrategy,
    Runtime,
    ScriptedModel,
    SlidingWindowConversationManager,
)
from repertory.backends.tools.function_tool import schema_class
from repertory.core.messages import text_of
from repertory.errors import (
    ContextWindowOverflowException,
    HookFailed,
    Invalid,
    ModelFailed,
    ModelStreamBroken,
    Throttled,
    Unavailable,
)
from tests.app.orchestration.recorder import On, Recorder, add, use

pytestmark = pytest.mark.anyio

schema_class()  # Loading it uses a thread, which a clock that jumps would pass.


def agent_with(*replies: Any, **options: Any) -> Agent:
    return Agent(ScriptedModel(list(replies)), **{"callback_handler": None, "tools": [add], **options})


def calls_of(agent: Agent) -> int:
    assert isinstance(agent.model, ScriptedModel)
    return len(agent.model.calls)


async def seconds_of(agent: Agent, **options: Any) -> tuple[float, AgentResult]:
    """How long a call took, and its result."""
    began = anyio.current_time()
    result = await agent.invoke_async("go", **options)
    return anyio.current_time() - began, result


async def test_a_throttled_call_waits_and_succeeds() -> None:
    agent = agent_with(Throttled("slow"), Throttled("slow"), "fine")
    seconds, result = await seconds_of(agent)
    assert str(result) == "fine"
    assert 2 + 4 <= seconds <= 4 + 8
    assert [text_of(message) for message in agent.messages] == ["go", "fine"]
    assert [cycle.attempts for cycle in result.metrics.cycles] == [3]


async def test_the_provider_says_how_long_to_wait() -> None:
    seconds, _ = await seconds_of(agent_with(Throttled("slow", retry_after_s=77), "fine"))
    assert 77 <= seconds <= 79


@pytest.mark.parametrize(
    ("failure", "attempts"), [(Throttled("slow"), 6), (Unavailable("gone"), 3), (ModelStreamBroken("broke off"), 3)]
)
async def test_it_gives_up_with_the_last_failure_and_the_prompt_is_kept(failure: Exception, attempts: int) -> None:
    agent = agent_with(*[failure] * attempts, "later")
    with pytest.raises(type(failure)) as caught:
        await agent.invoke_async("go")
    assert caught.value is failure
    assert calls_of(agent) == attempts
    assert [text_of(message) for message in agent.messages] == ["go"]
    assert str(await agent.invoke_async()) == "later"


async def test_every_model_call_of_a_turn_has_attempts_of_its_own() -> None:
    down = Unavailable("gone")
    agent = agent_with(down, down, use("add", a=1, b=2), down, down, "3")
    result = await agent.invoke_async("go")
    assert str(result) == "3"
    assert [cycle.attempts for cycle in result.metrics.cycles] == [3, 3]


@pytest.mark.parametrize("failure", [Throttled("slow"), Unavailable("gone")], ids=repr)
async def test_without_a_strategy_the_first_failure_is_the_last(failure: Exception) -> None:
    agent = agent_with(failure, "never", retry_strategy=None)
    with pytest.raises(type(failure)):
        await agent.invoke_async("go")
    assert calls_of(agent) == 1


@pytest.mark.parametrize("failure", [ModelFailed("nonsense"), RuntimeError("bug"), Invalid("bad request")], ids=repr)
async def test_what_would_fail_again_is_not_tried_again(failure: Exception) -> None:
    agent = agent_with(failure, "never")
    with pytest.raises((ModelFailed, Invalid)):
        await agent.invoke_async("go")
    assert calls_of(agent) == 1


async def test_an_overflow_shortens_the_view_and_waits_for_nothing() -> None:
    too_long = ContextWindowOverflowException("too long")
    agent = agent_with("a", "b", too_long, "c", conversation_manager=SlidingWindowConversationManager(window_size=4))
    await agent.invoke_async("1")
    await agent.invoke_async("2")
    seconds, result = await seconds_of(agent)
    assert (seconds, str(result)) == (0.0, "c")


# Strategies of the caller's own.


async def test_a_strategy_of_the_callers_own_is_asked_with_what_failed_and_how_often() -> None:
    asked: list[tuple[str, int]] = []

    class Patient:
        def delay_s(self, error: Exception, attempt: int, jitter: float) -> float | None:
            assert 0 <= jitter < 1
            asked.append((type(error).__name__, attempt))
            return 100.0 if attempt < 3 else None

    agent = agent_with(ModelFailed("x"), Throttled("y"), Unavailable("z"), retry_strategy=Patient())
    began = anyio.current_time()
    with pytest.raises(Unavailable):
        await agent.invoke_async("go")
    assert asked == [("ModelFailed", 1), ("Throttled", 2), ("Unavailable", 3)]
    assert anyio.current_time() - began == 200


@pytest.mark.parametrize("answer", [KeyError("a bug"), -1.0, math.nan, math.inf, "soon"], ids=repr)
async def test_a_strategy_that_fails_gives_up_with_what_the_model_failed_with(
    answer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken:
        def delay_s(self, error: Exception, attempt: int, jitter: float) -> float | None:
            if isinstance(answer, Exception):
                raise answer
            return answer  # type: ignore[no-any-return]

    agent = agent_with(Throttled("slow"), "later", retry_strategy=Broken())
    with pytest.raises(Throttled):
        await agent.invoke_async("go")
    assert "retry strategy" in caplog.text
    assert str(await agent.invoke_async()) == "later"


async def test_a_strategy_that_waits_for_nothing_asks_again_at_once() -> None:
    strategy = ModelRetryStrategy(initial_delay=0, max_attempts=4)
    slow = Throttled("slow")
    seconds, result = await seconds_of(agent_with(slow, slow, slow, "fine", retry_strategy=strategy))
    assert (seconds, str(result)) == (0.0, "fine")


# Who is told.


class Interrupted(Model):
    """Says the first half of its answer and breaks off, as often as it is told to."""

    def __init__(self, failures: int) -> None:
        self._failures = failures

    async def stream(self, messages: Any, *rest: Any, **options: Any) -> AsyncIterator[dict[str, Any]]:
        yield {"messageStart": {"role": "assistant"}}
        yield {"contentBlockDelta": {"delta": {"text": "half"}}}
        if self._failures:
            self._failures -= 1
            return
        yield {"contentBlockDelta": {"delta": {"text": " and half"}}}
        yield {"contentBlockStop": {}}
        yield {"messageStop": {"stopReason": "end_turn"}}


async def test_what_was_streamed_before_a_retry_is_void_and_the_stream_says_so() -> None:
    agent = Agent(Interrupted(2), callback_handler=None)
    events = [event async for event in agent.stream_async("go")]
    said, voids = "", []
    for event in events:
        said = "" if "model_retry" in event else said + str(event.get("data", ""))
        voids += [event["model_retry"]] if "model_retry" in event else []
    assert said == "half and half" == str(events[-1]["result"])
    assert [(void["attempt"], type(void["error"])) for void in voids] == [
        (1, ModelStreamBroken),
        (2, ModelStreamBroken),
    ]
    assert all(0.25 <= void["delay_s"] <= 1 for void in voids)
    assert [text_of(message) for message in agent.messages] == ["go", "half and half"]


async def test_the_retry_is_told_before_the_wait() -> None:
    at: dict[str, float] = {}
    agent = agent_with(Throttled("slow", retry_after_s=50), "fine")
    began = anyio.current_time()
    async for event in agent.stream_async("go"):
        for key in event:
            at.setdefault(key, anyio.current_time() - began)
    assert at["model_retry"] == 0
    assert at["data"] >= 50


async def test_hooks_are_told_of_every_attempt() -> None:
    recorder = Recorder(BeforeModelCallEvent, AfterModelCallEvent)
    await agent_with(Throttled("slow"), "fine", hooks=[recorder]).invoke_async("go")
    assert recorder.order == ["BeforeModelCall", "AfterModelCall"] * 2
    failed, fine = recorder.of(AfterModelCallEvent)
    assert isinstance(failed.exception, Throttled)
    assert (failed.retry, fine.retry) == (True, False)
    assert text_of(fine.stop_response.message) == "fine"


async def test_a_guard_that_says_throttled_is_not_asked_again() -> None:
    def full(event: BeforeModelCallEvent) -> None:
        raise Throttled("the budget of this hour is spent")

    agent = agent_with("never", hooks=[On(BeforeModelCallEvent, full)])
    with pytest.raises(Throttled):
        await agent.invoke_async("go")
    assert calls_of(agent) == 0


async def test_a_guard_that_fails_after_a_failed_call_ends_the_retries() -> None:
    def fail(event: AfterModelCallEvent) -> None:
        raise RuntimeError("no")

    agent = agent_with(Throttled("slow"), "never", hooks=[On(AfterModelCallEvent, fail, guard=True)])
    with pytest.raises(HookFailed):
        await agent.invoke_async("go")
    assert calls_of(agent) == 1


# What ends the wait.


async def test_cancelling_the_caller_during_the_wait_ends_it_at_once() -> None:
    agent = agent_with(Throttled("slow", retry_after_s=500), "later")
    began = anyio.current_time()
    with anyio.move_on_after(10):
        await agent.invoke_async("go")
    assert anyio.current_time() - began < 12
    assert calls_of(agent) == 1
    assert str(await agent.invoke_async()) == "later"


async def test_leaving_the_stream_during_the_wait_ends_it_at_once() -> None:
    agent = agent_with(Throttled("slow", retry_after_s=500), "later")
    began = anyio.current_time()
    async with agent:
        async with aclosing(agent.stream_async("go")) as events:
            async for event in events:
                if "model_retry" in event:
                    break
        assert str(await agent.invoke_async()) == "later"
    assert anyio.current_time() - began < 5


async def test_the_time_limit_ends_the_wait() -> None:
    agent = agent_with(Throttled("slow", retry_after_s=500), "never")
    seconds, result = await seconds_of(agent, timeout_s=20)
    assert (result.stop_reason, calls_of(agent)) == ("limit_time", 1)
    assert 20 <= seconds < 22


async def test_the_same_in_a_runtime() -> None:
    spec = AgentSpec(model=ScriptedModel([Throttled("slow"), "fine"]))
    async with Runtime() as runtime:
        assert str(await runtime.agent(spec).session("s").invoke("go")) == "fine"
    strict = AgentSpec(model=ScriptedModel([Throttled("slow"), "never"]), retry_strategy=None)
    async with Runtime() as runtime:
        with pytest.raises(Throttled):
            await runtime.agent(strict).session("s").invoke("go")
