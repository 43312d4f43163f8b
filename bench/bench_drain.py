"""What an idle session of a `Runtime` costs: to drain it, and to keep it.

Sessions on SQLite that have had one turn each are idle when nothing has come for a while. The limit of the drain is the
least that a store needs to release as many leases: one byte each, measured in the same run on the same disk. The
weight is what `tracemalloc` finds of a session: its agent, its actors and its messages.
"""

from __future__ import annotations

import gc
import sys
import time
import tracemalloc
from pathlib import Path

import anyio

from bench.bench_session import folder
from bench.harness import Figure, report
from repertory import AgentSpec, Runtime, ScriptedModel, SQLiteSessions
from repertory.backends.sessions.sqlite.journals import LeaseMarks
from repertory.runtime.actor import LINGER_S

DRAINED = 10_000
WEIGHED = 5_000
TOGETHER = 200
"""How many sessions have their turn at the same time."""
DRAIN_S = 2.0
SESSION_KB = 20.0


async def idle_sessions(runtime: Runtime, count: int, prefix: str = "s") -> None:
    """So many sessions, each with one turn, all idle."""
    agent = runtime.agent(AgentSpec(model=ScriptedModel(["A plain answer."], loop=True)))

    async def turn(session_id: str) -> None:
        await agent.session(session_id).invoke("A question.")

    for first in range(0, count, TOGETHER):
        async with anyio.create_task_group() as group:
            for number in range(first, min(first + TOGETHER, count)):
                group.start_soon(turn, f"{prefix}{number}")
    await anyio.sleep(LINGER_S + 0.2)
    gc.collect()


async def drain_s(database: Path) -> tuple[float, float, bool]:
    """Seconds of a drain, its CPU seconds, and whether its report says that all went well."""
    async with Runtime(sessions=SQLiteSessions(database), idle_timeout_s=3600.0) as runtime:
        await idle_sessions(runtime, DRAINED)
        began, used = time.perf_counter(), time.process_time()
        drained = await runtime.drain()
        return time.perf_counter() - began, time.process_time() - used, drained.ok


def bare_release_s(folder: Path) -> float:
    """Seconds that as many leases take to be given up in the file of leases."""
    marks = LeaseMarks(folder / "leases")
    for generation in range(DRAINED):
        marks.begin(generation)
    began = time.perf_counter()
    for generation in range(DRAINED):
        marks.give_up(generation)
    return time.perf_counter() - began


async def weight_kb(database: Path) -> float:
    """KB for each idle session, behind some that have loaded what is loaded once."""
    async with Runtime(sessions=SQLiteSessions(database), idle_timeout_s=3600.0) as runtime:
        await idle_sessions(runtime, TOGETHER, "first")
        tracemalloc.start()
        before = tracemalloc.get_traced_memory()[0]
        await idle_sessions(runtime, WEIGHED)
        weight = (tracemalloc.get_traced_memory()[0] - before) / WEIGHED / 1024
        tracemalloc.stop()
        return weight


def main() -> int:
    """Print the table; 1 when a bar was missed, or a drain was not whole."""
    with folder() as where:
        seconds, cpu_s, ok = anyio.run(drain_s, where / "drained.db")
        bare_s = bare_release_s(where)
        weight = anyio.run(weight_kb, where / "weighed.db")
    figures = [
        Figure(f"drain of {DRAINED:,} idle sessions", seconds, DRAIN_S, 1.0, "s"),
        Figure("its CPU / bare release", cpu_s, bare_s, None, "s"),
        Figure("its report is ok", float(ok), 1.0, 1.0, "", better="higher"),
        Figure("an idle session", weight, SESSION_KB, 1.0, "KB"),
    ]
    return report(figures)


if __name__ == "__main__":
    sys.exit(main())
