"""An event loop that was closed in the middle of a turn keeps nobody from the session."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.source_tree import ROOT

PROGRAM = """
import asyncio, os, sys, tempfile
from pathlib import Path
from repertory import Agent, FileSessionManager, JournalSessionManager, Model, SQLiteSessionManager, FileStorage

class FirstHangs(Model):
    asked = 0
    async def stream(self, *args, **options):
        FirstHangs.asked += 1
        if FirstHangs.asked == 1:
            begun.set()
            await asyncio.sleep(1000)
        yield {"messageStart": {"role": "assistant"}}
        yield {"contentBlockDelta": {"contentBlockIndex": 0, "delta": {"text": "fine"}}}
        yield {"contentBlockStop": {"contentBlockIndex": 0}}
        yield {"messageStop": {"stopReason": "end_turn"}}

def agent_in(kind, folder):
    places = {
        "memory": lambda: None,
        "sqlite": lambda: SQLiteSessionManager("s", folder / "a.db"),
        "files": lambda: FileSessionManager("s", str(folder)),
        "journals": lambda: JournalSessionManager("s", FileStorage(folder / "journals")),
    }
    return Agent(FirstHangs(), session_manager=places[kind](), callback_handler=None)

async def until_begun():
    await begun.wait()

kept = []
for kind in sys.argv[1:]:
    for ways in ("sync", "async"):
        for same in (True, False):
            FirstHangs.asked, begun = 0, asyncio.Event()
            folder = Path(tempfile.mkdtemp(dir=os.environ["FOLDER"]))
            agent = agent_in(kind, folder)
            loop = asyncio.new_event_loop()
            kept.append(loop.create_task(agent.invoke_async("one")))
            loop.run_until_complete(until_begun())
            loop.close()
            caller = agent if same or kind == "memory" else agent_in(kind, folder)
            answer = caller("two") if ways == "sync" else asyncio.run(caller.invoke_async("two"))
            print(kind, ways, same, str(answer).strip(), flush=True)
os._exit(0)
"""


@pytest.mark.parametrize("kind", ["memory", "sqlite", "files", "journals"])
def test_a_loop_that_was_closed_in_a_turn_keeps_nobody_from_the_session(kind: str, tmp_path: Path) -> None:
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM, kind]
    env = {"PYTHONPATH": str(ROOT), "FOLDER": str(tmp_path), "PATH": ""}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=50, env=env)
    assert [line.split()[-1] for line in done.stdout.splitlines()] == ["fine"] * 4, (done.stdout, done.stderr[-3000:])
