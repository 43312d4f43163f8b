"""A process that remembers until it is killed, reporting each batch on its standard output after it was stored.

Arguments: a file and a session; or a connection string, a session and a schema. A line is the number of batches that
are stored.
"""

from __future__ import annotations

import sys

import anyio

from repertory import PostgresMemoryStore, SQLiteMemoryStore
from repertory.core.messages import Message

BATCH = 5


def batch(number: int) -> tuple[list[Message], range]:
    """The messages of a batch, from 1, and their sequence numbers."""
    numbers = range((number - 1) * BATCH + 1, number * BATCH + 1)
    return [{"role": "user", "content": [{"text": f"heron number {seq}"}]} for seq in numbers], numbers


async def run(where: str, session_id: str, schema: str = "") -> None:
    store = PostgresMemoryStore(where, schema=schema) if schema else SQLiteMemoryStore(where, busy_timeout_s=20.0)
    for number in range(1, 1000):
        messages, numbers = batch(number)
        await store.add_messages(messages, {"session_id": session_id, "sequence_numbers": numbers})  # type: ignore[arg-type]
        await store.search("heron")
        print(number, flush=True)


if __name__ == "__main__":
    anyio.run(run, *sys.argv[1:])
