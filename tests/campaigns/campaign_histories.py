"""Random histories of several owners: whatever they do to a session, it is what a dictionary says.

Three stores stand for three processes on one object store. Each step one of them opens, says, erases, tidies up, gives
up, pauses, goes on, dies or deletes. With faults, requests fail and answers get lost: what nobody knows is looked up,
and must be all of it or nothing.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import anyio
import pytest

from repertory.backends.objects.in_memory import MemoryObjectStore
from repertory.backends.ports import Batch, Lease, Position, give_up
from repertory.backends.sessions import table
from repertory.backends.sessions.journal import maintenance, ownership
from repertory.backends.sessions.journal.store import ObjectSessionStore
from repertory.core.journal.restore import restore
from repertory.core.journal.rows import Row, verify
from repertory.errors import LeaseLost, NotFound, RepertoryError, SessionBusy
from repertory.runtime.testing.virtual_time import virtual_asyncio
from repertory.testing.faulty_objects import FaultyObjectStore, ObjectFaults
from repertory.testing.session_contract import grow
from repertory.testing.session_pages_contract import taken_back
from tests.backends.sessions.object_places import on_objects, virtual_shelf
from tests.campaigns.campaigns import Report
from tests.simulation.paused_trees import PausedTrees

STEPS = 250
AGENTS = ("first", "second")
OWNERS = 3
FAULTS = ObjectFaults(error_rate=0.05, throttle_rate=0.03, lost_rate=0.05, slow_rate=0.1, slow_s=0.5)


def small_numbers(patch: pytest.MonkeyPatch) -> None:
    """Heads, windows and chunks are made after a few commits, so that all of them are met."""
    patch.setattr(maintenance, "SEGMENTS_MERGED", 4)
    patch.setattr(maintenance, "_UNMERGED_BYTES", 2000)
    patch.setattr(ownership, "SEGMENTS_MIN", 2)
    patch.setattr(ownership, "SEGMENTS_MAX", 6)
    patch.setattr(ownership, "INLINE_BYTES_MAX", 1500)
    patch.setattr(table, "ON_LOOP_BYTES_MAX", 1 << 40)  # A clock that jumps passes threads.


def histories(rng: random.Random, folder: Path, seconds: float) -> Report:
    """One history of journals and one of documents, over requests that fail. What was acknowledged is what the
    dictionary holds after each ten steps, and what every owner of the documents finds.
    """
    del folder, seconds
    history, report = History(rng, FAULTS), Report()
    backend, options = virtual_asyncio()
    with pytest.MonkeyPatch.context() as patch:
        small_numbers(patch)
        patch.setattr(maintenance, "_AT_ONCE", 2)  # Merges give way when they have read a part.
        try:
            anyio.run(history.run, backend=backend, backend_options=options)
        except (AssertionError, RepertoryError) as error:
            report.check(False, f"after {history.done[-1]}: {error!r}"[:1000])
    report.counts["steps"] += len(history.done)
    report.counts["resumed"] += history.resumed
    report.acknowledged, report.found = history.said, 0 if report.faults else history.said
    report.add(_documents(rng))
    return report


def _documents(rng: random.Random) -> Report:
    report = Report()
    trees = PausedTrees(rng)
    backend, options = virtual_asyncio()
    try:
        anyio.run(trees.run, backend=backend, backend_options=options)
    except (AssertionError, RepertoryError) as error:
        report.check(False, f"documents: {error!r}"[:1000])
    report.counts["resumed documents"] += trees.resumed
    report.acknowledged = len(trees.world.kept)
    report.found = 0 if report.faults else report.acknowledged
    return report


class History:
    """One random history, and what the session must be."""

    def __init__(self, rng: random.Random, faults: ObjectFaults, *, pauses: bool = True) -> None:
        """Without `pauses`, the same seed gives the same history as before there were any."""
        self.rng = rng
        self.faults = faults
        self.pauses = pauses
        self.shelf = virtual_shelf()
        self.reader = on_objects(MemoryObjectStore(self.shelf), "reader")
        self.born = 0
        self.stores: list[ObjectSessionStore] = []
        self.leases: dict[int, Lease] = {}
        self.paused: dict[int, tuple[Lease, int]] = {}
        """Released leases that may be taken back, and the number of each in `owners`."""
        self.owners = 0
        """How many owners the session is known to have had. Whoever deletes it counts as one."""
        self.numbers: dict[int, int] = {}
        """Which of them each store was last."""
        self.resumed = 0
        self.model: dict[str, list[Row]] = {agent: [] for agent in AGENTS}
        self.exists = False
        self.said = 0
        """How many rows were acknowledged."""
        self.done: list[str] = []

    async def run(self) -> None:
        for number in range(OWNERS):
            self.stores.append(self._store(number))
        steps = [self.acquire] * 3 + [self.say] * 10 + [self.tend] * 3 + [self.release, self.die, self.erase, self.wait]
        if self.pauses:
            steps += [self.call] * 8 + [self.pause, self.resume]
        for number in range(STEPS):
            who = self.rng.randrange(OWNERS)
            step = self.rng.choice(steps) if self.rng.random() > 0.01 else self.delete
            self.done.append(f"{number} {step.__name__} {who}")
            await step(who)
            if number % 10 == 9:
                await self.check()
        await self.check()
        for store in self.stores:
            await store.aclose()
        await self.check()

    def _store(self, number: int) -> ObjectSessionStore:
        self.born += 1
        faulty = FaultyObjectStore(MemoryObjectStore(self.shelf), self.rng, self.faults)
        return on_objects(faulty, f"owner-{number}-{self.born}")

    async def acquire(self, who: int) -> None:
        try:
            self.leases[who], _ = await self.stores[who].acquire("session", takeover=self.rng.random() < 0.5)
            self.owners += 1
            self.numbers[who] = self.owners
        except (SessionBusy, RepertoryError) as error:
            self._permitted(error, SessionBusy)

    async def say(self, who: int) -> None:
        lease = self.leases.get(who)
        if lease is None:
            return
        rows = [row for agent in AGENTS if self.rng.random() < 0.6 for row in self._next(agent)]
        await self._append(who, Batch(lease=lease, rows=rows))

    def _next(self, agent: str) -> list[Row]:
        rows = grow(self.rng.randint(1, 3), agent, after=self.model[agent])
        if self.rng.random() < 0.1:
            rows = [self._long(agent)]
        return rows

    def _long(self, agent: str) -> Row:
        """One long message, of the kind that is not merged."""
        from repertory.core.journal.records import StateChanged
        from repertory.core.journal.restore import Appender

        before = self.model[agent]
        appender = Appender(agent, restore(before).fold, before[-1].link if before else None, self.rng.randbytes)
        return appender.append(StateChanged(at=1.0, set={"long": self.rng.randbytes(3000).hex()}))

    async def erase(self, who: int) -> None:
        lease = self.leases.get(who)
        agent = self.rng.choice(AGENTS)
        states = [row.seq for row in self.model[agent] if row.kind == 5]
        if lease is not None and states:
            await self._append(who, Batch(lease=lease, rows=[], erase=[(agent, self.rng.choice(states))]))

    async def _append(self, who: int, batch: Batch) -> None:
        try:
            (outcome,) = await self.stores[who].append([batch])
        except RepertoryError as error:
            outcome = error
        if isinstance(outcome, Position):
            self.said += len(batch.rows)
            self._apply(batch)
        elif isinstance(outcome, LeaseLost):
            del self.leases[who]
        else:
            self._permitted(outcome)
            del self.leases[who]  # As the actors do: who does not know starts again from what is stored.
            await self._look_up(batch)

    def _apply(self, batch: Batch) -> None:
        for row in batch.rows:
            self.model[row.agent_id].append(row)
            self.exists = True
        for agent, seq in batch.erase:
            self.model[agent][seq - 1] = self.model[agent][seq - 1].without_content()

    async def _look_up(self, batch: Batch) -> None:
        """Nobody knows what became of it: it is there as a whole or not at all, and what was there before is there."""
        before = {agent: list(rows) for agent, rows in self.model.items()}
        found = await self._stored()
        if found != before:
            self._apply(batch)
        assert found == self.model

    async def tend(self, who: int) -> None:
        with anyio.move_on_after(self.rng.choice([0.5, 3.0, 12.0])):
            await self.stores[who].maintain()

    async def release(self, who: int) -> None:
        lease = self.leases.pop(who, None)
        if lease is not None:
            try:
                await give_up(self.stores[who], lease)
            except RepertoryError as error:
                self._permitted(error)

    async def call(self, who: int) -> None:
        """As an agent outside any block: what it says is between a resume and a pause."""
        await self.resume(who)
        if who not in self.leases:
            await self.acquire(who)
        await self.say(who)
        if self.rng.random() < 0.2:
            await self.erase(who)
        await self.pause(who)

    async def pause(self, who: int) -> None:
        """As between two calls: the session is released, and everything else is kept."""
        lease = self.leases.get(who)
        if lease is not None:
            self.paused[who] = lease, self.numbers[who]
            await self.release(who)

    async def resume(self, who: int) -> None:
        """The session is owned as before the pause if nobody has owned it since, and only then."""
        lease, number = self.paused.pop(who, (None, 0))
        if lease is None:
            return
        try:
            again = await taken_back(self.stores[who], lease)
        except RepertoryError as error:
            self._permitted(error)
            return
        assert not again or self.owners == number, "somebody has owned it since"
        assert again or self.owners != number or self.faults.error_rate, "nobody has owned it since"
        if again:
            self.resumed += 1
            self.leases[who] = lease

    async def die(self, who: int) -> None:
        """The process is gone, and tells nobody."""
        self.leases.pop(who, None)
        self.paused.pop(who, None)
        self.stores[who] = self._store(who)

    async def wait(self, who: int) -> None:
        del who
        await anyio.sleep(self.rng.choice([1, 5, 20]))

    async def delete(self, who: int) -> None:
        try:
            await self.stores[who].delete("session")
            self.owners += 1
        except (NotFound, SessionBusy) as error:
            if isinstance(error, NotFound) and not self.faults.error_rate:
                assert not self.exists or not any(self.model.values())
            if isinstance(error, SessionBusy):
                return
        except RepertoryError as error:
            self._permitted(error)
        self.leases.pop(who, None)
        found = await self._stored()
        if not any(found.values()):
            self.model = {agent: [] for agent in AGENTS}
        assert found == self.model

    async def check(self) -> None:
        found = await self._stored()
        assert found == self.model, self.done[-30:]
        for agent, rows in found.items():
            verify(rows)
            opened = await self.reader.load("session", agent)
            assert opened == (rows[rows[-1].low - 1 :] if rows else [])
            assert restore(opened).fold.image() == restore(rows).fold.image()
        listed = await self.reader.sessions()
        seqs = {agent: rows[-1].seq for agent, rows in found.items() if rows}
        assert [dict(info.agents) for info in listed] == ([seqs] if seqs else [])

    async def _stored(self) -> dict[str, Sequence[Row]]:
        return {agent: list(await self.reader.load("session", agent, whole=True)) for agent in AGENTS}

    def _permitted(self, error: RepertoryError, *kinds: type[RepertoryError]) -> None:
        if not isinstance(error, kinds) and not self.faults.error_rate:
            raise error
