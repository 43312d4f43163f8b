"""Agents that are tools of other agents and ask a person: the outer turn waits, and passes the answers on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest

from repertory import Agent, InMemoryStorage, JournalSessionManager, ScriptedModel
from repertory.backends.tools.function_tool import schema_class
from repertory.core.interrupts import agent_prefix
from repertory.core.turns.turn_start import DROPPED_TEXT
from tests.app.orchestration.interrupted_agents import Office, answering, names, results
from tests.app.orchestration.recorder import use
from tests.service.histories import check_history

pytestmark = pytest.mark.anyio

schema_class()  # Loading it uses a thread, which a clock that jumps would pass.


def inner_of(office: Office, *replies: Any, **options: Any) -> Agent:
    return office.agent(*replies, name="clerk", **options)


def outer_of(inner: Agent, *replies: Any, preserve_context: bool, **options: Any) -> Agent:
    tools = [inner.as_tool(preserve_context=preserve_context)]
    return Agent(ScriptedModel(list(replies)), tools=tools, callback_handler=None, **options)


ASK = use("clerk", input="pay it")


@pytest.mark.parametrize("preserve_context", [True, False])
async def test_an_inner_question_parks_the_outer_turn_and_its_answer_is_passed_on(preserve_context: bool) -> None:
    office = Office()
    inner = inner_of(office, use("pay", amount=5), "it is paid")
    outer = outer_of(inner, ASK, "done", preserve_context=preserve_context)
    asked = await outer.invoke_async("go")
    (interrupt,) = asked.interrupts
    assert interrupt.id.startswith(agent_prefix("tooluse_1") + "v1:tool_call:tooluse_1:")
    assert (interrupt.name, interrupt.reason) == ("approve", {"amount": 5})
    assert str(await outer.invoke_async(answering(asked.interrupts))) == "done"
    assert results(outer.messages) == ["it is paid"]
    assert office.done == ["paid 5: yes"]
    assert len(inner.messages) == 4


async def test_an_inner_agent_may_ask_several_times() -> None:
    office = Office()
    inner = inner_of(office, [use("ask_twice"), use("pay", amount=1)], use("wipe", disk="c"), "all done")
    outer = outer_of(inner, ASK, "done", preserve_context=False)
    result = await outer.invoke_async("go")
    rounds: list[list[str]] = []
    while result.stop_reason == "interrupt":
        rounds.append(sorted(names(result)))
        result = await outer.invoke_async(answering(result.interrupts))
    assert rounds == [["approve", "first"], ["second"], ["wipe"]]
    assert results(outer.messages) == ["all done"]
    assert sorted(office.done) == ["paid 1: yes", "wiped c", "yes yes"]


async def test_two_calls_at_once_ask_each_for_itself() -> None:
    office = Office()
    inner = inner_of(office, use("pay", amount=1), use("pay", amount=1), "one", "other")
    outer = outer_of(inner, [ASK, use("clerk", input="and this")], "done", preserve_context=False)
    asked = await outer.invoke_async("go")
    assert names(asked) == ["approve", "approve"]
    assert len({interrupt.id for interrupt in asked.interrupts}) == 2
    assert str(await outer.invoke_async(answering(asked.interrupts))) == "done"
    assert sorted(results(outer.messages)) == ["one", "other"]
    assert office.done == ["paid 1: yes", "paid 1: yes"]


@pytest.mark.parametrize("preserve_context", [True, False])
async def test_after_a_restart_an_agent_that_remembers_goes_on_and_so_does_a_copy(preserve_context: bool) -> None:
    office, storage = Office(), InMemoryStorage()

    def outer(inner_replies: list[Any], outer_reply: Any) -> Agent:
        session = JournalSessionManager("inner", storage=storage)
        inner = inner_of(office, *inner_replies, session_manager=session)
        manager = JournalSessionManager("outer", storage=storage)
        return outer_of(inner, outer_reply, preserve_context=preserve_context, session_manager=manager)

    asked = await outer([use("pay", amount=5)], ASK).invoke_async("go")
    agent = outer(["it is paid"], "done")
    assert str(await agent.invoke_async(answering(asked.interrupts))) == "done"
    assert (results(agent.messages), office.done) == (["it is paid"], ["paid 5: yes"])
    check_history(agent.messages)


async def test_an_outer_turn_that_goes_on_without_an_answer_leaves_the_inner_one_waiting() -> None:
    office = Office()
    inner = inner_of(office, use("pay", amount=5), "as you like")
    outer = outer_of(inner, ASK, ASK, "done", preserve_context=True)
    await outer.invoke_async("go")
    assert str(await outer.invoke_async(None, drop_interrupts=True)) == "done"
    first, second = results(outer.messages)
    assert first == f"error: {DROPPED_TEXT}"
    assert "a person is to answer first" in second
    assert names_of(inner) == ["approve"]
    assert str(await inner.invoke_async("never mind", drop_interrupts=True)) == "as you like"


def names_of(agent: Agent) -> list[str]:
    return [interrupt.name for interrupt in agent.interrupts]


@pytest.mark.real_time
async def test_turns_that_wait_on_disk_and_in_folders_go_on_after_a_restart(tmp_path: Path) -> None:
    from repertory import FileSessionManager, FileStorage, SQLiteSessionManager

    managers: list[Any] = [
        lambda: SQLiteSessionManager("s", path=tmp_path / "a.db"),
        lambda: FileSessionManager("s", tmp_path / "tree"),
        lambda: JournalSessionManager("s", storage=FileStorage(tmp_path / "journal")),
    ]
    for manager in managers:
        office = Office()
        uses = [use("pay", amount=1), use("post"), use("ask_twice"), use("wipe", disk="c")]
        with anyio.fail_after(30):
            agent = office.agent(uses, session_manager=manager())
            result = await agent.invoke_async("go")
            while result.stop_reason == "interrupt":
                agent = office.agent("done", session_manager=manager())
                await agent.ready()
                assert {one.id for one in result.interrupts} == {one.id for one in agent.interrupts}
                result = await agent.invoke_async(answering(agent.interrupts[:1]))
            assert results(agent.messages) == ["paid 1: yes", "posted", "yes yes", "wiped c"]
        assert sorted(office.done) == ["paid 1: yes", "posted", "wiped c", "yes yes"]
        assert [attempt for _, attempt in office.keys] == [1, 2]
