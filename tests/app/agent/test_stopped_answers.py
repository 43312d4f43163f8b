"""What a stop leaves of an answer: its text so far stays in the conversation, marked, and the model is told."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable
from contextlib import aclosing, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

from repertory import (
    AfterModelCallEvent,
    Agent,
    AgentResult,
    AgentSpec,
    HookEvent,
    InMemoryStorage,
    Inspector,
    InvokeModelStage,
    JournalSessions,
    MemoryManager,
    MessageAddedEvent,
    PendingTurn,
    Runtime,
    ScriptedModel,
    Sessions,
    SQLiteSessions,
)
from repertory.console.listing import history_lines
from repertory.core.messages import STOPPED_TEXT, Message, is_stopped, text_of, tool_results
from repertory.core.turns.turn_start import STOPPED_ANEW_TEXT, STOPPED_GO_ON_TEXT
from repertory.errors import HookFailed
from repertory.testing.referees.services import REFEREES
from repertory.testing.strict_provider import StrictProvider
from tests.app.agent.stopped_child import HALF, Stopping
from tests.app.memory.toy_memories import Transcripts
from tests.inspector.inspected import Visitor

pytestmark = pytest.mark.anyio

KEPT = [HALF, STOPPED_TEXT]


def said(messages: list[Message]) -> list[list[str]]:
    return [[block["text"] for block in message["content"] if "text" in block] for message in messages]


def stopping(*then: Any, **options: Any) -> tuple[Agent, Stopping]:
    model = Stopping(*then)
    return Agent(model, callback_handler=None, **options), model


async def stopped(agent: Agent, model: Stopping, stop: Callable[[], None], **options: Any) -> AgentResult:
    """The result of a call that is stopped in the middle of its answer."""
    results: list[AgentResult] = []

    async def call() -> None:
        results.append(await agent.invoke_async("go", **options))

    async with anyio.create_task_group() as group:
        group.start_soon(call)
        await model.waits.wait()
        stop()
    return results[0]


async def test_the_text_so_far_stays_marked_and_the_model_is_told() -> None:
    agent, model = stopping("It rains.")
    result = await stopped(agent, model, agent.cancel)
    assert (result.stop_reason, str(result)) == ("cancelled", "\n".join(KEPT))
    assert said(agent.messages) == [["go"], KEPT]
    assert is_stopped(agent.messages[-1])
    assert str(await agent.invoke_async("and?")) == "It rains."
    assert said(model.shown[-1]) == [["go"], KEPT, ["and?"]]


async def test_a_call_without_a_prompt_goes_on_where_it_was_stopped() -> None:
    agent, model = stopping("rains.")
    await stopped(agent, model, agent.cancel)
    assert str(await agent.invoke_async()) == "rains."
    assert said(model.shown[-1]) == [["go"], KEPT, [STOPPED_GO_ON_TEXT]]


async def test_the_message_of_a_cancellation_stands_for_the_note() -> None:
    agent, model = stopping()
    result = await stopped(agent, model, lambda: agent.cancel("Ann has stopped it."))
    assert said(agent.messages)[1] == [HALF, "Ann has stopped it."]
    assert str(result) == f"{HALF}\nAnn has stopped it."


async def test_a_signal_of_the_caller_keeps_it() -> None:
    agent, model = stopping()
    flag = threading.Event()
    await stopped(agent, model, flag.set, cancel_signal=flag)
    assert said(agent.messages) == [["go"], KEPT]


async def test_a_reader_who_leaves_the_stream_keeps_what_was_read() -> None:
    agent, model = stopping("It rains.")
    async with agent:
        async with aclosing(agent.stream_async("go")) as events:
            async for event in events:
                if "data" in event:
                    break
        await agent.invoke_async("and?")
    assert said(model.shown[-1]) == [["go"], KEPT, ["and?"]]


@pytest.mark.parametrize("held", [True, False])
async def test_a_call_whose_task_is_cancelled_leaves_what_was_said(held: bool) -> None:
    agent, model = stopping("It rains.")
    async with agent if held else nullcontext():
        with anyio.move_on_after(5):
            await agent.invoke_async("go")
        await agent.invoke_async("and?")
    assert said(model.shown[-1]) == [["go"], KEPT, ["and?"]]


async def test_a_call_that_interrupts_is_shown_what_the_person_has_read() -> None:
    agent, model = stopping("Then not.", busy="interrupt")

    async def call() -> None:
        assert (await agent.invoke_async("go")).stop_reason == "cancelled"

    async with agent, anyio.create_task_group() as group:
        group.start_soon(call)
        await model.waits.wait()
        assert str(await agent.invoke_async("no, wait")) == "Then not."
    assert said(model.shown[-1]) == [["go"], KEPT, ["no, wait"]]


async def test_it_is_taken_back_where_the_caller_wants_that() -> None:
    agent, model = stopping("It rains.")
    result = await stopped(agent, model, lambda: agent.cancel(keep_partial=False))
    assert (str(result), said(agent.messages)) == ("Cancelled by user", [["go"]])
    assert str(await agent.invoke_async()) == "It rains."
    assert said(model.shown[-1]) == [["go"]]


async def test_a_deadline_keeps_nothing() -> None:
    agent, _ = stopping()
    result = await agent.invoke_async("go", timeout_s=5)
    assert (result.stop_reason, said(agent.messages)) == ("limit_time", [["go"]])


async def test_an_answer_around_which_middleware_stands_is_not_kept() -> None:
    """Only the middleware knows what it makes of the answer."""
    agent, model = stopping("It rains.")
    agent.add_middleware(InvokeModelStage.Input, lambda context: context)
    await stopped(agent, model, agent.cancel)
    assert said(agent.messages) == [["go"]]
    assert str(await agent.invoke_async()) == "It rains."


async def test_half_a_tool_use_is_dropped_and_reasoning_too() -> None:
    agent, model = stopping()
    model.more = [
        {"contentBlockDelta": {"contentBlockIndex": 1, "delta": {"reasoningContent": {"text": "Hm."}}}},
        {"contentBlockStart": {"contentBlockIndex": 2, "start": {"toolUse": {"toolUseId": "t", "name": "look"}}}},
        {"contentBlockDelta": {"contentBlockIndex": 2, "delta": {"toolUse": {"input": '{"at": '}}}},
    ]
    await stopped(agent, model, agent.cancel)
    assert agent.messages[1]["content"] == [{"text": text} for text in KEPT]


async def test_before_anything_was_said_nothing_is_stored() -> None:
    agent, model = stopping()
    model.first = ""
    result = await stopped(agent, model, agent.cancel)
    assert (str(result), said(agent.messages)) == ("Cancelled by user", [["go"]])


async def test_a_memory_gets_no_answer_that_was_stopped() -> None:
    store = Transcripts()
    agent, model = stopping("It rains.", memory_manager=MemoryManager(stores=[store]))
    async with agent:
        await stopped(agent, model, agent.cancel)
        await agent.invoke_async("and?")
    assert store.batches == [["go", "and?", "It rains."]]


async def test_an_answer_of_which_the_first_part_stands_already_is_kept_behind_it() -> None:
    """Its provider had paused."""
    agent, model = stopping("rains.")
    model.then[:0] = ["I look. "]
    model.stops, model.pauses = False, True
    result = await stopped(agent, model, agent.cancel)
    assert (result.stop_reason, str(result)) == ("cancelled", f"I look. \n{HALF}\n{STOPPED_TEXT}")
    assert said(agent.messages) == [["go"], ["I look. "], KEPT]


async def test_wherever_it_is_stopped_the_conversation_has_what_the_reader_has_read() -> None:
    text = "It rains in the mountains, and tomorrow it snows."
    ends: set[int] = set()
    for number in range(30):
        agent = Agent(ScriptedModel([text], chunk=2, delay_s=0.1), callback_handler=None)
        read, results = "", list[AgentResult]()
        async with aclosing(agent.stream_async("go")) as events:
            async for event in events:
                read += str(event.get("data", ""))
                if isinstance(result := event.get("result"), AgentResult):
                    results.append(result)
                if number == 0:
                    agent.cancel()
                number -= 1
        (result,) = results
        found = [text for message in said(agent.messages)[1:] for text in message]
        if result.stop_reason == "end_turn":
            assert found == [read] == [text]
        else:
            assert found == ([read, STOPPED_TEXT] if read else [])
            ends.add(len(read))
    assert len(ends) > 5


# What takes it back.


async def test_a_hook_that_rejects_answers_takes_it_back() -> None:
    seen: list[tuple[str, str]] = []

    def reject(event: AfterModelCallEvent) -> None:
        if event.stop_response is not None:
            seen.append((event.stop_response.stop_reason, text_of(event.stop_response.message)))
            event.retry = True

    agent, model = stopping(hooks=[reject])
    result = await stopped(agent, model, agent.cancel)
    assert seen == [("cancelled", "\n".join(KEPT))]
    assert (str(result), said(agent.messages)) == ("Cancelled by user", [["go"]])


async def test_a_hook_redacts_what_is_kept() -> None:
    def redact(event: MessageAddedEvent) -> None:
        for block in event.message["content"]:
            if "text" in block:
                block["text"] = block["text"].replace("rains", "****")

    agent, model = stopping(hooks=[redact])
    model.first = "It rains, "
    result = await stopped(agent, model, agent.cancel)
    assert said(agent.messages)[1] == ["It ****, ", STOPPED_TEXT]
    assert "rains" not in str(result)


@pytest.mark.parametrize("kind", [AfterModelCallEvent, MessageAddedEvent])
async def test_a_guard_that_fails_keeps_it_out(kind: type[HookEvent]) -> None:
    def guard(event: Any) -> None:
        if isinstance(event, AfterModelCallEvent) or event.message["role"] == "assistant":
            raise ValueError("not this")

    agent, model = stopping()
    agent.add_hook(guard, kind, guard=True)
    with pytest.raises(BaseExceptionGroup) as caught:
        await stopped(agent, model, agent.cancel)
    assert caught.group_contains(HookFailed)
    assert said(agent.messages) == [["go"]]


async def test_a_guardrail_of_the_model_replaces_it_and_the_prompt() -> None:
    agent, model = stopping()
    model.more = [{"redactContent": {"redactAssistantContentMessage": "No.", "redactUserContentMessage": "***"}}]
    await stopped(agent, model, agent.cancel)
    assert said(agent.messages) == [["***"], ["No.", STOPPED_TEXT]]


# Turns that others go on with.


async def test_a_drain_keeps_nothing_and_the_turn_is_answered_from_its_beginning() -> None:
    place = JournalSessions(InMemoryStorage())
    model = Stopping()
    results: list[AgentResult] = []

    async def call(session: Any) -> None:
        results.append(await session.invoke("go", idempotency_token="t"))

    async with anyio.create_task_group() as group, Runtime(sessions=place, drain_timeout_s=1) as runtime:
        group.start_soon(call, runtime.agent(AgentSpec(model=model)).session("s"))
        await model.waits.wait()
    assert [result.stop_reason for result in results] == ["cancelled"]
    again = Stopping("It rains.")
    again.stops = False
    async with Runtime(sessions=place) as runtime:
        session = runtime.agent(AgentSpec(model=again)).session("s")
        assert str(await session.invoke("go", idempotency_token="t")) == "It rains."
        assert said(await session.history()) == [["go"], ["It rains."]]


async def test_a_call_that_is_given_up_while_the_runtime_drains_keeps_nothing() -> None:
    place, model = JournalSessions(InMemoryStorage()), Stopping()
    calls = anyio.CancelScope()

    async def call(session: Any) -> None:
        with calls:
            await session.invoke("go", idempotency_token="t")

    async with anyio.create_task_group() as group, Runtime(sessions=place) as runtime:
        session = runtime.agent(AgentSpec(model=model)).session("s")
        group.start_soon(call, session)
        await model.waits.wait()
        group.start_soon(runtime.drain)
        await anyio.sleep(1)
        calls.cancel()
    async with Runtime(sessions=place) as runtime:
        history = await runtime.agent(AgentSpec(model=Stopping())).session("s").history()
    assert said(history) == [["go"]]


async def test_a_turn_that_called_another_one_keeps_nothing_of_it() -> None:
    inner, model = stopping()
    outer = Agent(
        ScriptedModel([{"toolUse": {"name": "inner", "input": {"input": "go"}}}, "never"]),
        tools=[inner.as_tool(name="inner", description="Asks.", preserve_context=True)],
        callback_handler=None,
    )
    await stopped(outer, model, outer.cancel)
    assert [result["status"] for message in outer.messages for result in tool_results(message)] == ["error"]
    assert not any(map(is_stopped, inner.messages))


# Tokens.


async def test_the_token_of_a_stopped_turn_with_its_prompt_gets_a_whole_answer() -> None:
    place = JournalSessions(InMemoryStorage())
    model = Stopping()
    async with Runtime(sessions=place) as runtime:
        session = runtime.agent(AgentSpec(model=model)).session("s")
        async with anyio.create_task_group() as group:
            group.start_soon(partial(session.invoke, "go", idempotency_token="t"))
            await model.waits.wait()
            await session.cancel()
        told = await session.told("t")
        assert told is not None
        assert (told.state, told.result, said([*told.messages])) == ("stopped", None, [["go"], KEPT])
        assert await session.pending() == PendingTurn(why="cut short")
    for _ in range(2):
        model = Stopping("It rains.")
        model.stops = False
        async with Runtime(sessions=place) as runtime:
            session = runtime.agent(AgentSpec(model=model)).session("s")
            assert str(await session.invoke("go", idempotency_token="t")) == "It rains."
            assert said(await session.history()) == [["go"], KEPT, [STOPPED_ANEW_TEXT], ["It rains."]]


@pytest.mark.parametrize("token", ["t", None])
async def test_a_stopped_turn_goes_on_under_its_token(token: str | None) -> None:
    agent, model = stopping("rains.", "never")
    async with agent:
        await stopped(agent, model, agent.cancel, idempotency_token="t")
        assert str(await agent.invoke_async(idempotency_token=token)) == "rains."
        again = await agent.invoke_async("go", idempotency_token="t")
    assert (str(again), again.replayed) == ("rains.", True)
    assert said(model.shown[-1]) == [["go"], KEPT, [STOPPED_GO_ON_TEXT]]


async def test_a_stopped_turn_that_another_one_followed_goes_on_behind_it() -> None:
    agent, model = stopping("B.", "It rains.")
    async with agent:
        await stopped(agent, model, agent.cancel, idempotency_token="t")
        await agent.invoke_async("something else")
        assert str(await agent.invoke_async("go", idempotency_token="t")) == "It rains."
    assert said(model.shown[-1])[-1] == [
        "(Go on with an earlier message of mine that has no answer yet: the one before my last one.)"
    ]


# Every service takes the conversation, whatever follows.


@pytest.mark.parametrize("service", sorted(REFEREES))
@pytest.mark.parametrize("prompt", ["and?", None])
@pytest.mark.parametrize("note", [None, "Stopped by Ann. ", " "])
async def test_every_service_takes_a_conversation_with_a_stopped_answer(
    service: str, prompt: str | None, note: str | None
) -> None:
    agent, model = stopping()
    await stopped(agent, model, lambda: agent.cancel(note))
    agent.model = strict = StrictProvider(service, ["It rains.", "Yes."])
    assert str(await agent.invoke_async(prompt)) == "It rains."
    assert str(await agent.invoke_async("Really?")) == "Yes."
    assert not strict.refusals


# Restarts.


@pytest.mark.real_time
async def test_a_process_that_is_killed_after_a_stop_has_stored_what_its_caller_was_answered(
    tmp_path: Path, anyio_backend_name: str
) -> None:
    path = tmp_path / "a.db"
    command = [sys.executable, "-m", "tests.app.agent.stopped_child", anyio_backend_name, str(path)]
    found = await anyio.run_process(command, check=False)
    assert found.returncode == -signal.SIGKILL, found.stderr.decode()
    answered = found.stdout.decode().splitlines()
    assert answered == KEPT
    async with Runtime(sessions=SQLiteSessions(path)) as runtime:
        session = runtime.agent(AgentSpec(model=Stopping())).session("s")
        assert said(await session.history()) == [["go"], answered]
        assert await session.pending() == PendingTurn(why="cut short")
    async with Sessions(SQLiteSessions(path)) as sessions:
        stored = (await sessions.show("s")).agents["default"]
        history = await sessions.history("s")
    assert [line for line in history_lines(stored) if line.endswith("(stopped)")]
    assert [each.answered for each in history.happenings] == [False]
    for content in (True, False):
        app = Inspector(SQLiteSessions(path), content=content)
        page = (await Visitor(app).get("/sessions/s")).text
        assert 'class="tag" title="Its caller stopped' in page
        assert (STOPPED_TEXT in page) is content
        await app.aclose()
