"""Owners of the documented layout in a bucket that pause between their calls, as agents outside any block do.

Requests fail and answers get lost, other programs add messages, sessions are taken over, processes die: nothing
acknowledged is lost, and nobody goes on with a session that has changed.
"""

from __future__ import annotations

import random

import anyio

from repertory.backends.objects.in_memory import MemoryObjectStore
from repertory.backends.ports import Batch, Lease, Position, give_up
from repertory.backends.sessions.documents.bucket_store import BucketSessionStore
from repertory.backends.sessions.liveness import TimeToLive
from repertory.core.journal.restore import Appender, restore
from repertory.core.journal.rows import verify
from repertory.core.messages import text_of
from repertory.errors import RepertoryError, Retryable, SessionBusy
from repertory.testing.faulty_objects import FaultyObjectStore, ObjectFaults
from repertory.testing.session_pages_contract import taken_back
from tests.backends.sessions.bucket_places import bucket_store
from tests.simulation.tree_world import FAULTS, WHILE_OPENING, World

PROCESSES = 3
CALLS = 40


class PausedTrees:
    """One random history. `faults` says what goes wrong while somebody opens, and while somebody says something."""

    def __init__(self, rng: random.Random, *, faulty: bool = True) -> None:
        self.rng = rng
        self.faulty = faulty
        self.world = World(rng)
        self.born = 0
        self.stores: list[tuple[BucketSessionStore, FaultyObjectStore]] = []
        self.paused: dict[int, tuple[Lease, Appender, int]] = {}
        self.changes = 0
        """How often the session is known to have got an owner or a message."""
        self.resumed = 0

    async def run(self) -> None:
        self.stores = [self._store() for _ in range(PROCESSES)]
        for _ in range(CALLS):
            who = self.rng.randrange(PROCESSES)
            await self.call(who)
            if self.rng.random() < 0.1:
                await self.world.add_from_outside()
                self.changes += 1
            if self.rng.random() < 0.05:
                self.paused.pop(who, None)
                self.stores[who] = self._store()
            if self.rng.random() < 0.2:
                await anyio.sleep(self.rng.choice([1, 4, 15]))
        store, faulty = self._store()
        faulty.settings = ObjectFaults()
        await store.acquire("s", takeover=True)
        self._opened(await store.load("s", "default", whole=True))

    def _store(self) -> tuple[BucketSessionStore, FaultyObjectStore]:
        self.born += 1
        faulty = FaultyObjectStore(MemoryObjectStore(self.world.shelf), self.rng, ObjectFaults())
        store = bucket_store(
            faulty,
            owner=f"owner-{self.born}",
            life=TimeToLive(anyio.current_time, 10.0),
            wall=anyio.current_time,
            entropy=self.rng.randbytes,
        )
        return store, faulty

    async def call(self, who: int) -> None:
        store, faulty = self.stores[who]
        faulty.settings = WHILE_OPENING if self.faulty else ObjectFaults()
        owned = await self._resume(who) or await self._open(who)
        if owned is None:
            return
        lease, appender = owned
        faulty.settings = FAULTS if self.faulty else ObjectFaults()
        for _ in range(self.rng.randrange(1, 3)):
            said, made = self.world.rows(appender)
            try:
                (outcome,) = await store.append([Batch(lease=lease, rows=made)])
            except Retryable:
                return
            if not isinstance(outcome, Position):
                assert isinstance(outcome, RepertoryError)
                return
            self.world.kept += said
            self.changes += 1
        faulty.settings = WHILE_OPENING if self.faulty else ObjectFaults()
        try:
            await give_up(store, lease)
        except Retryable:
            return
        self.paused[who] = lease, appender, self.changes

    async def _resume(self, who: int) -> tuple[Lease, Appender] | None:
        if who not in self.paused:
            return None
        lease, appender, changes = self.paused.pop(who)
        try:
            again = await taken_back(self.stores[who][0], lease)
        except Retryable:
            return None
        assert not again or changes == self.changes, "somebody has changed it since"
        assert again or changes != self.changes or self.faulty, "nobody has changed it since"
        self.resumed += again
        return (lease, appender) if again else None

    async def _open(self, who: int) -> tuple[Lease, Appender] | None:
        store, _ = self.stores[who]
        for _ in range(20):
            try:
                lease, _ = await store.acquire("s", takeover=self.rng.random() < 0.5)
                self.changes += 1
                return lease, self._opened(await store.load("s", "default", whole=True))
            except SessionBusy:
                return None
            except Retryable:
                continue
        return None

    def _opened(self, rows: object) -> Appender:
        """Everything that was acknowledged or added is there, in order."""
        found = list(rows)  # type: ignore[call-overload]
        verify(found, session_id="s")
        restored = restore(found, session_id="s")
        self.world.check(text_of(message) for _, message in restored.fold.shown)
        return Appender("default", restored.fold, restored.link, self.rng.randbytes)
