"""What hooks are told: which events, in which order, with which fields, in every place where an agent may live."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest

from repertory import (
    AfterInvocationEvent,
    AfterModelCallEvent,
    AfterToolCallEvent,
    AfterToolsEvent,
    Agent,
    AgentInitializedEvent,
    AgentSpec,
    BeforeInvocationEvent,
    BeforeModelCallEvent,
    BeforeToolCallEvent,
    BeforeToolsEvent,
    HookEvent,
    MessageAddedEvent,
    Runtime,
    ScriptedModel,
    SQLiteSessionManager,
    SQLiteSessions,
    tool,
)
from repertory.backends.tools.function_tool import schema_class
from repertory.core.messages import text_of, tool_results
from repertory.errors import Invalid, ModelFailed, Unavailable
from tests.app.orchestration.recorder import EVENT_TYPES, On, Recorder, add, slow, use
from tests.service.histories import check_history

pytestmark = pytest.mark.anyio

schema_class()  # Loading it uses a thread, which a clock that jumps would pass.

PLAIN_TURN = [
    "BeforeInvocation",
    "MessageAdded(user)",
    "BeforeModelCall",
    "AfterModelCall",
    "MessageAdded(assistant)",
    "AfterInvocation",
]
TOOL_TURN = [
    "BeforeInvocation",
    "MessageAdded(user)",
    "BeforeModelCall",
    "AfterModelCall",
    "MessageAdded(assistant)",
    "BeforeTools",
    "BeforeToolCall",
    "AfterToolCall",
    "AfterTools",
    "MessageAdded(user)",
    "BeforeModelCall",
    "AfterModelCall",
    "MessageAdded(assistant)",
    "AfterInvocation",
]


def agent_with(*replies: Any, **options: Any) -> Agent:
    options = {"tools": [add, slow], "callback_handler": None, "retry_strategy": None, **options}
    return Agent(ScriptedModel(list(replies)), **options)


async def test_a_plain_turn() -> None:
    recorder = Recorder()
    agent = agent_with("hello", hooks=[recorder])
    assert recorder.order == ["AgentInitialized"]
    await agent.invoke_async("hi")
    assert recorder.order[1:] == PLAIN_TURN
    await agent_with("hello", hooks=[recorder]).invoke_async("hi")
    assert all(event.agent is agent for event in recorder.events[: 1 + len(PLAIN_TURN)])


async def test_a_turn_with_a_tool() -> None:
    recorder = Recorder()
    agent = agent_with(use("add", a=1, b=2), "3", hooks=[recorder])
    await agent.invoke_async("1 + 2?")
    assert recorder.order[1:] == TOOL_TURN


async def test_a_stream_tells_hooks_the_same() -> None:
    recorder = Recorder()
    agent = agent_with(use("add", a=1, b=2), "3", hooks=[recorder])
    _ = [event async for event in agent.stream_async("1 + 2?")]
    assert recorder.order[1:] == TOOL_TURN


async def test_two_tools_of_one_answer_are_both_asked_about_before_either_runs() -> None:
    recorder = Recorder(BeforeToolCallEvent, AfterToolCallEvent)
    both = [use("slow", seconds=9), use("slow", seconds=1)]
    await agent_with(both, "done", hooks=[recorder]).invoke_async("go")
    assert recorder.order == ["BeforeToolCall", "BeforeToolCall", "AfterToolCall", "AfterToolCall"]
    assert [event.tool_use["input"]["seconds"] for event in recorder.events] == [9, 1, 1, 9]


async def test_tools_one_after_the_other_are_asked_about_one_after_the_other() -> None:
    recorder = Recorder(BeforeToolCallEvent, AfterToolCallEvent)
    both = [use("slow", seconds=9), use("slow", seconds=1)]
    await agent_with(both, "done", hooks=[recorder], tool_execution="sequential").invoke_async("go")
    assert recorder.order == ["BeforeToolCall", "AfterToolCall", "BeforeToolCall", "AfterToolCall"]


async def test_a_recorded_direct_call_is_on_record_before_its_tool_runs() -> None:
    """The same events as elsewhere, two messages earlier: what a crash cuts short must be known to have begun."""
    recorder = Recorder()
    result = await agent_with(hooks=[recorder]).tool.add.invoke_async(a=1, b=2)
    assert result["content"] == [{"text": "3"}]
    assert recorder.order[1:] == [
        "MessageAdded(user)",
        "MessageAdded(assistant)",
        "BeforeToolCall",
        "AfterToolCall",
        "MessageAdded(user)",
        "MessageAdded(assistant)",
    ]


async def test_an_unrecorded_direct_call_adds_no_messages() -> None:
    recorder = Recorder()
    await agent_with(hooks=[recorder]).tool.add.invoke_async(a=1, b=2, record_direct_tool_call=False)
    assert recorder.order[1:] == ["BeforeToolCall", "AfterToolCall"]


async def test_a_turn_that_fails_is_told_of_to_its_end() -> None:
    recorder = Recorder()
    with pytest.raises(ModelFailed):
        await agent_with(RuntimeError("a bug"), hooks=[recorder]).invoke_async("hi")
    assert recorder.order[1:] == [
        "BeforeInvocation",
        "MessageAdded(user)",
        "BeforeModelCall",
        "AfterModelCall",
        "AfterInvocation",
    ]
    (failed,) = recorder.of(AfterModelCallEvent)
    assert isinstance(failed.exception, ModelFailed)
    assert failed.stop_response is None
    (over,) = recorder.of(AfterInvocationEvent)
    assert over.result is None


async def test_a_call_that_cannot_begin_is_told_of_to_its_end() -> None:
    """Whoever took something in `BeforeInvocation` gives it back in `AfterInvocation`."""
    recorder = Recorder(BeforeInvocationEvent, AfterInvocationEvent)
    agent = agent_with("a", hooks=[recorder])
    await agent.invoke_async("q")
    with pytest.raises(Invalid, match="prompt"):
        await agent.invoke_async()
    assert recorder.order == ["BeforeInvocation", "AfterInvocation"] * 2


async def test_a_cancelled_turn_is_told_of_to_its_end() -> None:
    recorder = Recorder()
    agent = agent_with(use("slow", seconds=1000), hooks=[recorder])
    async with agent:
        with anyio.move_on_after(10):
            await agent.invoke_async("go")
    assert recorder.order[1:] == [*TOOL_TURN[:10], "AfterInvocation"]
    (ended,) = recorder.of(AfterToolCallEvent)
    assert (ended.duration, ended.cancel_message) == (None, "Cancelled before it ended.")
    assert recorder.events[-1].result.stop_reason == "cancelled"


async def test_a_model_call_that_is_cut_short_is_told_of_to_its_end() -> None:
    recorder = Recorder()
    agent = Agent(ScriptedModel(["slowly"], delay_s=10), hooks=[recorder], callback_handler=None)
    assert (await agent.invoke_async("go", timeout_s=25)).stop_reason == "limit_time"
    assert recorder.order[1:] == [*PLAIN_TURN[:4], "AfterInvocation"]
    (ended,) = recorder.of(AfterModelCallEvent)
    assert (ended.stop_response, ended.exception) == (None, None)


# Fields.


async def test_the_fields_of_a_turn_with_a_tool() -> None:
    recorder = Recorder()
    model = ScriptedModel([use("slow", seconds=2.5), "done"])
    agent = Agent(model, tools=[slow], hooks=[recorder], callback_handler=None)
    mine: dict[str, Any] = {"user": "ann"}
    result = await agent.invoke_async("go", invocation_state=mine)
    assert all(event.invocation_state is mine for event in recorder.events if hasattr(event, "invocation_state"))
    (before,) = recorder.of(BeforeInvocationEvent)
    assert [text_of(message) for message in before.messages] == ["go"]
    first, second = recorder.of(BeforeModelCallEvent)
    assert 0 < first.projected_input_tokens < second.projected_input_tokens
    answered, final = recorder.of(AfterModelCallEvent)
    assert (answered.stop_response.stop_reason, final.stop_response.stop_reason) == ("tool_use", "end_turn")
    assert text_of(final.stop_response.message) == "done"
    (asked,) = recorder.of(BeforeToolsEvent)
    assert asked.message["role"] == "assistant"
    (ended,) = recorder.of(AfterToolsEvent)
    assert [one["status"] for one in tool_results(ended.message)] == ["success"]
    (chosen,) = recorder.of(BeforeToolCallEvent)
    assert chosen.selected_tool is slow
    (ran,) = recorder.of(AfterToolCallEvent)
    assert (ran.duration, ran.exception, ran.cancel_message) == (2.5, None, None)
    assert ran.result["content"] == [{"text": "done"}]
    (over,) = recorder.of(AfterInvocationEvent)
    assert over.result == result


async def test_what_a_tool_raised_is_told_with_its_result() -> None:
    @tool
    async def broken() -> str:
        """Break."""
        await anyio.sleep(3)
        raise KeyError("lost")

    recorder = Recorder(AfterToolCallEvent)
    await agent_with(use("broken"), "oh", tools=[broken], hooks=[recorder]).invoke_async("go")
    (ended,) = recorder.events
    assert isinstance(ended.exception, KeyError)
    assert ended.result["status"] == "error"
    assert ended.duration == 3


async def test_a_tool_that_nobody_has_is_told_of_as_none() -> None:
    recorder = Recorder(BeforeToolCallEvent, AfterToolCallEvent)
    await agent_with(use("nope"), "oh", hooks=[recorder]).invoke_async("go")
    before, after = recorder.events
    assert before.selected_tool is None
    assert (after.selected_tool, after.duration, after.cancel_message) == (None, None, None)
    assert after.result["status"] == "error"


@pytest.mark.parametrize("kind", EVENT_TYPES[1:], ids=lambda kind: kind.__name__)
async def test_what_a_callback_does_to_an_event_in_place_reaches_nothing_that_is_stored(
    kind: type[HookEvent],
) -> None:
    """But for an added message, the messages of a call, and a tool's input and result, which are there to be edited."""

    def scribble(event: Any) -> None:
        message = event.stop_response.message if kind is AfterModelCallEvent else getattr(event, "message", None)
        if message is not None and kind is not MessageAddedEvent:
            message["content"].clear()
            message["role"] = "nobody"
        if kind is BeforeToolCallEvent:
            event.tool_use["input"]["b"] = 40
            event.tool_use["toolUseId"] = "another"

    agent = agent_with(use("add", a=1, b=2), "3", hooks=[On(kind, scribble)])
    await agent.invoke_async("1 + 2?")
    asked, answered = agent.messages[1], agent.messages[2]
    check_history(agent.messages)
    assert asked["content"][0]["toolUse"]["input"] == {"a": 1, "b": 2}
    expected = "41" if kind is BeforeToolCallEvent else "3"
    assert [one["content"] for one in tool_results(answered)] == [[{"text": expected}]]
    assert [text_of(message) for message in agent.messages] == ["1 + 2?", "", "", "3"]


