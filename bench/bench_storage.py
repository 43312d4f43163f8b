"""Stores of sessions beside strands-agents and bare limits of the same run: each promise as one figure.

Calls are made as people make them: outside any block, with a model that answers at once, and all messages shown to it.
strands-agents never syncs; ours are on stable storage. Snapshots are compared by CPU time, all else by the clock.
Requests are counted, and those behind each other are told by a delay of each. What cannot be measured here is named.

    python -m bench storage [--only WORD]
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any

import anyio

from bench import bench_prompts
from bench.bench_commit import rates
from bench.counted import Counted, CountedDocuments
from bench.harness import Figure, report
from repertory import (
    Agent,
    AgentSpec,
    FileSessionManager,
    FileSessions,
    FileStorage,
    JournalSessionManager,
    JournalSessions,
    Model,
    NullConversationManager,
    Runtime,
    ScriptedModel,
    SessionManager,
    SlidingWindowConversationManager,
    SQLiteSessionManager,
    StreamEvent,
    Usage,
    tool,
)
from repertory.runtime.testing.virtual_time import virtual_asyncio

ROOT = Path(__file__).parents[1]
STRANDS = ROOT / "tests/peers/strands/bin/python"
ROUNDS = 3
AROUND = 8
"""A figure is the median of the turns from so many before the named one to so many after it."""
SESSIONS, TURNS_OF_EACH = 50, 20
LATENCY_S = 0.05
OPENINGS = 3
SLOW_MODEL_MS = 200
USE = {"toolUse": {"name": "pay", "input": {"amount": 1}}}
MANAGERS: Mapping[str, Callable[[str, str], Any]] = {
    "files": lambda folder, name: FileSessionManager(session_id=name, storage_dir=folder),
    "journal": lambda folder, name: JournalSessionManager(name, storage=FileStorage(folder)),
    "SQLite": lambda folder, name: SQLiteSessionManager(name, path=f"{folder}/sessions.db"),
    "snapshots": lambda folder, name: SessionManager(name, storage=FileStorage(folder), save_latest_on="invocation"),
    "snapshots-message": lambda folder, name: SessionManager(name, storage=FileStorage(folder)),
}
CPU, WALL = 0, 1


@tool
async def pay(amount: int) -> str:
    """Pay an amount."""
    return f"paid {amount}"


class Instant(Model):
    """Answers at once and keeps nothing, event by event like that of `strands_model.py`: a scripted model would count
    tokens, and keep all messages of each request for the garbage collector to look at.
    """

    async def stream(self, *args: Any, **kwargs: Any) -> AsyncIterator[StreamEvent]:
        yield {"messageStart": {"role": "assistant"}}
        yield {"contentBlockStart": {"start": {}}}
        yield {"contentBlockDelta": {"delta": {"text": "ok"}}}
        yield {"contentBlockStop": {}}
        yield {"messageStop": {"stopReason": "end_turn"}}
        usage: Usage = {"inputTokens": 10, "outputTokens": 5, "totalTokens": 15}
        yield {"metadata": {"usage": usage, "metrics": {"latencyMs": 1}}}


def talker(manager: Any, *replies: Any, delay_s: float = 0.0) -> Agent:
    model = ScriptedModel(list(replies), loop=True, delay_s=delay_s) if replies else Instant()
    shows_all, tools = NullConversationManager(), [pay] if replies else []
    return Agent(model, tools=tools, session_manager=manager, conversation_manager=shows_all, callback_handler=None)


@cache
def all_folders() -> tempfile.TemporaryDirectory[str]:
    """The folder of everything, theirs as well, which is removed when the process ends: without its own journal, ext4
    makes a file in up to a millisecond while many were just removed beside it.
    """
    return tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".bench-")


@contextmanager
def folder() -> Iterator[str]:
    yield tempfile.mkdtemp(dir=all_folders().name)


def strands(*arguments: object) -> Any:
    """The result of `strands_storage.py`."""
    command = [str(STRANDS), "bench/strands_storage.py", *map(str, arguments)]
    where = {**os.environ, "TMPDIR": all_folders().name}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, env=where)
    return json.loads(done.stdout.splitlines()[-1])


# Turns of one session.


async def turns(kind: str, count: int, held: bool) -> list[tuple[float, float]]:
    """CPU and wall microseconds of each turn."""
    with folder() as where:
        agent, spent = talker(MANAGERS[kind](where, "s")), list[tuple[float, float]]()

        async def talk() -> None:
            for _ in range(count):
                cpu, wall = time.process_time(), time.perf_counter()
                await agent.invoke_async("hello")
                spent.append(((time.process_time() - cpu) * 1e6, (time.perf_counter() - wall) * 1e6))

        if held:
            async with agent:
                await talk()
        else:
            await talk()
    return spent


def about(spent: Sequence[Sequence[float]], turn: int, which: int) -> float:
    """Microseconds of a turn around that one."""
    return statistics.median(each[which] for each in spent[turn - min(AROUND, turn // 2) : turn + AROUND])


class Rounds:
    """The same measured several times, ours and theirs in turn; the median of each figure counts."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, int, int], list[float]] = {}

    def add(self, name: str, spent: Sequence[Sequence[float]]) -> None:
        for turn in (10, 200, 400):
            if len(spent) >= turn:
                for which in (CPU, WALL):
                    self._found.setdefault((name, turn, which), []).append(about(spent, turn, which))

    def of(self, name: str, turn: int, which: int) -> float:
        return statistics.median(self._found[name, turn, which])


