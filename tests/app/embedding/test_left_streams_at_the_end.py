"""`asyncio.run` returns, whatever a program has left: streams that it stops reading, turns that were cancelled."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.source_tree import ROOT

PROGRAM = """
import asyncio, sys, tempfile, threading
from repertory import Agent, BeforeModelCallEvent, FileSessionManager, ScriptedModel, SQLiteSessionManager

def agent_in(place, folder):
    keeps = {
        "memory": lambda: None,
        "sqlite": lambda: SQLiteSessionManager("s", folder + "/a.db"),
        "files": lambda: FileSessionManager("s", storage_dir=folder),
    }[place]()
    model = ScriptedModel(["a few words to read"])
    return Agent(model, session_manager=keeps, callback_handler=None)

async def main(place, folder, cancels, until):
    agent = agent_in(place, folder)
    if cancels:
        agent.add_hook(lambda event: event.agent.cancel(), BeforeModelCallEvent)
    async for event in agent.stream_async("hi"):
        if until in event or until == "anything":
            break

with tempfile.TemporaryDirectory() as base:
    for number, (cancels, until) in enumerate([(c, u) for c in (True, False) for u in ("anything", "result")]):
        run = threading.Thread(
            target=lambda: asyncio.run(main(sys.argv[1], f"{base}/{number}", cancels, until)), daemon=True
        )
        run.start()
        run.join(12)
        print(cancels, until, "hangs" if run.is_alive() else "ends", flush=True)
"""


@pytest.mark.parametrize("place", ["memory", "sqlite", "files"])
def test_a_loop_ends_though_a_stream_was_left_in_it(place: str, tmp_path: Path) -> None:
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM, place]
    env = {"PYTHONPATH": str(ROOT), "PATH": "", "TMPDIR": str(tmp_path)}
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60, env=env)
    assert [line.split()[-1] for line in done.stdout.splitlines()] == ["ends"] * 4, (done.stdout, done.stderr[-3000:])