# Places.


async def test_a_hook_added_while_a_turn_runs_is_told_from_its_next_event_on() -> None:
    recorder = Recorder()
    added: list[str] = []

    @tool
    async def watch_me(agent: Agent) -> str:
        """Add a hook."""
        agent.add_hook(recorder.events.append, EVENT_TYPES)
        added.append("now")
        return "watched"

    agent = agent_with(use("watch_me"), "done", tools=[watch_me])
    await agent.invoke_async("go")
    assert added == ["now"]
    assert recorder.order == TOOL_TURN[7:]


async def test_add_hook_takes_the_callback_first_and_hooks_the_event_first() -> None:
    notes: list[str] = []

    def note(event: BeforeModelCallEvent) -> None:
        notes.append("by annotation")

    agent = agent_with("a")
    agent.add_hook(note)
    agent.add_hook(lambda event: notes.append("by type"), BeforeModelCallEvent, order=-1)
    agent.hooks.add_callback(BeforeModelCallEvent, lambda event: notes.append("by registry"))
    await agent.invoke_async("q")
    assert notes == ["by type", "by annotation", "by registry"]


@pytest.mark.parametrize("held", [True, False])
async def test_initialized_is_told_once_by_an_agent_without_a_session(held: bool) -> None:
    recorder = Recorder(AgentInitializedEvent)
    agent = agent_with("a", "b", hooks=[recorder])
    assert len(recorder.events) == 1
    if held:
        async with agent:
            await agent.invoke_async("q")
            await agent.invoke_async("r")
    else:
        await agent.invoke_async("q")
        await agent.invoke_async("r")
    assert len(recorder.events) == 1


