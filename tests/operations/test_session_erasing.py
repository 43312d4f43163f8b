"""What was redacted or deleted is gone from every byte that is stored; what has expired is deleted, and no more."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from repertory import Agent, Graph, MemoryManager, ScriptedModel, Sessions, SQLiteMemoryStore, tool
from repertory.app.sessions.sessions import PlacedSession, SessionLocation
from repertory.backends.peer_ports import QueuedCall
from repertory.backends.ports import Batch, call_queue_of, give_up
from repertory.core.journal.records import CursorMoved, StateChanged
from repertory.core.journal.restore import restore
from repertory.core.messages import Message, text_of
from repertory.core.pending_work import DueTime, Why
from repertory.core.window.decision import WindowPlan
from repertory.errors import Failed, Invalid, NotFound, SessionBusy, Unavailable
from repertory.testing.session_contract import grow
from tests.app.memory.toy_memories import Facts
from tests.operations.operated_places import LOCAL, at_time, fill, names_holding, place_of, rows_in, shown_in, talk

pytestmark = [pytest.mark.anyio, pytest.mark.real_time]

SECRET = "the cat's name is Behemoth"


@pytest.fixture(params=LOCAL)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> SessionLocation:
    return place_of(request.param, tmp_path)


@pytest.fixture
def memory(tmp_path: Path) -> SessionLocation:
    return place_of("journal in memory", tmp_path)


def holding(place: SessionLocation, folder: Path, secret: str = SECRET) -> list[str]:
    """The names of files and objects that hold the secret, compressed or not."""
    return names_holding(place, folder, secret)


async def test_a_redacted_message_is_gone_from_every_byte(place: SessionLocation, tmp_path: Path) -> None:
    await fill(place, "s", talk("hello", f"I say that {SECRET}.", "so?", "yes", label="end").rows)
    assert holding(place, tmp_path)
    onlooker = place.open_store()
    await onlooker.load("s", "agent", whole=True)
    report = await Sessions(place).redact("s", 2, "[removed]")
    assert (report.seq, tuple(report.erased), tuple(report.left)) == (2, (2,), ())
    assert holding(place, tmp_path) == []
    await onlooker.aclose()
    assert [text_of(each) for each in (await shown_in(place, "s"))[0]] == ["hello", "[removed]", "so?", "yes"]
    shown = (await Sessions(place).show("s")).agents["agent"]
    assert text_of(shown.messages[1].message) == "[removed]"
    assert not (await Sessions(place).search("Behemoth")).hits


async def test_copies_that_are_not_in_force_go_with_the_message(place: SessionLocation, tmp_path: Path) -> None:
    driver = talk("hello", f"I say that {SECRET}.", "so?", "yes", state={"note": f"I say that {SECRET}.", "n": 1})
    driver.pin(1, drop=3)
    summary: Message = {"role": "user", "content": [{"text": f"Summary: I say that {SECRET}."}]}
    driver.plan(WindowPlan(drop=1, reason="summary"), summary)
    driver.plan(WindowPlan(drop=1, reason="summary"), {"role": "user", "content": [{"text": "nothing of note"}]})
    driver.append(StateChanged(at=driver.at(), set={"note": "none"}))
    driver.run([("prompt", 1), ("answer", 1)])
    await fill(place, "s", driver.rows)
    before = await shown_in(place, "s")
    report = await Sessions(place).redact("s", 2, "[removed]")
    assert tuple(report.left) == ()
    assert len(report.erased) == 4
    assert holding(place, tmp_path) == []
    assert await shown_in(place, "s") == before


async def test_what_says_the_same_and_is_in_force_is_named(place: SessionLocation) -> None:
    said = f"I say that {SECRET}."
    driver = talk("hello", said, "so?", f"You said: {said}", state={"note": said, "n": 1})
    driver.plan(WindowPlan(drop=2, reason="summary"), {"role": "user", "content": [{"text": f"They said: {said}"}]})
    await fill(place, "s", [*driver.rows, *copied_by_another(said)])
    report = await Sessions(place).redact("s", 2, "[removed]", agent="agent")
    named = {(each.agent_id, each.seq, each.what) for each in report.left}
    assert {("agent", 0, "state note"), ("agent", 0, "summary"), ("agent", 4, "message")} < named
    assert ("default", 1, "message") in named


def copied_by_another(said: str) -> Sequence[object]:
    from repertory.core.journal.fold import Fold
    from repertory.core.journal.records import MessageAdded
    from repertory.core.journal.restore import Appender

    appender = Appender("default", Fold(), None, lambda count: b"x" * count)
    message: Message = {"role": "user", "content": [{"text": said}]}
    return [appender.append(MessageAdded(at=1.0, message=message, turn=1, index=0))]


async def test_what_tools_were_asked_and_answered_goes_with_their_messages(memory: SessionLocation) -> None:
    @tool
    def look_up(query: str) -> str:
        """Look something up."""
        return f"found for {query}: {SECRET}"

    use = {"toolUse": {"name": "look_up", "input": {"query": f"whether {SECRET}"}}}
    session = PlacedSession("s", memory)
    async with Agent(
        ScriptedModel([use, "done"]), tools=[look_up], session_manager=session, callback_handler=None
    ) as agent:
        await agent.invoke_async("look it up")
    sessions = Sessions(memory)
    seqs = [each.seq for each in (await sessions.show("s")).agents["default"].messages]
    for seq in seqs[1:3]:
        await sessions.redact("s", seq, "[removed]")
    assert holding(memory, Path()) == []
    shown, _ = await shown_in(memory, "s", "default")
    assert [list(block) for message in shown for block in message["content"]] == [
        ["text"],
        ["toolUse"],
        ["toolResult"],
        ["text"],
    ]


async def test_a_text_is_gone_from_every_byte_whatever_said_it_and_whatever_came_between(
    place: SessionLocation, tmp_path: Path
) -> None:
    driver = talk("hello", SECRET, "so?", f"You said: {SECRET}", state={"note": SECRET, "n": 1})
    driver.append(CursorMoved(at=driver.at(), positions={"m": 2}, kept={"m": {"pending": [waiting_fact(1)]}}))
    driver.plan(WindowPlan(drop=2, reason="summary"), {"role": "user", "content": [{"text": f"They say {SECRET}."}]})
    driver.run([("prompt", 1), ("answer", 1)])
    await fill(place, "s", [*driver.rows, *copied_by_another(f"as I said, {SECRET}")])
    sessions = Sessions(place)
    left = (await sessions.redact("s", 2, "[removed]", agent="agent")).left
    assert {"state note", "summary", "message"} <= {each.what for each in left}
    report = await sessions.redact_text("s", SECRET, "[removed]")
    assert holding(place, tmp_path) == []
    assert tuple(report.left) == ()
    assert {name: list(agent.messages) for name, agent in report.agents.items()} == {"agent": [4], "default": [1]}
    shown, state = await shown_in(place, "s")
    assert [text_of(each) for each in shown[:3]] == ["They say [removed].", "so?", "You said: [removed]"]
    assert state == {"note": "[removed]", "n": 1}
    assert not (await sessions.redact_text("s", SECRET)).agents
    assert (await sessions.doctor()).ok


def waiting_fact(*seqs: int) -> dict[str, Any]:
    return {"key": "s/agent/m/1-2@1/0", "content": f"They say: {SECRET}.", "sequence_numbers": list(seqs)}


async def test_memories_on_their_way_are_taken_back_with_the_message_and_the_rest_is_extracted_again(
    place: SessionLocation, tmp_path: Path
) -> None:
    driver = talk("My number is 4711.", "I see.", "And I live in Lund.", "Nice.")
    other = {"key": "s/agent/m/added/0", "content": "Lund is in Sweden."}
    letter = {"at": 1.0, "why": "no", "write": {**waiting_fact(1, 3), "key": "k2"}}
    kept = {"m": {"pending": [waiting_fact(1, 2, 3, 4), other], "letters": [letter]}}
    driver.append(CursorMoved(at=driver.at(), positions={"m": 4, "n": 0}, kept=kept))
    await fill(place, "s", driver.rows)
    report = await Sessions(place).redact("s", 1, "[removed]")
    assert holding(place, tmp_path) == []
    fold = restore(await rows_in(place, "s")).fold
    assert fold.cursors == {"m": 4, "n": 0}
    assert fold.kept == {"m": {"pending": [other], "again": [[1, 4], [1, 3]]}}
    assert (report.memories.forgotten, list(report.memories.left)) == ({}, ["m"])


async def test_memory_stores_forget_what_they_were_given_of_a_redacted_message(
    place: SessionLocation, tmp_path: Path
) -> None:
    store = SQLiteMemoryStore(tmp_path / "memory.db", name="m")
    for seqs, fact in (((1, 2), f"They say: {SECRET}."), ((3, 4), "They live in Lund.")):
        await store.add(fact, context={"session_id": "s", "agent_id": "agent", "sequence_numbers": list(seqs)})
    driver = talk(f"I say: {SECRET}", "I see.", "And I live in Lund.", "Nice.")
    driver.append(CursorMoved(at=driver.at(), positions={"m": 4, "gone": 4}))
    await fill(place, "s", driver.rows)
    report = await Sessions(place).redact_text("s", SECRET, memory=[store])
    assert (report.memories.forgotten, list(report.memories.left)) == ({"m": 1}, ["gone"])
    assert [entry.content for entry in (await store.entries()).entries] == ["They live in Lund."]
    await store.aclose()
    assert holding(place, tmp_path) == []
    with pytest.raises(Invalid, match="a list of memory stores"):
        await Sessions(place).redact_text("s", SECRET, memory=store)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("trouble", "error"), [(ConnectionError("gone"), Unavailable), (KeyError("bug"), Failed), (None, None)], ids=repr
)
async def test_a_memory_store_that_cannot_forget_now_is_a_typed_error_and_the_message_stays(
    memory: SessionLocation, trouble: Exception | None, error: type[Exception] | None
) -> None:
    class Forgetful(Facts):
        def forget(self, *, session_id: str, agent_id: str, seq: int) -> int:
            if trouble is not None:
                raise trouble
            self.entries.append(f"{session_id} {agent_id} {seq}")
            return 2

    await fill(memory, "s", talk(f"I say: {SECRET}", "I see.").rows)
    store = Forgetful("m")
    if error is not None:
        with pytest.raises(error, match="memory store"):
            await Sessions(memory).redact("s", 1, "[removed]", memory=[store])
        assert holding(memory, Path())
        return
    report = await Sessions(memory).redact("s", 1, "[removed]", memory=MemoryManager(stores=[store]))
    assert (report.memories.forgotten, store.entries) == ({"m": 2}, ["s agent 1"])
    assert not holding(memory, Path())


async def test_a_text_is_gone_from_the_results_of_a_graph_and_a_call_under_its_token_is_answered_without_it(
    place: SessionLocation, tmp_path: Path
) -> None:
    def graph() -> Graph:
        nodes = {
            name: Agent(ScriptedModel([answer]), agent_id=name, name=name, callback_handler=None)
            for name, answer in (("a", f"I say that {SECRET}."), ("b", "done"))
        }
        return Graph(nodes, session_manager=PlacedSession("s", place))

    await graph().invoke_async(f"ask whether {SECRET}", idempotency_token="once")
    await Sessions(place).redact_text("s", SECRET, "[removed]")
    assert holding(place, tmp_path) == []
    again = await graph().invoke_async(f"ask whether {SECRET}", idempotency_token="once")
    assert again.replayed
    assert str(again.results["a"].result).strip() == "I say that [removed]."
    assert (await Sessions(place).doctor()).ok


async def test_redacting_needs_a_message_and_the_session(place: SessionLocation) -> None:
    driver = talk("one", "two", state={"key": 1})
    driver.run([("prompt", 1), ("ask", 1)])
    await fill(place, "s", driver.rows)
    sessions = Sessions(place)
    for seq in (3, 0, 99):
        with pytest.raises(NotFound, match="no message stands there"):
            await sessions.redact("s", seq, "[removed]")
    with pytest.raises(Invalid, match="waits for its tools"):
        await sessions.redact("s", 5, "[removed]")
    with pytest.raises(Invalid, match="empty text"):
        await sessions.redact("s", 1, " ")
    with pytest.raises(NotFound, match="no such"):
        await sessions.redact("s", 1, "[removed]", agent="other")
    owner = place.open_store()
    await owner.acquire("s")
    with pytest.raises(SessionBusy):
        await sessions.redact("s", 1, "[removed]")
    assert (await sessions.redact("s", 1, "[removed]", takeover=True)).seq == 1
    await owner.aclose()


async def test_a_deleted_session_is_gone_from_every_byte_and_the_proof_says_what_it_was(
    place: SessionLocation, tmp_path: Path
) -> None:
    rows = talk("hello", f"I say that {SECRET}.").rows
    await fill(place, "s", [*rows, *grow(3, "other")])
    await fill(place, "kept", talk("stay").rows)
    proof = await at_time(place, 77.0).delete("s")
    assert (proof.session_id, proof.deleted_at) == ("s", 77.0)
    assert {name: (agent.rows, agent.link) for name, agent in proof.agents.items()} == {
        "agent": (2, rows[-1].link.hex()),
        "other": (3, grow(3, "other")[-1].link.hex()),
    }
    assert proof.looked_for == [
        "its line in the listing",
        "rows of agent agent",
        "rows of agent other",
        "what was set aside of it",
    ]
    assert holding(place, tmp_path) == []
    assert [info.session_id for info in await Sessions(place).list()] == ["kept"]
    assert await rows_in(place, "s") == []
    with pytest.raises(NotFound):
        await Sessions(place).delete("s")


async def test_a_session_in_live_hands_is_deleted_only_by_a_takeover(place: SessionLocation) -> None:
    await fill(place, "s", talk("hello").rows)
    owner = place.open_store()
    await owner.acquire("s")
    with pytest.raises(SessionBusy):
        await Sessions(place).delete("s")
    await Sessions(place).delete("s", takeover=True)
    assert await Sessions(place).list() == []
    await owner.aclose()


async def test_sessions_expire_by_their_last_change_and_not_while_somebody_owns_them(place: SessionLocation) -> None:
    for name, at in (("old", 100.0), ("owned", 100.0), ("new", 900.0)):
        await fill(place, name, grow(2, at=at))
    owner = place.open_store()
    await owner.acquire("owned")
    sessions = at_time(place, 1000.0)
    planned = await sessions.expire(timedelta(seconds=500), dry_run=True)
    assert (planned.dry_run, list(planned.expired), list(planned.proofs)) == (True, ["old"], [])
    assert len(await sessions.list()) == 3
    report = await sessions.expire(500)
    assert (report.older_than, list(report.expired)) == (500.0, ["old"])
    assert [proof.session_id for proof in report.proofs] == ["old"]
    assert [skipped.session_id for skipped in report.skipped] == ["owned"]
    assert report.skipped[0].why.startswith("it is in the hands of ")
    assert {info.session_id for info in await sessions.list()} == {"owned", "new"}
    await owner.aclose()
    assert list((await sessions.expire(500)).expired) == ["owned"]
    with pytest.raises(Invalid):
        await sessions.expire(-1)


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_sessions_with_accepted_work_do_not_expire_and_the_report_says_why(kind: str, tmp_path: Path) -> None:
    place = place_of(kind, tmp_path)
    for name in ("posted", "at rest"):
        await fill(place, name, grow(2, at=100.0))
    store = place.open_store()
    why: Why
    for why in ("turn", "result", "task", "delivery", "timer"):
        lease, _ = await store.acquire(why)
        due = DueTime(agent_id="agent", at=200.0, why=why)
        await store.append([Batch(lease=lease, rows=grow(2, at=100.0), due=due)])
        await give_up(store, lease)
    box = call_queue_of(store)
    assert box is not None
    await box.put(QueuedCall(session_id="posted", agent_id="agent", token="posted-1", call={"prompt": "cancel"}))
    await store.aclose()
    sessions = at_time(place, 1000.0)
    for dry_run in (True, False):
        report = await sessions.expire(500, dry_run=dry_run)
        assert set(report.expired) == {"at rest", "timer"}
        skipped = {each.session_id: each.why for each in report.skipped}
        assert skipped.keys() == {"posted", "turn", "result", "task", "delivery"}
        assert "posted calls that are not made: posted-1" in skipped["posted"]
        assert "owes work that was accepted: turn" in skipped["turn"]
    assert [call.token for call in (await sessions.cluster()).calls] == ["posted-1"]


async def test_a_redacted_text_is_named_where_a_posted_call_still_contains_it(tmp_path: Path) -> None:
    place = place_of("sqlite", tmp_path)
    await fill(place, "s", talk(f"I say that {SECRET}.", "yes").rows)
    store = place.open_store()
    box = call_queue_of(store)
    assert box is not None
    for token, prompt in (("with", SECRET), ("without", "hello")):
        await box.put(QueuedCall(session_id="s", agent_id="agent", token=token, call={"prompt": prompt}))
    await store.aclose()
    assert (await Sessions(place).redact_text("s", SECRET, "[removed]")).posted == ["with"]
