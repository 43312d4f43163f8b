"""The commit path: durable turns of sessions that are held open, against two limits.

One is a bare program that inserts the same bytes, for as long as our turns take. It has one thread, one table, and one
fsynced commit for each turn, or for one turn of each of fifty sessions; each turn is one row with the bytes that our
turn stores. The other is the same turns with sessions in memory.

For one session the limit is the disk. For fifty it is the processor: a disk that syncs quickly takes ten times as many
turns as an interpreter makes. There, the ratio to the bare program says how quick the disk is just now, and has no bar.

All run in the same round, and the round with the median ratio stands for all. Counted are also rounds of the event
loop, calls of the loop from the writer's thread, commits, and the times that SQLite is called and may let go of the
interpreter lock.
"""

from __future__ import annotations

import asyncio
import gc
import sqlite3
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import anyio

from bench.bench_session import folder, turns_in
from bench.harness import Figure, report
from repertory import Runtime, SQLiteSessions
from repertory.backends.sessions.sqlite.journals import Journals
from repertory.core.journal.rows import Row

ROUNDS = 7
SHAPES = ((1, 300, 0.5, None), (50, 30, None, 0.5))
"""Sessions, turns of each, and the least ratios: to the bare program, and to sessions in memory."""
WARM_UP = 2


async def all_turns(runtime: Runtime, sessions: int, turns: int) -> None:
    """Turns of all sessions at the same time."""
    async with anyio.create_task_group() as group:
        for number in range(sessions):
            group.start_soon(turns_in, runtime, f"s{number}", turns)


async def our_rate(database: Path | None, sessions: int, turns: int) -> float:
    """Turns per second, of all sessions together: durable ones, or in memory."""
    async with Runtime(sessions=None if database is None else SQLiteSessions(database)) as runtime:
        await all_turns(runtime, sessions, WARM_UP)
        began = time.perf_counter()
        await all_turns(runtime, sessions, turns)
        return sessions * turns / (time.perf_counter() - began)


async def stored_turns(database: Path, sessions: int, turns: int) -> list[list[bytes]]:
    """The bytes of each turn after the warm-up, by session."""
    store = SQLiteSessions(database).open_store()
    try:
        journals = [await store.load(f"s{number}", "default", whole=True) for number in range(sessions)]
    finally:
        await store.aclose()
    return [by_turn(rows, turns + WARM_UP)[WARM_UP:] for rows in journals]


def by_turn(rows: Sequence[Row], turns: int) -> list[bytes]:
    """The rows' bytes, cut into so many parts of equal length."""
    size = -(-len(rows) // turns)
    return [b"".join(row.body for row in rows[start : start + size]) for start in range(0, len(rows), size)]


def bare_rate(database: Path, turns: Sequence[Sequence[bytes]], seconds: float) -> float:
    """The same turns per second, with nothing but inserts: one commit for one turn of each session, again and again."""
    connection = sqlite3.connect(database, isolation_level=None)
    connection.execute("pragma journal_mode = wal")
    connection.execute("pragma synchronous = full")
    connection.execute("create table turns (id integer primary key, session integer, body blob)")
    groups = [list(enumerate(group)) for group in zip(*turns, strict=False)]
    began, inserted = time.perf_counter(), 0
    while (taken_s := time.perf_counter() - began) < seconds:
        for group in groups:
            connection.execute("begin immediate")
            connection.executemany("insert into turns (session, body) values (?, ?)", group)
            connection.execute("commit")
            inserted += len(group)
    connection.close()
    return inserted / taken_s


def rates(sessions: int, turns: int) -> tuple[float, float, float]:
    """Turns per second: ours, those of sessions in memory, and bare."""
    with folder() as where:
        gc.collect()
        ours = anyio.run(our_rate, where / "ours.db", sessions, turns)
        stored = anyio.run(stored_turns, where / "ours.db", sessions, turns)
        gc.collect()
        in_memory = anyio.run(our_rate, None, sessions, turns)
        gc.collect()
        return ours, in_memory, bare_rate(where / "bare.db", stored, sessions * turns / ours)


class Counts(Counter[str]):
    """What happens while turns run."""

    def watch_loop(self) -> Callable[[], None]:
        """Count the rounds of the running loop, and the calls from other threads, until the result is called."""
        loop = asyncio.get_running_loop()
        assert isinstance(loop, asyncio.BaseEventLoop)
        run_once, call = vars(type(loop)).get("_run_once") or asyncio.BaseEventLoop._run_once, loop.call_soon_threadsafe  # type: ignore[attr-defined]

        def counted_round() -> None:
            self["rounds"] += 1
            run_once(loop)

        def counted_call(*args: object, **kwargs: object) -> object:
            self["calls"] += 1
            return call(*args, **kwargs)  # type: ignore[arg-type]

        loop._run_once, loop.call_soon_threadsafe = counted_round, counted_call  # type: ignore[attr-defined, method-assign, assignment]

        def stop() -> None:
            del loop._run_once, loop.call_soon_threadsafe  # type: ignore[attr-defined, method-assign]

        return stop

    def statement(self, text: str) -> None:
        """Count a step that SQLite is about to take."""
        self["commits" if text == "COMMIT" else "other statements"] += 1


async def counted(database: Path, sessions: int, turns: int, counts: Counts) -> None:
    async with Runtime(sessions=SQLiteSessions(database)) as runtime:
        await all_turns(runtime, sessions, WARM_UP)
        stop = counts.watch_loop()
        counts.clear()
        await all_turns(runtime, sessions, turns)
        stop()


def counts_of(sessions: int, turns: int) -> Counts:
    """What happens in so many turns of each session."""
    counts = Counts()
    opened = Journals.__init__

    def watched(self: Journals, *args: object, **kwargs: object) -> None:
        opened(self, *args, **kwargs)  # type: ignore[arg-type]
        self._connection.set_trace_callback(counts.statement)  # type: ignore[attr-defined]

    Journals.__init__ = watched  # type: ignore[method-assign, assignment]
    try:
        with folder() as where:
            anyio.run(counted, where / "counted.db", sessions, turns, counts)
    finally:
        Journals.__init__ = opened  # type: ignore[method-assign]
    return counts


def figures(sessions: int, turns: int, of_bare: float | None, of_memory: float | None) -> list[Figure]:
    measured = sorted((rates(sessions, turns) for _ in range(ROUNDS)), key=lambda one: one[0] / one[1])
    ours, in_memory, bare = measured[ROUNDS // 2]
    counts, of_all = counts_of(sessions, turns), sessions * turns
    name = "one session" if sessions == 1 else f"{sessions} sessions"
    return [
        Figure(f"durable turns / bare inserts, {name}", ours, bare, of_bare, "/s", "higher"),
        Figure(f"durable turns / in memory, {name}", ours, in_memory, of_memory, "/s", "higher"),
        Figure(f"commits per turn, {name}", counts["commits"] / of_all, 1.0, None, ""),
        Figure(f"other statements per turn, {name}", counts["other statements"] / of_all, 1.0, None, ""),
        Figure(f"rounds of the loop per turn, {name}", counts["rounds"] / of_all, 1.0, None, ""),
        Figure(f"calls from the writer's thread per turn, {name}", counts["calls"] / of_all, 1.0, None, ""),
    ]


def main() -> int:
    """Print every figure; 1 when a bar was missed."""
    return report([figure for shape in SHAPES for figure in figures(*shape)])


if __name__ == "__main__":
    sys.exit(main())