@pytest.mark.real_time
async def test_initialized_is_told_once_the_session_is_open(tmp_path: Path) -> None:
    seen: list[int] = []
    manager = SQLiteSessionManager("s", path=tmp_path / "a.db")
    await agent_with("a", session_manager=manager).invoke_async("q")
    agent = agent_with(
        "b", session_manager=manager, hooks=[On(AgentInitializedEvent, lambda event: seen.append(len(agent.messages)))]
    )
    assert seen == []
    await agent.ready()
    await agent.invoke_async("r")
    assert seen == [2]


def test_initialized_is_told_by_the_constructor_outside_a_loop(tmp_path: Path) -> None:
    recorder = Recorder(AgentInitializedEvent)
    agent = agent_with("a", session_manager=SQLiteSessionManager("s", path=tmp_path / "a.db"), hooks=[recorder])
    assert len(recorder.events) == 1
    agent("q")
    assert len(recorder.events) == 1


@pytest.mark.real_time
async def test_hooks_of_a_spec_are_told_in_every_session_of_a_runtime(tmp_path: Path) -> None:
    recorder = Recorder()
    spec = AgentSpec(model=ScriptedModel([use("add", a=1, b=2), "3"] * 2), tools=[add], hooks=[recorder])
    async with Runtime(sessions=SQLiteSessions(tmp_path / "a.db")) as runtime:
        helper = runtime.agent(spec)
        assert recorder.order == []
        for name in ("one", "two"):
            session = helper.session(name)
            await session.invoke("1 + 2?")
            assert recorder.order == ["AgentInitialized", *TOOL_TURN]
            assert {event.agent for event in recorder.events} == {session.agent}
            assert session.agent.session_id == name
            recorder.events.clear()


@pytest.mark.real_time
@pytest.mark.parametrize("fails", [False, True])
async def test_state_that_is_set_after_the_invocation_is_durable(tmp_path: Path, fails: bool) -> None:
    manager = SQLiteSessionManager("s", path=tmp_path / "a.db")

    def count(event: AfterInvocationEvent) -> None:
        event.agent.state.set("calls", (event.agent.state.get("calls") or 0) + 1)

    reply = Unavailable("gone") if fails else "fine"
    agent = agent_with(reply, "x", session_manager=manager, hooks=[On(AfterInvocationEvent, count)])
    if fails:
        with pytest.raises(Unavailable):
            await agent.invoke_async("q")
    else:
        await agent.invoke_async("q")
    later = agent_with("x", session_manager=manager)
    await later.ready()
    assert later.state.get("calls") == 1


async def test_a_copy_of_an_agent_has_its_hooks() -> None:
    recorder = Recorder(BeforeInvocationEvent)
    inner = agent_with("an answer", name="inner", hooks=[recorder])
    await agent_with(use("inner", input="?"), "done", tools=[inner]).invoke_async("go")
    assert len(recorder.events) == 1
    assert recorder.events[0].agent is not inner
