"""Tools and hooks that ask a person: the turn waits, across restarts, and goes on with the answers."""

from __future__ import annotations

import json
import random
from contextlib import aclosing
from pathlib import Path
from typing import Any

import anyio
import pytest

from repertory import (
    AfterInvocationEvent,
    Agent,
    AgentSpec,
    BeforeToolCallEvent,
    BeforeToolsEvent,
    Graph,
    InMemoryStorage,
    InterruptException,
    JournalSessions,
    Runtime,
    ScriptedModel,
    Sessions,
    SQLiteSessions,
    ToolContext,
    tool,
)
from repertory.backends.tools.function_tool import schema_class
from repertory.core.interrupts import question_id
from repertory.core.turns.turn_start import DROPPED_TEXT, EXPIRED_TEXT, NOT_RUN_TEXT
from repertory.errors import (
    HookFailed,
    InterruptExpired,
    InterruptNotFound,
    InterruptsWaiting,
    Invalid,
    RepertoryError,
)
from tests.app.orchestration.interrupted_agents import Office, answering, names, results
from tests.app.orchestration.recorder import On, Recorder, use
from tests.service.histories import check_history

pytestmark = pytest.mark.anyio

schema_class()  # Loading it uses a thread, which a clock that jumps would pass.


# ------------------------------------------------------------------------------------------------- asking and answering


async def test_a_tool_that_asks_is_run_again_with_the_answer() -> None:
    office = Office()
    agent = office.agent(use("pay", amount=5), "done")
    asked = await agent.invoke_async("pay it")
    (interrupt,) = asked.interrupts
    assert (asked.stop_reason, asked.message, interrupt.name) == ("interrupt", None, "approve")
    assert interrupt.to_dict() == {
        "id": question_id("v1:tool_call:tooluse_1", "approve"),
        "name": "approve",
        "reason": {"amount": 5},
        "response": None,
        "tool": "pay",
        "input": {"amount": 5},
    }
    assert office.done == []
    assert len(agent.messages) == 2
    assert agent.interrupts == [interrupt]
    result = await agent.invoke_async(answering(asked.interrupts, "go ahead"))
    assert (str(result), result.stop_reason) == ("done", "end_turn")
    assert results(agent.messages) == ["paid 5: go ahead"]
    assert agent.interrupts == []
    check_history(agent.messages)


async def test_a_question_says_who_may_answer_also_after_a_restart_in_a_snapshot_and_as_json() -> None:
    office, storage = Office(), InMemoryStorage()
    office.may_answer = ["finance", "ann"]
    async with office.agent(use("pay", amount=5), storage=storage) as agent:
        await agent.invoke_async("pay it")
        snapshot = agent.take_snapshot(preset="session")
    async with office.agent("done", storage=storage) as again:
        await again.ready()
        (asked,) = again.interrupts
        assert (asked.may_answer, asked.to_dict()["may_answer"]) == (("finance", "ann"), ["finance", "ann"])
        assert str(await again.invoke_async([asked.respond("yes")])) == "done"
        assert results(again.messages) == ["paid 5: yes"]
    other = office.agent("done")
    other.load_snapshot(snapshot)
    assert [one.may_answer for one in other.interrupts] == [("finance", "ann")]


@pytest.mark.parametrize("people", ["ann", [1], [""], ["x"] * 101])
async def test_those_who_may_answer_are_a_list_of_names(people: Any) -> None:
    office = Office()
    office.may_answer = people
    agent = office.agent(use("pay", amount=1), "done")
    await agent.invoke_async("go")
    assert "may_answer is a list of names or roles" in results(agent.messages)[0]


@pytest.mark.real_time
async def test_a_tool_that_runs_in_a_thread_asks_as_well() -> None:
    @tool
    def pay(tool_context: ToolContext) -> str:
        """Pay."""
        return f"paid: {tool_context.interrupt('approve')}"

    agent = Agent(ScriptedModel([use("pay"), "done"]), tools=[pay], callback_handler=None)
    with anyio.fail_after(20):
        asked = await agent.invoke_async("pay it")
        assert str(await agent.invoke_async(answering(asked.interrupts))) == "done"
    assert results(agent.messages) == ["paid: yes"]


