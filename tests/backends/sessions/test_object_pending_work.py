"""Pending work of journals on objects: a marker too many, never one too few, and at its price."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import anyio
import pytest

from repertory import AgentSpec, FileStorage, InMemoryStorage, JournalSessions, Runtime, ScriptedModel
from repertory.backends.objects.in_memory import MemoryObjectStore, ObjectShelf
from repertory.backends.ports import Batch, Create, Lease, ObjectInfo, ObjectStore, WorkQuery, give_up
from repertory.backends.sessions.journal.format import JOURNALS
from repertory.backends.sessions.journal.pending_work import LISTED_PER_S, SessionDebts
from repertory.backends.sessions.journal.store import ObjectSessionStore
from repertory.core.pending_work import DueTime
from repertory.errors import RepertoryError, Retryable, StoreFailed
from repertory.testing.counting_objects import CountingObjectStore
from repertory.testing.cuts import Cuts, LostWhen
from repertory.testing.cutting_objects import CuttingObjectStore
from repertory.testing.session_contract import grow
from tests.app.sessions.test_journal_sessions import Counted
from tests.backends.sessions.object_places import on_objects, virtual_shelf

pytestmark = pytest.mark.anyio

ROWS = grow(4)
HAS_WORK, DONE = DueTime(agent_id="default", at=1.0), DueTime(agent_id="default")


async def committed(store: ObjectSessionStore, lease: Lease, first: int, due: DueTime | None) -> None:
    """Commit one row. Errors are raised."""
    (outcome,) = await store.append([Batch(lease=lease, rows=ROWS[first : first + 1], due=due)])
    if isinstance(outcome, RepertoryError):
        raise outcome


async def turn(store: ObjectSessionStore) -> None:
    """A turn that is owed from its first commit to its second, after one that was owed before."""
    lease, _ = await store.acquire("session")
    await committed(store, lease, 0, DueTime(agent_id="default", at=5.0, why="memory"))
    await committed(store, lease, 1, HAS_WORK)
    await committed(store, lease, 2, DONE)


@pytest.mark.parametrize("cut", ["before", "after"])
async def test_wherever_a_turn_is_cut_short_what_is_not_finished_is_owed(cut: LostWhen) -> None:
    for number in range(1, 50):
        shelf, cuts = virtual_shelf(), Cuts()
        store = on_objects(CuttingObjectStore(MemoryObjectStore(shelf), cuts), "cut")
        cuts.plan(cut, number, stays=True)
        try:
            await turn(store)
        except Retryable:
            pass
        else:
            assert number > 6
            if not cuts.mend():
                return
        await anyio.sleep(60)
        other = on_objects(MemoryObjectStore(shelf), "other")
        rows = await other.load("session", "default", whole=True)
        pending_work = [(work.at, work.why) for work in await other.pending_work()]
        if len(rows) == 1:
            assert pending_work in ([(5.0, "memory")], [(1.0, "turn")])
        if len(rows) == 2:
            assert pending_work == [(1.0, "turn")]
        if pending_work:
            (claimed,) = await other.claim_due(WorkQuery(100.0, 10, ["default"]))
            lease, _ = await other.acquire("session")
            await other.append([Batch(lease=lease, rows=(), due=DONE)])
            assert (claimed.claims, list(await other.pending_work())) == (1, [])
            assert not await markers(shelf)
        await other.aclose()
    raise AssertionError("the turn never came to its end")


async def markers(shelf: ObjectShelf) -> list[str]:
    return [info.key for info in await MemoryObjectStore(shelf).list("pending/")]


async def test_a_request_of_a_former_owner_that_arrives_late_removes_nothing_of_its_successor() -> None:
    shelf = virtual_shelf()
    keys, objects = JOURNALS.keys_of("session"), MemoryObjectStore(shelf)
    late, later = (SessionDebts(objects, keys, "session", generation) for generation in (1, 2))
    await late.owe({"default": HAS_WORK})
    await later.owe({"default": HAS_WORK})
    await later.settle({"default": HAS_WORK})
    left = await markers(shelf)
    await late.settle({"default": DONE})
    await SessionDebts(objects, keys, "session", 1).forget()
    assert len(left) == 1
    assert await markers(shelf) == left


async def test_a_marker_that_a_deleted_session_has_left_wakes_nobody_and_is_removed() -> None:
    shelf = virtual_shelf()
    store = on_objects(MemoryObjectStore(shelf), "one")
    lease, _ = await store.acquire("session")
    await committed(store, lease, 0, None)
    await store.delete("session")
    assert not await markers(shelf)
    debts = SessionDebts(MemoryObjectStore(shelf), JOURNALS.keys_of("session"), "session", lease.generation)
    await debts.owe({"default": HAS_WORK})
    assert (list(await store.pending_work()), len(await markers(shelf))) == ([], 1)
    assert list(await store.claim_due(WorkQuery(100.0, 10, ["default"]))) == []
    assert not await markers(shelf)


async def test_a_damaged_marker_hides_no_other() -> None:
    shelf = virtual_shelf()
    store = on_objects(MemoryObjectStore(shelf), "one")
    for name in ("damaged", "sound"):
        lease, _ = await store.acquire(name)
        await committed(store, lease, 0, HAS_WORK)
        await give_up(store, lease)
    (key, _) = await markers(shelf)
    objects = MemoryObjectStore(shelf)
    await objects.delete(key)
    await objects.put(key, b"{", Create())
    assert [work.session_id for work in await store.claim_due(WorkQuery(100.0, 10, ["default"]))] == ["sound"]
    assert [work.session_id for work in await store.pending_work()] == ["sound"]


class Overtaken(MemoryObjectStore):
    """Pending work is stated anew right after it was listed, as often as there are changes left."""

    def __init__(self, shelf: ObjectShelf, debts: SessionDebts, changes: int) -> None:
        super().__init__(shelf)
        self.debts, self.changes = debts, changes

    async def list(self, prefix: str, start_after: str | None = None) -> Sequence[ObjectInfo]:
        found = await super().list(prefix, start_after)
        if prefix.startswith("pending/") and self.changes:
            self.changes -= 1
            await self.debts.owe({"default": HAS_WORK})
            await self.debts.settle({"default": HAS_WORK})
        return found


async def test_what_is_stated_anew_while_it_is_listed_is_listed() -> None:
    shelf = virtual_shelf()
    store = on_objects(MemoryObjectStore(shelf), "one")
    lease, _ = await store.acquire("session")
    await committed(store, lease, 0, None)
    debts = SessionDebts(MemoryObjectStore(shelf), JOURNALS.keys_of("session"), "session", lease.generation)
    await debts.owe({"default": HAS_WORK})
    looking = on_objects(Overtaken(shelf, debts, 3), "looking")
    assert [work.session_id for work in await looking.pending_work()] == ["session"]


async def test_looking_is_one_list_and_a_live_owner_is_asked_for_rarely() -> None:
    shelf = virtual_shelf()
    counts = CountingObjectStore(MemoryObjectStore(shelf))
    owner, looking = on_objects(MemoryObjectStore(shelf), "owner"), on_objects(counts, "looking")
    assert list(await looking.claim_due(WorkQuery(100.0, 10, ["default"]))) == []
    assert counts.take() == {"list": 1}
    lease, _ = await owner.acquire("session")
    await committed(owner, lease, 0, HAS_WORK)
    assert list(await looking.claim_due(WorkQuery(100.0, 10, ["default"]))) == []
    assert counts.take() == {"list": 2, "get": 2}
    for _ in range(5):
        await anyio.sleep(1)
        assert list(await looking.claim_due(WorkQuery(100.0, 10, ["default"]))) == []
    assert counts.take() == {"list": 5}
    await anyio.sleep(20)
    assert len(await looking.claim_due(WorkQuery(100.0, 10, ["default"]))) == 1


async def test_where_much_is_owed_a_store_looks_less_often() -> None:
    objects: ObjectStore = MemoryObjectStore(virtual_shelf())
    for number in range(3 * LISTED_PER_S):
        await objects.put(f"pending/journals/s{number}/default/{1:016}-{1:08}-{10**9:012}", b"{}", Create())
    counts = CountingObjectStore(objects)
    store = on_objects(counts, "one")
    for _ in range(6):
        assert list(await store.claim_due(WorkQuery(100.0, 10, ["default"]))) == []
        await anyio.sleep(1)
    assert counts.take() == {"list": 2}


@pytest.mark.real_time
async def test_a_turn_of_a_runtime_that_is_answered_at_once_is_one_put() -> None:
    storage = Counted()
    async with Runtime(sessions=JournalSessions(storage), wakes_max=0) as runtime:
        session = runtime.agent(AgentSpec(model=ScriptedModel(["hi"], loop=True))).session("s")
        await session.invoke("one")
        storage.take()
        await session.invoke("two")
        assert storage.take() == {"put": 1}


class Unlisted(MemoryObjectStore):
    """A bucket in which this process has no right to list pending work."""

    async def list(self, prefix: str, start_after: str | None = None) -> Sequence[ObjectInfo]:
        if prefix.startswith("pending/"):
            raise StoreFailed("no right to list", prefix=prefix)
        return await super().list(prefix, start_after)


class UnlistedStorage(InMemoryStorage):
    def open_objects(self, writer: str) -> ObjectStore:
        del writer
        return Unlisted(self._shared())


@pytest.mark.real_time
async def test_a_runtime_that_may_not_list_what_is_owed_says_so_once_and_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with Runtime(sessions=JournalSessions(UnlistedStorage())) as runtime:
        session = runtime.agent(AgentSpec(model=ScriptedModel(["hi"], loop=True))).session("s")
        await anyio.sleep(3)
        assert str(await session.invoke("one")).strip() == "hi"
    assert len([one for one in caplog.records if "pending work cannot be read" in one.getMessage()]) == 1


@pytest.mark.real_time
async def test_a_timer_in_a_folder_fires_though_its_session_was_given_up(tmp_path: Path) -> None:
    place, spec = JournalSessions(FileStorage(tmp_path)), AgentSpec(name="a", model=ScriptedModel(["hi"], loop=True))
    async with Runtime(sessions=place) as runtime:
        await runtime.schedule(runtime.agent(spec).session("s"), "ring", in_s=0.5)
    with anyio.fail_after(30):
        async with Runtime(sessions=place) as runtime:
            session = runtime.agent(spec).session("s")
            store = place.open_store()
            while await store.pending_work():  # noqa: ASYNC110 - another store's state
                await anyio.sleep(0.1)
            await store.aclose()
            assert len(await session.messages()) == 2
