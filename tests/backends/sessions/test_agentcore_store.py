"""Sessions in AgentCore Memory: what stands in the events, and what becomes of a session when somebody meddles with it.

The contract is in `test_agentcore_contract.py`. These run on virtual time, over a memory without a network.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from repertory.backends.ports import Batch, Lease, Position
from repertory.backends.sessions.agentcore_ownership import AgentCoreSettings
from repertory.backends.sessions.agentcore_store import AgentCoreSessionStore
from repertory.core.journal.appender import Appender
from repertory.core.journal.records import MessageAdded, Redacted, StateChanged, View, ViewChanged
from repertory.core.journal.restore import Restored, messages_of, records_of, restore
from repertory.core.journal.rows import Row
from repertory.core.messages import Message, text_of
from repertory.errors import LeaseLost, RepertoryError, SessionBusy, Unavailable
from repertory.testing.session_contract import grow
from tests.backends.sessions.agentcore_memory import ACTOR, MEMORY, DirectEvents, FakeMemory

pytestmark = pytest.mark.anyio

WAIT_S = 200.0
QUICK = AgentCoreSettings(prove_s=0.0)

_owners = itertools.count()


@pytest.fixture
def memory() -> FakeMemory:
    return FakeMemory()


@asynccontextmanager
async def opened(
    memory: FakeMemory, settings: AgentCoreSettings = QUICK, **options: Any
) -> AsyncIterator[AgentCoreSessionStore]:
    """A store of its own owner, closed in the end, all within a bound."""
    store = AgentCoreSessionStore(
        DirectEvents(memory, **options),
        owner=f"owner-{next(_owners)}",
        wall=lambda: 1_700_000_000 + anyio.current_time(),
        entropy=lambda size: next(_owners).to_bytes(size),
        settings=settings,
    )
    with anyio.fail_after(WAIT_S):
        try:
            yield store
        finally:
            await store.aclose()


class Writer:
    """An owner of the session `s`, and what it says."""

    def __init__(self, store: AgentCoreSessionStore, lease: Lease, rows: Sequence[Row], agent_id: str) -> None:
        self.store, self.lease = store, lease
        self.restored: Restored = restore(rows, session_id="s")
        self.appender = Appender(agent_id, self.restored.fold, self.restored.link, lambda size: b"s" * size)

    @property
    def texts(self) -> list[str]:
        """What the model would be shown."""
        return [text_of(message) for _, message in self.appender.fold.shown]

    def message(self, text: str, **more: Any) -> Row:
        fold = self.appender.fold
        prompt = fold.last_message is None or fold.last_message["role"] == "assistant"
        message: Message = {"role": "user" if prompt else "assistant", "content": [{"text": text}]}
        turn = max(1, fold.turns + prompt)
        return self.appender.append(MessageAdded(at=5.0, message=message, turn=turn, index=fold.message_count, **more))

    async def append(self, *rows: Row, erase: Sequence[tuple[str, int]] = ()) -> Position | RepertoryError:
        (outcome,) = await self.store.append([Batch(lease=self.lease, rows=rows, erase=erase)])
        return outcome

    async def say(self, *texts: str) -> Position | RepertoryError:
        """Messages in one commit."""
        return await self.append(*(self.message(text) for text in texts))

    async def set(self, **state: Any) -> Position | RepertoryError:
        return await self.append(self.appender.append(StateChanged(at=5.0, set=state)))

    async def release(self) -> None:
        await self.store.release(self.lease)


async def own(store: AgentCoreSessionStore, agent_id: str = "default", *, takeover: bool = False) -> Writer:
    lease = await store.acquire("s", takeover=takeover)
    return Writer(store, lease, await store.load("s", agent_id), agent_id)


async def everything(memory: FakeMemory, agent_id: str = "default") -> list[str]:
    """The texts of a session as somebody finds them who only looks."""
    async with opened(memory) as store:
        rows = await store.load("s", agent_id, whole=True)
    return [text_of(message) for message in messages_of(records_of(rows, session_id="s")).values()]


def put(memory: FakeMemory, payload: list[Any], *, at_ms: int | None = None, **metadata: str) -> str:
    """An event of another program, by default behind all others."""
    last = memory.events("s")[-1].fields["eventTimestamp"] if memory.events("s") else 1_700_000_000.0
    fields = {"memoryId": MEMORY, "actorId": ACTOR, "sessionId": "s", "payload": payload}
    at_s = last + 0.001 if at_ms is None else at_ms / 1000
    said = {key: {"stringValue": value} for key, value in metadata.items()}
    return memory.call("CreateEvent", {**fields, "eventTimestamp": at_s, "metadata": said})["event"]["eventId"]


def said(role: str, text: str) -> dict[str, Any]:
    """A message as the package writes it."""
    record = {
        "message": {"role": role, "content": [{"text": text}]},
        "message_id": 0,
        "redact_message": None,
        "created_at": "2023-11-14T22:13:20+00:00",
        "updated_at": "2023-11-14T22:13:20+00:00",
    }
    return {"conversational": {"content": {"text": json.dumps(record)}, "role": role.upper()}}


def agent_record(agent_id: str = "default", removed: int = 0, **state: Any) -> dict[str, Any]:
    manager = {"__name__": "SlidingWindowConversationManager", "removed_message_count": removed, "model_call_count": 1}
    record = {"agent_id": agent_id, "state": state, "conversation_manager_state": manager, "_internal_state": {}}
    return {"blob": json.dumps({**record, "created_at": "2023-11-14T22:13:20+00:00", "updated_at": ""})}


def put_agent(memory: FakeMemory, agent_id: str = "default", removed: int = 0, **state: Any) -> None:
    put(memory, [agent_record(agent_id, removed, **state)], stateType="AGENT", agentId=agent_id)


def kinds(memory: FakeMemory) -> list[str]:
    """What the events of the session are, oldest first."""
    marks = [
        event.fields.get("metadata", {}).get("repertory", {}).get("stringValue", "theirs")
        for event in memory.events("s")
    ]
    return [mark.partition(".")[0] for mark in marks]


def bytes_of(memory: FakeMemory) -> str:
    return json.dumps([event.fields for event in memory.events("s")])


# -------------------------------------------------------------------------------------------------------- what is asked


async def test_a_commit_is_one_event_and_opening_two_listings(memory: FakeMemory) -> None:
    settings = AgentCoreSettings()
    async with opened(memory, settings) as store:
        writer = await own(store)
        assert memory.take_calls() == ["ListEvents", "CreateEvent", "ListEvents"]
        await writer.say("hello", "hi")
        assert memory.take_calls() == ["CreateEvent"] * 3  # The records of session and agent, once in its life.
        await writer.say("more", "much")
        assert memory.take_calls() == ["CreateEvent"]
        await anyio.sleep(settings.prove_s + 1)
        await writer.say("later", "yes")
        assert memory.take_calls() == ["ListEvents", "CreateEvent"]
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
            lease = await store.acquire("s")
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
    async with opened(memory) as store:
        writer = await own(store)
        assert writer.texts == []
        assert isinstance(await writer.say("anew", "yes"), Position)
        await writer.release()
    async with opened(memory) as store:
        assert (await own(store)).texts == ["anew", "yes"]


async def test_a_message_that_somebody_deleted_leaves_a_stand_in(memory: FakeMemory) -> None:
    async with opened(memory) as store:
        writer = await own(store)
        for number in range(3):
            await writer.say(f"question {number}")
            await writer.say(f"answer {number}")
        await writer.release()
    (gone,) = [event for event in memory.events("s") if any("answer 1" in text for text in event.texts)]
    del memory.sessions[ACTOR, "s"][gone.fields["eventId"]]
    wanted = ["question 0", "answer 0", "question 1", "(This message was lost.)", "question 2", "answer 2"]
    for _ in range(2):
        async with opened(memory) as store:
            writer = await own(store)
            assert writer.texts == wanted
            await writer.say("more", "yes")
            wanted += ["more", "yes"]
            await writer.release()


# --------------------------------------------------------------------------------------------- listings that lag behind


async def test_a_listing_that_misses_the_newest_events_is_waited_for(memory: FakeMemory) -> None:
    """The last owner's farewell says what there must be, so nothing is lost, and nothing is written twice."""
    async with opened(memory) as store:
        writer = await own(store)
        await writer.say("question", "answer")
        await writer.say("second", "reply")
        await writer.release()
    (late,) = [event.number for event in memory.events("s") if any("second" in text for text in event.texts)]
    looks = itertools.count()
    memory.lag = lambda event: 10**6 if event.number == late and next(looks) < 4 else 0
    async with opened(memory) as store:
        writer = await own(store)
        assert writer.texts == ["question", "answer", "second", "reply"]
        assert isinstance(await writer.say("third", "yes"), Position)
        await writer.release()
    assert await everything(memory) == ["question", "answer", "second", "reply", "third", "yes"]


