"""What opening a session costs, and reading or forking it, against the length of its history.

Wherever it is kept, the limit is the same session with 100 messages: opening reads what the model is shown, which is 40
of them. In SQLite the time beyond the bare query of those rows is measured as well.
"""

from __future__ import annotations

import gc
import json
import random
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import anyio

from bench.counted import LATENCY_S, Counted, said
from bench.harness import Figure, report
from repertory import (
    AgentSpec,
    FileStorage,
    JournalSessions,
    Runtime,
    ScriptedModel,
    Sessions,
    SlidingWindowConversationManager,
    SQLiteSessions,
)
from repertory.app.sessions.sessions import SessionLocation

SHORT, LONG, WINDOW = 100, 10_000, 40
ROUNDS = 15
COLD, COLD_ROUNDS = 1_000, 7

_JOURNAL = "SELECT id FROM journals WHERE session = 's'"
_SHOWN = (
    "WITH RECURSIVE chain (position, previous, seq) AS (SELECT position, previous, seq FROM rows WHERE position = ?"
    " UNION ALL SELECT rows.position, rows.previous, rows.seq FROM chain CROSS JOIN rows"
    " ON rows.position = chain.previous WHERE rows.seq >= ?)"
    " SELECT rows.seq, kind, version, low, link, salt, body FROM chain CROSS JOIN rows"
    " ON rows.position = chain.position"
)
"""The rows that opening reads."""
_SAID = "SELECT body FROM rows WHERE journal = ? AND kind = 1 ORDER BY position"

_PEER = Path(__file__).parents[1] / "tests/peers/strands/bin/python"
_OURS = """
import os, sys
from repertory import Agent, ScriptedModel, SQLiteSessionManager
session = SQLiteSessionManager("s", path=sys.argv[1])
Agent(ScriptedModel([lambda *request: os._exit(0)]), session_manager=session, callback_handler=None)("and?")
"""
"""Ends when the model is asked."""
_THEIRS = """
import os, sys
from strands import Agent
from strands.models import Model
from strands.session.file_session_manager import FileSessionManager

class Scripted(Model):
    def update_config(self, **config): ...
    def get_config(self): return {}
    async def structured_output(self, *args, **options): yield {}
    async def stream(self, *args, **options):
        if not turns:
            os._exit(0)
        yield {"messageStart": {"role": "assistant"}}
        yield {"contentBlockStart": {"start": {}}}
        yield {"contentBlockDelta": {"delta": {"text": "word " * 100}}}
        yield {"contentBlockStop": {}}
        yield {"messageStop": {"stopReason": "end_turn"}}

turns = int(sys.argv[2])
session = FileSessionManager(session_id="s", storage_dir=sys.argv[1])
agent = Agent(model=Scripted(), session_manager=session, callback_handler=None)
for _ in range(turns or 1):
    agent("word " * 100)
"""
"""The same with strands-agents and files; with a number of turns, it has those."""


def agent(answer: object) -> AgentSpec:
    manager = SlidingWindowConversationManager(window_size=WINDOW)
    return AgentSpec(model=ScriptedModel([answer], loop=True), conversation_manager=manager)


