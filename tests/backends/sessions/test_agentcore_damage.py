"""Damage to the events of a session in AgentCore Memory: it is named, set aside, and never taken for what was said.

Random damage is in `tests/simulation/damaged_documents.py`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import anyio
import pytest

from repertory.backends.sessions.agentcore.layout import agent_value, aside_name, session_name
from repertory.backends.sessions.agentcore.reading import EXPIRY_S_MIN
from repertory.errors import CorruptJournal
from tests.backends.sessions.agentcore_memory import ACTOR, FakeMemory, StoredEvent
from tests.backends.sessions.agentcore_writer import everything, kinds, opened, own, put, said
from tests.operations.operated_places import AgentCorePlace, Sessions

pytestmark = pytest.mark.anyio


@pytest.fixture
def memory() -> FakeMemory:
    return FakeMemory()


async def talk(memory: FakeMemory, turns: int = 3) -> None:
    async with opened(memory) as store:
        writer = await own(store)
        for number in range(turns):
            await writer.say(f"question {number}", f"answer {number}")
        await writer.release()


def holding(memory: FakeMemory, text: str) -> StoredEvent:
    (event,) = [event for event in memory.events("s") if any(text in each for each in event.texts)]
    return event


def text_of_item(event: StoredEvent) -> None:
    content = event.fields["payload"][0]["conversational"]["content"]
    content["text"] = content["text"].replace("answer", "ANSWER").replace("question", "QUESTION")


def role_of_item(event: StoredEvent) -> None:
    event.fields["payload"][0]["conversational"]["role"] = "ASSISTANT"


def time_of_record(event: StoredEvent) -> None:
    content = event.fields["payload"][0]["conversational"]["content"]
    content["text"] = content["text"].replace("updated_at", "updated_in")


def last_items(event: StoredEvent) -> None:
    del event.fields["payload"][2:]


def blob_alone(event: StoredEvent) -> None:
    event.fields["payload"][1] = {"blob": "{"}


def generation(event: StoredEvent) -> None:
    mark = event.fields["metadata"]["repertory"]
    mark["stringValue"] = mark["stringValue"].replace("rows.1", "rows.2")


def mark_is_cut(event: StoredEvent) -> None:
    event.fields["metadata"]["repertory"]["stringValue"] = "rows"


def mark_is_gone(event: StoredEvent) -> None:
    del event.fields["metadata"]["repertory"]


CHANGES = [text_of_item, role_of_item, time_of_record, last_items, blob_alone, generation, mark_is_cut, mark_is_gone]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
@pytest.mark.parametrize("turn", [0, 1, 2])
async def test_an_event_that_was_changed_is_named_to_everybody(
    memory: FakeMemory, change: Callable[[StoredEvent], None], turn: int
) -> None:
    await talk(memory)
    event = holding(memory, f"question {turn}")
    change(event)
    async with opened(memory) as store:
        for whole in (False, True):
            with pytest.raises(CorruptJournal) as caught:
                await store.load("s", "default", whole=whole)
            assert caught.value.fields["place"] == event.fields["eventId"]
        with pytest.raises(CorruptJournal):
            await own(store, takeover=True)
        assert event.fields["eventId"] in {damage.where for damage in await store.examine("s")}


async def test_a_message_of_others_is_proved_from_when_it_was_taken_in(memory: FakeMemory) -> None:
    put(memory, [said("user", "theirs"), said("assistant", "their answer")])
    await talk(memory, turns=1)
    event = holding(memory, "theirs")
    content = event.fields["payload"][1]["conversational"]["content"]
    content["text"] = content["text"].replace("their answer", "another answer")
    async with opened(memory) as store:
        with pytest.raises(CorruptJournal) as caught:
            await own(store)
    assert caught.value.fields["place"] == f"{event.fields['eventId']}/1"


async def test_what_the_doctor_repairs_goes_on_and_the_rest_is_kept_as_blobs(memory: FakeMemory) -> None:
    await talk(memory)
    holding(memory, "question 1").fields["payload"][0]["conversational"]["content"]["text"] = "{"
    before = {event.fields["eventId"]: event.fields["payload"] for event in memory.events("s")}
    sessions = Sessions(AgentCorePlace(memory, wall=lambda: 1_700_000_000 + anyio.current_time()))
    assert not (await sessions.doctor()).ok
    (health,) = (await sessions.doctor(repair=True)).sessions
    assert health.repair is not None
    assert health.repair.moved_to == aside_name("s", 1)
    assert (await sessions.doctor()).ok
    # The rows beside the item prove what was said.
    assert await everything(memory) == ["question 0", "answer 0", "question 1", "answer 1", "question 2", "answer 2"]
    copies: list[Any] = [json.loads(event.fields["payload"][0]["blob"]) for event in memory.events(aside_name("s", 1))]
    kept = {copy["event"]: copy["payload"] for copy in copies}
    assert before.items() <= kept.items()
    assert [info.session_id for info in await sessions.list()] == ["s"]
    await sessions.delete("s")
    assert not any(memory.sessions.values())


@pytest.mark.parametrize("readable", [True, False])
async def test_messages_behind_rows_that_cannot_be_proved_stay_in_their_places(
    memory: FakeMemory, readable: bool
) -> None:
    """A blob that was destroyed leaves the items beside it; an event that was deleted leaves nothing."""
    await talk(memory)
    event = holding(memory, "question 1")
    if readable:
        event.fields["payload"][1], event.fields["payload"][3] = {"blob": "{"}, {"blob": "{"}
    else:
        del memory.sessions[ACTOR, "s"][event.fields["eventId"]]
    sessions = Sessions(AgentCorePlace(memory, wall=lambda: 1_700_000_000 + anyio.current_time()))
    assert (await sessions.doctor(repair=True)).ok
    between = ["question 1", "answer 1"] if readable else ["(This message was lost.)"] * 2
    assert await everything(memory) == ["question 0", "answer 0", *between, "question 2", "answer 2"]


async def test_what_has_expired_is_no_damage_to_the_doctor(memory: FakeMemory) -> None:
    await talk(memory, turns=9)
    memory.expire("s", kinds(memory).index("rows") + 4)
    await anyio.sleep(EXPIRY_S_MIN)
    async with opened(memory) as store:
        assert (await own(store)).texts[-2:] == ["question 8", "answer 8"]
    sessions = Sessions(AgentCorePlace(memory, wall=lambda: 1_700_000_000 + anyio.current_time()))
    report = await sessions.doctor(repair=True)
    assert [health.problems for health in report.sessions] == [[]]
    assert list(memory.sessions) == [(ACTOR, "s")]


async def test_an_event_of_ours_whose_digest_is_gone_is_damaged(memory: FakeMemory) -> None:
    await talk(memory)
    mark = holding(memory, "question 1").fields["metadata"]["repertory"]
    mark["stringValue"] = mark["stringValue"].rpartition(".")[0]
    async with opened(memory) as store:
        with pytest.raises(CorruptJournal):
            await own(store)


async def test_a_message_that_had_to_be_mended_is_taken_in_once(memory: FakeMemory) -> None:
    """Its row has it by value, and names the event all the same."""
    result = {"toolResult": {"toolUseId": "never asked", "status": "success", "content": [{"text": "5"}]}}
    item = said("user", "x")
    record = json.loads(item["conversational"]["content"]["text"])
    record["message"]["content"] = [result, {"text": "theirs"}]
    item["conversational"]["content"]["text"] = json.dumps(record)
    await talk(memory, turns=1)
    put(memory, [item])
    found: list[list[str]] = []
    for _ in range(3):
        async with opened(memory) as store:
            writer = await own(store)
            found.append(writer.texts)
            await writer.release()
    assert found[0] == found[1] == found[2]
    assert found[0].count("theirs") == 1


# ---------------------------------------------------------------------------------------------------------------- names


def test_no_two_ids_have_one_name() -> None:
    """An id that looks like what is made of another one is made into something else itself."""
    odd = "an agent?"
    assert agent_value(agent_value(odd)) != agent_value(odd)
    assert session_name(aside_name("s", 1)) != aside_name("s", 1)


async def test_a_session_is_known_by_its_chapters_when_its_lease_lies_far_behind(memory: FakeMemory) -> None:
    first = "user@example.com"
    async with opened(memory) as store:
        lease, _ = await store.acquire(first)
        writer = type(await own(store))(store, lease, [], "default")
        for number in range(110):
            await writer.say(f"question {number}", f"answer {number}")
        newest = [event.texts for event in memory.events(session_name(first))[-100:]]
        assert not any(text.startswith('{"repertory": {"session"') for texts in newest for text in texts)
        assert all(first in texts[-1] for texts in newest)


async def test_an_agents_record_under_another_agents_name_is_nobodys(memory: FakeMemory) -> None:
    await talk(memory)
    (record,) = [event for event in memory.events("s") if "agentId" in event.fields["metadata"]]
    record.fields["metadata"]["agentId"]["stringValue"] = "other"
    async with opened(memory) as store:
        assert [damage.where for damage in await store.examine("s")] == [record.fields["eventId"]]
        assert len(await store.load("s", "default", whole=True)) == 6