@pytest.mark.parametrize(("answer", "text"), [("yes", "wiped c"), ("no", "error: not allowed")])
async def test_a_hook_asks_before_a_tool_runs(answer: str, text: str) -> None:
    office = Office()
    agent = office.agent(use("wipe", disk="c"), "done")
    asked = await agent.invoke_async("wipe it")
    (interrupt,) = asked.interrupts
    assert interrupt.id == question_id("v1:before_tool_call:tooluse_1", "wipe")
    assert interrupt.reason == "c"
    assert office.done == []
    await agent.invoke_async(answering(asked.interrupts, answer))
    assert results(agent.messages) == [text]


async def test_a_hook_asks_before_all_tools_of_an_answer() -> None:
    office, recorder = Office(), Recorder()

    def gate(event: BeforeToolsEvent) -> None:
        if event.interrupt("all of these?") != "yes":
            event.cancel = "none of them"

    agent = office.agent([use("look"), use("post")], "done", hooks=[recorder, On(BeforeToolsEvent, gate)])
    asked = await agent.invoke_async("go")
    assert [one.id for one in asked.interrupts] == [question_id("v1:before_tools", "all of these?")]
    assert office.done == []
    assert recorder.order[-3:] == ["MessageAdded(assistant)", "BeforeTools", "AfterInvocation"]
    await agent.invoke_async(answering(asked.interrupts, "no"))
    assert results(agent.messages) == ["error: none of them"] * 2


async def test_what_is_known_before_is_not_asked() -> None:
    @tool(effects=False)
    async def greet(tool_context: ToolContext) -> str:
        """Greet."""
        return f"hello {tool_context.interrupt('who', response='Ann')}"

    agent = Agent(ScriptedModel([use("greet"), "done"]), tools=[greet], callback_handler=None)
    assert str(await agent.invoke_async("greet her")) == "done"
    assert results(agent.messages) == ["hello Ann"]


@pytest.mark.parametrize("answer", [None, False, 0, "", [], {"a": [1, None]}])
async def test_an_answer_may_be_any_json(answer: Any) -> None:
    found: list[Any] = []

    @tool(effects=False)
    async def ask(tool_context: ToolContext) -> str:
        """Ask."""
        found.append(tool_context.interrupt("what"))
        return "thanks"

    agent = Agent(ScriptedModel([use("ask"), "done"]), tools=[ask], callback_handler=None)
    asked = await agent.invoke_async("go")
    assert str(await agent.invoke_async(answering(asked.interrupts, answer))) == "done"
    assert found == [answer]


async def test_a_tool_may_ask_twice() -> None:
    office = Office()
    agent = office.agent(use("ask_twice"), "done")
    first = await agent.invoke_async("go")
    second = await agent.invoke_async(answering(first.interrupts, "one"))
    assert (names(first), names(second)) == (["first"], ["second"])
    assert second.interrupts[0].reason == "one"
    assert office.done == []
    assert str(await agent.invoke_async(answering(second.interrupts, "two"))) == "done"
    assert results(agent.messages) == ["one two"]


async def test_several_ask_at_once_and_the_others_run_once() -> None:
    """Strands behaviour: tools that run at the same time all run, and those that ask wait."""
    office = Office()
    agent = office.agent([use("pay", amount=1), use("post"), use("wipe", disk="c"), use("look")], "done")
    asked = await agent.invoke_async("go")
    assert sorted(names(asked)) == ["approve", "wipe"]
    assert sorted(office.done) == ["looked", "posted"]
    await agent.invoke_async(answering(asked.interrupts))
    assert sorted(office.done) == ["looked", "paid 1: yes", "posted", "wiped c"]
    assert results(agent.messages) == ["paid 1: yes", "posted", "wiped c", "seen"]


async def test_one_after_the_other_what_comes_behind_a_question_waits() -> None:
    """Strands behaviour."""
    office = Office()
    agent = office.agent(
        [use("post"), use("pay", amount=1), use("wipe", disk="c")], "done", tool_execution="sequential"
    )
    first = await agent.invoke_async("go")
    assert (names(first), office.done) == (["approve"], ["posted"])
    second = await agent.invoke_async(answering(first.interrupts))
    assert (names(second), office.done) == (["wipe"], ["posted", "paid 1: yes"])
    assert str(await agent.invoke_async(answering(second.interrupts))) == "done"
    assert results(agent.messages) == ["posted", "paid 1: yes", "wiped c"]


async def test_a_tool_with_effects_runs_again_under_the_same_key_as_another_attempt() -> None:
    office = Office()
    agent = office.agent(use("pay", amount=1), "done")
    asked = await agent.invoke_async("go")
    await agent.invoke_async(answering(asked.interrupts))
    (first, second) = office.keys
    assert (first[0] == second[0], first[1], second[1]) == (True, 1, 2)


