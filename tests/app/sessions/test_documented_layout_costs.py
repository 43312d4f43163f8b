"""What a session in the documented layout costs, counted in requests."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest

from repertory import Agent, NullConversationManager, ScriptedModel, SlidingWindowConversationManager, tool
from repertory.backends.sessions.documents.journal import HEAD_BYTES_MAX, TreeSettings
from tests.app.sessions.tree_sessions import TreeSessions

pytestmark = pytest.mark.anyio


@tool
def add(a: int, b: int) -> str:
    """Add two numbers."""
    return str(a + b)


def use(number: int) -> dict[str, Any]:
    return {"toolUse": {"name": "add", "input": {"a": number, "b": 1}}}


def puts(*numbers: int) -> list[str]:
    return [f"put message_{number}.json" for number in numbers]


def agent(place: TreeSessions, *replies: Any, **options: Any) -> Agent:
    model = ScriptedModel(list(replies), loop=True)
    return Agent(model, tools=[add], callback_handler=None, session_manager=place, **options)


async def test_a_turn_costs_a_put_per_message_and_a_look_at_the_lease_per_step_of_tools() -> None:
    place = TreeSessions()
    async with agent(place, "a", "b", use(1), "c", use(1), use(2), use(3), "d", "e", "f") as it:
        await it.ready()
        assert place.take_requests() == ["get repertory.json", "put session.json", "put repertory.json", "list "]
        await it.invoke_async("the first")
        assert place.take_requests() == ["put agent.json", *puts(0, 1)]
        await it.invoke_async("a plain one")
        assert place.take_requests() == puts(2, 3)
        await it.invoke_async("a tool")
        assert place.take_requests() == [*puts(4, 5), "get repertory.json", *puts(6, 7)]
        await it.invoke_async("three tools, one after the other")
        steps = [[*puts(at), "get repertory.json", *puts(at + 1)] for at in (9, 11, 13)]
        assert place.take_requests() == [*puts(8), *itertools.chain(*steps), *puts(15)]
        it.state.set("n", 1)
        await it.invoke_async("a change of state")
        assert place.take_requests() == [*puts(16, 17), "put agent.json"]
        await it.invoke_async("and no change")
        assert place.take_requests() == puts(18, 19)
    assert place.take_requests() == ["put repertory.json"]


async def test_tools_that_run_at_once_cost_a_put_more_when_some_end_early() -> None:
    place = TreeSessions()
    async with agent(place, [use(1), use(2), use(3)], "done") as it:
        await it.invoke_async("three at once")
        asked = place.take_requests()
    assert len([request for request in asked if "rows_" in request]) <= 2
    assert [request for request in asked if "message_" in request] == puts(0, 1, 2, 3)


@pytest.mark.parametrize("turns", [2, 100])
async def test_opening_costs_four_requests_however_much_is_shown(turns: int) -> None:
    place = TreeSessions()
    everything = NullConversationManager()
    async with agent(place, "ok", conversation_manager=everything) as it:
        for number in range(turns):
            await it.invoke_async(f"turn {number}")
    place.take_requests()
    async with agent(place, "ok", conversation_manager=everything) as it:
        await it.ready()
        asked = place.take_requests()
        assert sorted(asked[2:]) == ["get agent.json", f"get message_{2 * turns}.json"]
        assert asked[:2] == ["get repertory.json", "put repertory.json"]
        assert len(it.messages) == 2 * turns


async def test_a_call_outside_any_block_looks_for_others_messages_and_puts_the_lease_twice() -> None:
    """In a bucket: leases expire there."""
    place = TreeSessions(settings=TreeSettings(prove_s=5.0, renew_every_s=3.0, keep_heads=True))
    it = agent(place, "ok")
    await it.invoke_async("the first")
    for number in (2, 4):
        place.take_requests()
        await it.invoke_async("one more")
        asked = place.take_requests()
        assert sorted(asked[:2]) == ["get agent.json", f"get message_{number}.json"]
        assert asked[2:] == ["put repertory.json", *puts(number, number + 1), "put repertory.json"]
    await it.shutdown_async()
    assert place.take_requests() == []


async def test_a_moving_window_is_told_to_others_once_at_the_end() -> None:
    place = TreeSessions()
    async with agent(place, "ok", conversation_manager=SlidingWindowConversationManager(window_size=4)) as it:
        for number in range(5):
            await it.invoke_async(f"turn {number}")
        place.take_requests()
        await it.invoke_async("one more")
        assert place.take_requests() == puts(10, 11)
    assert place.take_requests() == ["put agent.json", "put repertory.json"]


async def test_the_conversation_managers_name_is_told_with_the_first_answer() -> None:
    """In its record, and to others when the session is given up; then it is known."""
    place = TreeSessions()
    for opened in (True, False):
        async with agent(place, "ok", conversation_manager=NullConversationManager()) as it:
            await it.ready()
            place.take_requests()
            await it.invoke_async("one")
            assert place.take_requests() == (["put agent.json", *puts(0, 1)] if opened else puts(4, 5))
            await it.invoke_async("two")
            assert place.take_requests() == (puts(2, 3) if opened else puts(6, 7))
        assert place.take_requests() == ["put agent.json", "put repertory.json"][0 if opened else 1 :]
    body = next(kept.body for key, kept in place.shelf.objects.items() if key.endswith("agent.json"))
    assert json.loads(body)["conversation_manager_state"]["__name__"] == "NullConversationManager"


async def test_a_window_that_is_too_large_for_one_object_is_read_from_its_documents() -> None:
    place = TreeSessions()
    async with agent(place, "x" * (HEAD_BYTES_MAX // 2)) as it:
        for text in ("one", "two", "three"):
            await it.invoke_async(text)
    place.take_requests()
    async with agent(place) as it:
        await it.ready()
        assert "list " in place.take_requests()
        assert len(it.messages) == 6


async def test_after_a_crash_the_window_alone_is_read() -> None:
    place = TreeSessions()
    window = SlidingWindowConversationManager(window_size=20)
    async with agent(place, "ok", conversation_manager=window) as it:
        for number in range(150):
            await it.invoke_async(f"turn {number}")
        place.take_requests()
        next_process = place.after_death()
        async with agent(next_process, "ok", conversation_manager=window) as other:
            await other.ready()
            asked = next_process.take_requests()
            assert len(other.messages) == 20
    assert len([request for request in asked if request.startswith("get message_")]) <= 48
