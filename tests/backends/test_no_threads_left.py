"""A system that starts no more threads: a typed error that says to try again, and the next try works."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import anyio
import pytest

from repertory.backends.owning_thread import OwningThread
from repertory.backends.worker_threads import start_thread
from repertory.errors import StoreUnavailable
from repertory.worker.decisions import TurnJob
from repertory.worker.queues.sqlite import SQLiteQueue
from tests.backends.starving_process import no_threads
from tests.source_tree import ROOT

pytestmark = [pytest.mark.anyio, pytest.mark.real_time]


def test_a_thread_that_cannot_start_is_a_typed_error() -> None:
    with no_threads(), pytest.raises(StoreUnavailable, match="no thread could be started"):
        start_thread(print, name="never")
    start_thread(print, name="once").join()


async def test_an_owning_thread_starts_with_the_next_piece_of_work() -> None:
    thread = OwningThread("test")
    with no_threads(), pytest.raises(StoreUnavailable):
        await thread.run(lambda: 1)
    with anyio.fail_after(30):
        assert await thread.run(lambda: 2) == 2
        await thread.aclose(lambda: None)


async def test_an_owning_thread_that_never_started_is_closed_at_once() -> None:
    thread = OwningThread("test")
    with no_threads(), pytest.raises(StoreUnavailable):
        await thread.run(lambda: 1)
    with anyio.fail_after(30):
        await thread.aclose(lambda: None)


async def test_a_queue_takes_jobs_once_there_are_threads(tmp_path: Path) -> None:
    queue = SQLiteQueue(tmp_path / "q.db")
    with no_threads(), pytest.raises(StoreUnavailable):
        await queue.send(TurnJob("a", "s", "hi", token="t"))
    with anyio.fail_after(30):
        await queue.send(TurnJob("a", "s", "hi", token="t"))
        await queue.aclose()


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
@pytest.mark.parametrize("what", ["work", "sqlite", "files"])
def test_a_process_without_threads_says_try_again_and_goes_on_when_there_are_some(
    tmp_path: Path, what: str, loop: str
) -> None:
    """In a process of its own: here, threads of other tests are idle and are used again."""
    command = [sys.executable, "-m", "tests.backends.starving_process", what, loop, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
