"""A process that is listed, owns a session, has taken a call, and puts calls until it is killed.

Arguments: the path of a database, or `postgresql://...#schema`; owner. A line is `ready`, or the token of a call,
written only after the call that kept it has returned.
"""

from __future__ import annotations

import os
import sys

import anyio

from repertory.backends.peer_ports import Peer
from repertory.backends.ports import SessionStore
from repertory.backends.postgres.address import postgres_address
from repertory.backends.sessions.postgres.store import PostgresSessionStore, PostgresSettings
from repertory.backends.sessions.sqlite.store import SQLiteSessionStore
from repertory.testing.peer_contract import box_of, boxed, directory_of


def open_store(place: str, owner: str) -> SessionStore:
    if not place.startswith("postgresql:"):
        return SQLiteSessionStore(place, owner=owner)
    dsn, _, schema = place.partition("#")
    return PostgresSessionStore(postgres_address(dsn), owner=owner, settings=PostgresSettings(schema=schema))


async def run(place: str, owner: str) -> None:
    store = open_store(place, owner)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(store.maintain)
        await store.acquire("held")
        await directory_of(store).join(Peer(name=owner, address="host:1", room=1))
        await box_of(store).put(boxed("taken"))
        assert len(await box_of(store).take(1, {"default"})) == 1
        os.write(1, b"ready\n")
        for number in range(100_000):
            await box_of(store).put(boxed("session", f"token-{number}"))
            os.write(1, f"token-{number}\n".encode())


if __name__ == "__main__":
    anyio.run(run, *sys.argv[1:3])
