"""Several owners at the same time, each forcing the session from the others, over requests that take their time.

Whatever the interleaving: what was acknowledged is in the journal, once, in one chain that nobody has forked.
"""

from __future__ import annotations

import math
import random

import anyio
import pytest

from repertory.backends.objects.in_memory import MemoryObjectStore
from repertory.backends.ports import Batch, Position, give_up
from repertory.backends.sessions import table
from repertory.backends.sessions.journal import maintenance as object_merging
from repertory.backends.sessions.journal import ownership as object_ownership
from repertory.backends.sessions.journal.store import ObjectSessionStore
from repertory.core.journal.records import StateChanged
from repertory.core.journal.restore import Appender, restore
from repertory.core.journal.rows import Row
from repertory.errors import LeaseLost, RepertoryError, Retryable, SessionBusy
from repertory.testing.faulty_objects import FaultyObjectStore, ObjectFaults
from tests.backends.sessions.object_places import on_objects, virtual_shelf

pytestmark = pytest.mark.anyio

SEEDS = 3
SLOW = ObjectFaults(slow_rate=1.0, slow_s=1.0)
SLOW_AND_LOST = ObjectFaults(slow_rate=1.0, slow_s=1.0, lost_rate=0.05, error_rate=0.03)


@pytest.fixture(autouse=True)
def small_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_merging, "SEGMENTS_MERGED", 4)
    monkeypatch.setattr(object_ownership, "SEGMENTS_MIN", 2)
    monkeypatch.setattr(object_ownership, "SEGMENTS_MAX", 4)
    monkeypatch.setattr(object_ownership, "INLINE_BYTES_MAX", 600)
    monkeypatch.setattr(object_ownership, "TAIL_BYTES", 300)
    monkeypatch.setattr(table, "ON_LOOP_BYTES_MAX", 1 << 40)  # A clock that jumps passes threads.


class Fight:
    """Owners and what they were told."""

    handed_over = math.inf
    """Sessions that a commit has taken again."""

    def __init__(self, rng: random.Random, faults: ObjectFaults) -> None:
        self.rng = rng
        self.faults = faults
        self.shelf = virtual_shelf()
        self.acknowledged: dict[int, Row] = {}
        self.lost = 0

    async def run(self) -> None:
        async with anyio.create_task_group() as tasks:
            for number in range(3):
                tasks.start_soon(self.own, number)
            tasks.start_soon(self.look_on)
            await anyio.sleep(100)
            while not (self.lost and self.handed_over) or len(self.acknowledged) <= 5:  # noqa: ASYNC110 - chance decides
                await anyio.sleep(10)
            tasks.cancel_scope.cancel()
        judge = on_objects(MemoryObjectStore(self.shelf), "judge")
        await judge.acquire("session", takeover=True)
        rows = await judge.load("session", "default", whole=True)
        restored = restore(rows)
        assert restore(await judge.load("session", "default")).fold.image() == restored.fold.image()
        assert {seq: rows[seq - 1] for seq in self.acknowledged} == self.acknowledged

    async def own(self, number: int) -> None:
        objects = FaultyObjectStore(MemoryObjectStore(self.shelf), self.rng, self.faults)
        store = on_objects(objects, f"owner-{number}")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(store.maintain)
            while True:
                try:
                    await self.say(store)
                except LeaseLost:
                    self.lost += 1
                except SessionBusy:
                    await anyio.sleep(self.rng.random())
                except RepertoryError as error:
                    if not self.faults.lost_rate:
                        raise
                    del error

    async def say(self, store: ObjectSessionStore) -> None:
        """Take the session, and say something until it is lost."""
        lease, _ = await store.acquire("session", takeover=self.rng.random() < 0.7)
        restored = restore(await store.load("session", "default"))
        appender = Appender("default", restored.fold, restored.link, self.rng.randbytes)
        for _ in range(self.rng.randrange(12)):
            row = appender.append(StateChanged(at=1.0, set={"n": self.rng.random()}))
            (outcome,) = await store.append([Batch(lease=lease, rows=[row, *appender.restate(1.0)])])
            if not isinstance(outcome, Position):
                raise outcome
            assert row.seq not in self.acknowledged
            self.acknowledged[row.seq] = row
        await give_up(store, lease)

    async def look_on(self) -> None:
        """Readers see one history at any time: everything that was acknowledged before they began."""
        reader = on_objects(MemoryObjectStore(self.shelf), "reader")
        while True:
            await anyio.sleep(self.rng.random())
            before = max(self.acknowledged, default=0)
            rows = await reader.load("session", "default", whole=True)
            assert len(rows) >= before
            opened = await reader.load("session", "default")
            assert restore(opened).fold.last_seq >= before
            await reader.sessions()


@pytest.mark.parametrize("faults", [SLOW, SLOW_AND_LOST], ids=["slow", "slow and lost"])
@pytest.mark.parametrize("number", range(SEEDS))
async def test_owners_that_force_each_other_never_fork_the_journal(
    number: int, faults: ObjectFaults, seed: int
) -> None:
    with anyio.fail_after(10_000):
        await Fight(random.Random(seed + number), faults).run()


class Handovers(Fight):
    """Owners that give the session up with a commit and take it again with the next, as calls outside a block do. What
    they do not know is tried again, and then looked for, as a persister does.
    """

    handed_over = 0

    async def say(self, store: ObjectSessionStore) -> None:
        lease, _ = await store.acquire("session", takeover=self.rng.random() < 0.1)
        restored = restore(await store.load("session", "default"))
        appender = Appender("default", restored.fold, restored.link, self.rng.randbytes)
        take = False
        while True:
            for step in range(steps := self.rng.randrange(1, 4)):
                text = "".join(self.rng.choices("etaoin", k=self.rng.randrange(200)))
                row = appender.append(StateChanged(at=1.0, set={"n": text}))
                rows = [row, *appender.restate(1.0)]
                release = step == steps - 1 and self.rng.random() < 0.9
                released = await self.commit(store, Batch(lease=lease, rows=rows, release=release, take=take))
                self.handed_over += take
                assert row.seq not in self.acknowledged
                self.acknowledged |= {row.seq: row for row in rows}
                take = released
                await anyio.sleep(self.rng.random())
            if not take:
                await give_up(store, lease)
                return
            if self.rng.random() < 0.3:
                await anyio.sleep(3 * self.rng.random())

    async def commit(self, store: ObjectSessionStore, batch: Batch) -> bool:
        """Whether the session was given up. Errors: `LeaseLost`: nothing is stored; others: nobody was told."""
        unsure = False
        for _ in range(20):
            try:
                (outcome,) = await store.append([batch])
            except Retryable:
                unsure = True
                await anyio.sleep(self.rng.random())
                continue
            if isinstance(outcome, Position):
                return outcome.released
            if unsure and isinstance(outcome, LeaseLost):
                last = (await store.load("session", "default"))[-1:]
                if list(last) == list(batch.rows[-1:]):
                    self.acknowledged |= {row.seq: row for row in batch.rows}
            raise outcome
        raise LeaseLost("the store does not answer")


@pytest.mark.parametrize("faults", [SLOW, SLOW_AND_LOST], ids=["slow", "slow and lost"])
@pytest.mark.parametrize("number", range(SEEDS))
async def test_owners_that_take_the_session_with_a_commit_never_fork_the_journal(
    number: int, faults: ObjectFaults, seed: int
) -> None:
    with anyio.fail_after(10_000):
        await Handovers(random.Random(seed + number), faults).run()
