"""How many files of the package one has to open in order to follow a turn. Each number may only fall.

Traced in `path_tracer.py`, with sessions in SQLite, on all threads. A path that got shorter: lower its number here, and
have the files noted with `python -m tests.path_tracer --note`.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.path_tracer import NOTED
from tests.source_tree import ROOT

FILES_AT_MOST = {"plain": 46, "tool": 51, "cold": 75}
"""Of a turn of an agent that is held, of one in which it uses a tool, and of building an agent and its first call."""
RUN_BOUND_S = 50


@pytest.mark.real_time
def test_paths_do_not_get_longer() -> None:
    command = [sys.executable, "-m", "tests.path_tracer"]
    traced = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=RUN_BOUND_S, check=True)
    paths: dict[str, list[str]] = json.loads(traced.stdout)
    noted = dict(line.split(":") for line in NOTED.read_text().splitlines())
    assert paths.keys() == FILES_AT_MOST.keys()
    for name, path in paths.items():
        new = [file for file in path if name not in noted.get(file, "").split()]
        assert len(path) <= FILES_AT_MOST[name], f"{len(path)} files for {name}; new on the path: {', '.join(new)}"
