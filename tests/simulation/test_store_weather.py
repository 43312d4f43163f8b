"""Agents under a store whose weather changes: down, throttled, slow, silent, lying about what it has done. Whatever
comes, nothing that was acknowledged is lost, nothing is there twice, and what is not stored stands in the report.
"""

from __future__ import annotations

import random

import anyio
import pytest

from repertory import AgentSpec, DrainReport, Runtime, ScriptedModel, StorePatience
from repertory.backends.objects.in_memory import MemoryObjectStore, ObjectShelf
from repertory.backends.ports import ObjectStore, SessionStore
from repertory.backends.sessions.journal.store import ObjectSessionStore
from repertory.backends.sessions.liveness import TimeToLive
from repertory.core.messages import Message, check_next, text_of
from repertory.errors import RepertoryError
from repertory.testing.faulty_objects import FaultyObjectStore, ObjectFaults
from repertory.testing.faulty_sessions import FaultSettings, FaultySessionStore
from repertory.testing.in_memory_sessions import MemorySessionStore, SessionShelf
from tests.backends.sessions.bucket_places import bucket_store
from tests.backends.sessions.snapshot_places import snapshots_on

pytestmark = pytest.mark.anyio

SEEDS = 3
KINDS = ("memory", "journals", "documents", "snapshots")
SESSIONS = {"a": "pipelined", "b": "strict", "c": "relaxed"}
THINGS = 8
PATIENCE = StorePatience(wait_s=6.0, records_max=20)

WEATHERS = [
    ObjectFaults(),
    ObjectFaults(error_rate=1.0),
    ObjectFaults(throttle_rate=1.0),
    ObjectFaults(lost_rate=1.0),
    ObjectFaults(slow_rate=1.0, slow_s=20.0),
    ObjectFaults(error_rate=0.3, throttle_rate=0.1, lost_rate=0.3, slow_rate=0.3, slow_s=2.0),
]
"""Calm; a store that is down, or whose disk is full; one that is overloaded; one whose answers get lost; one that
hangs; and a bit of everything."""


class Sky:
    """Sessions that outlive their store, behind a store whose faults may change at any time."""

    def __init__(self, kind: str, rng: random.Random) -> None:
        self.key = kind
        self._rng = rng
        self._sessions = SessionShelf()
        self._objects = ObjectShelf(anyio.current_time)
        self._opened = 0
        self._stores: list[FaultyObjectStore | FaultySessionStore] = []

    def set(self, faults: ObjectFaults) -> None:
        """The weather from now on."""
        for store in self._stores:
            if isinstance(store, FaultyObjectStore):
                store.settings = faults
            else:
                store.settings = FaultSettings(
                    error_rate=min(faults.error_rate + faults.throttle_rate, 1.0),
                    lost_rate=faults.lost_rate,
                    slow_rate=faults.slow_rate,
                    slow_s=faults.slow_s,
                )

    def open_store(self) -> SessionStore:
        self._opened += 1
        owner = f"owner-{self._opened}"
        if self.key == "memory":
            store = FaultySessionStore(MemorySessionStore(self._sessions, owner=owner), self._rng, FaultSettings())
            self._stores = [store]
            return store
        objects = FaultyObjectStore(MemoryObjectStore(self._objects), self._rng, ObjectFaults())
        self._stores = [objects]
        return self._over(objects, owner)

    def _over(self, objects: ObjectStore, owner: str) -> SessionStore:
        if self.key == "journals":
            return ObjectSessionStore(objects, owner=owner, life=TimeToLive(anyio.current_time))
        if self.key == "snapshots":
            return snapshots_on(objects, owner, life=TimeToLive(anyio.current_time, 10.0))
        return bucket_store(
            objects,
            owner=owner,
            life=TimeToLive(anyio.current_time, 10.0),
            wall=anyio.current_time,
            entropy=self._rng.randbytes,
        )


def echo(messages: list[Message], *rest: object) -> str:
    del rest
    return f"answer to {text_of(messages[-1])}"