def of_turns() -> list[Figure]:
    measured = Rounds()
    count = {"snapshots": 400 + AROUND, "snapshots-message": 400 + AROUND}
    for _ in range(ROUNDS):
        for kind in MANAGERS:
            gc.collect()
            measured.add(kind, anyio.run(turns, kind, count.get(kind, 200 + AROUND), False))
        measured.add("SQLite held", anyio.run(turns, "SQLite", 200 + AROUND, True))
        for kind in ("files", "snapshots", "snapshots-message"):
            measured.add(f"SDK {kind}", strands("turns", kind, count.get(kind, 200 + AROUND)))

    def beside(name: str, kind: str, limit: str, turn: int, which: int, bar: float | None) -> Figure:
        return Figure(name, measured.of(kind, turn, which), measured.of(limit, turn, which), bar, "us")

    figures = [
        beside("files, turn 10 / SDK", "files", "SDK files", 10, WALL, 0.9),
        beside("files, turn 200 / SDK", "files", "SDK files", 200, WALL, 0.12),
    ]
    for turn, bar in ((10, 1.0), (200, 0.3), (400, 0.3)):
        figures.append(beside(f"snapshots, turn {turn} / SDK", "snapshots", "SDK snapshots", turn, CPU, bar))
    for turn in (10, 200, 400):
        name = f"snapshots of each message, turn {turn} / SDK"
        figures.append(beside(name, "snapshots-message", "SDK snapshots-message", turn, CPU, None))
    ours = measured.of("journal", 200, WALL), measured.of("journal", 10, WALL)
    bare, held = measured.of("SQLite", 200, WALL), measured.of("SQLite held", 200, WALL)
    return [
        *figures,
        Figure("journal in a folder, turn 200 / turn 10", *ours, 1.1, "us"),
        Figure("SQLite, bare / held", bare, held, 1.15, "us"),
        beside("SQLite, turn 10 / SDK files", "SQLite", "SDK files", 10, WALL, 0.7),
    ]


# Many sessions at once.


async def many(kind: str) -> float:
    """Turns per second of many sessions at the same time."""
    with folder() as where:
        agents = [talker(MANAGERS[kind](where, f"s{number}")) for number in range(SESSIONS)]

        async def talk(agent: Agent, count: int) -> None:
            for _ in range(count):
                await agent.invoke_async("hello")

        async def all_of_them(count: int) -> None:
            async with anyio.create_task_group() as group:
                for agent in agents:
                    group.start_soon(talk, agent, count)

        await all_of_them(1)
        began = time.perf_counter()
        await all_of_them(TURNS_OF_EACH)
        return SESSIONS * TURNS_OF_EACH / (time.perf_counter() - began)


