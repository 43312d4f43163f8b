"""Threads of synchronous tools: bounded, and never waited for when nobody wants their answer."""

from __future__ import annotations

import threading

import anyio
import anyio.from_thread
import pytest

from repertory.backends.tools.function_tool import ABANDONED_MAX, THREADS_MAX, ToolThreads, tool_threads
from repertory.errors import LimitReached

pytestmark = [pytest.mark.anyio, pytest.mark.real_time]


async def until_none_is_abandoned(threads: ToolThreads) -> None:
    """A thread tells nobody when it ends, so this looks again and again, within a bound."""
    with anyio.fail_after(30):
        while threads.statistics().abandoned_count:
            await anyio.lowlevel.checkpoint()


async def abandon(threads: ToolThreads, gate: threading.Event) -> None:
    """Start a call that hangs at the gate, and give it up once it runs."""
    started = anyio.Event()

    def hang() -> None:
        anyio.from_thread.run_sync(started.set)
        gate.wait(10)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(threads.run, hang)
        await started.wait()
        tasks.cancel_scope.cancel()


async def test_a_cancelled_call_returns_at_once_and_its_thread_runs_on():
    threads, gate = ToolThreads(), threading.Event()
    try:
        with anyio.fail_after(30):
            await abandon(threads, gate)
        assert not gate.is_set()
        assert threads.statistics().abandoned_count == 1
    finally:
        gate.set()
    await until_none_is_abandoned(threads)
    assert threads.statistics().running_count == 0


async def test_too_many_abandoned_calls_refuse_new_ones_until_they_end():
    threads, gate = ToolThreads(), threading.Event()
    try:
        with anyio.fail_after(20):
            for _ in range(ABANDONED_MAX):
                await abandon(threads, gate)
            with pytest.raises(LimitReached, match=f"abandoned_count={ABANDONED_MAX}"):
                await threads.run(lambda: None)
    finally:
        gate.set()
    await until_none_is_abandoned(threads)
    assert await threads.run(lambda: 3) == 3


async def test_no_more_than_the_bound_run_at_once():
    threads, gate = ToolThreads(), threading.Event()
    lock = threading.Lock()
    now = most = 0

    def work() -> None:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
            if now == THREADS_MAX:
                gate.set()
        gate.wait(10)
        with lock:
            now -= 1

    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            for _ in range(2 * THREADS_MAX):
                tasks.start_soon(threads.run, work)
    assert most == THREADS_MAX
    assert threads.statistics().running_count == 0


async def test_what_the_function_raises_is_raised_and_nothing_stays_counted():
    threads = ToolThreads()

    def fail() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await threads.run(fail)
    assert threads.statistics().running_count == 0


async def test_one_event_loop_has_one_set_of_threads():
    assert tool_threads() is tool_threads()