async def fill(place: SessionLocation, messages: int) -> None:
    rng = random.Random(messages)
    async with Runtime(sessions=place) as runtime:
        session = runtime.agent(agent(lambda *request: said(rng, 100))).session("s")
        await runtime.agent(agent("ok")).session("another").invoke("hi")
        for _ in range(messages // 2):
            await session.invoke(said(rng, 100))
        await anyio.sleep(1.0)  # What is tidied in the background is no part of opening.


async def opening_ms(place: SessionLocation) -> float:
    """Milliseconds from asking for the session until its model is called, in a process that has the store open."""
    called: list[float] = []

    def answer(*request: object) -> str:
        del request
        called.append(time.perf_counter())
        return "ok"

    async with Runtime(sessions=place) as runtime:
        await runtime.agent(agent("ok")).session("another").messages()
        session = runtime.agent(agent(answer)).session("s")
        gc.collect()
        began = time.perf_counter()
        await session.invoke("and?")
        return (called[-1] - began) * 1e3


def compared(
    make: Callable[[int], SessionLocation], prepare: Callable[[], object] = lambda: None
) -> tuple[float, float]:
    """Milliseconds to open the long session and the short one, opened in turn, so that noise hits both alike."""
    places = {messages: make(messages) for messages in (LONG, SHORT)}
    for messages, place in places.items():
        anyio.run(fill, place, messages)
    prepare()
    times: dict[int, list[float]] = {messages: [] for messages in places}
    for _ in range(ROUNDS):
        for messages, place in places.items():
            times[messages].append(anyio.run(opening_ms, place))
    return statistics.median(times[LONG]), statistics.median(times[SHORT])


def query_ms(path: Path) -> float:
    """Milliseconds of the bare query for what opening reads."""
    with closing(sqlite3.connect(path)) as connection:
        (journal,) = connection.execute(_JOURNAL).fetchone()
        statement = "SELECT position, low FROM rows WHERE journal = ? ORDER BY position DESC LIMIT 1"
        last = connection.execute(statement, (journal,)).fetchone()
        connection.execute(_SHOWN, last).fetchall()
        began = time.perf_counter()
        rows = connection.execute(_SHOWN, last).fetchall()
        took = time.perf_counter() - began
        assert WINDOW <= len(rows) <= 2 * WINDOW
        return took * 1e3


def by_hand_ms(path: Path) -> float:
    """Milliseconds to read and decode every message by hand."""
    with closing(sqlite3.connect(path)) as connection:
        began = time.perf_counter()
        journal = connection.execute(_JOURNAL).fetchone()
        said = [json.loads(body)["message"] for (body,) in connection.execute(_SAID, journal)]
        took = time.perf_counter() - began
        assert len(said) >= LONG
        return took * 1e3


async def history_ms(place: SessionLocation) -> float:
    async with Runtime(sessions=place) as runtime:
        session = runtime.agent(agent("ok")).session("s")
        await session.messages()
        gc.collect()
        began = time.perf_counter()
        said = await session.history()
        took = time.perf_counter() - began
        assert len(said) >= LONG
        return took * 1e3


async def fork_ms(place: SessionLocation, name: str) -> float:
    """Milliseconds of a fork, in a place that is open."""
    async with Sessions(place) as sessions:
        await sessions.fork("another", f"{name} of another")
        gc.collect()
        began = time.perf_counter()
        await sessions.fork("s", name)
        return (time.perf_counter() - began) * 1e3


def in_sqlite(folder: Path) -> list[Figure]:
    """Opening, the whole history, and forks. The files were filled before."""
    paths = {messages: folder / f"{messages}.db" for messages in (SHORT, LONG)}
    beyond: dict[int, list[float]] = {messages: [] for messages in paths}
    forks: dict[int, list[float]] = {messages: [] for messages in paths}
    histories: list[float] = []
    hands: list[float] = []
    for number in range(ROUNDS):
        for messages, path in paths.items():
            place = SQLiteSessions(path)
            beyond[messages].append(anyio.run(opening_ms, place) - query_ms(path))
            forks[messages].append(anyio.run(fork_ms, place, f"fork {number}"))
        hands.append(by_hand_ms(paths[LONG]))
        histories.append(anyio.run(history_ms, SQLiteSessions(paths[LONG])))
    median = statistics.median
    return [
        *(Figure(f"opening {n:,} messages, beyond the query", median(beyond[n]), 1.0, 1.5, "ms") for n in paths),
        Figure(f"reading {LONG:,} messages against by hand", median(histories), median(hands), 1.5, "ms"),
        *(Figure(f"fork of {n:,} messages, place open", median(forks[n]), 1.0, 2.0, "ms") for n in paths),
    ]


def run_ms(python: Path | str, program: str, *arguments: str) -> float:
    """Milliseconds of a whole process."""
    began = time.perf_counter()
    subprocess.run([str(python), "-c", program, *arguments], cwd=Path(__file__).parents[1], check=True)
    return (time.perf_counter() - began) * 1e3


def cold(folder: Path) -> list[Figure]:
    """A new process until its model is asked, beside strands-agents, if that is installed (`make peers`)."""
    database, files = folder / "cold.db", folder / "files"
    anyio.run(fill, SQLiteSessions(database), COLD)
    if not _PEER.exists():
        return []
    run_ms(_PEER, _THEIRS, str(files), str(COLD // 2))
    ours: list[float] = []
    theirs: list[float] = []
    for _ in range(COLD_ROUNDS):
        ours.append(run_ms(sys.executable, _OURS, str(database)))
        theirs.append(run_ms(_PEER, _THEIRS, str(files), "0"))
    name = f"cold process, {COLD:,} messages, against strands"
    return [Figure(name, statistics.median(ours), statistics.median(theirs), 0.6, "ms")]


def main() -> int:
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".bench-") as folder:
        for name, make in {
            "SQLite": lambda messages: SQLiteSessions(Path(folder) / f"{messages}.db"),
            "journals in a folder": lambda messages: JournalSessions(FileStorage(Path(folder) / str(messages))),
        }.items():
            long_ms, short_ms = compared(make)
            figures.append(Figure(f"{LONG:,} messages against {SHORT}, {name}", long_ms, short_ms, 1.3, "ms"))
        figures += [*in_sqlite(Path(folder)), *cold(Path(folder))]
    storages = {messages: Counted() for messages in (SHORT, LONG)}

    def slow_down() -> None:
        for storage in storages.values():
            storage.latency_s = LATENCY_S

    long_ms, short_ms = compared(lambda messages: JournalSessions(storages[messages]), slow_down)
    figures.append(Figure("the same, journals with 50 ms per request", long_ms, short_ms, 1.3, "ms"))
    return report(figures)


if __name__ == "__main__":
    sys.exit(main())
