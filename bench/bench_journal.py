"""The journal and its SQLite store against a bare insert with the same durability.

    .venv/bin/python -m bench.bench_journal

The bare insert is what a program without sessions would do: one table, one row per message, one fsynced commit per
turn (or per group of fifty turns). Opening and decoding are measured against fixed bars, in milliseconds.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import anyio

from bench.harness import Figure, interleaved, report
from repertory.backends.ports import Batch, Lease
from repertory.backends.sessions.sqlite.store import SQLiteSessionStore
from repertory.core.journal.fold import Fold
from repertory.core.journal.records import MessageAdded
from repertory.core.journal.restore import Appender, records_of, restore
from repertory.core.journal.rows import Row
from repertory.core.messages import Message
from repertory.core.window.decision import WindowPlan
from repertory.core.window.editing import view_change

TEXT = "The journal is the truth: everything else is a fold over it. " * 6
TURNS = 1000
SESSIONS = 50
GROUPS = 100
WINDOW = 40


def appender() -> Appender:
    return Appender("default", Fold(), None, os.urandom)


def turn(journal: Appender) -> list[Row]:
    """What was said in one turn: a question and an answer."""
    fold = journal.fold
    rows: list[Row] = []
    for role in ("user", "assistant"):
        message: Message = {"role": role, "content": [{"text": f"{fold.message_count} {TEXT}"}]}  # type: ignore[typeddict-item]
        rows.append(
            journal.append(
                MessageAdded(at=1.7e9, message=message, turn=fold.turns + (role == "user"), index=fold.message_count)
            )
        )
    return rows


def conversation(turns: int) -> list[Row]:
    """A journal whose model is shown a sliding window."""
    journal = appender()
    rows: list[Row] = []
    for _ in range(turns):
        rows += turn(journal)
        excess = len(journal.fold.shown) - WINDOW
        if excess > 0:
            plan = WindowPlan(drop=excess)
            change = view_change(
                journal.fold.shown,
                journal.fold.last_seq,
                plan,
                manager="Sliding",
                manager_state={"removed": excess},
                at=1.7e9,
            )
            rows += [journal.append(change), *journal.restate(1.7e9)]
    return rows


class Bare:
    """One table, one connection, one fsynced commit per group."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "bare.db"
        self.connection = sqlite3.connect(self.path, isolation_level=None)
        self.connection.execute("PRAGMA journal_mode = WAL")
        self.connection.execute("PRAGMA synchronous = FULL")
        self.connection.execute("CREATE TABLE messages (id INTEGER PRIMARY KEY, session TEXT, seq INTEGER, body BLOB)")

    def append(self, rows: Sequence[tuple[str, int, bytes]]) -> None:
        self.connection.execute("BEGIN IMMEDIATE")
        self.connection.executemany("INSERT INTO messages (session, seq, body) VALUES (?, ?, ?)", rows)
        self.connection.execute("COMMIT")


def per_second(count: int, work: Callable[[], None]) -> float:
    started = time.perf_counter()
    work()
    return count / (time.perf_counter() - started)


def in_folder(measure: Callable[[Path], float]) -> float:
    folder = Path(tempfile.mkdtemp(prefix="journal-", dir=os.environ.get("BENCH_DIR")))
    try:
        return measure(folder)
    finally:
        shutil.rmtree(folder)


def bare_rate(folder: Path, groups: Sequence[Sequence[tuple[str, int, bytes]]], turns: int) -> float:
    bare = Bare(folder)

    def work() -> None:
        for group in groups:
            bare.append(group)

    rate = per_second(turns, work)
    bare.connection.close()
    return rate


async def store_rate(folder: Path, journals: Sequence[Sequence[Sequence[Row]]]) -> float:
    """Turns per second; each group has one turn of every journal."""
    store = SQLiteSessionStore(folder / "sessions.db", owner="bench")
    leases = [(await store.acquire(f"session-{n}")).lease for n in range(len(journals))]
    groups = [
        [Batch(lease=lease, rows=rows) for lease, rows in zip(leases, turns, strict=True)]
        for turns in zip(*journals, strict=True)
    ]
    started = time.perf_counter()
    for group in groups:
        await store.append(group)
    rate = len(groups) * len(journals) / (time.perf_counter() - started)
    await store.aclose()
    return rate


def bare_groups(journals: Sequence[Sequence[Sequence[Row]]]) -> list[list[tuple[str, int, bytes]]]:
    return [
        [(f"session-{n}", row.seq, row.body) for n, rows in enumerate(turns) for row in rows]
        for turns in zip(*journals, strict=True)
    ]


def written(journals: Sequence[Sequence[Sequence[Row]]]) -> tuple[int, int]:
    """Bytes in the write-ahead logs: ours and the bare one's, nothing checkpointed."""
    return int(in_folder(lambda folder: anyio.run(_ours_written, folder, journals))), int(
        in_folder(lambda folder: _bare_written(folder, journals))
    )


