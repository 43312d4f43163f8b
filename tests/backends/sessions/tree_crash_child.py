"""A process that adds to sessions in documents until it is killed, reporting each acknowledged row.

Arguments: folder, owner, number of sessions, seed. A line is `<session> <seq>`, written only after the append that
stored it has returned.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

import anyio

from repertory.backends.ports import Position, SessionStore
from tests.backends.sessions.crash_child import Writer, report
from tests.backends.sessions.log_places import folder_store


def open_tree(folder: str, owner: str) -> SessionStore:
    """A store over the folder, owning under that name."""
    return folder_store(Path(folder), owner)


async def run(folder: str, owner: str, sessions: int, seed: int) -> None:
    rng = random.Random(seed)
    store = open_tree(folder, owner)
    writers = [await Writer.open(store, f"session-{n}") for n in range(sessions)]
    report("ready", 0)
    for _ in range(10_000):
        chosen = rng.sample(writers, rng.randint(1, len(writers)))
        batches = [writer.next(rng) for writer in chosen]
        if rng.random() < 0.5:  # Two messages in one commit: several documents, there together or not at all.
            batches = [
                type(batch)(lease=batch.lease, rows=[*batch.rows, *writer.next(rng).rows])
                for batch, writer in zip(batches, chosen, strict=True)
            ]
        outcomes = await store.append(batches)
        for writer, outcome in zip(chosen, outcomes, strict=True):
            assert isinstance(outcome, Position), outcome
            report(writer.session_id, outcome.seq)


if __name__ == "__main__":
    place, name, count, number = sys.argv[1:]
    anyio.run(run, place, name, int(count), int(number))
