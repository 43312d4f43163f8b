"""A process that appends to shared sessions until it is killed, reporting what was acknowledged.

Arguments of `main`: a folder, `http://...#prefix` for a bucket, or `postgresql://...#schema` for a database; owner,
number of sessions, seed, and optionally the crash point at which it kills itself. A line is `<session> <seq> <link>`,
written only after the append that stored it has returned, or a word: `ready`, `lost` (another process has the session
now). In a bucket, heads, windows and chunks are made after few commits.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Sequence
from pathlib import Path

import anyio

from repertory.backends.aws_clients import AwsSettings
from repertory.backends.objects.s3 import S3ObjectStore
from repertory.backends.ports import Batch, Lease, Position, SessionStore
from repertory.backends.postgres.address import postgres_address
from repertory.backends.sessions.journal import maintenance as object_merging
from repertory.backends.sessions.journal import ownership as object_ownership
from repertory.backends.sessions.journal.store import ObjectSessionStore
from repertory.backends.sessions.liveness import TimeToLive
from repertory.backends.sessions.postgres.store import PostgresSessionStore, PostgresSettings
from repertory.core.journal.records import MessageAdded, StateChanged
from repertory.core.journal.restore import Appender, restore
from repertory.errors import RepertoryError
from repertory.testing.crash_points import CrashPoints
from tests.backends.sessions.log_places import crash_in_system_calls, log_store

LEASE_S = 2.0


def open_store(place: str, owner: str) -> SessionStore:
    if place.startswith("postgresql:"):
        dsn, _, schema = place.partition("#")
        settings = PostgresSettings(schema=schema, ttl_s=LEASE_S)
        return PostgresSessionStore(postgres_address(dsn), owner=owner, settings=settings)
    if place.startswith("http"):
        url, _, prefix = place.partition("#")
        objects = S3ObjectStore("bucket", prefix, writer=owner, aws=AwsSettings(endpoint_url=url))
        life = TimeToLive(time.time, LEASE_S)
        return ObjectSessionStore(objects, owner=owner, life=life)
    return log_store(Path(place), owner)


async def run(place: str, owner: str, sessions: int, seed: int, crash_at: int | None) -> None:
    rng = random.Random(seed)
    if crash_at is not None:
        crash_in_system_calls(CrashPoints(crash_at))
    store = open_store(place, owner)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(store.maintain)
        writers = [await Writer.open(store, f"session-{n}", seed) for n in range(sessions)]
        report("ready")
        for _ in range(10_000):
            chosen = rng.sample(writers, rng.randint(1, len(writers)))
            batches = [writer.next(rng) for writer in chosen]
            outcomes: Sequence[Position | RepertoryError]
            try:
                outcomes = await store.append(batches)
            except RepertoryError as error:  # Nobody knows: it starts again from what is stored.
                outcomes = [error] * len(chosen)
            for number, (writer, outcome) in enumerate(zip(chosen, outcomes, strict=True)):
                if isinstance(outcome, Position):
                    report(f"{writer.session_id} {outcome.seq} {batches[number].rows[-1].link.hex()}")
                else:
                    report("lost")
                    await anyio.sleep(rng.random() * 0.3)
                    writers[writers.index(chosen[number])] = await Writer.open(store, writer.session_id, seed)


class Writer:
    """One session that grows."""

    def __init__(self, session_id: str, lease: Lease, appender: Appender) -> None:
        self.session_id = session_id
        self.lease = lease
        self.appender = appender

    @classmethod
    async def open(cls, store: SessionStore, session_id: str, seed: int) -> Writer:
        """Fights for the session: forcing it half of the time."""
        while True:
            try:
                lease, _ = await store.acquire(session_id, takeover=seed % 2 == 1)
                break
            except RepertoryError:
                await anyio.sleep(0.05)
        restored = restore(await store.load(session_id, "default"), session_id=session_id)
        return cls(session_id, lease, Appender("default", restored.fold, restored.link, os.urandom))

    def next(self, rng: random.Random) -> Batch:
        fold = self.appender.fold
        role = "assistant" if fold.message_count % 2 else "user"
        text = f"{self.session_id} {fold.message_count} " + rng.randbytes(rng.choice([1, 50, 1000])).hex()
        message = {"role": role, "content": [{"text": text}]}
        said = MessageAdded(at=1.0, message=message, turn=fold.turns + (role == "user"), index=fold.message_count)  # type: ignore[arg-type]
        rows = [self.appender.append(said)]
        rows.append(self.appender.append(StateChanged(at=1.0, set={"count": fold.message_count})))
        rows += self.appender.restate(1.0)
        erase = [("default", rows[-1].seq)] if rows[-1].kind == 5 and rng.random() < 0.1 else []
        return Batch(lease=self.lease, rows=rows, erase=erase)


def report(line: str) -> None:
    os.write(1, f"{line}\n".encode())


def main(place: str, owner: str, sessions: str, seed: str, crash_at: str = "") -> None:
    object_merging.SEGMENTS_MERGED = 6
    object_ownership.SEGMENTS_MIN, object_ownership.SEGMENTS_MAX = 2, 4
    object_ownership.INLINE_BYTES_MAX = 1500
    anyio.run(run, place, owner, int(sessions), int(seed), int(crash_at) if crash_at else None)
