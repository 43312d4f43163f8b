"""Releases of which the store could not be told: they are made up for, whatever the store knows by then."""

from __future__ import annotations

import math
import os
import random
from collections.abc import Callable, Sequence
from functools import partial

import anyio
import pytest

from repertory.actors.leases import SessionLeases
from repertory.backends.objects.in_memory import MemoryObjectStore, ObjectShelf
from repertory.backends.ports import Lease, ObjectStore, SessionStore, give_up
from repertory.backends.sessions.journal.store import ObjectSessionStore
from repertory.backends.sessions.liveness import TimeToLive
from repertory.core.journal.rows import Row
from repertory.errors import SessionBusy, Unavailable
from repertory.testing.faulty_objects import FaultyObjectStore, ObjectFaults
from repertory.testing.in_memory_sessions import MemorySessionStore, SessionShelf
from tests.backends.sessions.bucket_places import bucket_store

pytestmark = pytest.mark.anyio

Open = Callable[[ObjectStore, str], SessionStore]


def wall() -> float:
    return anyio.current_time()


def journals(objects: ObjectStore, owner: str) -> SessionStore:
    return ObjectSessionStore(objects, owner=owner, life=TimeToLive(wall, 1000.0))


def documents(objects: ObjectStore, owner: str) -> SessionStore:
    life = TimeToLive(wall, 1000.0)
    return bucket_store(objects, owner=owner, life=life, wall=wall, entropy=os.urandom)


async def acquire(leases: SessionLeases, session_id: str, *, takeover: bool = False) -> Lease:
    lease, _ = await leases.acquire_and_load(session_id, "agent", takeover=takeover, by=math.inf)
    return lease


class World:
    """A store whose objects may fail, and another process's store on the same objects."""

    def __init__(self, store: Open) -> None:
        shelf = ObjectShelf(wall)
        self.objects = FaultyObjectStore(MemoryObjectStore(shelf), random.Random(1), ObjectFaults())
        self.leases = SessionLeases(store(self.objects, "one"), busy_s=0.0)
        self.other = store(MemoryObjectStore(shelf), "two")

    async def fail_to_release(self, faults: ObjectFaults) -> None:
        """Acquire the session, and release it while the objects have these faults; they stay so."""
        lease = await acquire(self.leases, "s")
        self.objects.settings = faults
        with pytest.raises(Unavailable):
            await self.leases.release(lease)


@pytest.fixture(params=[journals, documents])
def world(request: pytest.FixtureRequest) -> World:
    return World(request.param)


@pytest.mark.parametrize("fault", ["nothing was done", "the answer got lost"])
async def test_a_session_that_could_not_be_released_is_released_later(world: World, fault: str) -> None:
    nothing_done = fault == "nothing was done"
    await world.fail_to_release(ObjectFaults(error_rate=1.0) if nothing_done else ObjectFaults(lost_rate=1.0))
    await world.leases.finish_all_releases()
    world.objects.settings = ObjectFaults()
    if nothing_done:
        with pytest.raises(SessionBusy):
            await world.other.acquire("s")
    await world.leases.finish_all_releases()
    assert (await world.other.acquire("s")).lease


async def test_a_session_that_somebody_took_over_meanwhile_is_left_alone(world: World) -> None:
    await world.fail_to_release(ObjectFaults(error_rate=1.0))
    world.objects.settings = ObjectFaults()
    theirs, _ = await world.other.acquire("s", takeover=True)
    await world.leases.finish_all_releases()
    await give_up(world.other, theirs)
    again = await acquire(world.leases, "s")
    assert again.generation > theirs.generation


async def test_a_session_that_is_in_use_again_is_not_released(world: World) -> None:
    await world.fail_to_release(ObjectFaults(error_rate=1.0))
    world.objects.settings = ObjectFaults()
    again = await acquire(world.leases, "s")
    await world.leases.finish_all_releases()
    with pytest.raises(SessionBusy):
        await world.other.acquire("s")
    await world.leases.release(again)
    assert (await world.other.acquire("s")).lease


async def test_leases_that_are_gathered_are_released_together_but_for_those_in_use_again(world: World) -> None:
    leases = {name: await acquire(world.leases, name) for name in ("a", "b", "shared")}
    await acquire(world.leases, "shared")
    assert not world.leases.release_with_others(leases["a"]), "nobody would release it"
    world.leases.gather()
    assert all(world.leases.release_with_others(lease) for lease in leases.values())
    again = await acquire(world.leases, "b")
    assert again.generation > leases["b"].generation
    with pytest.raises(SessionBusy):
        await world.other.acquire("a")
    await world.leases.release_gathered()
    assert (await world.other.acquire("a")).lease
    for name in ("b", "shared"):
        with pytest.raises(SessionBusy):
            await world.other.acquire(name)
    await world.leases.release(again)
    assert (await world.other.acquire("b")).lease
    assert not world.leases.release_with_others(leases["shared"])


@pytest.mark.parametrize("fault", ["nothing was done", "the answer got lost"])
async def test_gathered_leases_that_could_not_be_released_are_released_later(world: World, fault: str) -> None:
    leases = [await acquire(world.leases, name) for name in "abc"]
    world.leases.gather()
    assert all(world.leases.release_with_others(lease) for lease in leases)
    nothing_done = fault == "nothing was done"
    world.objects.settings = ObjectFaults(error_rate=1.0) if nothing_done else ObjectFaults(lost_rate=1.0)
    await world.leases.release_gathered()
    world.objects.settings = ObjectFaults()
    await world.leases.finish_all_releases()
    for name in "abc":
        assert (await world.other.acquire(name)).lease


async def test_an_agent_leaves_its_session_while_others_are_being_opened() -> None:
    """A session of many agents may open them for a long time, one after the other."""
    shelf, opening, opened = SessionShelf(), anyio.Event(), anyio.Event()
    store = MemorySessionStore(shelf)
    leases, load = SessionLeases(store, busy_s=0.0), store.load

    async def slow(session_id: str, agent_id: str, *, whole: bool = False) -> Sequence[Row]:
        if agent_id == "slow":
            opening.set()
            await opened.wait()
        return await load(session_id, agent_id, whole=whole)

    vars(store)["load"] = slow
    lease = await acquire(leases, "s")
    await acquire(leases, "s")
    async with anyio.create_task_group() as group:
        joins = partial(leases.acquire_and_load, takeover=False, by=math.inf, joins=True)
        group.start_soon(joins, "s", "slow")
        await opening.wait()
        with anyio.fail_after(1):
            await leases.release(lease)
        opened.set()
    await leases.release(lease)
    await leases.release(lease)
    assert shelf.sessions["s"].owner is None
