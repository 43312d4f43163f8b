"""Journals that earlier releases kept at `journals/<session>/`: opened with everything and moved, whatever happens.

The files in `tests/golden/snapshots-v1/older-place` were written by such a release, and are never written again.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import anyio
import pytest

from repertory.backends.aws_clients import AwsSettings
from repertory.backends.objects.in_memory import MemoryObjectStore, ObjectShelf
from repertory.backends.objects.s3 import S3ObjectStore
from repertory.backends.ports import Batch, Condition, ObjectInfo, ObjectStore, Overwrite, SessionStore, StoredObject
from repertory.backends.sessions.journal import maintenance as object_merging
from repertory.backends.sessions.journal import ownership as object_ownership
from repertory.backends.sessions.journal.format import MAGIC, unpack
from repertory.backends.sessions.journal.store import ObjectSessionStore
from repertory.backends.sessions.snapshots.store import SnapshotSessionStore
from repertory.core.journal.rows import Row
from repertory.errors import CorruptJournal, LeaseLost, NotFound, RepertoryError, SessionBusy, StoreFailed
from repertory.testing.counting_objects import CountingObjectStore
from repertory.testing.faulty_objects import FaultyObjectStore, ObjectFaults
from repertory.testing.session_contract import grow
from tests.app.sessions.tree_sessions import CountingObjects, Died
from tests.backends.sessions.object_places import on_files, on_objects, on_s3, on_shelf, virtual_shelf
from tests.backends.sessions.snapshot_places import (
    choices,
    snapshots_on,
    snapshots_on_files,
    snapshots_on_s3,
    snapshots_on_shelf,
)
from tests.source_tree import ROOT

pytestmark = pytest.mark.anyio

GOLDEN = ROOT / "tests/golden/snapshots-v1/older-place"
AGENTS = {
    "s": {"default": 14},
    "killed": {"default": 6},
    "%": {"default": 2},
    "run": {"multi_agent.default_graph": 3, "default_graph.researcher": 2, "default_graph.writer": 2},
}
FOLDERS = {"%": "%bbf3f11cb5b43e700273a78d12de55e4a7eab741ed2abf13787a4d2dc832b8ec"}


async def put_golden(objects: ObjectStore) -> None:
    for path in sorted(GOLDEN.rglob("*")):
        if path.is_file():
            await objects.put(path.relative_to(GOLDEN).as_posix(), path.read_bytes(), Overwrite())


async def rows_of(store: SessionStore, session_id: str, agents: Sequence[str]) -> dict[str, list[Row]]:
    return {agent_id: list(await store.load(session_id, agent_id, whole=True)) for agent_id in agents}


async def check_moves(older: ObjectSessionStore, store: SnapshotSessionStore, *, takeover: bool = False) -> None:
    """Each session is the same before and after it is opened, and can be gone on with."""
    expected = {name: await rows_of(older, name, list(agents)) for name, agents in AGENTS.items()}
    assert {name: {agent: len(rows) for agent, rows in each.items()} for name, each in expected.items()} == AGENTS
    assert {info.session_id: dict(info.agents) for info in await store.sessions()} == AGENTS
    for name, agents in AGENTS.items():
        assert await rows_of(store, name, list(agents)) == expected[name]
        lease = await store.acquire(name, takeover=takeover)
        for agent_id, rows in expected[name].items():
            assert list(await store.load(name, agent_id, whole=True)) == rows
        first = next(iter(agents))
        more = grow(1, "added", at=9.0)
        await store.append([Batch(lease=lease, rows=more)])
        await store.release(lease)
        (info,) = await store.sessions(name)
        assert dict(info.agents) == {**agents, "added": 1}
        assert (info.damaged, info.owner) == (False, None)
        assert list(await store.load(name, first, whole=True)) == expected[name][first]
        with pytest.raises(StoreFailed, match="SnapshotSessions"):
            await older.acquire(name)
    assert sorted(info.session_id for info in await store.sessions()) == sorted(AGENTS)
    assert list(await store.list_snapshot_ids("s", "default")) == ["1", "2"]
    assert await older.sessions() == []
    assert (await store.inspect()).strays == []


async def keys_in(objects: ObjectStore, prefix: str = "") -> list[str]:
    return [info.key for info in await objects.list(prefix)]


def check_left(keys: Sequence[str]) -> None:
    """What may be left at the older place: heads, which keep others out, and fences."""
    left = [key for key in keys if key.startswith(("journals/", "quarantine/"))]
    assert [key for key in left if not key.endswith("/head") and "/s/" not in key] == []


# -------------------------------------------------------------------------------------------------- what was written


async def test_what_an_earlier_release_has_written_is_opened_with_everything_in_memory() -> None:
    shelf = virtual_shelf()
    await put_golden(MemoryObjectStore(shelf))
    await anyio.sleep(11)  # The lease of the process that was killed is over.
    older, store = on_shelf(shelf, "older"), snapshots_on_shelf(shelf, "new")
    await check_moves(older, store)
    check_left(list(shelf.objects))
    assert not [key for key in shelf.objects if key.startswith("journals/") and said_in(shelf, key)]
    await store.aclose()
    await older.aclose()


@pytest.mark.real_time
async def test_the_same_in_files(tmp_path: Path) -> None:
    shutil.copytree(GOLDEN, tmp_path / "sessions")
    older, store = on_files(tmp_path / "sessions", "older"), snapshots_on_files(tmp_path / "sessions", "new")
    await check_moves(older, store)
    left = [path.relative_to(tmp_path / "sessions").as_posix() for path in (tmp_path / "sessions").rglob("*")]
    folders = {f"journals/{FOLDERS.get(name, name)}" for name in AGENTS}
    fences = {"journals/killed/s", "journals/killed/s/0000000000000004"}
    assert {key for key in left if key.startswith("journals/")} == {
        *folders,
        *(f"{each}/head" for each in folders),
        *fences,
    }
    await store.aclose()
    await older.aclose()


@pytest.mark.real_time
@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # agents and graphs do it on trio
async def test_the_same_in_a_bucket(s3_url: str, aws_keys: pytest.MonkeyPatch) -> None:
    del aws_keys
    prefix = "moving"
    objects = S3ObjectStore("bucket", prefix, writer="golden", aws=AwsSettings(endpoint_url=s3_url))
    await put_golden(objects)
    older, store = on_s3(s3_url, prefix, "older"), snapshots_on_s3(s3_url, prefix, "new")
    await check_moves(older, store, takeover=True)
    check_left(await keys_in(objects))
    for each in (store, older, objects):
        await each.aclose()


# --------------------------------------------------------------------------------------------------- moving, at length

SECRET = "the number of the card"


class Older:
    """A session as an earlier release keeps it, whose process was killed."""

    def __init__(self) -> None:
        self.shelf = virtual_shelf()
        self.rows: list[Row] = []

    @classmethod
    async def make(cls, commits: int) -> Older:
        older = cls()
        store = on_shelf(older.shelf, "older")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(store.maintain)
            lease = await store.acquire("s")
            rows = grow(3 * commits)
            for first in range(0, len(rows), 3):
                await store.append([Batch(lease=lease, rows=rows[first : first + 3])])
            await anyio.sleep(1)
            tasks.cancel_scope.cancel()
        await anyio.sleep(11)
        older.rows = rows
        await MemoryObjectStore(older.shelf).put("quarantine/journals/s/0001/head", b"set aside", Overwrite())
        return older

    def copy(self) -> ObjectShelf:
        """The same again, untouched."""
        shelf = virtual_shelf()
        shelf.objects, shelf.folders = dict(self.shelf.objects), self.shelf.folders.copy()
        return shelf


def said_in(shelf: ObjectShelf, key: str) -> list[bytes]:
    """The contents in an object of a journal; none in others."""
    if not shelf.objects[key].body.startswith(MAGIC):
        return []
    return [row.body for row in unpack(shelf.objects[key].body).rows if not row.erased]


def snapshots_of_before(shelf: ObjectShelf) -> SnapshotSessionStore:
    """As an earlier release keeps them."""
    objects = MemoryObjectStore(shelf)
    journal = on_objects(objects, "earlier")
    return SnapshotSessionStore(journal, objects, wall=anyio.current_time, entropy=os.urandom, choices=choices())


@asynccontextmanager
async def opened(shelf: ObjectShelf, owner: str = "next") -> AsyncGenerator[SnapshotSessionStore]:
    store = snapshots_on_shelf(shelf, owner)
    try:
        yield store
    finally:
        await store.aclose()


async def check_whole(shelf: ObjectShelf, rows: Sequence[Row]) -> None:
    """The session has these rows, before it is opened and afterwards, goes on, and all of it is at its place."""
    async with opened(shelf) as store:
        assert list(await store.load("s", "default", whole=True)) == rows
        (info,) = await store.sessions()
        assert (info.agents, info.damaged) == ({"default": len(rows)}, False)
        assert not (await store.salvage("s")).damages
        lease = await store.acquire("s", takeover=True)
        assert list(await store.load("s", "default", whole=True)) == rows
        more = grow(2, after=rows)
        await store.append([Batch(lease=lease, rows=more)])
        await store.release(lease)
        assert list(await store.load("s", "default", whole=True)) == [*rows, *more]
        assert await store.quarantined("s") == ["s/quarantine/0001"]
        assert (await store.inspect()).strays == []
    check_left(list(shelf.objects))
    assert not [key for key in shelf.objects if key.startswith("journals/") and said_in(shelf, key)]


async def test_a_move_that_is_cut_off_at_any_request_is_finished_by_the_next_opening(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(object_merging, "SEGMENTS_MERGED", 8)
    monkeypatch.setattr(object_ownership, "INLINE_BYTES_MAX", 256)
    older = await Older.make(commits=12)
    assert {key.split("/")[2] for key in older.shelf.objects if key.startswith("journals/")} == {"head", "s", "c", "w"}
    dies_at, survived = 0, False
    while not survived:
        shelf = older.copy()
        mortal = CountingObjects(MemoryObjectStore(shelf), [], dies_at)
        with suppress(Died):
            await snapshots_on(mortal, "mortal").acquire("s")
            survived = True
        await anyio.sleep(11)
        await check_whole(shelf, older.rows)
        dies_at += 1
    assert dies_at > 50


async def test_deleting_a_session_that_is_being_moved_leaves_nothing_of_it_anywhere() -> None:
    """Also when the deletion itself is cut off, and asked for again."""
    older = await Older.make(commits=6)
    dies_at, survived = 0, False
    while not survived:
        shelf = older.copy()
        with suppress(Died):
            await snapshots_on(CountingObjects(MemoryObjectStore(shelf), [], dies_at), "mortal").acquire("s")
            survived = True
        await anyio.sleep(11)
        for deletion_dies_at in (3, 6, 9, 12, 15, None):
            objects = CountingObjects(MemoryObjectStore(shelf), [], deletion_dies_at)
            with suppress(Died, NotFound):
                await snapshots_on(objects, "deletes").delete("s")
            await anyio.sleep(11)
        left = [key for key in shelf.objects if not key.endswith("/head") and "/s/" not in key]
        assert left == []
        assert not [key for key in shelf.objects if said_in(shelf, key)]
        async with opened(shelf) as store:
            assert await store.sessions() == []
            with pytest.raises(NotFound):
                await store.delete("s")
            await store.acquire("s")
            assert await store.load("s", "default", whole=True) == []
        store = on_shelf(shelf, "older")
        await store.acquire("s")  # For an earlier release as well, it is a new one.
        await store.aclose()
        dies_at += 1
    assert dies_at > 20


async def test_what_is_erased_between_two_attempts_to_move_stands_nowhere() -> None:
    """The first attempt has left copies of it, and an earlier release has erased it where it was."""
    older = await Older.make(commits=6)
    secret = older.rows[4]
    attempts = 0
    for dies_at in range(4, 40):
        shelf = older.copy()
        with suppress(Died):
            await snapshots_on(CountingObjects(MemoryObjectStore(shelf), [], dies_at), "mortal").acquire("s")
        await anyio.sleep(11)
        earlier = on_shelf(shelf, "earlier")
        with suppress(StoreFailed):
            lease = await earlier.acquire("s")
            await earlier.append([Batch(lease=lease, rows=[], erase=[("default", secret.seq)])])
            await earlier.release(lease)
            async with opened(shelf) as store:
                await store.acquire("s")
                assert (await store.load("s", "default", whole=True))[4].erased
            attempts += 1
            assert not [key for key in shelf.objects if secret.body in said_in(shelf, key)]
        await earlier.aclose()
    assert attempts > 8


async def test_an_owner_that_was_overtaken_while_it_copied_undoes_nothing_of_the_next_move() -> None:
    """It has read what was erased since, and puts it when the session has been moved by another one."""
    older = await Older.make(commits=6)
    secret = older.rows[4]
    shelf = older.copy()
    held, go_on = anyio.Event(), anyio.Event()

    class Held(CountingObjects):
        async def put(self, key: str, body: bytes, condition: Condition) -> str:
            if key == "s/journal/s/0000000000000002" and not held.is_set():
                held.set()
                await go_on.wait()
            return await super().put(key, body, condition)

    slow = snapshots_on(Held(MemoryObjectStore(shelf), []), "slow")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(slow.acquire, "s")
        await held.wait()
        earlier = on_shelf(shelf, "earlier")
        lease = await earlier.acquire("s", takeover=True)
        await earlier.append([Batch(lease=lease, rows=[], erase=[("default", secret.seq)])])
        await earlier.aclose()
        async with opened(shelf) as store:
            await store.release(await store.acquire("s"))
        assert not [key for key in shelf.objects if secret.body in said_in(shelf, key)]
        go_on.set()
    assert not [key for key in shelf.objects if secret.body in said_in(shelf, key)]
    assert (await slow.load("s", "default", whole=True))[4].erased
    await slow.aclose()


async def test_a_move_that_takes_longer_than_a_lease_is_not_broken_off_by_others() -> None:
    older = await Older.make(commits=100)
    shelf = older.copy()
    slow = snapshots_on(CountingObjectStore(MemoryObjectStore(shelf), latency_s=3.0), "slow")
    refused = 0

    async def others() -> None:
        nonlocal refused
        async with opened(shelf, "other") as store:
            while "s/journal/s/0000000000000100" not in shelf.objects:
                if "s/journal/s/0000000000000001" in shelf.objects:
                    with pytest.raises(SessionBusy):
                        await store.acquire("s")
                    refused += 1
                await anyio.sleep(1)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(others)
        lease = await slow.acquire("s")
    assert refused > 15
    assert lease.generation == 3  # the one of before, the one that moved it, and this one
    await slow.aclose()
    await check_whole(shelf, older.rows)


async def test_a_session_that_was_deleted_before_goes_on_behind_its_former_owners() -> None:
    shelf = virtual_shelf()
    earlier = on_shelf(shelf, "earlier")
    lease = await earlier.acquire("s")
    await earlier.append([Batch(lease=lease, rows=grow(1))])
    await earlier.delete("s")
    async with opened(shelf) as store:
        assert (await store.acquire("s")).generation > lease.generation
        assert await store.load("s", "default") == []
    await earlier.aclose()


@pytest.mark.parametrize("takeover", [False, True])
async def test_of_those_who_move_a_session_at_once_one_has_it_and_nothing_is_lost(takeover: bool) -> None:
    older = await Older.make(commits=12)
    acknowledged_count = 0
    for seed in range(12):
        rng = random.Random(seed)
        shelf = older.copy()
        faults = ObjectFaults(error_rate=0.004, throttle_rate=0.003, lost_rate=0.004, slow_rate=0.5, slow_s=1.0)
        stores = [
            snapshots_on(FaultyObjectStore(MemoryObjectStore(shelf), rng, faults), f"mover-{number}")
            for number in range(3)
        ]
        rows = list(older.rows)

        async def want(store: SnapshotSessionStore, rows: list[Row] = rows) -> None:
            """Get the session, say something, and give it up; what is not acknowledged may be there or not."""
            for _ in range(12):
                with suppress(RepertoryError):
                    acknowledged = {row.link for row in rows}
                    lease = await store.acquire("s", takeover=takeover)
                    found = list(await store.load("s", "default", whole=True))
                    assert [row.seq for row in found] == list(range(1, len(found) + 1))
                    assert acknowledged <= {row.link for row in found}
                    more = grow(1, after=found)
                    (outcome,) = await store.append([Batch(lease=lease, rows=more)])
                    if not isinstance(outcome, RepertoryError):
                        rows += more
                        await store.release(lease)
                        return
                await anyio.sleep(4)

        async with anyio.create_task_group() as tasks:
            for store in stores:
                tasks.start_soon(want, store)
        await anyio.sleep(30)
        async with opened(shelf) as store:
            await store.acquire("s", takeover=True)
            found = list(await store.load("s", "default", whole=True))
        assert {row.link for row in rows} <= {row.link for row in found}, seed
        acknowledged_count += len(rows) - len(older.rows)
        check_left(list(shelf.objects))
        for store in stores:
            with suppress(RepertoryError):
                await store.aclose()
    assert acknowledged_count > 0


async def test_an_owner_of_an_earlier_release_keeps_the_session_until_it_is_taken_over() -> None:
    shelf = virtual_shelf()
    rows = grow(4)
    earlier = on_shelf(shelf, "earlier")
    lease = await earlier.acquire("s")
    await earlier.append([Batch(lease=lease, rows=rows[:2])])
    async with opened(shelf) as store:
        with pytest.raises(SessionBusy):
            await store.acquire("s")
        assert list(await store.load("s", "default")) == rows[:2]
        (info,) = await store.sessions("s")
        assert info.owner == "earlier"
        with pytest.raises(SessionBusy):
            await store.delete("s")
        mine = await store.acquire("s", takeover=True)
        for batch in (Batch(lease=lease, rows=rows[2:3]), Batch(lease=lease, rows=[])):
            (outcome,) = await earlier.append([batch])
            assert isinstance(outcome, LeaseLost)
        await store.append([Batch(lease=mine, rows=rows[2:])])
        assert list(await store.load("s", "default")) == rows
        await earlier.release(lease)
        assert list(await store.load("s", "default", whole=True)) == rows
    await earlier.aclose()


@pytest.mark.parametrize("at", ["append", "prove"])
async def test_an_owner_that_notices_nothing_until_the_session_is_moved_and_cleared_gets_lease_lost(at: str) -> None:
    shelf = virtual_shelf()
    rows = grow(3)
    earlier = on_shelf(shelf, "earlier")
    lease = await earlier.acquire("s")
    await earlier.append([Batch(lease=lease, rows=rows[:2])])
    async with opened(shelf) as store:
        await store.release(await store.acquire("s", takeover=True))
        await store.delete("s")
    (outcome,) = await earlier.append([Batch(lease=lease, rows=rows[2:] if at == "append" else [])])
    assert isinstance(outcome, LeaseLost)
    await earlier.aclose()


async def test_who_keeps_journals_alone_is_told_where_a_session_has_gone() -> None:
    shelf = virtual_shelf()
    rows = grow(2)
    journals = on_shelf(shelf, "journals")
    await journals.append([Batch(lease=await journals.acquire("s"), rows=rows)])
    async with opened(shelf) as store:
        await store.acquire("s", takeover=True)
    calls = [
        journals.acquire("s", takeover=True),
        journals.load("s", "default"),
        journals.load_at("s", "default", 1),
        journals.delete("s"),
        journals.set_aside("s", rows),
    ]
    for call in calls:
        with pytest.raises(StoreFailed, match=r"SnapshotSessions.* moved_to='s/journal'"):
            await call
    assert await journals.sessions() == []
    async with opened(shelf) as store:
        assert list(await store.load("s", "default", whole=True)) == rows
    await journals.aclose()


async def test_sessions_of_unusual_names_are_moved_and_none_is_taken_for_another() -> None:
    shelf = virtual_shelf()
    names = ["journal", "journals", "quarantine", "%", "x" * 255, ".repertory-x", "Ärger"]
    journals = on_shelf(shelf, "journals")
    said = {name: grow(number) for number, name in enumerate(names, 1)}
    for name, rows in said.items():
        await journals.append([Batch(lease=await journals.acquire(name), rows=rows)])
    await journals.aclose()
    counts = {name: {"default": len(rows)} for name, rows in said.items()}
    for moved in range(len(names) + 1):
        async with opened(shelf, f"owner-{moved}") as store:
            assert {info.session_id: dict(info.agents) for info in await store.sessions()} == counts
            assert {name: list(await store.load(name, "default", whole=True)) for name in names} == said
            assert (await store.inspect()).strays == []
            for name in names[moved : moved + 1]:
                await store.release(await store.acquire(name))
    async with opened(shelf) as store:
        for name in names:
            await store.delete(name)
        assert await store.sessions() == []


# ------------------------------------------------------------------------------------------------ what is damaged there


async def test_a_session_whose_head_was_lost_is_refused_mended_where_it_is_and_moved() -> None:
    older = await Older.make(commits=6)
    shelf = older.copy()
    await MemoryObjectStore(shelf).delete("journals/s/head")
    async with opened(shelf) as store:
        for call in (store.acquire("s"), store.load("s", "default")):
            with pytest.raises(CorruptJournal, match="journals/s/head"):
                await call
        (info,) = await store.sessions()
        assert (info.session_id, info.damaged) == ("s", True)
        salvage = await store.salvage("s")
        assert [damage.where for damage in salvage.damages] == ["journals/s/head"]
        rows = sorted({row.seq: row for row in salvage.rows}.values(), key=lambda row: row.seq)
        assert rows == older.rows
        assert await store.set_aside("s", rows) == "quarantine/journals/s/0002"
        await store.release(await store.acquire("s"))
        assert list(await store.load("s", "default", whole=True)) == older.rows
        assert await store.quarantined("s") == ["s/quarantine/0001", "s/quarantine/0002"]
        assert await store.set_aside("s", rows) == "s/quarantine/0003"
        await store.delete("s")
    assert sorted(shelf.objects)[0] == "journals/s/head"
    assert not [key for key in shelf.objects if "quarantine" in key]


async def test_a_head_that_was_lost_after_the_move_is_not_made_anew_of_what_the_older_place_says() -> None:
    older = await Older.make(commits=6)
    shelf = older.copy()
    async with opened(shelf) as store:
        await store.release(await store.acquire("s"))
    await MemoryObjectStore(shelf).delete("s/journal/head")
    async with opened(shelf) as store:
        for call in (store.acquire("s"), store.load("s", "default")):
            with pytest.raises(CorruptJournal, match="s/journal/head"):
                await call
        rows = sorted({row.seq: row for row in (await store.salvage("s")).rows}.values(), key=lambda row: row.seq)
        await store.set_aside("s", rows)
        assert list(await store.load("s", "default", whole=True)) == rows == older.rows


async def test_an_operator_who_removes_the_folder_of_a_session_has_removed_the_session() -> None:
    older = await Older.make(commits=6)
    shelf = older.copy()
    async with opened(shelf) as store:
        await store.release(await store.acquire("s"))
        for key in await keys_in(MemoryObjectStore(shelf), "s/"):
            await MemoryObjectStore(shelf).delete(key)
        assert await store.sessions() == []
        await store.acquire("s")
        assert await store.load("s", "default", whole=True) == []


# ------------------------------------------------------------------------------------------------------- where it lies


class Policy:
    """Objects of which only some may be touched, as a policy for `<prefix>/<session>/*` says."""

    def __init__(self, objects: ObjectStore, allowed: str, *, lists: bool = False) -> None:
        self._objects = objects
        self._allowed = allowed
        self._lists = lists
        self.touched: list[str] = []

    @property
    def name(self) -> str:
        return self._objects.name

    def _check(self, key: str) -> None:
        if not key.startswith(self._allowed):
            raise StoreFailed("access denied", key=key)
        self.touched.append(key)

    async def get(self, key: str) -> StoredObject:
        self._check(key)
        return await self._objects.get(key)

    async def put(self, key: str, body: bytes, condition: Condition) -> str:
        self._check(key)
        return await self._objects.put(key, body, condition)

    async def list(self, prefix: str, start_after: str | None = None) -> Sequence[ObjectInfo]:
        if not self._lists:
            self._check(prefix)
        return await self._objects.list(prefix, start_after)

    async def delete(self, key: str) -> None:
        self._check(key)
        await self._objects.delete(key)

    async def aclose(self) -> None:
        await self._objects.aclose()


@pytest.mark.parametrize("lists", [False, True], ids=["may list its own", "may list all"])
async def test_a_policy_for_the_folder_of_a_session_is_enough_for_all_that_is_done_with_it(lists: bool) -> None:
    """Whatever is done, no key beyond that folder is read, written or removed."""
    shelf = virtual_shelf()
    policy = Policy(MemoryObjectStore(shelf), "s/", lists=lists)
    store = snapshots_on(policy, "one")
    rows, run = grow(400), grow(2, "default_graph.writer")
    assert await store.load("s", "default") == []
    lease = await store.acquire("s")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(store.maintain)
        for first in range(0, len(rows), 3):
            await store.append([Batch(lease=lease, rows=rows[first : first + 3])])
        await store.append([Batch(lease=lease, rows=run, erase=[("default", 1)])])
        await anyio.sleep(30)
        tasks.cancel_scope.cancel()
    other = snapshots_on(Policy(MemoryObjectStore(shelf), "s/", lists=lists), "two")
    with pytest.raises(SessionBusy):
        await other.acquire("s")
    await other.aclose()
    await store.release(lease)
    assert dict((await store.sessions("s"))[0].agents) == {"default": 400, "default_graph.writer": 2}
    await store.set_aside("s", list(await store.load("s", "default", whole=True)))
    assert await store.quarantined("s") == ["s/quarantine/0001"]
    assert await store.examine("s") == []
    kinds = {key.split("/")[1] for key in shelf.objects}
    assert kinds == {"journal", "scopes", "quarantine"}
    await store.delete("s")
    await store.aclose()
    assert {key.split("/")[0] for key in policy.touched} == {"s"}
    assert {key.split("/")[0] for key in shelf.objects} == {"s"}


async def test_where_the_older_place_may_not_be_read_a_session_of_before_is_refused_and_no_new_one() -> None:
    shelf = virtual_shelf()
    rows = grow(2)
    earlier = snapshots_of_before(shelf)
    lease = await earlier.acquire("s")
    await earlier.load("s", "default")
    await earlier.append([Batch(lease=lease, rows=rows)])
    await earlier.release(lease)
    await earlier.aclose()
    store = snapshots_on(Policy(MemoryObjectStore(shelf), "s/"), "one")
    for call in (store.acquire("s"), store.load("s", "default")):
        with pytest.raises(StoreFailed, match=r"allow access to its journal once.*journals/s"):
            await call
    await store.aclose()
    async with opened(shelf) as store:
        await store.release(await store.acquire("s"))
    store = snapshots_on(Policy(MemoryObjectStore(shelf), "s/"), "two")
    await store.acquire("s")
    assert list(await store.load("s", "default", whole=True)) == rows
    await store.aclose()