async def test_what_appears_after_all_waiting_is_taken_in(memory: FakeMemory) -> None:
    async with opened(memory) as store:
        writer = await own(store)
        await writer.say("question", "answer")
        await writer.say("second", "reply")
        await writer.release()
    (late,) = [event.number for event in memory.events("s") if any("second" in text for text in event.texts)]
    memory.lag = lambda event: 10**6 if event.number == late else 0
    async with opened(memory) as store:
        writer = await own(store)
        assert writer.texts == ["question", "answer"]
        assert isinstance(await writer.say("third", "yes"), Position)
        await writer.release()
    memory.lag = lambda event: 0
    for _ in range(2):
        async with opened(memory) as store:
            writer = await own(store)
            assert writer.texts == ["question", "answer", "third", "yes", "second", "reply"]
            await writer.release()


async def test_a_listing_that_never_shows_our_event_is_an_error_and_nobody_owns_the_session(memory: FakeMemory) -> None:
    memory.lag = lambda event: 10**6
    async with opened(memory) as store:
        with pytest.raises(Unavailable, match="does not show what was written"):
            await store.acquire("s")
    assert memory.events("s") == []


async def test_a_filter_is_never_used(memory: FakeMemory) -> None:
    """Listings with a filter lag behind, which has cost others their history."""
    memory.filter_lag = 10**6
    async with opened(memory) as store:
        writer = await own(store)
        await writer.say("question", "answer")
        await writer.release()
    async with opened(memory) as store:
        assert (await own(store)).texts == ["question", "answer"]


