"""Idempotency tokens: the same turn again is the same answer, whoever asks, whenever, in whatever process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import aclosing
from pathlib import Path
from typing import Any

import anyio
import pytest
from pydantic import BaseModel

from repertory import (
    AfterInvocationEvent,
    Agent,
    AgentResult,
    AgentSpec,
    BeforeInvocationEvent,
    Runtime,
    ScriptedModel,
    SlidingWindowConversationManager,
    SQLiteSessionManager,
    SQLiteSessions,
    ToolContext,
    tool,
)
from repertory.backends.tools.function_tool import schema_class
from repertory.core.journal.fold import FINISHED_TURNS_MAX
from repertory.core.messages import LOST_TEXT, NO_ANSWER_TEXT, text_of
from repertory.errors import AgentBusy, InterruptNotFound, Invalid, ModelFailed, Unavailable
from tests.app.orchestration.recorder import On, add, slow, use
from tests.operations.operated_places import LOCAL, place_of
from tests.service.histories import check_history

pytestmark = pytest.mark.anyio

schema_class()  # Loading it uses a thread, which a clock that jumps would pass.


def agent_with(*replies: Any, **options: Any) -> Agent:
    options = {"tools": [add, slow], "callback_handler": None, "retry_strategy": None, **options}
    return Agent(ScriptedModel(list(replies)), **options)


def calls_of(agent: Agent) -> int:
    assert isinstance(agent.model, ScriptedModel)
    return len(agent.model.calls)


def texts(messages: Any) -> list[str]:
    return [text_of(message) for message in messages]


# Finished turns.


async def test_a_finished_turn_is_answered_again_and_nothing_runs() -> None:
    agent = agent_with(use("add", a=1, b=2), "3", "another")
    first = await agent.invoke_async("1 + 2?", idempotency_token="t")
    again = await agent.invoke_async("1 + 2?", idempotency_token="t")
    assert (str(first), str(again)) == ("3", "3")
    assert (first.replayed, again.replayed) == (False, True)
    assert len(agent.messages) == 4
    assert str(await agent.invoke_async("1 + 2?", idempotency_token="u")) == "another"


@pytest.mark.real_time
@pytest.mark.parametrize("said", [NO_ANSWER_TEXT, LOST_TEXT])
async def test_an_answer_in_the_words_of_a_missing_one_is_an_answer(said: str, tmp_path: Path) -> None:
    """What a tool reads may talk the model into it; the tools of the turn still run once."""
    ran = 0
    for _ in range(2):
        manager = SQLiteSessionManager("s", path=tmp_path / "s.db")
        agent = agent_with(use("add", a=1, b=2), said, session_manager=manager)
        async with agent:
            assert str(await agent.invoke_async("1 + 2?", idempotency_token="t")).strip() == said
        ran += calls_of(agent)
    assert ran == 2


async def test_without_a_token_every_call_runs() -> None:
    agent = agent_with("one", "two")
    assert [str(await agent.invoke_async("same")) for _ in range(2)] == ["one", "two"]


async def test_a_stream_replays_the_result_alone() -> None:
    agent = agent_with("one", "two")
    await agent.invoke_async("go", idempotency_token="t")
    events = [event async for event in agent.stream_async("go", idempotency_token="t")]
    assert [str(event["result"]) for event in events] == ["one"]
    assert calls_of(agent) == 1


async def test_a_finished_turn_is_answered_again_while_another_runs() -> None:
    agent = agent_with("one", use("slow", seconds=100), "two")
    await agent.invoke_async("go", idempotency_token="t")
    async with agent, anyio.create_task_group() as group:
        group.start_soon(agent.invoke_async, "on")
        await anyio.sleep(10)
        with anyio.fail_after(5):
            assert str(await agent.invoke_async("go", idempotency_token="t", busy="reject")) == "one"


@pytest.mark.real_time
async def test_after_a_restart_it_is_answered_again(tmp_path: Path) -> None:
    manager = SQLiteSessionManager("s", path=tmp_path / "a.db")
    await agent_with("one", session_manager=manager).invoke_async("go", idempotency_token="t")
    await agent_with("two", session_manager=manager).invoke_async("on")
    later = agent_with("never", session_manager=manager)
    again = await later.invoke_async("go", idempotency_token="t")
    assert (str(again), again.replayed, again.stop_reason) == ("one", True, "end_turn")
    assert texts(await later.history()) == ["go", "one", "on", "two"]


class Person(BaseModel):
    """A person."""

    name: str


@pytest.mark.real_time
@pytest.mark.parametrize("restarted", [False, True])
async def test_structured_output_is_answered_again_too(tmp_path: Path, restarted: bool) -> None:
    manager = SQLiteSessionManager("s", path=tmp_path / "a.db")
    agent = agent_with(use("Person", name="Ann"), session_manager=manager)
    await agent.invoke_async("who?", structured_output_model=Person, idempotency_token="t")
    if restarted:
        agent = agent_with(session_manager=manager)
    again = await agent.invoke_async("who?", structured_output_model=Person, idempotency_token="t")
    assert again.structured_output == Person(name="Ann")
    assert again.replayed


async def test_as_many_tokens_as_are_kept_are_known_and_the_oldest_are_forgotten() -> None:
    agent = agent_with(*map(str, range(200)))
    async with agent:
        for number in range(FINISHED_TURNS_MAX + 10):
            await agent.invoke_async("go", idempotency_token=f"t{number}")
        for number in range(10, FINISHED_TURNS_MAX + 10):
            assert str(await agent.invoke_async("go", idempotency_token=f"t{number}")) == str(number)
        assert calls_of(agent) == FINISHED_TURNS_MAX + 10
        assert not (await agent.invoke_async("go", idempotency_token="t0")).replayed


@pytest.mark.real_time
@pytest.mark.parametrize("kind", LOCAL)
async def test_as_many_are_known_after_a_restart_however_few_messages_are_shown(tmp_path: Path, kind: str) -> None:
    place, asked = place_of(kind, tmp_path), FINISHED_TURNS_MAX + 10
    model = ScriptedModel([*map(str, range(asked)), "anew"])
    window = SlidingWindowConversationManager(window_size=4)
    spec = AgentSpec(name="a", model=model, conversation_manager=window)
    async with Runtime(sessions=place) as runtime:
        session = runtime.agent(spec).session("s")
        for number in range(asked):
            await session.invoke("go", idempotency_token=f"t{number}")
    async with Runtime(sessions=place) as runtime:
        session = runtime.agent(spec).session("s")
        for number in (10, asked // 2, asked - 1):
            again = await session.invoke("go", idempotency_token=f"t{number}")
            assert (str(again), again.replayed) == (str(number), True)
            events = [event async for event in session.stream("go", idempotency_token=f"t{number}")]
            assert [str(event["result"]) for event in events] == [str(number)]
        assert len(model.calls) == asked
        assert str(await session.invoke("go", idempotency_token="t9")) == "anew"


async def test_a_call_that_a_hook_denied_was_not_answered() -> None:
    denials = ["not today"]

    def deny(event: BeforeInvocationEvent) -> None:
        event.cancel = denials.pop() if denials else False

    agent = agent_with("yes", hooks=[On(BeforeInvocationEvent, deny)])
    assert str(await agent.invoke_async("go", idempotency_token="t")) == "not today"
    second = await agent.invoke_async("go", idempotency_token="t")
    assert (str(second), second.replayed) == ("yes", False)


# Turns in flight.


async def test_a_turn_in_flight_is_shared() -> None:
    agent = agent_with(use("slow", seconds=10), "done", "again")
    results: list[AgentResult] = []
    events: list[list[str]] = []

    async def call() -> None:
        results.append(await agent.invoke_async("go", idempotency_token="t"))

    async def stream() -> None:
        events.append([key async for event in agent.stream_async("go", idempotency_token="t") for key in event])

    async with agent, anyio.create_task_group() as group:
        for task in (call, call, stream):
            group.start_soon(task)
            await anyio.sleep(1)
    assert [str(result) for result in results] == ["done", "done"]
    assert events == [["result"]]
    assert texts(agent.messages) == ["go", "", "", "done"]


async def test_a_turn_in_flight_that_fails_fails_for_all_who_share_it() -> None:
    agent = agent_with(use("slow", seconds=10), ModelFailed("no"))
    failures: list[str] = []

    async def call() -> None:
        try:
            await agent.invoke_async("go", idempotency_token="t")
        except ModelFailed as error:
            failures.append(str(error))

    async with agent, anyio.create_task_group() as group:
        for _ in range(3):
            group.start_soon(call)
    assert failures == ["no"] * 3


async def test_a_turn_that_waits_is_shared_by_who_comes_later() -> None:
    agent = agent_with(use("slow", seconds=10), "one", "two")
    results: dict[str, str] = {}

    async def call(name: str, token: str) -> None:
        results[name] = str(await agent.invoke_async(name, idempotency_token=token))

    async with agent, anyio.create_task_group() as group:
        for name, token in (("a", "t"), ("b", "u"), ("c", "u")):
            group.start_soon(call, name, token)
            await anyio.sleep(1)
    assert results == {"a": "one", "b": "two", "c": "two"}
    assert [text for text in texts(agent.messages) if text] == ["a", "one", "b", "two"]


@pytest.mark.parametrize("leaves", ["cancelled", "timeout", "stream"])
async def test_who_shares_a_turn_that_waits_gets_it_when_the_first_caller_has_gone(leaves: str) -> None:
    agent = agent_with(use("slow", seconds=100), "one", "two")
    answered: list[str] = []

    async def first() -> None:
        if leaves == "stream":
            with anyio.move_on_after(10):
                async with aclosing(agent.stream_async("b", idempotency_token="u")) as events:
                    _ = [event async for event in events]
        elif leaves == "timeout":
            with pytest.raises(AgentBusy):
                await agent.invoke_async("b", idempotency_token="u", timeout_s=10)
        else:
            with anyio.move_on_after(10):
                await agent.invoke_async("b", idempotency_token="u")

    async def second() -> None:
        answered.append(str(await agent.invoke_async("b", idempotency_token="u")))

    async with agent, anyio.create_task_group() as group:
        group.start_soon(agent.invoke_async, "a")
        for task in (first, second, second):
            await anyio.sleep(1)
            group.start_soon(task)
    assert answered == ["two", "two"]
    assert [text for text in texts(agent.messages) if text] == ["a", "one", "b", "two"]


async def test_who_shares_a_turn_has_its_own_time_and_the_turn_goes_on() -> None:
    agent = agent_with(use("slow", seconds=100), "one")
    answered: list[str] = []

    async def first() -> None:
        answered.append(str(await agent.invoke_async("go", idempotency_token="t")))

    async def second() -> None:
        with pytest.raises(AgentBusy, match="time"):
            await agent.invoke_async("go", idempotency_token="t", timeout_s=10)
        answered.append("out of time")

    async with agent, anyio.create_task_group() as group:
        group.start_soon(first)
        await anyio.sleep(1)
        group.start_soon(second)
    assert answered == ["out of time", "one"]


async def test_a_shared_turn_is_not_cut_short_by_the_first_caller_leaving() -> None:
    agent = agent_with(use("slow", seconds=100), "one")
    answered: list[str] = []

    async def second() -> None:
        answered.append(str(await agent.invoke_async("go", idempotency_token="t")))

    async with agent, anyio.create_task_group() as group:
        with anyio.move_on_after(10):
            group.start_soon(second)
            await agent.invoke_async("go", idempotency_token="t")
    assert answered == ["one"]


async def test_two_tokens_are_two_turns() -> None:
    agent = agent_with("one", "two", "three")
    async with agent:
        tokens = ("t", "u", None)
        results = [str(await agent.invoke_async("same", idempotency_token=token)) for token in tokens]
    assert results == ["one", "two", "three"]


# Turns that failed or were cut short.


async def test_a_turn_that_failed_goes_on_without_saying_the_prompt_twice() -> None:
    agent = agent_with(Unavailable("gone"), "fine")
    with pytest.raises(Unavailable):
        await agent.invoke_async("go", idempotency_token="t")
    result = await agent.invoke_async("go", idempotency_token="t")
    assert (str(result), result.replayed) == ("fine", False)
    assert texts(agent.messages) == ["go", "fine"]
    assert (await agent.invoke_async("go", idempotency_token="t")).replayed


@pytest.mark.parametrize(
    "options",
    [{"limits": {"turns": 1}}, {"timeout_s": 30}],
    ids=repr,
)
async def test_a_turn_that_reached_a_limit_goes_on(options: Any) -> None:
    agent = agent_with([use("add", a=1, b=2), use("slow", seconds=40)], "3")
    cut = await agent.invoke_async("go", idempotency_token="t", **options)
    assert cut.stop_reason.startswith("limit_")
    assert str(await agent.invoke_async("go", idempotency_token="t")) == "3"
    assert texts(agent.messages) == ["go", "", "", "3"]
    check_history(agent.messages)


async def test_a_turn_that_was_cancelled_goes_on_and_one_with_a_last_word_is_answered() -> None:
    for message, expected in ((None, "later"), ("stopped", "stopped")):
        agent = agent_with(use("slow", seconds=100), "later")
        async with agent, anyio.create_task_group() as group:
            group.start_soon(lambda asked=agent: asked.invoke_async("go", idempotency_token="t"))
            await anyio.sleep(10)
            agent.cancel(message)
        again = await agent.invoke_async("go", idempotency_token="t")
        assert (str(again), again.replayed) == (expected, message is not None)
        assert texts(agent.messages) == ["go", "", "", expected]


async def test_a_turn_that_a_tool_ended_without_an_answer_goes_on() -> None:
    agent = agent_with(use("add", a=1, b=2), "3")
    state = {"request_state": {"stop_event_loop": True}}
    ended = await agent.invoke_async("go", idempotency_token="t", invocation_state=state)
    assert (ended.stop_reason, ended.message) == ("tool_use", None)
    assert str(await agent.invoke_async("go", idempotency_token="t")) == "3"


async def test_a_turn_that_failed_goes_on_behind_another_one_without_saying_the_prompt_twice() -> None:
    agent = agent_with(Unavailable("gone"), "other", "fine")
    with pytest.raises(Unavailable):
        await agent.invoke_async("go", idempotency_token="t")
    assert str(await agent.invoke_async("something else")) == "other"
    assert str(await agent.invoke_async("go", idempotency_token="t")) == "fine"
    assert [text for text in texts(agent.messages) if not text.startswith("(")] == [
        "go",
        "something else",
        "other",
        "fine",
    ]


async def test_a_resumed_turn_that_fails_goes_on_with_it() -> None:
    resumes = ["and then?"]
    agent = agent_with(
        "one",
        Unavailable("gone"),
        "two",
        hooks=[On(AfterInvocationEvent, lambda e: setattr(e, "resume", resumes.pop() if resumes else None))],
    )
    with pytest.raises(Unavailable):
        await agent.invoke_async("go", idempotency_token="t")
    assert str(await agent.invoke_async("go", idempotency_token="t")) == "two"
    assert texts(agent.messages) == ["go", "one", "and then?", "two"]


@pytest.mark.real_time
@pytest.mark.parametrize("resumed", [False, True])
async def test_after_a_restart_a_turn_that_failed_goes_on(tmp_path: Path, resumed: bool) -> None:
    manager = SQLiteSessionManager("s", path=tmp_path / "a.db")
    hooks = [On(AfterInvocationEvent, lambda e: setattr(e, "resume", "and then?"))] if resumed else []
    replies = ["one"] if resumed else []
    agent = agent_with(*replies, Unavailable("gone"), session_manager=manager, hooks=hooks)
    with pytest.raises(Unavailable):
        await agent.invoke_async("go", idempotency_token="t")
    later = agent_with("fine", session_manager=manager)
    result = await later.invoke_async("go", idempotency_token="t")
    assert (str(result), result.replayed) == ("fine", False)
    assert texts(await later.history()) == (["go", "one", "and then?", "fine"] if resumed else ["go", "fine"])


async def test_a_prompt_that_never_was_said_is_said() -> None:
    agent = agent_with("one")
    with pytest.raises(Invalid):
        await agent.invoke_async("", idempotency_token="t")
    assert str(await agent.invoke_async("go", idempotency_token="t")) == "one"


@pytest.mark.parametrize("token", ["", "a/b", "x" * 300, 5, "a\nb"], ids=lambda token: repr(token)[:10])
async def test_a_token_that_cannot_be_one_is_refused(token: Any) -> None:
    with pytest.raises(Invalid, match="idempotency_token"):
        await agent_with("never").invoke_async("go", idempotency_token=token)


# The process dies.

DYING = """
import os, signal, sys
from repertory import Agent, ScriptedModel, SQLiteSessionManager, tool