# ---------------------------------------------------------------------------------------------------- answers in pieces


async def test_answers_come_one_by_one_and_nothing_runs_before_the_last() -> None:
    office, storage = Office(), InMemoryStorage()
    asked = await office.agent([use("pay", amount=1), use("wipe", disk="c")], storage=storage).invoke_async("go")
    one, other = asked.interrupts
    rest = await office.agent("done", storage=storage).invoke_async(answering({one.id: "yes"}))
    assert (rest.stop_reason, rest.interrupts) == ("interrupt", [other])
    assert office.done == []
    agent = office.agent("done", storage=storage)
    assert str(await agent.invoke_async(answering({other.id: "yes"}))) == "done"
    assert sorted(office.done) == ["paid 1: yes", "wiped c"]


async def test_the_same_answer_again_changes_nothing_and_another_one_is_refused() -> None:
    office = Office()
    agent = office.agent([use("pay", amount=1), use("wipe", disk="c")], "done")
    async with agent:
        one, other = (await agent.invoke_async("go")).interrupts
        await agent.invoke_async(answering({one.id: "yes"}))
        assert (await agent.invoke_async(answering({one.id: "yes"}))).interrupts == [other]
        with pytest.raises(Invalid, match="another answer already"):
            await agent.invoke_async(answering({one.id: "no", other.id: "yes"}))
        assert agent.interrupts == [other]
        assert str(await agent.invoke_async(answering({one.id: "yes", other.id: "yes"}))) == "done"


@pytest.mark.timeout(120)
async def test_answers_in_any_order_and_any_pieces_across_restarts_end_in_the_same(rng: random.Random) -> None:
    uses = [use("pay", amount=1), use("wipe", disk="c"), use("look"), use("ask_twice"), use("wipe", disk="d")]
    expected = ["paid 1: yes", "wiped c", "seen", "yes yes", "wiped d"]
    for _ in range(25):
        office, storage = Office(), InMemoryStorage()
        execution, durability = rng.choice(["concurrent", "sequential"]), rng.choice(["pipelined", "strict", "relaxed"])
        options: dict[str, Any] = {"storage": storage, "tool_execution": execution, "durability": durability}
        agent = office.agent(uses, "done", **options)
        result = await agent.invoke_async("go")
        while result.stop_reason == "interrupt":
            assert list(result.interrupts) == agent.interrupts
            if rng.random() < 0.5:
                live, agent = agent, office.agent("done", **options)
                await agent.ready()
                assert agent.interrupts == live.interrupts
                restored, lived = agent._life.read_model, live._life.read_model
                assert restored.pending_tools == lived.pending_tools
            some = rng.sample(result.interrupts, rng.randint(1, len(result.interrupts)))
            result = await agent.invoke_async(answering(some))
        assert (str(result), results(agent.messages)) == ("done", expected)
        assert sorted(office.done) == sorted(["paid 1: yes", "wiped c", "looked", "yes yes", "wiped d"])


# ------------------------------------------------------------------------------------------------------ what is refused


async def test_an_answer_to_what_nobody_asks_is_refused_as_not_found() -> None:
    office = Office()
    agent = office.agent(use("pay", amount=1), "done")
    with pytest.raises(InterruptNotFound):
        await agent.invoke_async(answering({"zz": 1}))
    asked = await agent.invoke_async("go")
    with pytest.raises(KeyError, match="no such interrupt is waiting") as caught:
        await agent.invoke_async(answering({asked.interrupts[0].id: "yes", "zz": 1}))
    assert caught.value.fields["waiting"] == [asked.interrupts[0].id]  # type: ignore[attr-defined]
    assert agent.interrupts == list(asked.interrupts)
    await agent.invoke_async(answering(asked.interrupts))
    with pytest.raises(InterruptNotFound):
        await agent.invoke_async(answering(asked.interrupts))


