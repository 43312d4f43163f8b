"""What hooks may change of a call and of its model calls: every writable field does what its docstring says."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest

from repertory import (
    AfterInvocationEvent,
    AfterModelCallEvent,
    Agent,
    BeforeInvocationEvent,
    BeforeModelCallEvent,
    BeforeToolCallEvent,
    BeforeToolsEvent,
    ScriptedModel,
    SQLiteSessionManager,
)
from repertory.backends.tools.function_tool import schema_class
from repertory.core.messages import Message, text_of, tool_results
from repertory.errors import ModelFailed, Throttled
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


# BeforeInvocation.


async def test_other_messages_may_take_the_place_of_what_the_caller_said() -> None:
    def greet(event: BeforeInvocationEvent) -> None:
        event.messages = [{"role": "user", "content": [{"text": "Be brief."}, {"text": text_of(event.messages[0])}]}]

    agent = agent_with("ok", hooks=[On(BeforeInvocationEvent, greet)])
    await agent.invoke_async("hi")
    assert texts(asked(agent)[0]) == ["Be brief.\nhi"]
    assert texts(agent.messages) == ["Be brief.\nhi", "ok"]


async def test_messages_edited_in_place_are_used_and_the_callers_own_are_left_alone() -> None:
    def mask(event: BeforeInvocationEvent) -> None:
        event.messages[0]["content"][0]["text"] = "***"

    mine: list[Any] = [{"role": "user", "content": [{"text": "secret"}]}]
    agent = agent_with("ok", hooks=[On(BeforeInvocationEvent, mask)])
    await agent.invoke_async(mine)
    assert texts(agent.messages) == ["***", "ok"]
    assert mine == [{"role": "user", "content": [{"text": "secret"}]}]


@pytest.mark.parametrize(("cancel", "answer"), [(True, "invocation denied by hook"), ("not today", "not today")])
async def test_a_call_that_is_cancelled_ends_with_that_answer_and_stores_nothing(
    cancel: bool | str, answer: str
) -> None:
    recorder = Recorder()
    agent = agent_with("never", hooks=[recorder, On(BeforeInvocationEvent, lambda e: setattr(e, "cancel", cancel))])
    result = await agent.invoke_async("hi")
    assert (str(result), result.stop_reason) == (answer, "end_turn")
    assert recorder.order[1:] == ["BeforeInvocation", "AfterInvocation"]
    assert agent.messages == []
    assert asked(agent) == []


@pytest.mark.real_time
async def test_state_that_is_set_about_a_cancelled_call_is_durable(tmp_path: Path) -> None:
    manager = SQLiteSessionManager("s", path=tmp_path / "a.db")

    def deny(event: BeforeInvocationEvent) -> None:
        event.cancel = True
        event.agent.state.set("denied", 1)

    await agent_with(session_manager=manager, hooks=[On(BeforeInvocationEvent, deny)]).invoke_async("hi")
    later = agent_with(session_manager=manager)
    await later.ready()
    assert later.state.get("denied") == 1


@pytest.mark.parametrize("kind", [BeforeInvocationEvent, BeforeModelCallEvent, BeforeToolsEvent, BeforeToolCallEvent])
async def test_a_cancellation_that_is_false_cancels_nothing(kind: Any) -> None:
    field = "cancel_tool" if kind is BeforeToolCallEvent else "cancel"
    for nothing in (False, "", None):
        agent = agent_with(
            use("add", a=1, b=2), "3", hooks=[On(kind, lambda e, value=nothing: setattr(e, field, value))]
        )
        assert str(await agent.invoke_async("1 + 2?")) == "3"
        assert results_of(agent) == [("success", "3")]


# AfterInvocation.


async def test_resume_begins_another_turn_in_the_same_call_whose_result_the_caller_gets() -> None:
    recorder = Recorder(BeforeInvocationEvent, AfterInvocationEvent)
    prompts: list[Any] = ["and then?", [{"text": "go on"}]]

    def resume(event: AfterInvocationEvent) -> None:
        if prompts:
            event.resume = prompts.pop(0)

    agent = agent_with("one", "two", "three", hooks=[recorder, On(AfterInvocationEvent, resume)])
    assert str(await agent.invoke_async("start")) == "three"
    assert texts(agent.messages) == ["start", "one", "and then?", "two", "go on", "three"]
    assert recorder.order == ["BeforeInvocation", "AfterInvocation"] * 3
    assert [str(event.result) for event in recorder.of(AfterInvocationEvent)] == ["one", "two", "three"]


async def test_a_resumed_call_streams_every_turn_and_one_result() -> None:
    def resume(event: AfterInvocationEvent) -> None:
        event.resume = "more" if str(event.result) == "one" else None

    agent = agent_with("one", "two", hooks=[On(AfterInvocationEvent, resume)])
    events = [event async for event in agent.stream_async("start")]
    assert [event["data"] for event in events if "data" in event] == ["one", "two"]
    assert [str(event["result"]) for event in events if "result" in event] == ["two"]
    assert "result" in events[-1]


async def test_a_turn_that_was_cancelled_is_not_resumed() -> None:
    agent = agent_with("never", hooks=[On(AfterInvocationEvent, lambda e: setattr(e, "resume", "again"))])
    async with agent:
        agent.add_hook(lambda event: agent.cancel(), BeforeModelCallEvent)
        with anyio.fail_after(100):
            assert (await agent.invoke_async("go")).stop_reason == "cancelled"


async def test_a_turn_whose_time_is_over_is_not_resumed() -> None:
    agent = agent_with(*["slowly"] * 50, hooks=[On(AfterInvocationEvent, lambda e: setattr(e, "resume", "again"))])
    agent.model = ScriptedModel(["slowly"], delay_s=1, loop=True)
    with anyio.fail_after(100):
        assert (await agent.invoke_async("go", timeout_s=22)).stop_reason == "limit_time"


async def test_the_limits_of_a_call_hold_for_its_resumed_turns_together() -> None:
    agent = agent_with(
        use("add", a=1, b=1),
        "two",
        use("add", a=2, b=2),
        "four",
        hooks=[On(AfterInvocationEvent, lambda e: setattr(e, "resume", "again"))],
    )
    result = await agent.invoke_async("go", limits={"turns": 3})
    assert result.stop_reason == "limit_turns"
    assert len(asked(agent)) == 3
    check_history(agent.messages)


async def test_a_resume_that_is_no_prompt_is_logged_and_the_answer_stands(caplog: pytest.LogCaptureFixture) -> None:
    agent = agent_with("one", "two", hooks=[On(AfterInvocationEvent, lambda e: setattr(e, "resume", 5))])
    assert str(await agent.invoke_async("go")) == "one"
    assert "resume" in caplog.text
    assert texts(agent.messages) == ["go", "one"]


# BeforeModelCall and AfterModelCall.


async def test_an_edit_for_one_model_call_is_undone_after_it_on_the_message_that_the_callback_holds() -> None:
    held: list[Any] = []

    def add_context(event: BeforeModelCallEvent) -> None:
        held.append((event.agent.messages[0]["content"], event.agent.messages[0]["content"][0]))
        event.agent.messages[0]["content"][0] = {"text": f"context\n{held[-1][1]['text']}"}

    def restore(event: AfterModelCallEvent) -> None:
        content, before = held[-1]
        content[0] = before

    agent = agent_with(
        use("add", a=1, b=1), "2", "3", hooks=[On(BeforeModelCallEvent, add_context), On(AfterModelCallEvent, restore)]
    )
    await agent.invoke_async("hi")
    await agent.invoke_async("and now?")
    assert [texts(messages)[0] for messages in asked(agent)] == ["context\nhi"] * 3
    assert [text for text in texts(agent.messages) if text] == ["hi", "2", "and now?", "3"]


@pytest.mark.parametrize(("cancel", "answer"), [(True, "model call denied by hook"), ("closed", "closed")])
async def test_a_model_call_that_is_cancelled_is_answered_by_the_hook(cancel: bool | str, answer: str) -> None:
    agent = agent_with("never", hooks=[On(BeforeModelCallEvent, lambda e: setattr(e, "cancel", cancel))])
    result = await agent.invoke_async("hi")
    assert (str(result), result.stop_reason) == (answer, "end_turn")
    assert asked(agent) == []
    assert texts(agent.messages) == ["hi", answer]


async def test_retry_throws_a_good_answer_away() -> None:
    def polite(event: AfterModelCallEvent) -> None:
        event.retry = "please" not in text_of(event.stop_response.message)

    agent = agent_with("no", use("add", a=1, b=1), "yes, please", hooks=[On(AfterModelCallEvent, polite)])
    events = [event async for event in agent.stream_async("go")]
    assert texts(agent.messages) == ["go", "yes, please"]
    voids = [event["model_retry"] for event in events if "model_retry" in event]
    assert voids == [{"attempt": 1, "delay_s": 0.0, "error": None}] * 2
    assert [len(messages) for messages in asked(agent)] == [1, 1, 1]


async def test_answers_that_hooks_throw_away_count_towards_the_limits() -> None:
    """They cost the same, and a hook that is never content must not run for ever in spite of a limit."""
    agent = agent_with(*["no"] * 10, hooks=[On(AfterModelCallEvent, lambda e: setattr(e, "retry", True))])
    result = await agent.invoke_async("go", limits={"turns": 4})
    assert result.stop_reason == "limit_turns"
    assert len(asked(agent)) == 4
    assert texts(agent.messages) == ["go"]
    assert str(await agent_with("fine").invoke_async("go")) == "fine"


async def test_retry_asks_again_after_a_failure_that_the_strategy_would_not_retry() -> None:
    def insist(event: AfterModelCallEvent) -> None:
        event.retry = event.exception is not None

    agent = agent_with(ModelFailed("nonsense"), RuntimeError("worse"), "fine", hooks=[On(AfterModelCallEvent, insist)])
    assert str(await agent.invoke_async("go")) == "fine"


async def test_retry_is_true_when_the_strategy_will_retry_and_false_gives_up() -> None:
    seen: list[bool] = []

    def give_up(event: AfterModelCallEvent) -> None:
        seen.append(event.retry)
        event.retry = False

    agent = Agent(
        ScriptedModel([Throttled("slow down"), "fine"]),
        callback_handler=None,
        hooks=[On(AfterModelCallEvent, give_up)],
    )
    with pytest.raises(Throttled):
        await agent.invoke_async("go")
    assert seen == [True]


# Messages that callbacks append.


def say(text: str) -> Message:
    return {"role": "user", "content": [{"text": text}]}


async def test_a_message_appended_before_a_model_call_is_the_last_that_this_call_shows() -> None:
    def add_note(event: BeforeModelCallEvent) -> None:
        event.agent.messages.append(say("by the way"))

    agent = agent_with("ok", hooks=[On(BeforeModelCallEvent, add_note)])
    await agent.invoke_async("hi")
    assert [texts(shown) for shown in asked(agent)] == [["hi", "by the way"]]
    assert texts(agent.messages) == ["hi", "by the way", "ok"]


@pytest.mark.real_time
async def test_what_is_appended_with_a_retry_guides_the_next_answer_and_is_stored(tmp_path: Path) -> None:
    def guide(event: AfterModelCallEvent) -> None:
        if event.stop_response is not None and text_of(event.stop_response.message) == "bad":
            event.retry = True
            event.agent.messages = [*event.agent.messages, say("say good")]

    manager = SQLiteSessionManager("s", path=tmp_path / "a.db")
    agent = agent_with("bad", "good", session_manager=manager, hooks=[On(AfterModelCallEvent, guide)])
    assert str(await agent.invoke_async("hi")) == "good"
    assert [texts(shown) for shown in asked(agent)] == [["hi"], ["hi", "say good"]]
    later = agent_with(session_manager=SQLiteSessionManager("s", path=tmp_path / "a.db"))
    await later.ready()
    assert texts(later.messages) == ["hi", "say good", "good"]


@pytest.mark.parametrize(
    "wrong",
    [
        [{"role": "assistant", "content": [{"text": "mine"}]}],
        [{"role": "user", "content": []}, "no message"],
        [{"role": "user", "content": [{"toolResult": {"toolUseId": "x", "status": "success", "content": []}}]}],
    ],
)
async def test_anything_appended_but_users_messages_is_logged_and_dropped(
    wrong: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    agent = agent_with("ok", hooks=[On(BeforeModelCallEvent, lambda event: event.agent.messages.extend(wrong))])
    await agent.invoke_async("hi")
    assert texts(agent.messages) == ["hi", "ok"]
    assert caplog.records


async def test_what_is_appended_after_the_last_answer_is_dropped() -> None:
    agent = agent_with("ok", hooks=[On(AfterInvocationEvent, lambda event: event.agent.messages.append(say("late")))])
    await agent.invoke_async("hi")
    assert texts(agent.messages) == ["hi", "ok"]
