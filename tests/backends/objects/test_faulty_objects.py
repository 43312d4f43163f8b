"""The object store that fails on purpose does exactly what it says, and what works on it works on all stores."""

from __future__ import annotations

import random

import anyio
import pytest

from repertory.backends.objects.in_memory import MemoryObjectStore, ObjectShelf
from repertory.backends.ports import Create, ObjectStore, Overwrite, Update
from repertory.errors import AlreadyExists, PreconditionFailed, Retryable, Throttled, Unavailable
from repertory.testing.faulty_objects import FaultyObjectStore, ObjectFaults

pytestmark = pytest.mark.anyio

ROUGH = ObjectFaults(error_rate=0.2, throttle_rate=0.1, lost_rate=0.2, slow_rate=0.2, slow_s=60.0, torn_rate=0.3)


def faulty(seed: int, settings: ObjectFaults, store: ObjectStore | None = None) -> FaultyObjectStore:
    return FaultyObjectStore(store or MemoryObjectStore(), random.Random(seed), settings)


async def run(seed: int) -> list[str]:
    """The faults of three hundred calls."""
    store = faulty(seed, ROUGH)
    for n in range(100):
        for call in (store.put(f"key-{n}", b"", Overwrite()), store.list(""), store.delete(f"key-{n // 2}")):
            try:
                await call
            except Retryable:
                continue
    return store.faults


async def test_the_same_seed_gives_the_same_faults(seed: int) -> None:
    faults = await run(seed)
    assert faults == await run(seed)
    assert {fault.split(": ")[1] for fault in faults} == {"refused", "throttled", "lost", "slow", "torn"}


@pytest.mark.parametrize(
    ("settings", "error", "done"),
    [
        (ObjectFaults(error_rate=1.0), Unavailable, False),
        (ObjectFaults(throttle_rate=1.0), Throttled, False),
        (ObjectFaults(lost_rate=1.0), Unavailable, True),
    ],
)
async def test_a_refused_call_does_nothing_and_a_lost_answer_is_work_done(
    seed: int, settings: ObjectFaults, error: type[Retryable], done: bool
) -> None:
    below = MemoryObjectStore()
    with pytest.raises(error, match="injected fault"):
        await faulty(seed, settings, below).put("key", b"", Create())
    assert len(await below.list("")) == done


async def test_a_slow_call_takes_its_time(seed: int) -> None:
    store = faulty(seed, ObjectFaults(slow_rate=1.0, slow_s=30.0))
    started = anyio.current_time()
    await store.list("")
    assert 0 < anyio.current_time() - started <= 30
    assert store.faults == ["list: slow"]


async def test_a_torn_listing_lacks_some_objects_and_invents_none(seed: int) -> None:
    below = MemoryObjectStore()
    for n in range(40):
        await below.put(f"key-{n}", b"", Create())
    whole = await below.list("")
    torn = await faulty(seed, ObjectFaults(torn_rate=1.0), below).list("")
    assert 0 < len(torn) < 40
    assert [info for info in whole if info in torn] == torn


async def test_counting_by_updates_survives_every_fault(seed: int) -> None:
    """Whoever asks what became of a lost put counts right, with several writers on a shelf."""
    shelf = ObjectShelf()
    await MemoryObjectStore(shelf).put("counter", b"0 nobody", Create())

    async def count(name: str) -> None:
        store = faulty(seed, ROUGH, MemoryObjectStore(shelf))
        done = 0
        while done < 10:
            mine = f"{name}-{done}"
            try:
                found = await store.get("counter")
                number, *marks = found.body.decode().split()
                if mine in marks:
                    done += 1
                else:
                    body = " ".join([str(int(number) + 1), *marks, mine]).encode()
                    await store.put("counter", body, Update(found.version))
            except (Retryable, PreconditionFailed):
                continue

    async with anyio.create_task_group() as tasks:
        for number in range(4):
            tasks.start_soon(count, f"writer{number}")
    number, *marks = (await MemoryObjectStore(shelf).get("counter")).body.decode().split()
    assert int(number) == 40
    assert len(marks) == len(set(marks)) == 41


async def test_a_shelf_is_shared_and_its_clock_is_the_callers() -> None:
    shelf = ObjectShelf(clock=lambda: 1234.5)
    one, two = MemoryObjectStore(shelf), MemoryObjectStore(shelf)
    await one.put("key", b"body", Create())
    assert [(info.size_bytes, info.modified_at) for info in await two.list("")] == [(4, 1234.5)]
    with pytest.raises(AlreadyExists):
        await two.put("key", b"", Create())