# --------------------------------------------------------------------------------------------------------------- owners


async def test_a_fenced_owner_that_writes_between_its_looks_has_added_a_message(memory: FakeMemory) -> None:
    async with opened(memory, AgentCoreSettings()) as one, opened(memory, AgentCoreSettings()) as two:
        old = await own(one)
        await old.say("question", "answer")
        new = await own(two, takeover=True)
        assert new.texts == ["question", "answer"]
        await new.say("of the new owner", "yes")
        assert isinstance(await old.say("of the old owner", "indeed"), Position)
        await anyio.sleep(AgentCoreSettings().prove_s + 1)
        assert isinstance(await old.say("too late"), LeaseLost)
        assert isinstance(await new.append(), LeaseLost)
        new = await own(two)
        wanted = ["question", "answer", "of the new owner", "yes", "of the old owner", "indeed"]
        assert new.texts == wanted
        await new.say("last", "yes")
        await new.release()
    assert await everything(memory) == [*wanted, "last", "yes"]


@pytest.mark.parametrize("latencies", list(itertools.permutations([0.01, 0.02, 0.05])))
async def test_of_owners_that_come_at_the_same_time_one_keeps_the_session(
    memory: FakeMemory, latencies: Sequence[float]
) -> None:
    """Others are refused, or find out before they write."""
    rows = grow(1)
    kept: list[Lease] = []

    async def come(latency_s: float) -> None:
        async with opened(memory, latency_s=lambda: latency_s) as store:
            with contextlib.suppress(SessionBusy):
                lease = await store.acquire("s")
                await anyio.sleep(1)
                (outcome,) = await store.append([Batch(lease=lease, rows=rows)])
                if isinstance(outcome, Position):
                    kept.append(lease)
                else:
                    assert isinstance(outcome, LeaseLost)
                await anyio.sleep(1)

    async with anyio.create_task_group() as tasks:
        for latency_s in latencies:
            tasks.start_soon(come, latency_s)
    assert len(kept) == 1
    async with opened(memory) as store:
        assert list(await store.load("s", "default", whole=True)) == rows


