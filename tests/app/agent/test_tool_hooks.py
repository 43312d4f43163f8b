"""What hooks may change of tools: every writable field does what its docstring says, and rubbish in it does nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import anyio
import pytest

from repertory import (
    AfterToolCallEvent,
    AfterToolsEvent,
    Agent,
    BeforeToolCallEvent,
    BeforeToolsEvent,
    ScriptedModel,
    ToolContext,
    tool,
)
from repertory.backends.tools.function_tool import schema_class
from repertory.core.messages import Message, text_of, tool_results
from tests.app.orchestration.recorder import On, Recorder, add, slow, use
from tests.service.histories import check_history

pytestmark = pytest.mark.anyio

schema_class()  # Loading it uses a thread, which a clock that jumps would pass.


def agent_with(*replies: Any, **options: Any) -> Agent:
    options = {"tools": [add, slow], "callback_handler": None, "retry_strategy": None, **options}
    return Agent(ScriptedModel(list(replies)), **options)


def asked(agent: Agent) -> list[Sequence[Message]]:
    """What the agent's model was shown, call by call."""
    assert isinstance(agent.model, ScriptedModel)
    return [call.messages for call in agent.model.calls]


def texts(messages: Sequence[Message]) -> list[str]:
    return [text_of(message) for message in messages]


def results_of(agent: Agent) -> list[tuple[str, str]]:
    """Status and text of every tool result in the conversation."""
    found = [result for message in agent.messages for result in tool_results(message)]
    return [(result["status"], str(result["content"][0].get("text"))) for result in found]


# BeforeTools and AfterTools.


@pytest.mark.parametrize(("cancel", "text"), [(True, "Tool cancelled by hook"), ("not now", "not now")])
async def test_all_tools_of_an_answer_may_be_cancelled(cancel: bool | str, text: str) -> None:
    recorder = Recorder(BeforeToolCallEvent, AfterToolCallEvent, AfterToolsEvent)
    both = [use("add", a=1, b=2), use("slow", seconds=5)]
    agent = agent_with(both, "ok", hooks=[recorder, On(BeforeToolsEvent, lambda e: setattr(e, "cancel", cancel))])
    assert str(await agent.invoke_async("go")) == "ok"
    assert results_of(agent) == [("error", text)] * 2
    assert recorder.order == ["AfterTools"]


@pytest.mark.parametrize(
    ("end_turn", "answer"),
    [
        (True, "Turn ended early by hook after tool execution"),
        ("that is enough", "that is enough"),
        ([{"text": "that"}, {"text": "is all"}], "that\nis all"),
    ],
)
async def test_the_turn_may_end_after_its_tools(end_turn: Any, answer: str) -> None:
    agent = agent_with(
        use("add", a=1, b=2), "later", hooks=[On(AfterToolsEvent, lambda e: setattr(e, "end_turn", end_turn))]
    )
    result = await agent.invoke_async("go")
    assert (str(result), result.stop_reason) == (answer, "end_turn")
    assert len(asked(agent)) == 1
    assert results_of(agent) == [("success", "3")]
    check_history(agent.messages)
    assert str(await agent.invoke_async("and?")) == "later"


@pytest.mark.parametrize(
    "end_turn",
    [
        ["text"],
        [{}],
        [{"toolUse": {"toolUseId": "t9", "name": "add", "input": {}}}],
        [{"toolResult": {"toolUseId": "tooluse_1", "status": "success", "content": []}}],
        [{"text": object()}],
    ],
)
async def test_an_end_that_is_no_answer_is_logged_and_the_turn_goes_on(
    end_turn: Any, caplog: pytest.LogCaptureFixture
) -> None:
    agent = agent_with(
        use("add", a=1, b=2), "3", hooks=[On(AfterToolsEvent, lambda e: setattr(e, "end_turn", end_turn))]
    )
    assert str(await agent.invoke_async("go")) == "3"
    assert "hook" in caplog.text
    check_history(agent.messages)


# BeforeToolCall and AfterToolCall.


async def test_another_tool_may_run_in_the_place_of_the_one_asked_for() -> None:
    @tool
    async def better(a: int, b: int) -> str:
        """Add better."""
        return f"{a + b}!"

    recorder = Recorder(AfterToolCallEvent)
    agent = agent_with(
        use("add", a=1, b=2),
        use("nobody_has_it", a=3, b=4),
        "done",
        hooks=[recorder, On(BeforeToolCallEvent, lambda e: setattr(e, "selected_tool", better))],
    )
    await agent.invoke_async("go")
    assert results_of(agent) == [("success", "3!"), ("success", "7!")]
    assert [event.selected_tool for event in recorder.events] == [better, better]
    check_history(agent.messages)


