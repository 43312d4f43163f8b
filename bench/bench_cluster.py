"""Runtimes that share sessions in PostgreSQL: a call that another process answers beside one that this process answers,
and two processes with a bound of turns beside one.

Every commit is synced. All processes and the server share the processors of this machine.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from statistics import median, quantiles
from typing import Any

import anyio

from bench.harness import Figure, report
from repertory import AgentSpec, Peers, PostgresSessions, Runtime, ScriptedModel
from repertory.app.embedding.hosted import HostedAgent
from repertory.errors import Throttled
from tests.postgres_server import PostgresServer, postgres_server

CALLS = 300
ROOM = 4
MODEL_S = 0.1
BUSY_S = 6.0
SECRET = "of-a-benchmark-alone"


class Waiting(ScriptedModel):
    """Answers after a while, as a model does that works elsewhere."""

    def __init__(self, seconds: float) -> None:
        super().__init__(["one two three four"], loop=True)
        self._seconds = seconds

    async def stream(self, *args: Any, **options: Any) -> AsyncIterator[Any]:
        if self._seconds:
            await anyio.sleep(self._seconds)
        async for event in super().stream(*args, **options):
            yield event


def spec(seconds: float) -> AgentSpec:
    return AgentSpec(name="bench", model=Waiting(seconds))


async def host(place: PostgresSessions, seconds: float, room: int, queue: int) -> None:
    peers = Peers(listen="127.0.0.1:0", secret=SECRET, room=room, queue=queue, version="2")
    async with Runtime(sessions=place, peers=peers) as runtime:
        runtime.agent(spec(seconds))
        print("there", flush=True)
        await runtime.serve_signals()


@asynccontextmanager
async def another(url: str, schema: str, seconds: float, room: int, queue: int = 10_000) -> AsyncGenerator[None]:
    """A process that hosts sessions, of a higher version than this one."""
    program = "import sys, anyio; from bench.bench_cluster import host, PostgresSessions as P;"
    run = "anyio.run(host, P(sys.argv[1], schema=sys.argv[2]), float(sys.argv[3]), *map(int, sys.argv[4:]))"
    command = [sys.executable, "-c", f"{program} {run}", url, schema, str(seconds), str(room), str(queue)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)  # noqa: ASYNC220 - it starts at once
    assert process.stdout is not None
    try:
        line = await anyio.to_thread.run_sync(process.stdout.readline)
        assert line == "there\n", line
        await anyio.sleep(1.5)  # Until it is listed with its agent.
        yield
    finally:
        process.terminate()
        process.wait(30)
        process.stdout.close()


async def one_call(agent: HostedAgent, session: str) -> tuple[float, float]:
    """Seconds until the first piece, and until the end."""
    began, first = time.perf_counter(), 0.0
    async for event in agent.session(session).stream("hello"):
        if "data" in event and not first:
            first = time.perf_counter() - began
    return first, time.perf_counter() - began


async def near_and_far(url: str) -> dict[str, float]:
    """Medians in microseconds: of a call here and there, of a stream, and until its first piece."""
    place = PostgresSessions(url, schema="near_and_far")
    taken: dict[str, list[float]] = {}
    async with Runtime(sessions=place, peers=Peers(listen="127.0.0.1:0", secret=SECRET, version="1")) as runtime:
        agent = runtime.agent(spec(0.0))
        await one_call(agent, "here")
        async with another(url, "near_and_far", 0.0, 100):
            await one_call(agent, "there")
            for number in range(CALLS):
                for session in ("here", "there"):
                    first, whole = await one_call(agent, session)
                    began = time.perf_counter()
                    await agent.session(session).invoke("hello")
                    called = time.perf_counter() - began
                    if number >= CALLS // 10:
                        for name, seconds in (("call", called), ("stream", whole), ("first", first)):
                            taken.setdefault(f"{name} {session}", []).append(seconds)
    return {name: median(seconds) * 1e6 for name, seconds in taken.items()}


async def turns_per_s(url: str, schema: str, hosts: int) -> float:
    """Of so many processes that have room for `ROOM` turns each, through a gateway."""
    place, done = PostgresSessions(url, schema=schema), 0
    async with Runtime(sessions=place, peers=Peers(room=0, secret=SECRET), wakes_max=0) as gateway:
        agent = gateway.agent(spec(0.0))

        async def calls(session: str) -> None:
            nonlocal done
            while True:
                await agent.session(session).invoke("hello")
                done += 1

        async with anyio.create_task_group() as group:
            for number in range(hosts):
                await group.start(_running, another(url, schema, MODEL_S, ROOM))
                del number
            for number in range(hosts * ROOM * 3):
                group.start_soon(calls, f"session {number}")
            await anyio.sleep(2)
            before = done
            await anyio.sleep(BUSY_S)
            group.cancel_scope.cancel()
            return (done - before) / BUSY_S
    raise AssertionError


async def overload(url: str) -> tuple[float, float, float]:
    """Ten times more callers than a process has places: p99 and p50 of the calls that it takes, in seconds, and the
    share of those that it refuses.
    """
    place, taken, refused = PostgresSessions(url, schema="overload"), list[float](), 0
    async with Runtime(sessions=place, peers=Peers(room=0, secret=SECRET, patience_s=0.001), wakes_max=0) as gateway:
        agent = gateway.agent(spec(0.0))

        async def calls(session: str) -> None:
            nonlocal refused
            while True:
                began = time.perf_counter()
                try:
                    await agent.session(session).invoke("hello")
                    taken.append(time.perf_counter() - began)
                except Throttled as error:
                    refused += 1
                    await anyio.sleep(error.retry_after_s or MODEL_S)

        async with another(url, "overload", MODEL_S, ROOM, 4 * ROOM), anyio.create_task_group() as group:
            for number in range(10 * 5 * ROOM):
                group.start_soon(calls, f"session {number}")
            await anyio.sleep(3)
            taken.clear()
            refused = 0
            await anyio.sleep(2 * BUSY_S)
            group.cancel_scope.cancel()
    return quantiles(taken, n=100)[98], median(taken), refused / (refused + len(taken))


async def _running(process: Any, *, task_status: anyio.abc.TaskStatus[None]) -> None:
    async with process:
        task_status.started()
        await anyio.sleep_forever()


def figures(server: PostgresServer) -> list[Figure]:
    taken = anyio.run(near_and_far, server.url)
    one = anyio.run(turns_per_s, server.url, "one", 1)
    two = anyio.run(turns_per_s, server.url, "two", 2)
    p99, p50, refused = anyio.run(overload, server.url)
    later_ms = (taken["first there"] - taken["first here"]) / 1000
    return [
        Figure("a call that another process answers, p50", taken["call there"], taken["call here"], 1.5, "us"),
        Figure("the same as a stream", taken["stream there"], taken["stream here"], 1.5, "us"),
        Figure("its first piece comes later by", later_ms, 1.0, 2.0, "ms"),
        Figure("turns of two processes beside one", two, one, 1.9, "/s", "higher"),
        Figure("ten times too many callers: p99 of those taken, beside p50", p99 * 1e3, p50 * 1e3, 2.0, "ms"),
        Figure("the share of calls that are refused at once", refused, 1.0, None, ""),
    ]


def main() -> int:
    with postgres_server(fsync="on", autovacuum="on") as server:
        return report(figures(server))


if __name__ == "__main__":
    sys.exit(main())
