"""Owners that come and go on objects that fail, with somebody else adding messages: nothing acknowledged is lost."""

from __future__ import annotations

import random
from contextlib import suppress

import pytest

from repertory.backends.ports import Batch, Position, give_up
from repertory.core.journal.restore import Appender, restore
from repertory.core.messages import text_of
from repertory.errors import RepertoryError, Retryable
from repertory.testing.faulty_objects import ObjectFaults
from tests.simulation.paused_trees import PausedTrees
from tests.simulation.tree_world import FAULTS, World

pytestmark = pytest.mark.anyio

OWNERS = 60


async def test_nothing_acknowledged_and_nothing_added_is_ever_lost(rng: random.Random) -> None:
    world = World(rng)
    for number in range(OWNERS):
        store, faulty = world.store(number)
        for _ in range(20):
            try:
                lease, _ = await store.acquire("s", takeover=True)
                rows = list(await store.load("s", "default", whole=True))
                break
            except Retryable:
                continue
        else:
            continue
        restored = restore(rows, session_id="s")
        world.check(text_of(message) for _, message in restored.fold.shown)
        with suppress(Retryable):
            await world.check_mark(store)
        appender = Appender("default", restored.fold, restored.link, rng.randbytes)
        faulty.settings = FAULTS
        for _ in range(rng.randrange(5)):
            if rng.random() < 0.15:
                await world.add_from_outside()
            said, made = world.rows(appender)
            try:
                (outcome,) = await store.append([Batch(lease=lease, rows=made)])
            except Retryable:
                break
            if not isinstance(outcome, Position):
                assert isinstance(outcome, RepertoryError)
                break
            world.kept += said
        if rng.random() < 0.5:
            faulty.settings = ObjectFaults()
            await give_up(store, lease)
    assert len(world.kept) > OWNERS // 2


@pytest.mark.parametrize("faulty", [False, True])
async def test_owners_that_pause_between_calls_lose_nothing_and_see_what_was_added(
    faulty: bool, rng: random.Random
) -> None:
    history = PausedTrees(rng, faulty=faulty)
    await history.run()
    assert history.resumed > 0
