"""What of the runtime is about trio itself: nurseries, the autojump clock, system tasks, signals, its threads.

These run under trio's own runner, by pytest-trio, without anyio around them: as a program does that was written for
trio and has our actors in it. Our decisions: `docs/design/structure.md`.
"""

from __future__ import annotations

import contextvars
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
import trio.testing

from repertory.errors import ActorDead, AskTimeout
from repertory.runtime.host_task import HostTask
from repertory.runtime.message import Next, carry_on, reply
from repertory.runtime.system import ActorSystem
from tests.runtime.toys import Add, Nap, Run, Scripted, Total, counter, scripted

ROOT = Path(__file__).parent.parent.parent


class Steps(trio.abc.Instrument):
    """Counts how often trio runs any task."""

    def __init__(self) -> None:
        self.count = 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.count += 1


# ------------------------------------------------------------------------------------------------------------ nurseries


@pytest.mark.trio
async def test_a_system_in_a_nursery_that_is_cancelled_still_finishes_what_it_took(
    autojump_clock: trio.testing.MockClock,
) -> None:
    log: list[str] = []
    async with trio.open_nursery() as nursery:

        async def serve(task_status: trio.TaskStatus[object] = trio.TASK_STATUS_IGNORED) -> None:
            async with ActorSystem() as system:
                task_status.started(await system.start(counter(log=log)))
                await trio.sleep_forever()

        ref = await nursery.start(serve)
        for _ in range(3):
            ref.tell(Add(amount=1))
        nursery.cancel_scope.cancel()
    assert log == ["counter started", "counter stopped: Shutdown"]
    with pytest.raises(ActorDead):
        await ref.ask(Total(), timeout_s=1)


@pytest.mark.trio
async def test_a_failing_sibling_of_a_nursery_ends_the_system_in_order_and_stays_the_error(
    autojump_clock: trio.testing.MockClock,
) -> None:
    log: list[str] = []

    async def fail() -> None:
        await trio.sleep(1)
        raise KeyError("theirs")

    with pytest.RaisesGroup(KeyError):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(fail)
            async with ActorSystem() as system:
                await system.start(counter(log=log))
                await trio.sleep_forever()
    assert log[-1] == "counter stopped: Shutdown"


@pytest.mark.trio
async def test_an_actor_may_open_a_nursery_of_trios_own_and_its_failure_is_the_actors(
    autojump_clock: trio.testing.MockClock,
) -> None:
    tried: list[int] = []

    async def handle(actor: Scripted, message: object) -> Next:
        tried.append(len(tried))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep, 5)
            if len(tried) == 1:
                raise ValueError("once")
        return reply(trio.current_time())

    async with ActorSystem() as system:
        ref = await system.start(scripted(handle))
        ref.tell("fail")
        assert await ref.ask(Run(), timeout_s=60) == pytest.approx(trio.current_time())
        assert system.stats().restarts == 1


@pytest.mark.trio
async def test_a_cancel_scope_of_trio_around_an_ask_takes_it_back(autojump_clock: trio.testing.MockClock) -> None:
    async with ActorSystem() as system:
        ref = await system.start(counter())
        with trio.move_on_after(2) as scope:
            await ref.ask(Nap(seconds=60), timeout_s=100)
        assert scope.cancelled_caught
        assert trio.current_time() == pytest.approx(2)
        with trio.CancelScope() as cancelled:
            cancelled.cancel()
            with trio.CancelScope(shield=True):
                assert await ref.ask(Total(), timeout_s=100) == 0


# ------------------------------------------------------------------------------------------------------- autojump clock


@pytest.mark.trio
async def test_the_autojump_clock_moves_deadlines_and_periods(autojump_clock: trio.testing.MockClock) -> None:
    ticks: list[float] = []

    async def handle(actor: Scripted, message: object) -> Next:
        if message == "tick":
            ticks.append(trio.current_time())
            return carry_on()
        actor.context.every(60.0, "tick")
        return reply(None)

    async with ActorSystem() as system:
        ref = await system.start(scripted(handle))
        began = trio.current_time()
        await ref.ask(Run(), timeout_s=1)
        await trio.sleep(3600.5)
        assert len(ticks) == 60
        assert all(0 <= at - began - 60 * (number + 1) <= 0.051 for number, at in enumerate(ticks))
        slow = await system.start(counter("slow"))
        before = trio.current_time()
        with pytest.raises(AskTimeout):
            await slow.ask(Nap(seconds=9.0), timeout_s=3)
        assert trio.current_time() - before == pytest.approx(3, abs=0.051)


