"""Several processes on one database: ownership dies with its process, and acknowledged rows survive every kill."""

# The tests look at files between calls; nothing else runs on their loops.
# ruff: noqa: ASYNC240

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from repertory.backends.ports import Batch
from repertory.backends.sessions.sqlite.store import SQLiteSessionStore
from repertory.core.journal.restore import restore
from repertory.errors import LeaseLost, SessionBusy
from repertory.testing.session_contract import grow

pytestmark = [pytest.mark.anyio, pytest.mark.real_time]

CHILD = str(Path(__file__).with_name("crash_child.py"))
ROOT = Path(__file__).parents[3]


@contextmanager
def child(
    path: Path, owner: str, *, sessions: int, seed: int, crash_at: int | None = None
) -> Iterator[subprocess.Popen[str]]:
    """A child that appends; killed in the end, if it has not been before."""
    arguments = [sys.executable, CHILD, str(path), owner, str(sessions), str(seed)]
    if crash_at is not None:
        arguments.append(str(crash_at))
    with subprocess.Popen(
        arguments, stdout=subprocess.PIPE, text=True, cwd=ROOT, env={"PYTHONPATH": str(ROOT)}
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def reports(process: subprocess.Popen[str], count: int | None = None) -> dict[str, int]:
    """The last acknowledged number of each session, of `count` lines or of all until the child is gone."""
    assert process.stdout is not None
    seen: dict[str, int] = {}
    while count is None or count > 0:
        line = process.stdout.readline()
        if not line:
            break
        session_id, _, seq = line.partition(" ")
        seen[session_id] = int(seq)
        count = None if count is None else count - 1
    return seen


async def start(process: subprocess.Popen[str]) -> None:
    with anyio.fail_after(20):
        await anyio.to_thread.run_sync(reports, process, 2)  # "ready", and the first row that was acknowledged


async def test_a_session_of_another_process_is_busy_until_it_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "sessions.db"
    with child(path, "child", sessions=1, seed=1) as process:
        await start(process)
        store = SQLiteSessionStore(path, owner="parent")
        try:
            with pytest.raises(SessionBusy):
                await store.acquire("session-0")
            process.kill()
            process.wait()
            lease, _ = await store.acquire("session-0")
            rows = await store.load("session-0", "default", whole=True)
            assert restore(rows).fold.message_count > 0
            assert lease.owner == "parent"
            assert [item.name for item in Path(f"{path}-owners").iterdir()] == ["parent"]
        finally:
            await store.aclose()


async def test_a_process_that_is_taken_over_is_fenced_and_ends(tmp_path: Path) -> None:
    path = tmp_path / "sessions.db"
    with child(path, "child", sessions=1, seed=2) as process:
        await start(process)
        store = SQLiteSessionStore(path, owner="parent")
        try:
            lease, _ = await store.acquire("session-0", takeover=True)
            before = list(await store.load("session-0", "default", whole=True))
            # The child reads a LeaseLost where it wants a Position, and fails.
            with anyio.fail_after(20):
                await anyio.to_thread.run_sync(reports, process)
            rows = grow(2, after=before)
            outcomes = await store.append([Batch(lease=lease, rows=rows)])
            assert not isinstance(outcomes[0], LeaseLost)
            assert list(await store.load("session-0", "default", whole=True)) == [*before, *rows]
        finally:
            await store.aclose()


async def check(path: Path, owner: str, acknowledged: dict[str, int], *, slack: int) -> dict[str, int]:
    """Open what a dead child left: nothing acknowledged is missing, and the rest is whole."""
    store = SQLiteSessionStore(path, owner=owner)
    found: dict[str, int] = {}
    try:
        for session_id, seq in acknowledged.items():
            await store.acquire(session_id)
            rows = await store.load(session_id, "default", whole=True)
            restored = restore(rows, session_id=session_id)
            assert seq <= restored.fold.last_seq <= seq + slack
            part = restore(await store.load(session_id, "default"), session_id=session_id)
            assert part.fold.image() == restored.fold.image()
            found[session_id] = restored.fold.last_seq
    finally:
        await store.aclose()
    return found


@pytest.mark.timeout(180)
async def test_every_acknowledged_row_survives_random_kills(tmp_path: Path, seed: int) -> None:
    """DESIGN: kill -9 at any instant. Thirty kills per loop, each at another moment."""
    rng = random.Random(seed)
    path = tmp_path / "sessions.db"
    acknowledged: dict[str, int] = {}
    for kill in range(30):
        with child(path, f"child-{kill}", sessions=4, seed=rng.randrange(2**32)) as process:
            await start(process)
            for _ in range(rng.randrange(3)):
                acknowledged |= await anyio.to_thread.run_sync(reports, process, rng.randrange(1, 20))
            await anyio.sleep(rng.random() * 0.01)
            process.kill()
            acknowledged |= await anyio.to_thread.run_sync(reports, process)
        acknowledged.pop("ready", None)
        if kill % 5 == 4:
            # Commits may have happened whose report was not written any more: at most one group per kill.
            acknowledged = await check(path, f"checker-{kill}", acknowledged, slack=30)
    assert sum(acknowledged.values()) > 0


@pytest.mark.timeout(180)
async def test_every_crash_point_leaves_what_was_acknowledged(tmp_path: Path, seed: int) -> None:
    path = tmp_path / "sessions.db"
    acknowledged: dict[str, int] = {}
    for crash_at in range(1, 13):
        with child(path, f"child-{crash_at}", sessions=2, seed=seed + crash_at, crash_at=crash_at) as process:
            with anyio.fail_after(20):
                acknowledged |= await anyio.to_thread.run_sync(reports, process)
            assert process.wait() == -9
        acknowledged.pop("ready", None)
        acknowledged = await check(path, f"checker-{crash_at}", acknowledged, slack=6)
    assert sum(acknowledged.values()) > 0


async def test_two_processes_write_their_own_sessions_at_the_same_time(tmp_path: Path) -> None:
    path = tmp_path / "sessions.db"
    with child(path, "child", sessions=3, seed=3) as process:
        await start(process)
        store = SQLiteSessionStore(path, owner="parent")
        try:
            rows = grow(60)
            lease, _ = await store.acquire("mine")
            for row in rows:
                await store.append([Batch(lease=lease, rows=[row])])
            process.kill()
            acknowledged = await anyio.to_thread.run_sync(reports, process)
            assert list(await store.load("mine", "default", whole=True)) == rows
        finally:
            await store.aclose()
    await check(path, "checker", acknowledged, slack=6)
