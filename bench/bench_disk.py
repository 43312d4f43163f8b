"""What a conversation takes on disk in SQLite: everything that was ever said, and a snapshot of every turn.

The text is made of words with the frequencies of a language, so that it compresses about as well as English does; the
limits beside it are the text itself, and the smallest thing that a program without sessions could do: one table with
one row per message.
"""

from __future__ import annotations

import random
import sqlite3
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import anyio

from bench.harness import Figure, report
from repertory import AgentSpec, Runtime, ScriptedModel, SQLiteSessions
from repertory.core.journal.records import SnapshotTaken

if TYPE_CHECKING:
    from repertory.core.snapshots.trigger import EndedTurn

TURNS = 200
ASKED_BYTES, ANSWERED_BYTES = 250, 750
"""Per turn: 200 KB in all."""
BOUND_BYTES = 300_000
LETTERS = "eeeeeeeeeeeetttttttttaaaaaaaaooooooooiiiiiiinnnnnnnsssssshhhhhhrrrrrrddddllllcccuuummmwwffggyyppbbvk"


class Words:
    """Text with the statistics of a language: few words are frequent, most are rare."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self._words = ["".join(self._rng.choices(LETTERS, k=self._rng.randint(1, 4) + n // 400)) for n in range(4000)]
        self._weights = [1 / (n + 2.7) for n in range(4000)]

    def text(self, size_bytes: int) -> str:
        words = ""
        while len(words) < size_bytes:
            words += " ".join(self._rng.choices(self._words, self._weights, k=12)).capitalize() + ". "
        return words[:size_bytes]


@contextmanager
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".bench-") as path:
        yield Path(path)


def size_bytes(path: Path) -> int:
    """The database with everything that SQLite keeps beside it."""
    return sum(
        each.stat().st_size for each in path.parent.iterdir() if each.is_file() and each.name.startswith(path.name)
    )


async def talk(database: Path) -> int:
    """A conversation with a snapshot of each turn; the bytes on disk when it is closed."""
    words = Words(1)

    async def mark(turn: EndedTurn) -> SnapshotTaken:
        del turn
        marks.append(1)
        return SnapshotTaken(at=time.time(), label=f"turn-{len(marks)}", metadata={"reason": "every turn"})

    marks: list[int] = []
    async with Runtime(sessions=SQLiteSessions(database)) as runtime:
        model = ScriptedModel([lambda *request: words.text(ANSWERED_BYTES)], loop=True)
        session = runtime.agent(AgentSpec(model=model)).session("user-123")
        await session.messages()
        session.agent._parts.mark = mark  # as a snapshot manager would
        for _ in range(TURNS):
            await session.invoke(words.text(ASKED_BYTES))
        assert len(await session.history()) == 2 * TURNS
    assert len(marks) == TURNS
    return size_bytes(database)


def bare(database: Path) -> int:
    """One table, one row per message, the text as it is."""
    words = Words(1)
    connection = sqlite3.connect(database)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("CREATE TABLE messages (id INTEGER PRIMARY KEY, session TEXT, role TEXT, at REAL, text TEXT)")
    for _ in range(TURNS):
        for role, size in (("user", ASKED_BYTES), ("assistant", ANSWERED_BYTES)):
            said = ("user-123", role, time.time(), words.text(size))
            connection.execute("INSERT INTO messages (session, role, at, text) VALUES (?, ?, ?, ?)", said)
    connection.commit()
    connection.close()
    return size_bytes(database)


def explain(database: Path) -> None:
    """Where the bytes are."""
    connection = sqlite3.connect(database)
    pages = Counter[str]()
    (page_bytes,) = connection.execute("PRAGMA page_size").fetchone()
    try:
        for name, count, unused in connection.execute(
            "SELECT name, count(*), sum(unused) FROM dbstat GROUP BY name ORDER BY 2 DESC"
        ):
            pages[name] = count
            print(f"  {name}: {count} pages, {unused:,} B unused")
    except sqlite3.OperationalError:
        (count,) = connection.execute("PRAGMA page_count").fetchone()
        print(f"  {count} pages of {page_bytes} B")
    rows = connection.execute(
        "SELECT kind, count(*), sum(length(body)), sum(length(link) + length(salt)) FROM rows GROUP BY kind"
    )
    for kind, count, bodies, proofs in rows:
        print(f"  kind {kind}: {count} rows, {bodies:,} B of bodies, {proofs:,} B of links and salts")
    connection.close()


def main() -> int:
    with folder() as place:
        ours = anyio.run(talk, place / "ours.db")
        if "--explain" in sys.argv:
            explain(place / "ours.db")
        limit = bare(place / "bare.db")
    said = TURNS * (ASKED_BYTES + ANSWERED_BYTES)
    return report(
        [
            Figure(f"{TURNS} turns of {said // TURNS} B with snapshots, on disk", ours, BOUND_BYTES, 1.0, "B"),
            Figure("the same against the text that was said", ours, said, None, "B"),
            Figure("the same against one row per message", ours, limit, None, "B"),
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