async def test_a_prompt_while_a_person_is_asked_is_refused_and_says_what_waits() -> None:
    office = Office()
    agent = office.agent(use("pay", amount=1), "done")
    asked = await agent.invoke_async("go")
    with pytest.raises(TypeError, match="a person is to answer first") as caught:
        await agent.invoke_async("hello?")
    assert isinstance(caught.value, InterruptsWaiting)
    assert caught.value.fields["waiting"] == {asked.interrupts[0].id: "approve"}
    assert (await agent.invoke_async()).interrupts == asked.interrupts
    assert len(agent.messages) == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"reason": object()}, "not JSON serializable"),
        ({"response": {1, 2}}, "not JSON serializable"),
        ({"expires_s": 0}, "positive number"),
        ({"expires_s": True}, "positive number"),
        ({"expires_s": float("inf")}, "positive number"),
        ({"expires_s": 3e11}, "positive number"),  # No record could say the time: the session would not open again.
        ({"expires_s": 10**400}, "positive number"),
        ({"name": ""}, "has a name"),
        ({"name": 7}, "has a name"),
        ({"name": "\ud800"}, "can be written down"),
    ],
)
async def test_a_question_that_makes_no_sense_is_refused_where_it_is_asked(
    arguments: dict[str, Any], message: str
) -> None:
    @tool(effects=False)
    async def ask(tool_context: ToolContext) -> str:
        """Ask."""
        with pytest.raises(Invalid, match=message):
            tool_context.interrupt(**{"name": "what", **arguments})
        return "refused"

    agent = Agent(ScriptedModel([use("ask"), "done"]), tools=[ask], callback_handler=None)
    assert str(await agent.invoke_async("go")) == "done"
    assert results(agent.messages) == ["refused"]


async def test_two_hooks_that_ask_the_same_ask_once_and_two_that_ask_differently_fail() -> None:
    def asking(reason: str) -> On:
        return On(BeforeToolCallEvent, lambda event: event.interrupt("approve", reason=reason))

    office = Office()
    agent = office.agent(use("post"), "done", hooks=[asking("why"), asking("why")])
    asked = await agent.invoke_async("go")
    assert names(asked) == ["approve"]
    await agent.invoke_async(answering(asked.interrupts))
    assert office.done == ["posted"]
    other = office.agent(use("post"), "done", hooks=[asking("why"), asking("what for")])
    with pytest.raises(Invalid, match="two questions have the same name"):
        await other.invoke_async("go")
    check_history(other.messages)
    assert office.done == ["posted"]


async def test_every_hook_of_an_event_may_ask() -> None:
    office = Office()
    hooks = [On(BeforeToolCallEvent, lambda event, n=n: event.interrupt(f"question {n}")) for n in range(3)]
    agent = office.agent(use("post"), "done", hooks=hooks)
    asked = await agent.invoke_async("go")
    assert names(asked) == ["question 0", "question 1", "question 2"]
    assert str(await agent.invoke_async(answering(asked.interrupts))) == "done"


async def test_tasks_that_a_tool_has_begun_ask_and_one_that_fails_beside_them_is_the_tools_failure() -> None:
    failing = False

    @tool
    async def ask_all(tool_context: ToolContext) -> str:
        """Ask in tasks."""
        answers: list[Any] = []

        async def ask(name: str) -> None:
            answers.append(tool_context.interrupt(name))

        async def fail() -> None:
            raise RuntimeError("no")

        async with anyio.create_task_group() as outer:
            outer.start_soon(ask, "a")
            async with anyio.create_task_group() as inner:
                inner.start_soon(ask, "b")
                if failing:
                    inner.start_soon(fail)
        return ", ".join(sorted(answers))

    agent = Agent(ScriptedModel([use("ask_all"), "one", use("ask_all"), "two"]), tools=[ask_all], callback_handler=None)
    asked = await agent.invoke_async("go")
    while asked.stop_reason == "interrupt":
        assert {one.name for one in asked.interrupts} <= {"a", "b"}
        asked = await agent.invoke_async(answering(asked.interrupts, "yes"))
    assert (str(asked), results(agent.messages)) == ("one", ["yes, yes"])
    failing = True
    assert str(await agent.invoke_async("again")) == "two"


async def test_a_hook_asks_from_a_task_of_its_own() -> None:
    office = Office()
    agent = office.agent(use("pay", amount=5), "done")

    async def approve(event: BeforeToolsEvent) -> None:
        async def ask() -> None:
            event.interrupt("all right?")

        async with anyio.create_task_group() as group:
            group.start_soon(ask)

    agent.add_hook(approve)
    asked = await agent.invoke_async("pay it")
    assert [one.name for one in asked.interrupts] == ["all right?"]


async def test_an_exception_that_a_tool_swallows_asks_nothing() -> None:
    """Whoever swallows it goes on, so that what it has done since must not be done again."""

    @tool(effects=False)
    async def stubborn(tool_context: ToolContext) -> str:
        """Ask, and do not wait."""
        try:
            tool_context.interrupt("approve")
        except InterruptException:
            return "went on"
        return "was told"

    agent = Agent(ScriptedModel([use("stubborn"), "done", "again"]), tools=[stubborn], callback_handler=None)
    assert str(await agent.invoke_async("go")) == "done"
    assert results(agent.messages) == ["went on"]
    assert agent.interrupts == []
    assert str(await agent.invoke_async("and?")) == "again"


