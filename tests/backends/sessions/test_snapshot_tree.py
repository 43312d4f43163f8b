"""The tree of snapshots beside the journal: when it is put, who may write into it, and what becomes of damage."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from repertory.backends.objects.in_memory import MemoryObjectStore, ObjectShelf
from repertory.backends.ports import Batch, Create, Lease, Overwrite, Position, give_up
from repertory.backends.sessions.journal.format import BESIDE_SNAPSHOTS
from repertory.backends.sessions.journal.store import ObjectSessionStore
from repertory.backends.sessions.liveness import TimeToLive
from repertory.backends.sessions.snapshots.port import SnapshotChoices
from repertory.backends.sessions.snapshots.publisher import AgentSnapshots
from repertory.backends.sessions.snapshots.store import SnapshotSessionStore
from repertory.core.journal.records import MessageAdded, StateChanged
from repertory.core.journal.redact import redact
from repertory.core.journal.restore import Appender, messages_of, records_of, restore
from repertory.core.journal.rows import Row
from repertory.core.messages import Message, text_of
from repertory.errors import LeaseLost, NotFound, SessionBusy, SnapshotException, Unavailable
from repertory.testing.counting_objects import CountingObjectStore
from tests.app.sessions.tree_sessions import CountingObjects, Died
from tests.backends.sessions.object_places import virtual_shelf
from tests.backends.sessions.snapshot_places import TREE, choices, snapshots_on, snapshots_on_shelf

pytestmark = pytest.mark.anyio

LATEST = f"{TREE}snapshot_latest.json"
MANIFEST = f"{TREE}manifest.json"


def history(number: int) -> str:
    return f"{TREE}immutable_history/snapshot_{number:05}.json"


def document(shelf: ObjectShelf, key: str = LATEST) -> dict[str, Any]:
    return json.loads(shelf.objects[key].body)


def texts(shelf: ObjectShelf, key: str = LATEST) -> list[str]:
    """What a snapshot says."""
    return [text_of(message) for message in document(shelf, key)["data"]["messages"]]


def foreign(*said: str, **data: Any) -> bytes:
    """A latest snapshot as somebody else writes it."""
    messages = [
        {"role": "assistant" if number % 2 else "user", "content": [{"text": text}], "tracking_id": f"t{number}"}
        for number, text in enumerate(said)
    ]
    manager = {"__name__": "TheirManager", "removed_message_count": 0}
    data = {"messages": messages, "state": {}, "conversation_manager_state": manager, **data}
    envelope = {"scope": "agent", "schema_version": "1.0", "created_at": "2026-11-21T06:04:10Z", "app_data": {"a": 1}}
    return json.dumps({**envelope, "data": data}).encode()


async def put(shelf: ObjectShelf, key: str, body: bytes) -> None:
    await MemoryObjectStore(shelf).put(key, body, Overwrite())


class Session:
    """The one session, open, as its actors have it."""

    def __init__(self, store: SnapshotSessionStore, lease: Lease, rows: list[Row]) -> None:
        self.store = store
        self.lease = lease
        restored = restore(rows, session_id="s")
        self.appender = Appender("default", restored.fold, restored.link, lambda size: b"s" * size)

    @classmethod
    async def open(cls, store: SnapshotSessionStore, *, takeover: bool = False) -> Session:
        lease, _ = await store.acquire("s", takeover=takeover)
        return cls(store, lease, list(await store.load("s", "default")))

    @property
    def shown(self) -> list[str]:
        return [text_of(message) for message in self.appender.fold.shown.messages()]

    @property
    def snapshots(self) -> AgentSnapshots:
        found = self.store.snapshots.find("s", "default")
        assert isinstance(found, AgentSnapshots)
        return found

    def mark(self, at: float) -> Row:
        """The mark of the next numbered snapshot."""
        return self.appender.append(self.snapshots.history.mark(at))

    async def commit(self, *rows: Row, erase: tuple[int, ...] = ()) -> None:
        gone = [("default", seq) for seq in erase]
        (outcome,) = await self.store.append([Batch(lease=self.lease, rows=rows, erase=gone)])
        if not isinstance(outcome, Position):
            raise outcome

    async def prove(self) -> None:
        await self.commit()

    def message(self, role: Any, text: str) -> Row:
        message: Message = {"role": role, "content": [{"text": text}]}
        fold = self.appender.fold
        turn = max(1, fold.turns + (role == "user"))
        return self.appender.append(MessageAdded(at=1.0, message=message, turn=turn, index=fold.message_count))

    async def turn(self, text: str, *, snapshot: bool = False) -> None:
        """A prompt, an answer and, if it is wanted, the mark of a snapshot, in one commit."""
        rows = [self.message("user", text), self.message("assistant", f"re {text}")]
        if snapshot:
            rows.append(self.mark(2.0))
        await self.commit(*rows)

    async def close(self) -> None:
        await give_up(self.store, self.lease)


@asynccontextmanager
async def opened(
    shelf: ObjectShelf, chosen: SnapshotChoices | None = None, *, takeover: bool = False, owner: str = "one"
) -> AsyncGenerator[Session]:
    """The session, given up in the end."""
    store = snapshots_on_shelf(shelf, owner, chosen)
    try:
        session = await Session.open(store, takeover=takeover)
        yield session
        await session.close()
    finally:
        await store.aclose()


@pytest.fixture
def shelf() -> ObjectShelf:
    return virtual_shelf()


# ------------------------------------------------------------------------------------------------- when it is put


async def test_a_commit_is_not_kept_waiting_by_snapshots_and_the_last_state_wins(shelf: ObjectShelf) -> None:
    counted = CountingObjectStore(MemoryObjectStore(shelf), latency_s=1.0)
    store = snapshots_on(counted, "one")
    session = await Session.open(store)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(store.maintain)
        counted.take()
        began = anyio.current_time()
        for number in range(10):
            await session.turn(str(number))
        assert anyio.current_time() - began == pytest.approx(10.0)
        await anyio.sleep(5)
        latest = [key for key, _ in counted.puts if key == LATEST]
        assert 1 <= len(latest) <= 11
        assert len(texts(shelf)) == 20
        tasks.cancel_scope.cancel()
    await store.aclose()


@pytest.mark.parametrize(("latency_s", "ends_within_s", "puts"), [(1.0, 1.0, 1), (3600.0, 2.0, 2)], ids=["put", "hung"])
async def test_a_snapshot_that_is_being_put_when_maintenance_ends_is_finished_within_bounds(
    shelf: ObjectShelf, latency_s: float, ends_within_s: float, puts: int
) -> None:
    """A put that is cut off may have happened, so it would be looked for and put again."""
    counted = CountingObjectStore(MemoryObjectStore(shelf))
    store = snapshots_on(counted, "one")
    session = await Session.open(store)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(store.maintain)
        await session.turn("hi")
        counted.take()
        counted.latency_s = latency_s
        await anyio.sleep(0.1)
        began = anyio.current_time()
        tasks.cancel_scope.cancel()
    assert anyio.current_time() - began <= ends_within_s
    counted.latency_s = 0.0
    await store.aclose()
    assert [key for key, _ in counted.puts].count(LATEST) == puts
    assert len(texts(shelf)) == 2


@pytest.mark.parametrize(
    ("strategy", "after_prompt", "after_turn", "after_close"),
    [("message", 1, 2, 2), ("invocation", 0, 2, 2), ("never", 0, 0, 0), ("trigger", 0, 0, 0)],
)
async def test_the_strategy_says_when_the_latest_is_saved(
    shelf: ObjectShelf, strategy: Any, after_prompt: int, after_turn: int, after_close: int
) -> None:
    def saved() -> int:
        return len(texts(shelf)) if LATEST in shelf.objects else 0

    async with opened(shelf, choices(strategy)) as session, anyio.create_task_group() as tasks:
        tasks.start_soon(session.store.maintain)
        await session.commit(session.message("user", "hi"))
        await anyio.sleep(1)
        assert saved() == after_prompt
        await session.commit(session.message("assistant", "ho"))
        await anyio.sleep(1)
        assert saved() == after_turn
        tasks.cancel_scope.cancel()
    assert saved() == after_close
    async with opened(shelf, choices(strategy)) as session:
        assert session.shown == ["hi", "ho"]


@pytest.mark.parametrize("strategy", ["message", "invocation", "never"])
async def test_without_anybody_tending_it_is_put_when_the_session_is_given_up(
    shelf: ObjectShelf, strategy: Any
) -> None:
    async with opened(shelf, choices(strategy)) as session:
        await session.turn("a", snapshot=True)
        await session.turn("b")
        assert LATEST not in shelf.objects
    assert texts(shelf, history(1)) == ["a", "re a"]
    assert document(shelf, MANIFEST)["nextSnapshotId"] == "2"
    assert texts(shelf) == ["a", "re a", "b", "re b"]


async def test_a_failed_trigger_saves_the_latest_whatever_was_chosen(shelf: ObjectShelf) -> None:
    async with opened(shelf, choices("never")) as session:
        session.snapshots.want_latest()
        await session.turn("a")
        await session.turn("b")
    assert texts(shelf) == ["a", "re a", "b", "re b"]


async def test_a_numbered_snapshot_shows_the_turn_that_it_follows_however_late_it_is_put(shelf: ObjectShelf) -> None:
    async with opened(shelf) as session:
        for number in range(1, 6):
            rows = [session.message("user", str(number)), session.message("assistant", f"re {number}")]
            rows.append(session.appender.append(StateChanged(at=1.0, set={"n": number})))
            rows.append(session.mark(float(number)))
            await session.commit(*rows, *session.appender.restate(1.0))
    for number in range(1, 6):
        assert len(texts(shelf, history(number))) == 2 * number
        assert document(shelf, history(number))["data"]["state"] == {"n": number}
    assert document(shelf, MANIFEST)["repertory"]["last_snapshot_at"] == 5.0
    async with opened(shelf) as session:
        assert session.snapshots.history.last_at == 5.0
        assert await session.store.list_snapshot_ids("s", "default") == ["1", "2", "3", "4", "5"]


async def test_whatever_a_crash_left_out_is_put_by_the_next_owner() -> None:
    """The process dies at each request in turn; what was acknowledged is there, in the journal and in the tree."""
    dies_at, survived = 0, False
    while not survived:
        shelf = virtual_shelf()
        dies_at += 1
        mortal = CountingObjects(MemoryObjectStore(shelf), [], dies_at)
        store = snapshots_on(mortal, "mortal", choices("never"))
        acknowledged: list[str] = []
        try:
            session = await Session.open(store)
            for number in range(4):
                await session.turn(str(number), snapshot=number % 2 == 1)
                acknowledged.append(str(number))
            await session.close()
            survived = dies_at > len(mortal.requests)
        except Died:
            pass
        async with opened(shelf, choices("never"), takeover=True, owner="next") as session:
            marked = [text for text in session.shown if text in ("1", "3")]
            assert session.shown[::2][: len(acknowledged)] == acknowledged
        found = [number for number in (1, 2) if history(number) in shelf.objects]
        assert len(found) == len(marked)
        for number in found:
            assert len(texts(shelf, history(number))) == 4 * number
        if found:
            assert document(shelf, MANIFEST)["nextSnapshotId"] == str(len(found) + 1)
            assert texts(shelf)[: 4 * len(found)] == texts(shelf, history(len(found)))
    assert dies_at > 12


async def test_a_mark_that_comes_while_the_latest_snapshot_is_made_has_its_document_after_a_kill() -> None:
    """The latest snapshot must not show more than what was searched for marks: the next owner searches behind it."""
    shelf, reads, publishing = virtual_shelf(), list[str](), anyio.Event()

    class Busy(ObjectSessionStore):
        """Another turn is committed while the publisher reads the journal for the second time."""

        async def load(self, session_id: str, agent_id: str, *, whole: bool = False) -> Sequence[Row]:
            reads.append(agent_id)
            if publishing.is_set() and len(reads) == 2:
                await session.turn("second", snapshot=True)
            return await super().load(session_id, agent_id, whole=whole)

    objects = MemoryObjectStore(shelf)
    journal = Busy(objects, owner="mortal", life=TimeToLive(anyio.current_time), layout=BESIDE_SNAPSHOTS)
    store = SnapshotSessionStore(
        journal, objects, wall=anyio.current_time, entropy=os.urandom, choices=choices("never")
    )
    session = await Session.open(store)
    await session.turn("first", snapshot=True)
    reads.clear()
    publishing.set()
    await session.snapshots.publish()
    reads += ["published"] * 2
    if reads.count("default") == 1:
        await session.turn("second", snapshot=True)
    assert history(2) not in shelf.objects
    async with opened(shelf, choices("never"), takeover=True, owner="next") as again:
        assert again.shown == ["first", "re first", "second", "re second"]
    assert texts(shelf, history(1)) == ["first", "re first"]
    assert texts(shelf, history(2)) == ["first", "re first", "second", "re second"]


async def test_what_an_owner_puts_too_late_changes_nothing(shelf: ObjectShelf) -> None:
    slow = CountingObjectStore(MemoryObjectStore(shelf))
    late = snapshots_on(slow, "late")
    session = await Session.open(late)
    await session.turn("a")
    async with anyio.create_task_group() as tasks:
        slow.latency_s = 60.0
        tasks.start_soon(session.close)
        await anyio.sleep(1)
        async with opened(shelf, takeover=True, owner="next") as after:
            await after.turn("b")
    assert texts(shelf) == ["a", "re a", "b", "re b"]
    slow.latency_s = 0.0
    await late.aclose()
    assert texts(shelf) == ["a", "re a", "b", "re b"]


# ---------------------------------------------------------------------------------------------- what others write


async def test_a_session_that_others_began_is_gone_on_with(shelf: ObjectShelf) -> None:
    await put(shelf, LATEST, foreign("q", "r", state={"k": 1}, model_state={"m": 1}))
    store = snapshots_on_shelf(shelf, "looker")
    (info,) = await store.sessions()
    assert (info.session_id, dict(info.agents), info.owner) == ("s", {"default": 0}, None)
    assert list(await store.sessions("other")) == []
    assert list(await store.sessions("s")) == [info]
    seen = messages_of(records_of(await store.load("s", "default", whole=True)))
    assert [text_of(message) for message in seen.values()] == ["q", "r"]
    await store.aclose()
    async with opened(shelf) as session:
        assert session.shown == ["q", "r"]
        assert session.appender.fold.state == {"k": 1}
        await session.turn("a")
    said = document(shelf)
    assert texts(shelf) == ["q", "r", "a", "re a"]
    assert said["data"]["conversation_manager_state"]["__name__"] == "TheirManager"
    assert (said["data"]["model_state"], said["app_data"]) == ({"m": 1}, {"a": 1})
    async with opened(shelf) as session:
        await session.turn("b")
    assert document(shelf)["data"]["conversation_manager_state"]["__name__"] == "TheirManager"


async def test_what_others_add_between_is_taken_in(shelf: ObjectShelf) -> None:
    async with opened(shelf) as session:
        await session.turn("a")
    await put(shelf, LATEST, foreign("a", "re a", "theirs", "yes"))
    async with opened(shelf) as session:
        assert session.shown == ["a", "re a", "theirs", "yes"]
    records = records_of(await snapshots_on_shelf(shelf, "x").load("s", "default", whole=True))
    assert len(messages_of(records)) == 4


async def test_the_same_in_the_words_of_others_is_no_news(shelf: ObjectShelf) -> None:
    async with opened(shelf) as session:
        await session.turn("a")
    await put(shelf, LATEST, foreign("a", "re a"))
    async with opened(shelf) as session:
        assert session.appender.fold.last_seq == 2
    assert document(shelf)["repertory"]["seq"] == 2


async def test_an_older_snapshot_of_ours_is_no_news_either(shelf: ObjectShelf) -> None:
    async with opened(shelf) as session:
        await session.turn("a")
    older = shelf.objects[LATEST].body
    async with opened(shelf) as session:
        await session.turn("b")
    await put(shelf, LATEST, older)
    async with opened(shelf) as session:
        assert session.shown == ["a", "re a", "b", "re b"]
    assert texts(shelf) == ["a", "re a", "b", "re b"]


async def test_who_writes_while_the_session_is_open_is_met_before_the_next_turn(
    shelf: ObjectShelf, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(shelf) as session, anyio.create_task_group() as tasks:
        tasks.start_soon(session.store.maintain)
        await session.turn("a")
        await anyio.sleep(1)
        await session.prove()
        await put(shelf, LATEST, foreign("a", "re a", "theirs", "yes"))
        await session.turn("ours")
        await anyio.sleep(1)
        assert texts(shelf) == ["a", "re a", "theirs", "yes"]
        assert f"somebody else has written the latest snapshot file='{LATEST}'" in caplog.text
        with pytest.raises(LeaseLost, match="somebody else has written"):
            await session.prove()
        again = await Session.open(session.store)
        assert again.shown == ["a", "re a", "ours", "re ours", "theirs", "yes"]
        await again.prove()
        await again.close()
        tasks.cancel_scope.cancel()
    assert texts(shelf) == ["a", "re a", "ours", "re ours", "theirs", "yes"]


@pytest.mark.parametrize("strategy", ["message", "never"])
async def test_who_writes_during_the_last_turn_is_met_when_the_session_is_given_up(
    shelf: ObjectShelf, strategy: Any
) -> None:
    async with opened(shelf, choices(strategy)) as session:
        await session.turn("a", snapshot=True)
    async with opened(shelf, choices(strategy)) as session:
        await session.prove()
        await put(shelf, LATEST, foreign("a", "re a", "theirs", "yes"))
        await session.turn("ours", snapshot=True)
    async with opened(shelf) as session:
        assert session.shown == ["a", "re a", "ours", "re ours", "theirs", "yes"]


async def test_what_no_journal_can_say_is_kept_in_a_copy(shelf: ObjectShelf, caplog: pytest.LogCaptureFixture) -> None:
    theirs = foreign("q", interrupt_state={"interrupts": {"i": {}}, "context": {}, "activated": True})
    await put(shelf, LATEST, theirs)
    async with opened(shelf):
        pass
    (copy,) = (key for key in shelf.objects if "unreadable/" in key)
    assert shelf.objects[copy].body == theirs
    assert copy in caplog.text


# -------------------------------------------------------------------------------------------------------- damage

DAMAGED = [b"", b"\0" * 64, b'{"scope": "ag', b"[]", b"\xff\xfe", foreign("q").replace(b'"1.0"', b'"9.9"')]


@pytest.mark.parametrize("body", DAMAGED, ids=["empty", "zeros", "truncated", "a list", "binary", "version 9.9"])
async def test_a_damaged_latest_is_set_aside_and_the_journal_goes_on(
    shelf: ObjectShelf, body: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(shelf) as session:
        await session.turn("a")
    await put(shelf, LATEST, body)
    with caplog.at_level(logging.WARNING, "repertory.sessions"):
        async with opened(shelf) as session:
            assert session.shown == ["a", "re a"]
    (copy,) = (key for key in shelf.objects if key.startswith(f"{TREE}unreadable/snapshot_latest."))
    assert shelf.objects[copy].body == body
    assert LATEST in caplog.text
    assert texts(shelf) == ["a", "re a"]


@pytest.mark.parametrize("body", DAMAGED, ids=["empty", "zeros", "truncated", "a list", "binary", "version 9.9"])
async def test_without_a_journal_a_damaged_latest_is_an_error_that_names_it_and_a_way_out(
    shelf: ObjectShelf, body: bytes
) -> None:
    await put(shelf, LATEST, body)
    await put(shelf, history(4), foreign("q", "r"))
    with pytest.raises(SnapshotException, match="load_snapshot_id='4'") as caught:
        async with opened(shelf):
            pass
    assert caught.value.fields["file"] == LATEST
    assert shelf.objects[LATEST].body == body
    async with opened(shelf, choices(load="4")) as session:
        assert session.shown == ["q", "r"]
    assert texts(shelf) == ["q", "r"]
    assert any(kept.body == body for key, kept in shelf.objects.items() if "unreadable/" in key)


async def test_damage_while_the_session_is_open_is_set_aside(shelf: ObjectShelf) -> None:
    async with opened(shelf) as session, anyio.create_task_group() as tasks:
        tasks.start_soon(session.store.maintain)
        await session.turn("a")
        await anyio.sleep(1)
        await put(shelf, LATEST, b"oops")
        await session.prove()
        await session.turn("b")
        await anyio.sleep(1)
        assert texts(shelf) == ["a", "re a", "b", "re b"]
        tasks.cancel_scope.cancel()
    assert any(kept.body == b"oops" for key, kept in shelf.objects.items() if "unreadable/" in key)


async def test_an_altered_snapshot_of_ours_is_damage_and_without_our_key_it_is_what_somebody_else_wrote(
    shelf: ObjectShelf,
) -> None:
    async with opened(shelf) as session:
        await session.turn("a")
    altered = shelf.objects[LATEST].body.replace(b'"re a"', b'"edited"')
    await put(shelf, LATEST, altered)
    async with opened(shelf) as session:
        assert session.shown == ["a", "re a"]
    assert any(kept.body == altered for key, kept in shelf.objects.items() if "unreadable/" in key)
    theirs = {name: value for name, value in json.loads(altered).items() if name not in ("repertory", "sha256")}
    await put(shelf, LATEST, json.dumps(theirs).encode())
    async with opened(shelf) as session:
        assert session.shown == ["a", "edited"]


def flipped(body: bytes) -> bytes:
    """The number of the next snapshot altered, all else as it was."""
    return body.replace(b'"nextSnapshotId": "3"', b'"nextSnapshotId": "1"')


@pytest.mark.parametrize(
    "damage",
    [lambda body: b"{}x", lambda body: b"", lambda body: body[:40], flipped],
    ids=["rubbish", "empty", "cut", "flipped"],
)
async def test_a_damaged_manifest_is_made_anew_of_what_lies_there(shelf: ObjectShelf, damage: Any) -> None:
    async with opened(shelf) as session:
        await session.turn("a", snapshot=True)
        await session.turn("b", snapshot=True)
    before = document(shelf, MANIFEST)
    body = damage(shelf.objects[MANIFEST].body)
    assert body != shelf.objects[MANIFEST].body
    await put(shelf, MANIFEST, body)
    assert [each.where for each in await snapshots_on_shelf(shelf, "looks").examine("s")] == [MANIFEST]
    async with opened(shelf) as session:
        assert session.shown == ["a", "re a", "b", "re b"]
        await session.turn("c", snapshot=True)
    assert any(kept.body == body for key, kept in shelf.objects.items() if "unreadable/manifest." in key)
    assert document(shelf, MANIFEST)["nextSnapshotId"] == "4"
    assert before["nextSnapshotId"] == "3"
    assert [texts(shelf, history(number))[-1] for number in (1, 2, 3)] == ["re a", "re b", "re c"]
    await snapshots_on_shelf(shelf, "deletes").delete("s")
    assert not [key for key in shelf.objects if key.startswith("s/scopes/")]


async def test_damaged_snapshots_are_found_and_made_anew_by_a_repair(shelf: ObjectShelf) -> None:
    async with opened(shelf) as session:
        await session.turn("a", snapshot=True)
        await session.turn("b", snapshot=True)
    altered = shelf.objects[history(1)].body.replace(b'"re a"', b'"re x"')
    for key, body in ((history(1), altered), (LATEST, b"{"), (MANIFEST, b"\0")):
        await put(shelf, key, body)
    store = snapshots_on_shelf(shelf, "doctor")
    assert {each.where for each in await store.examine("s")} == {history(1), LATEST, MANIFEST}
    await store.capabilities.repair.set_aside("s", await store.load("s", "default", whole=True))
    await store.aclose()
    async with opened(shelf) as session:
        assert session.shown == ["a", "re a", "b", "re b"]
    assert [texts(shelf, history(number))[-1] for number in (1, 2)] == ["re a", "re b"]
    assert document(shelf, MANIFEST)["nextSnapshotId"] == "3"
    assert await snapshots_on_shelf(shelf, "looks").examine("s") == []
    assert {altered, b"{", b"\0"} <= {kept.body for key, kept in shelf.objects.items() if "unreadable/" in key}


async def test_a_tree_that_cannot_be_written_takes_no_turn_down(
    shelf: ObjectShelf, caplog: pytest.LogCaptureFixture
) -> None:
    class NoTree(CountingObjects):
        async def put(self, key: str, body: bytes, condition: Any) -> str:
            if key.startswith("s/scopes/"):
                raise Unavailable("no tree today", key=key)
            return await super().put(key, body, condition)

    store = snapshots_on(NoTree(MemoryObjectStore(shelf), []), "one")
    session = await Session.open(store)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(store.maintain)
        await session.turn("a", snapshot=True)
        await anyio.sleep(20)
        await session.turn("b")
        tasks.cancel_scope.cancel()
    await session.close()
    await store.aclose()
    assert "snapshots are not up to date" in caplog.text
    async with opened(shelf) as session:
        assert session.shown == ["a", "re a", "b", "re b"]
    assert texts(shelf, history(1)) == ["a", "re a"]
    assert texts(shelf) == ["a", "re a", "b", "re b"]


# -------------------------------------------------------------------------------------------- going back, and erasing


async def test_going_on_from_a_snapshot_branches_the_journal_and_numbers_go_on_behind_it(shelf: ObjectShelf) -> None:
    async with opened(shelf) as session:
        for number in range(1, 5):
            await session.turn(str(number), snapshot=True)
    async with opened(shelf, choices(load="2")) as session:
        assert session.shown == ["1", "re 1", "2", "re 2"]
        assert document(shelf, MANIFEST)["nextSnapshotId"] == "3"
        await session.turn("other", snapshot=True)
        assert session.appender.fold.turns == 5
    assert texts(shelf, history(3)) == ["1", "re 1", "2", "re 2", "other", "re other"]
    assert texts(shelf, history(4))[-1] == "re 4"
    assert texts(shelf)[-1] == "re other"
    async with opened(shelf) as session:
        assert session.shown[-1] == "re other"
        said = messages_of(records_of(await session.store.load("s", "default", whole=True)))
        assert [text_of(message) for message in said.values()][::2] == ["1", "2", "3", "4", "other"]


async def test_a_snapshot_to_go_on_from_is_taken_once_for_each_manager(shelf: ObjectShelf) -> None:
    async with opened(shelf) as session:
        await session.turn("1", snapshot=True)
        await session.turn("2")
    chosen = choices(load="1")
    for expected in (2, 4, 6):
        async with opened(shelf, chosen) as session:
            assert len(session.shown) == expected
            await session.turn("more")


@pytest.mark.parametrize("snapshot_id", ["01a1fcb4-7fbc-760e-83a0-e91458fb9691", "7"])
async def test_a_snapshot_of_others_can_be_gone_on_from(shelf: ObjectShelf, snapshot_id: str) -> None:
    async with opened(shelf) as session:
        await session.turn("a")
    name = snapshot_id if len(snapshot_id) > 5 else f"{int(snapshot_id):05}"
    await put(shelf, f"{TREE}immutable_history/snapshot_{name}.json", foreign("q", "r", state={"k": 1}))
    async with opened(shelf, choices(load=snapshot_id)) as session:
        assert session.shown == ["q", "r"]
        assert session.appender.fold.state == {"k": 1}
        await session.turn("b", snapshot=True)
        said = messages_of(records_of(await session.store.load("s", "default", whole=True)))
        assert [text_of(message) for message in said.values()] == ["a", "re a", "q", "r", "b", "re b"]
    assert history(8 if snapshot_id == "7" else 1) in shelf.objects


async def test_a_snapshot_that_is_not_there_or_damaged_is_named(shelf: ObjectShelf) -> None:
    async with opened(shelf) as session:
        await session.turn("1", snapshot=True)
    with pytest.raises(NotFound, match=r"no such snapshot snapshot_id='3' known=\['1'\]"):
        async with opened(shelf, choices(load="3")):
            pass
    await put(shelf, history(3), b"{")
    with pytest.raises(SnapshotException, match=r"snapshot_00003\.json"):
        async with opened(shelf, choices(load="3")):
            pass
    async with opened(shelf) as session:
        assert session.shown == ["1", "re 1"]


async def test_what_is_redacted_is_gone_from_every_snapshot(shelf: ObjectShelf) -> None:
    secret = "my secret is 4711"
    async with opened(shelf) as session:
        await session.turn("a", snapshot=True)
        await session.turn(secret, snapshot=True)
        await session.turn("b", snapshot=True)
    theirs = f"{TREE}immutable_history/snapshot_01a1fcb4-7fbc-760e-83a0-e91458fb9691.json"
    await put(shelf, theirs, foreign("a", "re a", secret, "re"))
    async with opened(shelf) as session:
        whole = await session.store.load("s", "default", whole=True)
        message: Message = {"role": "user", "content": [{"text": "[redacted]"}]}
        (target,) = (seq for seq, said in messages_of(records_of(whole)).items() if text_of(said) == secret)
        redaction = redact(session.appender, whole, target, message, 3.0)
        await session.commit(*redaction.rows, erase=redaction.erase)
        tree = b"".join(kept.body for key, kept in shelf.objects.items() if key.startswith("s/scopes/"))
        assert secret.encode() in tree  # The answer repeats it, as another message.
        assert f'"{secret}"'.encode() not in tree
    assert texts(shelf, history(2)) == ["a", "re a", "[redacted]", f"re {secret}"]
    assert texts(shelf, theirs) == ["a", "re a", "[redacted]", "re"]
    assert document(shelf, theirs)["data"]["messages"][2]["tracking_id"] == "t2"
    assert texts(shelf)[2] == "[redacted]"
    async with opened(shelf, choices(load="2")) as session:
        assert session.shown == ["a", "re a", "[redacted]", f"re {secret}"]


async def test_deleting_a_session_removes_its_snapshots_and_nothing_brings_them_back(shelf: ObjectShelf) -> None:
    slow = CountingObjectStore(MemoryObjectStore(shelf))
    store = snapshots_on(slow, "one")
    session = await Session.open(store)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(store.maintain)
        await session.turn("a", snapshot=True)
        slow.latency_s = 1.0
        await anyio.sleep(0.5)
        await store.delete("s")
        slow.latency_s = 0.0
        await anyio.sleep(30)
        tasks.cancel_scope.cancel()
    await store.aclose()
    assert not [key for key in shelf.objects if key.startswith("s/scopes/")]
    async with opened(shelf, owner="next") as session:
        assert session.shown == []


async def test_a_session_of_others_can_be_deleted_and_a_busy_one_cannot(shelf: ObjectShelf) -> None:
    await put(shelf, LATEST, foreign("q"))
    store = snapshots_on_shelf(shelf, "two")
    async with opened(shelf):
        with pytest.raises(SessionBusy):
            await store.delete("s")
        assert LATEST in shelf.objects
    await store.delete("s")
    assert not [key for key in shelf.objects if key.startswith("s/scopes/")]
    await put(shelf, LATEST, foreign("q"))
    await store.delete("s")
    with pytest.raises(NotFound):
        await store.delete("s")
    await store.aclose()


# --------------------------------------------------------------------------------------------------- where it lies


@pytest.mark.parametrize("session_id", ["journals", "%", "x" * 255, ".repertory-x", "Ärger", "..."])
@pytest.mark.parametrize("agent_id", ["default", "%", ".repertory-x"])
async def test_unusual_ids_have_trees_of_their_own(shelf: ObjectShelf, session_id: str, agent_id: str) -> None:
    store = snapshots_on_shelf(shelf, "one")
    appender = Session(store, Lease(session_id="", owner="", generation=0), []).appender
    lease, _ = await store.acquire(session_id)
    rows = [Appender(agent_id, appender.fold, None, lambda size: b"s" * size).append(StateChanged(at=1.0, full={}))]
    await store.append([Batch(lease=lease, rows=rows)])
    await give_up(store, lease)
    assert len([key for key in shelf.objects if key.endswith("/snapshots/snapshot_latest.json")]) == 1
    await store.delete(session_id)
    assert not [key for key in shelf.objects if key.endswith(".json")]
    await store.aclose()


async def test_what_a_journal_can_do_besides_is_passed_on(shelf: ObjectShelf) -> None:
    async with opened(shelf) as session:
        await session.turn("a")
        assert await session.store.capabilities.sharing.asked_for() == []
    store = snapshots_on_shelf(shelf, "doctor")
    assert store.capabilities.maintained
    assert store.capabilities.sharing is not None
    repair = store.capabilities.repair
    assert repair is not None
    assert (await repair.inspect()).damages == ()
    rows = list(await store.load("s", "default", whole=True))
    assert set((await repair.salvage("s")).rows) == set(rows)
    moved_to = await repair.set_aside("s", rows[:1])
    assert list(await repair.quarantined("s")) == [moved_to]
    await store.aclose()
    async with opened(shelf, owner="next") as session:
        assert session.shown == ["a", "re a"]


async def test_objects_of_others_are_left_alone(shelf: ObjectShelf) -> None:
    for key in ("s/scopes/another/g/snapshots/snapshot_latest.json", "offloader/x_0", "session_s/session.json"):
        await MemoryObjectStore(shelf).put(key, b"theirs", Create())
    async with opened(shelf) as session:
        await session.turn("a")
    store = snapshots_on_shelf(shelf, "two")
    assert [info.session_id for info in await store.sessions()] == ["s"]
    await store.delete("s")
    await store.aclose()
    assert sum(kept.body == b"theirs" for kept in shelf.objects.values()) == 3
