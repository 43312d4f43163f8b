"""The example programs, each stopped in the middle of what it does."""

from __future__ import annotations

import re
import signal
import threading
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import anyio
import pytest

from examples.beside_threads import clerk_beside
from examples.script_with_hooks import STORY
from repertory.errors import Unavailable
from tests.service.embedding_process import started
from tests.service.histories import read_histories
from tests.source_tree import ROOT
from tests.worker.obedient_model import ObedientModel

pytestmark = pytest.mark.real_time

EXAMPLES = ROOT / "examples"
WORKER = str(EXAMPLES / "worker_trio.py")
OBEDIENT_WORKER = ("-m", "tests.app.embedding.embedding_worker")


def give(folder: Path, **jobs: str) -> None:
    """Put jobs into a worker's inbox: `ada_1="text"` is the first of session `ada`."""
    (folder / "inbox").mkdir(exist_ok=True)
    for job, text in jobs.items():
        (folder / "inbox" / f"{job.replace('_', '.')}.txt").write_text(text)


def jobs_in(folder: Path) -> set[str]:
    return {job.stem for job in folder.glob("*.txt")}


# ------------------------------------------------------------------------------------------------------- the worker


def test_worker_that_is_stopped_again_and_again_does_every_job_once_and_in_order(tmp_path: Path) -> None:
    sessions, each = ["ada", "ben", "cleo"], 3
    jobs = {f"{name}_{number}": f"My number is {number}." for name in sessions for number in range(each)}
    give(tmp_path, **jobs)
    starts = 0
    while jobs_in(tmp_path / "inbox"):
        starts += 1
        with started(WORKER, str(tmp_path), folder=tmp_path) as worker:
            for _ in range(3):
                worker.wait_for(": end_turn: ")
            worker.signal(signal.SIGTERM)
            assert worker.exit_code() == 0
            assert re.search(r"drained in .* reason=SIGTERM ok=True unfinished=\(\)", worker.output[-1])
    assert starts > 1
    assert jobs_in(tmp_path / "outbox") == {job.replace("_", ".") for job in jobs}
    for history in anyio.run(read_histories, tmp_path / "sessions.db", "clerk", sessions):
        assert history[::2] == [f"My number is {number}." for number in range(each)]
        assert len(history) == 2 * each


def test_worker_finishes_what_it_is_at_and_a_second_signal_cuts_that_short(tmp_path: Path) -> None:
    give(tmp_path, ada_1="slow one", ben_1="endless one")
    with started(*OBEDIENT_WORKER, str(tmp_path), folder=tmp_path) as worker:
        assert {worker.wait_for("begun (.*)")[1] for _ in range(2)} == {"slow one", "endless one"}
        worker.signal(signal.SIGTERM)
        worker.wait_for("ada.1: end_turn: done: slow one")
        worker.signal(signal.SIGTERM)
        worker.wait_for("ben.1: cancelled: ")
        assert worker.exit_code() == 0
        assert re.search(r"reason=SIGTERM ok=False unfinished=\('Host._finish_turns',\)", worker.output[-1])
    assert (jobs_in(tmp_path / "outbox"), jobs_in(tmp_path / "inbox")) == ({"ada.1"}, {"ben.1"})


def test_worker_goes_on_with_the_turn_that_its_killed_predecessor_left(tmp_path: Path) -> None:
    give(tmp_path, ada_1="endless one")
    with started(*OBEDIENT_WORKER, str(tmp_path), folder=tmp_path) as worker:
        worker.wait_for("begun endless one")
        worker.kill()
    with started(WORKER, str(tmp_path), folder=tmp_path) as worker:
        worker.wait_for("ada.1: end_turn: ")
        worker.signal(signal.SIGTERM)
        assert worker.exit_code() == 0
    (history,) = anyio.run(read_histories, tmp_path / "sessions.db", "clerk", ["ada"])
    assert history[0] == "endless one"
    assert len(history) == 2


# ------------------------------------------------------------------------------------------------------- the script


def test_script_that_is_stopped_tells_its_story_to_the_end_and_runs_its_hooks_in_order(tmp_path: Path) -> None:
    with started(str(EXAMPLES / "script_with_hooks.py"), "for-ever", folder=tmp_path) as script:
        script.wait_for(re.escape(STORY))
        script.signal(signal.SIGTERM)
        assert script.exit_code() == 0
    output = "\n".join(script.output)
    phases = ["refuse", "turns", "memory", "commit", "close"]
    assert re.findall(r"(refuse|turns|memory|commit|close): ", output) == phases
    assert re.findall(r"^(\w+) +[\d.]+ s +done$", output, re.MULTILINE) == phases
    told = re.sub(r"(refuse|turns): .*\n", "", output.partition("memory: ")[0]).replace("\n", "")
    assert told == STORY * (len(told) // len(STORY))


def test_script_that_is_stopped_twice_breaks_its_story_off_and_still_closes_in_order(tmp_path: Path) -> None:
    with started(str(EXAMPLES / "script_with_hooks.py"), "for-ever", folder=tmp_path) as script:
        script.wait_for(re.escape(STORY))
        script.signal(signal.SIGINT)
        script.wait_for("turns: ")
        script.signal(signal.SIGINT)
        assert script.exit_code() == 0
    output = "\n".join(script.output)
    assert "memory: " not in output  # it has no reserve, so it is left out
    assert re.search(r"commit: .*close: ", output, re.DOTALL)
    assert re.search(r"^commit +[\d.]+ s +done$", output, re.MULTILINE)
    assert re.search(r"^turns .*unfinished=", output, re.MULTILINE)


# ------------------------------------------------------------------------------------------------------ beside threads


def test_threads_beside_a_runtime_get_their_answers_when_the_program_is_stopped(tmp_path: Path) -> None:
    with started(str(EXAMPLES / "beside_threads.py"), "for-ever", folder=tmp_path) as program:
        for _ in range(10):
            program.wait_for("(Ada|Ben|Cleo|Dora): .*offline")
        program.signal(signal.SIGTERM)
        assert program.exit_code() == 0
    assert re.search(r"drained in .* ok=True unfinished=\(\)", program.output[-1])
    assert not [line for line in program.output if "Traceback" in line]


def test_a_thread_that_waits_for_an_answer_gets_it_while_another_drains(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    before = set(threading.enumerate())
    with clerk_beside(tmp_path / "a.db", ObedientModel()) as clerk, ThreadPoolExecutor() as pool:
        slow = pool.submit(clerk.ask, "s", "slow one")
        while "begun" not in capfd.readouterr().out:  # Now and then: what is written while it is read may get lost.
            assert not wait([slow], timeout=0.02).done
        report = clerk.drain()
        assert slow.result() == "done: slow one"
        assert report.ok
        with pytest.raises(Unavailable):
            clerk.ask("s", "too late")
    for thread in set(threading.enumerate()) - before:  # Threads of earlier tests may end meanwhile.
        thread.join(5)  # A worker thread of a loop ends just after it.
        assert not thread.is_alive(), thread
