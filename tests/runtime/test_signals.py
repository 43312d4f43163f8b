"""Signals, in a process of their own: the first drains, the second cuts short, the third ends the process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

pytestmark = [pytest.mark.anyio, pytest.mark.real_time]

ROOT = Path(__file__).parent.parent.parent

PROGRAM = """
import sys
import anyio
import anyio.lowlevel
from repertory.runtime.phase import Phase
from repertory.runtime.system import ActorSystem, SystemSettings
from tests.runtime.toys import counter

SETTINGS = SystemSettings(phases=(
    Phase(name="finish", timeout_s=20),
    Phase(name="flush", timeout_s=20, reserve_s=float(sys.argv[2])),
    Phase(name="stop", timeout_s=1, reserve_s=1, stops_actors=True),
), grace_s=float(sys.argv[3]), force_after_s=0.2)

def say(text):
    print(text, flush=True)

async def finish():
    say("finishing")
    if sys.argv[4] == "slow":
        await anyio.sleep(20)
    if sys.argv[4] == "blocked":
        import time
        time.sleep(20)

async def flush():
    say("flushing")
    if sys.argv[4] == "slow":
        await anyio.sleep(20)

async def ready():
    for _ in range(10):  # until signals are listened to
        await anyio.lowlevel.checkpoint()
    say("ready")

async def main():
    log = []
    async with ActorSystem(SETTINGS) as system:
        await system.start(counter(log=log))
        system.on_shutdown("finish", finish)
        system.on_shutdown("flush", flush)
        async with anyio.create_task_group() as group:
            group.start_soon(ready)
            report = await system.serve_signals()
        say(f"{report.reason} ok={report.ok} cut={report.cut_short} {log[-1]}")

anyio.run(main, backend=sys.argv[1])
"""


ZOMBIE = """
import sys
import anyio
from repertory.runtime.spec import SupervisorSettings
from repertory.runtime.system import ActorSystem, SystemSettings
from tests.runtime.toys import Crash, counter

async def main():
    async with ActorSystem(SystemSettings(supervision=SupervisorSettings(intensity=0), on_fatal="signal")) as system:
        ref = await system.start(counter())
        ref.tell(Crash())
        await anyio.sleep(20)  # A server that would go on answering.

anyio.run(main, backend=sys.argv[1])
"""


class Program:
    """One of the programs above, running."""

    def __init__(self, backend: str, *arguments: object, program: str = PROGRAM) -> None:
        command = [sys.executable, "-c", program, backend, *map(str, arguments)]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        self._process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=ROOT, env=environment
        )

    async def line(self) -> str:
        assert self._process.stdout is not None
        with anyio.fail_after(20):
            return (await anyio.to_thread.run_sync(self._process.stdout.readline)).strip()

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    async def exit_code(self) -> int:
        with anyio.fail_after(20):
            code = await anyio.to_thread.run_sync(self._process.wait)
        assert self._process.stdout is not None
        self._process.stdout.close()
        return code


async def test_first_signal_drains_and_the_program_ends_by_itself(anyio_backend_name: str) -> None:
    program = Program(anyio_backend_name, 5, 25, "quick")
    assert await program.line() == "ready"
    program.signal(signal.SIGTERM)
    assert await program.line() == "finishing"
    assert await program.line() == "flushing"
    assert await program.line() == "SIGTERM ok=True cut=False counter stopped: Shutdown"
    assert await program.exit_code() == 0


async def test_second_signal_cuts_short_without_skipping_the_flush(anyio_backend_name: str) -> None:
    program = Program(anyio_backend_name, 0.2, 25, "slow")
    assert await program.line() == "ready"
    program.signal(signal.SIGINT)
    assert await program.line() == "finishing"
    program.signal(signal.SIGINT)
    assert await program.line() == "flushing"
    assert await program.line() == "SIGINT ok=False cut=True counter stopped: Shutdown"
    assert await program.exit_code() == 0


async def test_third_signal_ends_the_process(anyio_backend_name: str) -> None:
    program = Program(anyio_backend_name, 20, 25, "slow")
    assert await program.line() == "ready"
    program.signal(signal.SIGTERM)
    assert await program.line() == "finishing"
    program.signal(signal.SIGTERM)
    assert await program.line() == "flushing"
    program.signal(signal.SIGTERM)
    assert await program.exit_code() == 128 + signal.SIGTERM


async def test_loop_that_is_blocked_past_the_grace_is_ended_by_force(anyio_backend_name: str) -> None:
    """No deadline interrupts a blocking call; a thread does."""
    program = Program(anyio_backend_name, 0, 1.2, "blocked")
    assert await program.line() == "ready"
    program.signal(signal.SIGTERM)
    assert await program.line() == "finishing"
    assert await program.exit_code() == 128 + signal.SIGTERM


async def test_system_that_lost_its_actors_ends_the_process_instead_of_leaving_a_zombie(
    anyio_backend_name: str,
) -> None:
    program = Program(anyio_backend_name, program=ZOMBIE)
    assert await program.exit_code() == -signal.SIGTERM
