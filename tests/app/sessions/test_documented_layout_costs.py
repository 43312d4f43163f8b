"""What a session in the documented layout costs, counted in requests."""

from __future__ import annotations

import json
from typing import Any

import pytest

from repertory import Agent, NullConversationManager, ScriptedModel, SlidingWindowConversationManager, tool
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


async def test_a_turn_costs_a_put_per_message_beside_its_commits() -> None:
    place = TreeSessions()
    async with agent(place, "a", "b", use(1), "c") as it:
        await it.ready()
        opening = place.take_requests()
        assert opening[:3] == ["get head", "list ", "put head"]
        assert sorted(opening[3:]) == ["get agent.json", "list "]
        await it.invoke_async("the first")
        asked = place.take_requests()
        commits = [request for request in asked if request.startswith("put 00")]
        written = [request for request in asked if request.startswith("put") and request not in commits]
        assert sorted(written) == ["put agent.json", *puts(0, 1), "put session.json"]
        assert asked.index(commits[0]) < asked.index("put session.json"), "a journal begins before its documents"
        for text, messages in (("a plain one", puts(2, 3)), ("a tool", puts(4, 5, 6, 7))):
            await it.invoke_async(text)
            asked = place.take_requests()
            looks = [request for request in asked if "message" in request and request not in messages]
            assert sorted(request for request in asked if "message" in request) == sorted([*messages, *looks])
            # On a busy machine more than a second passes between two turns, and one look for others is due.
            assert looks in ([], [messages[0].replace("put", "get")])
            assert len([request for request in asked if request.startswith("put 00")]) <= len(messages) - 1
    assert place.take_requests() == ["put head"]


@pytest.mark.parametrize("turns", [2, 100])
async def test_opening_costs_as_many_requests_however_much_is_shown(turns: int) -> None:
    place = TreeSessions()
    everything = NullConversationManager()
    async with agent(place, "ok", conversation_manager=everything) as it:
        for number in range(turns):
            await it.invoke_async(f"turn {number}")
    place.take_requests()
    async with agent(place, "ok", conversation_manager=everything) as it:
        await it.ready()
        asked = place.take_requests()
        assert len(it.messages) == 2 * turns
    assert asked[:2] == ["get head", "put head"]
    assert [each for each in sorted(asked[2:]) if not each.startswith("get 1-")] == ["get agent.json", "list "]


async def test_a_call_outside_any_block_is_two_heads_two_messages_and_a_look_for_others() -> None:
    place = TreeSessions()
    it = agent(place, "ok")
    await it.invoke_async("the first")
    for number in (2, 4):
        place.take_requests()
        await it.invoke_async("one more")
        asked = place.take_requests()
        assert asked[:2] == [f"get message_{number}.json", "put head"]
        assert sorted(asked[2:]) == ["put head", *puts(number, number + 1)]
    await it.shutdown_async()
    assert place.take_requests() == []


async def test_what_is_uploaded_does_not_grow_with_the_conversation() -> None:
    """Two heads with what opening needs, and two messages."""
    place = TreeSessions()
    it = agent(place, "ok")
    sizes: list[int] = []
    for _ in range(150):
        before = dict(place.shelf.objects)
        await it.invoke_async("one more")
        changed = {key: kept for key, kept in place.shelf.objects.items() if before.get(key) != kept}
        sizes.append(sum(len(kept.body) for kept in changed.values()))
    assert max(sizes[100:]) <= 1.1 * max(sizes[50:100])
    await it.shutdown_async()


async def test_a_moving_window_is_told_to_others_with_the_turn_that_moves_it() -> None:
    place = TreeSessions()
    async with agent(place, "ok", conversation_manager=SlidingWindowConversationManager(window_size=4)) as it:
        for number in range(5):
            await it.invoke_async(f"turn {number}")
        place.take_requests()
        await it.invoke_async("one more")
        asked = place.take_requests()
        assert sorted(each for each in asked if "message" in each) == puts(10, 11)
        assert "put agent.json" in asked
    body = next(kept.body for key, kept in place.shelf.objects.items() if key.endswith("agent.json"))
    assert json.loads(body)["conversation_manager_state"]["removed_message_count"] == 8


async def test_after_a_crash_the_documents_behind_the_mark_alone_are_read() -> None:
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
    assert len([request for request in asked if request.startswith("get message_")]) <= 2
