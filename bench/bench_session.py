"""What a durable session costs: turns on SQLite against the same rows inserted bare, and opening a session.

The bare limit inserts exactly the rows that our turns wrote, one fsynced transaction per turn (or per group), into a
table that could give them back: keyed by session, agent and sequence number. It runs in the same round on the same
disk.
"""

from __future__ import annotations

import sqlite3
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import anyio
import anyio.lowlevel

from bench.harness import Figure, report
from repertory import AgentSpec, Runtime, ScriptedModel, SlidingWindowConversationManager, SQLiteSessions
from repertory.backends.ports import SessionStore
from repertory.core.journal.rows import Row

TURNS = 200
SESSIONS = 50
ROUNDS = 5
ANSWER = "A plain answer of the usual length, such as an agent gives many times a day. " * 3
QUESTION = "A question of the usual length, such as users ask many times a day?"


def median(values: Sequence[float]) -> float:
    return sorted(values)[len(values) // 2]


def spec() -> AgentSpec:
    manager = SlidingWindowConversationManager(window_size=40)
    return AgentSpec(model=ScriptedModel([ANSWER], loop=True), conversation_manager=manager)


@contextmanager
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".bench-") as path:
        yield Path(path)


async def turns_in(runtime: Runtime, session_id: str, turns: int) -> None:
    session = runtime.agent(spec()).session(session_id)
    for _ in range(turns):
        await session.invoke(QUESTION)


async def our_turns(database: Path, sessions: int, turns: int) -> tuple[float, int]:
    """Seconds for all turns of all sessions at the same time, and the bytes that the process wrote on the way."""
    async with Runtime(sessions=SQLiteSessions(database)) as runtime:
        for number in range(sessions):
            await turns_in(runtime, f"s{number}", 1)
        written, began = bytes_written(), time.perf_counter()
        async with anyio.create_task_group() as group:
            for number in range(sessions):
                group.start_soon(turns_in, runtime, f"s{number}", turns)
        return time.perf_counter() - began, bytes_written() - written


def bytes_written() -> int:
    """Bytes that this process has handed to write calls, on systems that count them."""
    counts = Path("/proc/self/io")
    lines = counts.read_text().splitlines() if counts.exists() else []
    return next((int(line.split()[1]) for line in lines if line.startswith("wchar")), 0)


async def rows_of(store: SessionStore, sessions: int) -> list[list[Row]]:
    return [list(await store.load(f"s{number}", "default", whole=True)) for number in range(sessions)]


async def stored_rows(database: Path, sessions: int) -> list[list[Row]]:
    store = SQLiteSessions(database).open_store()
    try:
        return await rows_of(store, sessions)
    finally:
        await store.aclose()


