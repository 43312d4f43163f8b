"""A worker's turns per second, beside the same turns that a program asks of its runtime itself.

Each turn is of a session of its own, with a model that answers at once, stored in SQLite. So many are under way at the
same time. The bar is what a queue in a SQLite file may cost.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio

from bench.harness import Figure, interleaved, report
from repertory import AgentSpec, Runtime, ScriptedModel, SQLiteQueue, SQLiteSessions, TurnJob, Worker

TURNS = 400
SESSIONS = 100
AT_ONCE = 32
BAR = 0.8


def spec() -> AgentSpec:
    return AgentSpec(name="helper", model=ScriptedModel(["ok"], loop=True))


async def bare(folder: Path) -> float:
    """Turns per second without a queue."""
    async with Runtime(sessions=SQLiteSessions(folder / "a.db")) as runtime:
        helper = runtime.agent(spec())
        room = anyio.CapacityLimiter(AT_ONCE)

        async def turn(number: int) -> None:
            async with room:
                await helper.session(f"s{number % SESSIONS}").invoke("hello", idempotency_token=f"t{number}")

        began = time.perf_counter()
        async with anyio.create_task_group() as group:
            for number in range(TURNS):
                group.start_soon(turn, number)
        return TURNS / (time.perf_counter() - began)


async def worked(folder: Path, queue: Any) -> float:
    """Turns per second of a worker, from its start until the last job is finished."""
    for number in range(TURNS):
        await queue.send(TurnJob("helper", f"s{number % SESSIONS}", "hello", token=f"t{number}"))
    async with Runtime(sessions=SQLiteSessions(folder / "a.db")) as runtime:
        runtime.agent(spec())
        worker = Worker(runtime, queue, at_once=AT_ONCE)
        began = time.perf_counter()
        await worker.start()
        while worker.stats().finished < TURNS:  # noqa: ASYNC110 - a look costs less than a turn
            await anyio.sleep(0.005)
        return TURNS / (time.perf_counter() - began)


def measured(work: Callable[[Path], Any]) -> float:
    with tempfile.TemporaryDirectory() as folder:
        return float(anyio.run(work, Path(folder)))


def main() -> int:
    taken = interleaved(
        {
            "bare": lambda: measured(bare),
            "SQLite": lambda: measured(lambda folder: worked(folder, SQLiteQueue(folder / "jobs.db"))),
        },
        rounds=5,
    )
    return report(
        [
            Figure("worker on SQLiteQueue", taken["SQLite"], taken["bare"], BAR, "turns/s", "higher"),
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
