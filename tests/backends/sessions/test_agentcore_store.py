"""Sessions in AgentCore Memory: what stands in the events, and what is asked of the service.

The contract is in `test_agentcore_contract.py`. These run on virtual time, over a memory without a network.
"""

from __future__ import annotations

import itertools
import json

import anyio
import pytest

from repertory.backends.ports import Batch, Position, give_up
from repertory.backends.sessions.agentcore.layout import session_name
from repertory.backends.sessions.agentcore.ownership import AgentCoreSettings
from repertory.backends.sessions.agentcore.store import AgentCoreSessionStore
from repertory.core.journal.records import StateChanged, View, ViewChanged
from repertory.errors import Invalid, Unavailable
from repertory.testing.session_contract import grow
from tests.backends.sessions.agentcore_memory import DirectEvents, FakeMemory
from tests.backends.sessions.agentcore_writer import (
    everything,
    kinds,
    opened,
    own,
)

pytestmark = pytest.mark.anyio


@pytest.fixture
def memory() -> FakeMemory:
    return FakeMemory()


# -------------------------------------------------------------------------------------------------------- what is asked


async def test_a_commit_is_one_event_and_opening_two_listings(memory: FakeMemory) -> None:
    settings = AgentCoreSettings()
    async with opened(memory, settings) as store:
        writer = await own(store)
        assert memory.take_calls() == ["ListEvents", "CreateEvent", "ListEvents"]
        await writer.say("hello", "hi")
        # The records of session and agent, once in its life. Behind an answer the owner looks whether it still is one.
        assert memory.take_calls() == ["CreateEvent"] * 3 + ["ListEvents"]
        await writer.say("more", "much")
        assert memory.take_calls() == ["CreateEvent", "ListEvents"]
        await anyio.sleep(settings.prove_s + 1)
        await writer.say("later", "yes")
        assert memory.take_calls() == ["ListEvents", "CreateEvent", "ListEvents"]
        await writer.release()
        assert memory.take_calls() == ["CreateEvent"]
        assert sorted(kinds(memory)) == ["agent", "free", "held", "rows", "rows", "rows", "session"]
        await own(store)
        await store.aclose()
        opening, closing = memory.calls[:3], memory.take_calls()[3:]
        assert opening == ["ListEvents", "CreateEvent", "ListEvents"]
        assert sorted(closing) == ["CreateEvent", "DeleteEvent", "DeleteEvent"]


@pytest.mark.real_time
async def test_opening_costs_the_window_whatever_the_history(memory: FakeMemory) -> None:
    async with opened(memory, AgentCoreSettings()) as store:
        writer = await own(store)
        for number in range(150):
            first = max(1, writer.appender.fold.last_seq - 10)
            view = View(first_shown=first)
            await writer.append(
                writer.message(f"question {number}"),
                writer.message(f"answer {number}"),
                writer.appender.append(ViewChanged(at=5.0, view=view, reason="window")),
            )
        shown = writer.texts
        await writer.release()
    memory.take_calls()
    async with opened(memory, AgentCoreSettings()) as store:
        writer = await own(store)
        assert memory.take_calls() == ["ListEvents", "CreateEvent", "ListEvents"]
        assert writer.texts == shown
        assert len(await store.load("s", "default", whole=True)) == 450
        assert memory.take_calls() == ["ListEvents"] * 2


async def test_messages_stand_in_the_packages_shape_with_rows_beside_them(memory: FakeMemory) -> None:
    async with opened(memory) as store:
        writer = await own(store)
        await writer.say("hello", "hi")
        await writer.release()
    session, agent, rows = (
        next(
            event
            for event in memory.events("s")
            if event.fields["metadata"]["repertory"]["stringValue"].startswith(kind)
        )
        for kind in ("session", "agent", "rows")
    )
    assert session.fields["metadata"]["stateType"] == {"stringValue": "SESSION"}
    assert json.loads(session.texts[0])["session_id"] == "s"
    assert agent.fields["metadata"]["agentId"] == {"stringValue": "default"}
    first, ours, second, _ = rows.fields["payload"]
    record = json.loads(first["conversational"]["content"]["text"])
    assert record["message"]["content"] == [{"text": "hello"}]
    assert (record["message_id"], record["redact_message"]) == (0, None)
    assert (first["conversational"]["role"], second["conversational"]["role"]) == ("USER", "ASSISTANT")
    assert list(json.loads(ours["blob"])) == ["repertory"]