def of_many() -> list[Figure]:
    found: dict[str, list[float]] = {"files": [], "SQLite": [], "SDK": []}
    of_runtime: list[tuple[float, float, float]] = []
    for _ in range(ROUNDS):
        for kind in ("files", "SQLite"):
            gc.collect()
            found[kind].append(anyio.run(many, kind))
        found["SDK"].append(strands("sessions", SESSIONS, TURNS_OF_EACH))
        of_runtime.append(rates(SESSIONS, 30))
    files, sqlite, theirs = (statistics.median(found[name]) for name in ("files", "SQLite", "SDK"))
    ours, in_memory, bare = sorted(of_runtime, key=lambda one: one[0] / one[1])[ROUNDS // 2]
    return [
        Figure(f"{SESSIONS} sessions at once, files / SDK", files, theirs, 1.2, "/s", "higher"),
        Figure(f"{SESSIONS} sessions at once, SQLite / SDK", sqlite, theirs, 2.0, "/s", "higher"),
        Figure(f"{SESSIONS} sessions in a Runtime, SQLite / in memory", ours, in_memory, 0.5, "/s", "higher"),
        Figure(f"{SESSIONS} sessions in a Runtime / bare inserts: the disk", ours, bare, None, "/s", "higher"),
    ]


# Opening.


async def opening_ms(where: str, window: int) -> float:
    """Milliseconds until the messages of a documented tree are there, in a runtime that has just begun."""
    manager = SlidingWindowConversationManager(window_size=window) if window else NullConversationManager()
    spec = AgentSpec(model=ScriptedModel(["ok"], loop=True), conversation_manager=manager)
    times: list[float] = []
    for number in range(OPENINGS + 1):
        async with Runtime(sessions=FileSessions(where)) as runtime:
            session = runtime.agent(spec).session("s")
            began = time.perf_counter()
            messages = await session.messages()
            times.append((time.perf_counter() - began) * 1000)
            assert len(messages) >= (window or 1000)
            if not number:
                await session.invoke("hello")  # From now on it is ours.
    return statistics.median(times[1:])


def of_opening() -> list[Figure]:
    figures: list[Figure] = []
    for messages, window in ((1000, 0), (10_000, 0), (10_000, 40)):
        with folder() as theirs, folder() as copy:
            strands("tree", theirs, messages, window)
            shutil.copytree(theirs, copy, dirs_exist_ok=True)
            value, limit = anyio.run(opening_ms, copy, window), strands("open", theirs, window)
        shown = f"a window of {window} of" if window else "all of"
        figures.append(Figure(f"documented tree, open {shown} {messages:,} / SDK", value, limit, 0.3, "ms"))
    return figures


# Buckets.


class InBucket:
    """The session manager of one session in a counted bucket."""

    session_id, takeover = "s", False

    def __init__(self, bucket: CountedDocuments | JournalSessions) -> None:
        self.sessions = bucket


class Bucket:
    """Documents or journals in a bucket of memory."""

    def __init__(self, kind: str) -> None:
        self.storage = Counted() if kind == "journal" else CountedDocuments()
        self.manager: Any = InBucket(
            JournalSessions(self.storage) if isinstance(self.storage, Counted) else self.storage
        )

    def in_a_row(self, *replies: Any, model_s: float = 0.0) -> tuple[float, float]:
        """Requests of a later call that stand behind each other, beyond the time of its model, and all of them: the
        medians of three calls. On virtual time, so that a busy machine adds none.
        """
        backend, options = virtual_asyncio()
        return anyio.run(
            partial(self._in_a_row, *replies, model_s=model_s), backend=backend, backend_options={**options}
        )

    async def _in_a_row(self, *replies: Any, model_s: float) -> tuple[float, float]:
        agent = talker(self.manager, *replies * 8, delay_s=model_s)
        await agent.invoke_async("hello")
        counts: list[int] = []
        rows: list[int] = []
        for _ in range(3):
            began = anyio.current_time()
            await agent.invoke_async("hello")  # Without latency: the time of the model.
            alone_s = anyio.current_time() - began
            self.storage.count.take()
            self.storage.count.latency_s = self.storage.latency_s = LATENCY_S
            began = anyio.current_time()
            await agent.invoke_async("hello")
            rows.append(round((anyio.current_time() - began - alone_s) / LATENCY_S))
            self.storage.count.latency_s = self.storage.latency_s = 0.0
            counts.append(sum(self.storage.count.take().values()))
        return statistics.median(rows), statistics.median(counts)

    async def bytes_up(self, *at_messages: int) -> list[tuple[float, float]]:
        """Bytes of the puts of a call, where the session has so many messages: the median of fifty, and the mean. Every
        thirty calls the head's tail becomes a segment, and all that is shown a window: here the whole conversation.
        """
        agent, found, some = talker(self.manager), list[tuple[float, float]](), deque[int](maxlen=50)
        for number in range(1, max(at_messages) // 2 + 1):
            if number > 1:
                self.storage.count.take()
            await agent.invoke_async("hello")
            some.append(self.storage.count.bytes_put)
            if 2 * number in at_messages:
                found.append((statistics.median(some), statistics.mean(some)))
        return found

    async def head_bytes(self, turns: int) -> float:
        """The largest head of a journal in so many turns."""
        agent, largest = talker(self.manager), 0
        for number in range(turns):
            if number:
                self.storage.count.take()
            await agent.invoke_async("hello")
            heads = [size for key, size in self.storage.count.puts if key.rpartition("/")[2] == "head"]
            largest = max(largest, *heads)
        return float(largest)


def of_buckets() -> list[Figure]:
    row, all_of_them = Bucket("documents").in_a_row("ok")
    waited, _ = Bucket("documents").in_a_row("ok", model_s=2 * LATENCY_S)
    tool_row, _ = Bucket("documents").in_a_row(USE, "paid")
    tool_waited, _ = Bucket("documents").in_a_row(USE, "paid", model_s=2 * LATENCY_S)
    (early, early_mean), (late, late_mean) = anyio.run(Bucket("documents").bytes_up, 200, 2000)
    journal, _ = Bucket("journal").in_a_row("ok")
    journal_tool, _ = Bucket("journal").in_a_row(USE, "paid")
    head = anyio.run(Bucket("journal").head_bytes, 2000)
    return [
        Figure("bucket, documents: plain call, requests in a row", row, 1.0, 2.0, ""),
        Figure("bucket, documents: plain call, requests beyond the time of a slow model", waited, 1.0, 1.0, ""),
        Figure("bucket, documents: plain call, all requests", all_of_them, 1.0, 5.0, ""),
        Figure("bucket, documents: one tool, requests in a row", tool_row, 1.0, 4.0, ""),
        Figure("bucket, documents: one tool, requests beyond the time of a slow model", tool_waited, 1.0, 2.0, ""),
        Figure("bucket, documents: bytes up at 200 messages", early, 6 * 1024, 1.0, "B"),
        Figure("bucket, documents: bytes up at 2,000 messages", late, 6 * 1024, 1.0, "B"),
        Figure("bucket, documents: bytes up at 2,000 / at 200", late, early, 1.1, "B"),
        Figure("bucket, documents: bytes up at 200 messages, mean", early_mean, 6 * 1024, None, "B"),
        Figure("bucket, documents: bytes up at 2,000 messages, mean", late_mean, 6 * 1024, None, "B"),
        Figure("bucket, journal: plain call, requests in a row", journal, 1.0, 2.0, ""),
        Figure("bucket, journal: one tool, requests in a row", journal_tool, 1.0, 3.0, ""),
        Figure("bucket, journal: largest head in 2,000 turns", head, 16 * 1024, 1.0, "B"),
    ]


# Kills, and syncs.


def of_kills() -> list[Figure]:
    bench_prompts.ROUNDS = 1
    return bench_prompts.figures()


def synced(sessions: int, turns: int) -> int:
    """The syncs of a process that takes so many turns of each session, with a model that takes its time."""
    with folder() as where, tempfile.NamedTemporaryFile("r") as calls:
        trace = ["strace", "-f", "-qq", "-e", "trace=fsync,fdatasync", "-o", calls.name]
        command = [*trace, sys.executable, "-m", "bench.slow_turns", where, *map(str, (sessions, turns, SLOW_MODEL_MS))]
        subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
        return sum(" = 0" in line and "sync(" in line for line in calls.read().splitlines())


def of_syncs() -> list[Figure]:
    if shutil.which("strace") is None:
        print("NOT MEASURED: the syncs of a turn (needs strace)")
        return []
    figures: list[Figure] = []
    for sessions, bar in ((1, 2.0), (SESSIONS, 0.2)):
        few, more = synced(sessions, 4), synced(sessions, 14)
        name = f"syncs of a held turn, model of {SLOW_MODEL_MS} ms, {sessions} in a Runtime"
        figures.append(Figure(name, (more - few) / sessions / 10, 1.0, bar, ""))
    return figures


def of_lines() -> list[Figure]:
    rooms = ("backends/sessions", "core/message_tree", "core/snapshots")
    files = [path for room in rooms for path in (ROOT / "repertory" / room).rglob("*.py")]
    lines = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in files)
    return [Figure("lines: stores of sessions, message tree, snapshots", lines, 1.0, 20_000, "")]


PARTS: Mapping[str, Callable[[], list[Figure]]] = {
    "turns": of_turns,
    "many": of_many,
    "opening": of_opening,
    "buckets": of_buckets,
    "kills": of_kills,
    "syncs": of_syncs,
    "lines": of_lines,
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench storage", description=__doc__)
    parser.add_argument("--only", choices=PARTS, help="this part alone")
    options, _ = parser.parse_known_args()
    figures: list[Figure] = []
    for name, measure in PARTS.items():
        if options.only not in (None, name):
            continue
        if not STRANDS.exists() and name in ("turns", "many", "opening"):
            print(f"NOT MEASURED: {name} (strands-agents is not installed: make peers)")
            continue
        began = time.perf_counter()
        figures += measure()
        print(f"storage: {name} took {time.perf_counter() - began:.0f} s", flush=True)
    return report(figures)


if __name__ == "__main__":
    sys.exit(main())
