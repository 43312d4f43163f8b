"""A process that commits a turn of a session with snapshots in a folder, and dies in one of its system calls.

python snapshot_child.py FOLDER CRASH_AT
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import anyio

from repertory.backends.ports import Batch, Position
from repertory.testing.crash_points import CrashPoints
from repertory.testing.session_contract import grow
from tests.backends.sessions.log_places import crash_in_system_calls
from tests.backends.sessions.snapshot_places import snapshots_on_files

FIRST, THEN = 4, 6


async def main(folder: Path, points: CrashPoints) -> None:
    """Print the last acknowledged record, and "released" at the end."""
    rows = grow(THEN)
    store = snapshots_on_files(folder, f"child {os.getpid()}")
    lease, _ = await store.acquire("s")
    outcomes = list(await store.append([Batch(lease=lease, rows=rows[:FIRST])]))
    await store.release([lease])
    lease, _ = await store.acquire("s", again=lease)
    crash_in_system_calls(points)
    write, real_open = os.write, os.open

    def opened(path: str, flags: int, *arguments: int, **options: int) -> int:
        if flags & os.O_CREAT:
            points.reach("before a file is made")
        return real_open(path, flags, *arguments, **options)

    def written(file: int, data: bytes) -> int:
        points.reach("before a snapshot is written")
        count = write(file, data[: 1 + len(data) // 2])
        points.reach("in the middle of a snapshot")
        return count

    os.open, os.write = opened, written  # type: ignore[assignment]
    outcomes += await store.append([Batch(lease=lease, rows=rows[FIRST:])])
    sys.stdout.write(f"{THEN}\n")
    sys.stdout.flush()
    await store.release([lease])
    assert all(isinstance(outcome, Position) for outcome in outcomes)
    sys.stdout.write("released\n")


if __name__ == "__main__":
    anyio.run(main, Path(sys.argv[1]), CrashPoints(int(sys.argv[2])))
