"""Places with sessions in them, for tests of what is done to stored sessions."""

from __future__ import annotations

import itertools
import json
import os
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from repertory import (
    FileSessions,
    FileStorage,
    InMemoryStorage,
    JournalSessions,
    PostgresSessions,
    S3Sessions,
    S3Storage,
    Sessions,
    SQLiteSessions,
)
from repertory.app.sessions.sessions import SessionLocation
from repertory.backends.objects.in_memory import ObjectShelf
from repertory.backends.ports import Batch, Position, SessionStore, give_up
from repertory.backends.sessions.agentcore.ownership import AgentCoreSettings
from repertory.backends.sessions.agentcore.store import AgentCoreSessionStore
from repertory.backends.sessions.journal.format import MAGIC, unpack
from repertory.core.journal.records import SnapshotTaken, StateChanged
from repertory.core.journal.restore import restore
from repertory.core.journal.rows import Row
from repertory.core.messages import Message
from tests.app.sessions.bucket_in_folder import BucketInFolder
from tests.app.sessions.tree_sessions import TreeSessions
from tests.backends.objects.moto_s3 import BUCKET, moto_s3
from tests.backends.sessions.agentcore_memory import DirectEvents, FakeMemory
from tests.backends.sessions.postgres_places import files_of, schema_of
from tests.core.journal.journal_driver import COMMANDS, Driver
from tests.postgres_server import postgres_server, shared_server

LOCAL = (
    "sqlite",
    "journal in memory",
    "journal in files",
    "documents in memory",
    "documents in files",
    "bucket in files",
    "postgres",
)
"""Every kind of place that needs no server, or one that is there for the process."""
S3 = ("journal on s3", "documents on s3")


def place_of(kind: str, folder: Path, url: str = "") -> SessionLocation:
    """A new place. `url`: of the server of buckets."""
    match kind:
        case "sqlite":
            return SQLiteSessions(folder / "sessions.db")
        case "journal in memory":
            return JournalSessions(Memory())
        case "journal in files":
            return JournalSessions(FileStorage(folder / "journals"))
        case "documents in memory":
            return TreeSessions()
        case "documents in files":
            return FileSessions(folder / "documents")
        case "bucket in files":
            return BucketInFolder(folder / "bucket")
        case "postgres":
            return PostgresSessions(shared_server().url, schema=schema_of(folder))
        case "journal on s3":
            return JournalSessions(S3Storage(BUCKET, f"j/{folder.name}", endpoint_url=url))
        case "documents on s3":
            return S3Sessions(BUCKET, f"d/{folder.name}", endpoint_url=url)
        case _:
            raise AssertionError(kind)


@contextmanager
def server_for(kind: str, folder: Path) -> Iterator[str]:
    """The address of a server of its own for this kind of place; empty for a place that needs none."""
    if kind in S3:
        with moto_s3(folder / "moto.log") as url:
            yield url
    elif kind == "postgres":
        with postgres_server() as server:
            yield server.url
    else:
        yield ""


NOTHING_LATE = AgentCoreSettings(settle_s=0.0)
"""For a memory whose listings show everything at once, so that nobody waits for what is gone."""


@dataclass
class AgentCorePlace:
    """Sessions in AgentCore Memory, without a network."""

    memory: FakeMemory = field(default_factory=FakeMemory)
    numbers: Iterator[int] = field(default_factory=itertools.count)
    wall: Callable[[], float] = time.time

    @property
    def key(self) -> str:
        return f"agentcore:{id(self.memory)}"

    def open_store(self) -> AgentCoreSessionStore:
        events, owner = DirectEvents(self.memory), f"owner-{next(self.numbers)}"
        return AgentCoreSessionStore(events, owner=owner, wall=self.wall, entropy=os.urandom, settings=NOTHING_LATE)


class Memory(InMemoryStorage):
    """Memory whose bytes can be looked at."""

    @property
    def shelf(self) -> ObjectShelf:
        self.open_objects("test")
        assert self._shelf is not None
        return self._shelf


class _Shelved(Protocol):
    shelf: ObjectShelf


def bytes_in(place: SessionLocation, folder: Path) -> Iterator[tuple[str, bytes]]:
    """Everything that is stored, by name: files of every kind, or objects."""
    if isinstance(place, PostgresSessions):
        yield from files_of(place.schema)
        return
    shelf = place.storage if isinstance(place, JournalSessions) else place
    if isinstance(shelf, Memory | TreeSessions):
        yield from ((key, kept.body) for key, kept in shelf.shelf.objects.items())
        return
    yield from ((str(path.relative_to(folder)), path.read_bytes()) for path in folder.rglob("*") if path.is_file())


def names_holding(place: SessionLocation, folder: Path, text: str) -> list[str]:
    """The names of files and objects that hold a text, compressed or not."""
    found: list[str] = []
    for name, body in bytes_in(place, folder):
        plain = body
        if body.startswith(MAGIC):
            packed = unpack(body)
            plain = json.dumps(packed.header).encode() + b"".join(row.body for row in packed.rows)
        if text.encode() in plain:
            found.append(name)
    return found


async def fill(place: SessionLocation, session_id: str, rows: Sequence[Row]) -> None:
    """Store the rows of a session."""
    store = place.open_store()
    try:
        await fill_store(store, session_id, rows)
    finally:
        await store.aclose()


async def fill_store(store: SessionStore, session_id: str, rows: Sequence[Row]) -> None:
    """The same on a store that is open."""
    lease, _ = await store.acquire(session_id)
    outcomes = await store.append([Batch(lease=lease, rows=rows)])
    assert isinstance(outcomes[0], Position), outcomes
    await give_up(store, lease)


async def rows_in(place: SessionLocation, session_id: str, agent_id: str = "agent") -> list[Row]:
    """Every row of an agent."""
    store = place.open_store()
    try:
        return list(await store.load(session_id, agent_id, whole=True))
    finally:
        await store.aclose()


async def shown_in(place: SessionLocation, session_id: str, agent_id: str = "agent") -> tuple[list[Message], object]:
    """What the model would be shown, and the state."""
    fold = restore(await rows_in(place, session_id, agent_id)).fold
    return fold.shown.messages(), dict(fold.state)


def talk(*texts: str, state: Mapping[str, object] | None = None, label: str | None = None) -> Driver:
    """A conversation of these texts in turn, then a state, then a snapshot."""
    driver = Driver()
    for number, text in enumerate(texts):
        role = "assistant" if number % 2 else "user"
        driver.say({"role": role, "content": [{"text": text}]}, new_turn=role == "user")  # type: ignore[typeddict-item]
    if state is not None:
        driver.append(StateChanged(at=driver.at(), set=state))  # type: ignore[arg-type]
    if label is not None:
        driver.append(SnapshotTaken(at=driver.at(), label=label))
    return driver


def random_journal(rng: random.Random, names: Sequence[str] = COMMANDS) -> Driver:
    """A conversation of random commands."""
    driver = Driver()
    driver.run([("prompt", 1), *((rng.choice(names), rng.randrange(1000)) for _ in range(rng.randint(5, 40)))])
    return driver


def at_time(place: SessionLocation, epoch_s: float) -> Sessions:
    """Operations at a time."""
    return Sessions(place, wall=lambda: epoch_s)


def names_in(folder: Path) -> list[str]:
    """What lies in a folder."""
    return sorted(path.name for path in folder.iterdir())