async def test_an_exception_that_was_made_up_is_a_failure_like_any_other() -> None:
    from repertory import Interrupt

    made_up = InterruptException(Interrupt(id="mine", name="mine", reason=object()))  # type: ignore[arg-type]

    @tool(effects=False)
    async def ask() -> str:
        """Ask in its own way."""
        raise made_up

    def gate(event: BeforeToolCallEvent) -> None:
        if event.tool_use["name"] == "post":
            raise made_up

    office = Office()
    agent = office.agent(
        use("ask"), "done", use("post"), tools=[*office.tools, ask], hooks=[On(BeforeToolCallEvent, gate)]
    )
    assert str(await agent.invoke_async("go")) == "done"
    assert results(agent.messages)[0].startswith("error: ")
    with pytest.raises(HookFailed, match=r"call event\.interrupt"):
        await agent.invoke_async("post it")
    assert agent.interrupts == []
    check_history(agent.messages)


# --------------------------------------------------------------------------------------------- going on without answers


async def test_a_caller_may_go_on_without_the_answers() -> None:
    office = Office()
    agent = office.agent([use("pay", amount=1), use("look")], "as you like")
    await agent.invoke_async("go")
    result = await agent.invoke_async("never mind", drop_interrupts=True)
    assert str(result) == "as you like"
    assert results(agent.messages) == [f"error: {DROPPED_TEXT}", "seen"]
    assert agent.messages[2]["content"][-1] == {"text": "never mind"}
    assert office.done == ["looked"]
    assert agent.interrupts == []
    check_history(agent.messages)


async def test_without_a_prompt_the_turn_goes_on_and_what_waited_has_failed() -> None:
    office = Office()
    agent = office.agent([use("pay", amount=1), use("wipe", disk="c")], "done")
    asked = await agent.invoke_async("go")
    approve = next(one for one in asked.interrupts if one.name == "approve")
    result = await agent.invoke_async(answering([approve]), drop_interrupts=True)
    assert str(result) == "done"
    assert results(agent.messages) == ["paid 1: yes", f"error: {DROPPED_TEXT}"]
    other = office.agent(use("pay", amount=1), "done")
    await other.invoke_async("go")
    assert str(await other.invoke_async(None, drop_interrupts=True)) == "done"
    assert results(other.messages) == [f"error: {DROPPED_TEXT}"]


async def test_a_step_that_a_hook_asked_about_is_dropped_as_a_whole() -> None:
    office = Office()
    hooks = [On(BeforeToolsEvent, lambda event: event.interrupt("all"))]
    agent = office.agent([use("post"), use("look")], "ok", hooks=hooks)
    await agent.invoke_async("go")
    await agent.invoke_async("no", drop_interrupts=True)
    assert results(agent.messages) == [f"error: {DROPPED_TEXT}"] * 2
    assert office.done == []


async def test_tools_that_never_started_say_so_when_the_question_is_dropped() -> None:
    office = Office()
    agent = office.agent([use("pay", amount=1), use("post")], "ok", tool_execution="sequential")
    await agent.invoke_async("go")
    await agent.invoke_async("no", drop_interrupts=True)
    assert results(agent.messages) == [f"error: {DROPPED_TEXT}", f"error: {NOT_RUN_TEXT}"]


async def test_dropping_where_nothing_waits_changes_nothing() -> None:
    agent = Office().agent("hello")
    assert str(await agent.invoke_async("hi", drop_interrupts=True)) == "hello"


AT_ONCE = 1e-9
"""Less than a clock can tell: the question is over when it is asked."""


async def test_a_late_answer_is_refused_and_the_turn_goes_on_without_it() -> None:
    office, storage = Office(), InMemoryStorage()
    office.expires_s = AT_ONCE
    asked = await office.agent(use("pay", amount=1), storage=storage).invoke_async("go")
    assert asked.interrupts[0].to_dict()["expires_at"] == asked.interrupts[0].expires_at
    agent = office.agent("too bad", storage=storage)
    with pytest.raises(InterruptExpired, match="nobody may answer this any more"):
        await agent.invoke_async(answering(asked.interrupts))
    assert agent.interrupts == list(asked.interrupts)
    assert str(await agent.invoke_async()) == "too bad"
    assert results(agent.messages) == [f"error: {EXPIRED_TEXT}"]
    assert (office.done, agent.interrupts) == ([], [])


