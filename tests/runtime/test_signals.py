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

from repertory.errors import Invalid
from repertory.runtime.system import ActorSystem

pytestmark = [pytest.mark.anyio, pytest.mark.real_time]

ROOT = Path(__file__).parent.parent.parent

PROGRAM = """
import sys
import anyio
import anyio.lowlevel
from repertory.runtime.drain import DrainPhase
from repertory.runtime.system import ActorSystem, SystemSettings
from tests.runtime.toys import counter

SETTINGS = SystemSettings(phases=(
    DrainPhase(name="finish", timeout_s=20),
    DrainPhase(name="flush", timeout_s=20, reserve_s=float(sys.argv[2])),
    DrainPhase(name="stop", timeout_s=1, reserve_s=1, stops_actors=True),
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


BUSY = """
import hashlib
import re
import signal
import sys
import threading
import time
import anyio
from repertory.runtime.system import ActorSystem, SystemSettings
from repertory.runtime.drain import DrainPhase

SETTINGS = SystemSettings(
    phases=(DrainPhase(name="stop", timeout_s=0.1, stops_actors=True),), grace_s=0.1, force_after_s=float(sys.argv[2])
)

def in_python():
    while True:
        pass

def block():
    match sys.argv[3]:
        case "python":
            in_python()
        case "C":
            hashlib.pbkdf2_hmac("sha256", b"", b"", 2**31 - 1)
        case "a pattern":
            re.match("(a+)+$", "a" * 60 + "b")

def outlast():
    match sys.argv[3]:
        case "a thread":
            threading.Thread(target=threading.Event().wait).start()
        case "a job":
            from concurrent.futures import ThreadPoolExecutor
            ThreadPoolExecutor().submit(threading.Event().wait)

async def main():
    async with ActorSystem(SETTINGS) as system, anyio.create_task_group() as group:
        outlast()
        await group.start(system.serve_signals)
        print("ready", flush=True)
        block()
        if sys.argv[3] == "a loop":
            await anyio.sleep_forever()
        await system.drained.wait()

anyio.run(main, backend=sys.argv[1])
print("drained")  # In a buffer, since it is a pipe.
if sys.argv[3] == "more work":
    time.sleep(4)  # Past the bound.
    print("worked")
"""


FORKS = """
import multiprocessing
import os
import signal
import sys
import anyio
from repertory.runtime.system import ActorSystem

def child():
    print(os.getpid(), flush=True)
    signal.pause()

async def main():
    async with ActorSystem() as system, anyio.create_task_group() as group:
        await group.start(system.serve_signals)
        process = multiprocessing.get_context("fork").Process(target=child)
        process.start()
        while process.exitcode is None:
            await anyio.sleep(0.01)
        print("healthy", system.healthy, process.exitcode, flush=True)
        group.cancel_scope.cancel()

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

    async def signal_until_it_ends(self) -> None:
        """Again and again: signals that come at once are one."""
        with anyio.fail_after(20):
            while self._process.poll() is None:
                self._process.send_signal(signal.SIGTERM)
                await anyio.sleep(0.05)

    async def rest(self) -> list[str]:
        """The lines that it still says, until it ends."""
        assert self._process.stdout is not None
        with anyio.fail_after(20):
            return (await anyio.to_thread.run_sync(self._process.stdout.read)).splitlines()

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


@pytest.mark.parametrize("what", ["python", "C", "a pattern"])
async def test_a_loop_that_was_blocked_before_the_signal_came_is_ended_by_force(
    anyio_backend_name: str, what: str
) -> None:
    program = Program(anyio_backend_name, 0.2, what, program=BUSY)
    assert await program.line() == "ready"
    program.signal(signal.SIGTERM)
    assert await program.exit_code() == 128 + signal.SIGTERM


@pytest.mark.parametrize("what", ["C", "a pattern"])
async def test_a_third_signal_ends_a_process_whose_loop_is_blocked(anyio_backend_name: str, what: str) -> None:
    program = Program(anyio_backend_name, 1000, what, program=BUSY)
    assert await program.line() == "ready"
    await program.signal_until_it_ends()
    assert await program.exit_code() == 128 + signal.SIGTERM