async def talk(runtime: Runtime, session_id: str, acknowledged: list[str], things: int, pause_s: float = 0.0) -> None:
    """Say one thing after the other, each until it is acknowledged, always under the same token."""
    model = ScriptedModel([echo], loop=True)
    spec = AgentSpec(model=model, durability=SESSIONS[session_id])  # type: ignore[arg-type] - one of three
    session = runtime.agent(spec).session(session_id)
    for number in range(things):
        said = f"{session_id}.{number}"
        for _ in range(600):
            try:
                result = await session.invoke(said, idempotency_token=said)
            except RepertoryError:
                await anyio.sleep(1)
                continue
            if result.stop_reason == "cancelled":
                return  # The drain has cut the turn short.
            assert str(result) == f"answer to {said}"
            acknowledged.append(said)
            await anyio.sleep(pause_s)
            break
        else:
            raise AssertionError("six hundred attempts in a row failed")


async def change(sky: Sky, rng: random.Random) -> None:
    while True:
        sky.set(rng.choice(WEATHERS))
        await anyio.sleep(rng.uniform(0.1, 15))


async def histories(sky: Sky) -> dict[str, list[str]]:
    await anyio.sleep(30)  # A session that could not be given up is free by then.
    async with Runtime(sessions=sky) as runtime:
        agent = runtime.agent(AgentSpec(model=ScriptedModel(["x"])))
        found = {name: await agent.session(name).history() for name in SESSIONS}
    for history in found.values():
        previous = None
        for message in history:
            check_next(previous, message)
            previous = message
    return {name: [text_of(message) for message in history] for name, history in found.items()}


def check_kept(texts: list[str], said: str) -> None:
    assert texts.count(said) == 1
    assert texts[texts.index(said) + 1] == f"answer to {said}"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("number", range(SEEDS))
async def test_nothing_acknowledged_is_lost_and_nothing_is_there_twice(kind: str, number: int, seed: int) -> None:
    rng = random.Random(f"{seed} {number}")
    sky = Sky(kind, rng)
    acknowledged: list[str] = []
    reports: list[DrainReport] = []
    with anyio.fail_after(100_000):
        async with Runtime(sessions=sky, patience=PATIENCE) as runtime:
            async with anyio.create_task_group() as weather:
                weather.start_soon(change, sky, rng)
                async with anyio.create_task_group() as talks:
                    for name in SESSIONS:
                        talks.start_soon(talk, runtime, name, acknowledged, THINGS)
                weather.cancel_scope.cancel()
            sky.set(ObjectFaults())
            await anyio.sleep(60)
            reports.append(await runtime.drain())
        kept = await histories(sky)
    assert reports[0].not_stored == ()
    assert len(acknowledged) == len(SESSIONS) * THINGS
    for said in acknowledged:
        check_kept(kept[said[0]], said)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("number", range(SEEDS))
async def test_a_drain_in_bad_weather_names_what_is_not_stored(kind: str, number: int, seed: int) -> None:
    rng = random.Random(f"{seed} {number}")
    sky = Sky(kind, rng)
    acknowledged: list[str] = []
    reports: list[DrainReport] = []
    with anyio.fail_after(100_000):
        async with Runtime(sessions=sky, patience=PATIENCE) as runtime, anyio.create_task_group() as group:
            group.start_soon(change, sky, rng)
            for name in SESSIONS:
                group.start_soon(talk, runtime, name, acknowledged, 1000, 3.0)
            await anyio.sleep(rng.uniform(5, 120))
            reports.append(await runtime.drain())
            group.cancel_scope.cancel()
        kept = await histories(sky)
    named = {told.session_id: told for told in reports[0].not_stored}
    for said in acknowledged:
        texts = kept[said[0]]
        if SESSIONS[said[0]] == "relaxed" and f"answer to {said}" not in texts:
            assert named[said[0]].answered
        else:
            check_kept(texts, said)
