"""What other programs write into a session in AgentCore Memory, and what is gone from it."""

from __future__ import annotations

import json
import logging
from typing import Any

import anyio
import pytest

from repertory.backends.ports import Position
from repertory.backends.sessions.agentcore.ownership import AgentCoreSettings
from repertory.backends.sessions.agentcore.reading import EXPIRY_S_MIN
from repertory.core.journal.records import StateChanged
from repertory.errors import CorruptJournal, LeaseLost
from tests.backends.sessions.agentcore_memory import ACTOR, FakeMemory
from tests.backends.sessions.agentcore_writer import (
    Writer,
    bytes_of,
    everything,
    kinds,
    opened,
    own,
    put,
    put_agent,
    said,
)

pytestmark = pytest.mark.anyio


@pytest.fixture
def memory() -> FakeMemory:
    return FakeMemory()


# ---------------------------------------------------------------------------------------------------- what others write


async def test_messages_of_others_are_taken_in_once(memory: FakeMemory) -> None:
    put(memory, [{"blob": json.dumps({"session_id": "s"})}], stateType="SESSION")
    put_agent(memory, colour="blue")
    put(memory, [said("user", "theirs"), said("assistant", "answer")])
    put(memory, [{"blob": json.dumps([said("user", "long")["conversational"]["content"]["text"], "user"])}])
    for number in range(3):
        async with opened(memory) as store:
            writer = await own(store)
            assert writer.texts[:3] == ["theirs", "answer", "long"]
            assert writer.appender.fold.state == {"colour": "blue"}
            await writer.say(f"ours {number}")
            await writer.release()
    assert await everything(memory) == ["theirs", "answer", "long", "ours 0", "ours 1", "ours 2"]
    assert kinds(memory).count("theirs") == 4


async def test_texts_of_other_tools_are_messages_and_what_nobody_can_read_is_left_out(
    memory: FakeMemory, caplog: pytest.LogCaptureFixture
) -> None:
    def bare(role: str, text: str) -> dict[str, Any]:
        return {"conversational": {"content": {"text": text}, "role": role}}

    put(memory, [bare("USER", "plain"), bare("ASSISTANT", "answer"), bare("TOOL", "result"), bare("USER", '{"a": 1}')])
    put(
        memory,
        [{"blob": {"any": "object"}}, {"blob": "[1, 2"}, {"json": {"content": [1]}}, {"blob": json.dumps([1, 2])}],
    )
    put(memory, [])
    with caplog.at_level(logging.WARNING):
        async with opened(memory) as store:
            assert (await own(store)).texts == ["plain", "answer"]
    assert sum("cannot be read" in record.message for record in caplog.records) == 2


async def test_how_much_others_show_is_taken_over(memory: FakeMemory) -> None:
    for number in range(6):
        put(memory, [said("user" if number % 2 == 0 else "assistant", f"message {number}")])
    put_agent(memory, removed=4)
    async with opened(memory) as store:
        writer = await own(store)
        assert writer.texts == ["message 4", "message 5"]
        await writer.release()
    assert len(await everything(memory)) == 6
    records = [event for event in memory.events("s") if "agentId" in event.fields.get("metadata", {})]
    assert json.loads(records[-1].texts[0])["conversation_manager_state"]["removed_message_count"] == 4


async def test_messages_belong_to_the_agent_whose_record_follows_them(memory: FakeMemory) -> None:
    put(memory, [said("user", "for a")])
    put_agent(memory, "a")
    put(memory, [said("user", "for b")])
    put_agent(memory, "b")
    put(memory, [said("user", "for b as well")])
    for _ in range(2):
        async with opened(memory) as store:
            lease, _ = await store.acquire("s")
            found = {}
            for agent_id in ("b", "a", "c"):
                rows = await store.load("s", agent_id)
                found[agent_id] = Writer(store, lease, rows, agent_id).texts
            assert found == {"a": ["for a"], "b": ["for b", "for b as well"], "c": []}


async def test_what_was_added_meanwhile_is_taken_in_before_the_next_turn(memory: FakeMemory) -> None:
    """A proof is refused, so that the session is opened anew; a commit is not, since its turn has been had."""
    async with opened(memory) as store:
        writer = await own(store)
        await writer.say("ours", "yes")
        put(memory, [said("user", "theirs"), said("assistant", "answer")])
        assert isinstance(await writer.say("meanwhile", "indeed"), Position)
        assert isinstance(await writer.append(), LeaseLost)
        assert isinstance(await writer.say("refused"), LeaseLost)
        writer = await own(store)
        assert writer.texts == ["ours", "yes", "meanwhile", "indeed", "theirs", "answer"]
        assert await writer.append() == Position(agent_id="", seq=0)
        assert isinstance(await writer.say("more", "much"), Position)
        put_agent(memory, colour="red")
        assert isinstance(await writer.append(), LeaseLost)
        writer = await own(store)
        assert writer.appender.fold.state == {"colour": "red"}
    assert await everything(memory) == ["ours", "yes", "meanwhile", "indeed", "theirs", "answer", "more", "much"]


async def test_what_was_added_is_met_however_much_was_said_since(memory: FakeMemory) -> None:
    async with opened(memory, AgentCoreSettings(prove_s=1000.0)) as store:
        writer = await own(store)
        put(memory, [said("user", "theirs")])
        for number in range(150):
            await writer.say(f"question {number}", "answer")
        assert isinstance(await writer.append(), LeaseLost)
        assert "theirs" in (await own(store)).texts


