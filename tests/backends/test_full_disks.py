"""A disk that is full when a database is made: the caller may try again, and then it works."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.source_tree import ROOT

LIMITS = [0, 1000, *range(4096, 90_000, 4096), 200_000]


@pytest.mark.parametrize("what", ["sessions", "memory", "queue"])
def test_a_full_disk_at_the_first_start_is_no_damage_and_passes(what: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.backends.full_disk_child", what, str(tmp_path), *map(str, LIMITS)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    outcomes = [line.split("|") for line in done.stdout.splitlines()]
    assert {full for _, full, _ in outcomes} == {"retryable", "ok"}, outcomes
    assert {then for _, _, then in outcomes} == {"ok"}, outcomes
