"""A process whose agent remembers, and that kills itself at a named place.

    dying_memory.py FOLDER COUNT PLACE BACKEND

It says COUNT things that nobody has said before, each acknowledged by a line, and dies at the first time that it comes
to PLACE: `turn` (after a turn, before its extraction), `extract` (in the extractor), `written` (a memory is stored and
the journal does not know), `flush` (in a flush, between two stores); `never` ends well.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio

from repertory import (
    AddMessagesContext,
    Agent,
    ExtractionConfig,
    ExtractionResult,
    IntervalTrigger,
    MemoryEntry,
    MemoryManager,
    ScriptedModel,
    SQLiteSessionManager,
)

EVERY = 2


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Ledger:
    """A store that honours idempotency keys, in a file."""

    description = None
    max_search_results = None
    writable = True

    def __init__(self, folder: Path, name: str, place: str) -> None:
        self.name = name
        self._place = place
        self._path = folder / f"{name}.db"
        with sqlite3.connect(self._path) as connection:
            connection.execute("CREATE TABLE IF NOT EXISTS facts (key TEXT PRIMARY KEY, content TEXT)")
        self.extraction = ExtractionConfig(trigger=IntervalTrigger(EVERY), extractor=Wording(place))

    def search(self, query: str, options: object = None) -> Sequence[MemoryEntry]:
        del query, options
        return []

    def add(self, content: str, metadata: object, *, context: AddMessagesContext) -> None:
        del metadata
        with sqlite3.connect(self._path) as connection:
            connection.execute("INSERT OR IGNORE INTO facts VALUES (?, ?)", (context.idempotency_key, content))
        if self._place == "written" or (self._place == "flush" and self.name == "second"):
            die()


class Wording:
    """An extractor that never says the same thing twice in the same words."""

    def __init__(self, place: str) -> None:
        self._place = place

    async def extract(self, messages: list[Any], context: object) -> list[ExtractionResult]:
        del context
        if self._place == "extract":
            die()
        said = [message["content"][0]["text"] for message in messages if message["role"] == "user"]
        return [ExtractionResult(f"{text} {os.urandom(4).hex()}") for text in said]


async def main() -> None:
    folder, count, place = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    manager = MemoryManager(stores=[Ledger(folder, "first", place), Ledger(folder, "second", place)], injection=False)
    agent = Agent(
        ScriptedModel(["ok"], loop=True),
        callback_handler=None,
        memory_manager=manager,
        session_manager=SQLiteSessionManager("s", folder / "sessions.db"),
    )
    async with agent:
        for _ in range(count):
            word = os.urandom(8).hex()
            await agent.invoke_async(f"said {word}")
            print(word, flush=True)
            if place == "turn":
                die()
            await anyio.sleep(0.05)
        if place == "flush":
            await manager.flush()


anyio.run(main, backend=sys.argv[4])
