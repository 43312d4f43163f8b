"""Files to open, and functions to step through, in order to follow a call. Each number may only fall.

Traced in `path_tracer.py`, with sessions in SQLite, on all threads. A path that got shorter: lower its numbers here,
and have the files noted with `python -m tests.path_tracer --note`.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.path_tracer import NOTED, files_of, functions_of
from tests.source_tree import ROOT

AT_MOST = {
    "plain": (45, 326),
    "tool": (50, 419),
    "cold": (77, 740),
    "bare": (52, 384),
    "http": (60, 435),
    "graph": (67, 596),
}
"""Files and functions: of a turn of an agent that is held, of one in which it uses a tool, of building an agent and its
first call, of a further call of an agent that nothing holds, of one over HTTP, and of a graph with two nodes.
"""
RUN_BOUND_S = 50


@pytest.mark.real_time
def test_paths_do_not_get_longer() -> None:
    command = [sys.executable, "-m", "tests.path_tracer"]
    traced = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=RUN_BOUND_S, check=True)
    paths: dict[str, list[str]] = json.loads(traced.stdout)
    noted = dict(line.split(":") for line in NOTED.read_text().splitlines())
    assert paths.keys() == AT_MOST.keys()
    for name, path in paths.items():
        files, functions = files_of(path), functions_of(path)
        new = [file for file in files if name not in noted.get(file, "").split()]
        assert len(files) <= AT_MOST[name][0], f"{len(files)} files for {name}; new on the path: {', '.join(new)}"
        assert len(functions) <= AT_MOST[name][1], f"{len(functions)} functions for {name}"
