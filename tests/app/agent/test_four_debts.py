"""All kinds of work that a killed process has left are done by another process, though nobody calls."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import anyio
import pytest

from repertory import Runtime, Sessions, SQLiteSessions
from repertory.core.messages import text_of
from repertory.core.turns.turn_start import EXPIRED_TEXT
from tests.app.agent.leaving_worker import PENDING_WORK, Desk
from tests.source_tree import ROOT

pytestmark = pytest.mark.anyio


@pytest.mark.real_time
async def test_another_process_finishes_a_run_a_timer_a_question_and_memories_of_a_killed_one(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    command = [sys.executable, "-m", "tests.app.agent.leaving_worker", str(path)]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)  # noqa: ASYNC220 - killed soon
    assert process.stdout is not None
    assert process.stdout.readline() == "owes\n"
    process.send_signal(signal.SIGKILL)
    process.wait(30)
    process.stdout.close()
    place, desk = SQLiteSessions(path), Desk(works=True)
    assert {work.session_id: work.why for work in await Sessions(place).pending_work()} == PENDING_WORK
    with anyio.fail_after(40):
        async with Runtime(sessions=place) as runtime:
            run = runtime.orchestrator("team", desk.team).session("run")
            agents = {spec.name: runtime.agent(spec) for spec in (desk.clerk(), desk.asker(), desk.scribe())}
            while await Sessions(place).pending_work():  # noqa: ASYNC110 - nobody is told
                await anyio.sleep(0.1)
            result = await run.invoke("work", idempotency_token="the run")
            timed = await agents["clerk"].session("timer").messages()
            asked = await agents["asker"].session("question").messages()
            noted = await agents["scribe"].session("memory").messages()
    assert (result.replayed, str(result)) == (True, "clerk: the run is over")
    assert [text_of(message) for message in timed] == ["it is time", "here I am"]
    assert EXPIRED_TEXT in str(asked[2])
    assert text_of(asked[3]) == "nobody said so"
    assert [text_of(message) for message in noted] == ["I like tea", "noted"]
    assert desk.kept == ["2 messages"]
