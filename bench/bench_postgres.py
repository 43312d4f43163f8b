"""Durable turns of sessions in PostgreSQL beside the same turns in SQLite, in the same rounds on the same disk.

Both sync every commit. The server runs on this machine, so its work is taken from the same processors; how much that is
stands beside the rates. Needs the server's programs.
"""

from __future__ import annotations

import gc
import os
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import anyio

from bench.bench_commit import WARM_UP, all_turns
from bench.bench_session import folder
from bench.harness import Figure, report
from repertory import PostgresSessions, Runtime, SQLiteSessions
from repertory.app.sessions.sessions import SessionLocation
from tests.postgres_server import PostgresServer, postgres_server

ROUNDS = 5
SHAPES = ((1, 150, None), (50, 30, 0.7))
"""Sessions, turns of each, and the least ratio to SQLite."""


async def rate(
    place: SessionLocation, sessions: int, turns: int, look: Callable[[], Sequence[float]] = tuple
) -> tuple[float, ...]:
    """Durable turns per second, of all sessions together; for one turn, seconds of processor time of this process, and
    by how much the numbers have grown that `look` gives.
    """
    async with Runtime(sessions=place) as runtime:
        await all_turns(runtime, sessions, WARM_UP)
        gc.collect()
        before, began, worked = look(), time.perf_counter(), time.process_time()
        await all_turns(runtime, sessions, turns)
        taken, worked, after = time.perf_counter() - began, time.process_time() - worked, look()
        count = sessions * turns
        grown = ((now - then) / count for then, now in zip(before, after, strict=True))
        return count / taken, worked / count, *grown


def server_work(server: PostgresServer) -> float:
    """Seconds of processor time that the server's processes have taken so far, those that ended included."""
    assert server.running is not None
    postmaster = server.running.process.pid
    total = 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == postmaster:
            total += int(fields[11]) + int(fields[12])
        elif path.parent.name == str(postmaster):
            total += sum(map(int, fields[11:15]))
    return total / os.sysconf("SC_CLK_TCK")


def numbers(server: PostgresServer) -> tuple[float, ...]:
    """Processor time, transactions that wrote, and bytes of the write-ahead log, until now."""
    statement = "SELECT txid_current(), pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint"
    ((commits, log),) = server.sql(statement)
    return server_work(server), float(str(commits)), float(str(log))


def figures(server: PostgresServer, sessions: int, turns: int, bar: float | None) -> list[Figure]:
    measured: list[tuple[float, ...]] = []
    for number in range(ROUNDS):
        place = PostgresSessions(server.url, schema=f"round_{sessions}_{number}")
        with folder() as where:
            gc.collect()
            sqlite, sqlite_cpu = anyio.run(rate, SQLiteSessions(where / "sessions.db"), sessions, turns)
        postgres, *costs = anyio.run(rate, place, sessions, turns, partial(numbers, server))
        measured.append((postgres / sqlite, postgres, sqlite, sqlite_cpu, *costs))
    _, postgres, sqlite, sqlite_cpu, postgres_cpu, served, commits, log = sorted(measured)[ROUNDS // 2]
    name = "one session" if sessions == 1 else f"{sessions} sessions"
    return [
        Figure(f"durable turns in PostgreSQL beside SQLite, {name}", postgres, sqlite, bar, "/s", "higher"),
        Figure(f"processor time of a turn, this process, {name}", postgres_cpu * 1e6, sqlite_cpu * 1e6, None, "us"),
        Figure(f"processor time of a turn, the server, {name}", served * 1e6, 1.0, None, "us"),
        Figure(f"transactions of a turn, {name}", commits, 1.0, None, ""),
        Figure(f"bytes of the server's log for a turn, {name}", log, 1.0, None, "B"),
    ]


def main() -> int:
    """Print every figure; 1 when a bar was missed."""
    with postgres_server(fsync="on", autovacuum="on") as server:
        return report([figure for shape in SHAPES for figure in figures(server, *shape)])


if __name__ == "__main__":
    sys.exit(main())
