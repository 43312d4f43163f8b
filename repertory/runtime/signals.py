"""Signals, for programs that own their process: the first drains, the second cuts the drain short, the third ends the
process.

Embedded in somebody else's server the runtime never touches signals.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Protocol, TypeAlias

import anyio
from anyio.abc import TaskStatus

from repertory.runtime.report import DrainReport

EndProcess: TypeAlias = Callable[[int], object]

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Drainable(Protocol):
    """What is drained."""

    def drain(self, reason: str) -> Awaitable[DrainReport]: ...

    def cut_short(self) -> None: ...


async def serve_signals(
    system: Drainable, force_after_s: float, end_process: EndProcess, task_status: TaskStatus[None]
) -> DrainReport:
    """Wait for a signal, drain, and return the report. Cancelled, it stops listening; a drain that has begun goes on.

    `force_after_s` from the first signal on the process is ended from a thread, since no deadline interrupts a loop
    that a blocking call holds up. `task_status` is told when signals are listened to. When this returns, they have
    their default effect again.
    """
    with anyio.open_signal_receiver(*SIGNALS) as received:
        task_status.started()
        first = await anext(received)
        watchdog = threading.Timer(force_after_s, end_process, [128 + first])
        watchdog.daemon = True
        watchdog.start()
        try:
            return await _drain_heeding(system, received, first, end_process)
        finally:
            watchdog.cancel()


async def _drain_heeding(
    system: Drainable, received: AsyncIterator[signal.Signals], first: signal.Signals, end_process: EndProcess
) -> DrainReport:
    reports: list[DrainReport] = []
    async with anyio.create_task_group() as group:
        group.start_soon(_heed_more, system, received, end_process)
        reports.append(await system.drain(first.name))
        group.cancel_scope.cancel()
    return reports[0]


async def _heed_more(system: Drainable, received: AsyncIterator[signal.Signals], end_process: EndProcess) -> None:
    await anext(received)
    system.cut_short()
    end_process(128 + await anext(received))


def end_by_signal() -> None:
    """Ask this process to end, as its operator would."""
    os.kill(os.getpid(), signal.SIGTERM)