async def test_a_tool_use_with_another_input_keeps_its_id_and_the_history_what_was_asked() -> None:
    def double(event: BeforeToolCallEvent) -> None:
        event.tool_use = {"toolUseId": "mine", "name": "add", "input": {"a": 20, "b": 22}}

    recorder = Recorder(AfterToolCallEvent)
    agent = agent_with(use("add", a=1, b=2), "42", hooks=[recorder, On(BeforeToolCallEvent, double)])
    await agent.invoke_async("go")
    assert results_of(agent) == [("success", "42")]
    assert recorder.events[0].tool_use == {"toolUseId": "tooluse_1", "name": "add", "input": {"a": 20, "b": 22}}
    assert agent.messages[1]["content"][0]["toolUse"]["input"] == {"a": 1, "b": 2}
    check_history(agent.messages)


@pytest.mark.parametrize(("cancel", "text"), [(True, "tool cancelled by user"), ("too expensive", "too expensive")])
async def test_one_tool_may_be_cancelled_while_the_others_run(cancel: bool | str, text: str) -> None:
    def no_waiting(event: BeforeToolCallEvent) -> None:
        if event.tool_use["name"] == "slow":
            event.cancel_tool = cancel

    recorder = Recorder(AfterToolCallEvent)
    both = [use("slow", seconds=5), use("add", a=1, b=2)]
    agent = agent_with(both, "ok", hooks=[recorder, On(BeforeToolCallEvent, no_waiting)])
    await agent.invoke_async("go")
    assert results_of(agent) == [("error", text), ("success", "3")]
    assert [(event.cancel_message, event.duration) for event in recorder.events] == [(text, None), (None, 0.0)]


async def test_a_result_may_be_replaced_or_edited_in_place() -> None:
    def shorten(event: AfterToolCallEvent) -> None:
        if event.tool_use["input"]["a"] == 1:
            event.result = {"toolUseId": "any", "status": "success", "content": [{"text": "short"}]}
        else:
            event.result["content"][0]["text"] = "edited"

    both = [use("add", a=1, b=2), use("add", a=3, b=4)]
    agent = agent_with(both, "ok", hooks=[On(AfterToolCallEvent, shorten)])
    events = [event async for event in agent.stream_async("go")]
    assert results_of(agent) == [("success", "short"), ("success", "edited")]
    told = [event["tool_finished"] for event in events if "tool_finished" in event]
    assert {result["content"][0]["text"] for result in told} == {"short", "edited"}
    check_history(agent.messages)


@pytest.mark.parametrize(
    "result",
    [
        None,
        "text",
        {},
        {"status": "fine", "content": []},
        {"status": "success", "content": "text"},
        {"status": "success", "content": ["text"]},
        {"status": "success", "content": [{"text": object()}]},
    ],
    ids=["none", "text", "empty", "unknown status", "text as content", "text as block", "not JSON"],
)
async def test_a_result_that_is_none_is_logged_and_the_tools_own_stands(
    result: Any, caplog: pytest.LogCaptureFixture
) -> None:
    agent = agent_with(
        use("add", a=1, b=2), "3", hooks=[On(AfterToolCallEvent, lambda e: setattr(e, "result", result))]
    )
    assert str(await agent.invoke_async("go")) == "3"
    assert results_of(agent) == [("success", "3")]
    assert "hook broke" in caplog.text


async def test_a_result_that_is_emptied_in_place_is_logged_and_the_tools_own_stands() -> None:
    agent = agent_with(use("add", a=1, b=2), "3", hooks=[On(AfterToolCallEvent, lambda event: event.result.clear())])
    assert str(await agent.invoke_async("go")) == "3"
    assert results_of(agent) == [("success", "3")]


async def test_a_tool_may_be_run_again_under_the_same_key() -> None:
    keys: list[tuple[str, int]] = []

    @tool
    async def flaky(tool_context: ToolContext) -> str:
        """Work at the third attempt."""
        keys.append((tool_context.idempotency_key, tool_context.attempt))
        if len(keys) < 3:
            raise ConnectionError("gone")
        return "there"

    recorder = Recorder(AfterToolCallEvent)
    again = On(AfterToolCallEvent, lambda event: setattr(event, "retry", event.exception is not None))
    agent = agent_with(use("flaky"), "ok", tools=[flaky], hooks=[recorder, again])
    result = await agent.invoke_async("go")
    assert results_of(agent) == [("success", "there")]
    assert [attempt for _, attempt in keys] == [1, 2, 3]
    assert len({key for key, _ in keys}) == 1
    assert [type(event.exception) for event in recorder.events] == [ConnectionError, ConnectionError, type(None)]
    assert result.metrics.tool_metrics["flaky"].call_count == 3


async def test_running_a_tool_again_for_ever_can_be_cut_short() -> None:
    """Even when neither the tool nor the hook ever waits for anything."""
    agent = agent_with(
        use("add", a=1, b=2), "later", hooks=[On(AfterToolCallEvent, lambda event: setattr(event, "retry", True))]
    )
    ended: list[str] = []

    async def call() -> None:
        ended.append((await agent.invoke_async("go")).stop_reason)

    async with agent, anyio.create_task_group() as group:
        group.start_soon(call)
        for _ in range(200):
            await anyio.lowlevel.checkpoint()
        agent.cancel()
    assert ended == ["cancelled"]
    check_history(agent.messages)