@tool(idempotent=True)
def pay() -> str:
    "Pay."
    with open(sys.argv[2], "a") as ledger:
        ledger.write("paid\\n")
    if sys.argv[3] == "in the tool":
        os.kill(os.getpid(), signal.SIGKILL)
    return "paid"

def last(*rest):
    if sys.argv[3] == "in the model":
        os.kill(os.getpid(), signal.SIGKILL)
    return "done"

agent = Agent(
    ScriptedModel([{"toolUse": {"toolUseId": "p1", "name": "pay", "input": {}}}, last]),
    tools=[pay], callback_handler=None,
    session_manager=SQLiteSessionManager("s", path=sys.argv[1]), durability=sys.argv[4],
)
agent("go", idempotency_token="t")
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("durability", ["pipelined", "strict"])
@pytest.mark.parametrize("where", ["in the tool", "in the model", "after the answer"])
def test_after_a_kill_the_same_token_is_the_same_turn(tmp_path: Path, where: str, durability: str) -> None:
    ledger = tmp_path / "ledger"
    arguments = [sys.executable, "-c", DYING, str(tmp_path / "a.db"), str(ledger), where, durability]
    done = subprocess.run(arguments, check=False, timeout=50, env={**os.environ})
    assert done.returncode == -signal.SIGKILL

    @tool(idempotent=True)
    def pay() -> str:
        """Pay."""
        with ledger.open("a") as file:
            file.write("paid\n")
        return "paid"

    manager = SQLiteSessionManager("s", path=tmp_path / "a.db")
    agent = Agent(ScriptedModel(["done"]), tools=[pay], callback_handler=None, session_manager=manager)
    result = agent("go", idempotency_token="t")
    assert str(result) == "done"
    assert result.replayed == (where == "after the answer")
    assert [text for text in texts(agent.messages) if text] == ["go", "done"]
    twice = where == "in the tool" or (where == "in the model" and durability == "pipelined")
    assert len(ledger.read_text().split()) in ((1, 2) if twice else (1,))
    check_history(agent.messages)


