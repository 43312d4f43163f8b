"""Sync code that is interrupted while it waits for an agent, and sync code that ends while others wait."""

from __future__ import annotations

import signal
import threading
from concurrent.futures import wait
from pathlib import Path
from typing import Any

import anyio
import pytest

from repertory import Agent, AgentResult
from repertory.app.host.blocking import BlockingHost
from repertory.app.host.host import HostSettings
from repertory.core.messages import STOPPED_TEXT
from tests.service.embedding_process import started
from tests.service.histories import read_histories
from tests.worker.obedient_model import ObedientModel

pytestmark = pytest.mark.real_time

ENDLESS = """
import sys
from repertory import Agent, SQLiteSessionManager
from tests.worker.obedient_model import ObedientModel

session = SQLiteSessionManager("s", path=sys.argv[1])
agent = Agent(ObedientModel(), session_manager=session, agent_id="helper", callback_handler=None)
try:
    agent("endless one")
except KeyboardInterrupt:
    print(agent("hello"), flush=True)
    if sys.argv[2] == "again":
        agent("endless two")
"""


def test_ctrl_c_cancels_the_turn_that_sync_code_waits_for_and_the_agent_can_be_called_again(tmp_path: Path) -> None:
    database = tmp_path / "a.db"
    with started("-c", ENDLESS, str(database), "once", folder=tmp_path) as program:
        program.wait_for("begun endless one")
        program.signal(signal.SIGINT)
        program.wait_for("done: hello")
        assert program.exit_code() == 0
    (history,) = anyio.run(read_histories, database, "helper", ["s"])
    assert (history[0], history[-2:]) == ("endless one", ["hello", "done: hello"])


class Interrupted(BlockingHost):
    """Ctrl-C comes when a call has just begun, before its caller waits for it."""

    once = True

    def start(self, *args: Any, **options: Any) -> Any:
        future = super().start(*args, **options)
        if self.once:
            self.once = False
            raise KeyboardInterrupt
        return future


def test_ctrl_c_before_a_call_is_waited_for_cancels_it_too() -> None:
    host = Interrupted(HostSettings(drain_timeout_s=5))
    agent = Agent(ObedientModel(), callback_handler=None)
    with pytest.raises(KeyboardInterrupt):
        host.run(agent.invoke_async, "endless one")
    assert str(host.run(agent.invoke_async, "hello")).strip() == "done: hello"
    host.stop()


def test_a_program_that_dies_of_ctrl_c_does_not_wait_for_its_turn_to_end(tmp_path: Path) -> None:
    database = tmp_path / "a.db"
    with started("-c", ENDLESS, str(database), "again", folder=tmp_path) as program:
        program.wait_for("begun endless one")
        program.signal(signal.SIGINT)
        program.wait_for("begun endless two")
        program.signal(signal.SIGINT)
        assert program.exit_code() == -signal.SIGINT
    (history,) = anyio.run(read_histories, database, "helper", ["s"])
    assert history[-4:] == ["hello", "done: hello", "endless two", f"done: endless two\n{STOPPED_TEXT}"]


def test_a_thread_that_still_waits_when_the_sync_loop_stops_is_answered_within_the_drain(
    capfd: pytest.CaptureFixture[str],
) -> None:
    before = set(threading.enumerate())
    host = BlockingHost(HostSettings(drain_timeout_s=0.5))
    agent = Agent(ObedientModel(), callback_handler=None)
    waiting = host.start(agent.invoke_async, "endless one")
    while "begun" not in capfd.readouterr().out:  # Now and then: what is written while it is read may get lost.
        assert not wait([waiting], timeout=0.02).done
    host.stop()
    result = waiting.result()
    assert isinstance(result, AgentResult)
    assert result.stop_reason == "cancelled"
    for thread in set(threading.enumerate()) - before:  # Threads of earlier tests may end meanwhile.
        thread.join(5)  # A worker thread of a loop ends just after it.
        assert not thread.is_alive(), thread
