"""What going back in time costs: naming positions, going back, and forking, against the length of the session.

Limits, measured in the same run: the same operation on a session of 100 messages; for a mark also the bare commit of a
row of its size. Every operation is done as users do it, through `Sessions`, the store being open.
"""

from __future__ import annotations

import os
import random
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio

from bench.counted import LATENCY_S, Counted, said
from bench.harness import Figure, report
from repertory import AgentSpec, FileStorage, JournalSessions, Mark, Runtime, ScriptedModel, Sessions, SQLiteSessions
from repertory import SlidingWindowConversationManager as Window
from repertory.app.sessions.sessions import SessionLocation

SHORT, LONG, WINDOW = 100, 10_000, 40
ROUNDS = 15
MARKS = 1000
OLD = "old"
"""A label that was given when the session was young."""


async def fill(place: SessionLocation, messages: int) -> None:
    rng = random.Random(messages)
    manager = Window(window_size=WINDOW)
    spec = AgentSpec(model=ScriptedModel([lambda *_: said(rng, 100)], loop=True), conversation_manager=manager)
    async with Runtime(sessions=place) as runtime:
        session = runtime.agent(spec).session("s")
        for _ in range(20):
            await session.invoke(said(rng, 100))
    await Sessions(place).mark("s", OLD)
    async with Runtime(sessions=place) as runtime:
        session = runtime.agent(spec).session("s")
        for _ in range(messages // 2 - 20):
            await session.invoke(said(rng, 100))
        await anyio.sleep(1.0)  # What is tidied in the background is no part of this.


async def _timed(work: Callable[[], Awaitable[object]]) -> float:
    """Milliseconds."""
    began = time.perf_counter()
    await work()
    return (time.perf_counter() - began) * 1e3


async def travel(place: SessionLocation) -> dict[str, list[float]]:
    """Milliseconds of each operation, once. The session is about as long afterwards."""
    taken: dict[str, list[float]] = {}
    async with Sessions(place) as sessions:
        last = (await sessions.list())[0].agents["default"]
        name = f"f-{os.urandom(4).hex()}"
        back = last - 20
        taken["rewind"] = [await _timed(lambda: sessions.rewind("s", back))]
        taken["fork at the end"] = [await _timed(lambda: sessions.fork("s", f"{name}-1"))]
        taken["fork in the middle"] = [await _timed(lambda: sessions.fork("s", f"{name}-2", at=last // 2))]
        taken["mark"] = [await _timed(lambda: sessions.mark("s", name))]
        taken["fork at a new label"] = [await _timed(lambda: sessions.fork("s", f"{name}-3", at=name))]
        taken["fork at an old label"] = [await _timed(lambda: sessions.fork("s", f"{name}-4", at=OLD))]
        for number in (1, 2, 3, 4):
            await sessions.delete(f"{name}-{number}")
    return taken


def compared(make: Callable[[int], SessionLocation], prepare: Callable[[], None]) -> dict[str, tuple[float, float]]:
    """Operation to the milliseconds on the long session and on the short one, done in turn."""
    places = {messages: make(messages) for messages in (LONG, SHORT)}
    for messages, place in places.items():
        anyio.run(fill, place, messages)
    prepare()
    taken: dict[int, dict[str, list[float]]] = {messages: {} for messages in places}
    for _ in range(ROUNDS):
        for messages, place in places.items():
            for name, times in anyio.run(travel, place).items():
                taken[messages].setdefault(name, []).extend(times)
    return {
        name: (statistics.median(times), statistics.median(taken[SHORT][name])) for name, times in taken[LONG].items()
    }


def size_of(database: Path) -> int:
    with sqlite3.connect(database) as connection:
        connection.execute("pragma wal_checkpoint(truncate)")
    return database.stat().st_size


async def marked(place: SessionLocation) -> float:
    """Milliseconds for each of many marks in one commit."""
    marks = [Mark(label=f"mark {number}", metadata={"number": number}) for number in range(MARKS)]
    async with Sessions(place) as sessions:
        return await _timed(lambda: sessions.mark_all("s", marks)) / MARKS


async def marked_one_by_one(place: SessionLocation) -> float:
    """Milliseconds for each of some marks, a commit each."""
    async with Sessions(place) as sessions:
        return statistics.median([await _timed(lambda: sessions.mark("s", "again")) for _ in range(50)])


def bare_commit_ms(folder: Path) -> float:
    """Milliseconds of a bare synced commit of a row of 200 bytes."""
    connection = sqlite3.connect(folder / "bare.db", isolation_level=None)
    connection.execute("pragma journal_mode=wal")
    connection.execute("pragma synchronous=full")
    connection.execute("create table rows (n integer primary key, body blob)")
    times: list[float] = []
    for _ in range(50):
        began = time.perf_counter()
        connection.execute("insert into rows (body) values (?)", (os.urandom(200),))
        times.append((time.perf_counter() - began) * 1e3)
    return statistics.median(times)


def figures_of_marks(folder: Path) -> list[Figure]:
    place = SQLiteSessions(folder / "marks.db")
    anyio.run(fill, place, LONG)
    one_ms = anyio.run(marked_one_by_one, place)
    before = size_of(folder / "marks.db")
    each_ms = anyio.run(marked, place)
    size_bytes = (size_of(folder / "marks.db") - before) / MARKS
    bare_ms = bare_commit_ms(folder)
    return [
        Figure(f"bytes that each of {MARKS} marks adds", size_bytes, 300.0, 1.0, "B"),
        Figure("a mark, many in one commit", each_ms, 0.2, 1.0, "ms"),
        Figure(
            "a mark with a lease and a commit of its own, against a bare commit",
            one_ms,
            bare_ms,
            None,
            "ms",
        ),
    ]


def main() -> int:
    with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".bench-") as name:
        folder = Path(name)
        figures = figures_of_marks(folder)
        storages = {messages: Counted() for messages in (SHORT, LONG)}

        def slow_down() -> None:
            for storage in storages.values():
                storage.latency_s = LATENCY_S

        kinds: dict[str, tuple[Callable[[int], SessionLocation], Callable[[], None]]] = {
            "SQLite": (lambda messages: SQLiteSessions(folder / f"{messages}.db"), lambda: None),
            "journals in a folder": (
                lambda messages: JournalSessions(FileStorage(folder / str(messages))),
                lambda: None,
            ),
            "journals with 50 ms per request": (lambda messages: JournalSessions(storages[messages]), slow_down),
        }
        for kind, (make, prepare) in kinds.items():
            for operation, (long_ms, short_ms) in compared(make, prepare).items():
                # Objects know nothing of labels: one that opening does not meet is looked for everywhere.
                bar = None if operation == "fork at an old label" and kind != "SQLite" else 1.3
                figures.append(Figure(f"{operation}, {LONG:,} against {SHORT}, {kind}", long_ms, short_ms, bar, "ms"))
                if kind == "SQLite" and operation != "mark":
                    figures.append(Figure(f"{operation}, {LONG:,} messages, {kind}", long_ms, 5.0, 1.0, "ms"))
    return report(figures)


if __name__ == "__main__":
    sys.exit(main())
