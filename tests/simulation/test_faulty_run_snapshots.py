"""Runs whose session has snapshots, over objects that fail, lie and dawdle: one answer, nothing twice, and what others
read in the end is what is.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import anyio
import pytest

from repertory import MultiAgentResult, Status
from repertory.app.orchestration.orchestrator import Orchestrator
from repertory.backends.objects.in_memory import MemoryObjectStore, ObjectShelf
from repertory.backends.ports import give_up
from repertory.backends.sessions.journal.format import BESIDE_SNAPSHOTS
from repertory.backends.sessions.journal.store import ObjectSessionStore
from repertory.backends.sessions.liveness import TimeToLive
from repertory.backends.sessions.snapshots.port import SnapshotChoices
from repertory.backends.sessions.snapshots.store import SnapshotSessionStore
from repertory.testing.faulty_objects import FaultyObjectStore, ObjectFaults
from repertory.testing.faulty_sessions import FaultSettings
from tests.simulation.test_faulty_orchestrators import CALM, TROUBLES, BadWorld, one_call
from tests.simulation.test_killed_orchestrators import TASK, asking, graph, nested, said, swarm

pytestmark = pytest.mark.anyio


@dataclass
class SnapshotWorld(BadWorld):
    """A world that keeps journals and snapshots on objects."""

    objects: ObjectShelf = field(default_factory=lambda: ObjectShelf(anyio.current_time))

    def open_store(self) -> SnapshotSessionStore:
        """A store of the next process."""
        bad = self.weather
        faults = ObjectFaults(
            error_rate=bad.error_rate, lost_rate=bad.lost_rate, slow_rate=bad.slow_rate, slow_s=bad.slow_s
        )
        objects = FaultyObjectStore(MemoryObjectStore(self.objects), self.rng, faults)
        owner = f"owner-{self.rng.randrange(10**9)}"
        journal = ObjectSessionStore(objects, owner=owner, life=TimeToLive(anyio.current_time), layout=BESIDE_SNAPSHOTS)
        return SnapshotSessionStore(
            journal, objects, wall=anyio.current_time, entropy=os.urandom, choices=SnapshotChoices()
        )

    def runs(self) -> list[dict[str, Any]]:
        """What others read of every run."""
        bodies = [kept.body for key, kept in self.objects.objects.items() if "/scopes/multiAgent/" in key]
        return [json.loads(body)["data"]["state"] for body in bodies]


async def open_every_run(world: SnapshotWorld) -> None:
    """A snapshot that could not be put when its session was released is put at the next opening, which a run within
    another does not see while the outer one answers from what it has.
    """
    store = world.open_store()
    for info in await store.sessions():
        lease, _ = await store.acquire(info.session_id)
        for journal in info.agents:
            await store.load(info.session_id, journal)
        await give_up(store, lease)
    await store.aclose()


@pytest.mark.parametrize(
    ("make", "workers"),
    [(graph, 5), (swarm, 3), (nested, 5), (asking, 4)],
    ids=["graph", "swarm", "nested", "asking"],
)
async def test_a_run_with_snapshots_gives_one_answer_and_they_show_it(
    make: Callable[[Any], Orchestrator], workers: int, rng: random.Random
) -> None:
    world, prompt = SnapshotWorld(rng=rng), TASK
    result: MultiAgentResult | None = None
    for attempt in range(10 * TROUBLES):
        rate = rng.choice([0.02, 0.1])
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
    assert len(world.effects) == workers, world.effects
    world.weather = CALM
    again = await one_call(make(world), TASK, world)
    assert again is not None
    assert (again.replayed, said(again)) == (True, said(result))
    await open_every_run(world)
    runs = world.runs()
    assert {run["status"] for run in runs} == {"completed"}
    assert sum(sorted(run["node_results"]) == sorted(result.results) for run in runs) == 1