async def test_a_prompt_after_the_time_of_a_question_moves_on() -> None:
    office = Office()
    office.expires_s = AT_ONCE
    agent = office.agent([use("wipe", disk="c"), use("look")], "ok")
    await agent.invoke_async("go")
    assert str(await agent.invoke_async("what now?")) == "ok"
    assert results(agent.messages) == [f"error: {EXPIRED_TEXT}", "seen"]
    assert agent.messages[2]["content"][-1] == {"text": "what now?"}


async def test_an_answer_in_time_counts_beside_a_question_that_is_over() -> None:
    office = Office()
    office.expires_s = 3600
    agent = office.agent([use("pay", amount=1), use("ask_twice")], use("look"), "done")
    asked = await agent.invoke_async("go")
    in_time = next(one for one in asked.interrupts if one.name == "approve")
    rest = await agent.invoke_async(answering([in_time]))
    assert names(rest) == ["first"]
    await agent.invoke_async(drop_interrupts=True)
    assert results(agent.messages) == ["paid 1: yes", f"error: {DROPPED_TEXT}", "seen"]


# ----------------------------------------------------------------------------------------------------- around the turn


async def test_hooks_and_streams_are_told_of_a_turn_that_waits() -> None:
    office, recorder = Office(), Recorder()
    agent = office.agent([use("look"), use("pay", amount=1)], "done", hooks=[recorder])
    seen: list[Any] = []
    async with aclosing(agent.stream_async("go")) as events:
        async for event in events:
            seen.append(event)
    (asked,) = [event["tool_interrupt_event"] for event in seen if "tool_interrupt_event" in event]
    assert asked["tool_use"]["name"] == "pay"
    assert seen[-1]["result"].interrupts == asked["interrupts"]
    ended = recorder.of(AfterInvocationEvent)
    assert [event.result.stop_reason for event in ended] == ["interrupt"]
    assert recorder.order[-5:] == ["BeforeToolCall", "BeforeToolCall", "AfterToolCall", "AfterTools", "AfterInvocation"]
    await agent.invoke_async(answering(asked["interrupts"]))
    assert recorder.order.count("AfterToolCall") == 2


async def test_cancelling_wins_over_asking() -> None:
    @tool
    async def slow() -> str:
        """Take a while."""
        await anyio.sleep(10)
        return "done"

    office = Office()
    agent = office.agent([use("pay", amount=1), use("slow")], "well", tools=[*office.tools, slow])
    async with agent, anyio.create_task_group() as group:
        group.start_soon(agent.invoke_async, "go")
        await anyio.sleep(5)
        agent.cancel()
    assert agent.interrupts == []
    assert all(text.startswith("error: ") for text in results(agent.messages))
    check_history(agent.messages)
    assert str(await agent.invoke_async("and?")) == "well"


async def test_a_call_that_was_cancelled_behind_its_tools_does_not_wait_either() -> None:
    office = Office()

    @tool(effects=False)
    async def stop(tool_context: ToolContext) -> str:
        """Stop."""
        tool_context.agent.cancel(after_current_tools=True)
        return "stopping"

    agent = office.agent([use("stop"), use("pay", amount=1)], tools=[*office.tools, stop])
    result = await agent.invoke_async("go")
    assert (result.stop_reason, agent.interrupts) == ("cancelled", [])
    check_history(agent.messages)


async def test_who_steered_into_a_turn_that_waits_is_told_that_it_waits() -> None:
    office, errors = Office(), list[RepertoryError]()

    @tool(effects=False)
    async def slow() -> str:
        """Take a while."""
        await anyio.sleep(10)
        return "done"

    agent = office.agent([use("pay", amount=1), use("slow")], "well", tools=[*office.tools, slow])

    async def steer() -> None:
        await anyio.sleep(5)
        with pytest.raises(InterruptsWaiting) as caught:
            await agent.invoke_async("and be quick", busy="steer")
        errors.append(caught.value)

    async with agent, anyio.create_task_group() as group:
        group.start_soon(steer)
        assert names(await agent.invoke_async("go")) == ["approve"]
    assert len(errors) == 1


