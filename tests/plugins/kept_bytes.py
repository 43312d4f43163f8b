"""Somewhere to keep a session, and a look at every byte that is kept there."""

from __future__ import annotations

import json
import random
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread

from repertory import Agent
from repertory.backends.objects.in_memory import ObjectShelf
from repertory.backends.sessions.journal.format import MAGIC, unpack
from repertory.backends.sessions.sqlite.reading import unpacked
from repertory.core.journal.rows import Row
from tests.plugins.guarded_model import GuardedModel, Verdict

SECRET = "4711-0815-" + "".join(random.Random(7).choices("abcdefghij", k=40))
NO = "[User input redacted.]"
SAID_NO = "[Assistant output redacted.]"
REFUSED = Verdict(user=NO)


@dataclass
class Kept:
    """Somewhere to keep a session, and a look at every byte that is kept there."""

    manager: Callable[[], Any]
    bodies: Callable[[], Iterator[tuple[str, bytes]]]

    def holders(self, text: str = SECRET) -> list[str]:
        """Where the text lies, compressed or not."""
        wanted = text.encode()
        return [name for name, body in self.bodies() if wanted in body or wanted in _inflated(body)]

    async def until_stored(self) -> None:
        """Returns once what was said lies there."""
        with anyio.fail_after(20):
            while not await anyio.to_thread.run_sync(self.holders):  # noqa: ASYNC110 - nobody tells
                await anyio.sleep(0.005)

    def agent(self, *replies: Any, slowly: bool = False, **options: Any) -> Agent:
        """`slowly`: an answer ends when what it answers is stored."""
        model = GuardedModel(*replies, pause=self.until_stored if slowly else None)
        return Agent(model, session_manager=self.manager(), callback_handler=None, **options)


def _inflated(body: bytes) -> bytes:
    if not body.startswith(MAGIC):
        return b""
    packed = unpack(body)
    return json.dumps(packed.header).encode() + b"".join(row.body for row in packed.rows)


def in_folder(folder: Path) -> Callable[[], Iterator[tuple[str, bytes]]]:
    def bodies() -> Iterator[tuple[str, bytes]]:
        for path in folder.rglob("*"):
            try:
                if path.is_file():
                    yield str(path.relative_to(folder)), path.read_bytes()
                if path.suffix == ".db":
                    yield f"rows of {path.name}", b"".join(unpacked(row).body for row in rows_of(path))
            except FileNotFoundError:  # It was replaced, or tidied up, just now.
                continue

    return bodies


def on_shelf(shelf: ObjectShelf) -> Callable[[], Iterator[tuple[str, bytes]]]:
    return lambda: iter([(key, kept.body) for key, kept in list(shelf.objects.items())])


def rows_of(database: Path) -> list[Row]:
    """Every row as the database keeps it."""
    columns = "seq, kind, version, low, link, salt, body"
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
        return [Row("default", *values) for values in connection.execute(f"SELECT {columns} FROM rows")]
