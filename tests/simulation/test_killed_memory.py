"""SIGKILL around extraction: everything that was acknowledged is remembered, and in effect once."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

WORKER = Path(__file__).with_name("dying_memory.py")


PLACES = [("turn", 2), ("turn", 1), ("extract", 4), ("written", 4), ("flush", 3)]


def run(folder: Path, count: int, place: str, backend: str) -> list[str]:
    """What it acknowledged before it died, or ended."""
    arguments = [sys.executable, str(WORKER), str(folder), str(count), place, backend]
    process = subprocess.run(arguments, capture_output=True, text=True, timeout=60, check=False)
    assert process.returncode in (0, -signal.SIGKILL), process.stderr
    assert (process.returncode == 0) == (place == "never"), place
    return process.stdout.split()


def remembered(folder: Path, store: str) -> Counter[str]:
    with sqlite3.connect(folder / f"{store}.db") as connection:
        return Counter(content.split()[1] for (content,) in connection.execute("SELECT content FROM facts"))


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.parametrize(("place", "count"), PLACES, ids=[f"{place} after {count}" for place, count in PLACES])
def test_whatever_a_killed_process_had_begun_is_remembered_once(
    tmp_path: Path, place: str, count: int, backend: str
) -> None:
    """A turn that was stored and not acknowledged may be remembered too."""
    said = run(tmp_path, count, place, backend)
    said += run(tmp_path, 1, place, backend) + run(tmp_path, 1, place, backend)
    said += run(tmp_path, 1, "never", backend)
    for store in ("first", "second"):
        counted = remembered(tmp_path, store)
        assert set(said) <= set(counted), store
        assert set(counted.values()) == {1}, store