@pytest.mark.real_time
async def test_the_same_in_a_runtime(tmp_path: Path) -> None:
    spec = AgentSpec(model=ScriptedModel([Unavailable("gone"), "fine", "never"]), retry_strategy=None)
    for attempt in range(3):
        async with Runtime(sessions=SQLiteSessions(tmp_path / "a.db")) as runtime:
            session = runtime.agent(spec).session("s")
            if attempt == 0:
                with pytest.raises(Unavailable):
                    await session.invoke("go", idempotency_token="t")
                continue
            result = await session.invoke("go", idempotency_token="t")
            assert (str(result), result.replayed) == ("fine", attempt == 2)
            assert texts(await session.history()) == ["go", "fine"]


# Answers to questions.


@tool
async def pay(context: ToolContext, to: str) -> str:
    """Pay."""
    context.interrupt(f"pay {to}", reason="Sure?")
    return f"paid {to}"


def to_pay(*replies: Any) -> AgentSpec:
    return AgentSpec(name="clerk", model=ScriptedModel(list(replies)), tools=[pay], retry_strategy=None)


@pytest.mark.real_time
@pytest.mark.parametrize("token", ["t", "answer"], ids=["the turn's token", "a token of its own"])
async def test_answers_that_are_brought_again_go_on_where_their_turn_was_cut_short(tmp_path: Path, token: str) -> None:
    async with Runtime(sessions=SQLiteSessions(tmp_path / "a.db")) as runtime:
        session = runtime.agent(to_pay(use("pay", to="Ann"), Unavailable("gone"))).session("s")
        asked = await session.invoke("go", idempotency_token="t")
        answers: Any = [one.respond("yes") for one in asked.interrupts]
        with pytest.raises(Unavailable):  # Behind the tool; a kill leaves the same.
            await session.invoke(answers, idempotency_token=token)
    async with Runtime(sessions=SQLiteSessions(tmp_path / "a.db"), wakes_max=0) as runtime:
        session = runtime.agent(to_pay("done")).session("s")
        with pytest.raises(InterruptNotFound):
            await session.invoke(answers, idempotency_token="another")
        result = await session.invoke(answers, idempotency_token=token)
        assert (str(result), result.replayed) == ("done", False)
        assert texts(await session.history()) == ["go", "", "", "done"]
        assert (await session.invoke(answers, idempotency_token=token)).replayed


@pytest.mark.real_time
async def test_answers_that_are_brought_again_get_the_next_question_of_their_turn(tmp_path: Path) -> None:
    asks_twice = use("pay", to="Ann"), use("pay", to="Bob")
    async with Runtime(sessions=SQLiteSessions(tmp_path / "a.db")) as runtime:
        session = runtime.agent(to_pay(*asks_twice)).session("s")
        asked = await session.invoke("go", idempotency_token="t")
        answers: Any = [one.respond("yes") for one in asked.interrupts]
        second = (await session.invoke(answers, idempotency_token="answer")).interrupts
    async with Runtime(sessions=SQLiteSessions(tmp_path / "a.db"), wakes_max=0) as runtime:
        session = runtime.agent(to_pay("done")).session("s")
        assert (await session.invoke(answers, idempotency_token="answer")).interrupts == second
        with pytest.raises(InterruptNotFound):  # Who answers by the turn's token may be wrong about what is asked.
            await session.invoke(answers, idempotency_token="t")
        more: Any = [one.respond("yes") for one in second]
        assert str(await session.invoke(more, idempotency_token="t")) == "done"
