"""Sessions with snapshots keep the contract: in memory, in files, in a bucket, and in a storage of a user's own."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

import pytest

from repertory.backends.aws_clients import AwsSettings
from repertory.backends.objects.in_memory import MemoryObjectStore, ObjectShelf
from repertory.backends.objects.s3 import S3ObjectStore
from repertory.backends.ports import Batch, IdPage, Overwrite, Position, SessionStore, begin, ends, give_up
from repertory.backends.sessions.snapshots.storage_store import StorageSessionStore
from repertory.backends.sessions.snapshots.store import SnapshotSessionStore
from repertory.errors import Invalid, LeaseLost
from repertory.runtime.testing.virtual_time import virtual_asyncio
from repertory.testing.counting_objects import CountingObjectStore
from repertory.testing.session_contract import SessionStoreContract, grow
from tests.backends.sessions.object_places import virtual_shelf
from tests.backends.sessions.snapshot_places import (
    AsyncStorage,
    choices,
    snapshots_in_storage,
    snapshots_on,
    snapshots_on_files,
    snapshots_on_s3,
    snapshots_on_shelf,
)


class TestSnapshotsInMemory(SessionStoreContract):
    @pytest.fixture(autouse=True)
    def shelves(self) -> None:
        self._shelves: dict[Path, ObjectShelf] = {}

    def shelf(self, place: Path) -> ObjectShelf:
        if place not in self._shelves:
            self._shelves[place] = virtual_shelf()
        return self._shelves[place]

    def open_store(self, place: Path, owner: str) -> SnapshotSessionStore:
        return snapshots_on_shelf(self.shelf(place), owner)


class TestSnapshotsOverSlowObjects(TestSnapshotsInMemory):
    """Requests that take their time change nothing, nor does it matter when the latest snapshot is saved."""

    @pytest.fixture(params=["asyncio"])
    def anyio_backend(self, request: pytest.FixtureRequest) -> object:
        """One loop is enough here, too."""
        return virtual_asyncio()

    def open_store(self, place: Path, owner: str) -> SnapshotSessionStore:
        self._counting = CountingObjectStore(MemoryObjectStore(self.shelf(place)), latency_s=0.01)
        return snapshots_on(self._counting, owner, choices("never"))

    async def work_done(self, store: SessionStore) -> int:
        return self._counting.listed + self._counting.requests.total()


@pytest.mark.real_time
class TestSnapshotsInFiles(SessionStoreContract):
    def open_store(self, place: Path, owner: str) -> SnapshotSessionStore:
        return snapshots_on_files(place / "home" / "sessions", owner)


@pytest.mark.real_time
class TestSnapshotsInABucket(SessionStoreContract):
    @pytest.fixture(params=["trio"])
    def anyio_backend(self, request: pytest.FixtureRequest) -> str:
        """One loop is enough here: the same store is tested on both, and so are the objects of a bucket."""
        return str(request.param)

    @pytest.fixture(autouse=True)
    def service(self, s3_url: str, aws_keys: pytest.MonkeyPatch) -> None:
        self._url = s3_url

    def open_store(self, place: Path, owner: str) -> SnapshotSessionStore:
        """A place is a prefix in the bucket, which every test shares."""
        return snapshots_on_s3(self._url, place_prefix(place), owner)

    async def test_a_snapshot_that_somebody_else_writes_is_met_with_the_next_proof(self, tmp_path: Path) -> None:
        rows = grow(2)
        async with self.stores(tmp_path, "one") as (store,):
            assert isinstance(store, SnapshotSessionStore)
            lease, _ = await store.acquire("session")
            await store.append([Batch(lease=lease, rows=rows)])
            await give_up(store, lease)
            lease, _ = await store.acquire("session")
            assert list(await store.load("session", "default")) == rows
            assert isinstance((await store.append([Batch(lease=lease, rows=[])]))[0], Position)
            objects = S3ObjectStore(
                "bucket", place_prefix(tmp_path), writer="them", aws=AwsSettings(endpoint_url=self._url)
            )
            key = "session/scopes/agent/default/snapshots/snapshot_latest.json"
            await objects.put(key, b'{"schemaVersion": "1.0", "data": {"messages": []}}', Overwrite())
            await objects.aclose()
            assert isinstance((await store.append([Batch(lease=lease, rows=[])]))[0], LeaseLost)


def place_prefix(place: Path) -> str:
    return sha256(f"snapshots {place}".encode()).hexdigest()


class TestSnapshotsInAStorage(SessionStoreContract):
    """A storage of a user's own has no leases, no lists and no removal. What differs by that is said here."""

    @pytest.fixture(autouse=True)
    def storages(self) -> None:
        self._storages: dict[Path, AsyncStorage] = {}

    def open_store(self, place: Path, owner: str) -> StorageSessionStore:
        return snapshots_in_storage(self._storages.setdefault(place, AsyncStorage()), owner)

    async def test_a_session_in_live_hands_is_busy(self, tmp_path: Path) -> None:
        """Nobody is ever refused: whoever opens a session last has it."""
        async with self.stores(tmp_path, "one", "two") as (one, two):
            await one.acquire("session")
            assert (await two.acquire("session")).lease.owner == "two"

    async def test_sessions_are_paged_by_what_their_ids_begin_with(self, tmp_path: Path) -> None:
        async with self.stores(tmp_path, "one") as (store,):
            with pytest.raises(Invalid, match="cannot tell which sessions it has"):
                await store.sessions(page=IdPage("a~"))

    async def test_a_page_costs_no_more_beside_many_sessions_of_others(self, tmp_path: Path) -> None:
        """There are no pages."""

    async def test_a_forgotten_agent_leaves_nothing_and_may_begin_anew(self, tmp_path: Path) -> None:
        """Nothing is removed, and the agent goes on."""
        gone = grow(5, "gone")
        async with self.stores(tmp_path, "one") as (store,):
            lease, _ = await store.acquire("session")
            await store.append([Batch(lease=lease, rows=gone[:2])])
            (outcome,) = await store.append([Batch(lease=lease, rows=(), forget=("gone", "nobody"))])
            assert isinstance(outcome, Position)
            assert await store.load("session", "gone")
            (outcome,) = await store.append([Batch(lease=lease, rows=gone[2:])])
            assert isinstance(outcome, Position)

    async def test_a_new_session_is_begun_whole_and_nobody_owns_it(self, tmp_path: Path) -> None:
        """It cannot tell whether a session is new."""
        async with self.stores(tmp_path, "one") as (store,):
            with pytest.raises(Invalid, match="cannot tell which sessions it has"):
                await begin(store, "session", grow(1))
            with pytest.raises(Invalid, match="cannot tell which sessions it has"):
                await ends(store, "session")

    async def test_a_session_that_begins_with_wrong_rows_is_not_begun(self, tmp_path: Path) -> None:
        async with self.stores(tmp_path, "one") as (store,):
            with pytest.raises(Invalid, match="cannot tell which sessions it has"):
                await begin(store, "session", grow(4)[2:])
            assert list(await store.load("session", "default")) == []

    async def test_a_takeover_fences_the_owner_before(self, tmp_path: Path) -> None:
        """An owner is fenced when another one has committed."""
        rows = grow(4)
        async with self.stores(tmp_path, "one", "two") as (one, two):
            old, _ = await one.acquire("session")
            await one.append([Batch(lease=old, rows=rows[:1])])
            new, _ = await two.acquire("session")
            assert list(await two.load("session", "default")) == rows[:1]
            await two.append([Batch(lease=new, rows=rows[1:3])])
            assert isinstance((await one.append([Batch(lease=old, rows=rows[1:2])]))[0], LeaseLost)
            assert isinstance((await one.append([Batch(lease=old, rows=rows[1:2])]))[0], LeaseLost)
            assert list(await two.load("session", "default", whole=True)) == rows[:3]

    async def test_a_stale_release_changes_nothing(self, tmp_path: Path) -> None:
        rows = grow(1)
        async with self.stores(tmp_path, "one") as (store,):
            old, _ = await store.acquire("session")
            new, _ = await store.acquire("session")
            await give_up(store, old)
            assert await store.append([Batch(lease=new, rows=rows)]) == [Position(agent_id="default", seq=1)]

    async def test_sessions_released_together_are_free_and_keep_their_rows(self, tmp_path: Path) -> None:
        """They were free before, too."""
        rows = grow(2)
        async with self.stores(tmp_path, "one", "two") as (one, two):
            leases = [(await one.acquire(f"session-{number}")).lease for number in range(5)]
            await one.append([Batch(lease=lease, rows=rows) for lease in leases])
            assert list(await one.release(leases)) == [None] * 5
            for lease in leases:
                assert isinstance((await one.append([Batch(lease=lease, rows=grow(3)[2:])]))[0], LeaseLost)
                await two.acquire(lease.session_id)
                assert list(await two.load(lease.session_id, "default", whole=True)) == rows

    async def test_of_sessions_released_together_those_in_other_hands_are_left_alone(self, tmp_path: Path) -> None:
        """Whoever has opened one since may write."""
        async with self.stores(tmp_path, "one", "two") as (one, two):
            leases = [(await one.acquire(name)).lease for name in ("first", "taken", "last")]
            taken, _ = await two.acquire("taken")
            assert list(await one.release(leases)) == [None] * 3
            assert not isinstance((await two.append([Batch(lease=taken, rows=grow(1))]))[0], LeaseLost)

    async def test_a_refused_batch_does_not_hinder_the_others(self, tmp_path: Path) -> None:
        rows = grow(2)
        async with self.stores(tmp_path, "one") as (store,):
            first, second = (await store.acquire("first")).lease, (await store.acquire("second")).lease
            batches = [(first, rows), (second, rows[1:]), (second, rows)]
            outcomes = await store.append([Batch(lease=lease, rows=part) for lease, part in batches])
            assert [type(outcome) for outcome in outcomes] == [Position, LeaseLost, Position]
            assert list(await store.load("first", "default", whole=True)) == rows
            assert list(await store.load("second", "default", whole=True)) == rows

    async def test_a_batch_without_rows_proves_the_lease_and_changes_nothing(self, tmp_path: Path) -> None:
        rows = grow(3)
        async with self.stores(tmp_path, "one", "two") as (one, two):
            lease, _ = await one.acquire("session")
            await one.append([Batch(lease=lease, rows=rows[:2])])
            assert isinstance((await one.append([Batch(lease=lease, rows=[])]))[0], Position)
            other, _ = await two.acquire("session")
            await two.append([Batch(lease=other, rows=rows[2:])])
            assert isinstance((await one.append([Batch(lease=lease, rows=[])]))[0], LeaseLost)
            assert list(await two.load("session", "default", whole=True)) == rows

    async def test_nothing_is_erased_under_a_stale_lease(self, tmp_path: Path) -> None:
        rows = grow(3)
        async with self.stores(tmp_path, "one", "two") as (one, two):
            old, _ = await one.acquire("session")
            await one.append([Batch(lease=old, rows=rows[:2])])
            new, _ = await two.acquire("session")
            await two.append([Batch(lease=new, rows=rows[2:])])
            assert isinstance((await one.append([Batch(lease=old, rows=[], erase=[("default", 1)])]))[0], LeaseLost)
            assert list(await two.load("session", "default", whole=True)) == rows

    async def test_nothing_is_loaded_of_what_was_never_stored(self, tmp_path: Path) -> None:
        async with self.stores(tmp_path, "one") as (store,):
            assert list(await store.load("session", "default")) == []
            await store.acquire("session")
            assert list(await store.load("session", "default", whole=True)) == []

    async def test_sessions_are_listed_the_most_recently_changed_first(self, tmp_path: Path) -> None:
        async with self.stores(tmp_path, "one") as (store,):
            with pytest.raises(Invalid, match="cannot tell which sessions it has"):
                await store.sessions()

    async def test_one_session_is_listed_alone(self, tmp_path: Path) -> None:
        async with self.stores(tmp_path, "one") as (store,):
            with pytest.raises(Invalid, match="cannot tell which sessions it has"):
                await store.sessions("a")

    async def test_a_deleted_session_is_gone_and_may_begin_anew(self, tmp_path: Path) -> None:
        async with self.stores(tmp_path, "one") as (store,):
            await store.acquire("session")
            with pytest.raises(Invalid, match="cannot remove anything"):
                await store.delete("session")

    async def test_delete_refuses_what_is_not_there_or_in_other_hands(self, tmp_path: Path) -> None:
        async with self.stores(tmp_path, "one") as (store,):
            with pytest.raises(Invalid, match="cannot remove anything"):
                await store.delete("session")
