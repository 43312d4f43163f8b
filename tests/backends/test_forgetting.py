"""Journals of single agents are removed from sessions, in every kind of place."""

from __future__ import annotations

import random
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import anyio
import pytest

from repertory.backends.objects.in_memory import MemoryObjectStore, ObjectShelf
from repertory.backends.ports import Batch, Lease, Position, SessionStore
from repertory.backends.sessions.journal.format import commit_of_key
from repertory.core.journal.rows import Row
from repertory.testing.crash_points import CrashingObjectStore, CrashPoints
from repertory.testing.session_handover_contract import grow
from tests.backends.sessions.log_places import crash_in_system_calls, log_store
from tests.backends.sessions.object_places import on_objects, on_shelf, virtual_shelf
from tests.operations.operated_places import place_of

pytestmark = pytest.mark.anyio

AGENTS = ("root", "a", "b", "c")


class Model:
    """What a session has, and how it is changed."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.rows: dict[str, list[Row]] = {}
        self._at: dict[str, float] = {}
        """The time at which an agent began."""

    def batch(self, lease: Lease) -> Batch:
        """A change, which the rows here have had."""
        present = sorted(self.rows)
        way = self.rng.choices(("grow", "forget", "erase"), (8, 2, 1))[0] if present else "grow"
        if way == "forget":
            gone = self.rng.sample([*AGENTS[1:], "nobody"], self.rng.randint(1, 2))
            for agent_id in gone:
                self.rows.pop(agent_id, None)
            return Batch(lease=lease, rows=(), forget=gone)
        if way == "erase":
            agent_id = self.rng.choice(present)
            seq = self.rng.randint(1, len(self.rows[agent_id]))
            self.rows[agent_id][seq - 1] = self.rows[agent_id][seq - 1].without_content()
            return Batch(lease=lease, rows=(), erase=[(agent_id, seq)])
        added: list[Row] = []
        for agent_id in self.rng.sample(AGENTS, self.rng.randint(1, 2)):
            before = self.rows.get(agent_id, [])
            if not before:
                self._at[agent_id] = self.rng.random() * 100
            # All anew, since erased rows cannot be restored.
            made = grow(len(before) + self.rng.randint(1, 3), agent_id, at=self._at[agent_id])[len(before) :]
            self.rows.setdefault(agent_id, []).extend(made)
            added += made
        return Batch(lease=lease, rows=added)

    async def check(self, store: SessionStore) -> None:
        """What the store says of the session is what is here."""
        found = await store.sessions("session")
        agents = {agent_id: len(rows) for agent_id, rows in self.rows.items()}
        assert [dict(info.agents) for info in found] == ([agents] if agents else [])
        for agent_id in AGENTS:
            rows: Sequence[Row] = self.rows.get(agent_id, [])
            assert list(await store.load("session", agent_id, whole=True)) == list(rows), agent_id
            assert list(await store.load("session", agent_id)) == list(rows[rows[-1].low - 1 :] if rows else [])
        repair = store.capabilities.repair
        if repair is not None:
            salvaged = await repair.salvage("session")
            there = {(row.agent_id, row.seq): row for row in salvaged.rows}
            assert there == {(row.agent_id, row.seq): row for rows in self.rows.values() for row in rows}
            assert not salvaged.damages
            assert not await repair.examine("session")


@pytest.mark.real_time
@pytest.mark.parametrize("kind", ["sqlite", "postgres", "journal in files", "journal in memory"])
async def test_any_history_with_forgotten_agents_is_as_a_dictionary_has_it(
    kind: str, tmp_path: Path, rng: random.Random
) -> None:
    place = place_of(kind, tmp_path)
    model = Model(rng)
    store = place.open_store()
    lease, _ = await store.acquire("session")
    try:
        for number in range(60):
            (outcome,) = await store.append([model.batch(lease)])
            assert isinstance(outcome, Position), (number, outcome)
            if rng.random() < 0.1:  # The next owner goes on, by force or in order.
                old, store = store, place.open_store()
                if rng.random() < 0.5:
                    await old.aclose()
                    lease, _ = await store.acquire("session")
                else:
                    lease, _ = await store.acquire("session", takeover=True)
                    await old.aclose()
            if rng.random() < 0.2:
                await model.check(store)
        await model.check(store)
        inspection = None if (repair := store.capabilities.repair) is None else repair.inspect
        if inspection is not None:
            found = await inspection()
            assert (list(found.damages), dict(found.sick)) == ([], {})
    finally:
        await store.aclose()


async def test_in_a_bucket_objects_of_forgotten_agents_are_merged_and_go(rng: random.Random) -> None:
    shelf, model = virtual_shelf(), Model(rng)
    objects = MemoryObjectStore(shelf)
    store = on_objects(objects, "one")
    async with anyio.create_task_group() as group:
        group.start_soon(store.maintain)
        lease, _ = await store.acquire("session")
        for number in range(400):
            (outcome,) = await store.append([model.batch(lease)])
            assert isinstance(outcome, Position), number
            if not number % 50:
                await anyio.sleep(1)
                await model.check(store)
        await anyio.sleep(30)
        await model.check(store)
        found = await objects.list("journals/session/")
        numbers = [info.key for info in found if commit_of_key(info.key) is not None]
        group.cancel_scope.cancel()
    # None of them stays for its own sake, as a fence would.
    assert len(numbers) < 200
    await store.aclose()


class Moments(CrashPoints):
    """What a kill at each point would leave."""

    def __init__(self, copy: Callable[[int], None]) -> None:
        super().__init__(None)
        self._copy = copy

    def reach(self, label: str) -> None:
        """Keep what is stored by now."""
        super().reach(label)
        self._copy(self.reached_count)


KEPT, GONE = grow(6), grow(5, "gone")


async def forgets_in(store: SessionStore) -> None:
    """An agent is forgotten in a session with two."""
    lease, _ = await store.acquire("session")
    await store.append([Batch(lease=lease, rows=[*KEPT[:3], *GONE[:3]])])
    await store.append([Batch(lease=lease, rows=[*GONE[3:], *KEPT[3:]])])
    await store.append([Batch(lease=lease, rows=(), forget=("gone",))])


async def goes_on(store: SessionStore) -> bool:
    """The next owner finds the agent whole or not at all, and forgets it. Returns True if it was there."""
    (info,) = await store.sessions("session")
    before = dict(info.agents)
    if before.get("default") != 6 or before.get("gone", 5) != 5:  # Killed before.
        return True
    lease, _ = await store.acquire("session", takeover=True)
    left = list(await store.load("session", "gone", whole=True))
    assert left == (GONE if "gone" in before else [])
    await store.append([Batch(lease=lease, rows=(), forget=("gone",))])
    anew = grow(2, "gone", at=50.0)
    await store.append([Batch(lease=lease, rows=anew)])
    assert list(await store.load("session", "gone", whole=True)) == anew
    assert list(await store.load("session", "default", whole=True)) == KEPT
    return "gone" in before


async def test_killed_at_any_request_a_bucket_has_the_agent_whole_or_not_at_all() -> None:
    shelf, left = virtual_shelf(), list[ObjectShelf]()

    def keep(_: int) -> None:
        left.append(virtual_shelf())
        left[-1].objects.update(shelf.objects)

    await forgets_in(on_objects(CrashingObjectStore(MemoryObjectStore(shelf), Moments(keep)), "one"))
    found = [await goes_on(on_shelf(each, "two")) for each in left[4:]]
    assert True in found
    assert False in found
    assert found == sorted(found, reverse=True)


@pytest.mark.real_time
@pytest.mark.parametrize("anyio_backend", ["trio"])  # On asyncio, tests refuse calls of other programs in the loop.
async def test_killed_at_any_system_call_a_log_has_the_agent_whole_or_not_at_all(tmp_path: Path) -> None:
    folder, copies, numbers = tmp_path / "sessions", tmp_path / "copies", list[int]()

    def keep(number: int) -> None:
        # By another process: the calls of this one are watched.
        subprocess.run(["cp", "-a", str(folder), str(copies / str(number))], check=True)
        numbers.append(number)

    copies.mkdir()
    store = log_store(folder, "one")
    await store.acquire("another")
    restore = crash_in_system_calls(Moments(keep))
    try:
        await forgets_in(store)
    finally:
        restore()
    found = list[bool]()
    for number in numbers:
        left = log_store(copies / str(number), "two")
        if await left.sessions("session"):
            found.append(await goes_on(left))
        await left.aclose()
    await store.aclose()
    assert found == sorted(found, reverse=True)
    assert len(set(found)) == 2