@pytest.mark.parametrize("record", [True, False])
async def test_a_direct_tool_call_cannot_ask(record: bool) -> None:
    """Strands behaviour, with an error of ours."""
    office = Office()
    agent = office.agent("hello")
    with pytest.raises(Invalid, match="cannot raise interrupt in direct tool call"):
        await agent.tool.pay.invoke_async(amount=1, record_direct_tool_call=record)
    with pytest.raises(Invalid, match="cannot raise interrupt in direct tool call"):
        await agent.tool.wipe.invoke_async(disk="c", record_direct_tool_call=record)
    assert (office.done, agent.interrupts) == ([], [])
    check_history([*agent.messages])
    assert str(await agent.invoke_async("hi")) == "hello"


async def test_no_direct_tool_call_while_a_person_is_asked() -> None:
    office = Office()
    agent = office.agent(use("pay", amount=1), "done")
    asked = await agent.invoke_async("go")
    with pytest.raises(Invalid, match="cannot directly call tool during interrupt"):
        await agent.tool.look.invoke_async()
    assert str(await agent.invoke_async(answering(asked.interrupts))) == "done"


async def test_a_hook_may_answer_and_go_on_in_the_same_call() -> None:
    office = Office()

    def answer(event: AfterInvocationEvent) -> None:
        if event.result is not None and event.result.stop_reason == "interrupt":
            event.resume = answering(event.result.interrupts)

    agent = office.agent(use("ask_twice"), "done", hooks=[On(AfterInvocationEvent, answer)])
    assert str(await agent.invoke_async("go")) == "done"
    assert results(agent.messages) == ["yes yes"]


async def test_the_token_of_a_turn_that_waits_names_it_until_its_answer() -> None:
    office, storage = Office(), InMemoryStorage()
    asked = await office.agent(use("pay", amount=1), storage=storage).invoke_async("go", idempotency_token="t")
    again = await office.agent(storage=storage).invoke_async("go", idempotency_token="t")
    assert again.interrupts == asked.interrupts
    await office.agent("done", storage=storage).invoke_async(answering(asked.interrupts))
    for _ in range(2):
        result = await office.agent(storage=storage).invoke_async("go", idempotency_token="t")
        assert (str(result), result.replayed) == ("done", True)
    assert office.done == ["paid 1: yes"]


async def test_structured_output_is_given_when_the_turn_has_its_answers() -> None:
    import pydantic

    class Report(pydantic.BaseModel):
        """A report."""

        text: str

    office = Office()
    agent = office.agent([use("pay", amount=1), use("Report", text="paid")], structured_output_model=Report)
    asked = await agent.invoke_async("go")
    assert (asked.stop_reason, asked.structured_output) == ("interrupt", None)
    result = await agent.invoke_async(answering(asked.interrupts))
    assert result.structured_output == Report(text="paid")


async def test_sessions_of_a_runtime_wait_while_they_are_at_rest() -> None:
    office = Office()
    spec = AgentSpec(model=ScriptedModel([use("pay", amount=1), "done"]), tools=office.tools)
    async with Runtime(idle_timeout_s=1) as runtime:
        session = runtime.agent(spec).session("ann")
        asked = await session.invoke("go")
        await anyio.sleep(100)
        assert await session.interrupts() == list(asked.interrupts)
        with pytest.raises(InterruptsWaiting):
            await session.invoke("hello?")
        assert str(await session.invoke(answering(asked.interrupts))) == "done"
        assert await session.interrupts() == []
    assert office.done == ["paid 1: yes"]


async def test_state_that_was_set_before_asking_is_kept(rng: random.Random) -> None:
    storage = InMemoryStorage()
    number = rng.randint(1, 9)

    @tool
    async def count(tool_context: ToolContext) -> str:
        """Count."""
        tool_context.state.set("asked", number)
        return str(tool_context.interrupt("go on?"))

    office = Office()
    await office.agent(use("count"), storage=storage, tools=[count]).invoke_async("go")
    later = office.agent("done", storage=storage, tools=[count])
    await later.ready()
    assert later.state.get("asked") == number


# ---------------------------------------------------------------------------------------- snapshots, rewinds, redaction


async def test_a_snapshot_holds_what_waits_and_another_agent_goes_on_with_it() -> None:
    office = Office()
    office.expires_s = 3600
    agent = office.agent([use("pay", amount=1), use("look"), use("wipe", disk="c")])
    asked = await agent.invoke_async("go")
    rest = await agent.invoke_async(answering(asked.interrupts[:1]))
    snapshot = json.loads(json.dumps(agent.save_snapshot()))
    other = office.agent("done")
    other.load_snapshot(snapshot)
    assert other.interrupts == list(rest.interrupts)
    with pytest.raises(InterruptsWaiting):
        await other.invoke_async("hello?")
    assert other._life.read_model.pending_tools == agent._life.read_model.pending_tools
    assert str(await other.invoke_async(answering(rest.interrupts))) == "done"
    assert results(other.messages) == ["paid 1: yes", "seen", "wiped c"]
    assert office.done.count("looked") == 1
    assert [attempt for _, attempt in office.keys] == [1, 2]


