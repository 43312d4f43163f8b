"""The requirements on every `SessionStore`, as tests. Subclass it next to your store's own tests:

    class TestMyStore(SessionStoreContract):  # MyStore is a subclass of `SessionStore`
        def open_store(self, place: Path, owner: str) -> SessionStore:
            return MyStore(place / "sessions", owner=owner)

Each test runs on the event loops that the project's `anyio_backend` fixture offers. Needs pytest.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import anyio
import pytest

from repertory.backends.ports import (
    Batch,
    Lease,
    Position,
    SessionStore,
    Waking,
    WorkQuery,
    begin,
    ends,
    give_up,
    load_range,
    pending_work_of,
)
from repertory.core.journal.fold import Fold
from repertory.core.journal.records import SnapshotTaken, StateChanged, View, ViewChanged
from repertory.core.journal.restore import Appender, restore
from repertory.core.journal.rows import RecordKind, Row, verify
from repertory.core.pending_work import CLAIMS_MAX, DueTime, next_due
from repertory.errors import AlreadyExists, Invalid, LeaseLost, NotFound, SessionBusy
from repertory.testing.session_handover_contract import SessionHandoverContract, grow, say
from repertory.testing.session_pages_contract import taken_back

WAIT_S = 20.0
"""The time limit of every test, in seconds."""


def windowed(count: int) -> list[Row]:
    """Rows of a conversation whose window is its last four messages, with a snapshot after every tenth message."""
    appender = Appender("default", Fold(), None, lambda size: b"s" * size)
    rows: list[Row] = []
    for number in range(count):
        rows.append(say(appender, 1.0))
        if number % 10 == 9:
            rows.append(appender.append(SnapshotTaken(at=float(number), label=f"after {number}")))
            view = View(first_shown=rows[-5].seq)
            rows.append(appender.append(ViewChanged(at=float(number), view=view, patch=True)))
    return rows


def _waking(store: SessionStore) -> Waking:
    waking = store.capabilities.waking
    assert waking is not None
    return waking


class SessionStoreContract(SessionHandoverContract):
    """The contract. Two stores opened on the same place share their sessions, as two processes would."""

    pytestmark = pytest.mark.anyio

    @abstractmethod
    def open_store(self, place: Path, owner: str) -> SessionStore:
        """A new store over the sessions in `place`, with this owner name.

        Args:
            place: A folder of the test's own.
            owner: The name of the store's owner.
        """

    @asynccontextmanager
    async def stores(self, place: Path, *owners: str) -> AsyncGenerator[list[SessionStore]]:
        """Open one store per owner, closed at the end, within the time limit.

        Args:
            place: A folder of the test's own.
            owners: The names of the stores' owners.
        """
        with anyio.fail_after(WAIT_S):
            async with AsyncExitStack() as stack:
                opened = [self.open_store(place, owner) for owner in owners]
                for store in opened:
                    stack.push_async_callback(store.aclose)
                yield opened

    async def begun(self, store: SessionStore, names: Sequence[str]) -> None:
        """Sessions with two rows, which nobody owns.

        Args:
            store: A store of `open_store`.
            names: The ids of the sessions.
        """
        for name in names:
            lease, _ = await store.acquire(name)
            await store.append([Batch(lease=lease, rows=grow(2, at=10.0))])
            await give_up(store, lease)

    async def test_what_was_appended_is_loaded_again(self, tmp_path: Path) -> None:
        async with self.stores(tmp_path, "one") as (store,):
            rows = grow(5)
            lease, _ = await store.acquire("session")
            outcomes = await store.append([Batch(lease=lease, rows=rows[:2])])
            assert outcomes == [Position(agent_id="default", seq=2)]
            assert await store.append([Batch(lease=lease, rows=rows[2:])]) == [Position(agent_id="default", seq=5)]
            assert list(await store.load("session", "default", whole=True)) == rows

    async def test_a_store_opened_later_finds_everything(self, tmp_path: Path) -> None:
        rows = grow(30)
        async with self.stores(tmp_path, "one") as (store,):
            lease, _ = await store.acquire("session")
            await store.append([Batch(lease=lease, rows=rows)])
        async with self.stores(tmp_path, "two") as (store,):
            loaded = list(await store.load("session", "default", whole=True))
        assert loaded == rows
        verify(loaded, session_id="session")

    async def test_nothing_is_loaded_of_what_was_never_stored(self, tmp_path: Path) -> None:
        async with self.stores(tmp_path, "one") as (store,):
            assert list(await store.load("session", "default")) == []
            await store.acquire("session")
            assert list(await store.load("session", "default", whole=True)) == []
            assert list(await store.sessions()) == []

    async def test_load_begins_at_the_last_rows_low(self, tmp_path: Path) -> None:
        appender = Appender("default", Fold(), None, lambda size: b"s" * size)
        rows = [appender.append(StateChanged(at=1.0, full={"n": n})) for n in range(9)]
        rows.append(appender.append(SnapshotTaken(at=2.0, label="here")))
        async with self.stores(tmp_path, "one") as (store,):
            lease, _ = await store.acquire("session")
            await store.append([Batch(lease=lease, rows=rows)])
            loaded = list(await store.load("session", "default"))
        assert rows[-1].low == 8
        assert loaded == rows[7:]
        assert restore(loaded).fold.image() == appender.fold.image()

    async def test_agents_of_a_session_have_journals_of_their_own(self, tmp_path: Path) -> None:
        first, second = grow(3, "first"), grow(2, "second")
        async with self.stores(tmp_path, "one") as (store,):
            lease, _ = await store.acquire("session")
            mixed = [first[0], second[0], first[1], second[1], first[2]]
            assert await store.append([Batch(lease=lease, rows=mixed)]) == [Position(agent_id="first", seq=3)]
            assert list(await store.load("session", "first", whole=True)) == first
            assert list(await store.load("session", "second", whole=True)) == second

    async def test_many_sessions_are_committed_in_one_group(self, tmp_path: Path) -> None:
        async with self.stores(tmp_path, "one") as (store,):
            journals = {f"session-{n}": grow(4, at=float(n)) for n in range(20)}
            leases = {name: (await store.acquire(name)).lease for name in journals}
            for part in (slice(0, 1), slice(1, 4)):
                await store.append([Batch(lease=leases[name], rows=rows[part]) for name, rows in journals.items()])
            for name, rows in journals.items():
                assert list(await store.load(name, "default", whole=True)) == rows

    async def test_concurrent_appends_of_many_sessions_are_all_kept(self, tmp_path: Path) -> None:
        async with self.stores(tmp_path, "one") as (store,):
            journals = {f"session-{n}": grow(6) for n in range(10)}

            async def run(name: str, rows: Sequence[Row]) -> None:
                lease, _ = await store.acquire(name)
                for row in rows:
                    await store.append([Batch(lease=lease, rows=[row])])

            async with anyio.create_task_group() as tasks:
                for name, rows in journals.items():
                    tasks.start_soon(run, name, rows)
            for name, rows in journals.items():
                assert list(await store.load(name, "default", whole=True)) == rows

    async def test_a_session_in_live_hands_is_busy(self, tmp_path: Path) -> None:
        async with self.stores(tmp_path, "one", "two") as (one, two):
            await one.acquire("session")
            with pytest.raises(SessionBusy):
                await two.acquire("session")
            assert (await two.acquire("other")).lease.owner == "two"

    async def test_owning_and_loading_in_one_call_is_both(self, tmp_path: Path) -> None:
        rows = windowed(30)
        async with self.stores(tmp_path, "one", "two") as (one, two):
            new = await one.acquire("session", load="default")
            assert not isinstance(new.rows, Exception)
            assert not list(new.rows)
            await one.append([Batch(lease=new.lease, rows=rows)])
            await give_up(one, new.lease)
            owned = await two.acquire("session", load="default")
            assert not isinstance(owned.rows, Exception)
            assert list(owned.rows) == list(await two.load("session", "default"))
            assert owned.rows[-1] == rows[-1]
            assert owned.lease.owner == "two"
            (outcome,) = await two.append([Batch(lease=owned.lease, rows=grow(1, after=rows))])
            assert isinstance(outcome, Position)

    async def test_a_new_session_is_begun_whole_and_nobody_owns_it(self, tmp_path: Path) -> None:
        rows = [*windowed(30), *grow(3, "another")]
        async with self.stores(tmp_path, "one", "two") as (one, two):
            assert await ends(one, "session") is None
            await begin(one, "session", rows)
            with pytest.raises(AlreadyExists):
                await begin(two, "session", grow(1, "third"))
            found = await ends(two, "session")
            assert found is not None
            assert (found.info.agents, found.info.owner) == ({"default": rows[-4].seq, "another": 3}, None)
            for agent_id, end in found.rows.items():
                assert list(end) == list(await two.load("session", agent_id))
            assert list(await two.load("session", "default", whole=True)) == rows[:-3]
            lease, _ = await two.acquire("session")
            (outcome,) = await two.append([Batch(lease=lease, rows=grow(1, after=rows[:-3]))])
            assert isinstance(outcome, Position)

    async def test_a_session_that_begins_with_wrong_rows_is_not_begun(self, tmp_path: Path) -> None:
        rows = grow(4)
        async with self.stores(tmp_path, "one") as (store,):
            with pytest.raises(LeaseLost):
                await begin(store, "session", rows[2:])
            assert await ends(store, "session") is None
            await begin(store, "session", rows)
            assert list(await store.load("session", "default", whole=True)) == rows

    async def test_a_released_session_is_free_and_its_generation_rises(self, tmp_path: Path) -> None:
        async with self.stores(tmp_path, "one", "two") as (one, two):
            first, _ = await one.acquire("session")
            await give_up(one, first)
            second, _ = await two.acquire("session")
            assert second.generation > first.generation
            assert (second.session_id, second.owner) == ("session", "two")

    async def test_sessions_released_together_are_free_and_keep_their_rows(self, tmp_path: Path) -> None:
        rows = grow(2)
        names = [f"session-{number}" for number in range(5)]
        async with self.stores(tmp_path, "one", "two") as (one, two):
            leases = [(await one.acquire(name)).lease for name in names]
            await one.append([Batch(lease=lease, rows=rows) for lease in leases])
            other, _ = await one.acquire("kept")
            assert list(await one.release(leases)) == [None] * 5
            for lease in leases:
                assert isinstance((await one.append([Batch(lease=lease, rows=grow(3)[2:])]))[0], LeaseLost)
                again, _ = await two.acquire(lease.session_id)
                assert again.generation > lease.generation
                assert again.taken_from is None
                assert list(await two.load(lease.session_id, "default", whole=True)) == rows
            with pytest.raises(SessionBusy):
                await two.acquire("kept")
            assert list(await one.release([])) == []
            assert list(await one.release([other])) == [None]
            await two.acquire("kept")

    async def test_of_sessions_released_together_those_in_other_hands_are_left_alone(self, tmp_path: Path) -> None:
        async with self.stores(tmp_path, "one", "two") as (one, two):
            leases = [(await one.acquire(name)).lease for name in ("first", "taken", "last")]
            await two.acquire("taken", takeover=True)
            assert list(await one.release(leases)) == [None] * 3
            with pytest.raises(SessionBusy):
                await one.acquire("taken")
            for name in ("first", "last"):
                await two.acquire(name)

    async def test_the_sessions_of_a_closed_store_are_free(self, tmp_path: Path) -> None:
        async with self.stores(tmp_path, "one", "two") as (one, two):
            await one.acquire("session")
            await one.aclose()
            await two.acquire("session")

    async def test_a_takeover_fences_the_owner_before(self, tmp_path: Path) -> None:
        rows = grow(4)
        async with self.stores(tmp_path, "one", "two") as (one, two):
            old, _ = await one.acquire("session")
            await one.append([Batch(lease=old, rows=rows[:1])])
            new, _ = await two.acquire("session", takeover=True)
            assert (old.taken_from, new.taken_from) == (None, old.owner)
            assert isinstance((await one.append([Batch(lease=old, rows=rows[1:2])]))[0], LeaseLost)
            await two.append([Batch(lease=new, rows=rows[1:3])])
            assert isinstance((await one.append([Batch(lease=old, rows=rows[3:])]))[0], LeaseLost)
            assert list(await one.load("session", "default", whole=True)) == rows[:3]

    async def test_a_stale_release_changes_nothing(self, tmp_path: Path) -> None:
        async with self.stores(tmp_path, "one", "two") as (one, two):
            old, _ = await one.acquire("session")
            await two.acquire("session", takeover=True)
            await give_up(one, old)
            with pytest.raises(SessionBusy):
                await one.acquire("session")

    async def test_a_lease_taken_from_a_lost_owner_may_be_taken_back_as_any_other(self, tmp_path: Path) -> None:
        """The former owner is told once, and is no part of a lease's identity."""
        rows = grow(3)
        async with self.stores(tmp_path, "one", "two") as (one, two):
            await one.append([Batch(lease=(await one.acquire("session")).lease, rows=rows[:1])])
            lease, _ = await two.acquire("session", takeover=True)
            await two.append([Batch(lease=lease, rows=rows[1:2])])
            await give_up(two, lease)
            if await taken_back(two, lease):
                assert isinstance((await two.append([Batch(lease=lease, rows=rows[2:])]))[0], Position)
                await give_up(two, lease)
            await one.acquire("session")

    async def test_a_released_lease_may_be_taken_back_while_nobody_has_owned_the_session_since(
        self, tmp_path: Path
    ) -> None:
        """A requirement on stores that can do that; other stores change nothing and say so."""
        rows = grow(4)
        async with self.stores(tmp_path, "one", "two") as (one, two):
            lease, _ = await one.acquire("session")
            await one.append([Batch(lease=lease, rows=rows[:2])])
            assert not await taken_back(one, lease)  # It is not released.
            await give_up(one, lease)
            if not one.capabilities.acquires_again:
                assert not await taken_back(one, lease)
                await give_up(two, (await two.acquire("session")).lease)
                return
            assert await taken_back(one, lease)
            with pytest.raises(SessionBusy):
                await two.acquire("session")
            assert await one.append([Batch(lease=lease, rows=rows[2:])]) == [Position(agent_id="default", seq=4)]
            assert list(await two.load("session", "default", whole=True)) == rows
            for _ in range(3):
                await give_up(one, lease)
                assert await taken_back(one, lease)
            await give_up(one, lease)
            await give_up(two, (await two.acquire("session")).lease)
            assert not await taken_back(one, lease)
            assert isinstance((await one.append([Batch(lease=lease, rows=())]))[0], LeaseLost)
            assert (await two.acquire("session")).lease.generation > lease.generation

    async def test_a_lease_is_not_taken_back_by_another_store_or_after_the_session_was_deleted(
        self, tmp_path: Path
    ) -> None:
        rows = grow(2)
        async with self.stores(tmp_path, "one", "two") as (one, two):
            lease, _ = await one.acquire("session")
            await one.append([Batch(lease=lease, rows=rows)])
            await give_up(one, lease)
            assert not await taken_back(two, lease)
            if not one.capabilities.acquires_again:
                return
            await two.delete("session")
            assert not await taken_back(one, lease)
            again, _ = await two.acquire("session")
            await two.append([Batch(lease=again, rows=rows)])
            await give_up(two, again)
            assert not await taken_back(one, lease)

    async def test_acquiring_again_in_the_same_store_fences_the_earlier_lease(self, tmp_path: Path) -> None:
        """A restarted actor acquires its session again without waiting for its own lease."""
        rows = grow(2)
        async with self.stores(tmp_path, "one") as (store,):
            old, _ = await store.acquire("session")
            new, _ = await store.acquire("session")
            assert new.generation > old.generation
            outcomes = await store.append([Batch(lease=old, rows=rows), Batch(lease=new, rows=rows)])
            assert isinstance(outcomes[0], LeaseLost)
            assert outcomes[1] == Position(agent_id="default", seq=2)

    @pytest.mark.parametrize("first_seq", [2, 4, 5])
    async def test_rows_that_do_not_follow_are_refused_whole(self, tmp_path: Path, first_seq: int) -> None:
        rows = grow(6)
        async with self.stores(tmp_path, "one") as (store,):
            lease, _ = await store.acquire("session")
            await store.append([Batch(lease=lease, rows=rows[:2])])
            outcomes = await store.append([Batch(lease=lease, rows=rows[first_seq - 1 :])])
            assert isinstance(outcomes[0], LeaseLost)
            gap = [rows[2], rows[4]]
            assert isinstance((await store.append([Batch(lease=lease, rows=gap)]))[0], LeaseLost)
            assert list(await store.load("session", "default", whole=True)) == rows[:2]

    async def test_a_refused_batch_does_not_hinder_the_others(self, tmp_path: Path) -> None:
        rows = grow(2)
        stale = Lease(session_id="lost", owner="nobody", generation=1)
        async with self.stores(tmp_path, "one") as (store,):
            first, second = (await store.acquire("first")).lease, (await store.acquire("second")).lease
            outcomes = await store.append(
                [
                    Batch(lease=first, rows=rows),
                    Batch(lease=stale, rows=rows),
                    Batch(lease=second, rows=rows[1:]),
                    Batch(lease=second, rows=rows),
                ]
            )
            assert [type(outcome) for outcome in outcomes] == [Position, LeaseLost, LeaseLost, Position]
            assert list(await store.load("first", "default", whole=True)) == rows
            assert list(await store.load("second", "default", whole=True)) == rows
            assert {info.session_id for info in await store.sessions()} == {"first", "second"}

    async def test_one_group_may_hold_several_batches_of_one_session(self, tmp_path: Path) -> None:
        rows = grow(3)
        async with self.stores(tmp_path, "one") as (store,):
            lease, _ = await store.acquire("session")
            await store.append([Batch(lease=lease, rows=rows[:1]), Batch(lease=lease, rows=rows[1:])])
            assert list(await store.load("session", "default", whole=True)) == rows

    async def test_a_batch_without_rows_proves_the_lease_and_changes_nothing(self, tmp_path: Path) -> None:
        rows = grow(2)
        async with self.stores(tmp_path, "one", "two") as (one, two):
            lease, _ = await one.acquire("session")
            await one.append([Batch(lease=lease, rows=rows)])
            assert isinstance((await one.append([Batch(lease=lease, rows=[])]))[0], Position)
            assert list(await one.load("session", "default", whole=True)) == rows
            await two.acquire("session", takeover=True)
            assert isinstance((await one.append([Batch(lease=lease, rows=[])]))[0], LeaseLost)
            assert list(await two.load("session", "default", whole=True)) == rows

    async def test_an_erased_content_is_gone_and_the_chain_still_holds(self, tmp_path: Path) -> None:
        rows = grow(5)
        async with self.stores(tmp_path, "one") as (store,):
            lease, _ = await store.acquire("session")
            await store.append([Batch(lease=lease, rows=rows[:4])])
            erase = [("default", 2), ("default", 5), ("default", 9), ("nobody", 1)]
            outcomes = await store.append([Batch(lease=lease, rows=rows[4:], erase=erase)])
            assert outcomes == [Position(agent_id="default", seq=5)]
            outcomes = await store.append([Batch(lease=lease, rows=[], erase=[("default", 2)])])
            assert outcomes == [Position(agent_id="default", seq=5)]
            loaded = list(await store.load("session", "default", whole=True))
        assert loaded == [row.without_content() if row.seq in (2, 5) else row for row in rows]
        verify(loaded, session_id="session")

    async def test_nothing_is_erased_under_a_stale_lease(self, tmp_path: Path) -> None:
        rows = grow(2)
        async with self.stores(tmp_path, "one", "two") as (one, two):
            old, _ = await one.acquire("session")
            await one.append([Batch(lease=old, rows=rows)])
            await two.acquire("session", takeover=True)
            assert isinstance((await one.append([Batch(lease=old, rows=[], erase=[("default", 1)])]))[0], LeaseLost)
            assert list(await two.load("session", "default", whole=True)) == rows

    async def test_any_position_is_read_from_where_opening_there_would_begin(self, tmp_path: Path) -> None:
        """A requirement on stores with the part `positions`."""
        rows = windowed(40)
        async with self.stores(tmp_path, "one", "two") as (one, two):
            mine, other_reads = one.capabilities.positions, two.capabilities.positions
            if mine is None or other_reads is None:
                return
            lease, _ = await one.acquire("session")
            for start in range(0, len(rows), 12):
                part = rows[start : start + 12]
                others = grow(len(part), "other", after=grow(start, "other"))
                await one.append([Batch(lease=lease, rows=[*part, *others])])
            erased = rows[20].seq
            await one.append([Batch(lease=lease, rows=[], erase=[("default", erased)])])
            stored = [row.without_content() if row.seq == erased else row for row in rows]
            for seq in (1, 2, 9, 12, 13, 22, 30, len(rows) - 1, len(rows)):
                wanted = stored[rows[seq - 1].low - 1 : seq]
                assert list(await mine.load_at("session", "default", seq)) == wanted
                assert list(await other_reads.load_at("session", "default", seq)) == wanted
            for session_id, agent_id, seq in (("session", "default", len(rows) + 1), ("session", "default", 0)):
                assert list(await other_reads.load_at(session_id, agent_id, seq)) == []
            assert list(await other_reads.load_at("session", "nobody", 1)) == []
            assert list(await other_reads.load_at("nothing", "default", 1)) == []

    async def test_a_range_of_rows_is_what_the_whole_journal_has_there(self, tmp_path: Path) -> None:
        rows = windowed(20)
        async with self.stores(tmp_path, "one", "two") as (one, two):
            lease, _ = await one.acquire("session")
            for start in range(0, len(rows), 12):
                others = grow(2, "other", after=grow(start // 6, "other"))
                await one.append([Batch(lease=lease, rows=[*rows[start : start + 12], *others])])
            stored, end = await two.load("session", "default", whole=True), len(rows)
            for first, last in ((1, end), (5, 9), (end - 3, end + 9), (end + 1, end + 2)):
                wanted = [row for row in stored if first <= row.seq <= last]
                assert list(await load_range(two, "session", "default", first, last)) == wanted
            assert list(await load_range(two, "nothing", "default", 1, 9)) == []

    async def test_snapshots_are_found_without_the_rest(self, tmp_path: Path) -> None:
        """A requirement on stores whose `positions` find labels."""
        rows = windowed(30)
        async with self.stores(tmp_path, "one") as (store,):
            positions = store.capabilities.positions
            labels = None if positions is None else positions.labels
            if labels is None:
                return
            lease, _ = await store.acquire("session")
            await store.append([Batch(lease=lease, rows=[*grow(3, "other"), *rows])])
            found = [row for row in rows if row.kind == RecordKind.SNAPSHOT]
            assert list(await labels("session", "default")) == found
            assert list(await labels("session", "other")) == list(await labels("nothing", "default")) == []
            await store.append([Batch(lease=lease, rows=[], erase=[("default", found[0].seq)])])
            assert list(await labels("session", "default")) == found[1:]

    async def test_sessions_are_listed_the_most_recently_changed_first(self, tmp_path: Path) -> None:
        async with self.stores(tmp_path, "one", "two") as (one, two):
            old, new = (await one.acquire("old")).lease, (await one.acquire("new")).lease
            await one.append([Batch(lease=new, rows=grow(2, "agent", at=100.0))])
            await one.append([Batch(lease=old, rows=[*grow(3, "first", at=10.0), *grow(1, "second", at=20.0)])])
            await give_up(one, old)
            infos = list(await two.sessions())
        assert [info.session_id for info in infos] == ["new", "old"]
        assert [info.owner for info in infos] == ["one", None]
        assert [dict(info.agents) for info in infos] == [{"agent": 2}, {"first": 3, "second": 1}]
        assert [(info.created_at, info.updated_at) for info in infos] == [(100.0, 101.0), (10.0, 20.0)]

    async def test_one_session_is_listed_alone(self, tmp_path: Path) -> None:
        async with self.stores(tmp_path, "one", "two") as (one, two):
            for name in ("a", "ab"):
                lease, _ = await one.acquire(name)
                await one.append([Batch(lease=lease, rows=grow(2, at=10.0))])
            await one.acquire("empty")
            every = {info.session_id: info for info in await two.sessions()}
            assert list(await two.sessions("a")) == [every["a"]]
            assert every["a"].owner == "one"
            assert list(await two.sessions("empty")) == []
            assert list(await two.sessions("b")) == []

    async def test_a_deleted_session_is_gone_and_may_begin_anew(self, tmp_path: Path) -> None:
        rows = grow(3)
        async with self.stores(tmp_path, "one") as (store,):
            other, old = (await store.acquire("kept")).lease, (await store.acquire("session")).lease
            await store.append([Batch(lease=other, rows=rows), Batch(lease=old, rows=rows)])
            await store.delete("session")
            assert [info.session_id for info in await store.sessions()] == ["kept"]
            assert list(await store.load("session", "default", whole=True)) == []
            assert isinstance((await store.append([Batch(lease=old, rows=rows)]))[0], LeaseLost)
            new, _ = await store.acquire("session")
            assert new.generation > old.generation
            assert await store.append([Batch(lease=new, rows=rows[:1])]) == [Position(agent_id="default", seq=1)]
            assert list(await store.load("kept", "default", whole=True)) == rows

    async def test_what_is_set_aside_is_replaced_and_goes_with_the_session(self, tmp_path: Path) -> None:
        """A requirement on stores with the part `repair`."""
        rows = grow(4)
        async with self.stores(tmp_path, "one", "two") as (one, two):
            repair = two.capabilities.repair
            if repair is None:
                return
            lease, _ = await one.acquire("session")
            await one.append([Batch(lease=lease, rows=rows)])
            assert sorted((await repair.salvage("session")).rows) == sorted(rows)
            assert not (await repair.salvage("session")).damages
            with pytest.raises(SessionBusy):
                await repair.set_aside("session", rows)
            with pytest.raises(NotFound):
                await repair.set_aside("other", rows)
            await give_up(one, lease)
            moved_to = await repair.set_aside("session", rows)
            assert list(await repair.quarantined("session")) == [moved_to]
            assert isinstance((await one.append([Batch(lease=lease, rows=grow(1, "other"))]))[0], LeaseLost)
            assert list(await one.load("session", "default", whole=True)) == rows
            assert [dict(info.agents) for info in await one.sessions()] == [{"default": 4}]
            more = grow(2, after=rows)
            lease, _ = await one.acquire("session")
            await one.append([Batch(lease=lease, rows=more)])
            await give_up(one, lease)
            assert list(await two.load("session", "default", whole=True)) == [*rows, *more]
            await repair.set_aside("session", [*rows, *more])
            assert len(await repair.quarantined("session")) == 2
            await one.delete("session")
            assert list(await repair.quarantined("session")) == []
            assert list(await two.sessions()) == []

    async def test_what_is_due_is_claimed_once_and_only_where_no_live_owner_has_it(self, tmp_path: Path) -> None:
        """A requirement on stores with the part `waking`."""
        async with self.stores(tmp_path, "one", "two", "three") as (one, two, three):
            if one.capabilities.waking is None:
                return
            assert (
                list(await _waking(two).claim_due(WorkQuery(1e9, 10, {"default"})))
                == list(await pending_work_of(two))
                == []
            )
            for name, at in (("late", 30.0), ("early", 10.0), ("held", 5.0), ("never", None)):
                lease, _ = await one.acquire(name)
                due = DueTime(agent_id="default", at=at, why="memory")
                await one.append([Batch(lease=lease, rows=grow(1), due=due)])
                if name != "held":
                    await give_up(one, lease)
            assert [(work.session_id, work.at) for work in await pending_work_of(two)] == [
                ("held", 5.0),
                ("early", 10.0),
                ("late", 30.0),
            ]
            assert [(work.session_id, work.at) for work in await pending_work_of(two, "late")] == [("late", 30.0)]
            assert list(await pending_work_of(two, "never")) == list(await pending_work_of(two, "nobody")) == []
            assert list(await _waking(two).claim_due(WorkQuery(9.0, 10, {"default"}))) == []
            assert list(await _waking(two).claim_due(WorkQuery(40.0, 10, {"another"}))) == []
            assert list(await _waking(two).claim_due(WorkQuery(40.0, 10, {"default"}, passing=["a", ""]))) == []
            assert (
                list(await _waking(one).claim_due(WorkQuery(9.0, 10, {"default"}))) == []
            )  # Its owner needs no waking.
            (first,) = await _waking(two).claim_due(WorkQuery(40.0, 1, {"default"}))
            (second,) = await _waking(three).claim_due(WorkQuery(40.0, 10, {"default"}))
            assert [(work.session_id, work.agent_id, work.at, work.why, work.claims) for work in (first, second)] == [
                ("early", "default", 10.0, "memory", 1),
                ("late", "default", 30.0, "memory", 1),
            ]
            assert (
                list(await _waking(two).claim_due(WorkQuery(40.0, 10, {"default"})))
                == list(await _waking(three).claim_due(WorkQuery(40.0, 10, {"default"})))
                == []
            )
            again = await _waking(two).claim_due(WorkQuery(next_due(40.0, 1), 10, {"default"}))
            assert {(work.session_id, work.claims) for work in again} == {("early", 2), ("late", 2)}

    async def test_work_that_is_done_or_deleted_is_owed_no_more(self, tmp_path: Path) -> None:
        """A requirement on stores with the part `waking`."""
        async with self.stores(tmp_path, "one", "two") as (one, two):
            if one.capabilities.waking is None:
                return
            for name in ("done", "deleted"):
                lease, _ = await one.acquire(name)
                rows, pending_work = grow(2, "a"), DueTime(agent_id="a", at=1.0)
                await one.append([Batch(lease=lease, rows=rows[:1], due=pending_work)])
                await one.append(
                    [Batch(lease=lease, rows=grow(1, "b"), due=DueTime(agent_id="b", at=2.0, why="expiry"))]
                )
                await one.append([Batch(lease=lease, rows=rows[1:])])
                assert {
                    (work.agent_id, work.why) for work in await pending_work_of(two) if work.session_id == name
                } == {
                    ("a", "turn"),
                    ("b", "expiry"),
                }
                if name == "done":
                    await one.append([Batch(lease=lease, rows=(), due=DueTime(agent_id="a"))])
                await give_up(one, lease)
            await two.delete("deleted")
            assert [(work.session_id, work.agent_id) for work in await pending_work_of(one)] == [("done", "b")]
            (claimed,) = await _waking(one).claim_due(WorkQuery(3.0, 10, {"a", "b"}))
            assert (claimed.session_id, claimed.agent_id) == ("done", "b")

    async def test_work_whose_owners_keep_dying_is_parked_until_one_releases_the_session(self, tmp_path: Path) -> None:
        """A requirement on stores with the part `waking`."""
        async with self.stores(tmp_path, "one", "two") as (one, two):
            if one.capabilities.waking is None:
                return
            lease, _ = await one.acquire("session")
            await one.append([Batch(lease=lease, rows=grow(1), due=DueTime(agent_id="default", at=1.0))])
            await one.aclose()  # A dead owner releases nothing.
            now = 1.0
            for _ in range(CLAIMS_MAX):
                (claimed,) = await _waking(two).claim_due(WorkQuery(now, 10, {"default"}))
                now = next_due(now, claimed.claims)
            assert list(await _waking(two).claim_due(WorkQuery(now + 1e6, 10, {"default"}))) == []
            (parked,) = await pending_work_of(two)
            assert (parked.session_id, parked.parked) == ("session", True)
            await give_up(two, (await two.acquire("session")).lease)
            (work,) = await pending_work_of(two)
            assert (work.claims, work.parked) == (0, False)
            assert len(await _waking(two).claim_due(WorkQuery(now + 1e6, 10, {"default"}))) == 1

    async def test_a_turn_is_claimed_by_its_sessions_owner_alone_if_the_session_rests(self, tmp_path: Path) -> None:
        """A requirement on stores with the part `waking`."""
        async with self.stores(tmp_path, "one", "two") as (one, two):
            if one.capabilities.waking is None:
                return
            rests = {("session", "default")}
            lease, _ = await one.acquire("session")
            await one.append([Batch(lease=lease, rows=grow(1), due=DueTime(agent_id="default", at=1.0))])
            assert list(await _waking(two).claim_due(WorkQuery(9.0, 10, {"default"}, rests))) == []
            (claimed,) = await _waking(one).claim_due(WorkQuery(9.0, 10, {"default"}, rests))
            assert (claimed.session_id, claimed.why, claimed.claims) == ("session", "turn", 1)
            assert list(await _waking(one).claim_due(WorkQuery(9.0, 10, {"default"}, rests))) == []
            (claimed,) = await _waking(one).claim_due(WorkQuery(next_due(9.0, 1), 10, {"default"}, rests))
            assert claimed.claims == 2
            others = {("session", "other"), ("other", "default")}
            assert list(await _waking(one).claim_due(WorkQuery(1e6, 10, {"default"}, others))) == []

    async def test_a_timer_that_is_stated_forgets_earlier_claims_and_a_turn_does_not(self, tmp_path: Path) -> None:
        """A requirement on stores with the part `waking`."""
        async with self.stores(tmp_path, "one") as (one,):
            if one.capabilities.waking is None:
                return
            lease, _ = await one.acquire("session")
            await one.append([Batch(lease=lease, rows=grow(1), due=DueTime(agent_id="default", at=1.0, why="timer"))])
            for number in range(1, CLAIMS_MAX + 2):  # Its owner lives, and is told of a timer in any case.
                (claimed,) = await _waking(one).claim_due(WorkQuery(1e3 * number, 10, {"default"}))
                assert (claimed.why, claimed.claims) == ("timer", 1)
                why = "timer" if number <= CLAIMS_MAX else "turn"
                due = DueTime(agent_id="default", at=1e3 * number + 500.0, why=why)
                await one.append([Batch(lease=lease, rows=(), due=due)])
            (work,) = await pending_work_of(one)
            assert (work.why, work.claims) == ("turn", 1)

    async def test_a_refused_batch_owes_nothing(self, tmp_path: Path) -> None:
        """A requirement on stores with the part `waking`."""
        async with self.stores(tmp_path, "one", "two") as (one, two):
            if one.capabilities.waking is None:
                return
            lease, _ = await one.acquire("session")
            await one.append([Batch(lease=lease, rows=grow(1))])
            await two.acquire("session", takeover=True)
            (outcome,) = await one.append([Batch(lease=lease, rows=(), due=DueTime(agent_id="default", at=1.0))])
            assert isinstance(outcome, LeaseLost)
            assert list(await pending_work_of(two)) == []

    async def test_of_a_group_the_last_batch_says_what_an_agent_owes(self, tmp_path: Path) -> None:
        """A requirement on stores with the part `waking`."""
        rows = grow(3)
        async with self.stores(tmp_path, "one", "two") as (one, two):
            if one.capabilities.waking is None:
                return
            lease, _ = await one.acquire("session")
            dues = [DueTime(agent_id="default", at=at, why="memory") for at in (3.0, 1.0, 2.0)]
            batches = [Batch(lease=lease, rows=[row], due=due) for row, due in zip(rows, dues, strict=True)]
            assert all(isinstance(outcome, Position) for outcome in await one.append(batches))
            assert [(work.at, work.why) for work in await pending_work_of(two)] == [(2.0, "memory")]
            await one.append([Batch(lease=lease, rows=(), erase=[("default", 1)], due=DueTime(agent_id="default"))])
            assert list(await pending_work_of(two)) == []
            assert [row.erased for row in await two.load("session", "default", whole=True)] == [True, False, False]

    async def test_delete_refuses_what_is_not_there_or_in_other_hands(self, tmp_path: Path) -> None:
        async with self.stores(tmp_path, "one", "two") as (one, two):
            with pytest.raises(NotFound):
                await one.delete("session")
            await one.acquire("session")
            with pytest.raises(SessionBusy):
                await two.delete("session")

    async def test_two_stores_see_each_others_rows(self, tmp_path: Path) -> None:
        rows = grow(40)
        async with self.stores(tmp_path, "one", "two") as opened:
            for step in range(10):
                store = opened[step % 2]
                lease, _ = await store.acquire("session")
                stored = list(await store.load("session", "default", whole=True))
                assert stored == rows[: 4 * step]
                part = rows[4 * step : 4 * step + 4]
                await store.append([Batch(lease=lease, rows=part[:1])])
                await store.append([Batch(lease=lease, rows=part[1:])])
                await give_up(store, lease)

    async def test_cancelling_an_append_waits_for_its_commit(self, tmp_path: Path) -> None:
        rows = grow(20)
        async with self.stores(tmp_path, "one") as (store,):
            lease, _ = await store.acquire("session")
            acknowledged = 0

            async def write() -> None:
                nonlocal acknowledged
                for row in rows:
                    await store.append([Batch(lease=lease, rows=[row])])
                    acknowledged = row.seq

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(write)
                for _ in range(9):
                    await anyio.lowlevel.checkpoint()
                tasks.cancel_scope.cancel()
            stored = len(await store.load("session", "default", whole=True))
            assert stored in (acknowledged, acknowledged + 1)
            await store.append([Batch(lease=lease, rows=rows[stored:])])
            assert list(await store.load("session", "default", whole=True)) == rows

    @pytest.mark.parametrize("bad", ["", ".", "..", "a/b", "a\\b", "nul\0", "line\n", "x" * 256])
    async def test_bad_ids_are_refused(self, tmp_path: Path, bad: str) -> None:
        async with self.stores(tmp_path, "one") as (store,):
            for call in (store.acquire(bad), store.load(bad, "default"), store.delete(bad)):
                with pytest.raises(Invalid):
                    await call
            lease, _ = await store.acquire("session")
            with pytest.raises(Invalid):
                await store.append([Batch(lease=lease, rows=grow(1, bad))])

    async def test_unusual_but_allowed_ids_work(self, tmp_path: Path) -> None:
        rows = grow(1, "agent 'ünï' %s ?")
        async with self.stores(tmp_path, "one") as (store,):
            for session_id in ("Ärger", "a'b", "x" * 255, "-", "...", "%"):
                lease, _ = await store.acquire(session_id)
                await store.append([Batch(lease=lease, rows=rows)])
                assert list(await store.load(session_id, rows[0].agent_id)) == rows

    async def test_a_closed_store_refuses_and_closes_twice(self, tmp_path: Path) -> None:
        async with self.stores(tmp_path, "one") as (store,):
            await store.acquire("session")
            await store.aclose()
            await store.aclose()
            with pytest.raises(Invalid):
                await store.acquire("session")

    async def test_names_tell_places_apart(self, tmp_path: Path) -> None:
        async with (
            self.stores(tmp_path / "here", "one", "two") as (one, two),
            self.stores(tmp_path / "there", "one") as (other,),
        ):
            assert one.name == two.name != other.name
