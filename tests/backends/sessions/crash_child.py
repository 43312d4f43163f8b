"""A process that appends until it is killed, reporting each acknowledged row on its standard output.

Arguments: database, owner, number of sessions, seed, and optionally the crash point at which it kills itself.
A line is `<session> <seq>`, written only after the append that stored it has returned.
"""

from __future__ import annotations

import os
import random
import sys

import anyio

from repertory.backends.ports import Batch, SessionStore
from repertory.backends.sessions.sqlite.store import SQLiteSessionStore
from repertory.core.journal.records import MessageAdded, StateChanged
from repertory.core.journal.restore import Appender, restore
from repertory.testing.crash_points import CrashingSessionStore, CrashPoints


async def run(path: str, owner: str, sessions: int, seed: int, crash_at: int | None) -> None:
    rng = random.Random(seed)
    points = CrashPoints(crash_at)
    store = CrashingSessionStore(SQLiteSessionStore(path, owner=owner), points)
    writers = [await Writer.open(store, f"session-{n}") for n in range(sessions)]
    report("ready", 0)
    for _ in range(10_000):
        chosen = rng.sample(writers, rng.randint(1, len(writers)))
        outcomes = await store.append([writer.next(rng) for writer in chosen])
        for writer, outcome in zip(chosen, outcomes, strict=True):
            report(writer.session_id, outcome.seq)  # type: ignore[union-attr]


class Writer:
    """One session that grows."""

    def __init__(self, session_id: str, lease: object, appender: Appender) -> None:
        self.session_id = session_id
        self.lease = lease
        self.appender = appender

    @classmethod
    async def open(cls, store: SessionStore, session_id: str) -> Writer:
        lease, _ = await store.acquire(session_id)
        restored = restore(await store.load(session_id, "default"), session_id=session_id)
        return cls(session_id, lease, Appender("default", restored.fold, restored.link, os.urandom))

    def next(self, rng: random.Random) -> Batch:
        fold = self.appender.fold
        role = "assistant" if fold.message_count % 2 else "user"
        text = f"{self.session_id} {fold.message_count} " + "x" * rng.choice([1, 100, 2000, 9000])
        rows = [
            self.appender.append(
                MessageAdded(
                    at=1.0 + fold.message_count,
                    message={"role": role, "content": [{"text": text}]},  # type: ignore[typeddict-item]
                    turn=fold.turns + (role == "user"),
                    index=fold.message_count,
                )
            ),
            self.appender.append(StateChanged(at=1.0, set={"count": fold.message_count})),
            *self.appender.restate(1.0),
        ]
        return Batch(lease=self.lease, rows=rows)  # type: ignore[arg-type]


def report(session_id: str, seq: int) -> None:
    os.write(1, f"{session_id} {seq}\n".encode())


if __name__ == "__main__":
    database, name, count, number, *rest = sys.argv[1:]
    anyio.run(run, database, name, int(count), int(number), int(rest[0]) if rest else None)