async def test_an_event_with_an_older_time_is_met_as_well(memory: FakeMemory) -> None:
    async with opened(memory) as store:
        writer = await own(store)
        await writer.say("ours", "yes")
        put(memory, [said("user", "late")], at_ms=1_690_000_000_000)
        assert isinstance(await writer.append(), LeaseLost)
        assert (await own(store)).texts == ["ours", "yes", "late"]


# --------------------------------------------------------------------------------------------------------- what is gone


async def test_what_has_expired_leaves_a_session_that_goes_on(memory: FakeMemory) -> None:
    """All but the last messages are gone: the state and what is left of the conversation are there, and stay so."""
    async with opened(memory) as store:
        writer = await own(store)
        await writer.set(colour="blue")
        for number in range(10):
            await writer.say(f"question {number}", f"answer {number}")
        await writer.set(size=3)
        await writer.release()
    places = [
        place for place, event in enumerate(memory.events("s")) if any("question 7" in text for text in event.texts)
    ]
    memory.expire("s", places[0])
    left = ["question 8", "answer 8", "question 9", "answer 9"]
    for number in range(3):
        async with opened(memory) as store:
            writer = await own(store)
            assert writer.texts[-len(left) :] == left
            assert writer.texts[0].startswith("question")
            assert writer.appender.fold.state["colour"] == "blue"
            more = [f"more {number}", f"yes {number}"]
            assert isinstance(await writer.say(*more), Position)
            left += more
            shown = writer.texts
            await writer.release()
        async with opened(memory) as store:
            assert (await own(store)).texts == shown
    assert (await everything(memory))[-len(left) :] == left


@pytest.mark.parametrize("kept", [0, 1])
async def test_a_session_of_which_nothing_is_left_begins_anew(memory: FakeMemory, kept: int) -> None:
    async with opened(memory) as store:
        writer = await own(store)
        await writer.say("question", "answer")
        await writer.append(writer.appender.append(StateChanged(at=5.0, set={"n": 1})))
        await writer.release()
    rows = [place for place, kind in enumerate(kinds(memory)) if kind == "rows"]
    memory.expire("s", rows[-1] + 1 - kept)
    await anyio.sleep(EXPIRY_S_MIN)
    async with opened(memory) as store:
        writer = await own(store)
        assert writer.texts == []
        assert isinstance(await writer.say("anew", "yes"), Position)
        await writer.release()
    async with opened(memory) as store:
        assert (await own(store)).texts == ["anew", "yes"]


async def test_a_session_that_is_too_young_to_have_expired_is_not_taken_for_a_new_one(memory: FakeMemory) -> None:
    async with opened(memory) as store:
        writer = await own(store)
        await writer.say("question", "answer")
        await writer.release()
    memory.expire("s", len(memory.events("s")) - 1)
    assert kinds(memory) == ["free"]
    async with opened(memory) as store:
        with pytest.raises(CorruptJournal, match="events at the end were removed"):
            await store.load("s", "default")
        with pytest.raises(CorruptJournal, match="events at the end were removed"):
            await own(store)


async def test_a_message_that_others_have_taken_back_is_taken_back_here(
    memory: FakeMemory, caplog: pytest.LogCaptureFixture
) -> None:
    theirs = put(memory, [said("user", "SECRET")])
    put(memory, [said("assistant", "answer")])
    async with opened(memory) as store:
        await (await own(store)).release()
    del memory.sessions[ACTOR, "s"][theirs]
    assert await everything(memory) == ["(This message was lost.)", "answer"]
    for _ in range(2):
        async with opened(memory) as store:
            writer = await own(store)
            assert writer.texts == ["(This message was lost.)", "answer"]
            assert "SECRET" not in bytes_of(memory)
            await writer.release()
    assert sum("a message is lost" in record.message for record in caplog.records) == 1


async def test_an_event_that_somebody_deleted_is_told_and_leaves_a_stand_in_after_a_repair(memory: FakeMemory) -> None:
    async with opened(memory) as store:
        writer = await own(store)
        for number in range(3):
            await writer.say(f"question {number}")
            await writer.say(f"answer {number}")
        await writer.release()
    (gone,) = [event for event in memory.events("s") if any("answer 1" in text for text in event.texts)]
    del memory.sessions[ACTOR, "s"][gone.fields["eventId"]]
    async with opened(memory) as store:
        for call in (own(store), store.load("s", "default"), store.load("s", "default", whole=True)):
            with pytest.raises(CorruptJournal, match="agent default row 4"):
                await call
        await store.aclose()
    async with opened(memory) as store:
        (info,) = await store.sessions()
        assert info.damaged
        assert [damage.where for damage in await store.examine("s")] == ["agent default row 4"]
        await store.set_aside("s", (await store.salvage("s")).rows)
        assert list(await store.examine("s")) == []
    wanted = ["question 0", "answer 0", "question 1", "(This message was lost.)", "question 2", "answer 2"]
    for _ in range(2):
        async with opened(memory) as store:
            writer = await own(store)
            assert writer.texts == wanted
            await writer.say("more", "yes")
            wanted += ["more", "yes"]
            await writer.release()