@pytest.mark.trio
async def test_a_system_at_rest_runs_no_task_of_trio(autojump_clock: trio.testing.MockClock) -> None:
    steps = Steps()
    async with ActorSystem() as system:
        refs = [await system.start(counter(f"counter {number}")) for number in range(20)]
        for ref in refs:
            await ref.ask(Total(), timeout_s=1)
        await trio.sleep(120)  # the last deadline has passed
        trio.lowlevel.add_instrument(steps)
        await trio.sleep(86_400)
        trio.lowlevel.remove_instrument(steps)
        assert steps.count <= 2


# --------------------------------------------------------------------------------------------------------- system tasks

SPEAKER = contextvars.ContextVar("SPEAKER", default="nobody")


@asynccontextmanager
async def nursery_block(log: list[str]) -> AsyncGenerator[str]:
    """A block with a nursery, which trio lets end in the task alone that began it."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.sleep_forever)
        try:
            yield SPEAKER.get()
        finally:
            log.append(trio.lowlevel.current_task().name)
            nursery.cancel_scope.cancel()


@pytest.mark.trio
async def test_a_block_that_moves_between_tasks_lives_in_a_system_task(autojump_clock: trio.testing.MockClock) -> None:
    log: list[str] = []
    SPEAKER.set("ada")
    host = HostTask(nursery_block(log), name="block of a test")
    root = trio.lowlevel.current_root_task()
    assert root is not None

    def system_tasks() -> list[str]:
        return [task.name for nursery in root.child_nurseries for task in nursery.child_tasks]

    assert await host.enter() == "ada"
    assert "block of a test" in system_tasks()

    async def leave_elsewhere() -> None:
        await host.leave(None)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(leave_elsewhere)
    assert log == ["block of a test"]
    assert "block of a test" not in system_tasks()


@pytest.mark.trio
async def test_an_actor_system_has_no_system_task_and_leaves_none(autojump_clock: trio.testing.MockClock) -> None:
    root = trio.lowlevel.current_root_task()
    assert root is not None
    before = [task for nursery in root.child_nurseries for task in nursery.child_tasks]
    living = trio.lowlevel.current_statistics().tasks_living
    async with ActorSystem() as system:
        await system.start(counter())
        assert [task for nursery in root.child_nurseries for task in nursery.child_tasks] == before
        assert trio.lowlevel.current_statistics().tasks_living > living
    assert trio.lowlevel.current_statistics().tasks_living == living


# ------------------------------------------------------------------------------------------------- threads and signals


@pytest.mark.trio
async def test_a_thread_of_trio_tells_an_actor() -> None:
    async with ActorSystem() as system:
        ref = await system.start(counter())
        await trio.to_thread.run_sync(ref.tell_threadsafe, Add(amount=3))
        await trio.to_thread.run_sync(lambda: trio.from_thread.run_sync(ref.tell, Add(amount=4)))
        await trio.testing.wait_all_tasks_blocked()
        assert await ref.ask(Total(), timeout_s=5) == 7


@pytest.mark.trio
async def test_a_program_hears_its_own_signals_of_trio_while_ours_drain() -> None:
    log: list[str] = []
    async with trio.open_nursery() as nursery, ActorSystem() as system:
        await system.start(counter(log=log))
        await nursery.start(system.serve_signals)
        with trio.open_signal_receiver(signal.SIGUSR1) as heard:
            os.kill(os.getpid(), signal.SIGUSR1)
            with trio.fail_after(5):
                async for number in heard:
                    assert number == signal.SIGUSR1
                    break
        assert system.healthy
        os.kill(os.getpid(), signal.SIGTERM)
        with trio.fail_after(5):
            await system.drained.wait()
    assert log[-1] == "counter stopped: Shutdown"
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_a_keyboard_interrupt_of_trio_lets_actors_stop_in_order() -> None:
    program = """
        import os, signal
        import trio
        from repertory.runtime.system import ActorSystem
        from tests.runtime.toys import Add, counter

        log = []

        async def main():
            async with ActorSystem() as system:
                ref = await system.start(counter(log=log))
                ref.tell(Add(amount=1))
                os.kill(os.getpid(), signal.SIGINT)
                await trio.sleep_forever()

        try:
            trio.run(main)
        except KeyboardInterrupt:
            print(log)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    assert done.stdout == "['counter started', 'counter stopped: Shutdown']\n"