@pytest.mark.parametrize(
    ("anyio_backend", "what"), [("asyncio", "a thread"), ("trio", "a job")], indirect=["anyio_backend"]
)
async def test_a_process_that_waits_for_a_thread_at_its_exit_ends_with_all_that_it_said(
    anyio_backend_name: str, what: str
) -> None:
    program = Program(anyio_backend_name, 3, what, program=BUSY)
    assert await program.line() == "ready"
    program.signal(signal.SIGTERM)
    assert await program.rest() == ["drained"]
    assert await program.exit_code() == 128 + signal.SIGTERM


async def test_a_program_whose_tasks_go_on_after_the_drain_is_ended(anyio_backend_name: str) -> None:
    program = Program(anyio_backend_name, 0.2, "a loop", program=BUSY)
    assert await program.line() == "ready"
    program.signal(signal.SIGTERM)
    assert await program.exit_code() == 128 + signal.SIGTERM


@pytest.mark.parametrize("anyio_backend", ["asyncio"], indirect=True)
async def test_a_program_that_goes_on_without_its_loop_ends_by_itself(anyio_backend_name: str) -> None:
    program = Program(anyio_backend_name, 3, "more work", program=BUSY)
    assert await program.line() == "ready"
    program.signal(signal.SIGTERM)
    assert await program.rest() == ["drained", "worked"]
    assert await program.exit_code() == 0


async def test_a_signal_to_a_forked_child_is_not_the_parents(anyio_backend_name: str) -> None:
    program = Program(anyio_backend_name, program=FORKS)
    os.kill(int(await program.line()), signal.SIGTERM)
    assert await program.line() == f"healthy True {-signal.SIGTERM}"
    assert await program.exit_code() == 0


LOOPS = pytest.mark.parametrize("anyio_backend", ["asyncio", "uvloop", "trio"], indirect=True)


@LOOPS
async def test_one_signal_drains_on_every_loop_and_what_was_set_before_is_set_again() -> None:
    handlers = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    wakeup_fd = wakeup_fd_now()
    async with ActorSystem() as system, anyio.create_task_group() as group:
        await group.start(system.serve_signals)
        os.kill(os.getpid(), signal.SIGTERM)
        with anyio.fail_after(20):
            await system.drained.wait()
    assert (await system.drain()).reason == "SIGTERM"
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == handlers
    assert wakeup_fd_now() == wakeup_fd


@LOOPS
async def test_other_signals_reach_whoever_listens_to_them_on_the_same_loop() -> None:
    with anyio.open_signal_receiver(signal.SIGUSR1) as received:
        async with ActorSystem() as system, anyio.create_task_group() as group:
            await group.start(system.serve_signals)
            os.kill(os.getpid(), signal.SIGUSR1)
            with anyio.fail_after(20):
                assert await anext(received) == signal.SIGUSR1
            assert system.healthy
            group.cancel_scope.cancel()


async def test_serving_signals_ends_with_a_drain_that_somebody_else_begins() -> None:
    async with ActorSystem() as system, anyio.create_task_group() as group:
        await group.start(system.serve_signals)
        await system.drain("enough")
    assert (await system.drain()).reason == "enough"


async def test_signals_cannot_be_served_outside_the_main_thread() -> None:
    def elsewhere() -> None:
        anyio.run(serve)

    async def serve() -> None:
        async with ActorSystem() as system:
            with pytest.raises(Invalid, match="main thread"):
                await system.serve_signals()

    await anyio.to_thread.run_sync(elsewhere)


def wakeup_fd_now() -> int:
    """What Python writes signals to."""
    number = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(number, warn_on_full_buffer=False)
    return number


async def test_system_that_lost_its_actors_ends_the_process_instead_of_leaving_a_zombie(
    anyio_backend_name: str,
) -> None:
    program = Program(anyio_backend_name, program=ZOMBIE)
    assert await program.exit_code() == -signal.SIGTERM