async def test_a_snapshot_from_before_the_question_has_no_question() -> None:
    office = Office()
    agent = office.agent("hello", use("pay", amount=1), "well")
    await agent.invoke_async("hi")
    snapshot = agent.save_snapshot()
    await agent.invoke_async("go")
    agent.load_snapshot(snapshot)
    assert agent.interrupts == []
    assert str(await agent.invoke_async("and you?")) == "well"


async def test_a_rewind_forgets_what_was_asked() -> None:
    office, storage = Office(), InMemoryStorage()
    agent = office.agent("hello", use("pay", amount=1), "well", storage=storage)
    await agent.invoke_async("hi")
    stored = (await Sessions(JournalSessions(storage)).show("s")).agents["default"]
    answered_at = stored.messages[-1].seq
    await agent.invoke_async("go")
    assert agent.interrupts != []
    await Sessions(JournalSessions(storage)).rewind("s", answered_at)
    again = office.agent("well", storage=storage)
    await again.ready()
    assert again.interrupts == []
    assert str(await again.invoke_async("and you?")) == "well"


async def test_an_earlier_message_may_be_redacted_while_the_turn_waits() -> None:
    office, storage = Office(), InMemoryStorage()
    await office.agent("hello", storage=storage).invoke_async("my secret is sesame")
    asked = await office.agent(use("pay", amount=1), storage=storage).invoke_async("go")
    sessions = Sessions(JournalSessions(storage))
    first = (await sessions.show("s")).agents["default"].messages[0]
    await sessions.redact("s", first.seq, "[gone]")
    agent = office.agent("done", storage=storage)
    await agent.ready()
    assert agent.interrupts == list(asked.interrupts)
    assert str(await agent.invoke_async(answering(asked.interrupts))) == "done"
    assert "sesame" not in str(agent.messages)


# --------------------------------------------------------------------------------------------- what a question is about


@pytest.mark.real_time
@pytest.mark.parametrize("stored", [True, False])
async def test_a_question_says_its_tool_its_input_and_its_session_and_no_other_of_the_place_has_its_id(
    tmp_path: Path, stored: bool
) -> None:
    place = SQLiteSessions(tmp_path / "a.db") if stored else None
    asks = {"toolUse": {"name": "pay", "input": {"amount": 5}, "toolUseId": "same"}}

    @tool
    async def pay(amount: int, tool_context: ToolContext) -> str:
        """Pay."""
        return str(tool_context.interrupt("may I", reason=amount))

    def payer() -> Agent:
        model = ScriptedModel([asks], loop=True)
        return Agent(model, name="payer", description="Pays.", tools=[pay], callback_handler=None)

    def boss() -> AgentSpec:
        order = {"toolUse": {"name": "payer", "input": {"input": "pay"}, "toolUseId": "same"}}
        return AgentSpec(name="boss", model=ScriptedModel([order], loop=True), tools=[payer().as_tool()])

    spec = AgentSpec(name="clerk", model=ScriptedModel([asks], loop=True), tools=[pay])
    asked: dict[str, Any] = {}
    async with Runtime(sessions=place) as runtime:
        clerk, head = runtime.agent(spec), runtime.agent(boss())
        team = runtime.orchestrator("team", lambda _: Graph({"in": payer()}, id="team"))
        for session in (clerk.session("one"), clerk.session("two"), head.session("three"), team.session("four")):
            (question,) = (await session.invoke("go")).interrupts
            assert await session.interrupts() == [question]
            asked[str(question.session_id)] = question
    assert list(asked) == ["one", "two", "three", "four"]
    assert {(each.tool, each.input["amount"], each.reason) for each in asked.values()} == {("pay", 5, 5)}
    assert len({each.id for each in asked.values()}) == 4
    if place is None:
        return
    async with Runtime(sessions=place) as runtime:
        again = [runtime.agent(spec).session("one"), runtime.agent(boss()).session("three")]
        found = [await session.interrupts() for session in again]
        found.append(
            await runtime.orchestrator("team", lambda _: Graph({"in": payer()}, id="team")).session("four").interrupts()
        )
    assert found == [[asked["one"]], [asked["three"]], [asked["four"]]]
