"""What the embedded memory costs with 100,000 turns in it: taking them in, finding one, forgetting one.

The text is made of words with the frequencies of a language. Limits: for taking in, a bare table with a full-text index
that is filled with the same text in transactions of the same size; for searching, what SQLite itself takes to rank the
same words in that index.
"""

from __future__ import annotations

import gc
import random
import sqlite3
import statistics
import sys
import time
from collections import Counter
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import anyio

from bench.bench_disk import Words, folder
from bench.harness import Figure, report
from repertory import SQLiteMemoryStore
from repertory.core.messages import Message, text_of
from repertory.core.recall.entries import terms_of

TURNS = 100_000
SESSION_TURNS = 50
TURN_BYTES = 120
QUESTIONS = 300
WORDS_ASKED = 5
STOP_WORDS = 100
FORGOTTEN = 5


def conversation(rng: random.Random, words: Words) -> list[Message]:
    messages: list[Message] = []
    for turn in range(SESSION_TURNS):
        text = words.text(rng.randint(TURN_BYTES // 2, TURN_BYTES * 3 // 2))
        is_user = turn % 2 == 0
        said = f"{'Ada' if is_user else 'Ben'}: {text}"
        messages.append({"role": "user" if is_user else "assistant", "content": [{"text": said}]})
    return messages


def asked(rng: random.Random, sessions: Sequence[Sequence[Message]]) -> list[str]:
    """Questions in words of a turn, with a name. The most frequent words stand for "the" and "and", so they are left
    out, as whoever searches leaves those out.
    """
    texts = [text_of(turn).replace(".", "").split() for messages in sessions for turn in messages]
    frequent = {word for word, _ in Counter(word for text in texts for word in text).most_common(STOP_WORDS)}
    questions: list[str] = []
    while len(questions) < QUESTIONS:
        words = [word for word in rng.choice(texts) if word not in frequent]
        name = rng.choice(("Ada", "Ben"))
        questions.append(f"When did {name} {' '.join(rng.sample(words, min(len(words), WORDS_ASKED)))}?")
    return questions


async def ingest(store: SQLiteMemoryStore, sessions: Sequence[Sequence[Message]]) -> float:
    """Seconds for all of them, a session at a time."""
    started = time.perf_counter()
    for number, messages in enumerate(sessions):
        context = {"session_id": f"session {number}", "sequence_numbers": range(1, len(messages) + 1), "said_at": 1.7e9}
        await store.add_messages(messages, context)  # type: ignore[arg-type]
    return time.perf_counter() - started


def ingest_bare(path: Path, sessions: Sequence[Sequence[Message]]) -> float:
    """Seconds for the same text in a table and an index."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL").fetchone()
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("CREATE TABLE turns (id INTEGER PRIMARY KEY, text TEXT)")
    connection.execute("CREATE VIRTUAL TABLE found USING fts5(text, content='', tokenize='porter unicode61')")
    started, key = time.perf_counter(), 0
    for messages in sessions:
        rows: list[tuple[int, str]] = []
        for message in messages:
            key += 1
            rows.append((key, text_of(message)))
        connection.execute("BEGIN")
        connection.executemany("INSERT INTO turns VALUES (?, ?)", rows)
        connection.executemany("INSERT INTO found (rowid, text) VALUES (?, ?)", rows)
        connection.execute("COMMIT")
    took = time.perf_counter() - started
    connection.close()
    return took


def search_bare(path: Path, questions: Sequence[str]) -> list[float]:
    """Milliseconds of each question, ranked by SQLite."""
    connection = sqlite3.connect(path)
    took: list[float] = []
    for question in questions:
        expression = " OR ".join(f'"{term}"' for term in terms_of(question))
        started = time.perf_counter()
        connection.execute(
            "SELECT rowid FROM found WHERE found MATCH ? ORDER BY rank LIMIT 10", (expression,)
        ).fetchall()
        took.append((time.perf_counter() - started) * 1000)
    connection.close()
    return took


async def search(store: SQLiteMemoryStore, questions: Sequence[str]) -> list[float]:
    took: list[float] = []
    for question in questions:
        started = time.perf_counter()
        await store.search(question)
        took.append((time.perf_counter() - started) * 1000)
    return took


async def forget(store: SQLiteMemoryStore) -> float:
    """The middle of how many milliseconds it takes to forget one turn, and every trace of it."""
    took: list[float] = []
    for number in range(FORGOTTEN):
        started = time.perf_counter()
        await store.forget(session_id=f"session {number}", seq=7)
        took.append((time.perf_counter() - started) * 1000)
    return statistics.median(took)


def p95(values: Sequence[float]) -> float:
    return statistics.quantiles(values, n=20)[-1]


class RandomVectors:
    """An embedder that costs next to nothing: what is left is what the store does with vectors."""

    name = "random"
    dimensions = 384

    def __init__(self) -> None:
        self._numpy: Any = import_module("numpy")
        self._rng: Any = self._numpy.random.default_rng(3)

    async def embed(self, texts: Sequence[str]) -> Any:
        return self._rng.normal(size=(len(texts), self.dimensions)).astype(self._numpy.float32)


async def measure(path: Path) -> list[Figure]:
    rng = random.Random(1)
    words = Words(2)
    sessions = [conversation(rng, words) for _ in range(TURNS // SESSION_TURNS)]
    questions = asked(rng, sessions)
    store = SQLiteMemoryStore(path / "memory.db")
    took_s = await ingest(store, sessions)
    bare_s = ingest_bare(path / "bare.db", sessions)
    del sessions
    gc.collect()
    gc.freeze()  # what is left of the texts is not searched through again and again for garbage
    await search(store, questions[:20])
    found = await search(store, questions)
    bare = search_bare(path / "bare.db", questions)
    await store.aclose()
    store = SQLiteMemoryStore(path / "memory.db", embedder=RandomVectors())
    started = time.perf_counter()
    await store.embed()
    embedding_s = time.perf_counter() - started
    await search(store, questions[:20])
    alike = await search(store, questions)
    forgetting = await forget(store)
    await store.aclose()
    return [
        Figure("turns taken in per second", TURNS / took_s, 1.0, 5000, "1/s", "higher"),
        Figure("the same, against a bare index", took_s, bare_s, None, "s"),
        Figure("search p95", p95(found), 1.0, 10, "ms"),
        Figure("search p50", statistics.median(found), 1.0, None, "ms"),
        Figure("search p95 against SQLite's own ranking", p95(found), p95(bare), None, "ms"),
        Figure("vectors stored per second", TURNS / embedding_s, 1.0, None, "1/s", "higher"),
        Figure("search p95 with vectors", p95(alike), 1.0, 25, "ms"),
        Figure("search p50 with vectors", statistics.median(alike), 1.0, None, "ms"),
        Figure("forgetting a turn", forgetting, 1.0, None, "ms"),
    ]


def main() -> int:
    with folder() as path:
        return report(anyio.run(measure, path))


if __name__ == "__main__":
    sys.exit(main())