class Bare:
    """The limit: rows into a keyed table, and nothing else."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.connection = sqlite3.connect(path, isolation_level=None)
        self.connection.execute("pragma journal_mode=wal")
        self.connection.execute("pragma synchronous=full")
        self.connection.execute(
            "create table rows (session integer, agent integer, seq integer, kind integer, version integer,"
            " low integer, link blob, salt blob, body blob, primary key (session, agent, seq)) without rowid"
        )

    def insert(self, groups: Sequence[Sequence[tuple[int, Row]]]) -> float:
        """Seconds for one transaction per group."""
        execute = self.connection.execute
        began = time.perf_counter()
        for group in groups:
            execute("begin immediate")
            self.connection.executemany(
                "insert into rows values (?, 0, ?, ?, ?, ?, ?, ?, ?)",
                [(session, *row[1:]) for session, row in group],
            )
            execute("commit")
        return time.perf_counter() - began


def by_turn(rows: Sequence[Row], turns: int) -> list[list[Row]]:
    """The rows cut into so many parts of equal length, which is how turns of one shape divide them."""
    size = -(-len(rows) // turns)
    return [list(rows[start : start + size]) for start in range(0, len(rows), size)]


def one_session() -> tuple[float, float, float, float]:
    """Turns per second, ours and bare, and the bytes that each wrote."""
    with folder() as where:
        ours_s, ours_bytes = anyio.run(our_turns, where / "ours.db", 1, TURNS)
        (rows,) = anyio.run(stored_rows, where / "ours.db", 1)
        bare = Bare(where / "bare.db")
        groups = [[(0, row) for row in turn] for turn in by_turn(rows, TURNS)]
        written = bytes_written()
        bare_s = bare.insert(groups)
        return TURNS / ours_s, TURNS / bare_s, ours_bytes, bytes_written() - written


def many_sessions() -> tuple[float, float]:
    """Turns per second of many sessions at once, ours and bare in groups of one turn of each."""
    turns = 20
    with folder() as where:
        ours_s, _ = anyio.run(our_turns, where / "ours.db", SESSIONS, turns)
        rows = anyio.run(stored_rows, where / "ours.db", SESSIONS)
        cut = [by_turn(session, turns) for session in rows]
        longest = max(len(session) for session in cut)
        groups = [
            [(number, row) for number, session in enumerate(cut) if turn < len(session) for row in session[turn]]
            for turn in range(longest)
        ]
        bare_s = Bare(where / "bare.db").insert(groups)
        return SESSIONS * turns / ours_s, SESSIONS * turns / bare_s


async def turn_times(database: Path, turns: int) -> list[float]:
    async with Runtime(sessions=SQLiteSessions(database)) as runtime:
        session = runtime.agent(spec()).session("s0")
        times: list[float] = []
        for _ in range(turns):
            began = time.perf_counter()
            await session.invoke(QUESTION)
            times.append(time.perf_counter() - began)
        return times


def growth() -> tuple[float, float]:
    """Milliseconds of a turn about the 10th and about the 1000th."""
    with folder() as where:
        times = anyio.run(turn_times, where / "ours.db", 1050)
        return median(times[5:55]) * 1e3, median(times[1000:1050]) * 1e3


async def worst_stall(database: Path) -> float:
    """Milliseconds of the longest gap between two looks at an event loop on which many sessions take turns."""
    worst = 0.0

    async def look() -> None:
        nonlocal worst
        last = time.perf_counter()
        while True:
            await anyio.lowlevel.checkpoint()
            now = time.perf_counter()
            worst, last = max(worst, now - last), now

    async with Runtime(sessions=SQLiteSessions(database)) as runtime:
        await turns_in(runtime, "s0", 50)
        async with anyio.create_task_group() as group:
            group.start_soon(look)
            await turns_in(runtime, "s0", TURNS)
            group.cancel_scope.cancel()
    return worst * 1e3


async def opening_ms(database: Path) -> float:
    """Milliseconds from asking for a session at rest until its model is called, the store being open."""
    called: list[float] = []

    def answer(*request: object) -> str:
        del request
        called.append(time.perf_counter())
        return "ok"

    reader = AgentSpec(
        model=ScriptedModel([answer], loop=True), conversation_manager=SlidingWindowConversationManager(window_size=40)
    )
    times: list[float] = []
    for _ in range(30):
        async with Runtime(sessions=SQLiteSessions(database)) as runtime:
            await runtime.agent(spec()).session("other").invoke("open the store")
            began = time.perf_counter()
            await runtime.agent(reader).session("s0").invoke(QUESTION)
            times.append((called[-1] - began) * 1e3)
    return median(times)


async def whole_history_ms(database: Path) -> float:
    """Milliseconds to read everything that was ever said."""
    async with Runtime(sessions=SQLiteSessions(database)) as runtime:
        session = runtime.agent(spec()).session("s0")
        await session.messages()
        times: list[float] = []
        for _ in range(5):
            began = time.perf_counter()
            said = await session.history()
            times.append((time.perf_counter() - began) * 1e3)
        assert len(said) >= 9_900
        return min(times)


async def grow(database: Path, turns: int) -> None:
    async with Runtime(sessions=SQLiteSessions(database)) as runtime:
        await turns_in(runtime, "s0", turns)


def openings() -> tuple[float, float, float]:
    """Opening 100 messages, opening 10,000 messages, reading 10,000 messages; all in milliseconds."""
    with folder() as where:
        anyio.run(grow, where / "short.db", 50)
        anyio.run(grow, where / "long.db", 5000)
        short = anyio.run(opening_ms, where / "short.db")
        long = anyio.run(opening_ms, where / "long.db")
        return short, long, anyio.run(whole_history_ms, where / "long.db")


def main() -> int:
    ones = [one_session() for _ in range(ROUNDS)]
    manies = [many_sessions() for _ in range(3)]
    early, late = growth()
    with folder() as where:
        stall = min(anyio.run(worst_stall, where / f"{n}.db") for n in range(3))
    short, long, whole = openings()
    # The disk's speed drifts: the round with the median ratio stands for all.
    ours, bare, our_bytes, bare_bytes = sorted(ones, key=lambda one: one[0] / one[1])[ROUNDS // 2]
    our_many, bare_many = sorted(manies, key=lambda many: many[0] / many[1])[1]
    return report(
        [
            Figure("durable turns, one session", ours, bare, 0.6, "/s", "higher"),
            Figure(f"durable turns, {SESSIONS} sessions", our_many, bare_many, 0.25, "/s", "higher"),
            Figure("bytes written by one session", our_bytes, bare_bytes, 2.2, "B"),
            Figure("turn 1000 against turn 10", late, early, 1.05, "ms"),
            Figure("worst stall of the event loop", stall, 1.0, 3.0, "ms"),
            Figure("opening 100 messages", short, 1.0, 1.2, "ms"),
            Figure("opening 10,000 messages", long, 1.0, 1.2, "ms"),
            Figure("reading 10,000 messages", whole, 1.0, 50.0, "ms"),
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