async def _ours_written(folder: Path, journals: Sequence[Sequence[Sequence[Row]]]) -> float:
    from repertory.backends.sessions.sqlite import journals as sqlite_journals

    bound, sqlite_journals.CHECKPOINT_BYTES = sqlite_journals.CHECKPOINT_BYTES, sys.maxsize
    try:
        store = SQLiteSessionStore(folder / "sessions.db", owner="bench")
        leases = [(await store.acquire(f"session-{n}")).lease for n in range(len(journals))]
        for turns in zip(*journals, strict=True):
            await store.append([Batch(lease=lease, rows=rows) for lease, rows in zip(leases, turns, strict=True)])
        size = (folder / "sessions.db-wal").stat().st_size
        await store.aclose()
    finally:
        sqlite_journals.CHECKPOINT_BYTES = bound
    return float(size)


def _bare_written(folder: Path, journals: Sequence[Sequence[Sequence[Row]]]) -> float:
    bare = Bare(folder)
    bare.connection.execute("PRAGMA wal_autocheckpoint = 0")
    for group in bare_groups(journals):
        bare.append(group)
    size = Path(f"{bare.path}-wal").stat().st_size
    bare.connection.close()
    return float(size)


def appending() -> list[Figure]:
    figures: list[Figure] = []
    for name, sessions, groups, bar in (
        ("one session", 1, TURNS, 0.6),
        (f"{SESSIONS} sessions", SESSIONS, GROUPS, 0.25),
    ):
        journals = []
        for _ in range(sessions):
            journal = appender()
            journals.append([turn(journal) for _ in range(groups)])
        bare = bare_groups(journals)
        medians = interleaved(
            {
                "bare": lambda bare=bare, turns=sessions * groups: in_folder(
                    lambda folder: bare_rate(folder, bare, turns)
                ),
                "ours": lambda journals=journals: in_folder(lambda folder: anyio.run(store_rate, folder, journals)),
            }
        )
        figures.append(Figure(f"append, {name}", medians["ours"], medians["bare"], bar, "turns/s", "higher"))
        ours, limit = written(journals)
        turns = sessions * groups
        # A commit also notes where its journals end, on a page of its own.
        figures.append(
            Figure(f"bytes per turn, {name}", ours / turns, limit / turns, 2.2 if sessions == 1 else 1.2, "B")
        )
    return figures


async def _open_ms(folder: Path, messages: int) -> float:
    """Acquire, load and fold, on a store that is open; a session that this store has not seen before."""
    path = folder / f"{messages}.db"
    if not path.exists():
        writer = SQLiteSessionStore(path, owner="writer")
        rows = conversation(messages // 2)
        for n in range(8):
            lease: Lease = (await writer.acquire(f"session-{n}")).lease
            await writer.append([Batch(lease=lease, rows=rows)])
        await writer.aclose()
    store = SQLiteSessionStore(path, owner="reader")
    await store.load("session-0", "default")
    taken: list[float] = []
    for n in range(8):
        started = time.perf_counter()
        await store.acquire(f"session-{n}")
        restored = restore(await store.load(f"session-{n}", "default"))
        taken.append((time.perf_counter() - started) * 1e3)
        assert len(restored.fold.shown) == WINDOW
    await store.aclose()
    return sorted(taken)[len(taken) // 2]


def opening() -> list[Figure]:
    folder = Path(tempfile.mkdtemp(prefix="journal-", dir=os.environ.get("BENCH_DIR")))
    try:
        sizes = (100, 10_000)
        medians = interleaved({str(size): lambda size=size: anyio.run(_open_ms, folder, size) for size in sizes})
    finally:
        shutil.rmtree(folder)
    return [
        Figure("open a window of 40, of 100", medians["100"], 1.0, 1.2, "ms"),
        Figure("open a window of 40, of 10,000", medians["10000"], 1.0, 1.2, "ms"),
        Figure("the longer against the shorter", medians["10000"], medians["100"], 1.25, "ms"),
    ]


def decoding() -> list[Figure]:
    rows = [row for row in conversation(6000) if row.kind == 1][:10_000]
    journal = appender()
    whole = [row for _ in range(5000) for row in turn(journal)]

    def timed(work: Callable[[], object]) -> float:
        started = time.perf_counter()
        work()
        return (time.perf_counter() - started) * 1e3

    medians = interleaved(
        {"decode": lambda: timed(lambda: records_of(rows)), "restore": lambda: timed(lambda: restore(whole))}
    )
    return [
        Figure("decode 10,000 messages", medians["decode"], 1.0, 50.0, "ms"),
        Figure("verify, decode and fold them", medians["restore"], 1.0, None, "ms"),
    ]


async def _whole_ms(folder: Path) -> float:
    store = SQLiteSessionStore(folder / "sessions.db", owner="bench")
    lease, _ = await store.acquire("session")
    await store.append([Batch(lease=lease, rows=conversation(5000))])
    started = time.perf_counter()
    rows = await store.load("session", "default", whole=True)
    taken = (time.perf_counter() - started) * 1e3
    assert len(rows) >= 10_000
    await store.aclose()
    return taken


def loading() -> list[Figure]:
    medians = interleaved({"load": lambda: in_folder(lambda folder: anyio.run(_whole_ms, folder))}, rounds=3)
    return [Figure("load 10,000 messages and their views", medians["load"], 1.0, None, "ms")]


def main() -> int:
    """Print every figure; 1 when a bar was missed."""
    return report([*appending(), *opening(), *decoding(), *loading()])


if __name__ == "__main__":
    sys.exit(main())
