"""Any position of a long journal on objects is read from the few objects that hold it."""

from __future__ import annotations

import random

import anyio
import pytest

from repertory.backends.objects.in_memory import MemoryObjectStore
from repertory.backends.ports import Batch
from repertory.backends.sessions.journal.reading import Parts
from repertory.backends.sessions.journal.store import ObjectSessionStore
from repertory.core.journal.rows import Row
from repertory.errors import CorruptJournal
from repertory.testing.counting_objects import CountingObjectStore
from repertory.testing.session_contract import grow, windowed
from tests.backends.sessions.object_places import on_objects, virtual_shelf

pytestmark = pytest.mark.anyio
MESSAGES = 600


async def stored(rows: list[Row], others: list[Row], *, tended: bool) -> tuple[CountingObjectStore, ObjectSessionStore]:
    """A session of many commits, merged for the most part, and a store that does not own it."""
    shelf = virtual_shelf()
    writer = on_objects(MemoryObjectStore(shelf), "writer")
    async with anyio.create_task_group() as tasks:
        if tended:
            tasks.start_soon(writer.maintain)
        lease, _ = await writer.acquire("s")
        waiting = list(others)
        for start in range(0, len(rows), 2):
            part = [*rows[start : start + 2], *waiting[:1]]
            waiting = waiting[1:] if start % 20 == 0 else waiting
            part = part if start % 20 == 0 else part[:2]
            await writer.append([Batch(lease=lease, rows=part)])
            await anyio.sleep(0.2)
        await anyio.sleep(60)
        await writer.append([Batch(lease=lease, rows=[], erase=[("default", 7), ("default", len(rows) - 3)])])
        await anyio.sleep(60)
        tasks.cancel_scope.cancel()
    await writer.aclose()
    counting = CountingObjectStore(MemoryObjectStore(shelf))
    return counting, on_objects(counting, "reader")


@pytest.mark.parametrize("tended", [True, False], ids=["merged", "not merged"])
async def test_any_position_is_read_from_few_objects(rng: random.Random, *, tended: bool) -> None:
    rows, others = windowed(MESSAGES if tended else 200), grow(6, "other")
    counting, store = await stored(rows, others, tended=tended)
    assert any("/c/" in info.key for info in await counting.list("journals/s/")) == tended
    whole = list(await store.load("s", "default", whole=True))
    assert [row.seq for row in whole] == [row.seq for row in rows]
    assert [row.seq for row in whole if row.erased] == [7, len(rows) - 3]
    for seq in (1, 7, 8, len(rows), *rng.sample(range(1, len(rows) + 1), 15)):
        before = counting.requests.total()
        assert list(await store.load_at("s", "default", seq)) == whole[whole[seq - 1].low - 1 : seq]
        assert counting.requests.total() - before <= 16
    for seq in range(1, 7):
        assert list(await store.load_at("s", "other", seq)) == others[:seq]
    assert list(await store.load_at("s", "other", 7)) == []
    await store.aclose()


async def test_an_object_that_is_missing_is_damage_and_not_a_shorter_journal() -> None:
    rows = windowed(60)
    counting, store = await stored(rows, [], tended=False)
    await counting.delete("journals/s/s/0000000000000005")
    with pytest.raises(CorruptJournal):
        await store.load_at("s", "default", 12)
    await store.aclose()


async def test_a_row_is_found_wherever_an_agent_was_silent(rng: random.Random) -> None:
    rows = windowed(120)
    for _ in range(30):
        parts: list[list[Row]] = []
        waiting = list(rows)
        while waiting:
            size = rng.choice((0, 0, 0, 1, 2, 9, 40))
            parts.append(waiting[:size])
            waiting = waiting[size:]
        read: list[int] = []

        async def part(number: int, parts: list[list[Row]] = parts, read: list[int] = read) -> list[Row]:
            read.append(number)
            return parts[number]

        for _ in range(10):
            found = Parts(list(range(1, len(parts) + 1)), (len(parts), len(rows)), part)
            last = rng.randint(1, len(rows))
            assert await found.rows(None, last) == rows[rows[last - 1].low - 1 : last]
            assert len(read) == len(set(read))
            read.clear()
        assert await Parts(list(range(1, len(parts) + 1)), (len(parts), 5), part).rows(None, len(rows) + 1) == []