@pytest.mark.parametrize(("length", "kind"), [(99_000, "conversational"), (100_001, "blob")])
async def test_a_long_message_is_a_blob(memory: FakeMemory, length: int, kind: str) -> None:
    async with opened(memory) as store:
        writer = await own(store)
        await writer.say("x" * length, "ok")
        await writer.release()
    (event,) = [event for event in memory.events("s") if len(event.fields["payload"]) == 4]
    assert list(event.fields["payload"][0]) == [kind]
    assert await everything(memory) == ["x" * length, "ok"]


async def test_a_commit_that_is_too_large_takes_several_events(memory: FakeMemory) -> None:
    async with opened(memory) as store:
        writer = await own(store)
        texts = [f"message {number}" for number in range(120)]
        assert await writer.say(*texts) == Position(agent_id="default", seq=120)
        await writer.release()
    sizes = [len(event.fields["payload"]) for event in memory.events("s") if len(event.fields["payload"]) > 1]
    assert sizes == [100, 100, 40]
    assert await everything(memory) == texts


async def test_what_is_left_of_a_commit_that_was_cut_off_counts_as_added(memory: FakeMemory) -> None:
    """Its end may only be late to be listed, so it is not deleted; its tools and state are as if never written."""
    settings = AgentCoreSettings(prove_s=0.0, event_bytes_max=1)
    creates = itertools.count()
    async with opened(memory, settings) as store:
        await (await own(store)).say("kept", "kept too")
    fault = lambda operation: "refused" if operation == "CreateEvent" and next(creates) > 1 else None  # noqa: E731
    async with opened(memory, settings, plan=fault) as store:
        writer = await own(store)
        rows = [
            writer.message("one"),
            writer.appender.append(StateChanged(at=5.0, set={"n": 1})),
            writer.message("two"),
        ]
        assert isinstance(await writer.append(*rows), Unavailable)
    for number in range(2):
        async with opened(memory, settings) as store:
            writer = await own(store, takeover=True)
            assert writer.texts[:3] == ["kept", "kept too", "one"]
            assert writer.appender.fold.state == {}
            await writer.say(f"answer {number}", f"question {number}")
            await writer.release()
    assert await everything(memory) == ["kept", "kept too", "one", "answer 0", "question 0", "answer 1", "question 1"]


# ---------------------------------------------------------------------------------------------------------------- names


@pytest.mark.parametrize("agent_id", ["plain", "Ärger 'x' %s ?", "x" * 255])
async def test_any_allowed_agent_has_a_record(memory: FakeMemory, agent_id: str) -> None:
    async with opened(memory) as store:
        writer = await own(store, agent_id)
        await writer.say("question", "answer")
        await writer.set(n=1)
        await writer.release()
    record = next(event for event in memory.events("s") if "agentId" in event.fields["metadata"])
    assert json.loads(record.texts[0])["agent_id"] == agent_id
    async with opened(memory) as store:
        (info,) = await store.sessions()
        assert dict(info.agents) == {agent_id: 3}


async def test_metadata_stand_beside_messages_and_nothing_else(memory: FakeMemory) -> None:
    store = AgentCoreSessionStore(
        DirectEvents(memory),
        owner="one",
        wall=anyio.current_time,
        entropy=lambda size: b"x" * size,
        metadata=lambda session_id: {"place": f"of {session_id}"},
    )
    writer = await own(store)
    await writer.say("question", "answer")
    await writer.set(n=1)
    await store.aclose()
    beside = [event.fields["metadata"].get("place", {}).get("stringValue") for event in memory.events("s")]
    assert beside.count("of s") == 1


async def test_a_session_whose_name_is_another_ones_is_refused(memory: FakeMemory) -> None:
    """An id that the service does not take has a name with a digest, which is an id that it takes."""
    first = "user@example.com"
    second = session_name(first)
    assert session_name(second) == second
    async with opened(memory) as store:
        lease, _ = await store.acquire(first)
        (outcome,) = await store.append([Batch(lease=lease, rows=grow(2, "agent"))])
        assert isinstance(outcome, Position)
        await give_up(store, lease)
    async with opened(memory) as store:
        with pytest.raises(Invalid, match="another session has the name"):
            await store.acquire(second)
        with pytest.raises(Invalid, match="another session has the name"):
            await store.load(second, "agent")
        with pytest.raises(Invalid, match="another session has the name"):
            await store.delete(second)
        assert len(await store.load(first, "agent", whole=True)) == 2
        assert [info.session_id for info in await store.sessions()] == [first]
