"""Runs over a store that fails, lies and dawdles, with callers that give up: the answer is the same, nothing twice."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import anyio
import pytest

from repertory import MultiAgentResult, Status
from repertory.app.orchestration.orchestrator import Orchestrator
from repertory.errors import RepertoryError
from repertory.testing.faulty_sessions import FaultSettings, FaultySessionStore
from repertory.testing.in_memory_sessions import MemorySessionStore
from tests.simulation.killed_worlds import World
from tests.simulation.test_killed_orchestrators import TASK, asking, graph, nested, said, swarm

pytestmark = pytest.mark.anyio

TROUBLES = 12
"""Calls that meet faults, at most, before the store recovers."""
CALM = FaultSettings()


@dataclass
class BadWorld(World):
    """A world whose store cannot be relied on."""

    rng: random.Random = field(default_factory=random.Random)
    weather: FaultSettings = CALM

    def open_store(self) -> Any:
        """A store of the next process."""
        store = MemorySessionStore(self.shelf, owner=f"owner {self.rng.random()}")
        return FaultySessionStore(store, self.rng, self.weather)

    def moment(self) -> None:
        """Nobody is killed here."""


async def one_call(made: Orchestrator, prompt: Any, world: BadWorld) -> MultiAgentResult | None:
    """A call that may fail, or be given up; None then."""
    token = "the run" if prompt == TASK else None
    with anyio.move_on_after(world.rng.choice([1.0, 5.0, 1000.0]) if world.weather is not CALM else 10_000.0):
        try:
            return await made.invoke_async(prompt, idempotency_token=token)
        except RepertoryError:
            if world.weather is CALM:
                raise
    return None


@pytest.mark.parametrize(
    ("make", "workers"),
    [(graph, 5), (swarm, 3), (nested, 5), (asking, 4)],
    ids=["graph", "swarm", "nested", "asking"],
)
async def test_a_run_over_a_bad_store_gives_the_same_answer_and_does_everything_once(
    make: Callable[[World], Orchestrator], workers: int, rng: random.Random
) -> None:
    expected: list[str] | None = None
    for _ in range(4):
        world = BadWorld(rng=rng)
        prompt: Any = TASK
        result: MultiAgentResult | None = None
        for attempt in range(10 * TROUBLES):
            rate = rng.choice([0.05, 0.2])
            bad = FaultSettings(error_rate=rate, lost_rate=rate, slow_rate=0.2, slow_s=3.0)
            world.weather = bad if attempt < TROUBLES else CALM
            result = await one_call(make(world), prompt, world)
            if result is None or result.status is Status.EXECUTING:
                prompt = TASK
            elif result.interrupts:
                ids = [each.id for each in result.interrupts]
                prompt = [{"interruptResponse": {"interruptId": each, "response": "yes"}} for each in ids]
            elif result.status is Status.COMPLETED:
                break
        assert result is not None
        assert (result.status, result.run) == (Status.COMPLETED, 1)
        expected = expected or said(result)
        assert said(result) == expected
        assert len(world.effects) == workers, world.effects
        assert len({key.split()[0] for key in world.effects}) == workers, world.effects
