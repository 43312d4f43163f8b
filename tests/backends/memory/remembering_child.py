"""A process whose sessions are remembered, that appends, redacts and deletes until it is killed.

Arguments: a file and a seed; or a connection string, a seed and a schema. A line is written after each append that has
returned.
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Sequence

import anyio

from repertory import PostgresSessions, SQLiteSessions
from repertory.backends.ports import Batch, Lease, SessionStore, give_up
from repertory.core.journal.codec import decode
from repertory.core.journal.records import MessageAdded, Redacted
from repertory.core.journal.restore import Appender, restore
from repertory.core.journal.rows import RecordKind, Row
from repertory.core.messages import Message
from repertory.testing.session_contract import grow

SESSIONS = ("one", "other")


async def run(where: str, seed: int, schema: str = "") -> None:
    rng = random.Random(seed)
    place = PostgresSessions(where, schema=schema, remember=True) if schema else SQLiteSessions(where, remember=True)
    store = place.open_store()
    for _ in range(10_000):
        session_id = rng.choice(SESSIONS)
        try:
            await _change(store, session_id, rng)
        finally:
            os.write(1, b".\n")


async def _change(store: SessionStore, session_id: str, rng: random.Random) -> None:
    lease, _ = await store.acquire(session_id)
    rows: list[Row] = list(await store.load(session_id, "default", whole=True))
    if len(rows) > 40:
        await give_up(store, lease)
        await store.delete(session_id)
        return
    said = [row for row in rows if row.kind == RecordKind.MESSAGE and not row.erased]
    if said and rng.random() < 0.3:
        await store.append([redaction(lease, rows, rng.choice(said))])
    else:
        await store.append([Batch(lease=lease, rows=grow(rng.randint(1, 4), after=rows, at=float(lease.generation)))])
    await give_up(store, lease)


def redaction(lease: Lease, rows: Sequence[Row], target: Row) -> Batch:
    """What takes back a message. `rows`: all rows of the agent."""
    said = decode(target.kind, target.version, target.body)
    assert isinstance(said, MessageAdded)
    appender = Appender(target.agent_id, restore(rows).fold, rows[-1].link, os.urandom)
    instead: Message = {"role": said.message["role"], "content": [{"text": "[taken back]"}]}
    record = Redacted(at=said.at + 1, target=target.seq, message=instead, turn=said.turn, index=said.index)
    return Batch(lease=lease, rows=[appender.append(record)], erase=[(target.agent_id, target.seq)])


if __name__ == "__main__":
    anyio.run(run, sys.argv[1], int(sys.argv[2]), *sys.argv[3:])