async def test_an_owner_that_is_not_heard_of_any_more_has_lost_the_session(memory: FakeMemory) -> None:
    settings = AgentCoreSettings()
    async with opened(memory, settings) as one, opened(memory, settings) as two:
        old = await own(one)
        await old.say("question", "answer")
        await anyio.sleep(settings.lease_s - settings.relook_s - 1)
        with pytest.raises(SessionBusy):
            await two.acquire("s")
        await anyio.sleep(2)
        assert (await own(two)).texts == ["question", "answer"]
        assert isinstance(await old.say("too late"), LeaseLost)


async def test_an_idle_owner_that_is_tended_keeps_its_session(memory: FakeMemory) -> None:
    settings = AgentCoreSettings()
    async with opened(memory, settings) as one, opened(memory, settings) as two, anyio.create_task_group() as tasks:
        tasks.start_soon(one.tend)
        writer = await own(one)
        await writer.say("question", "answer")
        await anyio.sleep(3 * settings.lease_s)
        with pytest.raises(SessionBusy):
            await two.acquire("s")
        assert isinstance(await writer.say("still here", "yes"), Position)
        assert kinds(memory).count("held") == 1
        tasks.cancel_scope.cancel()


async def test_a_session_that_was_given_up_just_now_is_not_busy(memory: FakeMemory) -> None:
    async with opened(memory) as one, opened(memory) as two:
        writer = await own(one)

        async def give_up() -> None:
            await anyio.sleep(QUICK.relook_s / 2)
            await writer.release()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(give_up)
            assert (await two.acquire("s")).owner == two._means.owner


async def test_a_commit_whose_answer_got_lost_can_be_made_again_and_is_there_once(memory: FakeMemory) -> None:
    plans: list[str | None] = []

    def plan(operation: str) -> str | None:
        return plans.pop(0) if plans and operation == "CreateEvent" else None

    settings = AgentCoreSettings(prove_s=0.0, event_bytes_max=1)
    async with opened(memory, settings, plan=plan) as store:
        writer = await own(store)
        await writer.say("question", "answer")
        for number, fault in enumerate([["lost"], ["refused"], [None, "lost"], [None, "refused", "lost", "refused"]]):
            rows = [writer.message(f"question {number}"), writer.message(f"answer {number}")]
            plans[:] = fault
            while plans:
                assert isinstance(await writer.append(*rows), Unavailable)
            assert await writer.append(*rows) == Position(agent_id="default", seq=2 * number + 4)
        wanted = writer.texts
        assert len(wanted) == 10
        plans[:] = ["lost"]
        rows = [writer.message("left")]
        assert isinstance(await writer.append(*rows), Unavailable)
        assert isinstance(await writer.say("what follows it"), Position)
        plans[:] = ["lost"]
        assert isinstance(await writer.say("never made again"), Unavailable)
    async with opened(memory) as store:
        assert (await own(store)).texts == [*wanted, "left", "what follows it", "never made again"]


async def test_an_event_that_was_created_twice_counts_once(memory: FakeMemory) -> None:
    """As by a service that forgets its tokens."""
    async with opened(memory) as store:
        writer = await own(store)
        await writer.say("question", "answer")
        await writer.release()
    twice = next(event.fields for event in memory.events("s") if len(event.fields["payload"]) == 4)
    copied = {
        name: twice[name] for name in ("memoryId", "actorId", "sessionId", "payload", "metadata", "eventTimestamp")
    }
    memory.call("CreateEvent", copied)
    for number in range(2):
        async with opened(memory) as store:
            writer = await own(store)
            assert writer.texts[:2] == ["question", "answer"]
            assert len(writer.texts) == 2 + 2 * number
            await writer.say(f"question {number}", f"answer {number}")
            await writer.release()
    assert bytes_of(memory).count('\\"answer\\"') == 1


