"""A process that drains a runtime with idle sessions, and dies as by `kill -9` while their leases are released.

Arguments: the database, the number of sessions, and how many of them are released before.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence

import anyio

from repertory import AgentSpec, Runtime, ScriptedModel
from repertory.backends.ports import Lease
from repertory.backends.sessions.sqlite.store import SQLiteSessionStore
from repertory.runtime.actor import LINGER_S


class Dying(SQLiteSessionStore):
    """Releases some sessions, and kills its process."""

    released = 0

    async def release(self, leases: Sequence[Lease]) -> Sequence[None]:
        await super().release(leases[: self.released])
        os.write(1, f"{len(leases)} released together\n".encode())
        os.kill(os.getpid(), signal.SIGKILL)
        return [None] * len(leases)


class Place:
    """A place with that store."""

    key = "dying"

    def __init__(self, store: Dying) -> None:
        self._store = store

    def open_store(self) -> Dying:
        return self._store


async def main(database: str, count: int, released: int) -> None:
    store = Dying(database, owner="dying")
    store.released = released
    async with Runtime(sessions=Place(store)) as runtime:
        agent = runtime.agent(AgentSpec(model=ScriptedModel(["yes"], loop=True)))
        for number in range(count):
            await agent.session(f"s{number}").invoke("are you there?")
        await anyio.sleep(LINGER_S + 0.2)
        await runtime.drain()
    raise AssertionError("it did not die")


if __name__ == "__main__":
    anyio.run(main, sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
