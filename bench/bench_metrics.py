"""What it costs to be looked at: metrics on the way of a turn, a collection, and a view of many sessions.

The limit of a turn with metrics is the same turn of a runtime that nobody watches, in the same process and the same
rounds. Views and collections are CPU time; their limits are what a page that is drawn once a second may take.
"""

from __future__ import annotations

import gc
import sys
import time

import anyio
from opentelemetry import metrics
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from bench.bench_drain import idle_sessions
from bench.bench_session import folder
from bench.harness import Figure, report
from repertory import AgentSpec, Runtime, ScriptedModel, SQLiteSessions
from repertory.runtime.lifecycle import ActorInfo
from repertory.telemetry.metrics import unwatch_host, watch_host

SESSIONS = 1_000
MANY = 10_000
TURNS = 150
ROUNDS = 9
TURN_RATIO = 1.05
VIEW_S = 0.1
BUSY_S = 0.3


async def turn_s(watched: Runtime, plain: Runtime) -> tuple[float, float]:
    """CPU seconds of a turn with metrics and without: the best of rounds that take turns."""
    best = {id(watched): 1.0, id(plain): 1.0}
    sessions = {
        id(runtime): runtime.agent(AgentSpec(model=ScriptedModel(["A plain answer."], loop=True)))
        for runtime in (watched, plain)
    }
    for number in range(ROUNDS):
        for runtime in (watched, plain) if number % 2 else (plain, watched):
            session = sessions[id(runtime)].session(f"round {number}")
            await session.invoke("A question.")
            gc.collect()
            began = time.process_time()
            for _ in range(TURNS):
                await session.invoke("A question.")
            best[id(runtime)] = min(best[id(runtime)], (time.process_time() - began) / TURNS)
    return best[id(watched)], best[id(plain)]


async def turns() -> tuple[float, float]:
    async with Runtime() as watched, Runtime() as plain:
        unwatch_host(plain._host)  # type: ignore[attr-defined]
        watch_host(watched._host)  # type: ignore[attr-defined]
        return await turn_s(watched, plain)


def cpu_s(work: object, rounds: int = 5) -> float:
    best = 100.0
    for _ in range(rounds):
        gc.collect()
        began = time.process_time()
        work()  # type: ignore[operator]
        best = min(best, time.process_time() - began)
    return best


async def looked_at(reader: InMemoryMetricReader, count: int) -> tuple[float, float, float, int]:
    """CPU seconds of a view, of one without what is idle, and of a collection, with so many idle sessions."""
    with folder() as where:
        async with Runtime(sessions=SQLiteSessions(where / "a.db"), idle_timeout_s=3600.0) as runtime:
            await idle_sessions(runtime, count)
            await anyio.sleep(0.3)  # A collection is not read from the last one.
            collected = cpu_s(reader.get_metrics_data, rounds=1)
            view = runtime.look()
            assert len(view.sessions) == count
            assert isinstance(view.actors, ActorInfo)
            return cpu_s(runtime.look), cpu_s(lambda: runtime.look(idle=False)), collected, count


def main() -> int:
    """Print the table; 1 when a bar was missed."""
    reader = InMemoryMetricReader()
    metrics.set_meter_provider(MeterProvider(metric_readers=[reader]))
    with_metrics, without = anyio.run(turns)
    figures = [Figure("a turn with metrics / without", with_metrics * 1e6, without * 1e6, TURN_RATIO, "us")]
    for count, view_s, busy_s in ((SESSIONS, VIEW_S, VIEW_S), (MANY, 10 * VIEW_S, BUSY_S)):
        whole, busy, collected, _ = anyio.run(looked_at, reader, count)
        figures += [
            Figure(f"a view of {count:,} sessions", whole * 1e3, view_s * 1e3, 1.0, "ms"),
            Figure(f"  without what is idle: {count:,}", busy * 1e3, busy_s * 1e3, 1.0, "ms"),
            Figure(f"  a collection of all metrics: {count:,}", collected * 1e3, busy_s * 1e3, 1.0, "ms"),
        ]
    return report(figures)


if __name__ == "__main__":
    sys.exit(main())
