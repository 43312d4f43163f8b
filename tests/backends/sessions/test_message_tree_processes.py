"""Several processes on one tree of documents: a dead owner's sessions are free, and nothing acknowledged is lost."""

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
from test_sqlite_processes import ROOT, reports, start

from repertory.backends.ports import Batch, Position, give_up
from repertory.core.journal.records import StateChanged
from repertory.core.journal.restore import Appender, restore
from repertory.core.journal.rows import verify
from repertory.errors import SessionBusy
from tests.backends.sessions.tree_crash_child import open_tree

pytestmark = [pytest.mark.anyio, pytest.mark.real_time]

CHILD = str(Path(__file__).with_name("tree_crash_child.py"))
ROUNDS = 8


@contextmanager
def child(folder: Path, owner: str, *, sessions: int, seed: int) -> Iterator[subprocess.Popen[str]]:
    """A child that appends; killed in the end, if it has not been before."""
    arguments = [sys.executable, CHILD, str(folder), owner, str(sessions), str(seed)]
    with subprocess.Popen(
        arguments, stdout=subprocess.PIPE, text=True, cwd=ROOT, env={"PYTHONPATH": str(ROOT)}
    ) as process:
        try:
            yield process
        finally:
            process.kill()


async def test_a_session_of_another_process_is_busy_until_it_is_killed(tmp_path: Path) -> None:
    with child(tmp_path, "child", sessions=1, seed=1) as process:
        await start(process)
        store = open_tree(str(tmp_path), "parent")
        try:
            with pytest.raises(SessionBusy):
                await store.acquire("session-0")
            process.kill()
            process.wait()
            lease, _ = await store.acquire("session-0")
            assert lease.owner == "parent"
            assert restore(await store.load("session-0", "default")).fold.last_seq >= 0
        finally:
            await store.aclose()


async def test_acknowledged_rows_survive_every_kill(tmp_path: Path, rng: random.Random) -> None:
    acknowledged: dict[str, int] = {}
    for number in range(ROUNDS):
        with child(tmp_path, f"child-{number}", sessions=3, seed=rng.randrange(2**32)) as process:
            wanted = rng.randrange(2, 30)
            with anyio.fail_after(30):
                acknowledged |= await anyio.to_thread.run_sync(reports, process, wanted)
            process.kill()
            acknowledged |= await anyio.to_thread.run_sync(reports, process)
        store = open_tree(str(tmp_path), f"parent-{number}")
        try:
            for name in (name for name in acknowledged if name != "ready"):
                lease, _ = await store.acquire(name)
                rows = await store.load(name, "default")
                whole = await store.load(name, "default", whole=True)
                verify(whole, session_id=name)
                assert len(whole) >= acknowledged[name]
                restored = restore(rows, session_id=name)
                assert restored.fold.image() == restore(whole).fold.image()
                appender = Appender("default", restored.fold, restored.link, rng.randbytes)
                row = appender.append(StateChanged(at=1.0, set={"round": number}))
                assert await store.append([Batch(lease=lease, rows=[row])]) == [
                    Position(agent_id="default", seq=row.seq)
                ]
                await give_up(store, lease)
                acknowledged[name] = row.seq
        finally:
            await store.aclose()
    left = await anyio.to_thread.run_sync(lambda: list(tmp_path.rglob(".repertory-*")))
    assert left == []


@pytest.mark.timeout(180)
async def test_a_kill_at_any_call_that_changes_files_loses_nothing_acknowledged(
    tmp_path: Path, anyio_backend_name: str, rng: random.Random
) -> None:
    """DESIGN: kill -9 at any instant. Each child dies at another call, also while the session is taken back."""
    points = Path(__file__).with_name("killed_children") / "tree_points_child.py"
    command = [sys.executable, str(points), str(tmp_path / "points"), str(rng.randrange(2**32)), anyio_backend_name]
    done = await anyio.run_process(command, cwd=ROOT, env={"PYTHONPATH": str(ROOT)}, check=False, stderr=None)
    assert done.returncode == 0
    assert int(done.stdout.split()[-1]) > 50
