"""An import that is killed leaves nothing half there: the next one adds the session as if nothing had been."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import anyio
import pytest

from repertory import Sessions
from repertory.backends.line_files import new_file
from repertory.errors import AlreadyExists
from repertory.testing.crash_points import CrashPoints
from tests.operations.import_child import DyingPlace
from tests.operations.operated_places import fill, names_in, place_of, rows_in, talk
from tests.source_tree import ROOT

pytestmark = [pytest.mark.anyio, pytest.mark.real_time]

POINTS_TRIED = int(os.environ.get("REPERTORY_CRASHES", "2"))
ROWS = talk(*(f"text {number}" for number in range(5)), state={"key": 1}, label="end").rows


def child(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.operations.import_child", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=50, check=False)


@pytest.mark.parametrize("anyio_backend", ["asyncio"], indirect=True)
@pytest.mark.parametrize("kind", ["sqlite", "journal in files", "documents in files"])
async def test_an_import_that_was_killed_can_be_done_again(kind: str, tmp_path: Path, rng: random.Random) -> None:
    source = place_of("journal in memory", tmp_path)
    await fill(source, "s", ROWS)
    file = tmp_path / "s.jsonl"
    await Sessions(source).export("s", file)
    points = CrashPoints(None)
    await Sessions(DyingPlace(kind, tmp_path / "survivor", points)).import_(file)
    assert points.reached_count >= 4
    for point in rng.sample(range(1, points.reached_count + 1), POINTS_TRIED):
        folder = tmp_path / str(point)
        done = child(kind, folder, file, point)
        assert done.returncode == -signal.SIGKILL, done.stderr
        place = place_of(kind, folder)
        there = await rows_in(place, "s")
        assert there in ([], ROWS), point
        listed = [dict(info.agents) for info in await Sessions(place).list()]
        assert listed == ([{"agent": len(ROWS)}] if there else [])
        assert (await Sessions(place).doctor()).ok
        if there:
            with pytest.raises(AlreadyExists, match="the same session"):
                await Sessions(place).import_(file)
        else:
            await Sessions(place).import_(file)
        assert await rows_in(place, "s") == ROWS


async def test_a_file_that_is_not_finished_has_no_name(tmp_path: Path) -> None:
    started = anyio.Event()

    async def write() -> None:
        async with new_file(tmp_path / "file") as out:
            await out(b"x" * 1_000_000)
            started.set()
            await anyio.sleep_forever()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(write)
        await started.wait()
        assert not (tmp_path / "file").exists()
        tasks.cancel_scope.cancel()
    assert names_in(tmp_path) == []
    with pytest.raises(ZeroDivisionError):
        async with new_file(tmp_path / "file") as out:
            await out(b"x")
            raise ZeroDivisionError
    assert names_in(tmp_path) == []


async def test_a_file_that_came_meanwhile_is_not_replaced(tmp_path: Path) -> None:
    with pytest.raises(AlreadyExists):
        async with new_file(tmp_path / "file") as out:
            await out(b"ours")
            (tmp_path / "file").write_bytes(b"theirs")
    assert names_in(tmp_path) == ["file"]
    assert (tmp_path / "file").read_bytes() == b"theirs"