async def test_agents_of_a_session_commit_together_in_one_event(memory: FakeMemory) -> None:
    first, second = grow(2, "first"), grow(2, "second")
    async with opened(memory) as store:
        lease = await store.acquire("s")
        (outcome,) = await store.append([Batch(lease=lease, rows=[*first, *second])])
        assert outcome == Position(agent_id="second", seq=2)
    assert kinds(memory).count("rows") == 1
    assert await everything(memory, "first") == ["first says 0", "first says 1"]
    assert await everything(memory, "second") == ["second says 0", "second says 1"]


# -------------------------------------------------------------------------------------------------------------- erasing


async def redactions(writer: Writer, **instead: str) -> Batch:
    """What puts texts in the place of messages that say something, and erases those."""
    rows = await writer.store.load("s", "default", whole=True)
    targets: list[int] = []
    made: list[Row] = []
    for seq, record in records_of(rows):
        if isinstance(record, MessageAdded) and text_of(record.message) in instead:
            text = instead[text_of(record.message)]
            message: Message = {"role": record.message["role"], "content": [{"text": text}]}
            said_at = {"turn": record.turn, "index": record.index}
            made.append(writer.appender.append(Redacted(at=6.0, target=seq, message=message, **said_at)))
            targets.append(seq)
    return Batch(lease=writer.lease, rows=made, erase=[("default", seq) for seq in targets])


async def erased_session(memory: FakeMemory, fault: Callable[[], str | None] = lambda: None) -> None:
    """A session of which two messages are redacted and erased, one of them somebody else's."""
    async with opened(memory) as store:
        writer = await own(store)
        await writer.say("question", "answer")
        await writer.say("SECRET", "reply")
        put(memory, [said("user", "SECRET_OF_THEIRS"), said("assistant", "their reply")])
    begun = anyio.Event()
    async with opened(memory, plan=lambda operation: fault() if begun.is_set() else None) as store:
        batch = await redactions(await own(store), SECRET="[gone]", SECRET_OF_THEIRS="[theirs gone]")
        begun.set()
        await store.append([batch])


SHOWN = ["question", "answer", "[gone]", "reply", "[theirs gone]", "their reply"]


async def test_what_is_erased_is_in_no_event_any_more(memory: FakeMemory) -> None:
    await erased_session(memory)
    assert "SECRET" not in bytes_of(memory)
    async with opened(memory) as store:
        writer = await own(store)
        assert writer.texts == SHOWN
        await writer.say("next", "yes")
        await writer.release()
    async with opened(memory) as store:
        assert (await own(store)).texts == [*SHOWN, "next", "yes"]
    messages = [
        json.loads(item["conversational"]["content"]["text"])
        for event in memory.events("s")
        for item in event.fields["payload"]
        if "conversational" in item
    ]
    assert [(one["redact_message"] or one["message"])["content"][0]["text"] for one in messages] == [
        *SHOWN,
        "next",
        "yes",
    ]


async def test_an_erasure_that_was_cut_off_is_finished_by_the_next_owner(memory: FakeMemory) -> None:
    """Wherever its owner dies."""
    requests = itertools.count()
    await erased_session(memory, lambda: None if next(requests) >= 0 else "never")
    for last in range(next(requests)):
        cut = FakeMemory()
        numbers = itertools.count()
        await erased_session(cut, lambda last=last, numbers=numbers: "refused" if next(numbers) >= last else None)
        async with opened(cut) as store:
            writer = await own(store, takeover=True)
            shown = writer.texts
            await writer.release()
        if "[gone]" in shown:
            assert shown == SHOWN, last
            assert "SECRET" not in bytes_of(cut), last
        else:
            assert shown[2] == "SECRET", last


# -------------------------------------------------------------------------------------------------------------- names


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
