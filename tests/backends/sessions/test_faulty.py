"""The store that fails on purpose, and the points at which processes die, do exactly what they say."""

from __future__ import annotations

import random
from pathlib import Path

import anyio
import pytest

from repertory.backends.ports import Batch, Position, give_up
from repertory.backends.sessions.sqlite.store import SQLiteSessionStore
from repertory.errors import Unavailable
from repertory.testing.crash_points import CrashingSessionStore, CrashPoints
from repertory.testing.faulty_sessions import FaultSettings, FaultySessionStore
from repertory.testing.in_memory_sessions import MemorySessionStore
from repertory.testing.session_contract import grow

pytestmark = pytest.mark.anyio


async def run(seed: int, settings: FaultSettings) -> tuple[list[str], int]:
    """The faults of twenty appends, and how many rows were stored."""
    store = FaultySessionStore(MemorySessionStore(), random.Random(seed), FaultSettings())
    lease, _ = await store.acquire("session")
    rows = grow(20)
    store.settings = settings
    for row in rows:
        stored = len(await MemoryReader(store).rows())
        if stored < row.seq:
            try:
                await store.append([Batch(lease=lease, rows=rows[stored : row.seq])])
            except Unavailable:
                continue
    faults = list(store.faults)
    return faults, len(await MemoryReader(store).rows())


class MemoryReader:
    """Reads past the faults."""

    def __init__(self, store: FaultySessionStore) -> None:
        self._store = store._store

    async def rows(self) -> list[object]:
        return list(await self._store.load("session", "default", whole=True))


async def test_the_same_seed_gives_the_same_faults(seed: int) -> None:
    settings = FaultSettings(error_rate=0.3, lost_rate=0.3)
    with anyio.fail_after(5):
        assert await run(seed, settings) == await run(seed, settings)


async def test_a_refused_call_does_nothing_and_a_lost_answer_is_work_done(seed: int) -> None:
    rows = grow(1)
    for settings, stored in ((FaultSettings(error_rate=1.0), 0), (FaultSettings(lost_rate=1.0), 1)):
        store = FaultySessionStore(MemorySessionStore(), random.Random(seed), FaultSettings())
        lease, _ = await store.acquire("session")
        store.settings = settings
        with pytest.raises(Unavailable, match="injected fault"):
            await store.append([Batch(lease=lease, rows=rows)])
        assert len(await MemoryReader(store).rows()) == stored


async def test_a_slow_call_takes_its_time(seed: int) -> None:
    store = FaultySessionStore(MemorySessionStore(), random.Random(seed), FaultSettings(slow_rate=1.0, slow_s=30.0))
    started = anyio.current_time()
    await store.sessions()
    assert 0 < anyio.current_time() - started <= 30
    assert store.faults == ["sessions: slow"]


async def test_crash_points_are_reached_in_order_and_crash_once() -> None:
    crashes: list[int] = []
    points = CrashPoints(4, lambda: crashes.append(points.reached_count))
    store = CrashingSessionStore(MemorySessionStore(), points)
    lease, _ = await store.acquire("session")
    rows = grow(2)
    await store.append([Batch(lease=lease, rows=rows[:1])])
    await store.append([Batch(lease=lease, rows=rows[1:])])
    await give_up(store, lease)
    assert crashes == [4]
    assert points.reached_count == 8


@pytest.mark.real_time
async def test_steps_of_a_lease_pass_through_the_wrappers(tmp_path: Path) -> None:
    """In SQLite a session is given up and taken again without a call of the store."""
    faulty = FaultySessionStore(on_sqlite(tmp_path / "faulty.db"), random.Random(1), FaultSettings())
    lease, _ = await faulty.acquire("session")
    faulty.settings = FaultSettings(error_rate=1.0)
    assert not lease.release_now()
    faulty.settings = FaultSettings()
    assert lease.release_now()
    faulty.settings = FaultSettings(error_rate=1.0)
    assert not lease.acquire_now()
    assert faulty.faults == ["release_now: refused", "acquire_now: refused"]
    faulty.settings = FaultSettings()
    assert lease.acquire_now()
    (outcome,) = await faulty.append([Batch(lease=lease, rows=grow(1))])
    assert outcome == Position(agent_id="default", seq=1)
    await faulty.aclose()


@pytest.mark.real_time
async def test_steps_of_a_lease_are_crash_points(tmp_path: Path) -> None:
    points = CrashPoints(None)
    store = CrashingSessionStore(on_sqlite(tmp_path / "crashing.db"), points)
    lease, _ = await store.acquire("session")
    await store.append([Batch(lease=lease, rows=grow(1))])
    before = points.reached_count
    assert lease.release_now()
    assert lease.acquire_now()
    assert points.reached_count == before + 4
    await give_up(store, lease)
    again = await store.acquire("session", again=lease)
    assert again.lease == lease
    await store.aclose()


def on_sqlite(path: Path) -> SQLiteSessionStore:
    return SQLiteSessionStore(str(path), owner="owner")
