"""The memory in PostgreSQL beside the embedded one, in one run with the same text on the same disk: taking turns in,
finding them, with vectors and without.

Both sync every commit. The server runs on this machine, so its work is taken from the same processors. Needs the
server's programs; pgvector is measured where it is.
"""

from __future__ import annotations

import random
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

import anyio

from bench.bench_disk import Words, folder
from bench.bench_memory_store import SESSION_TURNS, RandomVectors, asked, conversation, p95
from bench.harness import Figure, report
from repertory import Embedder, PostgresMemoryStore, SQLiteMemoryStore
from repertory.core.messages import Message
from tests.postgres_server import PostgresServer, postgres_server

TURNS = 20_000
SINGLE = 200
Store: TypeAlias = "SQLiteMemoryStore | PostgresMemoryStore"


async def taken_in(store: Store, sessions: Sequence[Sequence[Message]]) -> float:
    """Turns per second, a session at a time."""
    started = time.perf_counter()
    for number, messages in enumerate(sessions):
        context = {"session_id": f"session {number}", "sequence_numbers": range(1, len(messages) + 1), "said_at": 1.7e9}
        await store.add_messages(messages, context)  # type: ignore[arg-type]
    return len(sessions) * SESSION_TURNS / (time.perf_counter() - started)


async def added(store: Store, session: Sequence[Message]) -> float:
    """The middle of how many milliseconds it takes to store one turn."""
    took: list[float] = []
    for number in range(SINGLE):
        context = {"session_id": "single", "sequence_numbers": [number + 1]}
        started = time.perf_counter()
        await store.add_messages([session[number % len(session)]], context)  # type: ignore[arg-type]
        took.append((time.perf_counter() - started) * 1000)
    return statistics.median(took)


async def found(store: Store, questions: Sequence[str]) -> list[float]:
    """Milliseconds of each question."""
    took: list[float] = []
    for question in questions:
        started = time.perf_counter()
        await store.search(question)
        took.append((time.perf_counter() - started) * 1000)
    return took[20:]


async def measured(store: Store, sessions: Sequence[Sequence[Message]], questions: Sequence[str]) -> list[float]:
    rate = await taken_in(store, sessions)
    searches = await found(store, questions)
    single = await added(store, sessions[0])
    await store.aclose()
    return [rate, single, statistics.median(searches), p95(searches)]


async def with_vectors(store: Store, questions: Sequence[str]) -> list[float]:
    await store.embed()
    searches = await found(store, questions)
    await store.aclose()
    return [statistics.median(searches), p95(searches)]


async def both(path: Path, server: PostgresServer) -> list[Figure]:
    rng, words = random.Random(1), Words(2)
    sessions = [conversation(rng, words) for _ in range(TURNS // SESSION_TURNS)]
    questions = asked(rng, sessions)
    embedder: Embedder = RandomVectors()
    sqlite = await measured(SQLiteMemoryStore(path / "memory.db"), sessions, questions)
    postgres = await measured(PostgresMemoryStore(server.url), sessions, questions)
    names = ["turns taken in per second", "storing one turn", "search p50", "search p95"]
    units = ["/s", "ms", "ms", "ms"]
    figures = [
        Figure(f"{name}, beside SQLite", ours, theirs, None, unit, "higher" if unit == "/s" else "lower")
        for name, unit, ours, theirs in zip(names, units, postgres, sqlite, strict=True)
    ]
    beside = await with_vectors(SQLiteMemoryStore(path / "memory.db", embedder=embedder), questions)
    here = await with_vectors(PostgresMemoryStore(server.url, embedder=embedder), questions)
    figures += _alike("vectors compared here", here, beside)
    if server.sql("SELECT 1 FROM pg_available_extensions WHERE name = 'vector'"):
        server.sql("CREATE EXTENSION vector")
        there = await with_vectors(PostgresMemoryStore(server.url, embedder=embedder), questions)
        figures += _alike("pgvector", there, beside)
    return figures


def _alike(how: str, ours: Sequence[float], theirs: Sequence[float]) -> list[Figure]:
    return [
        Figure(f"search {name} with {how}, beside SQLite", one, other, None, "ms")
        for name, one, other in zip(("p50", "p95"), ours, theirs, strict=True)
    ]


def main() -> int:
    with folder() as path, postgres_server(fsync="on", autovacuum="on", shared_buffers="256MB") as server:
        return report(anyio.run(both, path, server))


if __name__ == "__main__":
    sys.exit(main())
