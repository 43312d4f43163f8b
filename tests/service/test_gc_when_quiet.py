"""Full garbage collections of a service: they wait until it is quiet, and not for ever."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import anyio
import pytest

from repertory.service.http.gc_when_quiet import LOOK_S, PUT_OFF_S, gc_when_quiet

pytestmark = pytest.mark.anyio


@pytest.fixture
def full() -> Iterator[list[int]]:
    """A list with an entry for each full collection."""
    seen: list[int] = []

    def note(phase: str, told: dict[str, int]) -> None:
        if phase == "start" and told["generation"] == 2:
            seen.append(1)

    gc.callbacks.append(note)
    yield seen
    gc.callbacks.remove(note)


@pytest.fixture
def thawed() -> Iterator[None]:
    """Nothing is frozen, unlike in other tests."""
    gc.unfreeze()
    yield
    gc.freeze()


def grow() -> None:
    """Make so many objects that a full collection is worth while."""
    for _ in range(40):
        gc.collect(1)


async def test_a_collection_waits_until_nothing_is_in_progress(full: list[int]) -> None:
    busy = 1
    async with gc_when_quiet(lambda: busy):
        full.clear()
        grow()
        await anyio.sleep(10 * LOOK_S)
        assert full == []
        busy = 0
        await anyio.sleep(2 * LOOK_S)
        assert full == [1]
        await anyio.sleep(10 * LOOK_S)
        assert full == [1], "there is nothing new to collect"


async def test_a_service_that_is_never_quiet_collects_too(full: list[int]) -> None:
    async with gc_when_quiet(lambda: 1):
        full.clear()
        grow()
        await anyio.sleep(PUT_OFF_S + 2 * LOOK_S)
        assert full == [1]


async def test_afterwards_collections_are_as_before(thawed: None) -> None:
    before = gc.get_threshold()
    async with gc_when_quiet(lambda: 0):
        assert gc.get_threshold() != before
        assert gc.get_freeze_count() > 0
    assert gc.get_threshold() == before
    assert gc.get_freeze_count() == 0


async def test_what_a_process_has_frozen_itself_stays_frozen(full: list[int]) -> None:
    gc.freeze()
    frozen = gc.get_freeze_count()
    full.clear()
    async with gc_when_quiet(lambda: 0):
        assert 0 < gc.get_freeze_count() <= frozen
        assert full == []
    assert 0 < gc.get_freeze_count() <= frozen
