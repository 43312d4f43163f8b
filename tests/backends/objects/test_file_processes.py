"""Several processes on one tree of files: conditions have one winner, and acknowledged objects survive every kill."""

# The tests look at files between calls; nothing else runs on their loops.

from __future__ import annotations

import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from repertory.backends.objects.files import FileObjectStore
from repertory.backends.ports import Create
from repertory.core.ids import RESERVED
from tests.backends.objects.object_child import KEYS, number_of

pytestmark = [pytest.mark.anyio, pytest.mark.real_time]

CHILD = str(Path(__file__).with_name("object_child.py"))
ROOT = Path(__file__).parents[3]


@contextmanager
def child(action: str, root: Path, name: str, seed: int = 0) -> Iterator[subprocess.Popen[str]]:
    """A child at work; killed in the end, if it has not been before."""
    command = [sys.executable, CHILD, action, str(root), name, str(seed), ("asyncio", "trio")[seed % 2]]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT, env={"PYTHONPATH": str(ROOT)}
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def lines(process: subprocess.Popen[str], count: int | None = None) -> list[str]:
    """The next `count` reports, or all until the child is gone. Half a line was never reported."""
    assert process.stdout is not None
    found: list[str] = []
    while count is None or len(found) < count:
        line = process.stdout.readline()
        if not line.endswith("\n"):
            break
        found.append(line.strip())
    return found


def race(first: subprocess.Popen[str], second: subprocess.Popen[str]) -> list[list[str]]:
    """Let two children go at the same moment, and give what each reports until it ends."""
    processes = [first, second]
    for process in processes:
        assert lines(process, 1) == ["ready"]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    reports = [lines(process) for process in processes]
    assert [process.wait() for process in processes] == [0, 0]
    return reports


async def test_of_two_processes_that_create_exactly_one_wins_each_key(tmp_path: Path) -> None:
    with child("create", tmp_path / "home", "one", 0) as one, child("create", tmp_path / "home", "two", 1) as two:
        won = await anyio.to_thread.run_sync(race, one, two)
    winners = {key: name for keys, name in zip(won, (b"one", b"two"), strict=True) for key in keys}
    assert len(won[0]) + len(won[1]) == len(winners) == 150
    store = FileObjectStore(tmp_path / "home")
    assert {key: (await store.get(key)).body for key in winners} == winners
    print("won:", len(won[0]), len(won[1]))


async def test_two_processes_that_count_by_updates_lose_no_count(tmp_path: Path) -> None:
    store = FileObjectStore(tmp_path / "home")
    await store.put("counter", b"0", Create())
    with child("count", tmp_path / "home", "one", 0) as one, child("count", tmp_path / "home", "two", 1) as two:
        lost = await anyio.to_thread.run_sync(race, one, two)
    assert (await store.get("counter")).body == b"120"
    print("refused:", len(lost[0]), len(lost[1]))


def acknowledge(known: dict[str, int | None], reports: list[str]) -> None:
    """Note the last thing that is known of each key: its number, or None for a deletion."""
    for line in reports:
        key, _, number = line.partition(" ")
        if key != "ready":
            known[key] = None if number == "-" else int(number)


@pytest.mark.timeout(180)
async def test_every_acknowledged_object_survives_random_kills_and_none_is_torn(tmp_path: Path, seed: int) -> None:
    """DESIGN: kill -9 at any instant. Twenty kills per loop, each at another moment."""
    rng = random.Random(seed)
    root = tmp_path / "home"
    store = FileObjectStore(root)
    left_over_count, known = 0, {}
    for kill in range(20):
        with child("write", root, f"child-{kill}", rng.randrange(2**32)) as process:
            with anyio.fail_after(30):
                acknowledge(known, await anyio.to_thread.run_sync(lines, process, rng.randrange(2, 30)))
            await anyio.sleep(rng.random() * 0.01)
            process.kill()
            acknowledge(known, await anyio.to_thread.run_sync(lines, process))
        left_over_count += len([path for path in root.rglob(f"{RESERVED}*") if path.is_file()])
        found = {info.key: number_of((await store.get(info.key)).body) for info in await store.list("")}
        # The last act of the child may be done although it was not reported: for one key at most.
        undone = [key for key, number in known.items() if found.get(key) != number]
        assert len(undone) <= 1, (kill, known, found)
        for key in undone:
            newer = found.get(key)
            assert newer is None or newer > (known[key] or 0)
        assert set(found) <= set(KEYS)
        known = {key: found.get(key) for key in known}
        assert not list(root.rglob(f"{RESERVED}*")), "a listing removes what killed processes left"
    print("objects:", Counter(number is not None for number in known.values()), "left over:", left_over_count)
